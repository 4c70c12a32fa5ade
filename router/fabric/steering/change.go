package steering

import (
	"slices"

	"weir.dev/weir/router/fabric"
)

// While a network goes from one input to another, rules of both are in force, and each frame has to meet wholly the one or wholly the
// other (Reitblatt et al., "Abstractions for network update", SIGCOMM 2012). A frame without a tag does not tell which of the two it
// follows. So an update from a to b has three steps, each with all rules in force and what it had replaced drained before the next:
//
//	a with what changes to b  the changing policies' legs get tags, and others' that could be taken for one of these
//	b with what changed of a  new entries catch: only now do ways change
//	b                         tags that nobody needs any more go
//
// In the first and last step no frame's way changes, only its tag. In the second one all that both inputs have is the same in both, and
// what they do not have in common carries tags of its own; but for legs to the first host of a chain: a frame that is taken over by one of
// these in the middle of its way meets the whole chain. Where nothing could be confused, as is usual, the first and the third step
// change no rule.

// addForms notes a policy's other forms, whose frames and rules are about. Nobody takes copies for anything else: their legs carry tags anyway.
func (c *Compiler) addForms(name string, variants []fabric.Variant) []*compiled {
	var all []*compiled
	for _, v := range variants {
		if v.Absent {
			continue
		}
		p := &compiled{}
		c.w.readPolicyOn(p, name, v.Policy, c.w.readChain(v.Policy.Chain, v.Chain, v.Functions))
		p.changing, p.form, p.coming = true, true, v.Coming
		if !p.Replica() {
			c.begin(p)
		}
		all = append(all, p)
	}
	if len(all) > 0 {
		c.forms[name] = all
	}
	return all
}

// dropForms forgets them.
func (c *Compiler) dropForms(name string) []*compiled {
	all := c.forms[name]
	for _, p := range all {
		c.end(p)
	}
	delete(c.forms, name)
	return all
}

// rechanged finds whose other forms are not those of before.
func (c *Compiler) rechanged(now map[string][]fabric.Variant) (names []string) {
	for name, v := range now {
		if was, there := c.w.In.Changing[name]; !there || !fabric.SameVariants(was, v) {
			names = append(names, name)
		}
	}
	for name := range c.w.In.Changing {
		if _, still := now[name]; !still {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names
}

// matters tells whether b's entries may take o's frames for their own, as far as priorities go: of two policies the more important one
// takes the frames of both where they enter, unless one of them is not in force everywhere. Of one policy's directions forward does.
func (c *Compiler) matters(b, o *bundle) bool {
	changing := o.policy.changing || b.policy.changing
	if c.ignoresChanges {
		if o.policy.form {
			return false
		}
		changing = false
	}
	return o != b && (o.policy.Priority >= b.policy.Priority || changing) && overlap(o, b)
}

// soonPlain tells whether a leg carries its tag only until all changes are over. Those before it must reckon with that.
func (p *planner) soonPlain(i int, l plannedLeg) bool {
	if len(p.c.w.In.Changing) == 0 || p.c.ignoresChanges {
		return false
	}
	p.c.ignoresChanges = true
	need := p.needsTag(i, l)
	p.c.ignoresChanges = false
	return !need
}

// changes tells whether a leg needs a tag because its policy is about to change or has just changed.
func (p *planner) changes(i int, l plannedLeg) bool {
	b, c := p.b, p.c
	if !b.policy.changing || c.ignoresChanges {
		return false
	}
	if i > 0 {
		return true
	}
	for _, g := range c.forms[b.policy.Name] {
		for _, o := range g.bundles { // entries of one priority that are not the same lead either way
			if o.Way == b.Way && (len(b.streams) > 1 || b.streams[0].kind == fromEdges || !sameMatches(o, b)) {
				return true
			}
		}
	}
	for _, a := range l.arcs { // frames of others that this policy will catch, or has caught, behind their first host
		if slices.ContainsFunc(c.crossings.by[a], func(o *bundle) bool { return o.policy.Name != b.policy.Name && len(o.visits) > 1 && overlap(o, b) }) {
			return true
		}
	}
	return false
}

func sameMatches(a, b *bundle) bool {
	return slices.EqualFunc(a.matches, b.matches, func(x, y selected) bool { return x.Match == y.Match })
}

// swaps tells whether frames could meet functions of both forms of a policy's chain, whatever tags legs carry: frames that come out of a
// function which both have, but with others before and others behind it, do not show which ones they have met; nor do they show whether
// they are copies.
func swaps(a, b *compiled) bool {
	if a.chain.Blocked != nil || b.chain.Blocked != nil {
		return false
	}
	inline := func(p *compiled) (all []element) {
		for _, e := range p.chain.elements {
			if !e.tap {
				all = append(all, e)
			}
		}
		return all
	}
	// what the one matches and the other does not would find no rule behind such a function
	both := !slices.Equal(a.chain.elements, b.chain.elements) && !(a.Spec.From == b.Spec.From && a.Spec.To == b.Spec.To && a.Spec.MatchBy == b.Spec.MatchBy && slices.Equal(a.Spec.Match, b.Spec.Match))
	x, y := inline(a), inline(b)
	same := func(a, b []element) bool {
		return slices.EqualFunc(a, b, func(m, n element) bool { return m.name == n.name })
	}
	for i, e := range x {
		for j, f := range y {
			if e == f && (a.Replica() != b.Replica() || both || !same(x[:i], y[:j]) && !same(x[i+1:], y[j+1:])) {
				return true
			}
		}
	}
	return false
}

// fenced tells whether nothing may be in a policy's chain when its next form comes into force.
func (c *Compiler) fenced(p *compiled) bool {
	return p.changing && (c.taken(p) || slices.ContainsFunc(c.forms[p.Name], func(g *compiled) bool { return g.coming && swaps(p, g) }))
}

// taken tells whether frames of another policy are to come into a chain that copies are in: they look the same.
func (c *Compiler) taken(p *compiled) bool {
	if !p.Replica() {
		return false
	}
	for _, all := range c.forms {
		for _, g := range all {
			if g.coming && !g.Replica() && g.chain.Name == p.chain.Name {
				return true
			}
		}
	}
	return false
}

// clash tells whether what is left of a former form could be confused with what is coming.
func (c *Compiler) clash() bool {
	for _, all := range c.forms {
		for _, p := range all {
			if p.coming {
				continue
			}
			if c.taken(p) || slices.ContainsFunc(all, func(o *compiled) bool { return o.coming && swaps(p, o) }) {
				return true
			}
			for _, b := range p.bundles {
				if c.inTheWay(b) {
					return true
				}
			}
		}
	}
	return false
}

// inTheWay tells whether what is left of a bundle's first leg would take frames of something that is coming.
func (c *Compiler) inTheWay(b *bundle) bool {
	if b.toDest || !b.steers() || len(b.visits) == 0 {
		return false
	}
	arcs := map[int]bool{}
	walk := func(from int) {
		way, _ := c.w.Graph.Path(from, b.visits[0].host)
		for _, a := range way {
			arcs[a] = true
		}
	}
	for _, s := range b.streams {
		if s.kind != fromEdges {
			walk(s.Node)
			continue
		}
		for node, edges := range c.w.Graph.Edges {
			if len(edges) > 0 {
				walk(node)
			}
		}
	}
	for _, all := range c.forms {
		for _, o := range all {
			for _, x := range o.bundles {
				if !o.coming || !x.steers() || !rewritten(x) && !overlap(x, b) {
					continue
				}
				for a := range arcs {
					if c.w.crosses(x, a) {
						return true
					}
				}
			}
		}
	}
	return false
}
