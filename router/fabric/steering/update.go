package steering

import (
	"errors"
	"maps"
	"slices"

	"weir.dev/weir/router/fabric"
)

// Update compiles another input and gives its output. Changed policies that steer cost what they change; anything else is compiled anew.
// The result is that of Compile, except that tags keep their numbers, and that a table which is too small for all serves those that
// were there first.
func (c *Compiler) Update(in fabric.Input) fabric.Output {
	if !fabric.SameWorld(&c.w.In, &in) {
		c.reset(in)
		return c.Output()
	}
	fresh, gone, ok := c.changes(in)
	if !ok {
		c.reset(in)
		return c.Output()
	}
	other := c.rechanged(in.Changing)
	c.w.In = in
	c.tags.Linger(in.Lingering)
	if len(fresh)+len(gone)+len(other) > 0 {
		c.swap(fresh, gone, other)
	}
	return c.Output()
}

// changes finds the policies to be planned, and those to be undone before; ok is false where more than they depends on them: copying
// policies.
func (c *Compiler) changes(in fabric.Input) (fresh, gone map[string]*compiled, ok bool) {
	fresh, gone = map[string]*compiled{}, map[string]*compiled{}
	look := func(name string) {
		p := c.policies[name]
		spec, still := in.Policies[name]
		// A policy stays as it is unless it was edited, or what kept it out of force may have gone.
		if p != nil {
			if still && fabric.SamePolicy(p.Spec, spec) && (p.err == nil || p.held == in.InForce[name] && !errors.Is(p.err, fabric.ErrTags)) {
				p.held = in.InForce[name]
				return
			}
			gone[name] = p
		}
		if !still {
			return
		}
		p = &compiled{}
		c.w.readPolicy(p, name, spec)
		_, p.changing = in.Changing[name]
		fresh[name] = p
	}
	if names, few := fabric.Edited(&c.w.In, &in); few {
		for _, name := range names {
			look(name)
		}
		for name := range c.errs {
			if fresh[name] == nil {
				look(name)
			}
		}
	} else {
		for name := range in.Policies {
			look(name)
		}
		for name := range c.policies {
			if fresh[name] == nil {
				look(name)
			}
		}
	}
	// Copies are ranked among each other, so a changed one needs all computed anew.
	copies := func(all map[string]*compiled) bool {
		for _, p := range all {
			if p.Replica() {
				return true
			}
		}
		return false
	}
	return fresh, gone, !copies(gone) && !copies(fresh)
}

// swap takes changed policies out and puts the fresh ones in. Others whose frames meet theirs are planned again, for they may need a tag
// now, or none any more. other: policies that have not the same other forms any more.
func (c *Compiler) swap(fresh, gone map[string]*compiled, other []string) {
	if c.shared {
		c.errs, c.shared = maps.Clone(c.errs), false
	}
	// again: policies to plan anew. concerned: directions whose need for a tag may have changed.
	again, concerned := map[string]*compiled{}, map[*bundle]bool{}
	affects := func(p *compiled) {
		c.touched(p, again)
		for _, b := range p.bundles {
			c.concerned(b, concerned)
		}
	}
	// Policies go and come; the policies and directions that they affect are noted.
	for name, p := range gone {
		affects(p)
		delete(c.policies, name)
		c.paths.Drop(name)
		delete(c.errs, name)
	}
	for name, p := range fresh {
		c.policies[name] = p
		c.begin(p)
		affects(p)
	}
	// Policies whose other forms (Input.Changing) have changed.
	for _, name := range other {
		for _, p := range c.dropForms(name) {
			affects(p)
		}
		for _, p := range c.addForms(name, c.w.In.Changing[name]) {
			affects(p)
		}
		if p := c.policies[name]; p != nil && fresh[name] == nil {
			affects(p)
			_, p.changing = c.w.In.Changing[name]
			affects(p)
			again[name] = p
		}
	}
	// Policies that go give back their entries and legs.
	for name, p := range gone {
		c.undo(p)
		c.end(p)
		if again[name] == p {
			delete(again, name)
		}
	}
	// A direction is planned again only if its need for a tag has changed.
	for b := range concerned {
		if p := b.policy; c.policies[p.Name] == p && fresh[p.Name] != p && (b.untagged != c.plainly(b) || b.toDest && !b.untagged && b.streams[0].kind == toEdge && b.alone != c.alone(b)) {
			again[p.Name] = p
		}
	}
	// Policies that are planned again give back their entries first.
	for name, p := range fresh {
		again[name] = p
	}
	for name, p := range again {
		if fresh[name] == nil {
			c.undo(p)
		}
	}
	for name := range c.errs { // there may be room now, in a table or among the tags
		p := c.policies[name]
		if len(gone) > 0 && again[name] == nil && p.bundles != nil {
			c.undo(p)
			again[name] = p
		}
	}
	// They are planned in the order of priority; then the floods that they change.
	c.planAll(slices.Collect(maps.Values(again)))
	c.Flooding()
}

// touched collects the policies whose need for tags may depend on p.
func (c *Compiler) touched(p *compiled, all map[string]*compiled) {
	for _, b := range p.bundles {
		for _, o := range *b.users(!b.toDest) {
			if b.steers() && o.policy != p && before(p, o.policy) && overlap(o, b) {
				all[o.policy.Name] = o.policy
			}
		}
		if b.toDest || len(b.loose) == 0 {
			continue
		}
		check := func(list []*bundle) {
			for _, o := range list {
				if o.policy != p && !o.policy.form && (rewritten(b) || c.matters(o, b)) {
					all[o.policy.Name] = o.policy
				}
			}
		}
		key, one := b.near()
		if one && !rewritten(b) {
			check(c.near[key])
		} else {
			for _, list := range c.near {
				check(list)
			}
		}
		check(c.wild)
	}
}
