package ovs

import (
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"

	"weir.dev/weir/datapath"
)

// userDatapath is the tap of Open vSwitch's user-space datapath: one in a network namespace, whoever's it is.
const userDatapath = "ovs-netdev"

// errNoTap says that there is no tap of that name.
var errNoTap = errors.New("no such tap")

// holdTap becomes the holder of a tap in the switch's namespace; EBUSY: a process has it.
func (s *Switch) holdTap(name string) (f *os.File, err error) {
	l, err := s.nl.LinkByName(name)
	if err != nil || l.Type() != "tuntap" {
		return nil, errNoTap
	}
	err = s.home.Do(func() error {
		fd, err := unix.Open("/dev/net/tun", unix.O_RDWR|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
		if err != nil {
			return fmt.Errorf("/dev/net/tun: %w", err)
		}
		f = os.NewFile(uintptr(fd), name)
		ifr, err := unix.NewIfreq(name)
		if err != nil {
			return err
		}
		ifr.SetUint16(unix.IFF_TAP | unix.IFF_NO_PI)
		return unix.IoctlIfreq(fd, unix.TUNSETIFF, ifr)
	})
	if err == nil {
		return f, nil
	}
	if f != nil {
		f.Close()
	}
	if errors.Is(err, unix.EINVAL) { // of another kind: not Open vSwitch's
		err = errNoTap
	}
	return nil, err
}

// alone refuses a second user-space Open vSwitch in the namespace: it could not make its datapath.
func (s *Switch) alone() error {
	f, err := s.holdTap(userDatapath)
	switch {
	case errors.Is(err, errNoTap):
		return nil
	case errors.Is(err, unix.EBUSY):
		return fmt.Errorf("another Open vSwitch forwards in user space in this network namespace, and there can be one only (interface %s is %w): start this Weir in another namespace, or with --switch ebpf", userDatapath, datapath.ErrTaken)
	case err != nil:
		return fmt.Errorf("interface %s: %w", userDatapath, err)
	}
	return f.Close()
}
