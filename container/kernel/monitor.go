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

// A monitor begins in groups of its own, in the hierarchies that systemd keeps its books in, or any one. In others of version 1 it stays in this process's groups
// and counts there: see DESIGN.md, "Limits of this".

// MakeMonitor makes the groups for a monitor to begin in. With an owner that user may make groups below them. unified is that of version 2, to be made a process
// in; nil: there is none.
func (h *Home) MakeMonitor(id string, owner uint32) (unified *os.File, err error) {
	for _, t := range h.keeping() {
		group := h.beginPath(id)
		if err = t.make(group); err == nil && owner != 0 {
			err = t.give(group, owner)
		}
		if err == nil && t.v2 {
			unified, err = os.Open(t.dir(group))
		}
		if err != nil {
			if unified != nil {
				unified.Close()
			}
			return nil, err
		}
	}
	return unified, nil
}

func (h *Home) beginPath(id string) string { return filepath.Join(h.MonitorPath(id), "begin") }

// MonitorEntrances are files of these groups of version 1 that a process without threads writes "0" to, which waits for nothing; see Groups.
func (h *Home) MonitorEntrances(id string) (out []string) {
	for _, t := range h.keeping() {
		if !t.v2 {
			out = append(out, filepath.Join(t.dir(h.beginPath(id)), t.entrance()))
		}
	}
	return out
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
