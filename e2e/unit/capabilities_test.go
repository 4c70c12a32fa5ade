package unit

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/moby/sys/capability"

	"weir.dev/weir/e2e/rig"
)

// Every thread of the daemon, and what it may get back, has the capabilities of the unit's CapabilityBoundingSet and no others.
func TestCapabilities(t *testing.T) {
	for _, verb := range []string{"up", "manager"} {
		t.Run(verb, func(t *testing.T) {
			r, ctx := rig.Bare(t, rig.Options{})
			r.Verb = verb
			if err := r.Up(ctx); err != nil {
				t.Fatal(err)
			}
			text, err := r.Weir(ctx, "unit", verb)
			if err != nil {
				t.Fatal(err)
			}
			found := regexp.MustCompile(`(?m)^CapabilityBoundingSet=(.*)$`).FindStringSubmatch(text)
			if found == nil {
				t.Fatalf("no CapabilityBoundingSet in\n%s", text)
			}
			var want uint64
			for _, name := range strings.Fields(found[1]) {
				for _, c := range capability.ListKnown() {
					if "CAP_"+strings.ToUpper(c.String()) == name {
						want |= 1 << c
					}
				}
			}
			own, err := capability.NewPid2(0)
			if err == nil {
				err = own.Load()
			}
			if err != nil {
				t.Fatal(err)
			}
			for _, c := range capability.ListKnown() { // a machine may have given root less
				if !own.Get(capability.PERMITTED, c) {
					want &^= 1 << c
				}
			}
			threads, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/status", r.PID()))
			if err != nil || len(threads) < 2 {
				t.Fatalf("%d threads, %v", len(threads), err)
			}
			for _, path := range threads {
				b, err := os.ReadFile(path)
				if os.IsNotExist(err) {
					continue // ended meanwhile
				}
				if err != nil {
					t.Fatal(err)
				}
				for _, set := range []string{"CapPrm", "CapEff", "CapBnd"} {
					m := regexp.MustCompile(set + `:\s+([0-9a-f]+)`).FindStringSubmatch(string(b))
					if m == nil {
						t.Fatalf("no %s in %s", set, path)
					}
					if got, _ := strconv.ParseUint(m[1], 16, 64); got != want {
						t.Errorf("%s %s: %#x, want %#x", path, set, got, want)
					}
				}
			}
		})
	}
}
