package kvm

import (
	"context"
	"flag"
	"os"
	"sync/atomic"
	"testing"

	"weir.dev/weir/container"
	"weir.dev/weir/container/kernel"
	kit "weir.dev/weir/container/kernel/suite"
	"weir.dev/weir/instance"
)

// testKernel is the one that peers.sh unpacks.
const testKernel = "../../build/vm/kern/boot/vmlinuz-*-cloud-amd64"

func sh(script string) []string { return []string{"/bin/sh", "-c", script} }

var waiting = sh("trap 'exit 0' TERM; while :; do sleep 1000 & wait; done")

// found is what the trial of the first test has found: it is the same for all. So are templates, which are in a directory of all tests.
var (
	found     atomic.Pointer[shape]
	templates string
)

// testsAtOnce is how many run at the same time, if nobody says otherwise (-parallel): beside the starts of their machines, which take a processor each, they wait.
const testsAtOnce = "3"

func TestMain(m *testing.M) {
	if err := flag.Set("test.parallel", testsAtOnce); err != nil {
		panic(err)
	}
	if os.Getenv("WEIR_CHILD") != "" { // it is killed, and could not remove templates
		os.Exit(m.Run())
	}
	dir, err := os.MkdirTemp("", "weir-templates-")
	if err != nil {
		panic(err)
	}
	templates = dir
	code := m.Run()
	if err := os.RemoveAll(dir); err != nil {
		panic(err)
	}
	os.Exit(code)
}

func open(t testing.TB, inst instance.Instance) *Runtime {
	t.Helper()
	r, err := New(context.Background(), inst, Options{Options: kernel.Options{Adopt: true}, Kernel: testKernel})
	if err != nil {
		t.Fatal(err)
	}
	r.engine.shape, r.engine.others = found.Load(), templates
	t.Cleanup(func() {
		done, err := r.engine.turnToMake(context.Background())
		if err != nil {
			t.Fatal(err)
		}
		defer done()
		found.Store(r.engine.shape)
	})
	return r
}

// fresh opens a runtime whose instance is destroyed at the end.
func fresh(t testing.TB) (*Runtime, container.Spec) {
	t.Helper()
	r := open(t, kit.NewInstance(t))
	t.Cleanup(func() {
		if err := r.Destroy(context.Background()); err != nil {
			t.Error(err)
		}
		r.Close()
	})
	return r, container.Spec{Rootfs: kit.Rootfs(t), ReadOnly: true}
}

// machines are emulated, each by about one thread: tests that measure nothing run together, once TestMachine has made the trial.
var machines = kit.Kit{Name: Name, Memory: minMemory, Together: true, Open: func(ctx context.Context, inst instance.Instance, o kernel.Options) (*kernel.Runtime, error) {
	r, err := New(ctx, inst, Options{Options: o, Kernel: testKernel})
	if err != nil {
		return nil, err
	}
	r.engine.shape, r.engine.others = found.Load(), templates
	return r.Runtime, nil
}}

func TestMachine(t *testing.T) {
	r, spec := fresh(t) // has the trial
	spec.ID, spec.Args = "first", sh("exit 3")
	if err := r.Run(t.Context(), spec); err != nil {
		t.Fatal(err)
	}
	if st, err := r.Wait(t.Context(), "first"); err != nil || st.ExitCode != 3 {
		t.Fatal(st, err)
	}
	found.Store(r.engine.shape)
}

// The suites' tests wait for machines as the other tests here do: all are in one pool.
func TestMachinesAsAllContainers(t *testing.T) {
	t.Parallel()
	machines.Run(t)
}

func TestChild(t *testing.T)     { machines.Child(t) }
func TestExecChild(t *testing.T) { machines.ExecChild(t) }
