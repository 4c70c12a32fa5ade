package main

import (
	"errors"
	"net"
	"os"
	"strings"

	"golang.org/x/sys/unix"

	"weir.dev/weir/container/kvm/channel"
)

// wireBridge is the bridge of a machine that forwards by itself.
const wireBridge = "wire"

// forwards has frames go on from one interface to the other, unless the program sees to it. The bridge learns nothing: what comes in at one port leaves by
// the other one. It hands on what is for bridges, too, but for what the kernel keeps back (STP, pause, LACP).
func (m *machine) forwards() error {
	if m.spec.Forwarder != channel.Wire {
		return nil
	}
	_ = modprobe("bridge") // the kernel may have it built in
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return wrap("bridge", err)
	}
	defer unix.Close(fd)
	var name [unix.IFNAMSIZ]byte
	copy(name[:], wireBridge)
	if err := ioctl(fd, unix.SIOCBRADDBR, &name); err != nil {
		return wrap("bridge (does this kernel have CONFIG_BRIDGE?)", err)
	}
	dir := "/sys/class/net/" + wireBridge + "/bridge/"
	if err := os.WriteFile(dir+"group_fwd_mask", []byte("0xfff8"), 0); err != nil {
		return wrap("bridge", err)
	}
	if err := os.WriteFile(dir+"multicast_snooping", []byte("0"), 0); err != nil && !errors.Is(err, os.ErrNotExist) {
		return wrap("bridge", err)
	}
	for _, port := range []string{channel.In, channel.Out} {
		if err := joinBridge(fd, port); err != nil {
			return wrap("interface "+port+" into the bridge", err)
		}
	}
	if err := flags(fd, wireBridge, unix.IFF_UP); err != nil {
		return err
	}
	for _, port := range []string{channel.In, channel.Out} { // the kernel may take up to a second to see that a link is up
		_, err := await("interface "+port+" of the bridge, forwarding", func() (string, bool) {
			text, err := os.ReadFile("/sys/class/net/" + port + "/brport/state")
			return "", err == nil && strings.TrimSpace(string(text)) == forwarding
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// forwarding is BR_STATE_FORWARDING.
const forwarding = "3"

func joinBridge(fd int, name string) error {
	l, err := net.InterfaceByName(name)
	if err != nil {
		return err
	}
	r, err := unix.NewIfreq(wireBridge)
	if err != nil {
		return err
	}
	r.SetUint32(uint32(l.Index))
	if err := unix.IoctlIfreq(fd, unix.SIOCBRADDIF, r); err != nil {
		return err
	}
	return os.WriteFile("/sys/class/net/"+name+"/brport/learning", []byte("0"), 0)
}
