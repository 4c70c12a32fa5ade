package main

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"weir.dev/weir/netns/ethtool"
)

// tags is how much longer than the port's MTU a frame may be: two VLAN tags.
const tags = 8

// door joins a port of the function with an interface, inner, that Suricata reads and writes. What comes to the port is redirected to outer, the other end of a
// veth pair. On the way to inner the kernel cuts frames of local senders to the port's MTU and computes their checksums, which Suricata could not. What Suricata
// sends at inner is complete already: it is redirected to the port and never enters the pair.
type door struct {
	h                  *netlink.Handle
	port, outer, inner netlink.Link
}

// openDoor makes the door of a port, shut. What an earlier process left is used again.
func openDoor(port string) (*door, error) {
	h, err := netlink.NewHandle(unix.NETLINK_ROUTE)
	if err != nil {
		return nil, fmt.Errorf("netlink: %w", err)
	}
	d := &door{h: h}
	if err := d.make(port); err != nil {
		d.Close()
		return nil, err
	}
	return d, nil
}

func (d *door) make(port string) (err error) {
	outer, inner := port+"-o", port+"-i"
	if d.port, err = d.h.LinkByName(port); err != nil {
		return fmt.Errorf("port %s: %w (it must exist before the function starts)", port, err)
	}
	if _, err := d.h.LinkByName(outer); err != nil {
		attrs := netlink.NewLinkAttrs()
		attrs.Name, attrs.MTU = outer, d.port.Attrs().MTU+tags
		if err := d.h.LinkAdd(&netlink.Veth{LinkAttrs: attrs, PeerName: inner, PeerMTU: uint32(attrs.MTU)}); err != nil {
			return fmt.Errorf("make the pair %s, %s: %w (capability CAP_NET_ADMIN)", outer, inner, err)
		}
	}
	for name, l := range map[string]*netlink.Link{outer: &d.outer, inner: &d.inner} {
		if *l, err = d.h.LinkByName(name); err != nil {
			return fmt.Errorf("the pair %s, %s: %w", outer, inner, err)
		}
		if err := d.h.LinkSetIP6AddrGenMode(*l, 1); err != nil && !errors.Is(err, unix.EAFNOSUPPORT) { // IN6_ADDR_GEN_MODE_NONE: it says nothing for itself
			return fmt.Errorf("%s: IPv6 off: %w", name, err)
		}
	}
	if err := finish(outer); err != nil {
		return err
	}
	if err := d.h.SetPromiscOn(d.port); err != nil { // a network card would keep back what is addressed to others
		return fmt.Errorf("port %s: take frames for others: %w", port, err)
	}
	if err := d.Down(); err != nil {
		return err
	}
	for _, l := range []netlink.Link{d.port, d.outer, d.inner} {
		if err := d.h.LinkSetUp(l); err != nil {
			return fmt.Errorf("%s up: %w", l.Attrs().Name, err)
		}
	}
	return nil
}

// Close lets go of it. It stays.
func (d *door) Close() { d.h.Close() }

// Up lets frames come to Suricata, and what it hands on leave.
func (d *door) Up() error {
	if err := d.direct(d.inner, netlink.HANDLE_MIN_EGRESS, []rule{{to: d.port}}); err != nil {
		return err
	}
	return d.direct(d.port, netlink.HANDLE_MIN_INGRESS, append(slices.Clone(refused), rule{to: d.outer}))
}

// Down lets none pass either way. They end in the kernel of the function's namespace, which has no addresses.
func (d *door) Down() error {
	return errors.Join(d.direct(d.port, netlink.HANDLE_MIN_INGRESS, nil), d.direct(d.inner, netlink.HANDLE_MIN_EGRESS, nil))
}

// rule leads frames that have all of keys to another interface, or, without one, nowhere.
type rule struct {
	keys []nl.TcU32Key
	to   netlink.Link
}

// refused is what no bridge hands on: frames to the addresses 01:80:c2:00:00:01 and 02 (pause, LACP), which are meant for the next interface alone, and frames from an
// address that none can have.
var refused = []rule{
	{keys: []nl.TcU32Key{{Off: target, Mask: ^uint32(0), Val: 0x0180c200}, {Off: target + 4, Mask: 0xffff << 16, Val: 1 << 16}}},
	{keys: []nl.TcU32Key{{Off: target, Mask: ^uint32(0), Val: 0x0180c200}, {Off: target + 4, Mask: 0xffff << 16, Val: 2 << 16}}},
	{keys: []nl.TcU32Key{{Off: source, Mask: 1 << 24, Val: 1 << 24}}},
	{keys: []nl.TcU32Key{{Off: source, Mask: ^uint32(0)}, {Off: source + 4, Mask: 0xffff << 16}}},
}

// Places of the Ethernet header's addresses, from the network header on.
const (
	target = -14
	source = -8
)

// direct puts rules in force for what enters or leaves an interface, in their order, instead of those that were there.
func (d *door) direct(at netlink.Link, parent uint32, rules []rule) error {
	fail := func(err error) error {
		return fmt.Errorf("redirect at %s: %w (kernel options CONFIG_NET_SCH_INGRESS, CONFIG_NET_CLS_U32, CONFIG_NET_ACT_MIRRED; capability CAP_NET_ADMIN)", at.Attrs().Name, err)
	}
	index := at.Attrs().Index
	hook := &netlink.Clsact{QdiscAttrs: netlink.QdiscAttrs{LinkIndex: index, Handle: netlink.MakeHandle(0xffff, 0), Parent: netlink.HANDLE_CLSACT}}
	if err := d.h.QdiscAdd(hook); err != nil && !errors.Is(err, unix.EEXIST) {
		return fail(err)
	}
	attrs := netlink.FilterAttrs{LinkIndex: index, Parent: parent, Protocol: unix.ETH_P_ALL, Priority: 1}
	if err := d.h.FilterDel(&netlink.U32{FilterAttrs: attrs}); err != nil && !errors.Is(err, unix.ENOENT) { // all rules at once
		return fail(err)
	}
	for _, r := range rules {
		f := &netlink.U32{FilterAttrs: attrs, ClassId: netlink.MakeHandle(1, 1), Sel: &nl.TcU32Sel{Flags: nl.TC_U32_TERMINAL, Keys: r.keys}}
		if r.to != nil {
			f.Actions = []netlink.Action{netlink.NewMirredAction(r.to.Attrs().Index)}
		}
		if err := d.h.FilterAdd(f); err != nil {
			return fail(err)
		}
	}
	return nil
}

// finish has the kernel finish what senders left to the hardware before a frame leaves the interface.
func finish(link string) error {
	have, err := ethtool.Features(link)
	if err != nil {
		return err
	}
	off := map[string]bool{}
	for _, name := range slices.Sorted(maps.Keys(have)) {
		f := have[name]
		if f.Changeable && f.Active && (strings.HasSuffix(name, "-segmentation") || strings.HasPrefix(name, "tx-checksum") || name == "tx-scatter-gather" || name == "tx-gso-list") {
			off[name] = false
		}
	}
	if len(off) == 0 {
		return nil
	}
	return ethtool.Change(link, off)
}
