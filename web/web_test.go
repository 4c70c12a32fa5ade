package web

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"os/exec"
	"testing"
	"time"
)

// npm runs a command of the UI's own packages.
func npm(t *testing.T, args ...string) {
	t.Helper()
	path, err := exec.LookPath("npm")
	if err != nil {
		t.Fatal("there is no npm: run ./setup.sh")
	}
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	c := exec.CommandContext(ctx, path, args...)
	c.WaitDelay = 10 * time.Second
	if out, err := c.CombinedOutput(); err != nil {
		t.Errorf("npm %v: %v\n%s", args, err, out)
	}
}

// TestPartsOfTheUI: its own tests pass, its types hold, and its client is that of ../api/openapi.json.
func TestPartsOfTheUI(t *testing.T) {
	if _, err := os.Stat("node_modules/vitest"); errors.Is(err, fs.ErrNotExist) {
		npm(t, "ci", "--no-audit", "--no-fund")
	}
	npm(t, "run", "--silent", "generate", "--", "--check")
	npm(t, "run", "--silent", "check")
	npm(t, "test", "--silent")
}
