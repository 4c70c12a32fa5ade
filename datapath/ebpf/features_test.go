package ebpf

import (
	"os"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"weir.dev/weir/flow"
)

// Every feature says what it is for; one that is missing, what to do.
func TestFeatures(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Fatal("run as root")
	}
	seen := map[string]bool{}
	for _, f := range Features() {
		if f.Name == "" || f.Detail == "" || seen[f.Name] {
			t.Errorf("%+v", f)
		}
		seen[f.Name] = true
		if !f.OK && !strings.Contains(f.Detail, "want") {
			t.Errorf("%s is missing, with no remedy: %s", f.Name, f.Detail)
		}
	}
	for _, name := range []string{"tc programs", "redirect_peer", "global functions that take pointers", "tcx", "raw tracepoints", "LRU hash", "batch updates"} {
		if !seen[name] {
			t.Errorf("no word of %s", name)
		}
	}
}

// The prefixes of a range hold exactly its ports.
func TestExpand(t *testing.T) {
	for _, r := range []flow.PortRange{{First: 80, Last: 80}, {First: 0, Last: 1}, {First: 1, Last: 65534}, {First: 1000, Last: 2999}, {First: 0, Last: 65535}, {First: 65535, Last: 65535}} {
		all := expand(r)
		if len(all) > 30 {
			t.Errorf("%v takes %d prefixes", r, len(all))
		}
		for p := range 1 << 16 {
			hits := 0
			for _, m := range all {
				if uint16(p)&m.mask == m.value {
					hits++
				}
			}
			want := 0
			if p >= int(r.First) && p <= int(r.Last) {
				want = 1
			}
			if hits != want {
				t.Fatalf("%v: port %d is in %d prefixes, want %d", r, p, hits, want)
			}
		}
	}
	if d := cmp.Diff(1, len(expand(flow.PortRange{}))); d != "" {
		t.Error(d)
	}
}
