package suite

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"weir.dev/weir/container"
	"weir.dev/weir/container/kernel"
	"weir.dev/weir/instance"
)

// Program tests what comes of an engine's program that is missing, too old, fails or hangs. version is what a good one prints when it is asked.
func (k Kit) Program(t *testing.T, name, version, old string) {
	for title, c := range map[string]struct{ script, want string }{
		"it is not there": {"", "apt-get install"},
		"it is too old":   {"echo '" + old + "'", "is too old"},
		"it is another":   {"echo something else", "want a version such as"},
		"it does not run": {"exit 3", "exit status 3"},
	} {
		t.Run(title, func(t *testing.T) {
			replace(t, name, c.script)
			inst, err := instance.New("none", t.TempDir())
			must(t, err)
			if _, err := k.Open(t.Context(), inst, kernel.Options{}); err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("got %v, want %q in it", err, c.want)
			}
		})
	}
	good := "[ \"$1\" = --version ] && echo '" + version + "' && exit\n"
	t.Run("it fails", func(t *testing.T) {
		if err := k.failing(t, name, good+"echo its own words >&2; exit 1", time.Minute); err == nil || !strings.Contains(err.Error(), "its own words") {
			t.Errorf("got %v, want the program's words", err)
		}
	})
	t.Run("it hangs", func(t *testing.T) {
		if err := k.failing(t, name, good+"exec sleep 1000", 500*time.Millisecond); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("got %v, want the context's error", err)
		}
	})
}

// replace puts a script, if any, in the place of a program, for a test.
func replace(t *testing.T, name, script string) {
	t.Helper()
	dir := t.TempDir()
	if script != "" {
		must(t, os.WriteFile(filepath.Join(dir, name), []byte("#!/bin/sh\n"+script+"\n"), 0o755))
		dir += ":/usr/bin:/bin"
	}
	t.Setenv("PATH", dir)
}

// failing runs a container by a program that fails, and looks at what is left of it.
func (k Kit) failing(t *testing.T, name, script string, limit time.Duration) error {
	t.Helper()
	replace(t, name, script)
	r, spec := k.fresh(t)
	spec.ID, spec.Args = "a", Waiting
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	defer cancel()
	err := r.Run(ctx, spec)
	if all, lerr := r.List(t.Context()); lerr != nil || len(all) != 0 {
		t.Errorf("left %v, %v", all, lerr)
	}
	if _, serr := r.Status(t.Context(), "a"); !errors.Is(serr, container.ErrNotFound) {
		t.Errorf("its status: %v", serr)
	}
	return err
}
