package netns

import (
	"fmt"

	"golang.org/x/sys/unix"
)

// Sysfs is a mount of sysfs that nobody else sees; its network links are those of the thread's namespace (new mount API, Linux 5.2). The caller closes
// the file descriptor.
func Sysfs() (fd int, err error) {
	fs, err := unix.Fsopen("sysfs", unix.FSOPEN_CLOEXEC)
	if err != nil {
		return -1, fmt.Errorf("sysfs: fsopen: %w", err)
	}
	defer unix.Close(fs)
	if err := unix.FsconfigCreate(fs); err != nil {
		return -1, fmt.Errorf("sysfs: fsconfig: %w", err)
	}
	if fd, err = unix.Fsmount(fs, unix.FSMOUNT_CLOEXEC, unix.MOUNT_ATTR_NOSUID|unix.MOUNT_ATTR_NODEV|unix.MOUNT_ATTR_NOEXEC); err != nil {
		return -1, fmt.Errorf("sysfs: fsmount: %w", err)
	}
	return fd, nil
}
