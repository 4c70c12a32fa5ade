package nf

import (
	"errors"
	"fmt"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// StackLinks makes the pair of links by which a function's loop, at one end, and the stack of its namespace's kernel, at the other, speak to each other, and takes
// both and lo up. Neither says anything for itself: no IPv6 addresses, no ARP. They are returned by name, lo too. Needs CAP_NET_ADMIN.
func StackLinks(h *netlink.Handle, kernel, loop string, mtu int) (map[string]netlink.Link, error) {
	attrs := netlink.NewLinkAttrs()
	attrs.Name, attrs.MTU = kernel, mtu
	if err := h.LinkAdd(&netlink.Veth{LinkAttrs: attrs, PeerName: loop, PeerMTU: uint32(mtu)}); err != nil {
		return nil, fmt.Errorf("make the pair %s, %s: %w (capability CAP_NET_ADMIN)", kernel, loop, err)
	}
	up := map[string]netlink.Link{}
	for _, name := range []string{"lo", loop, kernel} {
		l, err := h.LinkByName(name)
		if err == nil && name != "lo" {
			if err = h.LinkSetIP6AddrGenMode(l, 1); errors.Is(err, unix.EAFNOSUPPORT) { // IN6_ADDR_GEN_MODE_NONE
				err = nil
			}
			if err == nil {
				err = h.LinkSetARPOff(l)
			}
		}
		if err == nil {
			err = h.LinkSetUp(l)
		}
		if err != nil {
			return nil, fmt.Errorf("interface %s: %w", name, err)
		}
		up[name] = l
	}
	return up, nil
}
