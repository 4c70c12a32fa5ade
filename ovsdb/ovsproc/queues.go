package ovsproc

import (
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// Widen gives the sockets by which the user-space datapath receives a receive buffer of so many bytes. Open vSwitch leaves them the
// kernel's default (net.core.rmem_default, 212,992: some 200 frames), and has no setting for it: a switch that waits for a
// processor for 20 ms loses frames at 10,000 a second. A buffer takes memory only while frames wait in it. To be called again when ports
// have been added or ovs-vswitchd has been started. Not running: nil.
func (p *Process) Widen(bytes int) error {
	if err := p.widen(bytes); err != nil {
		return fmt.Errorf("widen receive queues of ovs-vswitchd: %w", err)
	}
	return nil
}

func (p *Process) widen(bytes int) error {
	pid := p.pid(switchd)
	if pid == 0 {
		return nil
	}
	pidfd, err := unix.PidfdOpen(pid, 0)
	if errors.Is(err, unix.ESRCH) {
		return nil
	}
	if err != nil {
		return err
	}
	defer unix.Close(pidfd)
	dir := fmt.Sprintf("/proc/%d/fd", pid)
	fds, err := os.ReadDir(dir)
	if err != nil {
		return err
	}
	var errs []error
	for _, e := range fds {
		target, err := os.Readlink(dir + "/" + e.Name())
		if err != nil || !strings.HasPrefix(target, "socket:") {
			continue // closed meanwhile, or no socket
		}
		n, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		fd, err := unix.PidfdGetfd(pidfd, n, 0) // kernel 5.6
		if errors.Is(err, unix.EBADF) {
			continue
		}
		if err != nil {
			return err
		}
		errs = append(errs, widenSocket(fd, bytes))
		unix.Close(fd)
	}
	return errors.Join(errs...)
}

// widenSocket if it is a packet socket with less.
func widenSocket(fd, bytes int) error {
	if domain, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_DOMAIN); err != nil || domain != unix.AF_PACKET {
		return err
	}
	if have, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUF); err != nil || have >= 2*bytes { // socket(7): the kernel doubles it
		return err
	}
	return unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, bytes)
}
