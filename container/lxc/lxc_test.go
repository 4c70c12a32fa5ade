package lxc

import (
	"context"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"

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

func TestEngine(t *testing.T)         { kit.Run(t) }
func TestLaunched(t *testing.T)       { kit.Launched(t) }
func TestMonitorKilled(t *testing.T)  { kit.MonitorKilled(t) }
func TestProgram(t *testing.T)        { kit.Program(t, program, "5.0.2", "4.0.12") }
func TestChild(t *testing.T)          { kit.Child(t) }
func TestExecChild(t *testing.T)      { kit.ExecChild(t) }
func BenchmarkLifecycle(b *testing.B) { kit.Lifecycle(b) }
func BenchmarkParallel(b *testing.B)  { kit.Parallel(b) }

// open opens containers that are destroyed with the test.
func open(t *testing.T) *kernel.Runtime {
	t.Helper()
	r, err := kit.Open(t.Context(), suite.NewInstance(t), kernel.Options{Adopt: true})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := r.Destroy(context.Background()); err != nil {
			t.Error(err)
		}
		r.Close()
	})
	return r
}

// A container's process is in each group that limits it before its command is, and lxc-start in none of them.
func TestGroups(t *testing.T) {
	r := open(t)
	if err := r.Create(t.Context(), container.Spec{ID: "a", Rootfs: suite.Rootfs(t), ReadOnly: true, Args: suite.Waiting}); err != nil {
		t.Fatal(err)
	}
	st, err := r.Status(t.Context(), "a")
	if err != nil {
		t.Fatal(err)
	}
	limiting, _ := r.QuickEntrances("a")
	if len(limiting) == 0 {
		t.Fatal("no groups")
	}
	for _, file := range limiting {
		raw, err := os.ReadFile(file)
		if pids := strings.Fields(string(raw)); err != nil || !slices.Equal(pids, []string{strconv.Itoa(st.PID)}) {
			t.Errorf("%s: %v, %v, want %d alone", file, pids, err, st.PID)
		}
	}
}

// Groups that cannot be made, while lxc-start works, are what the error names. Nobody waits for them then, and nothing is left.
func TestGroupsThatCannotBeMade(t *testing.T) {
	r := open(t)
	err := r.Run(t.Context(), container.Spec{ID: "a", Rootfs: suite.Rootfs(t), ReadOnly: true, Args: suite.Waiting, PIDs: 1 << 40}) // more than the kernel takes
	if err == nil || !strings.Contains(err.Error(), "limit pids.max") {
		t.Errorf("%v, want that of the limit", err)
	}
	for _, file := range r.Entrances("a") {
		if _, err := os.Stat(file); err == nil {
			t.Errorf("%s is left", file)
		}
	}
	if left, err := r.Monitors(); err != nil || len(left) > 0 {
		t.Errorf("monitors left: %v, %v", left, err)
	}
}
