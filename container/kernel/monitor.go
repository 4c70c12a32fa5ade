package kernel

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// A monitor is a process of an engine's program that stays as long as a container does, outside of the container's limits. Monitors have groups of their own
// beside the containers', so that they are found, and ended, when nothing else is known of them. No container's id begins with this:
const monitorMark = "@"

// MonitorPath is the group of a container's monitor, below which its program may make others.
func (h *Home) MonitorPath(id string) string { return h.CgroupPath(monitorMark + id) }

// Begin is where a monitor begins: groups of its own, in the hierarchies that systemd keeps its books in, or any one. In others of version 1 it stays in this
// process's groups and counts there: see DESIGN.md, "Limits of this".
type Begin struct {
	Tasks   []string // files that a process without threads writes "0" to, which waits for nothing; see Groups
	Unified *os.File // the group of version 2, to be made a process in; nil: there is none
}

// Close lets the group go.
func (b Begin) Close() {
	if b.Unified != nil {
		b.Unified.Close()
	}
}

// MakeMonitor makes the groups for a monitor to begin in. With an owner that user may make groups below them.
func (h *Home) MakeMonitor(id string, owner uint32) (b Begin, err error) {
	for _, t := range h.keeping() {
		group := filepath.Join(h.MonitorPath(id), "begin")
		if err = t.make(group); err == nil && owner != 0 {
			err = t.give(group, owner)
		}
		if err == nil && t.v2 {
			b.Unified, err = os.Open(t.dir(group))
		} else if err == nil {
			b.Tasks = append(b.Tasks, filepath.Join(t.dir(group), t.entrance()))
		}
		if err != nil {
			b.Close()
			return Begin{}, err
		}
	}
	return b, nil
}

// give lets a user make groups below a group.
func (t hierarchy) give(group string, owner uint32) error {
	for _, name := range []string{"", "cgroup.procs", "cgroup.threads", "cgroup.subtree_control"} {
		if err := os.Lchown(filepath.Join(t.dir(group), name), int(owner), int(owner)); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("give cgroup to its monitor: %w", err)
		}
	}
	return nil
}

// keeping are the hierarchies in which all monitors are.
func (h *Home) keeping() []hierarchy {
	booked := slices.DeleteFunc(slices.Clone(h.cgroups), func(t hierarchy) bool { return !t.v2 && !slices.Contains(t.controllers, "systemd") })
	if len(booked) == 0 {
		return h.cgroups[:1]
	}
	return booked
}

// EndMonitor ends a container's monitor and whatever the monitor had begun for the container, and removes its groups. Safe to call twice.
func (h *Home) EndMonitor(ctx context.Context, id string) error {
	if err := killIn(ctx, h.keeping(), h.MonitorPath(id)); err != nil {
		return err
	}
	if err := h.killCgroup(ctx, id); err != nil { // nobody is left who could begin more
		return err
	}
	return h.removeCgroup(ctx, monitorMark+id)
}

// Monitors are the ids of the containers that have monitors.
func (h *Home) Monitors() ([]string, error) {
	var ids []string
	for _, t := range h.cgroups { // of one that had ended a group may be left in any
		entries, err := os.ReadDir(t.dir(h.CgroupPath("")))
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return nil, fmt.Errorf("find monitors: %w", err)
		}
		for _, d := range entries {
			if id, ok := strings.CutPrefix(d.Name(), monitorMark); ok && idPattern.MatchString(id) {
				ids = append(ids, id)
			}
		}
	}
	slices.Sort(ids)
	return slices.Compact(ids), nil
}
