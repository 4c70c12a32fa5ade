package xdp

import (
	"errors"
	"fmt"
	"os"
	"strings"

	"golang.org/x/sys/unix"

	"weir.dev/weir/netns"
)

// Steer has what enters at a link handled on one CPU (receive packet steering), and gives what takes that back.
func Steer(at Place, cpu int) (undo func() error, err error) {
	err = netns.Do(at.Space, func() (err error) {
		undo, err = steer(at.Link, cpu)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("steer %s to CPU %d: %w", at.Link, cpu, err)
	}
	return undo, nil
}

// steer at a link of the thread's namespace.
func steer(link string, cpu int) (undo func() error, err error) {
	fs, err := netns.Sysfs()
	if err != nil {
		return nil, err
	}
	defer unix.Close(fs)
	path := "class/net/" + link + "/queues/rx-0/rps_cpus" // frames enter at the first queue
	fd, err := unix.Openat(fs, path, unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("receive packet steering (CONFIG_RPS): %s: %w", path, err)
	}
	f := os.NewFile(uintptr(fd), path)
	old := make([]byte, 4096)
	n, err := f.ReadAt(old, 0)
	if n == 0 {
		return nil, errors.Join(fmt.Errorf("receive packet steering: %w", err), f.Close())
	}
	if _, err := f.WriteAt([]byte(mask(cpu)), 0); err != nil {
		return nil, errors.Join(fmt.Errorf("receive packet steering to CPU %d: %w", cpu, err), f.Close())
	}
	return func() error {
		_, err := f.WriteAt([]byte(strings.TrimSpace(string(old[:n]))), 0)
		return errors.Join(err, f.Close())
	}, nil
}

// mask of one CPU as sysfs has it: groups of 32 bits, the highest first.
func mask(cpu int) string {
	return fmt.Sprintf("%x", 1<<(cpu%32)) + strings.Repeat(",00000000", cpu/32)
}
