package control

import (
	"fmt"
	"net/netip"
	"slices"

	"weir.dev/weir/flow"
	"weir.dev/weir/openflow"
	"weir.dev/weir/router/discovery"
	"weir.dev/weir/router/fabric"
	"weir.dev/weir/router/identity"
	"weir.dev/weir/router/rollout"
)

// Port security (flow.Guard) at the ports of Open vSwitch where stations of the fabric are: before anything else looks at a frame, it goes through
// tables of its own. What passes them comes back to table 0 with a mark in a register. Other switches cannot do that.

const (
	checkMAC, checkKind, checkLink, checkSource, checkTarget uint8 = 2, 3, 4, 5, 6 // tables

	secureRegister = 0
	securePriority = 64500 // above all but link discovery
)

// portSecurity is what is wanted at a port, and the endpoint that events about it name.
type portSecurity struct {
	flow.Guard
	endpoint string
}

// guarded is the port security of a port, with its rules.
type guarded struct {
	guard flow.Guard
	rules []*rollout.Rule
}

// secures tells whether a switch can check frames before the router's other tables.
func (l *loop) secures(d *device) bool {
	return readsFragments(d.product) && !l.o.NoDefaultForwarding && len(d.tables) > int(checkTarget)
}

// secure brings the rules of port security into the switches' targets. renewed are switches whose whole target is new.
func (l *loop) secure(renewed map[fabric.SwitchID]bool) {
	for _, d := range l.switches {
		n := l.Fleet.Nodes[d.ID]
		if n == nil {
			continue
		}
		var gone []rollout.Key
		var add []*rollout.Rule
		for port, have := range d.guarded {
			if want, still := l.guards[discovery.Seat{ID: d.ID, Port: port}]; !still || !l.secures(d) || !want.Guard.Equal(have.guard) {
				for _, r := range have.rules {
					gone = append(gone, r.Key)
				}
				delete(d.guarded, port)
			}
		}
		for at, g := range l.guards {
			if at.ID != d.ID || !l.secures(d) {
				continue
			}
			have, there := d.guarded[at.Port]
			if !there {
				have = guarded{g.Guard, guardRules(at.Port, g.Guard)}
				if d.guarded == nil {
					d.guarded = map[uint32]guarded{}
				}
				d.guarded[at.Port] = have
			}
			if !there || renewed[d.ID] {
				add = append(add, have.rules...)
			}
		}
		if len(gone)+len(add) > 0 {
			n.Want(rollout.Delta{Source: n.Source, Del: gone, Add: add})
		}
	}
}

// guardAt notes the port security of a station's port. Stations of one port share it; events name the first endpoint.
func (l *loop) guardAt(at discovery.Seat, endpoint string, g flow.Guard) {
	have, there := l.guards[at]
	if !there {
		l.guards[at] = portSecurity{g, endpoint}
		return
	}
	add := func(m flow.MAC) {
		if !slices.Contains(have.MACs, m) {
			have.MACs = append(slices.Clip(have.MACs), m)
		}
	}
	for _, m := range g.MACs {
		add(m)
	}
	for _, p := range g.Addresses {
		if !slices.Contains(have.Addresses, p) {
			have.Addresses = append(slices.Clip(have.Addresses), p)
		}
	}
	for _, a := range g.Shared {
		if !slices.Contains(have.Shared, a) {
			have.Shared = append(slices.Clip(have.Shared), a)
		}
	}
	have.Bound, have.DHCPServer, have.Router = have.Bound && g.Bound, have.DHCPServer || g.DHCPServer, have.Router || g.Router
	l.guards[at] = have
}

// ICMPv6 types (RFC 4443, 2710, 3810, 4861).
const (
	mldReport, mldDone, mldv2Report  = 131, 132, 143
	routerAsk, routerTell, redirects = 133, 134, 137
	neighbourAsk, neighbourTell      = 135, 136
)

var (
	nobody4 = netip.PrefixFrom(netip.IPv4Unspecified(), 32)
	nobody6 = netip.PrefixFrom(netip.IPv6Unspecified(), 128)
)

// guardRules are the rules of one port. What they refuse is what flow.Guard.Check refuses, and what Open vSwitch reads less far: a second tag.
func guardRules(port uint32, g flow.Guard) []*rollout.Rule {
	s := securing{port: port, g: g}
	s.entrance()
	s.kinds()
	s.links()
	s.sources()
	s.targets()
	return s.rules
}

type securing struct {
	port  uint32
	g     flow.Guard
	rules []*rollout.Rule
}

// add makes a rule; next is the table behind it, 0 for back to the router's own.
func (s *securing) add(table uint8, priority uint16, next uint8, m ...openflow.OXM) {
	do := []openflow.Instruction{openflow.GotoTable{Table: next}}
	if next == 0 {
		do = []openflow.Instruction{openflow.ApplyActions{openflow.RegLoad{Dst: openflow.Reg(secureRegister).All(), Value: 1}, openflow.Resubmit{Table: 0}}}
	}
	s.keep(table, priority, do, "port security: goes on", m)
}

func (s *securing) drop(table uint8, priority uint16, why flow.Refusal, m ...openflow.OXM) {
	s.keep(table, priority, nil, "port security: "+why.Why(), m).Refusal = why
}

func (s *securing) keep(table uint8, priority uint16, do []openflow.Instruction, note string, m openflow.Match) *rollout.Rule {
	m = append(openflow.Match{openflow.InPort(openflow.Port(s.port))}, m...)
	k := rollout.Key{Table: table, Priority: priority, Match: m.Key()}
	r := &rollout.Rule{Key: k, Identity: identity.Entry("secure", fmt.Sprint(table, priority), k.Match), Content: openflow.InstructionString(do), Match: m, Do: do, Note: note}
	s.rules = append(s.rules, r)
	return r
}

// entrance leads into the tables, and looks at the source MAC.
func (s *securing) entrance() {
	s.keep(0, securePriority, []openflow.Instruction{openflow.GotoTable{Table: checkMAC}}, "port security looks at it", openflow.Match{openflow.Uint(openflow.Reg(secureRegister), 0)})
	if len(s.g.MACs) == 0 {
		s.add(checkMAC, 1, checkKind)
		return
	}
	for _, m := range s.g.MACs {
		s.add(checkMAC, 2, checkKind, openflow.EthSrc(openflow.MAC(m)))
	}
	s.drop(checkMAC, 1, flow.RefusedMAC)
}

// source tells whether sources of IP packets are checked.
func (s *securing) source() bool { return s.g.Bound && !s.g.Router }

func (s *securing) kinds() {
	const v4, v6 = flow.EtherTypeIPv4, flow.EtherTypeIPv6
	for _, t := range []uint16{flow.EtherTypeVLAN, flow.EtherTypeQinQ} {
		s.drop(checkKind, 8, flow.RefusedUnread, openflow.Ethernet(t)...)
	}
	for _, p := range []uint8{0, 43, 51, 60} { // Open vSwitch did not find the upper layer
		s.drop(checkKind, 8, flow.RefusedUnread, openflow.Ethernet(v6, openflow.IPProto(p))...)
	}
	s.drop(checkKind, 8, flow.RefusedUnread, openflow.ICMPv6(0)...)
	if !s.g.DHCPServer {
		s.drop(checkKind, 8, flow.RefusedDHCP, openflow.UDPFrom(v4, 67)...)
		s.drop(checkKind, 8, flow.RefusedDHCP, openflow.UDPFrom(v6, 547)...)
	}
	if !s.g.Router {
		s.drop(checkKind, 8, flow.RefusedRA, openflow.ICMPv6(routerTell)...)
		s.drop(checkKind, 8, flow.RefusedRA, openflow.ICMPv6(redirects)...)
	}
	whole := openflow.Uint(openflow.FieldICMPv6Code, 0)
	for _, t := range []uint8{neighbourAsk, neighbourTell} {
		s.drop(checkKind, 8, flow.RefusedND, openflow.ICMPv6(t, whole, openflow.NDTarget(nobody6))...)
		s.add(checkKind, 7, checkLink, openflow.ICMPv6(t, whole)...)
		s.drop(checkKind, 6, flow.RefusedND, openflow.ICMPv6(t)...)
	}
	if s.source() {
		s.add(checkKind, 6, 0, openflow.UDPFrom(v4, 68, openflow.DstPort(flow.ProtoUDP, 67), openflow.IPSrc(nobody4))...)
		for _, t := range []uint8{mldReport, mldDone, mldv2Report, routerAsk} {
			s.add(checkKind, 6, 0, openflow.ICMPv6(t, openflow.IPSrc(nobody6))...)
		}
		s.add(checkKind, 4, checkSource, openflow.Ethernet(v4)...)
		s.add(checkKind, 4, checkSource, openflow.Ethernet(v6)...)
	}
	if len(s.g.MACs) > 0 || s.g.Bound || len(s.g.Shared) > 0 {
		s.add(checkKind, 4, checkLink, openflow.Ethernet(flow.EtherTypeARP)...)
	}
	s.add(checkKind, 0, 0)
	s.shared()
}

// shared drops what tells of addresses that several stations have.
func (s *securing) shared() {
	const arp = flow.EtherTypeARP
	for _, a := range s.g.Shared {
		p := netip.PrefixFrom(a, a.BitLen())
		if a.Is4() {
			s.drop(checkKind, 9, flow.RefusedARP, openflow.Ethernet(arp, openflow.ARPSPA(p))...)
			s.drop(checkKind, 9, flow.RefusedARP, openflow.Ethernet(arp, openflow.ARPSPA(nobody4), openflow.ARPTPA(p))...)
			continue
		}
		for _, t := range []uint8{routerAsk, neighbourAsk, neighbourTell} {
			s.drop(checkKind, 9, flow.RefusedND, openflow.ICMPv6(t, openflow.IPSrc(p))...)
		}
		s.drop(checkKind, 9, flow.RefusedND, openflow.ICMPv6(neighbourAsk, openflow.IPSrc(nobody6), openflow.NDTarget(p))...)
		s.drop(checkKind, 9, flow.RefusedND, openflow.ICMPv6(neighbourTell, openflow.NDTarget(p))...)
	}
}

// links checks the MACs that ARP and neighbour discovery tell.
func (s *securing) links() {
	for _, m := range s.g.MACs {
		s.add(checkLink, 3, checkSource, openflow.Ethernet(flow.EtherTypeARP, openflow.ARPSHA(openflow.MAC(m)))...)
		s.add(checkLink, 3, checkSource, openflow.ICMPv6(neighbourAsk, openflow.NDSLL(openflow.MAC(m)))...)
		s.add(checkLink, 3, checkSource, openflow.ICMPv6(neighbourTell, openflow.NDTLL(openflow.MAC(m)))...)
	}
	s.add(checkLink, 2, checkSource, openflow.ICMPv6(neighbourAsk, openflow.NDSLL(openflow.MAC{}))...)
	s.add(checkLink, 2, checkSource, openflow.ICMPv6(neighbourTell, openflow.NDTLL(openflow.MAC{}))...)
	if len(s.g.MACs) > 0 {
		s.drop(checkLink, 1, flow.RefusedARP, openflow.Ethernet(flow.EtherTypeARP)...)
		s.drop(checkLink, 1, flow.RefusedND, openflow.Ethernet(flow.EtherTypeIPv6)...)
	}
	s.add(checkLink, 0, checkSource)
}

// sources checks the addresses that packets come from and ARP tells.
func (s *securing) sources() {
	const arp, v4, v6 = flow.EtherTypeARP, flow.EtherTypeIPv4, flow.EtherTypeIPv6
	s.add(checkSource, 6, checkTarget, openflow.ICMPv6(neighbourAsk, openflow.IPSrc(nobody6))...)
	for _, a := range s.g.Addresses {
		if a.Addr().Is4() {
			s.add(checkSource, 4, 0, openflow.Ethernet(arp, openflow.ARPSPA(nobody4), openflow.ARPTPA(a))...)
			s.add(checkSource, 2, 0, openflow.Ethernet(arp, openflow.ARPSPA(a))...)
			s.add(checkSource, 2, 0, openflow.Ethernet(v4, openflow.IPSrc(a))...)
			continue
		}
		s.add(checkSource, 2, checkTarget, openflow.Ethernet(v6, openflow.IPSrc(a))...)
	}
	for _, a := range s.g.Shared {
		if p := netip.PrefixFrom(a, a.BitLen()); a.Is4() {
			s.add(checkSource, 2, 0, openflow.Ethernet(v4, openflow.IPSrc(p))...)
		} else {
			s.add(checkSource, 2, checkTarget, openflow.Ethernet(v6, openflow.IPSrc(p))...)
		}
	}
	if s.g.Bound {
		s.drop(checkSource, 3, flow.RefusedARP, openflow.Ethernet(arp, openflow.ARPSPA(nobody4))...)
		s.drop(checkSource, 1, flow.RefusedARP, openflow.Ethernet(arp)...)
	}
	if s.source() {
		s.drop(checkSource, 5, flow.RefusedSource, openflow.Ethernet(v6, openflow.IPSrc(nobody6))...)
		s.drop(checkSource, 1, flow.RefusedSource, openflow.Ethernet(v4)...)
		s.drop(checkSource, 1, flow.RefusedSource, openflow.Ethernet(v6)...)
	}
	s.add(checkSource, 0, checkTarget)
}

// targets checks the addresses that neighbour discovery tells.
func (s *securing) targets() {
	for _, a := range s.g.Addresses {
		if a.Addr().Is6() {
			s.add(checkTarget, 2, 0, openflow.ICMPv6(neighbourAsk, openflow.IPSrc(nobody6), openflow.NDTarget(a))...)
			s.add(checkTarget, 2, 0, openflow.ICMPv6(neighbourTell, openflow.NDTarget(a))...)
		}
	}
	if s.g.Bound {
		s.drop(checkTarget, 1, flow.RefusedND, openflow.ICMPv6(neighbourAsk, openflow.IPSrc(nobody6))...)
		s.drop(checkTarget, 1, flow.RefusedND, openflow.ICMPv6(neighbourTell)...)
	}
	s.add(checkTarget, 0, 0)
}
