package router

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"slices"

	"weir.dev/weir/api"
	"weir.dev/weir/flow"
	"weir.dev/weir/router/policy"
)

// Input is what there is now. A port number 0 means: not there yet.
type Input struct {
	Endpoints map[string]flow.Port
	Functions map[string]Function
	Chains    map[string]api.ChainSpec
	Policies  map[string]api.PolicySpec
	// Closed are policies that were accepted and cannot be in force yet: their frames are dropped where they would be caught, as far as the
	// endpoints are there. None of them is in Policies.
	Closed map[string]api.PolicySpec
}

// Function is a function's ports; OnFail says what to do as long as it has none.
type Function struct {
	In, Out, Tap flow.Port
	OnFail       api.OnFail
}

// Output is the whole rule set. A policy in Errors is not, or not fully, in force: see its error.
type Output struct {
	Rules  []flow.Rule
	Paths  map[string]Path
	Errors map[string]error
	Owners map[uint64]Owner // by cookie
}

// Path is what a frame of a policy really meets, as port names: "endpoint/alice", "function/fw/in", "function/fw/out",
// "function/mon/tap" (a copy). Where a policy names no endpoint the ends are its selectors: "10.9.0.0/24", "any".
type Path struct {
	Forward, Reverse []string
	Rules            int // entry rules and those of the chain; not those for frames that cannot be read to the end
}

// Owner tells whose counter a rule's is: of policies (two for the frames of a steering and a replica policy), or of a chain.
type Owner struct {
	Policies []string
	Ways     []policy.Way // of each policy: the direction whose frames the rule catches
	Chain    string
}

// OwnedBy is the owner of a rule of an assignment. entry is the direction of the policy whose frames it catches; "": none.
func OwnedBy(name, entry string) Owner {
	o := Owner{Policies: []string{name}}
	for _, w := range []policy.Way{policy.Forward, policy.Reverse} {
		if entry == w.String() {
			o.Ways = []policy.Way{w}
		}
	}
	return o
}

// ErrNotReady says that a part of the policy does not exist yet: it will come into force with it.
var ErrNotReady = policy.ErrNotReady

// errClosed is why a closed policy's chain takes nothing.
var errClosed = fmt.Errorf("closed until its chain works: %w", policy.ErrNotReady)

// FailsOpen tells whether a policy that was never in force lets its frames go on as without it.
func FailsOpen(spec api.PolicySpec, chain api.ChainSpec, onFail func(function string) api.OnFail) bool {
	p := policy.Policy{Spec: spec}
	c := policy.ReadChain(spec.Chain, chain, func(name string) policy.Function { return policy.Function{OnFail: onFail(name)} })
	return p.FailsOpen(&c)
}

// Compile computes the rules of all policies. The same input gives the same output, rules in the order of their cookies.
func Compile(in Input) Output {
	c := newCompiler(in, slices.Sorted(maps.Keys(in.Policies)))
	for _, name := range slices.Sorted(maps.Keys(in.Closed)) {
		c.policies = append(c.policies, c.readPolicy(name, in.Closed[name], newChain(policy.Closed(in.Closed[name].Chain, errClosed))))
	}
	return c.output(c.unread(c.entries()))
}

// Rehearse compiles the policies of a document with invented ports. It leaves out policies and chains that have a problem by themselves.
func Rehearse(d api.Document) (in Input, compile func(policies map[string]api.PolicySpec) ([]flow.Rule, flow.Topology)) {
	in, _ = newValidator(d, d).invent()
	var t flow.Topology
	for _, p := range in.Endpoints {
		t.Endpoints = append(t.Endpoints, p)
	}
	for name, f := range in.Functions {
		t.Functions = append(t.Functions, flow.FunctionPorts{Name: name, In: f.In, Out: f.Out, Tap: f.Tap})
	}
	return in, func(policies map[string]api.PolicySpec) ([]flow.Rule, flow.Topology) {
		some := in
		some.Policies = policies
		return Compile(some).Rules, t
	}
}

func (c *compiler) output(steering, copying []planned) Output {
	out := Output{Paths: map[string]Path{}, Errors: map[string]error{}, Owners: map[uint64]Owner{}}
	rules := c.compose(steering, copying)
	rules = append(rules, c.hops()...)
	slices.SortFunc(rules, func(a, b owned) int { return cmp.Compare(a.Cookie, b.Cookie) })
	count := map[string]int{} // rules by policy and, with a slash in front, by chain
	out.Rules = make([]flow.Rule, 0, len(rules))
	for _, r := range rules {
		out.Rules = append(out.Rules, r.Rule)
		out.Owners[r.Cookie] = r.owner
		for _, p := range r.owner.Policies {
			if r.Match.Unread == flow.ReadAll {
				count[p]++
			}
		}
		count["/"+r.owner.Chain]++
	}
	for _, p := range c.policies {
		path := c.path(p)
		path.Rules = count[p.Name]
		if p.chain != nil && count[p.Name] > 0 {
			path.Rules += count["/"+p.chain.Name]
		}
		out.Paths[p.Name] = path
		if err := errors.Join(p.errs...); err != nil {
			out.Errors[p.Name] = err
		}
	}
	return out
}

type owned struct {
	flow.Rule
	owner Owner
}

// compiler holds the parsed input.
type compiler struct {
	in       Input
	chains   map[string]*chain
	policies []*compiled // in the order in which they were given
}

// chain as it can be used now.
type chain struct {
	policy.Chain
	inline  []inline
	taps    [][]tap // taps[i] stand before inline[i], the last ones behind all
	replica bool    // its end drops
	exits   [2]exit
}

type inline struct {
	name    string
	in, out flow.Port
}

type tap struct {
	name string
	port flow.Port
}

// exit is where the last function of a direction sends frames.
type exit struct {
	used    bool
	op      flow.Op
	port    flow.Port // 0 learned
	to      string    // for people
	learned bool
}

// compiled is a policy with what is made of it.
type compiled struct {
	policy.Policy
	chain *chain
	ways  []*direction
	errs  []error
}

func (p *compiled) fail(err error) { p.errs = append(p.errs, err) }

// direction is one way of a policy: where its frames are caught, and where they go after the chain.
type direction struct {
	policy.Direction
	policy  *compiled
	stage   flow.Stage
	entries []entry
	exit    exit
	refused error // the policy cannot share its chain
}

// entry is one rule to be.
type entry struct {
	match flow.Match
	term  string
}

// newCompiler reads the policies in an order: of those that cannot share a chain, the first ones have it.
func newCompiler(in Input, policies []string) *compiler {
	c := &compiler{in: in, chains: map[string]*chain{}}
	for name, spec := range in.Chains {
		c.chains[name] = c.readChain(name, spec)
	}
	for _, name := range policies {
		c.policies = append(c.policies, c.readPolicy(name, in.Policies[name], c.chains[in.Policies[name].Chain]))
	}
	c.settleExits()
	return c
}

// newChain has no functions yet.
func newChain(c policy.Chain) *chain { return &chain{Chain: c, taps: [][]tap{nil}} }

func (c *compiler) readChain(name string, spec api.ChainSpec) *chain {
	ch := newChain(policy.ReadChain(name, spec, func(name string) policy.Function {
		f := c.in.Functions[name]
		is := policy.Function{Ready: f.Tap != 0 || f.In != 0 && f.Out != 0, OnFail: f.OnFail}
		switch {
		case f.In != 0:
			is.Kind = policy.Inline
		case f.Tap != 0:
			is.Kind = policy.Tap
		}
		return is
	}))
	for _, h := range ch.Hops {
		f, last := c.in.Functions[h.Function], len(ch.taps)-1
		if h.Tap {
			ch.taps[last] = append(ch.taps[last], tap{h.Function, f.Tap})
			continue
		}
		ch.inline = append(ch.inline, inline{h.Function, f.In, f.Out})
		ch.taps = append(ch.taps, nil)
	}
	for i := range ch.taps { // leaving a function out may bring more taps together than a rule can serve
		if len(ch.taps[i]) > flow.MaxClones {
			ch.Notes = append(ch.Notes, fmt.Errorf("%d taps at one place: only the first %d get copies", len(ch.taps[i]), flow.MaxClones))
			ch.taps[i] = ch.taps[i][:flow.MaxClones]
		}
	}
	return ch
}

func (c *compiler) readPolicy(name string, spec api.PolicySpec, ch *chain) *compiled {
	if ch == nil {
		ch = newChain(policy.UnknownChain(spec.Chain))
	}
	p := &compiled{chain: ch}
	var err error
	if p.Policy, err = policy.Read(name, spec); err != nil {
		p.fail(err)
		return p
	}
	if ch.Blocked != nil {
		p.fail(ch.Blocked)
	}
	p.errs = append(p.errs, ch.Notes...)
	for _, w := range p.Ways() {
		d, err := c.direct(p, w)
		if err != nil {
			p.fail(err)
			break // the other way lacks the same
		}
		p.ways = append(p.ways, d)
	}
	return p
}

// sharing is what one direction of a chain is used for.
type sharing struct {
	directions []*direction
	exit       exit
	multicast  *direction // the first one that may be multicast
}

// settleExits decides where each chain ends in each direction, and refuses policies that cannot share one.
func (c *compiler) settleExits() {
	users := map[*chain]*[2]sharing{}
	for _, p := range c.policies {
		if len(p.ways) == 0 {
			continue
		}
		u := users[p.chain]
		if u == nil {
			u = &[2]sharing{}
			users[p.chain] = u
			p.chain.replica = p.Replica()
		}
		var refused error
		for _, d := range p.ways {
			refused = cmp.Or(refused, u[d.Way].refuse(d))
		}
		if refused != nil {
			p.fail(refused)
		}
		for _, d := range p.ways {
			if d.refused = refused; refused == nil {
				u[d.Way].add(d)
			}
		}
	}
	for ch, u := range users {
		for w := range u {
			ch.exits[w] = u[w].exit
		}
	}
}

func (s *sharing) add(d *direction) {
	s.exit = common(s.exit, d.exit)
	s.directions = append(s.directions, d)
	if s.multicast == nil && d.multicast() != nil {
		s.multicast = d
	}
}

// common is the exit of directions that share a chain.
func common(x, y exit) exit {
	switch {
	case !x.used:
		return y
	case x.port != y.port:
		x.port, x.learned, x.to = 0, true, "where it was met"
	}
	return x
}

// refuse says why d cannot join those that use its chain already.
func (s *sharing) refuse(d *direction) error {
	if len(s.directions) == 0 {
		return nil
	}
	ch, p, o := d.policy.chain, d.policy, s.directions[0]
	if o.policy.Replica() != p.Replica() {
		return fmt.Errorf("chain %s is used by the %s policy %s and by the %s policy %s: where it ends, one copies and the other does not; give each a chain of its own",
			ch.Name, o.policy.Spec.ModeOrDefault(), o.policy.Name, p.Spec.ModeOrDefault(), p.Name)
	}
	if p.Replica() || len(ch.inline) == 0 {
		return nil // nothing leaves, or nothing goes out of its way
	}
	if o.exit.op != d.exit.op {
		return fmt.Errorf("chain %s cannot be shared by the policies %s and %s: %s, frames leave it %s for one and %s for the other; give each a chain of its own",
			ch.Name, o.policy.Name, p.Name, d.Way, o.exit.describe(), d.exit.describe())
	}
	x := common(s.exit, d.exit)
	if !x.learned || x.op != flow.Output {
		return nil
	}
	many := s.multicast
	if many == nil && d.multicast() != nil {
		many = d
	}
	if many == nil {
		return nil
	}
	return fmt.Errorf("chain %s cannot be shared by the policies %s and %s: %s, it ends at several endpoints, so each frame's is found by its destination MAC, and %q of policy %s may be multicast; give each a chain of its own, or match tcp or sctp only",
		ch.Name, o.policy.Name, p.Name, d.Way, many.multicast().term, many.policy.Name)
}

// multicast is the first entry that multicast frames may meet.
func (d *direction) multicast() *entry {
	for i := range d.entries {
		if policy.MayBeMulticast(&d.entries[i].match) {
			return &d.entries[i]
		}
	}
	return nil
}

func (x exit) describe() string {
	if x.op == flow.Output {
		return "to " + x.to
	}
	return "back to where they entered (" + x.to + ")"
}
