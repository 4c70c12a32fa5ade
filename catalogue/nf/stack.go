package nf

import (
	"errors"
	"fmt"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
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

// StrictReversePath keeps the stack of the namespace's kernel from taking what comes by a port of the function, where that stack has addresses: they are for the loop's link alone, but the
// kernel takes what is for them from any interface, if the frame is for its MAC address or comes from a switch that hands it on as such (bpf_redirect_peer from Linux
// 6.16 on). The strict reverse path filter (RFC 3704) drops it: no way to a sender leads back by the port. Needs CAP_NET_ADMIN.
func StrictReversePath(port string) error {
	const inetConf, rpFilter, strict = 1, 8, 1 // IFLA_INET_CONF, IPV4_DEVCONF_RP_FILTER
	l, err := netlink.LinkByName(port)
	if err != nil {
		return fmt.Errorf("port %s: %w", port, err)
	}
	m := nl.NewIfInfomsg(unix.AF_UNSPEC)
	m.Index = int32(l.Attrs().Index)
	families := nl.NewRtAttr(unix.IFLA_AF_SPEC, nil)
	families.AddRtAttr(unix.AF_INET, nil).AddRtAttr(inetConf, nil).AddRtAttr(rpFilter, nl.Uint32Attr(strict))
	q := nl.NewNetlinkRequest(unix.RTM_SETLINK, unix.NLM_F_ACK)
	q.AddData(m)
	q.AddData(families)
	if _, err := q.Execute(unix.NETLINK_ROUTE, 0); err != nil {
		return fmt.Errorf("port %s: reverse path filter: %w (capability CAP_NET_ADMIN)", port, err)
	}
	return nil
}
