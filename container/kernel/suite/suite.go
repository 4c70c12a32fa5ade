// Package suite tests what package kernel promises of every engine.
package suite

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"weir.dev/weir/container"
	"weir.dev/weir/container/kernel"
	contract "weir.dev/weir/container/suite"
	"weir.dev/weir/instance"
)

var instances atomic.Int32

// NewInstance makes an instance that leaves nothing behind: its end is checked.
func NewInstance(t testing.TB) instance.Instance {
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
	for _, pattern := range []string{"/sys/fs/cgroup/weir/", "/sys/fs/cgroup/*/weir/"} {
		groups, err := filepath.Glob(pattern + inst.Name + "*")
		if err != nil {
			t.Fatal(err)
		}
		for _, g := range groups {
			if name, _, _ := strings.Cut(filepath.Base(g), "@"); name == inst.Name {
				out = append(out, "cgroup "+g)
			}
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
		if raw, err := os.ReadFile(p); err == nil && (strings.Contains(string(raw), "/weir/"+inst.Name+"/") || strings.Contains(string(raw), "/weir/"+inst.Name+"@")) {
			out = append(out, "process "+p)
		}
	}
	return out
}

// Rootfs is a small root with busybox.
func Rootfs(t testing.TB) string {
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

// Kit is one engine under test.
type Kit struct {
	Name   string // of the runtime: by it Skipped knows what the engine cannot do
	Open   func(ctx context.Context, inst instance.Instance, o kernel.Options) (*kernel.Runtime, error)
	Memory int64 // that a container takes at least; 0: 16 MiB will do
	Bare   bool  // see contract.Kernel
	// Together: the tests run as many at a time as `go test -parallel` says.
	Together bool
}

// One case by its name, and a part of it.
const (
	endless    = "endless output fills no disk and ends nobody"
	endsNobody = "it ends nobody"
)

// cases are what package kernel promises of every engine.
func cases() map[string]func(k Kit, t *testing.T) {
	return map[string]func(k Kit, t *testing.T){
		"what a program finds in its container":         Kit.containment,
		"limits hold":                                   Kit.limits,
		"the host's defaults bound what names no limit": Kit.defaultsBoundWhatNamesNoLimit,
		"bad specs are told and leave nothing":          Kit.badSpecs,
		"exec with a terminal":                          Kit.execWithTerminal,
		"a new process of the instance takes over":      Kit.takeOver,
		"what it uses is measured":                      Kit.whatItUsesIsMeasured,
		"a log is bounded":                              Kit.logIsBounded,
		"killed at any moment":                          Kit.killedAtAnyMoment,
		"appetite for processors and disks is bounded":  Kit.appetiteForProcessorsAndDisksIsBounded,
		"calls of 32 bits are refused":                  Kit.callsOf32BitsAreRefused,
		"rings are bounded as the last daemon says":     Kit.ringsAreAsTheLastDaemonSays,
		"what a killed process ran by exec ends":        Kit.execOfAKilledProcess,
		"destroy leaves the logs where it is told":      Kit.destroyLeavesTheLogsWhereItIsTold,
		"a log is bounded between two looks":            Kit.logIsBoundedBetweenTwoLooks,
		endless:                                         Kit.endlessOutputFillsNoDiskAndEndsNobody,
	}
}

// Cases are the names of all tests, in order: of the conformance of a runtime, of isolation, and of what package kernel promises.
func Cases() (conformance, isolation, promises []string) {
	return contract.Cases(), contract.Isolations(), slices.Sorted(maps.Keys(cases()))
}

// Run tests an engine with all that is not Skipped: the conformance of its runtime, its isolation, and what package kernel promises of every engine.
func (k Kit) Run(t *testing.T) {
	t.Run("conformance", k.conformance)
	t.Run("isolation", k.isolation)
	for name, f := range cases() {
		if Skipped(k.Name, name) == "" {
			t.Run(name, func(t *testing.T) {
				k.together(t)
				f(k, t)
			})
		}
	}
}

func (k Kit) open(t testing.TB, inst instance.Instance, o kernel.Options) *kernel.Runtime {
	t.Helper()
	o.Adopt = true
	r, err := k.Open(context.Background(), inst, o)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// fresh opens a runtime whose instance is destroyed at the end.
func (k Kit) fresh(t testing.TB) (*kernel.Runtime, container.Spec) {
	t.Helper()
	return k.freshWith(t, kernel.Options{})
}

func (k Kit) freshWith(t testing.TB, o kernel.Options) (*kernel.Runtime, container.Spec) {
	t.Helper()
	inst := NewInstance(t)
	r := k.open(t, inst, o)
	t.Cleanup(func() {
		if err := r.Destroy(context.Background()); err != nil {
			t.Error(err)
		}
		r.Close()
	})
	return r, container.Spec{Rootfs: Rootfs(t), ReadOnly: true}
}

var Waiting = sh("trap 'exit 0' TERM; while :; do sleep 1000 & wait; done")

func sh(script string) []string { return []string{"/bin/sh", "-c", script} }

// conformance is that of the runtime alone. Every engine has to have it.
func (k Kit) conformance(t *testing.T) {
	contract.Run(t, func(t *testing.T) contract.Driver {
		k.together(t)
		r, spec := k.fresh(t)
		return contract.Driver{
			Runtime: r, Spec: spec,
			Wait:     Waiting,
			Stubborn: sh("trap '' TERM; while :; do sleep 1000; done"),
			Exit:     func(code int) []string { return sh("exit " + strconv.Itoa(code)) },
			Print: func(text string) []string {
				return sh("echo " + text + "; trap 'exit 0' TERM; while :; do sleep 1000 & wait; done")
			},
			Cat: []string{"cat"}, ExitCodes: true,
		}
	})
}

func (k Kit) isolation(t *testing.T) {
	contract.Isolation(t, func(t *testing.T) contract.Kernel {
		k.together(t)
		r, spec := k.fresh(t)
		return contract.Kernel{Runtime: r, Root: spec.Rootfs, Bare: k.Bare}
	}, func(name string) bool { return Skipped(k.Name, name) != "" })
}

func (k Kit) together(t *testing.T) {
	if k.Together {
		t.Parallel()
	}
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

// Lifecycle measures each step, one container after another.
func (k Kit) Lifecycle(b *testing.B) {
	r, spec := k.fresh(b)
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

// Parallel measures Run, 1, 2 and 4 at a time.
func (k Kit) Parallel(b *testing.B) {
	for _, workers := range []int{1, 2, 4} {
		b.Run(fmt.Sprint("workers=", workers), func(b *testing.B) {
			r, spec := k.fresh(b)
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
