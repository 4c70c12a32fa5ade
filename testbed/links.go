package testbed

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"weir.dev/weir/api"
	"weir.dev/weir/netns"
)

// mgmtMTU leaves room for what tunnels add to frames of 1500 bytes.
const mgmtMTU = 9000

// fabricMTU of cables between switches, and to hosts, leaves room for the tag that frames have inside the fabric.
const fabricMTU = api.DefaultMTU + 4

// spaces keeps the namespaces that links are made in open.
type spaces struct {
	p    plan
	open map[string]*netns.Space
}

func (s *spaces) at(node string) (*netns.Space, error) {
	if x, ok := s.open[node]; ok {
		return x, nil
	}
	x, err := netns.At(s.p.netns(node))
	if err != nil {
		return nil, err
	}
	s.open[node] = x
	return x, nil
}

func (s *spaces) close() {
	for _, x := range s.open {
		x.Close()
	}
}

// makeSpaces makes the namespaces. Those of switches and agents say nothing for themselves; a station speaks IPv6 if it has such an address.
func (p plan) makeSpaces() error {
	for _, node := range p.namespaces() {
		quiet := true
		for _, a := range p.addresses(node) {
			quiet = quiet && !a.Addr().Is6()
		}
		if err := netns.Create(p.netns(node), netns.Options{Quiet: quiet}); err != nil {
			return err
		}
	}
	return nil
}

// makeLinks makes the management network and the cables. Safe to call again.
func (p plan) makeLinks() error {
	s := &spaces{p: p, open: map[string]*netns.Space{}}
	defer s.close()
	if err := s.management(); err != nil {
		return err
	}
	macs := p.macs()
	for _, c := range p.cables() {
		if err := s.cable(c, macs); err != nil {
			return err
		}
	}
	return nil
}

// management joins the manager's bridge with each agent's eth0 and the switches'.
func (s *spaces) management() error {
	manager, err := s.at(NodeManager)
	if err != nil {
		return err
	}
	if err := manager.Do(s.bridge); err != nil {
		return fmt.Errorf("management network: %w", err)
	}
	for _, node := range s.p.namespaces()[1:] {
		a := s.p.address(node)
		if !a.IsValid() {
			continue
		}
		peer, err := s.at(node)
		if err != nil {
			return err
		}
		pair, err := manager.Veth(peer, netns.VethOptions{HostName: "to-" + node, PeerName: "eth0", MTU: mgmtMTU,
			Alias: s.p.alias("mgmt/" + node), Addresses: []netip.Prefix{netip.PrefixFrom(a, management.Bits())}})
		if err != nil {
			return fmt.Errorf("management network: %w", err)
		}
		// Hosts' tunnels leave there: what is on a wire is finished.
		if err := peer.Offloads("eth0", false); err != nil {
			return fmt.Errorf("management network: %w", err)
		}
		err = manager.Do(func() error { return join(pair.Host.Index) })
		if err != nil {
			return fmt.Errorf("management network: %w", err)
		}
	}
	return nil
}

// bridge makes the management network's in the thread's namespace.
func (s *spaces) bridge() error {
	attrs := netlink.NewLinkAttrs()
	attrs.Name, attrs.MTU = mgmt, mgmtMTU
	err := netlink.LinkAdd(&netlink.Bridge{LinkAttrs: attrs})
	if err != nil && !errors.Is(err, os.ErrExist) {
		return fmt.Errorf("bridge: %w", err)
	}
	b, err := netlink.LinkByName(mgmt)
	if err != nil {
		return fmt.Errorf("bridge: %w", err)
	}
	if err := netlink.LinkSetAlias(b, s.p.alias(mgmt)); err != nil {
		return fmt.Errorf("bridge: %w", err)
	}
	ip := &net.IPNet{IP: managerAddress.AsSlice(), Mask: net.CIDRMask(management.Bits(), 32)}
	if err := netlink.AddrReplace(b, &netlink.Addr{IPNet: ip}); err != nil {
		return fmt.Errorf("bridge: %w", err)
	}
	return netlink.LinkSetUp(b)
}

// join makes a link a port of the management bridge, in the thread's namespace.
func join(index int) error {
	b, err := netlink.LinkByName(mgmt)
	if err != nil {
		return err
	}
	l, err := netlink.LinkByIndex(index)
	if err != nil {
		return err
	}
	return netlink.LinkSetMaster(l, b)
}

// cable makes one. Checksums and segments are finished before a frame enters it, since a switch in user space is at an end of it.
func (s *spaces) cable(c cable, macs map[string]net.HardwareAddr) error {
	near, err := s.at(c.sides[0].space)
	if err != nil {
		return err
	}
	far, err := s.at(c.sides[1].space)
	if err != nil {
		return err
	}
	_, station := s.p.Hosts[c.b.node]
	o := netns.VethOptions{HostName: c.sides[0].Interface, PeerName: c.sides[1].Interface, Alias: s.p.alias(c.a.String()), Quiet: !station}
	if !station {
		o.MTU = fabricMTU
	} else {
		o.PeerMAC = [6]byte(macs[c.b.node])
		o.Addresses = s.p.addresses(c.b.node)
	}
	if _, err := near.Veth(far, o); err != nil {
		return fmt.Errorf("cable %s - %s: %w", c.a, c.b, err)
	}
	if c.b.port == 0 {
		if err := far.Offloads(c.sides[1].Interface, false); err != nil {
			return fmt.Errorf("cable %s - %s: %w", c.a, c.b, err)
		}
	}
	return nil
}

// setUp sets an interface up or down; that is how a cable is healed or cut.
func (p plan) setUp(x side, up bool) error {
	return netns.Do(p.netns(x.space), func() error {
		l, err := netlink.LinkByName(x.Interface)
		if err != nil {
			return fmt.Errorf("interface %s of %s: %w", x.Interface, x.node, err)
		}
		if up {
			return netlink.LinkSetUp(l)
		}
		return netlink.LinkSetDown(l)
	})
}

// isUp tells whether an interface is there and set up.
func (p plan) isUp(x side) bool {
	up := false
	_ = netns.Do(p.netns(x.space), func() error {
		l, err := netlink.LinkByName(x.Interface)
		up = err == nil && l.Attrs().RawFlags&unix.IFF_UP != 0
		return err
	})
	return up
}
