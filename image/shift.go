package image

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// ErrNoShift says that the kernel, or the file system of the image directory, knows no idmapped mounts.
var ErrNoShift = errors.New("owners of image files cannot be shifted (that takes Linux 5.19, and a state directory on a file system such as ext4, xfs or btrfs: choose one with --root)")

// MountFor makes the image's root readable at target, a directory, for one container whose ids are those of a user namespace: what belongs to
// root in the image belongs to root of that namespace there. The files are those of Mount, shared by all containers; only their owners are
// told differently (idmapped mounts, Linux 5.19 below overlayfs). See CheckShift for whether the file system of the image directory can do that.
func (s *Store) MountFor(ctx context.Context, ref, target string, userns *os.File) error {
	e, err := s.usable(ref)
	if err != nil {
		return fmt.Errorf("image %s: %w", ref, err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.unpackAll(ctx, e); err != nil {
		return fmt.Errorf("image %s: %w", ref, err)
	}
	err = s.overlayOf(e, target, func(dir string) (int, error) { return Shifted(dir, userns) })
	if err != nil {
		return fmt.Errorf("mount image %s: %w", ref, err)
	}
	return nil
}

// Shifted is a mount of a directory, nowhere in the tree, on which owners are told as a user namespace maps them.
func Shifted(dir string, userns *os.File) (int, error) {
	fd, err := unix.OpenTree(unix.AT_FDCWD, dir, unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC)
	if err != nil {
		return -1, fmt.Errorf("clone mount of %s: %w", dir, err)
	}
	attr := unix.MountAttr{Attr_set: unix.MOUNT_ATTR_IDMAP, Userns_fd: uint64(userns.Fd())}
	if err := unix.MountSetattr(fd, "", unix.AT_EMPTY_PATH, &attr); err != nil {
		unix.Close(fd)
		return -1, fmt.Errorf("idmapped mount of %s: %w", dir, err)
	}
	return fd, nil
}

// CheckShift tries whether MountFor can work in the image directory, which it makes if need be. ErrNoShift: it cannot. Any other error says nothing
// of that (no space left, no descriptors).
func (s *Store) CheckShift(userns *os.File) error {
	dir := filepath.Join(s.inst.Root, "images")
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	probe, err := os.MkdirTemp(dir, partialPrefix)
	if err != nil {
		return err
	}
	defer os.RemoveAll(probe)
	low, lowest, target := filepath.Join(probe, "low"), filepath.Join(probe, "lowest"), filepath.Join(probe, "root")
	for _, dir := range []string{low, lowest, target} {
		if err := os.Mkdir(dir, 0o700); err != nil {
			return err
		}
	}
	fd, err := Shifted(low, userns)
	if err != nil {
		return noShift(err)
	}
	defer unix.Close(fd)
	options := fmt.Sprintf("lowerdir=/proc/self/fd/%d:%s", fd, lowest)
	if err := unix.Mount("weir-"+s.inst.Name, target, "overlay", unix.MS_RDONLY, options); err != nil {
		return noShift(fmt.Errorf("overlayfs on an idmapped mount: %w", err))
	}
	if err := unix.Unmount(target, unix.MNT_DETACH); err != nil && !errors.Is(err, unix.EINVAL) {
		return err
	}
	return nil
}

// noShift marks an error with which the kernel says that it cannot, and always will.
func noShift(err error) error {
	for _, never := range []error{unix.EINVAL, unix.ENOSYS, unix.EOPNOTSUPP, unix.EPERM, unix.ENODEV} {
		if errors.Is(err, never) {
			return fmt.Errorf("%w: %w", ErrNoShift, err)
		}
	}
	return err
}
