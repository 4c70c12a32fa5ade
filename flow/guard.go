package flow

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"slices"
)

// Guard is the port security of an endpoint: what may enter the switch at its port. It is checked before any rule. The zero value checks
// nothing.
//
// The checks, in this order; the first that fails drops the frame and is counted:
//
//   - RefusedMAC: MACs are known and the source MAC is not one of them; or MACs are not known and it is one of another endpoint's.
//   - RefusedUnread: the frame has more than two VLAN tags; an IPv6 packet's header is cut short; its upper layer stands behind
//     more than six extension headers or is cut short (RFC 7112). Later fragments have no upper layer: their source alone is checked.
//   - RefusedDHCP: IPv4 UDP from port 67 or IPv6 UDP from port 547, unless DHCPServer.
//   - RefusedRA: an ICMPv6 router advertisement or redirect, unless Router.
//   - RefusedARP: ARP that is not whole, whose sender MAC is not in MACs, whose sender address is not in Addresses, or is in Shared. The sender
//     0.0.0.0 may ask for an own address (RFC 5227).
//   - RefusedND: a neighbour solicitation or advertisement that is not whole (code 0, target, each link-layer option once, at most 16 options), whose link-layer
//     option is not in MACs, an advertisement of a target that is not in Addresses, or is in Shared, a solicitation from :: for such a target (DAD). These two, and a
//     router solicitation, from an address in Shared.
//   - RefusedSource: an IP packet whose source is in neither Addresses nor Shared, unless Router. 0.0.0.0 may ask a DHCP server (UDP 68 to 67), :: may
//     solicit neighbours and routers and report multicast groups.
//
// What stands behind one or two VLAN tags is checked like what stands behind none.
type Guard struct {
	On        bool           `json:",omitempty"`
	MACs      []MAC          `json:",omitempty"` // empty: not checked
	Bound     bool           `json:",omitempty"` // Addresses are checked
	Addresses []netip.Prefix `json:",omitempty"`
	// Shared addresses are those of several stations: packets come from them, but no station tells that it has them.
	Shared     []netip.Addr `json:",omitempty"`
	DHCPServer bool         `json:",omitempty"`
	Router     bool         `json:",omitempty"` // forwards others' packets: their source is not checked; may advertise itself
}

// Bounds of a Guard: switches keep fixed tables. Addresses are bounded for each family, those that are shared included.
const (
	MaxGuardMACs      = 8
	MaxGuardAddresses = 32
)

// Refusal is why a Guard drops a frame.
type Refusal uint8

const (
	Accepted Refusal = iota
	RefusedMAC
	RefusedUnread
	RefusedDHCP
	RefusedRA
	RefusedARP
	RefusedND
	RefusedSource
	Refusals // how many there are
)

func (r Refusal) String() string {
	return [...]string{"accepted", "mac", "unreadable", "dhcp", "ra", "arp", "nd", "source"}[r]
}

// Why is the refusal in a sentence.
func (r Refusal) Why() string {
	return [...]string{"accepted", "the source MAC is not this endpoint's", "its headers cannot be read to the end", "a DHCP server's answer from an endpoint that is none",
		"a router advertisement or redirect from an endpoint that is no router", "ARP for an address or MAC that is not this endpoint's",
		"neighbour discovery for an address or MAC that is not this endpoint's", "the source address is not this endpoint's"}[r]
}

// Equal compares what is checked.
func (g Guard) Equal(o Guard) bool {
	return g.On == o.On && g.Bound == o.Bound && g.DHCPServer == o.DHCPServer && g.Router == o.Router &&
		slices.Equal(g.MACs, o.MACs) && slices.Equal(g.Addresses, o.Addresses) && slices.Equal(g.Shared, o.Shared)
}

// Validate reports what no switch can hold.
func (g Guard) Validate() error {
	var errs []error
	if len(g.MACs) > MaxGuardMACs {
		errs = append(errs, fmt.Errorf("%d MACs: want at most %d", len(g.MACs), MaxGuardMACs))
	}
	var count [2]int
	for _, p := range g.Addresses {
		if !p.IsValid() || p.Masked() != p || p.Addr().Is4In6() {
			errs = append(errs, fmt.Errorf("prefix %s: want an IPv4 or IPv6 prefix without bits behind its length", p))
			continue
		}
		if p.Addr().Is4() {
			count[0]++
		} else {
			count[1]++
		}
	}
	for _, a := range g.Shared {
		switch {
		case !a.IsValid() || a.Is4In6() || a.Zone() != "" || a.IsUnspecified():
			errs = append(errs, fmt.Errorf("shared address %s: want an IPv4 or IPv6 address", a))
		case a.Is4():
			count[0]++
		default:
			count[1]++
		}
	}
	for i, n := range count {
		if n > MaxGuardAddresses {
			errs = append(errs, fmt.Errorf("%d IPv%d addresses: want at most %d", n, 4+2*i, MaxGuardAddresses))
		}
	}
	return errors.Join(errs...)
}

// LinkLocal is the IPv6 link-local address that an interface derives from its MAC (RFC 4291, appendix A).
func LinkLocal(m MAC) netip.Addr {
	return netip.AddrFrom16([16]byte{0xfe, 0x80, 8: m[0] ^ 2, m[1], m[2], 0xff, 0xfe, m[3], m[4], m[5]})
}

func (g *Guard) hasMAC(m MAC) bool { return len(g.MACs) == 0 || slices.Contains(g.MACs, m) }

func (g *Guard) hasAddress(a netip.Addr) bool {
	return !g.Bound || slices.ContainsFunc(g.Addresses, func(p netip.Prefix) bool { return p.Contains(a) })
}

func (g *Guard) shares(a netip.Addr) bool { return slices.Contains(g.Shared, a) }

// mayTell says whether ARP and neighbour discovery may tell that the address is here.
func (g *Guard) mayTell(a netip.Addr) bool { return g.hasAddress(a) && !g.shares(a) }

// Check tells whether a frame may enter. Frames without an Ethernet header are the switch's to drop.
func (g *Guard) Check(frame []byte) Refusal {
	k, ok := Decode(frame)
	if !ok || !g.On {
		return Accepted
	}
	if !g.hasMAC(k.SrcMAC) {
		return RefusedMAC
	}
	rest := frame[ethernetHeader:]
	for t, n := binary.BigEndian.Uint16(frame[12:]), 0; n < maxTags && isTag(t) && len(rest) >= 4; n++ {
		t, rest = binary.BigEndian.Uint16(rest[2:]), rest[4:]
	}
	switch {
	case isTag(k.EtherType):
		return RefusedUnread
	case k.EtherType == EtherTypeARP:
		return g.checkARP(rest)
	case k.EtherType == EtherTypeIPv4:
		return g.checkIPv4(k, rest)
	case k.EtherType == EtherTypeIPv6:
		return g.checkIPv6(rest)
	}
	return Accepted
}

func (g *Guard) checkARP(p []byte) Refusal {
	known := len(g.MACs) > 0 || g.Bound
	if whole := len(p) >= 28 && binary.BigEndian.Uint64(p)>>16 == 0x000108000604; !whole || !g.hasMAC(MAC(p[8:14])) {
		if known {
			return RefusedARP
		}
		return Accepted
	}
	sender, target := netip.AddrFrom4([4]byte(p[14:18])), netip.AddrFrom4([4]byte(p[24:28]))
	if sender.IsUnspecified() {
		sender = target
	}
	if !g.mayTell(sender) {
		return RefusedARP
	}
	return Accepted
}

const (
	portDHCPServer   = 67
	portDHCPClient   = 68
	portDHCPv6Server = 547
	udpHeader        = 8
)

func (g *Guard) checkIPv4(k Key, p []byte) Refusal {
	var src, dst uint16
	if k.HasIP && k.Proto == ProtoUDP && k.HasPorts && len(p) >= int(p[0]&0xf)*4+udpHeader {
		src, dst = k.SrcPort, k.DstPort
	}
	switch {
	case src == portDHCPServer && !g.DHCPServer:
		return RefusedDHCP
	case !g.Bound || g.Router:
		return Accepted
	case !k.HasIP:
		return RefusedSource
	case k.Src.IsUnspecified() && src == portDHCPClient && dst == portDHCPServer, g.hasAddress(k.Src), g.shares(k.Src):
		return Accepted
	}
	return RefusedSource
}

// ICMPv6 types (RFC 4443, 2710, 3810, 4861).
const (
	icmpMLDReport    = 131
	icmpMLDDone      = 132
	icmpRouterAsk    = 133
	icmpRouterTells  = 134
	icmpNeighbourAsk = 135
	icmpNeighbour    = 136
	icmpRedirect     = 137
	icmpMLDv2Report  = 143
)

// icmpHeader is what has to be there of an ICMPv6 message: without it nobody could tell which it is.
const icmpHeader = 8

// maxNDOptions bounds what is read of a solicitation or advertisement. Senders need one or two.
const maxNDOptions = 16

func (g *Guard) checkIPv6(p []byte) Refusal {
	if len(p) < 40 || p[0]>>4 != 6 {
		return RefusedUnread
	}
	src := netip.AddrFrom16([16]byte(p[8:24]))
	proto, upper, later, ok := upperLayer(p[6], p[40:])
	switch {
	case !ok:
		return RefusedUnread
	case later:
		return g.checkSource(src)
	case proto == ProtoUDP && len(upper) >= udpHeader && binary.BigEndian.Uint16(upper) == portDHCPv6Server && !g.DHCPServer:
		return RefusedDHCP
	case proto != ProtoICMPv6:
		return g.checkSource(src)
	case len(upper) < icmpHeader || upper[0] == 0:
		return RefusedUnread
	}
	kind := upper[0]
	switch kind {
	case icmpRouterTells, icmpRedirect:
		if !g.Router {
			return RefusedRA
		}
	case icmpNeighbourAsk, icmpNeighbour:
		return g.checkND(src, kind, upper)
	case icmpRouterAsk, icmpMLDReport, icmpMLDDone, icmpMLDv2Report:
		if src.IsUnspecified() {
			return Accepted
		}
		if kind == icmpRouterAsk && g.shares(src) { // it may tell its MAC
			return RefusedND
		}
	}
	return g.checkSource(src)
}

func (g *Guard) checkSource(src netip.Addr) Refusal {
	if g.Router || !g.Bound || !src.IsUnspecified() && (g.hasAddress(src) || g.shares(src)) {
		return Accepted
	}
	return RefusedSource
}

// checkND takes a neighbour solicitation or advertisement.
func (g *Guard) checkND(src netip.Addr, kind uint8, p []byte) Refusal {
	target, own, ok := neighbour(kind, p)
	if !ok || own != (MAC{}) && !g.hasMAC(own) {
		return RefusedND
	}
	unspecified := src.IsUnspecified() && kind == icmpNeighbourAsk
	tells := unspecified || kind == icmpNeighbour
	if g.shares(src) || tells && g.shares(target) {
		return RefusedND
	}
	if !unspecified {
		if r := g.checkSource(src); r != Accepted {
			return r
		}
	}
	if tells && !g.hasAddress(target) {
		return RefusedND
	}
	return Accepted
}

// neighbour reads a neighbour solicitation's or advertisement's target and the link-layer address that it tells of its sender, zero if none.
func neighbour(kind uint8, p []byte) (target netip.Addr, own MAC, ok bool) {
	if p[1] != 0 || len(p) < 24 {
		return target, own, false
	}
	target = netip.AddrFrom16([16]byte(p[8:24]))
	var told [2]MAC // source, target
	n := 0
	for p = p[24:]; len(p) >= 8; n++ {
		length := int(p[1]) * 8
		if length == 0 || length > len(p) {
			break // nobody reads on (RFC 4861, 4.6)
		}
		if n == maxNDOptions {
			return target, own, false
		}
		if i := p[0] - 1; i < 2 && length == 8 {
			if told[i] != (MAC{}) {
				return target, own, false // twice
			}
			told[i] = MAC(p[2:8])
		}
		p = p[length:]
	}
	return target, told[kind-icmpNeighbourAsk], !target.IsUnspecified()
}

// upperLayer passes the extension headers of an IPv6 packet. ok is false when they do not end within the packet or the bound.
func upperLayer(next uint8, p []byte) (proto uint8, upper []byte, later, ok bool) {
	for range maxExtensions {
		if !isExtension(next) {
			break
		}
		if len(p) < 8 {
			return 0, nil, false, false
		}
		length := int(p[1])*8 + 8
		switch next {
		case extAuth:
			length = int(p[1])*4 + 8
		case extFragment:
			length = 8
			if binary.BigEndian.Uint16(p[2:])&0xfff8 != 0 {
				return 0, nil, true, true
			}
		}
		if length > len(p) {
			return 0, nil, false, false
		}
		next, p = p[0], p[length:]
	}
	return next, p, false, !isExtension(next)
}
