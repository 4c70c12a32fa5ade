package kernel

import (
	"context"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
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

func TestWhoseMemoryWasShort(t *testing.T) {
	const much, little = "MemTotal: 1000 kB\nMemAvailable:     400 kB\n", "MemTotal: 1000 kB\nMemAvailable: 350 kB\n"
	const limit = 256 << 10
	for name, c := range map[string]struct {
		counters string
		limit    int64
		meminfo  string
		want     container.Shortage
	}{
		"version 2, its own":              {"low 0\nhigh 3\nmax 17\noom 1\noom_kill 1\noom_group_kill 0\n", limit, little, container.ShortLimit},
		"version 2, one in vain":          {"oom 3\noom_kill 2\n", limit, little, container.ShortLimit},
		"version 2, the host's":           {"max 17\noom 0\noom_kill 1\n", limit, much, container.ShortHost},
		"version 2, both":                 {"oom 1\noom_kill 2\n", limit, much, container.ShortUnknown},
		"version 2, no limit":             {"oom 0\noom_kill 1\n", 0, much, container.ShortHost},
		"version 1, its own":              {"oom_kill_disable 0\nunder_oom 1\noom_kill 1\nfailcnt 9\n", limit, much, container.ShortLimit},
		"version 1, nobody has much":      {"oom_kill_disable 0\nunder_oom 0\noom_kill 1\nfailcnt 9\n", limit, little, container.ShortUnknown},
		"version 1, the host's":           {"oom_kill_disable 0\nunder_oom 0\noom_kill 1\nfailcnt 0\n", limit, much, container.ShortHost},
		"version 1, nothing known beside": {"oom_kill_disable 0\nunder_oom 0\noom_kill 1\n", limit, much, container.ShortUnknown},
		"version 1, no /proc/meminfo":     {"oom_kill 1\nfailcnt 9\n", limit, "", container.ShortUnknown},
	} {
		if got := shortOf(c.counters, c.limit, c.meminfo); got != c.want {
			t.Errorf("%s: %q, want %q", name, got, c.want)
		}
	}
}

// What is there is read, of a group that is gone its copy, and nobody was killed before Linux 4.13 said so.
func TestKillsForWantOfMemoryAreRead(t *testing.T) {
	for name, c := range map[string]struct {
		v2    bool
		files map[string]string
		ended string
		oom   bool
		want  container.Shortage
	}{
		"version 2":                {true, map[string]string{"memory.events": "oom 0\noom_kill 1\n"}, "", true, container.ShortHost},
		"version 1":                {false, map[string]string{"memory.oom_control": "oom_kill 1\n", "memory.failcnt": "0\n"}, "", true, container.ShortHost},
		"version 1, no kill":       {false, map[string]string{"memory.oom_control": "oom_kill 0\n", "memory.failcnt": "7\n"}, "", false, ""},
		"version 1, an old kernel": {false, map[string]string{"memory.oom_control": "oom_kill_disable 1\nunder_oom 0\n"}, "", false, ""},
		"a copy":                   {false, nil, "oom_kill 1\nfailcnt 0\n", true, container.ShortHost},
		"a copy without a kill":    {true, nil, "oom 2\noom_kill 0\n", false, ""},
		"nothing":                  {true, nil, "", false, ""},
	} {
		t.Run(name, func(t *testing.T) {
			mount, run := t.TempDir(), t.TempDir()
			h := &Home{engine: oldest, inst: instance.Instance{Name: "x", Run: run}, cgroups: []hierarchy{{mount: mount, v2: c.v2, controllers: []string{"memory"}}}}
			must(t, os.MkdirAll(filepath.Join(mount, h.CgroupPath("a")), 0o755))
			must(t, os.MkdirAll(h.Bundle("a"), 0o755))
			for f, text := range c.files {
				must(t, os.WriteFile(filepath.Join(mount, h.CgroupPath("a"), f), []byte(text), 0o644))
			}
			if c.ended != "" {
				must(t, os.WriteFile(filepath.Join(h.Bundle("a"), EndedFile), []byte(c.ended), 0o644))
			}
			if oom, short := h.outOfMemory("a", 1<<20); oom != c.oom || short != c.want {
				t.Errorf("%v, %q, want %v, %q", oom, short, c.oom, c.want)
			}
		})
	}
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
			h := &Home{engine: oldest, inst: instance.Instance{Name: "x"}, cgroups: []hierarchy{{mount: mount, v2: tt.v2, controllers: []string{"cpu", "cpuset", "memory", "pids"}}}}
			_, err := h.readLimits(spec)
			if (err == nil) != (tt.err == "") || err != nil && !strings.Contains(err.Error(), tt.err) {
				t.Errorf("got %v, want %q", err, tt.err)
			}
		})
	}
	h := &Home{cgroups: []hierarchy{{controllers: []string{"cpu", "pids"}}}}
	if err := h.checkLimits(spec); err == nil || !strings.Contains(err.Error(), `no cgroup controller "memory"`) {
		t.Errorf("missing controller: %v", err)
	}
}

// A default that kernel or runtime do not keep is said, and hinders no start.
func TestDefaultsThatAreNotKeptAreSaid(t *testing.T) {
	files := func(t *testing.T, v2 bool, controllers []string, set map[string]string) *Home {
		mount := t.TempDir()
		dir := filepath.Join(mount, "weir/x/a")
		must(t, os.MkdirAll(dir, 0o755))
		for f, v := range set {
			must(t, os.WriteFile(filepath.Join(dir, f), []byte(v+"\n"), 0o644))
		}
		h := &Home{engine: oldest, inst: instance.Instance{Name: "x", Root: "/"}, cgroups: []hierarchy{{mount: mount, v2: v2, controllers: controllers}}}
		h.setDefaults(Options{Memory: 64 << 20, CPUs: 1.9, DiskBytes: 1 << 30})
		h.disk, h.defaults.DiskBytes, h.defaults.DiskOps = disk{254, 16}, 1<<30, 16384 // whatever this machine's root is on
		if !slices.Contains(controllers, "io") && !slices.Contains(controllers, "blkio") {
			h.defaults.DiskBytes, h.defaults.DiskOps = 0, 0
		} else {
			h.defaults.Missing = ""
		}
		return h
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
			h := files(t, tt.v2, tt.controllers, tt.files)
			got, err := h.readLimits(container.Spec{ID: "a"})
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

// plain is an engine of processes that nothing isolates.
type plain struct{ *Home }

func (p plain) Launch(_ context.Context, c Container, _ *os.File, _ bool, made Made) error {
	cmd := exec.Command(c.Args[0], c.Args[1:]...)
	if err := cmd.Start(); err != nil {
		return err
	}
	for _, t := range p.cgroups {
		dir := t.dir(p.CgroupPath(c.ID))
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return err
		}
		if slices.Contains(t.controllers, "cpuset") && !t.v2 {
			continue // it would want its processors first
		}
		if err := os.WriteFile(filepath.Join(dir, "cgroup.procs"), []byte(strconv.Itoa(cmd.Process.Pid)), 0); err != nil {
			return err
		}
	}
	file, _ := p.ControlFile(c.ID, "pids", "pids.max", "pids.max")
	if err := os.WriteFile(file, []byte("512"), 0); err != nil {
		return err
	}
	return made(cmd.Process.Pid, true)
}
func (plain) Prepare(Container) error                                          { return nil }
func (plain) Start(context.Context, Container) error                           { return nil }
func (plain) Find(context.Context, Container) (Found, error)                   { return Found{}, nil }
func (plain) Left() ([]string, error)                                          { return nil, nil }
func (plain) Remove(context.Context, string) error                             { return nil }
func (plain) Exec(context.Context, Container, container.ExecSpec) (int, error) { return -1, nil }

// prepares is an engine whose processes prepare themselves until it is told.
type prepares struct {
	plain
	reached, goOn chan struct{}
}

func (p prepares) Launch(ctx context.Context, c Container, log *os.File, run bool, made Made) error {
	return p.plain.Launch(ctx, c, log, run, func(pid int, _ bool) error {
		err := made(pid, false)
		close(p.reached)
		<-p.goOn
		return err
	})
}

// bareRoot has the directories that every root has to have.
func bareRoot(t *testing.T) string {
	t.Helper()
	root := t.TempDir()
	for _, dir := range []string{"proc", "dev", "sys", "run", "tmp"} {
		must(t, os.Mkdir(filepath.Join(root, dir), 0o755))
	}
	return root
}

// A process that prepares itself counts as running, so it has a time of its start, which stays.
func TestAProcessThatPreparesItselfHasStarted(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Fatal("not root: this test makes cgroups (sudo make test)")
	}
	inst, err := instance.New(fmt.Sprintf("s%x", os.Getpid()), t.TempDir())
	must(t, err)
	reached, goOn := make(chan struct{}), make(chan struct{})
	r, err := New(t.Context(), inst, "plain", Options{Adopt: true}, func(h *Home) (Engine, error) { return prepares{plain{h}, reached, goOn}, nil })
	must(t, err)
	defer r.Close()
	defer func() {
		must(t, r.Destroy(context.Background()))
		must(t, os.Remove(inst.Run))
	}()
	begin, done := time.Now(), make(chan error, 1)
	spec := container.Spec{ID: "a", Rootfs: bareRoot(t), ReadOnly: true, Args: []string{"sleep", "1000"}}
	go func() { done <- r.Run(context.Background(), spec) }()
	<-reached
	before, err := r.Status(t.Context(), "a")
	must(t, err)
	if before.State != container.Running || before.Started.Before(begin) || before.Started.After(time.Now()) {
		t.Errorf("while it prepares itself: %+v, want a start since %v", before, begin)
	}
	close(goOn)
	must(t, <-done)
	if after, err := r.Status(t.Context(), "a"); err != nil || !after.Started.Equal(before.Started) {
		t.Errorf("then it is said to have started at %v, %v, before at %v", after.Started, err, before.Started)
	}
}

// A default that this kernel refuses (a disk that is none) hinders no start, and is said.
func TestADefaultThatTheKernelRefusesHindersNoStart(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Fatal("not root: this test makes cgroups (sudo make test)")
	}
	inst, err := instance.New(fmt.Sprintf("k%x", os.Getpid()), t.TempDir())
	must(t, err)
	r, err := New(t.Context(), inst, "plain", Options{CPUs: 0.5, DiskBytes: 1 << 20, Adopt: true}, func(h *Home) (Engine, error) { return plain{h}, nil })
	must(t, err)
	defer r.Close()
	defer func() {
		must(t, r.Destroy(context.Background()))
		must(t, os.Remove(inst.Run))
	}()
	r.disk, r.defaults.DiskBytes, r.defaults.DiskOps = disk{4095, 99}, 1<<20, 16
	must(t, r.Run(t.Context(), container.Spec{ID: "a", Rootfs: bareRoot(t), ReadOnly: true, Args: []string{"sleep", "1000"}}))
	st, err := r.Status(t.Context(), "a")
	must(t, err)
	if st.State != container.Running || st.Limits.CPUs != 0.5 || st.Limits.DiskBytes != 0 || !strings.Contains(st.Limits.Missing, "it is not in force") {
		t.Errorf("%+v: want it to run, with a word of the disk's limit", st)
	}
}
