package ebpf

import (
	"os"
	"strings"
	"testing"
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
