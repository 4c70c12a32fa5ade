package main

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"weir.dev/weir/catalogue/nf"
	"weir.dev/weir/netns/ethtool"
)

// tags is how much longer than the port's MTU a frame may be: two VLAN tags.
const tags = 8

// door joins a port of the function with an interface that Suricata reads: port - bridge - outer - inner. Between outer and inner frames are what they are on
// a wire: the kernel cuts those of local senders to the port's MTU there and computes their checksums, which Suricata could not.
type door struct {
	*nf.Bridge
	inner string
}

// openDoor of a port. What an earlier process left is used again.
func openDoor(port string) (door, error) {
	outer, d := port+"-o", door{inner: port + "-i"}
	h, err := netlink.NewHandle(unix.NETLINK_ROUTE)
	if err != nil {
		return door{}, fmt.Errorf("netlink: %w", err)
	}
	defer h.Close()
	l, err := h.LinkByName(port)
	if err != nil {
		return door{}, fmt.Errorf("port %s: %w (it must exist before the function starts)", port, err)
	}
	if _, err := h.LinkByName(outer); err != nil {
		attrs := netlink.NewLinkAttrs()
		attrs.Name, attrs.MTU = outer, l.Attrs().MTU+tags
		if err := h.LinkAdd(&netlink.Veth{LinkAttrs: attrs, PeerName: d.inner, PeerMTU: uint32(attrs.MTU)}); err != nil {
			return door{}, fmt.Errorf("make the pair %s, %s: %w (capability CAP_NET_ADMIN)", outer, d.inner, err)
		}
	}
	for _, name := range []string{outer, d.inner} {
		l, err := h.LinkByName(name)
		if err != nil {
			return door{}, fmt.Errorf("the pair %s, %s: %w", outer, d.inner, err)
		}
		if err := h.LinkSetIP6AddrGenMode(l, 1); err != nil && !errors.Is(err, unix.EAFNOSUPPORT) { // IN6_ADDR_GEN_MODE_NONE: it says nothing for itself
			return door{}, fmt.Errorf("%s: IPv6 off: %w", name, err)
		}
	}
	if err := finish(outer); err != nil {
		return door{}, err
	}
	if d.Bridge, err = nf.NewBridge("ids-"+port, port, outer); err != nil {
		return door{}, err
	}
	l, err = h.LinkByName(d.inner)
	if err == nil {
		err = h.LinkSetUp(l)
	}
	if err != nil {
		d.Close()
		return door{}, fmt.Errorf("%s up: %w", d.inner, err)
	}
	return d, nil
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
