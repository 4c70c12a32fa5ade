package steering

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"weir.dev/weir/api"
	"weir.dev/weir/router/fabric"
	"weir.dev/weir/router/fabric/forwarding"
	"weir.dev/weir/router/fabric/tags"
	"weir.dev/weir/router/policy"
)

// Compile computes all rules anew. The same input gives the same output.
func Compile(in fabric.Input) fabric.Output { return New(in).Output() }

// Compiler keeps what it has computed, so that a changed policy costs what it changes. Not safe for several goroutines.
type Compiler struct {
	*forwarding.Tables
	w        *world
	catches  [][]caught // by node
	policies map[string]*compiled
	tags     *tags.Tags
	near     map[forwarding.Place][]*bundle // that catch at one station's port, on its way out
	wild     []*bundle                      // that catch everywhere
	blind    []*bundle                      // whose frames leave the chain with any address
	crossings
	tmp    scratch
	ranks  map[int]int // of replica policies' priorities, from 1
	scale  uint16
	paths  fabric.PathsNow
	errs   map[string]error
	shared bool // errs is an output's, too
	// of policies that change: their other forms
	forms          map[string][]*compiled
	ignoresChanges bool // what changes is not looked at: no tags are left
}

// New compiles an input.
func New(in fabric.Input) *Compiler {
	c := &Compiler{}
	c.reset(in)
	return c
}

func (c *Compiler) reset(in fabric.Input) {
	n, before := len(in.Policies), c.tags
	*c = Compiler{w: newWorld(in), policies: make(map[string]*compiled, n), near: map[forwarding.Place][]*bundle{}, forms: map[string][]*compiled{}, paths: fabric.NewPathsNow(n), errs: map[string]error{}}
	c.crossings, c.tmp = newCrossings(c.w.Graph), newScratch(c.w.Graph)
	all := make([]compiled, n)
	order := make([]*compiled, 0, n)
	for name, spec := range in.Policies {
		p := &all[0]
		all = all[1:]
		c.w.readPolicy(p, name, spec)
		c.policies[name] = p
		order = append(order, p)
	}
	c.rank()
	c.tags = tags.New(c.w.Graph)
	c.tags.Linger(in.Lingering)
	if before != nil {
		c.tags.Inherit(before)
	}
	c.Tables = forwarding.NewTables(c.w.Network) // they hold default forwarding, too, when policies are fitted in
	c.catches = make([][]caught, len(c.Nodes))
	slices.SortFunc(order, important) // so that it is always the same policy that another one is said to be in conflict with
	for _, p := range order {
		c.begin(p)
	}
	for name, v := range in.Changing {
		c.addForms(name, v)
	}
	c.planAll(order)
	c.Flooding()
}

// planAll plans policies, the most important first: tables may fill up.
func (c *Compiler) planAll(order []*compiled) {
	slices.SortFunc(order, important)
	for _, replicas := range []bool{true, false} { // what copies and what steers meet when the latter is planned
		for _, p := range order {
			if p.Replica() != replicas {
				continue
			}
			c.plan(p)
			c.paths.Set(p.Name, p.path)
			if delete(c.errs, p.Name); p.err != nil {
				c.errs[p.Name] = p.err
			}
		}
	}
}

// maxRanks bounds the different priorities of replica policies. Between two priorities of steering ones there is room for two of each
// rank, for one more where both directions are forward, and for mayPriority.
const maxRanks = 12

func (c *Compiler) rank() {
	set := map[int]bool{}
	for _, p := range c.policies {
		if p.Replica() {
			set[p.Priority] = true
		}
	}
	c.ranks = policy.Ranks(set, maxRanks)
	c.scale = 2 * (maxRanks + 2) // whatever there is: priorities of others must not change with a policy
}

// level is how far a policy's entries and rules that catch frames are above the lowest ones. Forward adds 1. Entries for frames that
// one policy copies and another one steers have the sum of both. So of all that take a frame one is on top: forward of the most
// important steering policy, with forward of the most important copying one.
func (c *Compiler) level(p *compiled) uint16 {
	if p.Replica() {
		return 2 * uint16(c.ranks[p.Priority])
	}
	return uint16(p.Priority) * c.scale
}

// begin finds what a policy selects and where it leads, without deciding anything about tags.
func (c *Compiler) begin(p *compiled) {
	if p.err != nil {
		return
	}
	p.bundles = nil
	ways := p.Ways()
	for _, v := range ways {
		b, err := c.w.direct(p, v)
		if err != nil {
			p.err = err
			return
		}
		p.both[v] = b
	}
	p.bundles = p.both[:len(ways)]
	for _, b := range p.bundles {
		c.w.loosen(b)
		if len(b.streams) > 0 {
			c.note(b, true)
		}
		if !b.steers() {
			continue
		}
		if !p.form {
			users := b.users(b.toDest)
			*users = append(*users, b)
		}
		if b.toDest {
			continue
		}
		if key, one := b.near(); one {
			c.near[key] = append(c.near[key], b)
		} else {
			c.wild = append(c.wild, b)
		}
		if rewritten(b) {
			c.blind = append(c.blind, b)
		}
	}
}

// users are the bundles that take frames the same way through the chain, caught at their source, or at their destination.
func (b *bundle) users(toDest bool) *[]*bundle {
	u := &b.policy.chain.users[b.Way]
	if toDest {
		return &u[1]
	}
	return &u[0]
}

// mixed refuses a policy whose frames another one has sent through the same chain already: when they come out of it the second time
// nobody could tell that from the first.
func (c *Compiler) mixed(p *compiled) error {
	for _, b := range p.bundles {
		if !b.steers() {
			continue
		}
		for _, o := range *b.users(!b.toDest) {
			if before(o.policy, p) && overlap(o, b) {
				return fmt.Errorf("chain %s cannot be shared by the policies %s and %s: frames that one takes at their source the other takes again at their destination; give each a chain of its own",
					p.chain.Name, o.policy.Name, p.Name)
			}
		}
	}
	return nil
}

// before orders policies: the more important one is planned first.
func before(a, b *compiled) bool { return important(a, b) < 0 }

func important(a, b *compiled) int {
	if a.Priority != b.Priority {
		return b.Priority - a.Priority
	}
	return strings.Compare(a.Name, b.Name)
}

func (b *bundle) near() (forwarding.Place, bool) {
	if len(b.streams) == 1 && b.streams[0].kind != fromEdges {
		return b.streams[0].Place, true
	}
	return forwarding.Place{}, false
}

// end forgets what begin noted.
func (c *Compiler) end(p *compiled) {
	for _, b := range p.bundles {
		if len(b.streams) > 0 {
			c.note(b, false)
		}
		users := b.users(b.toDest)
		*users = without(*users, b)
		if key, one := b.near(); !one {
			c.wild = without(c.wild, b)
		} else if left := without(c.near[key], b); len(left) > 0 {
			c.near[key] = left
		} else {
			delete(c.near, key)
		}
		c.blind = without(c.blind, b)
	}
}

// plan puts a policy in force, or notes why it cannot be.
func (c *Compiler) plan(p *compiled) {
	p.path, p.held = &fabric.Path{}, c.w.In.InForce[p.Name]
	if p.bundles == nil {
		return
	}
	p.err = nil
	// Reasons that need no way: report them, and drop the frames where the policy was in force.
	if c.fenced(p) {
		p.err = fmt.Errorf("chain %s: frames are dropped until those under way have left it, since functions change places: %w", p.chain.Name, policy.ErrNotReady)
		c.failClosed(p)
		return
	}
	if p.Replica() && c.ranks[p.Priority] == 0 {
		p.err = policy.Unranked(maxRanks)
		return
	}
	if p.chain.Blocked != nil {
		p.err = p.chain.Blocked
		c.failClosed(p)
		return
	}
	err := c.mixed(p)
	if err == nil {
		err = c.try(p)
	}
	// Too few tags to keep all forms apart: the policy goes without those that only the change needs.
	if errors.Is(err, fabric.ErrTags) && len(c.w.In.Changing) > 0 {
		c.undo(p)
		c.ignoresChanges = true
		err = c.try(p)
		c.ignoresChanges = false
	}
	if err == nil {
		err = c.fits(p)
	}
	if err != nil {
		c.undo(p)
		p.path, p.err = &fabric.Path{}, err
		c.failClosed(p)
		return
	}
	c.render(p)
	p.err = nil
	if len(p.chain.Notes) > 0 {
		p.err = errors.Join(p.chain.Notes...)
	}
}

func (c *Compiler) try(p *compiled) error {
	for _, b := range p.bundles {
		pl := planner{c: c, b: b}
		if err := pl.run(); err != nil {
			return err
		}
	}
	return nil
}

// failClosed drops, at the places where they are caught, the frames of a policy that cannot be in force. One that never was, and all of whose
// functions say bypass, lets them go on.
func (c *Compiler) failClosed(p *compiled) {
	if p.Replica() || !c.w.In.InForce[p.Name] && p.FailsOpen(&p.chain.Chain) {
		return
	}
	for _, b := range p.bundles {
		pl := planner{c: c, b: b}
		pl.drop()
	}
	if err := c.fits(p); err != nil {
		c.undo(p)
		p.err = errors.Join(p.err, err)
	}
}

func (c *Compiler) undo(p *compiled) {
	for _, b := range p.bundles {
		for _, e := range b.made.entries {
			c.Nodes[e.node].Remove(e.entry, p.Name)
		}
		for _, r := range b.made.rules {
			c.Nodes[r.node].RemoveRule(r.rule, p.Name)
		}
		for _, l := range b.legs {
			if l.tag != 0 {
				c.tags.Release(l.arcs, l.tag, l.end)
			}
		}
		for _, h := range b.made.hooks {
			c.Nodes[h.node].Unhook(h.port, b)
		}
		for _, n := range b.made.catches {
			c.catches[n] = slices.DeleteFunc(c.catches[n], func(x caught) bool { return x.b == b })
		}
		for _, n := range b.made.pruned {
			c.Nodes[n].Unclaim(b)
		}
		b.made, b.legs = made{}, nil
	}
}

// Output gives the whole rule set. What it returns is never changed later, and slices of switches without change are the same as before.
func (c *Compiler) Output() fabric.Output {
	out := fabric.Output{Entries: make(map[fabric.SwitchID][]*fabric.Entry, len(c.Nodes)), Hosts: map[fabric.SwitchID][]*api.HostRule{}, Paths: c.paths.Share(), Errors: c.errs, Short: c.Short}
	c.shared = true
	for i, n := range c.Nodes {
		if c.w.Graph.Switch[i].Host {
			out.Hosts[c.w.Graph.IDs[i]] = n.HostRules()
		} else {
			out.Entries[c.w.Graph.IDs[i]] = n.All()
		}
	}
	out.Clash = len(c.forms) > 0 && c.clash()
	return out
}
