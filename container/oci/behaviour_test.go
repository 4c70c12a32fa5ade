package oci

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"weir.dev/weir/container"
	"weir.dev/weir/instance"
)

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// output runs a script in a container and returns what it printed, with its exit code.
func output(t *testing.T, r *Runtime, s container.Spec, script string) (string, int) {
	t.Helper()
	s.ID, s.Args = "script", sh(script)
	must(t, r.Run(t.Context(), s))
	st, err := r.Wait(t.Context(), s.ID)
	must(t, err)
	l, err := r.Logs(t.Context(), s.ID, container.LogOptions{})
	must(t, err)
	defer l.Close()
	text, err := io.ReadAll(l)
	must(t, err)
	must(t, r.Delete(t.Context(), s.ID))
	return string(text), st.ExitCode
}

func TestContainment(t *testing.T) {
	r, spec := fresh(t)
	shared := t.TempDir()
	must(t, os.WriteFile(filepath.Join(shared, "config.json"), []byte("shared"), 0o644))
	spec.Mounts = []container.Mount{{Source: shared, Target: "/etc/weir", ReadOnly: true}, {Source: shared, Target: "/run/weir"}}
	for name, tt := range map[string]struct {
		script, want string
		change       func(*container.Spec)
	}{
		"the root is read-only":              {script: "echo x 2>/dev/null >/new || echo refused", want: "refused\n"},
		"run and tmp are writable":           {script: "echo x >/run/new && echo y >/tmp/new && cat /run/new /tmp/new", want: "x\ny\n"},
		"mounts are there":                   {script: "cat /etc/weir/config.json /run/weir/config.json", want: "sharedshared"},
		"a read-only mount is":               {script: "echo x 2>/dev/null >/etc/weir/new || echo refused", want: "refused\n"},
		"it is process 1":                    {script: "echo $$", want: "1\n"},
		"it has no capabilities":             {script: "grep CapEff /proc/self/status", want: "CapEff:\t0000000000000000\n"},
		"it has those that it asks for":      {script: "grep CapEff /proc/self/status", want: "CapEff:\t0000000000001000\n", change: func(s *container.Spec) { s.Capabilities = []string{"CAP_NET_ADMIN"} }},
		"a user keeps those it asks for":     {script: "grep CapEff /proc/self/status; id -u", want: "CapEff:\t0000000000001000\n65534\n", change: func(s *container.Spec) { s.Capabilities, s.UID = []string{"CAP_NET_ADMIN"}, 65534 }},
		"system calls are filtered":          {script: "grep Seccomp: /proc/self/status; grep NoNewPrivs /proc/self/status", want: "Seccomp:\t2\nNoNewPrivs:\t1\n"},
		"its hostname is its id":             {script: "cat /proc/sys/kernel/hostname", want: "script\n"},
		"proc/sys is read-only":              {script: "echo x 2>/dev/null >/proc/sys/kernel/hostname || echo refused", want: "refused\n"},
		"without a namespace it has its own": {script: "ls /sys/class/net", want: "lo\n"},
		"the environment is the spec's":      {script: "echo $A", want: "b\n", change: func(s *container.Spec) { s.Env = []string{"A=b"} }},
		"a writable root is its own":         {script: "echo x >/new && cat /new", want: "x\n", change: func(s *container.Spec) { s.ReadOnly = false }},
	} {
		t.Run(name, func(t *testing.T) {
			s := spec
			if tt.change != nil {
				tt.change(&s)
			}
			got, code := output(t, r, s, tt.script)
			if diff := cmp.Diff(tt.want, got); diff != "" || code != 0 {
				t.Errorf("exit code %d: %s", code, diff)
			}
			if _, err := os.Lstat(filepath.Join(spec.Rootfs, "new")); err == nil {
				t.Error("it wrote into the image")
			}
		})
	}
}

func TestLimits(t *testing.T) {
	r, spec := fresh(t)
	spec.ID, spec.Args, spec.CPUs, spec.Memory, spec.PIDs = "a", waiting, 0.5, 32<<20, 20
	must(t, r.Run(t.Context(), spec)) // reads them back itself
	memory, _ := r.hierarchyOf("memory")
	file := "memory.limit_in_bytes"
	if memory.v2 {
		file = "memory.max"
	}
	raw, err := os.ReadFile(filepath.Join(memory.dir(r.cgroupPath("a")), file))
	must(t, err)
	if got := strings.TrimSpace(string(raw)); got != "33554432" {
		t.Errorf("%s is %s", file, got)
	}
	code, err := r.Exec(t.Context(), "a", container.ExecSpec{Args: sh("i=0; while [ $i -lt 30 ]; do sleep 5 & i=$((i+1)); done")})
	if err != nil || code == 0 {
		t.Errorf("30 processes with a limit of 20: exit code %d, %v", code, err)
	}
	must(t, r.Delete(t.Context(), "a"))
	spec.Args = sh("x=a; while :; do x=$x$x; done")
	must(t, r.Run(t.Context(), spec))
	st, err := r.Wait(t.Context(), "a")
	must(t, err)
	if st.ExitCode != 137 || st.Signal != 9 || !st.OOM {
		t.Errorf("out of memory: %+v, want exit code 137, signal 9 and that", st)
	}
	if again, err := r.Status(t.Context(), "a"); err != nil || again != st {
		t.Errorf("the status differs from what was waited for: %+v, %v", again, err)
	}
}

// A container whose spec names no memory gets the host's default; all containers together get less of the processors than others who want them.
func TestDefaultsBoundWhatNamesNoLimit(t *testing.T) {
	inst := newInstance(t)
	r := open(t, inst, Options{Memory: 48 << 20})
	defer r.Close()
	defer func() { must(t, r.Destroy(context.Background())) }()
	root := rootfs(t)
	for name, c := range map[string]struct {
		memory int64
		want   string
	}{"none": {0, "50331648"}, "its own": {16 << 20, "16777216"}} {
		t.Run(name, func(t *testing.T) {
			must(t, r.Run(t.Context(), container.Spec{ID: "a", Rootfs: root, ReadOnly: true, Args: waiting, Memory: c.memory}))
			memory, _ := r.hierarchyOf("memory")
			file := "memory.limit_in_bytes"
			if memory.v2 {
				file = "memory.max"
			}
			raw, err := os.ReadFile(filepath.Join(memory.dir(r.cgroupPath("a")), file))
			must(t, err)
			if got := strings.TrimSpace(string(raw)); got != c.want {
				t.Errorf("%s is %s, want %s", file, got, c.want)
			}
			must(t, r.Delete(t.Context(), "a"))
		})
	}
	cpu, _ := r.hierarchyOf("cpu")
	file, want := "cpu.shares", "512"
	if cpu.v2 {
		file, want = "cpu.weight", "50"
	}
	raw, err := os.ReadFile(filepath.Join(cpu.dir("/weir"), file))
	must(t, err)
	if got := strings.TrimSpace(string(raw)); got != want {
		t.Errorf("%s of all containers is %s, want %s", file, got, want)
	}
}

func TestKillsForWantOfMemoryAreRead(t *testing.T) {
	for text, want := range map[string]int64{
		"low 0\nhigh 3\nmax 17\noom 1\noom_kill 2\noom_group_kill 0\n": 2, // version 2
		"oom_kill_disable 0\nunder_oom 1\noom_kill 1\n":                1, // version 1
		"oom_kill_disable 1\nunder_oom 0\n":                            0, // before Linux 4.13
	} {
		if got := oomKills(text); got != want {
			t.Errorf("%q: %d, want %d", text, got, want)
		}
	}
}

func TestBadSpecs(t *testing.T) {
	r, spec := fresh(t)
	for name, tt := range map[string]struct {
		change func(*container.Spec)
		want   string
	}{
		"no root":            {func(s *container.Spec) { s.Rootfs = "/no/such/root" }, `root file system "/no/such/root" is not there`},
		"no command":         {func(s *container.Spec) { s.Args = nil }, "no command"},
		"no such namespace":  {func(s *container.Spec) { s.Netns = "/run/netns/no-such" }, "network namespace /run/netns/no-such: no such file"},
		"not a namespace":    {func(s *container.Spec) { s.Netns = "/etc/passwd" }, "this is no namespace"},
		"bad id":             {func(s *container.Spec) { s.ID = "../a" }, `container id "../a": want`},
		"no mount source":    {func(s *container.Spec) { s.Mounts = []container.Mount{{Source: "/no/such", Target: "/etc/weir"}} }, "/no/such"},
		"no mount target":    {func(s *container.Spec) { s.Mounts = []container.Mount{{Source: "/etc", Target: "/nowhere"}} }, "has no /nowhere and its root is read-only"},
		"too little memory":  {func(s *container.Spec) { s.Memory = 1000 }, "want at least 512K"},
		"unknown capability": {func(s *container.Spec) { s.Capabilities = []string{"CAP_MAGIC"} }, "CAP_MAGIC"},
		"not executable":     {func(s *container.Spec) { s.Args = []string{"/etc/weir"} }, `"/etc/weir" is not executable`},
	} {
		t.Run(name, func(t *testing.T) {
			s := spec
			s.ID, s.Args = "a", waiting
			tt.change(&s)
			for _, f := range []func(context.Context, container.Spec) error{r.Create, r.Run} {
				err := f(t.Context(), s)
				if err == nil && s.ID == "a" {
					err = r.Start(t.Context(), "a")
					must(t, r.Delete(t.Context(), "a"))
				}
				if err == nil || !strings.Contains(err.Error(), tt.want) {
					t.Errorf("got %v, want %q in it", err, tt.want)
				}
			}
			all, err := r.List(t.Context())
			must(t, err)
			if len(all) != 0 {
				t.Errorf("left %v", all)
			}
		})
	}
}

func TestNoRuntime(t *testing.T) {
	inst := newInstance(t)
	_, err := New(t.Context(), inst, Options{CLI: "no-such-runtime"})
	if err == nil || !strings.Contains(err.Error(), "apt-get install runc") {
		t.Errorf("got %v, want a remedy", err)
	}
}

func TestExecWithTerminal(t *testing.T) {
	r, spec := fresh(t)
	spec.ID, spec.Args = "a", waiting
	must(t, r.Run(t.Context(), spec))
	resize := make(chan [2]uint16, 1)
	resize <- [2]uint16{123, 45}
	in, keys := io.Pipe()
	defer keys.Close()
	var out bytes.Buffer
	go func() {
		for _, k := range []string{"i=0; until stty size | grep '45 123' || [ $i = 100 ]; do i=$((i+1)); sleep 0.05; done\n", "exit 9\n"} {
			if _, err := io.WriteString(keys, k); err != nil {
				return
			}
		}
	}()
	code, err := r.Exec(t.Context(), "a", container.ExecSpec{Args: []string{"sh", "-i"}, TTY: true, Stdin: in, Stdout: &out, Resize: resize})
	if err != nil || code != 9 {
		t.Errorf("exit code %d, %v", code, err)
	}
	// The size follows the start by a moment. A shell that is quicker than runc at setting the terminal up ends lines with \r\r\n.
	if !strings.Contains(out.String(), "\r\n45 123\r") {
		t.Errorf("the terminal's size is not seen: %q", out.String())
	}
}

// A new process of the instance takes over: the same processes, their exits with codes, their logs.
func TestTakeOver(t *testing.T) {
	inst := newInstance(t)
	spec := container.Spec{Rootfs: rootfs(t), ReadOnly: true, Args: sh("echo hello; trap 'exit 6' TERM; while :; do sleep 1000 & wait; done")}
	first := open(t, inst, Options{})
	with := func(id string) container.Spec { s := spec; s.ID = id; return s }
	must(t, first.Run(t.Context(), with("runs")))
	must(t, first.Create(t.Context(), with("waits")))
	must(t, first.Run(t.Context(), with("ended")))
	must(t, first.Stop(t.Context(), "ended", 10*time.Second))
	before, err := first.List(t.Context())
	must(t, err)
	must(t, first.Close())

	second := open(t, inst, Options{})
	defer second.Close()
	after, err := second.List(t.Context())
	must(t, err)
	if diff := cmp.Diff(before, after); diff != "" {
		t.Errorf("changed by the take-over:\n%s", diff)
	}
	must(t, second.Create(t.Context(), with("waits")))
	must(t, second.Start(t.Context(), "waits"))
	must(t, second.Run(t.Context(), with("runs")))
	must(t, second.Stop(t.Context(), "runs", 10*time.Second))
	if st, err := second.Status(t.Context(), "runs"); err != nil || st.ExitCode != 6 {
		t.Errorf("exit after the take-over: %+v, %v", st, err)
	}
	must(t, second.Destroy(t.Context()))
}

func TestLogIsBounded(t *testing.T) {
	inst := newInstance(t)
	r := open(t, inst, Options{LogBytes: 4096})
	defer r.Close()
	defer func() { must(t, r.Destroy(context.Background())) }()
	spec := container.Spec{ID: "a", Rootfs: rootfs(t), ReadOnly: true, Args: sh("i=0; while [ $i -lt 2000 ]; do echo line $i; i=$((i+1)); done; sleep 1000")}
	must(t, r.Run(t.Context(), spec))
	tail := func() string {
		l, err := r.Logs(t.Context(), "a", container.LogOptions{Tail: 2})
		must(t, err)
		defer l.Close()
		text, err := io.ReadAll(l)
		must(t, err)
		return string(text)
	}
	eventually(t, "the last line", func() bool { return tail() == "line 1998\nline 1999\n" })
	_, err := r.List(t.Context())
	must(t, err)
	if got := tail(); got != "line 1998\nline 1999\n" {
		t.Errorf("last lines after the cut: %q", got)
	}
	var size int64
	for _, f := range []string{r.logFile("a"), r.logFile("a") + ".1"} {
		if fi, err := os.Stat(f); err == nil {
			size += fi.Size()
		}
	}
	if size > 2*4096 {
		t.Errorf("%d bytes of log, want at most %d", size, 2*4096)
	}
}

// TestChild is no test: it is the process that TestKilledAtAnyMoment kills.
func TestChild(t *testing.T) {
	name, root, image := os.Getenv("WEIR_CHILD"), os.Getenv("WEIR_CHILD_ROOT"), os.Getenv("WEIR_CHILD_IMAGE")
	if name == "" {
		return
	}
	inst, err := instance.New(name, root)
	must(t, err)
	r := open(t, inst, Options{})
	ctx := context.Background()
	var wg sync.WaitGroup
	for w := range 2 {
		wg.Go(func() {
			for i := 0; ; i++ {
				s := container.Spec{ID: fmt.Sprintf("c%d-%d", w, i%3), Rootfs: image, ReadOnly: i%4 != 0, Args: []string{"/bin/sleep", "1000"}, Memory: 16 << 20}
				steps := []func() error{
					func() error { return r.Run(ctx, s) },
					func() error { return r.Delete(ctx, s.ID) },
					func() error { return r.Create(ctx, s) },
					func() error { return r.Start(ctx, s.ID) },
					func() error { return r.Stop(ctx, s.ID, 0) },
					func() error { return r.Delete(ctx, s.ID) },
				}
				for n, step := range steps {
					if err := step(); err != nil {
						fmt.Printf("step %d of %s: %v\n", n, s.ID, err)
						os.Exit(3)
					}
				}
			}
		})
	}
	fmt.Println("ready")
	wg.Wait()
}

// Killed at random moments, a process leaves nothing that the next one does not find: what is there works, and all of it can be
// removed. The container that runs through it all is never touched.
func TestKilledAtAnyMoment(t *testing.T) {
	inst := newInstance(t)
	image := rootfs(t)
	r := open(t, inst, Options{})
	steady := container.Spec{ID: "steady", Rootfs: image, ReadOnly: true, Args: waiting}
	must(t, r.Run(t.Context(), steady))
	st, err := r.Status(t.Context(), "steady")
	must(t, err)
	must(t, r.Close())
	for round := range 15 {
		cmd := exec.Command("/proc/self/exe", "-test.run=^TestChild$")
		cmd.Env = append(os.Environ(), "WEIR_CHILD="+inst.Name, "WEIR_CHILD_ROOT="+inst.Root, "WEIR_CHILD_IMAGE="+image)
		out, err := cmd.StdoutPipe()
		must(t, err)
		must(t, cmd.Start())
		first := make([]byte, 6)
		if _, err := io.ReadFull(out, first); err != nil || string(first) != "ready\n" {
			rest, _ := io.ReadAll(out)
			_ = cmd.Wait()
			t.Fatalf("round %d: the next process does not start: %s%s", round, first, rest)
		}
		after := time.NewTimer(time.Duration(rand.IntN(150_000)) * time.Microsecond)
		<-after.C
		must(t, cmd.Process.Signal(syscall.SIGKILL))
		rest, _ := io.ReadAll(out)
		_ = cmd.Wait()
		if len(rest) > 0 {
			t.Errorf("round %d: %s", round, rest)
		}
		// Every other time the next child takes over at once, else we look.
		if round%2 == 0 {
			continue
		}
		r := open(t, inst, Options{})
		all, err := r.List(t.Context())
		must(t, err)
		for _, s := range all {
			if s.ID == "steady" {
				if s.State != container.Running || s.PID != st.PID {
					t.Errorf("round %d: the steady container is %+v", round, s)
				}
				continue
			}
			must(t, r.Start(t.Context(), s.ID)) // whatever state it was in
			must(t, r.Delete(t.Context(), s.ID))
		}
		must(t, r.Close())
	}
	r = open(t, inst, Options{})
	must(t, r.Destroy(t.Context()))
	must(t, r.Close())
}

// A call that hangs ends with its context, and what it had begun is removed.
func TestHangingRuntime(t *testing.T) {
	inst := newInstance(t)
	cli := filepath.Join(t.TempDir(), "slow")
	must(t, os.WriteFile(cli, []byte("#!/bin/sh\ncase \"$*\" in *delete*|--version) exec runc \"$@\";; esac\nrunc \"$@\"; exec sleep 1000\n"), 0o755))
	r := open(t, inst, Options{CLI: cli, Vulnerable: true})
	defer r.Close()
	ctx, cancel := context.WithTimeout(t.Context(), 500*time.Millisecond)
	defer cancel()
	err := r.Run(ctx, container.Spec{ID: "a", Rootfs: rootfs(t), ReadOnly: true, Args: waiting})
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

func TestParseHierarchies(t *testing.T) {
	for name, tt := range map[string]struct {
		mountinfo string
		want      []hierarchy
	}{
		"v2": {
			"25 1 0:22 / /sys/fs/cgroup rw,nosuid - cgroup2 cgroup2 rw,nsdelegate\n",
			[]hierarchy{{mount: "/sys/fs/cgroup", v2: true}},
		},
		"hybrid": {
			"26 25 0:23 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n" +
				"27 25 0:24 / /sys/fs/cgroup/cpu,cpuacct rw shared:9 - cgroup cgroup rw,cpu,cpuacct\n" +
				"28 25 0:25 / /sys/fs/cgroup/systemd rw - cgroup cgroup rw,xattr,release_agent=/lib/x,name=systemd\n" +
				"29 25 0:24 / /elsewhere rw - cgroup cgroup rw,cpu,cpuacct\n30 25 0:9 / /proc rw - proc proc rw\n",
			[]hierarchy{
				{mount: "/sys/fs/cgroup/unified", v2: true},
				{mount: "/sys/fs/cgroup/cpu,cpuacct", controllers: []string{"cpu", "cpuacct"}},
				{mount: "/sys/fs/cgroup/systemd", controllers: []string{"systemd"}},
			},
		},
		"odd mount point": {`31 25 0:25 / /a\040b rw - cgroup cgroup rw,pids` + "\n", []hierarchy{{mount: "/a b", controllers: []string{"pids"}}}},
		"nothing":         {"garbage\n", nil},
	} {
		t.Run(name, func(t *testing.T) {
			if diff := cmp.Diff(tt.want, parseHierarchies(tt.mountinfo), cmp.AllowUnexported(hierarchy{})); diff != "" {
				t.Error(diff)
			}
		})
	}
}

// Limits are read back in the files of either cgroup version.
func TestLimitsAreReadBack(t *testing.T) {
	spec := container.Spec{ID: "a", CPUs: 0.5, Memory: 1<<20 + 1, PIDs: 7, CPUSet: "0-3,5"}
	v1 := map[string]string{"memory.limit_in_bytes": "1048576", "cpu.cfs_quota_us": "50000", "pids.max": "7", "cpuset.cpus": "0-3,5"}
	v2 := map[string]string{"memory.max": "1048576", "cpu.max": "50000 100000", "pids.max": "7", "cpuset.cpus": "0-3,5", "cpuset.cpus.effective": "0-3,5"}
	for name, tt := range map[string]struct {
		files  map[string]string
		v2     bool
		change map[string]string
		err    string
	}{
		"v1":                  {files: v1},
		"v2":                  {files: v2, v2: true},
		"v2 without memory":   {files: v2, v2: true, change: map[string]string{"memory.max": "max"}, err: "memory.max is max, want 1048576"},
		"v1 other quota":      {files: v1, change: map[string]string{"cpu.cfs_quota_us": "-1"}, err: "cpu.cfs_quota_us is -1, want 50000"},
		"v2 other processors": {files: v2, v2: true, change: map[string]string{"cpuset.cpus.effective": "0-7"}, err: "cpuset.cpus.effective is 0-7, want 0-3,5"},
		"v2 fewer above it":   {files: v2, v2: true, change: map[string]string{"cpuset.cpus.effective": "0-1"}, err: "cpuset.cpus.effective is 0-1, want 0-3,5"},
		"v1 all processors":   {files: v1, change: map[string]string{"cpuset.cpus": ""}, err: "cpuset.cpus is , want 0-3,5"},
		"file missing":        {files: v1, v2: true, err: "memory.max: no such file"},
	} {
		t.Run(name, func(t *testing.T) {
			mount := t.TempDir()
			dir := filepath.Join(mount, "weir/x/a")
			must(t, os.MkdirAll(dir, 0o755))
			for _, set := range []map[string]string{tt.files, tt.change} {
				for f, v := range set {
					must(t, os.WriteFile(filepath.Join(dir, f), []byte(v+"\n"), 0o644))
				}
			}
			r := &Runtime{inst: instance.Instance{Name: "x"}, cgroups: []hierarchy{{mount: mount, v2: tt.v2, controllers: []string{"cpu", "cpuset", "memory", "pids"}}}}
			_, err := r.readLimits(spec)
			if (err == nil) != (tt.err == "") || err != nil && !strings.Contains(err.Error(), tt.err) {
				t.Errorf("got %v, want %q", err, tt.err)
			}
		})
	}
	r := &Runtime{cgroups: []hierarchy{{controllers: []string{"cpu", "pids"}}}}
	if err := r.checkLimits(spec); err == nil || !strings.Contains(err.Error(), `no cgroup controller "memory"`) {
		t.Errorf("missing controller: %v", err)
	}
}

// A default that kernel or runtime do not keep is said, and hinders no start.
func TestDefaultsThatAreNotKeptAreSaid(t *testing.T) {
	files := func(t *testing.T, v2 bool, controllers []string, set map[string]string) *Runtime {
		mount := t.TempDir()
		dir := filepath.Join(mount, "weir/x/a")
		must(t, os.MkdirAll(dir, 0o755))
		for f, v := range set {
			must(t, os.WriteFile(filepath.Join(dir, f), []byte(v+"\n"), 0o644))
		}
		r := &Runtime{inst: instance.Instance{Name: "x", Root: "/"}, cgroups: []hierarchy{{mount: mount, v2: v2, controllers: controllers}}}
		r.setDefaults(Options{Memory: 64 << 20, CPUs: 1.9, DiskBytes: 1 << 30})
		r.disk, r.defaults.DiskBytes, r.defaults.DiskOps = disk{254, 16}, 1<<30, 16384 // whatever this machine's root is on
		if !slices.Contains(controllers, "io") && !slices.Contains(controllers, "blkio") {
			r.defaults.DiskBytes, r.defaults.DiskOps = 0, 0
		} else {
			r.defaults.Missing = ""
		}
		return r
	}
	v1 := map[string]string{
		"pids.max": "512", "memory.limit_in_bytes": "67108864", "cpu.cfs_quota_us": "190000", "blkio.throttle.read_bps_device": "8:0 5\n254:16 1073741824",
		"blkio.throttle.write_bps_device": "254:16 1073741824", "blkio.throttle.read_iops_device": "254:16 16384", "blkio.throttle.write_iops_device": "254:16 16384",
	}
	v2 := map[string]string{
		"pids.max": "512", "memory.max": "67108864", "cpu.max": "190000 100000", "io.max": "254:16 rbps=1073741824 wbps=1073741824 riops=16384 wiops=16384",
	}
	all := container.Limits{CPUs: 1.9, Memory: 64 << 20, PIDs: 512, DiskBytes: 1 << 30, DiskOps: 16384}
	for name, tt := range map[string]struct {
		v2          bool
		controllers []string
		files       map[string]string
		change      func(*container.Limits)
		missing     string
	}{
		"all, version 1": {controllers: []string{"cpu", "memory", "pids", "blkio"}, files: v1},
		"all, version 2": {v2: true, controllers: []string{"cpu", "memory", "pids", "io"}, files: v2},
		"no controller for disks": {controllers: []string{"cpu", "memory", "pids"}, files: v1, missing: `disk: the kernel has no cgroup controller "io"`,
			change: func(l *container.Limits) { l.DiskBytes, l.DiskOps = 0, 0 }},
		"the runtime leaves out the disk's": {v2: true, controllers: []string{"cpu", "memory", "pids", "io"},
			files:   map[string]string{"pids.max": "512", "memory.max": "67108864", "cpu.max": "190000 100000", "io.max": ""},
			missing: "io: limit", change: func(l *container.Limits) { l.DiskBytes, l.DiskOps = 0, 0 }},
		"the kernel has no quotas of processors": {controllers: []string{"cpu", "memory", "pids", "blkio"},
			files: func() map[string]string { m := maps.Clone(v1); delete(m, "cpu.cfs_quota_us"); return m }(), missing: "cpu: read limit back",
			change: func(l *container.Limits) { l.CPUs = 0 }},
	} {
		t.Run(name, func(t *testing.T) {
			r := files(t, tt.v2, tt.controllers, tt.files)
			got, err := r.readLimits(container.Spec{ID: "a"})
			must(t, err)
			want := all
			if tt.change != nil {
				tt.change(&want)
			}
			if !strings.Contains(got.Missing, tt.missing) || (got.Missing == "") != (tt.missing == "") {
				t.Errorf("missing %q, want %q", got.Missing, tt.missing)
			}
			got.Missing = ""
			if got != want {
				t.Errorf("limits %+v, want %+v", got, want)
			}
		})
	}
}

// A default that this kernel refuses (a disk that is none) hinders no start, and is said.
func TestADefaultThatTheKernelRefusesHindersNoStart(t *testing.T) {
	inst := newInstance(t)
	r := open(t, inst, Options{CPUs: 0.5, DiskBytes: 1 << 20})
	defer r.Close()
	defer func() { must(t, r.Destroy(context.Background())) }()
	r.disk = disk{4095, 99}
	must(t, r.Run(t.Context(), container.Spec{ID: "a", Rootfs: rootfs(t), ReadOnly: true, Args: waiting}))
	st, err := r.Status(t.Context(), "a")
	must(t, err)
	if st.State != container.Running || st.Limits.CPUs != 0.5 || st.Limits.DiskBytes != 0 || !strings.Contains(st.Limits.Missing, "it is not in force") {
		t.Errorf("%+v: want it to run, with a word of the disk's limit", st)
	}
}

// What reads from the disk without end gets what the host's default is, and what burns processors too.
func TestAppetiteForProcessorsAndDisksIsBounded(t *testing.T) {
	const rate = 4 << 20
	inst := newInstance(t)
	r := open(t, inst, Options{CPUs: 0.5, DiskBytes: rate})
	defer r.Close()
	defer func() { must(t, r.Destroy(context.Background())) }()
	if r.defaults.DiskBytes != rate {
		t.Fatalf("this machine bounds no disks: %q", r.defaults.Missing)
	}
	root := rootfs(t)
	const size = 24 << 20
	must(t, os.WriteFile(filepath.Join(root, "big"), make([]byte, size), 0o644))
	spec := container.Spec{ID: "a", Rootfs: root, ReadOnly: true, Args: waiting}
	must(t, r.Run(t.Context(), spec))
	st, err := r.Status(t.Context(), "a")
	must(t, err)
	if want := (container.Limits{CPUs: 0.5, PIDs: 512, DiskBytes: rate, DiskOps: rate / diskOpBytes}); st.Limits != want {
		t.Errorf("limits %+v, want %+v", st.Limits, want)
	}
	must(t, exec.Command("sync").Run())
	begin := time.Now()
	code, err := r.Exec(t.Context(), "a", container.ExecSpec{Args: sh("busybox dd if=/big of=/dev/null bs=1M iflag=direct 2>&1")})
	must(t, err)
	least := size / rate * time.Second / 2 // the kernel lets through what it has saved up
	if took := time.Since(begin); code != 0 || took < least {
		t.Errorf("exit code %d; 24 MiB in %v, want at least %v at 4 MiB/s", code, took, least)
	}
	var out bytes.Buffer
	begin = time.Now()
	_, err = r.Exec(t.Context(), "a", container.ExecSpec{Args: sh("for i in 1 2; do busybox timeout 2 sh -c 'while :; do :; done' & done; wait; times"), Stdout: &out})
	must(t, err)
	took := time.Since(begin)
	var own, children struct{ user, system time.Duration }
	var text [4]string
	_, err = fmt.Sscanf(out.String(), "%s %s\n%s %s", &text[0], &text[1], &text[2], &text[3])
	must(t, err)
	for i, d := range []*time.Duration{&own.user, &own.system, &children.user, &children.system} {
		*d, err = time.ParseDuration(text[i])
		must(t, err)
	}
	if used := children.user + children.system; used < took/10 || used > took*7/10 { // a half, and what a period more may give
		t.Errorf("two that burn have used %v of processors in %v, want a half of one", used, took)
	}
}

// TestExecChild is no test: it is the process that TestExecOfAKilledProcess kills.
func TestExecChild(t *testing.T) {
	name := os.Getenv("WEIR_EXEC_CHILD")
	if name == "" {
		return
	}
	inst, err := instance.New(name, os.Getenv("WEIR_CHILD_ROOT"))
	must(t, err)
	r := open(t, inst, Options{})
	_, err = r.Exec(context.Background(), "a", container.ExecSpec{Args: sh("echo ready; sleep 7777"), Stdout: os.Stdout})
	must(t, err)
}

// What a killed process ran in a container for a client ends when the next one opens the instance; the container goes on.
func TestExecOfAKilledProcess(t *testing.T) {
	inst := newInstance(t)
	r := open(t, inst, Options{})
	must(t, r.Run(t.Context(), container.Spec{ID: "a", Rootfs: rootfs(t), ReadOnly: true, Args: waiting}))
	must(t, r.Close())
	cmd := exec.Command("/proc/self/exe", "-test.run=^TestExecChild$")
	cmd.Env = append(os.Environ(), "WEIR_EXEC_CHILD="+inst.Name, "WEIR_CHILD_ROOT="+inst.Root)
	out, err := cmd.StdoutPipe()
	must(t, err)
	must(t, cmd.Start())
	first := make([]byte, 6)
	if _, err := io.ReadFull(out, first); err != nil || string(first) != "ready\n" {
		t.Fatalf("%q, %v", first, err)
	}
	must(t, cmd.Process.Signal(syscall.SIGKILL))
	_ = cmd.Wait()
	r = open(t, inst, Options{})
	defer r.Close()
	st, err := r.Status(t.Context(), "a")
	must(t, err)
	if st.State != container.Running {
		t.Errorf("the container is %s", st.State)
	}
	var text bytes.Buffer
	code, err := r.Exec(t.Context(), "a", container.ExecSpec{Args: sh("cat /proc/[0-9]*/cmdline"), Stdout: &text})
	must(t, err)
	if code != 0 || strings.Contains(text.String(), "7777") {
		t.Errorf("the client's program still runs (exit code %d): %q", code, text.String())
	}
	must(t, r.Destroy(t.Context()))
}

func TestDestroyLeavesTheLogsWhereItIsTold(t *testing.T) {
	for name, keep := range map[string]bool{"keep": true, "drop": false} {
		t.Run(name, func(t *testing.T) {
			inst := newInstance(t)
			r := open(t, inst, Options{KeepLogs: keep})
			must(t, r.Run(t.Context(), container.Spec{ID: "a", Rootfs: rootfs(t), ReadOnly: true, Args: sh("echo last words")}))
			_, err := r.Wait(t.Context(), "a")
			must(t, err)
			must(t, r.Destroy(t.Context()))
			must(t, r.Close())
			text, err := os.ReadFile(r.logFile("a"))
			switch {
			case keep && (err != nil || string(text) != "last words\n"):
				t.Errorf("the log has %q, %v", text, err)
			case !keep && !errors.Is(err, fs.ErrNotExist):
				t.Errorf("the log is still there: %q, %v", text, err)
			}
			must(t, os.RemoveAll(r.logsDir()))
		})
	}
}
