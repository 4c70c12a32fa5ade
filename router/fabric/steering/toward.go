package steering

import (
	"slices"

	"weir.dev/weir/api"
	"weir.dev/weir/flow"
	"weir.dev/weir/router/fabric"
	"weir.dev/weir/router/fabric/forwarding"
	"weir.dev/weir/router/fabric/graph"
	"weir.dev/weir/router/fabric/switches"
)

// Frames for a known destination can be caught at each switch between it and the chain's host, whichever they meet first, and need no tag
// there as long as nothing else may look like them: whatever comes from the host's side has been through the chain, all else has not.
// The entries are then those of the other direction with their ports swapped.

// crossings is what must be known of other bundles to tell whether that holds.
type crossings struct {
	by     [][]*bundle                    // arc: bundles caught at their source whose frames may cross it on their way to and through the chain
	loose  [][]*bundle                    // host: bundles whose frames leave their chain there
	toward map[forwarding.Place][]*bundle // bundles caught at the switch of a destination, copying ones too
	wayArc [][]*bundle                    // arc: bundles that could do without a tag if nobody else crossed it
	wayEnd [][]*bundle                    // host: likewise, if no one else's chain ended there
}

func newCrossings(g *graph.Graph) crossings {
	arcs, nodes := len(g.Arcs), len(g.IDs)
	return crossings{make([][]*bundle, arcs), make([][]*bundle, nodes), map[forwarding.Place][]*bundle{}, make([][]*bundle, arcs), make([][]*bundle, nodes)}
}

// note enters a bundle, or takes it out.
func (c *Compiler) note(b *bundle, in bool) {
	x := &c.crossings
	change := func(list *[]*bundle) {
		if in {
			*list = append(*list, b)
		} else {
			*list = without(*list, b)
		}
	}
	if b.toDest {
		if at := b.streams[0].Place; b.streams[0].kind == toEdge {
			list := x.toward[at]
			if change(&list); len(list) > 0 {
				x.toward[at] = list
			} else {
				delete(x.toward, at)
			}
		}
		if arcs := c.w.swappable(b); arcs != nil {
			for _, a := range arcs {
				change(&x.wayArc[a])
				change(&x.wayArc[graph.Opposite(a)])
			}
			change(&x.wayEnd[b.visits[0].host])
		}
		return
	}
	if !b.steers() {
		return
	}
	for _, a := range c.mayCross(b) {
		change(&x.by[a])
	}
	for i, l := range b.loose {
		if !slices.ContainsFunc(b.loose[:i], func(o loose) bool { return o.from == l.from }) {
			change(&x.loose[l.from])
		}
	}
}

func without(list []*bundle, b *bundle) []*bundle {
	for i, o := range list {
		if o == b {
			last := len(list) - 1
			list[i], list[last] = list[last], nil
			return list[:last]
		}
	}
	return list
}

// scratch is memory for marks on arcs and nodes that are of use within one function only.
type scratch struct {
	arcMark, nodeMark []uint32
	mark              uint32
	arcs              []int
	texts             []string
	ports             []flow.Port
	nodes             []int
	tags              []uint16
}

func newScratch(g *graph.Graph) scratch {
	return scratch{arcMark: make([]uint32, len(g.Arcs)), nodeMark: make([]uint32, len(g.IDs))}
}

// unmark forgets all marks.
func (s *scratch) unmark() {
	if s.mark++; s.mark == 0 {
		clear(s.arcMark)
		clear(s.nodeMark)
		s.mark = 1
	}
}

// first marks one and tells whether it was not marked yet.
func (s *scratch) first(marks []uint32, i int) bool {
	if marks[i] == s.mark {
		return false
	}
	marks[i] = s.mark
	return true
}

// mayCross are the arcs of all legs of a bundle but those that take frames home. It is overwritten by the next call.
func (c *Compiler) mayCross(b *bundle) []int {
	g := c.w.Graph
	c.tmp.unmark()
	c.tmp.arcs = c.tmp.arcs[:0]
	walk := func(from, to int) {
		arcs, _ := g.Path(from, to)
		for _, a := range arcs {
			if c.tmp.first(c.tmp.arcMark, a) {
				c.tmp.arcs = append(c.tmp.arcs, a)
			}
		}
	}
	for i, v := range b.visits {
		if i > 0 {
			walk(b.visits[i-1].host, v.host)
			continue
		}
		for _, s := range b.streams {
			if s.kind != fromEdges {
				walk(s.Node, v.host)
				continue
			}
			for node, edges := range g.Edges {
				if len(edges) > 0 {
					walk(node, v.host)
				}
			}
		}
	}
	return c.tmp.arcs
}

// swappable gives the arcs from the destination's switch to the chain's one host, if the bundle could do without tags for what it is itself.
// Taps alone will not do: what they send on must not change before all that catches is in force.
func (w *world) swappable(b *bundle) []int {
	if w.In.Beside || !b.toDest || b.streams[0].kind != toEdge || !b.steers() || b.policy.Exhaustive() || len(b.visits) != 1 || rewritten(b) || w.Settled(b.visits[0].host) || !b.visits[0].inline {
		return nil
	}
	arcs, _ := w.Graph.Path(b.streams[0].Node, b.visits[0].host)
	return arcs
}

// alone tells whether no other policy catches the same frames for this destination, and they come by its switches once.
func (c *Compiler) alone(b *bundle) bool {
	if c.w.Scarce() {
		return false // flooded copies come by others than those on the way
	}
	for _, o := range c.crossings.toward[b.streams[0].Place] {
		if o.policy != b.policy && !(c.ignoresChanges && o.policy.form) && overlap(o, b) {
			return false
		}
	}
	return b.steers()
}

// plainly tells whether a bundle needs no tag.
func (c *Compiler) plainly(b *bundle) bool {
	arcs := c.w.swappable(b)
	if arcs == nil || !c.alone(b) || b.policy.changing && !c.ignoresChanges {
		return false
	}
	// Bundles from the destination count, too: a hostile station sends frames to itself.
	mistaken := func(list []*bundle) bool {
		for _, o := range list {
			if o.policy != b.policy && !(c.ignoresChanges && o.policy.form) && overlap(o, b) {
				return true
			}
		}
		return false
	}
	for _, o := range c.blind {
		if o.policy != b.policy && !(c.ignoresChanges && o.policy.form) {
			return false
		}
	}
	if mistaken(c.crossings.loose[b.visits[0].host]) {
		return false
	}
	for _, a := range arcs {
		if mistaken(c.crossings.by[a]) || mistaken(c.crossings.by[graph.Opposite(a)]) {
			return false
		}
	}
	return true
}

// concerned are the bundles whose need for tags may depend on another one.
func (c *Compiler) concerned(b *bundle, all map[*bundle]bool) {
	add := func(list []*bundle) {
		for _, o := range list {
			all[o] = true
		}
	}
	switch {
	case b.toDest:
		add(c.crossings.toward[b.streams[0].Place])
	case rewritten(b):
		for _, list := range c.crossings.wayEnd {
			add(list)
		}
	default:
		for _, l := range b.loose {
			add(c.crossings.wayEnd[l.from])
		}
		for _, a := range c.mayCross(b) {
			add(c.crossings.wayArc[a])
		}
	}
}

// swapped makes the rules of a bundle that needs no tag. What comes from the host's side has been through the chain only while all else is
// caught before it gets there: so those entries are the last to come, and the first to go.
func (p *planner) swapped(s *stream) {
	b, g := p.b, p.c.w.Graph
	arcs := p.c.w.swappable(b)
	last := &g.Arcs[arcs[len(arcs)-1]]
	host := b.visits[0].host
	what := "on to endpoint/" + s.endpoint
	steps := p.visit(0, []step{{action: api.HostAction{Op: flow.Output.String(), Port: last.In.Name}, what: what}})
	for k := range steps {
		p.each(host, last.In.Name, plannedLeg{}, &steps[k])
	}
	back := s.Port.Number
	for i, a := range arcs {
		x := &g.Arcs[a]
		p.catch(s, x.From, x.Out.Number, 0, false, min(2+i, fabric.Catching))
		is := p.c.Nodes[x.From].Transit.Port(x.Out.Number).With(b.policy.Name).With(b.Way.String())
		e := fabric.Entry{Priority: switches.PrioSource + p.c.level(b.policy), Outs: g.Outs(back), Hop: 1, Policy: b.policy.Name}
		for k := range b.matches {
			m := &b.matches[k]
			e.Match, e.Note, e.Cookie = m.Match, b.note(m, what), is.With(m.key).Entry()
			e.Match.InPort = x.Out.Number
			p.entry(x.From, &e)
		}
		back = x.In.Number
	}
}
