package kernel

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"weir.dev/weir/container"
)

// Groups are a container's cgroups, ready for a process to enter.
type Groups struct {
	// Tasks are files that a single-threaded process writes "0" to, in order to be in the container's groups of version 1. So it enters without the lock
	// that a write of another's number, or to cgroup.procs, waits for some 10 ms for (cgroup_threadgroup_rwsem, see Rouse).
	Tasks []*os.File
	// Unified is the directory of the group of version 2, to be made a process in by clone3; nil: there is none.
	Unified *os.File
}

// Close lets the files go.
func (g Groups) Close() {
	for _, f := range append(g.Tasks, g.Unified) {
		if f != nil {
			f.Close()
		}
	}
}

// Groups makes a container's cgroups where they are missing, with the limits of its Spec, and opens them.
func (h *Home) Groups(c Container) (Groups, error) {
	if err := h.MakeGroups(c.Spec); err != nil {
		return Groups{}, err
	}
	return h.OpenGroups(c.ID)
}

// MakeGroups makes a container's group in every hierarchy, with its own limits in force, and in version 1 with the devices that it may use.
func (h *Home) MakeGroups(s container.Spec) error {
	if !idPattern.MatchString(s.ID) { // the limits would be those of the groups above
		return fmt.Errorf("make cgroup: no container id: %q", s.ID)
	}
	for _, t := range h.cgroups {
		if err := t.make(h.CgroupPath(s.ID)); err != nil {
			return err
		}
	}
	values := map[string][]string{}
	var files []string
	for _, l := range h.Settings(s) {
		file, ok := h.ControlFile(s.ID, l.Controller, l.File, l.File)
		if !ok {
			continue
		}
		if values[file] == nil {
			files = append(files, file)
		}
		values[file] = append(values[file], l.Value)
	}
	for _, file := range files {
		if err := writeEach(file, values[file]); err != nil {
			return fmt.Errorf("limit %s: %w", filepath.Base(file), err)
		}
	}
	return nil
}

// writeEach writes values into a control file, one at a time.
func writeEach(file string, values []string) error {
	fd, err := unix.Open(file, unix.O_WRONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	for _, v := range values {
		if _, err := unix.Write(fd, []byte(v)); err != nil {
			return fmt.Errorf("%q: %w", v, err)
		}
	}
	return nil
}

// delegate lets the groups below one of version 2 have limits. What cannot be had readLimits finds.
func (h hierarchy) delegate(group string) {
	for _, c := range h.controllers {
		_ = os.WriteFile(filepath.Join(h.dir(group), "cgroup.subtree_control"), []byte("+"+c), 0o644)
	}
}

// OpenGroups opens those that are there.
func (h *Home) OpenGroups(id string) (Groups, error) {
	var g Groups
	for _, t := range h.cgroups {
		if err := g.open(t, t.dir(h.CgroupPath(id))); err != nil {
			g.Close()
			return Groups{}, err
		}
	}
	return g, nil
}

// GroupsOf opens those that a process is in, the same as or below those of its container, or of its container's monitor; see QuickEntrances.
func (h *Home) GroupsOf(pid int) (Groups, error) {
	raw, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/cgroup")
	if err != nil {
		return Groups{}, fmt.Errorf("cgroups of process %d: %w", pid, err)
	}
	var g Groups
	for _, at := range groupsIn(string(raw), h.cgroups) {
		if err := g.open(at.hierarchy, at.dir); err != nil {
			g.Close()
			return Groups{}, err
		}
	}
	return g, nil
}

func (g *Groups) open(t hierarchy, dir string) (err error) {
	if t.v2 {
		g.Unified, err = os.Open(dir)
	} else {
		var f *os.File
		if f, err = os.OpenFile(filepath.Join(dir, "tasks"), os.O_WRONLY, 0); err == nil {
			g.Tasks = append(g.Tasks, f)
		}
	}
	if err != nil {
		return fmt.Errorf("cgroup: %w", err)
	}
	return nil
}

// maxGroupTries bounds how often another instance may remove the group of all instances, empty as it is for a moment, while a group is made in it.
const maxGroupTries = 10

// make makes a group and those above it. What version 2 and cpuset want of those above is done on the way.
func (h hierarchy) make(group string) (err error) {
	for range maxGroupTries {
		err = h.tryMake(group)
		if !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, unix.ENODEV) { // of a file that was open
			break
		}
	}
	return err
}

func (h hierarchy) tryMake(group string) error {
	if !h.v2 && !h.inherits() { // most often those above are there, and nothing in them matters
		if err := h.add(group); !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	at := "/"
	for name := range strings.SplitSeq(strings.Trim(group, "/"), "/") {
		if h.v2 {
			h.delegate(at)
		}
		at = filepath.Join(at, name)
		if err := h.add(at); err != nil {
			return err
		}
	}
	return nil
}

// inherits tells whether a group wants what that above has, and so must not be made before that has it.
func (h hierarchy) inherits() bool { return !h.v2 && slices.Contains(h.controllers, "cpuset") }

// add makes a group in one that is there.
func (h hierarchy) add(group string) error {
	dir := h.dir(group)
	err := os.Mkdir(dir, 0o755)
	if errors.Is(err, fs.ErrExist) {
		err = nil
	}
	if err == nil && h.inherits() {
		err = inherit(filepath.Dir(dir), dir, "cpuset.cpus", "cpuset.mems")
	}
	if err != nil {
		return fmt.Errorf("make cgroup: %w", err)
	}
	return nil
}

// inherit copies control files that are empty from the group above.
func inherit(parent, dir string, files ...string) error {
	for _, name := range files {
		own, err := os.ReadFile(filepath.Join(dir, name))
		if err != nil {
			return err
		}
		if strings.TrimSpace(string(own)) != "" {
			continue
		}
		above, err := os.ReadFile(filepath.Join(parent, name))
		if err == nil {
			err = os.WriteFile(filepath.Join(dir, name), above, 0)
		}
		if err != nil {
			return err
		}
	}
	return nil
}
