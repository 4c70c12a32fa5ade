package kernel

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// hierarchy is one mounted cgroup tree. A v1 host has several, a v2 host one, a hybrid host both kinds.
type hierarchy struct {
	mount       string
	controllers []string
	v2          bool
}

func (h hierarchy) dir(path string) string { return filepath.Join(h.mount, path) }

func findHierarchies() ([]hierarchy, error) {
	raw, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return nil, fmt.Errorf("find cgroups: %w", err)
	}
	out := parseHierarchies(string(raw))
	for i := range out {
		if out[i].v2 {
			names, err := os.ReadFile(filepath.Join(out[i].mount, "cgroup.controllers"))
			if err != nil {
				return nil, fmt.Errorf("find cgroups: %w", err)
			}
			out[i].controllers = strings.Fields(string(names))
		}
	}
	if len(out) == 0 {
		return nil, errors.New("no cgroup file system is mounted: mount -t cgroup2 none /sys/fs/cgroup")
	}
	return out, nil
}

// parseHierarchies reads proc_pid_mountinfo(5). Of several mounts of one tree the first counts.
func parseHierarchies(mountinfo string) []hierarchy {
	var out []hierarchy
	for line := range strings.Lines(mountinfo) {
		left, right, ok := strings.Cut(strings.TrimSpace(line), " - ")
		l, f := strings.Fields(left), strings.Fields(right)
		if !ok || len(l) < 6 || len(f) < 3 {
			continue
		}
		h := hierarchy{mount: unescape(l[4])}
		switch f[0] {
		case "cgroup2":
			h.v2 = true
		case "cgroup":
			for _, o := range strings.Split(f[2], ",") {
				switch o {
				case "rw", "ro", "xattr", "noprefix", "clone_children":
				default:
					if !strings.HasPrefix(o, "release_agent=") {
						h.controllers = append(h.controllers, strings.TrimPrefix(o, "name="))
					}
				}
			}
		default:
			continue
		}
		if !slices.ContainsFunc(out, func(o hierarchy) bool { return o.v2 == h.v2 && slices.Equal(o.controllers, h.controllers) }) {
			out = append(out, h)
		}
	}
	return out
}

// unescape undoes mountinfo's octal escapes.
func unescape(s string) string {
	return strings.NewReplacer(`\040`, " ", `\011`, "\t", `\012`, "\n", `\134`, `\`).Replace(s)
}

func (h *Home) hierarchyOf(controller string) (hierarchy, bool) {
	for _, t := range h.cgroups {
		if slices.Contains(t.controllers, controller) {
			return t, true
		}
	}
	return hierarchy{}, false
}

// Rouse has the kernel ready for the runtime's moves of a process into cgroups, while the runtime is still starting. The first move
// after some 10 ms without one waits for a grace period of RCU (8 to 16 ms), as every fork has to look at a lock from then on
// (cgroup_threadgroup_rwsem); those that follow soon do not wait. So this process is moved to where it is, which changes nothing but
// that: a start alone takes a quarter less time. What cannot be done is left out. The function that is returned waits for the end.
func (h *Home) Rouse() (wait func()) {
	if !h.rousing.TryLock() {
		return func() {} // another's serves this one
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		defer h.rousing.Unlock()
		raw, err := os.ReadFile("/proc/self/cgroup")
		if err == nil {
			moveSelf(ownProcs(string(raw), h.cgroups))
		}
	}()
	return func() { <-done }
}

// moveSelf moves this process to the group of a cgroup.procs file, if there is such a file.
func moveSelf(file string) {
	fd, err := unix.Open(file, unix.O_WRONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return
	}
	defer unix.Close(fd)
	_, _ = unix.Write(fd, []byte("0"))
}

// ownProcs is the cgroup.procs file of a group that this process is in, as its /proc/self/cgroup says; "" if no hierarchy is known.
// Any will do, all hierarchies have one lock.
func ownProcs(groups string, hierarchies []hierarchy) string {
	if all := groupsIn(groups, hierarchies); len(all) > 0 {
		return filepath.Join(all[0].dir, "cgroup.procs")
	}
	return ""
}

// group is one of a hierarchy, by its directory.
type group struct {
	hierarchy
	dir string
}

// groupsIn are the groups that a process's cgroup file in /proc names.
func groupsIn(groups string, hierarchies []hierarchy) (out []group) {
	for line := range strings.Lines(groups) { // ID:CONTROLLERS:PATH
		f := strings.SplitN(strings.TrimSuffix(line, "\n"), ":", 3)
		if len(f) != 3 || !path.IsAbs(f[2]) {
			continue
		}
		first, _, _ := strings.Cut(strings.TrimPrefix(f[1], "name="), ",")
		for _, t := range hierarchies {
			if t.v2 && first == "" || !t.v2 && first != "" && slices.Contains(t.controllers, first) {
				out = append(out, group{t, t.dir(f[2])})
				break
			}
		}
	}
	return out
}

// Weight of all functions of all instances together beside other groups at the top (systemd's slices, or the machine's own processes one by one),
// which have 1024: busy functions leave two thirds of the processors to one other that wants them.
const Weight = 512

// yieldCPU gives the group of all instances its weight. Without, or where it cannot be set, it has what the kernel gives to every group.
func (h *Home) yieldCPU() {
	t, ok := h.hierarchyOf("cpu")
	if !ok {
		return
	}
	file, value := "cpu.shares", strconv.Itoa(Weight)
	if t.v2 {
		file, value = "cpu.weight", strconv.Itoa(Weight*100/1024)
	}
	path := filepath.Join(t.dir("/weir"), file)
	if old, err := os.ReadFile(path); err == nil && strings.TrimSpace(string(old)) != value {
		_ = os.WriteFile(path, []byte(value), 0o644)
	}
}

// membersOf lists every process in a container's cgroups, those of its sub-groups included.
func membersOf(in []hierarchy, group string) ([]int, error) {
	var pids []int
	for _, t := range in {
		err := filepath.WalkDir(t.dir(group), func(path string, d fs.DirEntry, err error) error {
			if errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ENODEV) {
				return nil
			}
			if err != nil {
				return err
			}
			if !d.IsDir() {
				return nil
			}
			found, err := readProcs(filepath.Join(path, "cgroup.procs"))
			pids = append(pids, found...)
			return err
		})
		if err != nil {
			return nil, fmt.Errorf("list processes of cgroup: %w", err)
		}
	}
	slices.Sort(pids)
	return slices.Compact(pids), nil
}

func readProcs(file string) ([]int, error) {
	f, err := os.Open(file)
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ENODEV) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	defer f.Close()
	var pids []int
	for s := bufio.NewScanner(f); s.Scan(); {
		if pid, err := strconv.Atoi(s.Text()); err == nil && pid > 0 {
			pids = append(pids, pid)
		}
	}
	return pids, nil
}

// Member tells whether a process is in the container's cgroups.
func (h *Home) Member(pid int, id string) bool { return memberOf(h.cgroups, h.CgroupPath(id), pid) }

// memberOf asks the process, which is one file to read. Where that does not say yes the groups are asked: a process that is ending may not say it, nor one of a
// cgroup namespace above ours.
func memberOf(in []hierarchy, group string, pid int) bool {
	if raw, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/cgroup"); err == nil {
		for _, at := range groupsIn(string(raw), in) {
			if own := at.dir + "/"; strings.HasPrefix(own, at.hierarchy.dir(group)+"/") {
				return true
			}
		}
	}
	pids, err := membersOf(in, group)
	return err == nil && slices.Contains(pids, pid)
}

// killCgroup kills until nobody is left: a half-made container's init, or what an exec started.
func (h *Home) killCgroup(ctx context.Context, id string) error {
	return killIn(ctx, h.cgroups, h.CgroupPath(id))
}

func killIn(ctx context.Context, in []hierarchy, group string) error {
	tick := time.NewTicker(2 * time.Millisecond)
	defer tick.Stop()
	for {
		pids, err := membersOf(in, group)
		if err != nil || len(pids) == 0 {
			return err
		}
		for _, pid := range pids {
			p, _, err := OpenProcess(pid, 0)
			if err != nil {
				continue // ended meanwhile
			}
			if memberOf(in, group, pid) { // still it, now that the pidfd holds it
				_ = p.Signal(unix.SIGKILL)
				p.WaitOrKill(ctx)
				p.reap() // where its parent has left it to us
			}
			p.Close()
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("processes %v of cgroup %s do not end after SIGKILL: %w", pids, group, ctx.Err())
		case <-tick.C:
		}
	}
}

// removeCgroup removes the container's groups in every hierarchy; they may stay busy for a moment after the last exit.
func (h *Home) removeCgroup(ctx context.Context, id string) error {
	for _, t := range h.cgroups {
		if err := removeGroup(ctx, t.dir(h.CgroupPath(id))); err != nil {
			return err
		}
	}
	return nil
}

func removeGroup(ctx context.Context, dir string) error {
	err := unix.Rmdir(dir)
	if err == nil || errors.Is(err, unix.ENOENT) {
		return nil
	}
	tick := time.NewTicker(2 * time.Millisecond)
	defer tick.Stop()
	for {
		var groups []string
		err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
			if err == nil && d.IsDir() {
				groups = append(groups, path)
			}
			return nil
		})
		if err != nil {
			return fmt.Errorf("remove cgroup: %w", err)
		}
		for _, g := range slices.Backward(groups) {
			if err = unix.Rmdir(g); err != nil && !errors.Is(err, unix.ENOENT) {
				break
			}
		}
		if err == nil || errors.Is(err, unix.ENOENT) {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("remove cgroup %s: %w", dir, err)
		case <-tick.C:
		}
	}
}

// removeCgroupRoots removes the instance's groups, and the group of all instances when it was the last.
func (h *Home) removeCgroupRoots() error {
	for _, t := range h.cgroups {
		if err := unix.Rmdir(t.dir(h.CgroupPath(""))); err != nil && !errors.Is(err, unix.ENOENT) {
			return fmt.Errorf("remove cgroup %s: %w", t.dir(h.CgroupPath("")), err)
		}
		err := unix.Rmdir(t.dir("/weir"))
		if err != nil && !errors.Is(err, unix.ENOENT) && !errors.Is(err, unix.EBUSY) && !errors.Is(err, unix.ENOTEMPTY) {
			return fmt.Errorf("remove cgroup %s: %w", t.dir("/weir"), err)
		}
	}
	return nil
}

// lostGroup tells whether an engine's program has failed because the group of all instances was gone: another instance has removed it, empty as it was for a
// moment, while the program made groups in it. Programs name the path.
func (h *Home) lostGroup(err error) bool {
	text := err.Error()
	if !strings.Contains(text, "o such file or directory") && !strings.Contains(text, "o such device") { // crun begins with a capital letter
		return false
	}
	return slices.ContainsFunc(h.cgroups, func(t hierarchy) bool { return strings.Contains(text, t.dir("/weir")+"/") })
}

// Entrances are files, one for each hierarchy, by which a single-threaded process that writes "0" to them enters a container's groups. See Groups.Tasks.
func (h *Home) Entrances(id string) []string { return h.entrances(h.cgroups, id) }

// QuickEntrances are those without the one of version 2, where nothing is limited by that: to enter it waits for a grace period of RCU, see Rouse, and a process
// that stays in its monitor's group there is found by the others. quick: none of those that are left waits.
func (h *Home) QuickEntrances(id string) (entrances []string, quick bool) {
	in, quick := quickIn(h.cgroups)
	return h.entrances(in, id), quick
}

func (h *Home) entrances(in []hierarchy, id string) (out []string) {
	for _, t := range in {
		out = append(out, filepath.Join(t.dir(h.CgroupPath(id)), t.entrance()))
	}
	return out
}

// quickIn are hierarchies without that of version 2, if it is not needed.
func quickIn(all []hierarchy) (in []hierarchy, quick bool) {
	in = slices.DeleteFunc(slices.Clone(all), func(t hierarchy) bool { return t.v2 && !t.limits() })
	if len(in) == 0 {
		return all, false
	}
	return in, !slices.ContainsFunc(in, func(t hierarchy) bool { return t.v2 })
}

// limits tells whether a hierarchy of version 2 may have a limit of a container's; see controls.
func (t hierarchy) limits() bool {
	return slices.ContainsFunc(t.controllers, func(c string) bool {
		return slices.Contains([]string{"pids", "memory", "cpu", "cpuset", "io"}, c)
	})
}

func (t hierarchy) entrance() string {
	if t.v2 {
		return "cgroup.procs"
	}
	return "tasks"
}

// AnyUnified tells whether the host has cgroups of version 2.
func (h *Home) AnyUnified() bool {
	_, ok := h.unified()
	return ok
}
