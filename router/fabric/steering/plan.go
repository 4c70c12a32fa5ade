package steering

import (
	"fmt"
	"slices"
	"strconv"

	"weir.dev/weir/api"
	"weir.dev/weir/flow"
	"weir.dev/weir/router/fabric"
	"weir.dev/weir/router/fabric/switches"
	"weir.dev/weir/router/fabric/tags"
	"weir.dev/weir/router/policy"
)

// plannedLeg is the way of frames from where they are to the next host of their chain, or to where they leave it.
type plannedLeg struct {
	arcs  []int // all arcs that may be crossed
	tag   uint16
	plain bool   // no tag, or soon none any more
	end   string // what becomes of frames at its end: legs to the same end may share a tag
}

// planner makes the entries and host rules of a bundle.
type planner struct {
	c   *Compiler
	b   *bundle
	err error
}

func (p *planner) run() error {
	b := p.b
	if len(b.visits) == 0 {
		return nil // every function is left out
	}
	if err := p.clonesFit(); err != nil {
		return err
	}
	for i := range b.streams {
		if err := p.stream(&b.streams[i]); err != nil {
			return err
		}
	}
	return p.err
}

func (p *planner) clonesFit() error {
	for i := range p.b.visits {
		v, taps := &p.b.visits[i], 0
		for k := range v.elements {
			if taps++; !v.elements[k].tap {
				taps = 0
			}
			if taps > flow.MaxClones || taps == flow.MaxClones && !p.b.steers() {
				return fmt.Errorf("chain %s: more taps at one place of host %s than the %d copies that a frame can have there", p.b.policy.chain.Name, p.c.w.Graph.Name(v.host), flow.MaxClones)
			}
		}
	}
	return nil
}

func (p *planner) stream(s *stream) error {
	b, g := p.b, p.c.w.Graph
	if b.untagged = p.c.plainly(b); b.untagged {
		p.swapped(s)
		return nil
	}
	// From the end to the beginning, since each step must know where the next one leads.
	next, err := p.exit(s)
	if err == nil && len(b.streams) > 1 && s.kind == fromHost && b.steers() {
		next, err = p.own(s, next)
	}
	if err != nil {
		return err
	}
	for i := len(b.visits) - 1; i >= 0; i-- {
		v := b.visits[i]
		enter := p.visit(i, next)
		if i == 0 {
			return p.enter(s, enter)
		}
		from := b.visits[i-1].host
		leg, err := p.leg(i, []int{from}, v.host, p.endOf(i))
		if err != nil {
			return err
		}
		p.arrive(leg, v.host, enter, i)
		next = []step{p.onto(leg, g.Toward[v.host])}
	}
	return nil
}

// own restricts steps to the frames of one endpoint, where a chain serves many that leave it by different ways.
func (p *planner) own(s *stream, steps []step) ([]step, error) {
	macs := p.c.w.In.Endpoints[s.endpoint].MACs
	if len(macs) == 0 {
		return nil, fmt.Errorf("endpoint %s: its MAC is not known: %w", s.endpoint, policy.ErrNotReady)
	}
	var all []step
	for _, m := range macs {
		for _, st := range steps {
			own, when := st, st.when
			own.when = func(x flow.Match) (flow.Match, bool) {
				if when != nil {
					var ok bool
					if x, ok = when(x); !ok {
						return x, false
					}
				}
				return flow.Intersect(x, flow.Match{SrcMAC: m, SrcMACMask: whole})
			}
			own.rank, own.key = st.rank+3, m.String()+"/"+st.key
			all = append(all, own)
		}
	}
	return all, nil
}

// endOf names what becomes of frames that reach a visit.
func (p *planner) endOf(i int) string {
	v := &p.b.visits[i]
	if v.inline || !p.b.steers() {
		return v.end
	}
	return v.end + p.b.policy.Name // what a visit of taps only does next depends on the policy, but for copies, which end with the chain
}

// onto is the step by which a host sends frames on a leg.
func (p *planner) onto(l plannedLeg, what string) step {
	return step{action: api.HostAction{Op: flow.Output.String(), Port: p.c.w.Graph.Arcs[l.arcs[0]].Out.Name, Push: l.tag}, what: what}
}

// leg finds the way to a target, and whether its frames need a tag.
func (p *planner) leg(i int, from []int, target int, end string) (plannedLeg, error) {
	b, g := p.b, p.c.w.Graph
	l := plannedLeg{end: string(g.IDs[target]) + "/" + end}
	if len(from) == 1 {
		arcs, ok := g.Path(from[0], target)
		if !ok {
			return l, fmt.Errorf("%w from %s to %s", fabric.ErrNoPath, g.Name(from[0]), g.Name(target))
		}
		l.arcs = arcs
	} else {
		p.c.tmp.unmark()
		for _, f := range from {
			arcs, _ := g.Path(f, target)
			for _, a := range arcs {
				if p.c.tmp.first(p.c.tmp.arcMark, a) {
					l.arcs = append(l.arcs, a)
				}
			}
		}
	}
	if len(l.arcs) == 0 {
		return l, fmt.Errorf("%w to %s", fabric.ErrNoPath, g.Name(target))
	}
	for _, have := range b.legs {
		if have.end == l.end && slices.Equal(have.arcs, l.arcs) {
			return have, nil
		}
	}
	if p.needsTag(i, l) {
		if l.tag = p.c.tags.Take(l.arcs, l.end); l.tag == 0 {
			return l, fmt.Errorf("%w on the way to %s: all %d are taken by other policies", fabric.ErrTags, g.Name(target), tags.ManyTags)
		}
	}
	l.plain = l.tag == 0 || b.policy.changing || p.soonPlain(i, l)
	if b.legs == nil {
		b.legs = make([]plannedLeg, 0, 4)
	}
	b.legs = append(b.legs, l)
	return l, nil
}

// crosses tells whether the last leg to cross an arc without a tag has another end.
func (b *bundle) crosses(arc int, end string) bool {
	for i := len(b.legs) - 1; i >= 0; i-- {
		if l := &b.legs[i]; l.plain && slices.Contains(l.arcs, arc) {
			return l.end != end
		}
	}
	return false
}

// needsTag: a frame on this leg cannot be told, on some arc, from one that is to go elsewhere.
func (p *planner) needsTag(i int, l plannedLeg) bool {
	b, w := p.b, p.c.w
	if w.In.Beside || b.toDest || !b.steers() || i >= b.blind || b.hides(w, l) {
		return true
	}
	for k := range b.matches {
		if m := &b.matches[k]; len(b.streams) == 1 && m.SrcMACMask != whole && !m.Src.IsValid() {
			return true
		}
	}
	for _, a := range l.arcs {
		if b.crosses(a, l.end) || w.crosses(b, a) {
			return true
		}
	}
	return p.changes(i, l) || p.c.rivals(b, func(o *bundle) bool {
		return slices.ContainsFunc(l.arcs, func(a int) bool { return w.crosses(o, a) })
	})
}

// rivals visits other bundles whose loose frames this one's entries might take for its own, until found says so. Of two policies the
// more important one takes the frames of both where they enter, so what the other one lets go cannot be taken for its own.
func (c *Compiler) rivals(b *bundle, found func(*bundle) bool) bool {
	check := func(list []*bundle, any bool) bool {
		for _, o := range list {
			if len(o.loose) > 0 && (any && o.policy != b.policy && !(c.ignoresChanges && o.policy.form) || c.matters(b, o)) && found(o) {
				return true
			}
		}
		return false
	}
	if key, one := b.near(); one {
		if check(c.near[key], false) || check(c.wild, false) {
			return true
		}
	} else {
		for _, list := range c.near {
			if check(list, false) {
				return true
			}
		}
		if check(c.wild, false) {
			return true
		}
	}
	return check(c.blind, true)
}

// arrive makes the rules of a leg up to the host where it ends.
func (p *planner) arrive(l plannedLeg, host int, steps []step, i int) {
	g := p.c.w.Graph
	p.transit(l, host, i)
	for _, a := range l.arcs {
		if g.Arcs[a].To != host {
			continue
		}
		for k := range steps {
			p.each(host, g.Arcs[a].In.Name, l, &steps[k])
		}
	}
}

// transit makes the entries of the OpenFlow switches that a leg passes.
func (p *planner) transit(l plannedLeg, target, i int) {
	b, g := p.b, p.c.w.Graph
	for _, a := range l.arcs {
		x := &g.Arcs[a]
		if x.To == target || g.Switch[x.To].Host {
			continue
		}
		on, ok := g.Path(x.To, target)
		if !ok {
			continue
		}
		e := fabric.Entry{Hop: hopNumber(i, fabric.MaxHops-len(on)), Policy: b.policy.Name, Outs: g.Outs(g.Arcs[on[0]].Out.Number)}
		if l.tag != 0 {
			e.Priority, e.Match = switches.PrioTag, flow.Match{InPort: x.In.Number, Tag: l.tag}
			e.Cookie = g.TagCookie(a, l.tag, l.end)
			e.Note = "chain " + b.policy.chain.Name + ": tag " + strconv.Itoa(int(l.tag)) + " " + g.Toward[target]
			p.entry(x.To, &e)
			continue
		}
		e.Priority = switches.PrioSource + p.c.level(b.policy) + b.first()
		is := p.c.Nodes[x.To].Transit.Port(x.In.Number).With(b.policy.Name).With(b.Way.String())
		for k := range b.matches {
			m := &b.matches[k]
			e.Match, e.Note = m.Match, b.note(m, g.Toward[target])
			e.Match.InPort = x.In.Number
			e.Cookie = is.With(m.key).Entry()
			p.entry(x.To, &e)
		}
	}
}

// hopNumber of a leg's n-th hop, from 0; behind all others is the one next to its end, however many ways lead there.
func hopNumber(leg, n int) uint8 {
	return uint8(min(255, 1+(leg+1)*fabric.MaxHops+min(max(n, 0), fabric.MaxHops-1)))
}

func (p *planner) entry(node int, e *fabric.Entry) {
	if n := fabric.Size(&e.Match); n > fabric.MaxPorts && p.err == nil {
		p.err = fmt.Errorf("its ports would take %d entries at %s, since OpenFlow 1.3 matches no ranges: at most %d; name one of the two ranges, or a simpler one",
			n, p.c.w.Graph.Name(node), fabric.MaxPorts)
	}
	made := &p.b.made.entries
	if *made == nil {
		*made = make([]ref, 0, 8)
	}
	*made = append(*made, ref{node, p.c.Nodes[node].Add(e)})
}

// share uses a rule that is there already.
func (p *planner) share(host int, id uint64) bool {
	have := p.c.Nodes[host].Share(id, p.b.policy.Name)
	if have != nil {
		p.made(host, have)
	}
	return have != nil
}

// addRule makes one that is not.
func (p *planner) addRule(host int, id uint64, r *api.HostRule) {
	if r.Cookie = cookieText(id); r.Stage == "" {
		r.Stage = flow.Ingress.String()
	}
	p.made(host, p.c.Nodes[host].AddRule(id, r, p.b.policy.Name))
}

func (p *planner) made(host int, r *switches.CountedRule) {
	made := &p.b.made.rules
	if *made == nil {
		*made = make([]ruleRef, 0, 8)
	}
	*made = append(*made, ruleRef{host, r})
}

// rule shares or makes one.
func (p *planner) rule(host int, id uint64, r *api.HostRule) {
	if !p.share(host, id) {
		p.addRule(host, id, r)
	}
}

// fits checks the tables of every switch that a policy has entries in.
func (c *Compiler) fits(p *compiled) error {
	c.tmp.unmark()
	for _, b := range p.bundles {
		for _, e := range b.made.entries {
			if !c.tmp.first(c.tmp.nodeMark, e.node) {
				continue
			}
			n := c.Nodes[e.node]
			for table := range n.Switch.Tables {
				if err := n.Room(uint8(table), c.w.In.Reserve, func() int { return len(c.FloodOf(e.node, n)) }); err != nil {
					return err
				}
			}
		}
	}
	return nil
}
