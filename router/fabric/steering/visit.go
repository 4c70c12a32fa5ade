package steering

import (
	"fmt"
	"slices"
	"strconv"

	"weir.dev/weir/api"
	"weir.dev/weir/flow"
	"weir.dev/weir/router/fabric/switches"
	"weir.dev/weir/router/identity"
)

// step is what a host does with a frame.
type step struct {
	when   func(flow.Match) (flow.Match, bool) // restricts the match; nil: not at all
	rank   uint16                              // among steps of one place
	key    string
	action api.HostAction
	what   string
}

// visit makes the rules inside a host and gives the step that enters it.
func (p *planner) visit(i int, next []step) []step {
	b := p.b
	v := &b.visits[i]
	var clones []api.HostClone
	var first step
	var last *element
	for k := range v.elements {
		e := &v.elements[k]
		at := e.port(true, b.Way)
		if e.tap {
			clones = append(clones, api.HostClone{Port: at})
			continue
		}
		s := step{action: api.HostAction{Clones: clones, Op: flow.Output.String(), Port: at}, what: at}
		if last == nil {
			first = s
		} else {
			p.inner(v.host, last, &s)
		}
		last, clones = e, nil
	}
	if last == nil { // taps only
		var steps []step
		for _, n := range next {
			n.action.Clones = append(slices.Clone(clones), n.action.Clones...)
			steps = append(steps, n)
		}
		return steps
	}
	p.outOf(i, last, clones, next)
	return []step{first}
}

// inner is the rule between two functions of one host; all policies of the chain share it.
func (p *planner) inner(host int, from *element, s *step) {
	at, ch := from.port(false, p.b.Way), p.b.policy.chain.Name
	id := identity.Of("chain", ch, at)
	if p.share(host, id) {
		return
	}
	p.addRule(host, id, &api.HostRule{
		Priority: switches.PrioHop, Match: api.HostMatch{InPort: at}, Action: s.action, Note: "chain " + ch + ": " + at + " -> " + s.what,
	})
}

// outOf are the rules of the last function at a host. Where frames can be anything, all policies of the chain leave it in one way: what a
// function before has rewritten, and what was flooded to a destination. Copies always do.
func (p *planner) outOf(i int, from *element, clones []api.HostClone, next []step) {
	b := p.b
	at := from.port(false, b.Way)
	for k := range next {
		s := &next[k]
		if len(clones) > 0 {
			s.action.Clones = append(slices.Clone(clones), s.action.Clones...)
		}
		switch {
		case !b.steers():
			p.common(i, at, s, "copies")
			continue
		case b.blind <= i+1:
			p.common(i, at, s, "rewrites addresses")
			continue
		}
		p.each(b.visits[i].host, at, plannedLeg{}, s)
		if b.toDest && b.policy.Exhaustive() {
			p.common(i, at, s, "takes what is flooded to its endpoint")
		}
	}
}

// common makes the rule of a function's port for frames that no address tells apart.
func (p *planner) common(i int, at string, s *step, why string) {
	b := p.b
	host, match, ch := b.visits[i].host, flow.Match{}, b.policy.chain.Name
	if s.when != nil {
		match, _ = s.when(match)
	}
	id := identity.Of("out", ch, b.Way.String(), at, s.key)
	if have := p.c.Nodes[host].Rules[id]; have != nil && !have.Action.Same(&s.action) {
		p.err = fmt.Errorf("chain %s cannot be shared by the policies %s and %s: one of them %s, so frames of both must leave it alike, and one goes on %s; give each a chain of its own",
			ch, have.Policy, b.policy.Name, why, s.what)
	}
	if p.share(host, id) {
		return
	}
	r := api.HostRule{
		Priority: switches.PrioHop + s.rank, Match: p.c.w.hostMatch(&match), Action: s.action,
		Policy: b.policy.Name, Note: "chain " + ch + ": " + at + " -> " + s.what,
	}
	r.Match.InPort = at
	p.addRule(host, id, &r)
}

// each makes a step's rules, one for each match; with a tag only that is matched.
func (p *planner) each(host int, in string, l plannedLeg, s *step) {
	if l.tag != 0 {
		p.eachTagged(host, in, &l, s)
		return
	}
	b, w := p.b, p.c.w
	name, note := b.policy.Name, ""
	is := identity.LabelOf("policy", name, b.Way.String(), in, "0")
	for i := range b.matches {
		m := &b.matches[i]
		match, key := m.Match, m.key
		if s.when != nil {
			var ok bool
			if match, ok = s.when(match); !ok {
				continue
			}
			key = matchKey(&match)
		}
		if b.toDest && match == (flow.Match{}) {
			continue // see common
		}
		id := is.With(key).With(s.key).Sum()
		if p.share(host, id) {
			continue
		}
		if note == "" {
			note = "policy " + name + ": " + in + " -> " + s.what
		}
		r := api.HostRule{Priority: switches.PrioInside + uint16(b.policy.Priority)*switches.InsideScale + switches.StepRanks*b.first() + s.rank, Match: m.host, Action: s.action, Policy: name, Note: note}
		if s.when != nil {
			r.Match = w.hostMatch(&match)
		}
		r.Match.InPort = in
		p.addRule(host, id, &r)
	}
}

func (p *planner) eachTagged(host int, in string, l *plannedLeg, s *step) {
	match := flow.Match{}
	if s.when != nil {
		var ok bool
		if match, ok = s.when(match); !ok {
			return
		}
	}
	id := p.c.w.Graph.TagRuleID(host, in, l.tag, l.end, s.key)
	if p.share(host, id) {
		return
	}
	r := api.HostRule{
		Priority: switches.PrioTag + s.rank, Match: p.c.w.hostMatch(&match), Action: s.action, Policy: p.b.policy.Name,
		Note: "chain " + p.b.policy.chain.Name + ": tag " + strconv.Itoa(int(l.tag)) + " -> " + s.what,
	}
	r.Action.Pop, r.Match.InPort, r.Match.Tag = true, in, l.tag
	p.addRule(host, id, &r)
}
