package ovs

import (
	"maps"
	"net/netip"
	"slices"

	"weir.dev/weir/flow"
	"weir.dev/weir/openflow"
)

// Port security (flow.Guard): frames of endpoints pass tableGuard and those behind it before any rule. What does not depend on a port's lists is said
// once, for all ports that ask for it by a bit of regGuard.

// Bits of regGuard.
const (
	guardMACs    = 1 << iota // MACs are checked
	guardBound               // addresses are checked
	guardSource              // sources of IP packets are checked
	guardNoDHCP              // no DHCP server
	guardNoRoute             // no router
)

func guardBits(g *flow.Guard) uint64 {
	bits := uint64(0)
	for bit, set := range map[uint64]bool{guardMACs: len(g.MACs) > 0, guardBound: g.Bound, guardSource: g.Bound && !g.Router,
		guardNoDHCP: !g.DHCPServer, guardNoRoute: !g.Router} {
		if set {
			bits |= bit
		}
	}
	return bits
}

// owned are the MACs that guards name, in order.
func (w *world) owned() []flow.MAC {
	all := map[flow.MAC]bool{}
	for _, p := range w.ports {
		if p.function == nil && p.E.Guard.On {
			for _, m := range p.E.Guard.MACs {
				all[m] = true
			}
		}
	}
	return slices.SortedFunc(maps.Keys(all), func(a, b flow.MAC) int { return slices.Compare(a[:], b[:]) })
}

// guarded: frames that enter at the endpoint are looked at.
func (w *world) guarded(p *port) bool {
	return p.E.Guard.On || w.guards && !p.E.Fabric
}

// refuse drops, and counts why at the port.
func refuse(why flow.Refusal) []openflow.Action {
	return list(load(regTo, uint64(why)), goTo(tableRefused))
}

var (
	nowhere4 = netip.PrefixFrom(netip.IPv4Unspecified(), 32)
	nowhere6 = netip.PrefixFrom(netip.IPv6Unspecified(), 128)
)

// Beginnings of matches.

func asks(bit uint64) openflow.OXM { return openflow.UintMask(openflow.Reg(regGuard), bit, bit) }

// ICMPv6 types.
const (
	mldReport, mldDone, mldv2Report = 131, 132, 143
	routerAsk, routerTell, redirect = 133, 134, 137
	neighbourAsk, neighbourTell     = 135, 136
)

// guardFixed are the entries that all guarded ports share.
func (w *world) guardFixed() []*entry {
	if !w.guards {
		return nil
	}
	var all []*entry
	add := func(table uint8, priority uint16, m openflow.Match, a []openflow.Action) {
		all = append(all, &entry{table: table, priority: priority, match: m, actions: a})
	}
	pass, link, source, target := list(goTo(tableIngress)), list(goTo(tableGuardLink)), list(goTo(tableGuardSource)), list(goTo(tableGuardTarget))
	ip4, ip6, arp := flow.EtherTypeIPv4, flow.EtherTypeIPv6, flow.EtherTypeARP
	// MACs of guards enter at their own ports only, and from the fabric not into ordinary switching.
	for _, m := range w.owned() {
		add(tableGuard, 2, openflow.Match{openflow.EthSrc(openflow.MAC(m))}, refuse(flow.RefusedMAC))
		add(tableLearn, 3, openflow.Match{openflow.EthSrc(openflow.MAC(m)), openflow.UintMask(openflow.Reg(regFlag), flagFabric, flagFabric)}, refuse(flow.RefusedMAC))
	}
	// What may not enter at all, and what kind the rest is of: the higher priority says more of the frame.
	kind := func(priority uint16, m openflow.Match, a []openflow.Action) { add(tableGuardKind, priority, m, a) }
	for _, tag := range []uint16{flow.EtherTypeVLAN, flow.EtherTypeQinQ} { // a third one
		kind(8, openflow.Ethernet(tag), refuse(flow.RefusedUnread))
	}
	kind(8, openflow.Ethernet(ip6, openflow.IPProto(0)), refuse(flow.RefusedUnread)) // Open vSwitch did not find the upper layer
	kind(8, openflow.ICMPv6(0), refuse(flow.RefusedUnread))
	kind(8, openflow.UDPFrom(ip4, 67, asks(guardNoDHCP)), refuse(flow.RefusedDHCP))
	kind(8, openflow.UDPFrom(ip6, 547, asks(guardNoDHCP)), refuse(flow.RefusedDHCP))
	kind(8, openflow.ICMPv6(routerTell, asks(guardNoRoute)), refuse(flow.RefusedRA))
	kind(8, openflow.ICMPv6(redirect, asks(guardNoRoute)), refuse(flow.RefusedRA))
	for _, t := range []uint8{neighbourAsk, neighbourTell} {
		whole := openflow.Uint(openflow.FieldICMPv6Code, 0)
		kind(8, openflow.ICMPv6(t, whole, openflow.NDTarget(nowhere6)), refuse(flow.RefusedND))
		kind(7, openflow.ICMPv6(t, whole), link)
		kind(6, openflow.ICMPv6(t), refuse(flow.RefusedND))
	}
	kind(6, openflow.UDPFrom(ip4, 68, openflow.Uint(openflow.FieldUDPDst, 67), openflow.IPSrc(nowhere4)), pass)
	for _, t := range []uint8{mldReport, mldDone, mldv2Report, routerAsk} {
		kind(6, openflow.ICMPv6(t, openflow.IPSrc(nowhere6)), pass)
	}
	kind(5, openflow.Ethernet(arp, openflow.UintMask(openflow.Reg(regGuard), 0, guardMACs|guardBound)), pass)
	kind(4, openflow.Ethernet(arp), link)
	kind(4, openflow.Ethernet(ip4, asks(guardSource)), source)
	kind(4, openflow.Ethernet(ip6, asks(guardSource)), source)
	kind(0, nil, pass)

	// MACs that ARP and neighbour discovery tell: ports have entries for theirs, at 3.
	add(tableGuardLink, 2, openflow.ICMPv6(neighbourAsk, openflow.NDSLL(openflow.MAC{})), source)
	add(tableGuardLink, 2, openflow.ICMPv6(neighbourTell, openflow.NDTLL(openflow.MAC{})), source)
	add(tableGuardLink, 1, openflow.Ethernet(arp, asks(guardMACs)), refuse(flow.RefusedARP))
	add(tableGuardLink, 1, openflow.Ethernet(ip6, asks(guardMACs)), refuse(flow.RefusedND))
	add(tableGuardLink, 0, nil, source)

	// Addresses that packets come from: ports have entries for theirs, at 2 and 4.
	add(tableGuardSource, 6, openflow.ICMPv6(neighbourAsk, openflow.IPSrc(nowhere6)), target)
	add(tableGuardSource, 5, openflow.Ethernet(ip6, asks(guardSource), openflow.IPSrc(nowhere6)), refuse(flow.RefusedSource))
	add(tableGuardSource, 3, openflow.Ethernet(arp, asks(guardBound), openflow.ARPSPA(nowhere4)), refuse(flow.RefusedARP))
	add(tableGuardSource, 1, openflow.Ethernet(arp, asks(guardBound)), refuse(flow.RefusedARP))
	add(tableGuardSource, 1, openflow.Ethernet(ip4, asks(guardSource)), refuse(flow.RefusedSource))
	add(tableGuardSource, 1, openflow.Ethernet(ip6, asks(guardSource)), refuse(flow.RefusedSource))
	add(tableGuardSource, 0, nil, target)

	// Addresses that neighbour discovery tells, at 2.
	add(tableGuardTarget, 1, openflow.ICMPv6(neighbourAsk, asks(guardBound), openflow.IPSrc(nowhere6)), refuse(flow.RefusedND))
	add(tableGuardTarget, 1, openflow.ICMPv6(neighbourTell, asks(guardBound)), refuse(flow.RefusedND))
	add(tableGuardTarget, 0, nil, pass)
	return all
}

// guard is an endpoint's own entries.
func (w *world) guard(p *port) []*entry {
	n := uint64(p.Number)
	g := &p.E.Guard
	at := func(m openflow.Match) openflow.Match { return append(openflow.Match{reg(regIn, n)}, m...) }
	var all []*entry
	add := func(table uint8, priority uint16, m openflow.Match, a []openflow.Action) {
		all = append(all, &entry{table: table, priority: priority, match: at(m), actions: a})
	}
	// Counters of what is refused. A port without a guard refuses others' MACs.
	if w.guards {
		for why := flow.RefusedMAC; why < flow.Refusals; why++ {
			if why == flow.RefusedMAC || g.On {
				all = append(all, &entry{table: tableRefused, priority: 1, match: openflow.Match{reg(regIn, n), reg(regTo, uint64(why))},
					owners: []owner{{ownDropped, n}, {ownRefused + ownerKind(why), n}}})
			}
		}
	}
	if !w.guarded(p) {
		return all
	}
	if !g.On {
		add(tableGuard, 1, nil, list(goTo(tableIngress)))
		return all
	}
	// What the guard asks for goes into a register, for the entries that all ports share.
	next := list(load(regGuard, guardBits(g)), goTo(tableGuardKind))
	if len(g.MACs) > 0 {
		add(tableGuard, 1, nil, refuse(flow.RefusedMAC))
	} else {
		add(tableGuard, 1, nil, next)
	}
	// Packets come from addresses that several stations have, but nobody tells of them.
	nobody := func(why flow.Refusal, m openflow.Match) { add(tableGuardKind, 9, m, refuse(why)) }
	for _, a := range g.Shared {
		p := netip.PrefixFrom(a, a.BitLen())
		if a.Is4() {
			nobody(flow.RefusedARP, openflow.Ethernet(flow.EtherTypeARP, openflow.ARPSPA(p)))
			nobody(flow.RefusedARP, openflow.Ethernet(flow.EtherTypeARP, openflow.ARPSPA(nowhere4), openflow.ARPTPA(p)))
			add(tableGuardSource, 2, openflow.Ethernet(flow.EtherTypeIPv4, openflow.IPSrc(p)), list(goTo(tableIngress)))
			continue
		}
		for _, t := range []uint8{routerAsk, neighbourAsk, neighbourTell} {
			nobody(flow.RefusedND, openflow.ICMPv6(t, openflow.IPSrc(p)))
		}
		nobody(flow.RefusedND, openflow.ICMPv6(neighbourAsk, openflow.IPSrc(nowhere6), openflow.NDTarget(p)))
		nobody(flow.RefusedND, openflow.ICMPv6(neighbourTell, openflow.NDTarget(p)))
		add(tableGuardSource, 2, openflow.Ethernet(flow.EtherTypeIPv6, openflow.IPSrc(p)), list(goTo(tableGuardTarget)))
	}
	// What its lists allow.
	source, target, pass := list(goTo(tableGuardSource)), list(goTo(tableGuardTarget)), list(goTo(tableIngress))
	for _, m := range g.MACs {
		add(tableGuard, 3, openflow.Match{openflow.EthSrc(openflow.MAC(m))}, next)
		add(tableGuardLink, 3, openflow.Ethernet(flow.EtherTypeARP, openflow.ARPSHA(openflow.MAC(m))), source)
		add(tableGuardLink, 3, openflow.ICMPv6(neighbourAsk, openflow.NDSLL(openflow.MAC(m))), source)
		add(tableGuardLink, 3, openflow.ICMPv6(neighbourTell, openflow.NDTLL(openflow.MAC(m))), source)
	}
	for _, a := range g.Addresses {
		if a.Addr().Is4() {
			add(tableGuardSource, 4, openflow.Ethernet(flow.EtherTypeARP, openflow.ARPSPA(nowhere4), openflow.ARPTPA(a)), target)
			add(tableGuardSource, 2, openflow.Ethernet(flow.EtherTypeARP, openflow.ARPSPA(a)), target)
			add(tableGuardSource, 2, openflow.Ethernet(flow.EtherTypeIPv4, openflow.IPSrc(a)), pass)
			continue
		}
		add(tableGuardSource, 2, openflow.Ethernet(flow.EtherTypeIPv6, openflow.IPSrc(a)), target)
		add(tableGuardTarget, 2, openflow.ICMPv6(neighbourAsk, openflow.IPSrc(nowhere6), openflow.NDTarget(a)), pass)
		add(tableGuardTarget, 2, openflow.ICMPv6(neighbourTell, openflow.NDTarget(a)), pass)
	}
	return all
}
