package main

import (
	"fmt"
	"net"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"weir.dev/weir/catalogue/nf"
)

// The kernel's TCP/IP of the namespace serves nginx. It has one link, whose other end the loop over frames reads: frames of the connections that nginx is to
// have come there with addresses of four networks that are nobody's (240.0.0.0/4 is reserved), and leave with their own again.
//
//	client 10.0.0.1 ── in ─┐            ┌─ server 10.0.0.2 as it accepts    242.0.0.1 (local)
//	                       │  loop ─ link ─ client 10.0.0.1 as it connects  241.0.0.1
//	server 10.0.0.2 ─ out ─┘            ├─ the same client, as nginx binds  243.0.0.1 (local)
//	                                    └─ the same server, as nginx dials  244.0.0.1
//
// So nginx is plain: it listens, sees a client and a server's address in each connection, and dials that server from that client's address by replacing the
// first number of both. IPv6 becomes IPv4 on this link, since a function's namespace has none. A server's number is never given to another.
const (
	stackLink = "cache"   // of the kernel
	loopLink  = "cache-l" // of the loop

	asClient = 241 // first bytes
	asServer = 242
	bound    = 243
	dialled  = 244

	listenFrom = 20000 // nginx's port for the first of the configured ones: it may not listen below 1024
	stackMTU   = 1260  // with an IPv6 header instead of one of IPv4 a packet has 1280 bytes, which every path carries (RFC 8200)
)

// openLinks makes the link and its routes, and returns the address of the kernel's end.
func openLinks() (net.HardwareAddr, error) {
	h, err := netlink.NewHandle(unix.NETLINK_ROUTE)
	if err != nil {
		return nil, fmt.Errorf("netlink: %w", err)
	}
	defer h.Close()
	up, err := nf.StackLinks(h, stackLink, loopLink, stackMTU)
	if err != nil {
		return nil, err
	}
	for first, local := range map[byte]bool{asClient: false, asServer: true, bound: true, dialled: false} {
		r := &netlink.Route{Dst: &net.IPNet{IP: net.IPv4(first, 0, 0, 0).To4(), Mask: net.CIDRMask(8, 32)}}
		if local {
			r.LinkIndex, r.Type, r.Table, r.Scope = up["lo"].Attrs().Index, unix.RTN_LOCAL, unix.RT_TABLE_LOCAL, netlink.SCOPE_HOST
		} else {
			r.LinkIndex, r.Scope, r.MTU, r.MTULock = up[stackLink].Attrs().Index, netlink.SCOPE_LINK, stackMTU, true // locked: routers may cut what is still too long
		}
		if err := h.RouteAdd(r); err != nil {
			return nil, fmt.Errorf("route to %s: %w", r.Dst, err)
		}
	}
	return up[stackLink].Attrs().HardwareAddr, nil
}
