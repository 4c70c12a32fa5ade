package bpf

import (
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// Mount makes a directory a bpffs of its own, unless it is one. Not under /sys: `ip netns exec` mounts that anew.
func Mount(dir string) error {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	var fs unix.Statfs_t
	if err := unix.Statfs(dir, &fs); err != nil {
		return fmt.Errorf("statfs %s: %w", dir, err)
	}
	if fs.Type == unix.BPF_FS_MAGIC {
		return nil
	}
	if err := unix.Mount("bpf", dir, "bpf", unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, "mode=0700"); err != nil {
		return fmt.Errorf("mount bpffs at %s: %w", dir, err)
	}
	return nil
}
