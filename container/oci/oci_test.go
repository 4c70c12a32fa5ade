package oci

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"weir.dev/weir/container"
	"weir.dev/weir/container/kernel"
	"weir.dev/weir/container/kernel/suite"
	"weir.dev/weir/instance"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var kit = suite.Kit{Name: Name, Open: func(ctx context.Context, inst instance.Instance, o kernel.Options) (*kernel.Runtime, error) {
	return New(ctx, inst, Options{Options: o})
}}

// crunKit is the engine with crun in the place of runc.
var crunKit = suite.Kit{Name: "crun", Together: true, Open: func(ctx context.Context, inst instance.Instance, o kernel.Options) (*kernel.Runtime, error) {
	return New(ctx, inst, Options{Options: o, CLI: "crun"})
}}

func TestEngine(t *testing.T)         { t.Parallel(); kit.Run(t) } // beside TestCrun: both wait more than they work
func TestChild(t *testing.T)          { kit.Child(t); crunKit.Child(t) }
func TestExecChild(t *testing.T)      { kit.ExecChild(t); crunKit.ExecChild(t) }
func BenchmarkLifecycle(b *testing.B) { kit.Lifecycle(b) }
func BenchmarkParallel(b *testing.B)  { kit.Parallel(b) }

func TestNoRuntime(t *testing.T) {
	inst, err := instance.New("none", t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	_, err = New(t.Context(), inst, Options{CLI: "no-such-runtime"})
	if err == nil || !strings.Contains(err.Error(), "apt-get install runc") {
		t.Errorf("got %v, want a remedy", err)
	}
	_, err = New(t.Context(), inst, Options{CLI: "false"})
	if err == nil || !strings.Contains(err.Error(), "/false --version: exit status 1: want the program of an OCI runtime, such as runc or crun") {
		t.Errorf("got %v, want what it should be", err)
	}
}

// A call that hangs ends with its context, and what it had begun is removed.
func TestHangingRuntime(t *testing.T) {
	inst := suite.NewInstance(t)
	cli := filepath.Join(t.TempDir(), "slow")
	must(t, os.WriteFile(cli, []byte("#!/bin/sh\ncase \"$*\" in *delete*|--version) exec runc \"$@\";; esac\nrunc \"$@\"; exec sleep 1000\n"), 0o755))
	r, err := New(t.Context(), inst, Options{CLI: cli, Vulnerable: true, Options: kernel.Options{Adopt: true}})
	must(t, err)
	defer r.Close()
	ctx, cancel := context.WithTimeout(t.Context(), 500*time.Millisecond)
	defer cancel()
	err = r.Run(ctx, container.Spec{ID: "a", Rootfs: suite.Rootfs(t), ReadOnly: true, Args: suite.Waiting})
	if !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("got %v, want the context's error", err)
	}
	all, err := r.List(t.Context())
	must(t, err)
	if len(all) != 0 {
		t.Errorf("left %v", all)
	}
	must(t, r.Destroy(t.Context()))
}

// Another instance may remove the group of all instances, empty as it is for a moment, while the runtime makes groups in it. Then the container is made anew, a few times.
func TestLostGroup(t *testing.T) {
	mount := "/sys/fs/cgroup"
	if _, err := os.Stat(mount + "/memory"); err == nil { // version 1
		mount += "/memory"
	}
	for name, tt := range map[string]struct{ failures, calls int }{"twice": {2, 3}, "for good": {100, 5}} {
		t.Run(name, func(t *testing.T) {
			inst, dir := suite.NewInstance(t), t.TempDir()
			cli, calls := filepath.Join(dir, "runtime"), filepath.Join(dir, "calls")
			message := fmt.Sprintf("runc run failed: unable to apply cgroup configuration: mkdir %s/weir/%s: no such file or directory", mount, inst.Name)
			must(t, os.WriteFile(cli, fmt.Appendf(nil, `#!/bin/sh
case "$*" in
*--bundle*) # runc --root DIR --log FILE
	echo >>%[1]s
	if [ $(wc -l <%[1]s) -le %[2]d ]; then echo '{"level":"error","msg":"%[3]s"}' >>"$4"; exit 1; fi ;;
esac
exec runc "$@"
`, calls, tt.failures, message), 0o755))
			r, err := New(t.Context(), inst, Options{CLI: cli, Vulnerable: true, Options: kernel.Options{Adopt: true}})
			must(t, err)
			defer r.Close()
			err = r.Run(t.Context(), container.Spec{ID: "a", Rootfs: suite.Rootfs(t), ReadOnly: true, Args: suite.Waiting})
			switch state, serr := r.Status(t.Context(), "a"); {
			case tt.failures < tt.calls && (err != nil || serr != nil || state.State != container.Running):
				t.Errorf("%v; %+v, %v", err, state, serr)
			case tt.failures > tt.calls && (err == nil || !strings.Contains(err.Error(), inst.Name+": no such file or directory") || !errors.Is(serr, container.ErrNotFound)):
				t.Errorf("%v; %+v, %v", err, state, serr)
			}
			if text, err := os.ReadFile(calls); err != nil || len(text) != tt.calls {
				t.Errorf("%d calls, %v, want %d", len(text), err, tt.calls)
			}
			must(t, r.Destroy(t.Context()))
		})
	}
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
