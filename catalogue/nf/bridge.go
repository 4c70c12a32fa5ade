package nf

import (
	"errors"
	"fmt"
	"os"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// Bridge joins the two ports of a function. It learns no addresses: what comes in at one port goes out of the other, always.
type Bridge struct {
	name string
	h    *netlink.Handle
	link netlink.Link
}

// NewBridge makes the bridge, down, and takes the ports into it. One that an earlier process left goes on as it is, up.
func NewBridge(name, in, out string) (*Bridge, error) {
	h, err := netlink.NewHandle(unix.NETLINK_ROUTE)
	if err != nil {
		return nil, fmt.Errorf("netlink: %w", err)
	}
	b := &Bridge{name: name, h: h}
	if err := b.make(in, out); err != nil {
		b.Close()
		return nil, err
	}
	return b, nil
}

// Close lets go of it. It stays.
func (b *Bridge) Close() { b.h.Close() }

func (b *Bridge) make(in, out string) error {
	ports := make([]netlink.Link, 0, 2)
	for _, name := range []string{in, out} {
		l, err := b.h.LinkByName(name)
		if err != nil {
			return fmt.Errorf("port %s: %w (the ports in and out must exist before the function starts)", name, err)
		}
		ports = append(ports, l)
	}
	if l, err := b.h.LinkByName(b.name); err == nil {
		b.link = l
	} else {
		snooping := false
		attrs := netlink.NewLinkAttrs()
		attrs.Name = b.name
		attrs.MTU = min(ports[0].Attrs().MTU, ports[1].Attrs().MTU)
		mask := uint16(0xfff8) // forward LLDP, 802.1X and the like; the kernel keeps 0 to 2 (STP, pause, LACP) back
		br := &netlink.Bridge{LinkAttrs: attrs, MulticastSnooping: &snooping, GroupFwdMask: &mask}
		if err := b.h.LinkAdd(br); err != nil {
			return fmt.Errorf("make bridge: %w (kernel option CONFIG_BRIDGE; capability CAP_NET_ADMIN)", err)
		}
		if b.link, err = b.h.LinkByName(b.name); err != nil {
			return fmt.Errorf("make bridge: %w", err)
		}
	}
	silence(b.name)
	if err := b.h.LinkSetIP6AddrGenMode(b.link, 1); err != nil && !errors.Is(err, unix.EAFNOSUPPORT) { // IN6_ADDR_GEN_MODE_NONE: no link-local address
		return fmt.Errorf("bridge: IPv6 off: %w", err)
	}
	for _, p := range ports {
		name := p.Attrs().Name
		if p.Attrs().MasterIndex != b.link.Attrs().Index {
			if err := b.h.LinkSetMaster(p, b.link); err != nil {
				return fmt.Errorf("port %s into bridge: %w", name, err)
			}
		}
		if err := b.h.LinkSetLearning(p, false); err != nil {
			return fmt.Errorf("port %s: learning off: %w", name, err)
		}
		if err := b.h.LinkSetUp(p); err != nil {
			return fmt.Errorf("port %s up: %w", name, err)
		}
	}
	return nil
}

// silence switches IPv6 off where /proc/sys may be written; in a container it may not, and the address mode does it.
func silence(link string) {
	_ = os.WriteFile("/proc/sys/net/ipv6/conf/"+link+"/disable_ipv6", []byte("1"), 0)
	for _, f := range []string{"iptables", "ip6tables", "arptables"} {
		_ = os.WriteFile("/proc/sys/net/bridge/bridge-nf-call-"+f, []byte("0"), 0)
	}
}

// Up lets frames pass.
func (b *Bridge) Up() error {
	if err := b.h.LinkSetUp(b.link); err != nil {
		return fmt.Errorf("bridge up: %w", err)
	}
	return nil
}

// Down lets none pass.
func (b *Bridge) Down() error { return b.h.LinkSetDown(b.link) }
