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

// A keeper is a process of an engine's program that stays as long as a container does, outside of the container's limits. Keepers have groups of their own
// beside the containers', so that they are found, and ended, when nothing else is known of them. No container's id begins with this:
const keeperMark = "@"

// KeeperPath is the group of a container's keeper, below which its program may make others.
func (h *Home) KeeperPath(id string) string { return h.CgroupPath(keeperMark + id) }

// MakeKeeper makes a group for a keeper to begin in, in one hierarchy, and gives the file by which it enters.
func (h *Home) MakeKeeper(id string) (entrance string, err error) {
	t := h.cgroups[max(0, slices.IndexFunc(h.cgroups, func(t hierarchy) bool { return t.v2 }))]
	group := filepath.Join(h.KeeperPath(id), "begin")
	if err := t.make(group); err != nil {
		return "", err
	}
	return filepath.Join(t.dir(group), t.entrance()), nil
}

// EndKeeper ends a container's keeper and whatever the keeper had begun for the container, and removes its groups. Safe to call twice.
func (h *Home) EndKeeper(ctx context.Context, id string) error {
	if err := h.killCgroup(ctx, keeperMark+id); err != nil {
		return err
	}
	if err := h.killCgroup(ctx, id); err != nil { // nobody is left who could begin more
		return err
	}
	return h.removeCgroup(ctx, keeperMark+id)
}

// Keepers are the ids of the containers that have keepers.
func (h *Home) Keepers() ([]string, error) {
	var ids []string
	for _, t := range h.cgroups {
		entries, err := os.ReadDir(t.dir(h.CgroupPath("")))
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return nil, fmt.Errorf("find keepers: %w", err)
		}
		for _, d := range entries {
			if id, ok := strings.CutPrefix(d.Name(), keeperMark); ok && idPattern.MatchString(id) {
				ids = append(ids, id)
			}
		}
	}
	slices.Sort(ids)
	return slices.Compact(ids), nil
}
