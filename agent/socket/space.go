package socket

import (
	"fmt"
	"io/fs"
	"net"
	"os"
	"syscall"

	"golang.org/x/sys/unix"
)

// Space is a network namespace.
type Space struct{ dev, ino uint64 }

// SpaceAt a path, such as /proc/PID/ns/net.
func SpaceAt(path string) (Space, error) {
	info, err := os.Stat(path)
	if err != nil {
		return Space{}, err
	}
	st, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		return Space{}, fmt.Errorf("%s: %w", path, fs.ErrInvalid)
	}
	return Space{uint64(st.Dev), st.Ino}, nil //nolint:unconvert // 32 bits on some architectures
}

// SpaceOf is the network namespace of the process that connected.
func SpaceOf(c *net.UnixConn) (Space, error) {
	conn, err := c.SyscallConn()
	if err != nil {
		return Space{}, err
	}
	var cred *unix.Ucred
	if e := conn.Control(func(fd uintptr) { cred, err = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED) }); e != nil {
		return Space{}, e
	}
	if err != nil {
		return Space{}, fmt.Errorf("who speaks: %w", err)
	}
	return SpaceAt(fmt.Sprintf("/proc/%d/ns/net", cred.Pid))
}
