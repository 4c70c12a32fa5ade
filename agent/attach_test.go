package agent

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"weir.dev/weir/api"
	"weir.dev/weir/flow"
	"weir.dev/weir/image"
)

// All that a container has of the host's files it can only read.
func TestFunctionMountsAreReadOnly(t *testing.T) {
	f := &function{a: &Agent{unshared: func() error { return nil }}, name: "fw"}
	s, err := f.spec(api.Function{}, image.Image{}, "/")
	if err != nil || len(s.Mounts) == 0 {
		t.Fatal(s.Mounts, err)
	}
	for _, m := range s.Mounts {
		if !m.ReadOnly {
			t.Errorf("%s can be written to at %s", m.Source, m.Target)
		}
	}
}

// The reasons of port security are made from the names of refusals.
func TestReasonsOfPortSecurityAreReserved(t *testing.T) {
	want := map[string]bool{}
	for why := flow.RefusedMAC; why < flow.Refusals; why++ {
		want["Refused"+strings.ToUpper(why.String()[:1])+why.String()[1:]] = true
	}
	got := map[string]bool{}
	for _, r := range api.Reasons() {
		if strings.HasPrefix(r, "Refused") {
			got[r] = true
		}
	}
	if d := cmp.Diff(want, got); d != "" {
		t.Error(d)
	}
}
