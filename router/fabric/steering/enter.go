package steering

import (
	"fmt"
	"slices"

	"weir.dev/weir/api"
	"weir.dev/weir/flow"
	"weir.dev/weir/router/fabric"
	"weir.dev/weir/router/fabric/forwarding"
	"weir.dev/weir/router/fabric/switches"
	"weir.dev/weir/router/identity"
	"weir.dev/weir/router/policy"
)

// enter makes what catches frames and takes them to the first visit.
func (p *planner) enter(s *stream, steps []step) error {
	b, w := p.b, p.c.w
	host := b.visits[0].host
	switch s.kind {
	case fromHost, toHost:
		if s.Node == host {
			for _, st := range steps {
				p.catchAtHost(s, st)
			}
			return nil
		}
		l, err := p.leg(0, []int{s.Node}, host, p.endOf(0))
		if err != nil {
			return err
		}
		p.arrive(l, host, steps, 0)
		p.catchAtHost(s, p.onto(l, w.Graph.Toward[host]))
		return nil
	}
	from := []int{s.Node}
	if s.kind == fromEdges {
		if from = p.edged(); len(from) == 0 {
			return nil
		}
	}
	l, err := p.leg(0, from, host, p.endOf(0))
	if err != nil {
		return err
	}
	p.arrive(l, host, steps, 0)
	if b.alone = s.kind == toEdge && p.c.alone(b); b.alone {
		p.catchOnTheWay(s, l)
	}
	for _, node := range from {
		p.catchAtSwitch(s, node, host, l)
	}
	return p.err
}

// catchOnTheWay saves frames for a destination the way to its switch and back, where they meet the way to the chain before.
func (p *planner) catchOnTheWay(s *stream, l plannedLeg) {
	g := p.c.w.Graph
	for i, a := range l.arcs {
		if i > 0 {
			p.catch(s, g.Arcs[a].From, g.Arcs[a].Out.Number, l.tag, i == len(l.arcs)-1, min(i, fabric.Catching))
		}
	}
}

// edged are the OpenFlow switches with ports for stations.
func (p *planner) edged() []int {
	var all []int
	for i, e := range p.c.w.Graph.Edges {
		if len(e) > 0 {
			all = append(all, i)
		}
	}
	return all
}

// nowhere is the host of frames that are dropped.
const nowhere = -1

func (p *planner) catchAtSwitch(s *stream, node, host int, l plannedLeg) {
	g := p.c.w.Graph
	var out flow.Port // 0: no way from here, so that frames are dropped rather than let past
	if host != nowhere {
		if arcs, ok := g.Path(node, host); ok {
			out = g.Arcs[arcs[0]].Out.Number
		}
	}
	p.catch(s, node, out, l.tag, true, 0)
	if p.b.toDest && p.b.policy.Exhaustive() {
		p.c.Nodes[node].Hook(s.Port.Number, switches.Hook{Claim: p.b.claim(), Out: out, Tag: l.tag})
		p.b.made.hooks = append(p.b.made.hooks, hookRef{node, s.Port.Number})
	}
}

// catch makes the entries that catch frames at one OpenFlow switch; out 0 drops. turn: frames for a destination may come in where they go out.
// hop: how many others that catch them they have met before.
func (p *planner) catch(s *stream, node int, out flow.Port, tag uint16, turn bool, hop int) {
	b, n, g := p.b, p.c.Nodes[node], p.c.w.Graph
	p.c.tmp.ports = append(p.c.tmp.ports[:0], s.Port.Number)
	e := fabric.Entry{Priority: switches.PrioSource + p.c.level(b.policy) + b.first(), Policy: b.policy.Name, Hop: uint8(hop)}
	switch {
	case b.toDest:
		e.Table, e.Priority = n.Second(), switches.PrioDest+p.c.level(b.policy)
		if p.c.tmp.ports = append(p.c.tmp.ports[:0], 0); out != 0 && turn {
			p.c.tmp.ports = append(p.c.tmp.ports, out)
		}
	case s.kind == fromEdges:
		p.c.tmp.ports = append(p.c.tmp.ports[:0], g.Edges[node]...)
	}
	ports := p.c.tmp.ports
	switch {
	case b.toDest:
		p.refuse(node, e.Table, switches.PrioDest, ports[:1], e.Hop)
	default:
		p.refuse(node, e.Table, switches.PrioSource, ports, e.Hop)
	}
	if !b.steers() && !b.toDest && n.Second() == 0 {
		p.err = fmt.Errorf("switch %s has one table only: copies of what its stations send need two", g.Name(node))
		return
	}
	if !b.steers() && out == 0 {
		return // nothing can be copied here
	}
	if out != 0 && b.steers() {
		e.Outs = g.Outs(out)
		if tag != 0 {
			e.Outs = []fabric.Out{{Port: out, Push: tag}}
		}
	}
	for _, port := range ports {
		is := n.Catch.Port(port).With(b.policy.Name).With(b.Way.String())
		this := e
		if b.toDest && port != 0 {
			this.Priority++
		}
		if out != 0 && out == port || !b.steers() {
			this.Outs = nil
			if out != 0 {
				this.Outs = []fabric.Out{{Port: forwarding.Back(out, port), Push: tag}}
			}
		}
		if !b.steers() {
			if b.toDest {
				this.Outs = append(this.Outs, fabric.Out{Port: s.Port.Number})
			} else {
				this.Goto = n.Second()
			}
		}
		for k := range b.matches {
			m := &b.matches[k]
			this.Match, this.Note, this.Cookie = m.Match, b.note(m, verb(b, out)), is.With(m.key).Entry()
			this.Match.InPort = port
			p.keep(s, node, &this, ports)
		}
	}
}

func verb(b *bundle, out flow.Port) string {
	switch {
	case out == 0:
		return "is dropped"
	case !b.steers():
		return "is copied to chain " + b.policy.chain.Name
	case b.Way == policy.Reverse:
		return "returns through chain " + b.policy.chain.Name
	}
	return "enters chain " + b.policy.chain.Name
}

// catchesAt tells whether a copying policy has the same entry for a port of its own, too.
func (c *Compiler) catchesAt(node int, r caught, port flow.Port) bool {
	own := r.entry.Match
	own.InPort = port
	return slices.ContainsFunc(c.catches[node], func(o caught) bool { return o.b == r.b && o.entry.Match == own })
}

// keep adds a catching entry, one of several for different ports, and those for frames of a copying policy as well.
func (p *planner) keep(s *stream, node int, e *fabric.Entry, ports []flow.Port) {
	c := p.c
	p.entry(node, e)
	if !p.b.steers() {
		c.catches[node] = append(c.catches[node], caught{b: p.b, s: s, entry: *e})
		p.b.made.catches = append(p.b.made.catches, node)
		return
	}
	for _, r := range c.catches[node] {
		if r.entry.Table != e.Table || r.b.toDest != p.b.toDest {
			continue
		}
		m, ok := flow.Intersect(r.entry.Match, e.Match)
		if !ok || e.Match.InPort != m.InPort && slices.Contains(ports, m.InPort) || r.entry.Match.InPort != m.InPort && c.catchesAt(node, r, m.InPort) {
			continue // that of the port itself does
		}
		if p.b.yields(s, &m) || r.b.yields(r.s, &m) {
			continue // a higher entry takes the same frames: two of one match and priority would be left else
		}
		both := *e
		both.Match = m
		base := uint16(switches.PrioSource)
		if p.b.toDest {
			base = switches.PrioDest
		}
		both.Priority += r.entry.Priority - base
		both.Cookie = identity.Entry("both", fmt.Sprint(e.Cookie), fmt.Sprint(r.entry.Cookie))
		both.Outs = slices.Clone(e.Outs)
		both.Outs = append(both.Outs, r.entry.Outs[0])
		if m.InPort != 0 && r.entry.Outs[0].Port == m.InPort {
			both.Outs[len(both.Outs)-1].Port = fabric.BackOut
		}
		both.Note = e.Note + "; " + r.entry.Note
		p.entry(node, &both)
	}
}

// catchAtHost makes the rules that catch frames at a host's endpoint.
func (p *planner) catchAtHost(s *stream, st step) {
	b := p.b
	at := p.endpointPort(s)
	r := api.HostRule{Stage: flow.Ingress.String(), Priority: switches.PrioSource + p.c.level(b.policy) + b.first(), Action: st.action, Policy: b.policy.Name, Entry: b.Way.String()}
	if b.toDest {
		r.Stage = flow.Egress.String()
	}
	if !b.steers() {
		if r.Action.Op == flow.Output.String() {
			r.Action.Clones = append(slices.Clone(r.Action.Clones), api.HostClone{Port: r.Action.Port, Push: r.Action.Push})
		}
		r.Action.Op, r.Action.Port, r.Action.Push = flow.Normal.String(), "", 0
	}
	for k := range b.matches {
		m := &b.matches[k]
		match, key, ok := m.Match, m.key, true
		if r.Match = m.host; st.when != nil {
			if match, ok = st.when(match); ok {
				key, r.Match = matchKey(&match), p.c.w.hostMatch(&match)
			}
		}
		if !ok {
			continue
		}
		if b.toDest {
			r.Match.OutPort = at
		} else {
			r.Match.InPort = at
		}
		id := identity.Of("catch", b.policy.Name, b.Way.String(), r.Stage, at, key, st.key)
		r.Cookie, r.Note = cookieText(id), "policy "+b.policy.Name+": "+m.term+" -> "+st.what
		p.keepRule(s, id, r, match)
	}
	if r.Match = (api.HostMatch{InPort: at}); b.toDest {
		r.Match = api.HostMatch{OutPort: at}
	}
	p.refuseAtHost(s.Node, &r)
}

func (p *planner) keepRule(s *stream, id uint64, r api.HostRule, m flow.Match) {
	c := p.c
	p.rule(s.Node, id, &r)
	if !p.b.steers() {
		c.catches[s.Node] = append(c.catches[s.Node], caught{b: p.b, s: s, rule: r, match: m})
		p.b.made.catches = append(p.b.made.catches, s.Node)
		return
	}
	for _, o := range c.catches[s.Node] {
		if o.rule.Stage != r.Stage || o.rule.Match.InPort != r.Match.InPort || o.rule.Match.OutPort != r.Match.OutPort {
			continue
		}
		x, ok := flow.Intersect(m, o.match)
		if !ok || p.b.yields(s, &x) || o.b.yields(o.s, &x) {
			continue
		}
		both := r
		both.Match = p.c.w.hostMatch(&x)
		both.Match.InPort, both.Match.OutPort = r.Match.InPort, r.Match.OutPort
		both.Priority += o.rule.Priority - switches.PrioSource
		id := identity.Of("both", r.Cookie, o.rule.Cookie)
		both.Action.Clones = append(slices.Clone(r.Action.Clones), o.rule.Action.Clones...)
		if len(both.Action.Clones) > flow.MaxClones {
			p.err = fmt.Errorf("with the copies for policy %s a frame would be copied more than %d times at %s", o.b.policy.Name, flow.MaxClones, r.Match.InPort+r.Match.OutPort)
			return
		}
		both.Note = r.Note + "; " + o.rule.Note
		p.rule(s.Node, id, &both)
	}
}

// drop catches frames that must not go past a chain that cannot take them.
func (p *planner) drop() {
	for i := range p.b.streams {
		s := &p.b.streams[i]
		switch s.kind {
		case fromHost, toHost:
			p.catchAtHost(s, step{action: api.HostAction{Op: flow.Drop.String()}, what: "dropped"})
		case fromEdges:
			for _, node := range p.edged() {
				p.catch(s, node, 0, 0, false, 0)
			}
		default:
			p.catchAtSwitch(s, s.Node, nowhere, plannedLeg{})
		}
	}
}
