package netns

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// WireGuardOptions describe a host's end of encrypted tunnels to others (WireGuard: Donenfeld, NDSS 2017).
type WireGuardOptions struct {
	Name    string
	Alias   string // ownership mark; a link without it is foreign
	Key     [32]byte
	Port    uint16     // UDP, in the namespace where packets go out
	Address netip.Addr // inside, IPv6
	MTU     int        // of the packets inside
	Peers   []WireGuardPeer
}

// WireGuardPeer is another host: packets from it are taken if they come with its key and from its inner address.
type WireGuardPeer struct {
	Key      [32]byte // public
	Endpoint netip.AddrPort
	Allowed  netip.Addr // inside
}

// WireGuardOverhead is what WireGuard adds to a packet: outer IP, UDP, its header and tag.
func WireGuardOverhead(underlay netip.Addr) int {
	const udp, wireguard = 8, 32
	if underlay.Is4() {
		return 20 + udp + wireguard
	}
	return 40 + udp + wireguard
}

// wireguardPad is to what multiple WireGuard pads what it encrypts.
const wireguardPad = 16

// Padded is the size of a packet as WireGuard encrypts it.
func Padded(n int) int { return (n + wireguardPad - 1) / wireguardPad * wireguardPad }

// ErrNoWireGuard says that the kernel lacks it.
var ErrNoWireGuard = errors.New("this kernel has no WireGuard (CONFIG_WIREGUARD, modprobe wireguard)")

// ProbeWireGuard tells whether the kernel has WireGuard. It makes an interface in a namespace that goes at once.
func ProbeWireGuard() error {
	return onThread(func() error {
		if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
			return fmt.Errorf("unshare: %w", err)
		}
		return withNetlink(func(h *netlink.Handle) error {
			return addWireGuard(h, netlink.LinkAttrs{Name: "probe", TxQLen: -1, NetNsID: -1})
		})
	})
}

func addWireGuard(h *netlink.Handle, a netlink.LinkAttrs) error {
	err := h.LinkAdd(&netlink.Wireguard{LinkAttrs: a})
	if errors.Is(err, unix.EOPNOTSUPP) {
		return ErrNoWireGuard
	}
	return err
}

// WireGuard makes an interface inside a namespace whose encrypted packets go out of s, and sets its key, port, address and peers. Peers that
// are not named are removed. Safe to call again: what is equal stays, and sessions with it.
func (s *Space) WireGuard(inside *Space, o WireGuardOptions) error {
	if err := s.wireguard(inside, o); err != nil {
		return fmt.Errorf("wireguard %s in %s: %w", o.Name, inside, err)
	}
	return nil
}

func (s *Space) wireguard(inside *Space, o WireGuardOptions) error {
	if o.Name == "" || len(o.Name) > maxLinkNameLength || o.Alias == "" || !o.Address.Is6() || o.Port == 0 {
		return fmt.Errorf("%+v: want a name, an alias, a port and an IPv6 address", WireGuardOptions{Name: o.Name, Alias: o.Alias, Port: o.Port, Address: o.Address})
	}
	there, err := inside.Link(o.Name)
	missing := errors.Is(err, ErrNoLink)
	if err != nil && !missing {
		return err
	}
	if err == nil && there.Alias != o.Alias {
		return fmt.Errorf("interface %s exists (alias %q): %w", o.Name, there.Alias, ErrForeign)
	}
	if missing {
		if err := s.newWireGuard(inside, o); err != nil {
			return err
		}
	}
	return inside.Netlink(func(h *netlink.Handle) error {
		if err := o.configure(); err != nil {
			return err
		}
		return o.settle(h)
	})
}

// newWireGuard makes it in s, where its UDP socket stays, and moves it. One that a crash left in s, unmarked in the other, is made anew.
func (s *Space) newWireGuard(inside *Space, o WireGuardOptions) error {
	if left, err := s.Link(o.Name); err == nil && (left.halfMade(Unmarked(o.Alias)) || left.Alias == o.Alias) {
		if err := s.Delete(o.Name); err != nil {
			return err
		}
	}
	err := s.Netlink(func(h *netlink.Handle) error {
		return addWireGuard(h, netlink.LinkAttrs{Name: o.Name, MTU: o.MTU, TxQLen: -1, NetNsID: -1, Group: Unmarked(o.Alias)})
	})
	if err != nil {
		return err
	}
	if err := s.Mark(o.Name, o.Alias); err != nil {
		return err
	}
	return s.moveTo(inside, o.Name)
}

// moveTo moves a link to another namespace.
func (s *Space) moveTo(to *Space, name string) error {
	return s.Netlink(func(h *netlink.Handle) error {
		l, err := h.LinkByName(name)
		if err != nil {
			return err
		}
		if err := h.LinkSetNsFd(l, to.Fd()); err != nil {
			return fmt.Errorf("move %s to %s: %w", name, to, err)
		}
		return nil
	})
}

// settle sets MTU, address and routes, and sets the link up.
func (o WireGuardOptions) settle(h *netlink.Handle) error {
	l, err := h.LinkByName(o.Name)
	if err != nil {
		return err
	}
	if l.Attrs().MTU != o.MTU {
		if err := h.LinkSetMTU(l, o.MTU); err != nil {
			return fmt.Errorf("MTU %d: %w", o.MTU, err)
		}
	}
	own := &netlink.Addr{IPNet: netlink.NewIPNet(o.Address.AsSlice()), Flags: unix.IFA_F_NODAD}
	if err := h.AddrReplace(l, own); err != nil {
		return fmt.Errorf("address %s: %w", o.Address, err)
	}
	if err := h.LinkSetUp(l); err != nil {
		return fmt.Errorf("set up: %w", err)
	}
	for _, p := range o.Peers {
		r := &netlink.Route{LinkIndex: l.Attrs().Index, Dst: netlink.NewIPNet(p.Allowed.AsSlice()), Scope: netlink.SCOPE_LINK}
		if err := h.RouteReplace(r); err != nil {
			return fmt.Errorf("route to %s: %w", p.Allowed, err)
		}
	}
	return nil
}

// Of linux/wireguard.h.
const (
	wgSetDevice, wgGetDevice                               = 1, 0
	wgDeviceName, wgDeviceKey, wgDevicePort, wgDevicePeers = 2, 3, 6, 8
	wgPeerKey, wgPeerFlags, wgPeerEndpoint, wgPeerAllowed  = 1, 3, 4, 9
	wgAllowedFamily, wgAllowedAddress, wgAllowedMask       = 1, 2, 3
	wgPeerRemove, wgPeerReplaceAllowed                     = 1, 2
)

// configure sets key, port and peers over generic netlink, in the namespace of the calling thread. Peers that stay keep their sessions.
func (o WireGuardOptions) configure() error {
	family, err := netlink.GenlFamilyGet("wireguard")
	if err != nil {
		return fmt.Errorf("generic netlink family wireguard: %w", err)
	}
	there, key, err := o.read(family.ID)
	if err != nil {
		return err
	}
	attrs := []*nl.RtAttr{nl.NewRtAttr(wgDeviceName, nl.ZeroTerminated(o.Name)), nl.NewRtAttr(wgDevicePort, nl.Uint16Attr(o.Port))}
	if key != o.Key { // set again it would end all sessions
		attrs = append(attrs, nl.NewRtAttr(wgDeviceKey, o.Key[:]))
	}
	peers := nl.NewRtAttr(wgDevicePeers|unix.NLA_F_NESTED, nil)
	for _, k := range there {
		if !slices.ContainsFunc(o.Peers, func(p WireGuardPeer) bool { return p.Key == k }) {
			p := peers.AddRtAttr(unix.NLA_F_NESTED, nil)
			p.AddRtAttr(wgPeerKey, k[:])
			p.AddRtAttr(wgPeerFlags, nl.Uint32Attr(wgPeerRemove))
		}
	}
	for _, x := range o.Peers {
		p := peers.AddRtAttr(unix.NLA_F_NESTED, nil)
		p.AddRtAttr(wgPeerKey, x.Key[:])
		p.AddRtAttr(wgPeerFlags, nl.Uint32Attr(wgPeerReplaceAllowed))
		p.AddRtAttr(wgPeerEndpoint, sockaddr(x.Endpoint))
		a := p.AddRtAttr(wgPeerAllowed|unix.NLA_F_NESTED, nil).AddRtAttr(unix.NLA_F_NESTED, nil)
		a.AddRtAttr(wgAllowedFamily, nl.Uint16Attr(unix.AF_INET6))
		a.AddRtAttr(wgAllowedAddress, x.Allowed.AsSlice())
		a.AddRtAttr(wgAllowedMask, []byte{128})
	}
	req := nl.NewNetlinkRequest(int(family.ID), unix.NLM_F_ACK)
	req.AddData(&nl.Genlmsg{Command: wgSetDevice, Version: 1})
	for _, a := range append(attrs, peers) {
		req.AddData(a)
	}
	if _, err := req.Execute(unix.NETLINK_GENERIC, 0); err != nil {
		return fmt.Errorf("set keys and peers: %w", err)
	}
	return nil
}

// read lists the peers' keys, and the interface's own.
func (o WireGuardOptions) read(family uint16) (peers [][32]byte, key [32]byte, err error) {
	req := nl.NewNetlinkRequest(int(family), unix.NLM_F_DUMP)
	req.AddData(&nl.Genlmsg{Command: wgGetDevice, Version: 1})
	req.AddData(nl.NewRtAttr(wgDeviceName, nl.ZeroTerminated(o.Name)))
	msgs, err := req.Execute(unix.NETLINK_GENERIC, 0)
	if err != nil {
		return nil, key, fmt.Errorf("read keys and peers: %w", err)
	}
	for _, m := range msgs {
		attrs, err := nl.ParseRouteAttr(m[nl.SizeofGenlmsg:])
		if err != nil {
			return nil, key, fmt.Errorf("read keys and peers: %w", err)
		}
		for _, a := range attrs {
			switch a.Attr.Type &^ unix.NLA_F_NESTED {
			case wgDeviceKey:
				copy(key[:], a.Value)
			case wgDevicePeers:
				list, err := nl.ParseRouteAttr(a.Value)
				if err != nil {
					return nil, key, fmt.Errorf("read peers: %w", err)
				}
				for _, p := range list {
					fields, err := nl.ParseRouteAttr(p.Value)
					if err != nil {
						return nil, key, fmt.Errorf("read a peer: %w", err)
					}
					for _, f := range fields {
						if f.Attr.Type == wgPeerKey && len(f.Value) == 32 {
							peers = append(peers, [32]byte(f.Value))
						}
					}
				}
			}
		}
	}
	return peers, key, nil
}

// sockaddr is a struct sockaddr_in or sockaddr_in6.
func sockaddr(a netip.AddrPort) []byte {
	if a.Addr().Is4() {
		b := make([]byte, 16)
		binary.NativeEndian.PutUint16(b, unix.AF_INET)
		binary.BigEndian.PutUint16(b[2:], a.Port())
		copy(b[4:], a.Addr().AsSlice())
		return b
	}
	b := make([]byte, 28)
	binary.NativeEndian.PutUint16(b, unix.AF_INET6)
	binary.BigEndian.PutUint16(b[2:], a.Port())
	copy(b[8:], a.Addr().AsSlice())
	return b
}
