package steering

import (
	"slices"

	"weir.dev/weir/api"
	"weir.dev/weir/flow"
	"weir.dev/weir/router/fabric"
	"weir.dev/weir/router/fabric/graph"
	"weir.dev/weir/router/fabric/switches"
	"weir.dev/weir/router/identity"
)

// Frames that switches cannot read to the end (flow.Unread) may be what a policy asks for, and whoever receives them may read on. A policy
// that crosses hosts drops them where it catches frames, unless all of its chain's functions say bypass: the switches and hosts on a chain's
// way read differently far, so that such a frame could leave its way between two of them.

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
			for _, mac := range w.In.Endpoints[b.streams[0].endpoint].MACs {
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
	is := p.c.Nodes[node].Catch.With("unread")
	for _, port := range ports {
		for k := range p.b.mays {
			m := &p.b.mays[k]
			e := fabric.Entry{Table: table, Priority: p.mayPriority(base), Match: m.Match, Hop: hop, Policy: p.b.policy.Name, Note: "what is " + m.Unread.String() + " is dropped: a policy may be for it"}
			e.Cookie = is.Port(port).Port(flow.Port(e.Priority)).With(m.key).Entry()
			e.Match.InPort = port
			p.entry(node, &e)
		}
		p.refuseTiny(node, table, base, port, hop)
	}
}

// refuseTiny drops first fragments whose ports cannot be read and may be what the policy asks for. Nobody sends such (RFC 1858).
func (p *planner) refuseTiny(node int, table uint8, base uint16, port flow.Port, hop uint8) {
	if !p.c.w.Graph.Switch[node].Fragments || !p.b.steers() || !p.b.policy.chain.Guarded {
		return
	}
	is := p.c.Nodes[node].Catch.With("tiny")
	for k := range p.b.matches {
		m := p.b.matches[k].Match
		if m.SrcPorts.Any() && m.DstPorts.Any() || m.Proto == flow.ProtoUDP { // the header of UDP fits into any fragment
			continue
		}
		m.SrcPorts, m.DstPorts = flow.PortRange{}, flow.PortRange{}
		e := fabric.Entry{Table: table, Priority: p.mayPriority(base), Match: m, Tiny: true, Hop: hop, Policy: p.b.policy.Name, Note: "a first fragment that does not hold its ports is dropped: a policy may be for it"}
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
			Stage: api.UnreadStage(catching.Stage), Priority: p.mayPriority(switches.PrioSource), Match: m.host, Action: api.HostAction{Op: flow.Drop.String()},
			Policy: p.b.policy.Name, Note: "what is " + m.Unread.String() + " is dropped: a policy may be for it",
		}
		r.Match.InPort, r.Match.OutPort = catching.Match.InPort, catching.Match.OutPort
		p.rule(host, identity.Of("unread", r.Stage, r.Match.InPort, r.Match.OutPort, graph.Decimal(flow.Port(r.Priority)), m.key), &r)
	}
}

// hides tells whether a host reads frames of this bundle further than OpenFlow switches on a leg can: these would take them for others'.
// With a tag they look at nothing else.
func (b *bundle) hides(w *world, l plannedLeg) bool {
	if len(b.mays) == 0 || !slices.ContainsFunc(b.streams, func(s stream) bool { return s.kind == fromHost }) {
		return false
	}
	return slices.ContainsFunc(l.arcs, func(a int) bool { return !w.Graph.Switch[w.Graph.Arcs[a].To].Host })
}
