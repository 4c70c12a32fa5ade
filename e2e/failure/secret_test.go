package failure

import (
	"bytes"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"weir.dev/weir/api"
	"weir.dev/weir/e2e/rig"
)

// TestASecretReachesAFunctionAsAFileInMemory: with the right owner and mode, a new value with a new start, and nowhere on a disk in clear.
func TestASecretReachesAFunctionAsAFileInMemory(t *testing.T) {
	r, ctx := rig.Bare(t, rig.Options{})
	if err := r.Up(ctx); err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "value")
	set := func(value string) {
		t.Helper()
		if err := os.WriteFile(file, []byte(value), 0o600); err != nil {
			t.Fatal(err)
		}
		if out, err := r.Weir(ctx, "secret", "set", "db", "--from", file); err != nil {
			t.Fatal(out, err)
		}
	}
	cat := func(path, want string) {
		t.Helper()
		rig.Eventually(ctx, t, path, func() (bool, string) {
			out, err := r.Weir(ctx, "function", "exec", "f", "--", "/bin/busybox", "cat", path)
			return err == nil && out == want, fmt.Sprintf("%q %v", out, err)
		})
	}
	set("first-value-of-db")
	r.MustApply(ctx, t, "functions: {f: {image: firewall, secrets: [db, 'db:/run/elsewhere/password']}}\n")
	cat("/run/secrets/db", "first-value-of-db")
	cat("/run/elsewhere/password", "first-value-of-db")
	out, err := r.Weir(ctx, "function", "exec", "f", "--", "/bin/busybox", "stat", "-c", "%a %u", "/run/secrets/db")
	if err != nil || strings.TrimSpace(out) != "400 0" {
		t.Errorf("mode and owner: %q %v", out, err)
	}
	before := function(ctx, t, r, "f")
	set("second-value-of-db")
	rig.Eventually(ctx, t, "a new start", func() (bool, string) {
		f := function(ctx, t, r, "f")
		return f.Status.Healthy && f.Status.ObservedGeneration > before.Status.ObservedGeneration && f.Status.State == api.FunctionStarted, fmt.Sprintf("%+v", f.Status)
	})
	cat("/run/secrets/db", "second-value-of-db")
	for _, args := range [][]string{{"get", "function", "f", "-o", "json"}, {"secret", "list", "-o", "json"}, {"audit", "-o", "json"}, {"events", "-o", "json"}, {"describe", "function", "f"}} {
		if out, err := r.Weir(ctx, args...); err != nil || strings.Contains(out, "value-of-db") {
			t.Errorf("weir %v shows it: %v %s", args, err, out)
		}
	}
	run := "/run/weir/" + r.Name
	for _, dir := range []string{r.Root, run} {
		err := filepath.WalkDir(dir, func(path string, e fs.DirEntry, err error) error {
			if err != nil || !e.Type().IsRegular() || strings.HasPrefix(path, filepath.Join(run, "secrets")) {
				return nil // it is gone meanwhile
			}
			if b, err := os.ReadFile(path); err == nil && bytes.Contains(b, []byte("value-of-db")) {
				t.Errorf("%s has it", path)
			}
			return nil
		})
		if err != nil {
			t.Error(err)
		}
	}
}
