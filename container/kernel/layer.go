package kernel

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"weir.dev/weir/container"
)

// layer is where a container's root with its writable layer is mounted.
func (h *Home) layer(id string) string { return filepath.Join(h.writable(id), "root") }

func (h *Home) mountWritable(s container.Spec) error {
	dir, root := h.writable(s.ID), h.layer(s.ID)
	for _, d := range []string{filepath.Join(dir, "upper"), filepath.Join(dir, "work"), root} {
		if err := os.MkdirAll(d, 0o755); err != nil {
			return fmt.Errorf("make writable layer: %w", err)
		}
	}
	lower := s.Rootfs
	if strings.ContainsAny(lower+dir, `:,\`) {
		return fmt.Errorf("make writable layer: %q: overlayfs wants paths without ':', ',' and '\\'", lower)
	}
	options := fmt.Sprintf("lowerdir=%s,upperdir=%s,workdir=%s", lower, filepath.Join(dir, "upper"), filepath.Join(dir, "work"))
	if err := unix.Mount("weir-"+h.inst.Name, root, "overlay", unix.MS_NODEV|unix.MS_NOSUID, options); err != nil {
		return fmt.Errorf("mount writable layer (overlayfs on %s): %w", dir, err)
	}
	return nil
}

func (h *Home) removeWritable(id string) error {
	dir := h.writable(id)
	if _, err := os.Lstat(dir); errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	err := unix.Unmount(h.layer(id), unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW)
	if err != nil && !errors.Is(err, unix.EINVAL) && !errors.Is(err, unix.ENOENT) {
		return fmt.Errorf("unmount %s/root: %w", dir, err)
	}
	if err := os.RemoveAll(dir); err != nil {
		return fmt.Errorf("remove writable layer: %w", err)
	}
	return nil
}
