package bpf

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

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

// Unmount removes a bpffs that Mount has made, all pins in it, and its directory. One that is not there is no error.
func Unmount(dir string) error {
	for range 16 { // mounts may be stacked
		var st unix.Statfs_t
		if err := unix.Statfs(dir, &st); errors.Is(err, fs.ErrNotExist) {
			return nil
		} else if err != nil {
			return fmt.Errorf("statfs %s: %w", dir, err)
		}
		if st.Type != unix.BPF_FS_MAGIC {
			break
		}
		entries, err := os.ReadDir(dir)
		if err != nil {
			return err
		}
		for _, e := range entries { // a mount elsewhere (a namespace's copy) must not keep them alive
			if strings.Contains(e.Name(), ".") {
				continue // the kernel's own
			}
			if err := os.RemoveAll(filepath.Join(dir, e.Name())); err != nil {
				return fmt.Errorf("remove pins: %w", err)
			}
		}
		if err := unix.Unmount(dir, unix.MNT_DETACH); err != nil {
			return fmt.Errorf("unmount %s: %w", dir, err)
		}
	}
	if err := os.Remove(dir); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("remove %s: %w", dir, err)
	}
	return nil
}
