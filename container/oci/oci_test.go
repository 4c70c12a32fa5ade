package oci

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"

	"weir.dev/weir/container"
	"weir.dev/weir/container/suite"
	"weir.dev/weir/instance"
)

var instances atomic.Int32

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// newInstance makes an instance that leaves nothing behind: its end is checked.
func newInstance(t testing.TB) instance.Instance {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Fatal("not root: these tests make containers (sudo make test)")
	}
	name := fmt.Sprintf("t%x-%x", os.Getpid()&0xffff, instances.Add(1))
	inst, err := instance.New(name, t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := os.Remove(inst.Run); err != nil && !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("left in the run directory: %v", err)
		}
		for _, left := range leftovers(t, inst) {
			t.Errorf("left: %s", left)
		}
	})
	return inst
}

// leftovers lists cgroups, processes and mounts of an instance.
func leftovers(t testing.TB, inst instance.Instance) []string {
	t.Helper()
	var out []string
	hs, err := findHierarchies()
	if err != nil {
		t.Fatal(err)
	}
	for _, h := range hs {
		if _, err := os.Stat(h.dir("/weir/" + inst.Name)); err == nil {
			out = append(out, "cgroup "+h.dir("/weir/"+inst.Name))
		}
	}
	mounts, err := os.ReadFile("/proc/self/mounts")
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(mounts)) {
		if strings.Contains(line, inst.Run+"/") || strings.Contains(line, inst.Root+"/") {
			out = append(out, "mount "+line)
		}
	}
	procs, err := filepath.Glob("/proc/[0-9]*/cgroup")
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range procs {
		if raw, err := os.ReadFile(p); err == nil && strings.Contains(string(raw), "/weir/"+inst.Name+"/") {
			out = append(out, "process "+p)
		}
	}
	return out
}

// rootfs is a small root with busybox.
func rootfs(t testing.TB) string {
	t.Helper()
	dir := t.TempDir()
	for _, d := range []string{"bin", "proc", "dev", "sys", "run", "tmp", "etc/weir"} {
		if err := os.MkdirAll(filepath.Join(dir, d), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Chmod(filepath.Join(dir, "tmp"), 0o777|os.ModeSticky); err != nil {
		t.Fatal(err)
	}
	program, err := os.ReadFile("/bin/busybox")
	if err != nil {
		t.Fatalf("%v (apt-get install busybox-static)", err)
	}
	if err := os.WriteFile(filepath.Join(dir, "bin/busybox"), program, 0o755); err != nil {
		t.Fatal(err)
	}
	for _, a := range []string{"sh", "cat", "sleep", "echo", "id", "stty", "grep", "ls"} {
		if err := os.Symlink("busybox", filepath.Join(dir, "bin", a)); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

func open(t testing.TB, inst instance.Instance, o Options) *Runtime {
	t.Helper()
	o.Adopt = true
	r, err := New(context.Background(), inst, o)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// fresh opens a runtime whose instance is destroyed at the end.
func fresh(t testing.TB) (*Runtime, container.Spec) {
	t.Helper()
	inst := newInstance(t)
	r := open(t, inst, Options{})
	t.Cleanup(func() {
		if err := r.Destroy(context.Background()); err != nil {
			t.Error(err)
		}
		r.Close()
	})
	return r, container.Spec{Rootfs: rootfs(t), ReadOnly: true}
}

func sh(script string) []string { return []string{"/bin/sh", "-c", script} }

var waiting = sh("trap 'exit 0' TERM; while :; do sleep 1000 & wait; done")

func TestConformance(t *testing.T) {
	suite.Run(t, func(t *testing.T) suite.Driver {
		r, spec := fresh(t)
		return suite.Driver{
			Runtime: r, Spec: spec,
			Wait:     waiting,
			Stubborn: sh("trap '' TERM; while :; do sleep 1000; done"),
			Exit:     func(code int) []string { return sh("exit " + strconv.Itoa(code)) },
			Print: func(text string) []string {
				return sh("echo " + text + "; trap 'exit 0' TERM; while :; do sleep 1000 & wait; done")
			},
			Cat: []string{"cat"}, ExitCodes: true,
		}
	})
}

func TestIsolation(t *testing.T) {
	suite.Isolation(t, func(t *testing.T) suite.Kernel {
		r, spec := fresh(t)
		return suite.Kernel{Runtime: r, Root: spec.Rootfs}
	})
}

// eventually polls to a deadline.
func eventually(t testing.TB, what string, ok func() bool) {
	t.Helper()
	deadline := time.NewTimer(20 * time.Second)
	defer deadline.Stop()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for !ok() {
		select {
		case <-tick.C:
		case <-deadline.C:
			t.Fatalf("not within 20 s: %s", what)
		}
	}
}

func BenchmarkLifecycle(b *testing.B) {
	r, spec := fresh(b)
	spec.Args = []string{"/bin/sleep", "1000"}
	if wire := os.Getenv("WEIR_BENCH_ROOTFS"); wire != "" {
		spec.Rootfs, spec.Args = wire, []string{"/usr/bin/wire"}
	}
	ctx := context.Background()
	step := func(name string, f func(id string) error) {
		start := time.Now()
		for i := range b.N {
			if err := f(fmt.Sprint("c", i)); err != nil {
				b.Fatal(err)
			}
		}
		b.ReportMetric(float64(time.Since(start).Microseconds())/1000/float64(b.N), name+"-ms")
	}
	withID := func(id string) container.Spec { s := spec; s.ID = id; return s }
	step("run", func(id string) error { return r.Run(ctx, withID(id)) })
	step("list", func(string) error { _, err := r.List(ctx); return err })
	step("delete", func(id string) error { return r.Delete(ctx, id) })
	step("create", func(id string) error { return r.Create(ctx, withID(id)) })
	step("start", func(id string) error { return r.Start(ctx, id) })
	step("stop", func(id string) error { return r.Stop(ctx, id, 10*time.Second) })
	step("startagain", func(id string) error { return r.Start(ctx, id) })
	step("deletelast", func(id string) error { return r.Delete(ctx, id) })
}

func BenchmarkParallel(b *testing.B) {
	for _, workers := range []int{1, 2, 4} {
		b.Run(fmt.Sprint("workers=", workers), func(b *testing.B) {
			r, spec := fresh(b)
			spec.Args = []string{"/bin/sleep", "1000"}
			var next atomic.Int64
			var wg sync.WaitGroup
			for range workers {
				wg.Go(func() {
					for i := next.Add(1); i <= int64(b.N); i = next.Add(1) {
						s := spec
						s.ID = fmt.Sprint("c", i)
						if err := r.Run(context.Background(), s); err != nil {
							b.Error(err)
						}
					}
				})
			}
			wg.Wait()
		})
	}
}
