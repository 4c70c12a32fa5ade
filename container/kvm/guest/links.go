package main

import (
	"errors"
	"net"
	"os"

	"golang.org/x/sys/unix"
)

// interfaces gives the interfaces their names and has them up, with nothing to say for themselves. They take every frame, as a veth does.
func (m *machine) interfaces() error {
	for _, conf := range []string{"all", "default"} {
		err := os.WriteFile("/proc/sys/net/ipv6/conf/"+conf+"/disable_ipv6", []byte("1"), 0)
		if err != nil && !errors.Is(err, os.ErrNotExist) {
			return wrap("IPv6", err)
		}
	}
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return wrap("interfaces", err)
	}
	defer unix.Close(fd)
	if err := flags(fd, "lo", unix.IFF_UP); err != nil {
		return err
	}
	for _, l := range m.spec.Links {
		was, err := await("interface "+l.Name+" ("+l.MAC+")", func() (string, bool) { return byMAC(l.MAC) })
		if err != nil {
			return err
		}
		if err := rename(fd, was, l.Name); err != nil {
			return wrap("interface "+l.Name, err)
		}
		if err := setMTU(fd, l.Name, l.MTU); err != nil {
			return wrap("MTU of interface "+l.Name, err)
		}
		if err := flags(fd, l.Name, unix.IFF_UP|unix.IFF_PROMISC); err != nil {
			return err
		}
	}
	return nil
}

func byMAC(mac string) (string, bool) {
	all, _ := net.Interfaces()
	for _, i := range all {
		if i.HardwareAddr.String() == mac {
			return i.Name, true
		}
	}
	return "", false
}

func flags(fd int, name string, add uint16) error {
	r, err := unix.NewIfreq(name)
	if err == nil {
		err = unix.IoctlIfreq(fd, unix.SIOCGIFFLAGS, r)
	}
	if err == nil {
		r.SetUint16(r.Uint16() | add)
		err = unix.IoctlIfreq(fd, unix.SIOCSIFFLAGS, r)
	}
	return wrap("interface "+name, err)
}

func setMTU(fd int, name string, mtu int) error {
	r, err := unix.NewIfreq(name)
	if err != nil {
		return err
	}
	r.SetUint32(uint32(mtu))
	return unix.IoctlIfreq(fd, unix.SIOCSIFMTU, r)
}

// ifreqName is struct ifreq with a new name.
type ifreqName struct {
	name, new [unix.IFNAMSIZ]byte
	_         [8]byte
}

func rename(fd int, was, name string) error {
	if was == name {
		return nil
	}
	var r ifreqName
	copy(r.name[:unix.IFNAMSIZ-1], was)
	copy(r.new[:unix.IFNAMSIZ-1], name)
	return ioctl(fd, unix.SIOCSIFNAME, &r)
}
