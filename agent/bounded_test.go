package agent

import (
	"os/exec"
	"testing"
)

// TestExportIsBoundedAsAProgramWrites: a program's output meets the bound also where it is copied as os/exec does it.
func TestExportIsBoundedAsAProgramWrites(t *testing.T) {
	out := &bounded{most: 1 << 20}
	cmd := exec.Command("head", "-c", "20000000", "/dev/zero")
	cmd.Stdout = out
	err := cmd.Run()
	if !out.over || err == nil || out.b.Len() > out.most {
		t.Errorf("%v: over %t, %d bytes kept: want at most %d", err, out.over, out.b.Len(), out.most)
	}
}
