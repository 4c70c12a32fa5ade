package image

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// Mount makes the image's root readable at a directory and returns it: one read-only overlay for all containers of the image.
// Calling it again is cheap and gives the same directory; after a reboot it mounts anew.
//
// Below the image's own layers lies a skeleton with the mount points that a container needs (proc, dev, sys, run, tmp,
// etc/weir/config.json), so that an image that lacks them runs read-only too.
func (s *Store) Mount(ctx context.Context, ref string) (string, error) {
	e, err := s.usable(ref)
	if err != nil {
		return "", fmt.Errorf("image %s: %w", ref, err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	target := filepath.Join(s.mountsDir(), strings.TrimPrefix(e.image.Digest, "sha256:"))
	if mounted(target) {
		return target, nil
	}
	if err := s.unpackAll(ctx, e); err != nil {
		return "", fmt.Errorf("image %s: %w", ref, err)
	}
	if err := s.overlay(e, target); err != nil {
		return "", fmt.Errorf("mount image %s: %w", ref, err)
	}
	return target, nil
}

func (s *Store) mountsDir() string { return filepath.Join(s.inst.Run, "images") }

func (s *Store) overlay(e *entry, target string) error {
	// What is in images is for their containers: no other user of the host reads it, or runs a program from there.
	dir := filepath.Dir(target)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	if err := os.Chmod(dir, 0o700); err != nil { // one that an older version made
		return err
	}
	return s.overlayOf(e, target, func(dir string) (int, error) {
		fd, err := unix.Open(dir, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
		if err != nil {
			return -1, fmt.Errorf("open %s: %w", dir, err)
		}
		return fd, nil
	})
}

// overlayOf mounts an image's layers, each as openLayer gives it.
func (s *Store) overlayOf(e *entry, target string, openLayer func(dir string) (int, error)) error {
	skeleton := filepath.Join(s.inst.Root, "images", "skeleton")
	if err := makeSkeleton(skeleton); err != nil {
		return err
	}
	if err := os.MkdirAll(target, 0o755); err != nil {
		return err
	}
	// Layers are passed as /proc/self/fd/N: short (the options are limited to a page) and free of ':' and ','.
	var lower []string
	open := func(dir string) error {
		fd, err := openLayer(dir)
		if err != nil {
			return err
		}
		lower = append(lower, fmt.Sprintf("/proc/self/fd/%d", fd))
		return nil
	}
	defer func() {
		for _, l := range lower {
			var fd int
			if _, err := fmt.Sscanf(l, "/proc/self/fd/%d", &fd); err == nil {
				unix.Close(fd)
			}
		}
	}()
	for i := len(e.image.Layers) - 1; i >= 0; i-- {
		if err := open(s.layerDir(e.image.Layers[i])); err != nil {
			return err
		}
	}
	if err := open(skeleton); err != nil {
		return err
	}
	err := unix.Mount("weir-"+s.inst.Name, target, "overlay", unix.MS_RDONLY|unix.MS_NODEV|unix.MS_NOSUID, "lowerdir="+strings.Join(lower, ":"))
	switch {
	case errors.Is(err, unix.ENODEV):
		return fmt.Errorf("%w: this kernel has no overlayfs (CONFIG_OVERLAY_FS; try `modprobe overlay`)", err)
	case errors.Is(err, unix.EPERM):
		return fmt.Errorf("overlayfs: %w: run as root", err)
	case err != nil:
		return fmt.Errorf("overlayfs of %d layers: %w", len(lower), err)
	}
	return nil
}

func makeSkeleton(dir string) error {
	for _, d := range []string{"proc", "dev", "sys", "run", "tmp", "etc/weir"} {
		if err := os.MkdirAll(filepath.Join(dir, d), 0o755); err != nil {
			return fmt.Errorf("make mount points: %w", err)
		}
	}
	// Runtimes give what they mount there the mode of the mount point: any user of a function may write to /tmp.
	if err := os.Chmod(filepath.Join(dir, "tmp"), 0o777|os.ModeSticky); err != nil {
		return fmt.Errorf("make mount points: %w", err)
	}
	f, err := os.OpenFile(filepath.Join(dir, "etc/weir/config.json"), os.O_CREATE|os.O_WRONLY, 0o644)
	if err != nil {
		return fmt.Errorf("make mount points: %w", err)
	}
	return f.Close()
}

// mounted tells a mount point by its device, which differs from its parent's.
func mounted(dir string) bool {
	var self, parent unix.Stat_t
	if unix.Lstat(dir, &self) != nil || unix.Lstat(filepath.Dir(dir), &parent) != nil {
		return false
	}
	return self.Dev != parent.Dev
}

func (s *Store) unmountAll(ctx context.Context) error {
	entries, err := os.ReadDir(s.mountsDir())
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("unmount images: %w", err)
	}
	for _, d := range entries {
		if err := ctx.Err(); err != nil {
			return fmt.Errorf("unmount images: %w", err)
		}
		target := filepath.Join(s.mountsDir(), d.Name())
		for range 16 { // mounts may be stacked where two processes raced
			if err := unix.Unmount(target, unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW); err != nil {
				if errors.Is(err, unix.EINVAL) {
					break // no longer a mount
				}
				return fmt.Errorf("unmount image %s: %w", target, err)
			}
		}
		if err := os.Remove(target); err != nil {
			return fmt.Errorf("unmount image: %w", err)
		}
	}
	if err := os.Remove(s.mountsDir()); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("unmount images: %w", err)
	}
	return nil
}

// flock takes a lock (LOCK_EX, LOCK_SH), polling so that ctx can end the wait.
func flock(ctx context.Context, f *os.File, how int) error {
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for {
		err := unix.Flock(int(f.Fd()), how|unix.LOCK_NB)
		if err == nil {
			return nil
		}
		if !errors.Is(err, unix.EWOULDBLOCK) && !errors.Is(err, unix.EINTR) {
			return fmt.Errorf("lock %s: %w", f.Name(), err)
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("lock %s, held by another process: %w", f.Name(), ctx.Err())
		case <-tick.C:
		}
	}
}
