package kernel

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"

	"weir.dev/weir/instance"
)

func TestOwnProcsIsOfAGroupThatTheProcessIsIn(t *testing.T) {
	v2 := hierarchy{mount: "/cg/unified", v2: true}
	pids := hierarchy{mount: "/cg/pids", controllers: []string{"pids"}}
	cpu := hierarchy{mount: "/cg/cpu", controllers: []string{"cpu", "cpuacct"}}
	systemd := hierarchy{mount: "/cg/systemd", controllers: []string{"systemd"}}
	for name, tt := range map[string]struct {
		groups      string
		hierarchies []hierarchy
		want        string
	}{
		"v2":                      {"0::/system.slice/weir.service\n", []hierarchy{v2}, "/cg/unified/system.slice/weir.service/cgroup.procs"},
		"v1":                      {"8:pids:/a\n4:cpu,cpuacct:/b\n", []hierarchy{cpu, pids}, "/cg/pids/a/cgroup.procs"},
		"v1, two controllers":     {"4:cpu,cpuacct:/b\n", []hierarchy{pids, cpu}, "/cg/cpu/b/cgroup.procs"},
		"v1, a named one":         {"1:name=systemd:/c\n0::/d\n", []hierarchy{v2, systemd}, "/cg/systemd/c/cgroup.procs"},
		"one that is not there":   {"7:blkio:/\n0::/d\n", []hierarchy{pids, v2}, "/cg/unified/d/cgroup.procs"},
		"a colon in the name":     {"0::/a:b\n", []hierarchy{v2}, "/cg/unified/a:b/cgroup.procs"},
		"the root":                {"0::/\n", []hierarchy{v2}, "/cg/unified/cgroup.procs"},
		"v2's is no v1 group":     {"0::/\n", []hierarchy{pids}, ""},
		"nothing to be read":      {"garbage\n\n", []hierarchy{v2}, ""},
		"no controllers, no tree": {"8:pids:/a\n", nil, ""},
	} {
		t.Run(name, func(t *testing.T) {
			if got := ownProcs(tt.groups, tt.hierarchies); got != tt.want {
				t.Errorf("%q, want %q", got, tt.want)
			}
		})
	}
}

// Here and now: the file that is named lists this process, and to move it there leaves it where it is.
func TestRouseMovesNothing(t *testing.T) {
	hierarchies, err := findHierarchies()
	must(t, err)
	h := &Home{cgroups: hierarchies}
	groups := func() string {
		raw, err := os.ReadFile("/proc/self/cgroup")
		must(t, err)
		return string(raw)
	}
	before := groups()
	own := ownProcs(before, h.cgroups)
	pids, err := readProcs(own)
	must(t, err)
	if !slices.Contains(pids, os.Getpid()) {
		t.Errorf("%q does not list this process, %d", own, os.Getpid())
	}
	h.Rouse()()
	if diff := cmp.Diff(before, groups()); diff != "" {
		t.Error(diff)
	}
	file := filepath.Join(t.TempDir(), "cgroup.procs")
	must(t, os.WriteFile(file, nil, 0o600))
	moveSelf(file)
	if text, err := os.ReadFile(file); err != nil || string(text) != "0" {
		t.Errorf("written: %q, %v; want 0, which means the writer", text, err)
	}
}

// The texts are those of runc 1.1.5 (by itself and through Docker) and crun 1.8.1 while the group was removed again and again.
func TestLostGroupIsOfTheGroupOfAllInstances(t *testing.T) {
	h := &Home{cgroups: []hierarchy{{mount: "/sys/fs/cgroup/cpuset", controllers: []string{"cpuset"}}, {mount: "/sys/fs/cgroup/memory", controllers: []string{"memory"}}}}
	for text, want := range map[string]bool{
		"runc create: unable to apply cgroup configuration: mkdir /sys/fs/cgroup/memory/weir/a@docker: no such file or directory":                 true,
		"runc run: unable to apply cgroup configuration: openat2 /sys/fs/cgroup/cpuset/weir/cpuset.mems: no such file or directory":               true,
		"runc run: unable to apply cgroup configuration: read /sys/fs/cgroup/cpuset/weir/cpuset.cpus: no such device":                             true,
		"failed to create shim task: OCI runtime create failed: mkdir /sys/fs/cgroup/memory/weir/a@docker/fw: no such file or directory: unknown": true,
		"crun run: creating cgroup directory `/sys/fs/cgroup/memory/weir/a/fw`: No such file or directory":                                        true,
		"runc create: unable to apply cgroup configuration: mkdir /sys/fs/cgroup/memory/docker/a: no such file or directory":                      false,
		"runc create: unable to apply cgroup configuration: mkdir /sys/fs/cgroup/memory/weir/a: permission denied":                                false,
		"command \"/sys/fs/cgroup/memory\" not found in the image: no such file or directory":                                                     false,
		"mount /var/lib/weir/a: no such file or directory":                                                                                        false,
	} {
		if got := h.lostGroup(errors.New(text)); got != want {
			t.Errorf("%v for %s", got, text)
		}
	}
}

// A group of version 2 that limits nothing need not be entered, where there is another.
func TestQuickEntrancesAreThoseThatLimit(t *testing.T) {
	pids, memory := hierarchy{mount: "/cg/pids", controllers: []string{"pids"}}, hierarchy{mount: "/cg/memory", controllers: []string{"memory"}}
	bare, huge := hierarchy{mount: "/cg/unified", v2: true}, hierarchy{mount: "/cg/unified", v2: true, controllers: []string{"hugetlb"}}
	limiting := hierarchy{mount: "/cg", v2: true, controllers: []string{"hugetlb", "cpu"}}
	for name, tt := range map[string]struct {
		all   []hierarchy
		want  []string
		quick bool
	}{
		"version 1":                         {[]hierarchy{pids, memory}, []string{"/cg/pids/weir/x/a/tasks", "/cg/memory/weir/x/a/tasks"}, true},
		"version 2 beside it":               {[]hierarchy{pids, bare}, []string{"/cg/pids/weir/x/a/tasks"}, true},
		"version 2 with what is no limit":   {[]hierarchy{huge, pids}, []string{"/cg/pids/weir/x/a/tasks"}, true},
		"some controllers in version 2":     {[]hierarchy{pids, limiting}, []string{"/cg/pids/weir/x/a/tasks", "/cg/weir/x/a/cgroup.procs"}, false},
		"version 2 alone":                   {[]hierarchy{limiting}, []string{"/cg/weir/x/a/cgroup.procs"}, false},
		"version 2 alone, limiting nothing": {[]hierarchy{bare}, []string{"/cg/unified/weir/x/a/cgroup.procs"}, false},
	} {
		t.Run(name, func(t *testing.T) {
			h := &Home{inst: instance.Instance{Name: "x"}, engine: oldest, cgroups: tt.all}
			got, quick := h.QuickEntrances("a")
			if diff := cmp.Diff(tt.want, got); diff != "" || quick != tt.quick {
				t.Errorf("quick %v, want %v\n%s", quick, tt.quick, diff)
			}
		})
	}
}
