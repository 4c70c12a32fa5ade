package suite

import (
	"weir.dev/weir/flow"
)

// hop of a chain.
type hop struct {
	fn  *Function
	tap bool
}

// policy is steering in a nutshell, compiled as package router does it for two endpoints.
type policy struct {
	mode     string // exhaustive, selective, replica
	from, to *Station
	chain    []hop
	match    flow.Match // of the direction from -> to: MACs, VLAN, type, addresses, protocol, ports
	priority uint16
	cookie   uint64 // first one; counts up
}

var modes = []string{"exhaustive", "selective", "replica"}

func (p policy) rules() []flow.Rule {
	var rules []flow.Rule
	add := func(stage flow.Stage, m flow.Match, a flow.Action) {
		rules = append(rules, flow.Rule{Cookie: p.cookie, Priority: p.priority, Stage: stage, Match: m, Action: a})
		p.cookie++
	}
	if p.priority == 0 {
		p.priority = 100
	}
	forward, reverse := p.match, swap(p.match)
	if p.mode == "exhaustive" {
		forward, reverse = flow.Match{}, flow.Match{}
		forward.InPort, reverse.OutPort = p.from.Port, p.from.Port
		p.way(add, flow.Ingress, forward, false, flow.Action{Op: flow.Resume, Port: p.from.Port})
		p.way(add, flow.Egress, reverse, true, flow.Action{Op: flow.Output, Port: p.from.Port})
		return rules
	}
	forward.InPort, forward.OutPort = p.from.Port, p.to.Port
	reverse.InPort, reverse.OutPort = p.to.Port, p.from.Port
	endForward, endReverse := flow.Action{Op: flow.Output, Port: p.to.Port}, flow.Action{Op: flow.Output, Port: p.from.Port}
	if p.mode == "replica" {
		endForward, endReverse = flow.Action{Op: flow.Drop}, flow.Action{Op: flow.Drop}
	}
	p.way(add, flow.Egress, forward, false, endForward)
	p.way(add, flow.Egress, reverse, true, endReverse)
	return rules
}

// way of one direction: an entry rule, then one a function.
func (p policy) way(add func(flow.Stage, flow.Match, flow.Action), stage flow.Stage, entry flow.Match, reverse bool, end flow.Action) {
	chain := p.chain
	if reverse {
		chain = make([]hop, 0, len(p.chain))
		for i := len(p.chain) - 1; i >= 0; i-- {
			chain = append(chain, p.chain[i])
		}
	}
	match, first := entry, true
	var taps []flow.Port
	emit := func(a flow.Action) {
		a.Clones = append(a.Clones, flow.Clones(taps...)...)
		if first && p.mode == "replica" { // the original goes on
			if a.Op == flow.Output {
				a.Clones = append(a.Clones, flow.Clone{Port: a.Port})
			}
			a.Op, a.Port = flow.Normal, 0
		}
		add(stage, match, a)
		taps, stage, first = nil, flow.Ingress, false
	}
	for _, h := range chain {
		if h.tap {
			taps = append(taps, h.fn.Ports.Tap)
			continue
		}
		in, out := h.fn.Ports.In, h.fn.Ports.Out
		if reverse {
			in, out = out, in
		}
		emit(flow.Action{Op: flow.Output, Port: in})
		match = flow.Match{InPort: out}
	}
	emit(end)
}

func swap(m flow.Match) flow.Match {
	m.Src, m.Dst = m.Dst, m.Src
	m.SrcPorts, m.DstPorts = m.DstPorts, m.SrcPorts
	m.SrcMAC, m.DstMAC = m.DstMAC, m.SrcMAC
	m.SrcMACMask, m.DstMACMask = m.DstMACMask, m.SrcMACMask
	return m
}
