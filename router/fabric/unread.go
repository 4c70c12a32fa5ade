package fabric

import (
	"slices"

	"weir.dev/weir/api"
	"weir.dev/weir/flow"
	"weir.dev/weir/router/identity"
)

// Frames that switches cannot read to the end (flow.Unread) may be what a policy asks for, and whoever receives them may read on. A policy
// that crosses hosts drops them where it catches frames, unless all of its chain's functions say bypass: the switches and hosts on a chain's
// way read differently far, so that such a frame could leave its way between two of them.

// Header is what an OpenFlow switch sees of a frame that it has not read to the end.
type Header struct {
	EtherType uint16
	Proto     int  // of IP; -1: none
	NoAddress bool // the header of IP is broken: its fields are zero
}

// Next headers of IPv6 that are no upper layer's. Open vSwitch says 44 of fragments other than the first, 0 or 59 where an extension
// header is cut short. Others stop at the first extension header.
var unreadNext = [...]int{0, 43, 44, 51, 59, 60}

// Headers are all that a switch may see of the frames which a match with Unread selects. Each becomes an entry. Open vSwitch passes one
// tag, others two or all, so any tag behind the first may be the last that is seen.
func Headers(m *flow.Match) []Header {
	if m.Unread == flow.UnreadUpper {
		all := make([]Header, 0, len(unreadNext))
		for _, n := range unreadNext {
			all = append(all, Header{EtherType: flow.EtherTypeIPv6, Proto: n})
		}
		return all
	}
	all := []Header{
		{EtherType: flow.EtherTypeVLAN, Proto: -1}, {EtherType: flow.EtherTypeQinQ, Proto: -1},
		{EtherType: flow.EtherTypeIPv4, NoAddress: true}, {EtherType: flow.EtherTypeIPv6, NoAddress: true},
	}
	return slices.DeleteFunc(all, func(h Header) bool { return m.EtherType != 0 && m.EtherType != h.EtherType })
}

// readMays finds the matches of the frames that a bundle may select. Those for one station are known by its MAC.
func (b *bundle) readMays(w *world) {
	b.mays = b.mays[:0]
	if !b.steers() || !b.policy.chain.Guarded {
		return
	}
	for i := range b.matches {
		for _, u := range []flow.Unread{flow.UnreadNetwork, flow.UnreadUpper} {
			m, ok := b.matches[i].May(u)
			if !ok {
				continue
			}
			if s := &b.streams[0]; !b.toDest || s.kind == toHost || m.DstMACMask[0]&1 == 1 {
				b.may(w, m)
				continue
			}
			for _, mac := range w.in.Endpoints[b.streams[0].endpoint].MACs {
				if one, ok := flow.Intersect(m, flow.Match{DstMAC: mac, DstMACMask: whole}); ok {
					b.may(w, one)
				}
			}
		}
	}
}

func (b *bundle) may(w *world, m flow.Match) {
	if contains(b.mays, &m) {
		return
	}
	s := selected{Match: m}
	w.settleMatch(&s)
	b.mays = append(b.mays, s)
}

// mayPriority is above all that catches frames for policies of one priority: none of them gets for certain what another may want.
func (p *planner) mayPriority(base uint16) uint16 {
	return base + uint16(p.b.policy.Priority)*p.c.scale + p.c.scale - 1
}

// refuse makes the entries that drop, where a switch catches frames, those that cannot be read. Policies of one priority share them.
func (p *planner) refuse(node int, table uint8, base uint16, ports []flow.Port, hop uint8) {
	is := p.c.nodes[node].catch.With("unread")
	for _, port := range ports {
		for k := range p.b.mays {
			m := &p.b.mays[k]
			e := Entry{Table: table, Priority: p.mayPriority(base), Match: m.Match, Hop: hop, Policy: p.b.policy.Name, Note: "what is " + m.Unread.String() + " is dropped: a policy may be for it"}
			e.Cookie = is.Port(port).Port(flow.Port(e.Priority)).With(m.key).Entry()
			e.Match.InPort = port
			p.entry(node, &e)
		}
		p.refuseTiny(node, table, base, port, hop)
	}
}

// refuseTiny drops first fragments whose ports cannot be read and may be what the policy asks for. Nobody sends such (RFC 1858).
func (p *planner) refuseTiny(node int, table uint8, base uint16, port flow.Port, hop uint8) {
	if !p.c.w.g.sw[node].Fragments || !p.b.steers() || !p.b.policy.chain.Guarded {
		return
	}
	is := p.c.nodes[node].catch.With("tiny")
	for k := range p.b.matches {
		m := p.b.matches[k].Match
		if m.SrcPorts.Any() && m.DstPorts.Any() || m.Proto == flow.ProtoUDP { // the header of UDP fits into any fragment
			continue
		}
		m.SrcPorts, m.DstPorts = flow.PortRange{}, flow.PortRange{}
		e := Entry{Table: table, Priority: p.mayPriority(base), Match: m, Tiny: true, Hop: hop, Policy: p.b.policy.Name, Note: "a first fragment that does not hold its ports is dropped: a policy may be for it"}
		e.Cookie = is.Port(port).Port(flow.Port(e.Priority)).With(matchKey(&m)).Entry()
		e.Match.InPort = port
		p.entry(node, &e)
	}
}

// refuseAtHost does the same at a host's endpoint.
func (p *planner) refuseAtHost(host int, catching *api.HostRule) {
	for k := range p.b.mays {
		m := &p.b.mays[k]
		r := api.HostRule{
			Stage: api.UnreadStage(catching.Stage), Priority: p.mayPriority(prioSource), Match: m.host, Action: api.HostAction{Op: flow.Drop.String()},
			Policy: p.b.policy.Name, Note: "what is " + m.Unread.String() + " is dropped: a policy may be for it",
		}
		r.Match.InPort, r.Match.OutPort = catching.Match.InPort, catching.Match.OutPort
		p.rule(host, identity.Of("unread", r.Stage, r.Match.InPort, r.Match.OutPort, decimal(flow.Port(r.Priority)), m.key), &r)
	}
}

// hides tells whether a host reads frames of this bundle further than OpenFlow switches on a leg can: these would take them for others'.
// With a tag they look at nothing else.
func (b *bundle) hides(w *world, l plannedLeg) bool {
	if len(b.mays) == 0 || !slices.ContainsFunc(b.streams, func(s stream) bool { return s.kind == fromHost }) {
		return false
	}
	return slices.ContainsFunc(l.arcs, func(a int) bool { return !w.g.sw[w.g.arcs[a].to].Host })
}
