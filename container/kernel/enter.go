package kernel

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
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
	var g Groups
	for _, t := range h.cgroups {
		if err := t.make(h.CgroupPath(c.ID)); err != nil {
			g.Close()
			return Groups{}, err
		}
	}
	err := h.setLimits(c)
	for _, t := range h.cgroups {
		if err != nil {
			break
		}
		err = g.open(t, t.dir(h.CgroupPath(c.ID)))
	}
	if err != nil {
		g.Close()
		return Groups{}, err
	}
	return g, nil
}

// OpenGroups opens those of a container that runs.
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

// make makes a group and those above it. What version 2 and cpuset want of those above is done on the way.
func (t hierarchy) make(path string) error {
	dir := t.mount
	for name := range strings.SplitSeq(strings.Trim(path, "/"), "/") {
		if t.v2 {
			for _, c := range t.controllers { // one by one: what one may not be does not hinder the others, and limits are read back
				_ = os.WriteFile(filepath.Join(dir, "cgroup.subtree_control"), []byte("+"+c), 0)
			}
		}
		parent := dir
		dir = filepath.Join(dir, name)
		if err := os.Mkdir(dir, 0o755); err != nil && !errors.Is(err, fs.ErrExist) {
			return fmt.Errorf("make cgroup: %w", err)
		}
		if !t.v2 && slices.Contains(t.controllers, "cpuset") {
			if err := inherit(parent, dir, "cpuset.cpus", "cpuset.mems"); err != nil {
				return fmt.Errorf("make cgroup: %w", err)
			}
		}
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

// setLimits writes those that the Spec has, or that bound every container. The host's defaults come later: see setHostDefaults.
func (h *Home) setLimits(c Container) error {
	for _, l := range h.controls(c.Spec) {
		if !l.own {
			continue
		}
		file, ok := h.ControlFile(c.ID, l.controller, l.v1, strings.TrimSuffix(l.v2, ".effective"))
		if !ok {
			return fmt.Errorf("limit %s: the kernel has no cgroup controller %q", l.v1, l.controller)
		}
		if err := os.WriteFile(file, []byte(l.want), 0); err != nil {
			return fmt.Errorf("limit %s: %w", file, err)
		}
	}
	return nil
}
