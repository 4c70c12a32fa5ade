package router

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"slices"

	"weir.dev/weir/api"
	"weir.dev/weir/flow"
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
	Chain    string
}

// ErrNotReady says that a part of the policy does not exist yet: it will come into force with it.
var ErrNotReady = errors.New("not ready")

// errClosed is why a closed policy's chain takes nothing.
var errClosed = fmt.Errorf("closed until its chain works: %w", ErrNotReady)

// FailsOpen tells that a policy which was never in force lets its frames go on as without it: it only copies, or every function that its
// frames pass says so.
func FailsOpen(p api.PolicySpec, c api.ChainSpec, onFail func(function string) api.OnFail) bool {
	if p.ModeOrDefault() == api.ModeReplica {
		return true
	}
	hops, err := api.ParsePath(c.Path)
	return err == nil && !slices.ContainsFunc(hops, func(h api.PathHop) bool { return !h.Tap && onFail(h.Function) != api.OnFailBypass })
}

// Compile computes the rules of all policies. The same input gives the same output, rules in the order of their cookies.
func Compile(in Input) Output {
	c := newCompiler(in, slices.Sorted(maps.Keys(in.Policies)))
	for _, name := range slices.Sorted(maps.Keys(in.Closed)) {
		c.policies = append(c.policies, c.readPolicyOn(name, in.Closed[name], &chain{name: in.Closed[name].Chain, taps: [][]tap{nil}, blocked: errClosed}))
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
		path.Rules = count[p.name]
		if p.chain != nil && count[p.name] > 0 {
			path.Rules += count["/"+p.chain.name]
		}
		out.Paths[p.name] = path
		if err := errors.Join(p.errs...); err != nil {
			out.Errors[p.name] = err
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
	policies []*policy // in the order in which they were given
}

// way is a direction through a chain.
type way uint8

const (
	forward way = iota
	reverse
)

func (w way) String() string { return [...]string{"forward", "reverse"}[w] }

// chain as it can be used now.
type chain struct {
	name    string
	inline  []inline
	taps    [][]tap // taps[i] stand before inline[i], the last ones behind all
	blocked error   // why nothing can pass it
	notes   []error // what is missing without blocking it
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

// policy as parsed.
type policy struct {
	name     string
	spec     api.PolicySpec
	from, to api.Selector
	terms    []api.Term
	chain    *chain
	ways     []*direction
	errs     []error
}

func (p *policy) fail(err error) { p.errs = append(p.errs, err) }

func (p *policy) replica() bool { return p.spec.ModeOrDefault() == api.ModeReplica }

// direction is one way of a policy: where its frames are caught, and where they go after the chain.
type direction struct {
	policy  *policy
	way     way
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
		c.chains[name] = c.readyChain(name, spec)
	}
	for _, name := range policies {
		c.policies = append(c.policies, c.readPolicy(name, in.Policies[name]))
	}
	c.settleExits()
	return c
}

// readyChain leaves out what is not there and may be left out.
func (c *compiler) readyChain(name string, spec api.ChainSpec) *chain {
	ch := &chain{name: name, taps: [][]tap{nil}}
	hops, err := api.ParsePath(spec.Path)
	if err != nil {
		ch.blocked = fmt.Errorf("chain %s: %w", name, err)
		return ch
	}
	for _, h := range hops {
		f, known := c.in.Functions[h.Function]
		missing := fmt.Errorf("function %s: %w", h.Function, ErrNotReady)
		switch {
		case h.Tap && f.In != 0:
			ch.notes = append(ch.notes, fmt.Errorf("function %s has the ports in and out and is no tap: write %q, not %q", h.Function, h.Function, h))
		case h.Tap && f.Tap == 0:
			ch.notes = append(ch.notes, missing)
		case h.Tap:
			last := len(ch.taps) - 1
			ch.taps[last] = append(ch.taps[last], tap{h.Function, f.Tap})
		case f.Tap != 0:
			ch.blocked = fmt.Errorf("function %s has only a tap port: write \"tap:%s\"", h.Function, h.Function)
		case f.In != 0 && f.Out != 0:
			ch.inline = append(ch.inline, inline{h.Function, f.In, f.Out})
			ch.taps = append(ch.taps, nil)
		case known && f.OnFail == api.OnFailBypass:
			ch.notes = append(ch.notes, missing)
		default:
			ch.blocked = missing
		}
	}
	for i := range ch.taps { // leaving a function out may bring more taps together than a rule can serve
		if len(ch.taps[i]) > flow.MaxClones {
			ch.notes = append(ch.notes, fmt.Errorf("%d taps at one place: only the first %d get copies", len(ch.taps[i]), flow.MaxClones))
			ch.taps[i] = ch.taps[i][:flow.MaxClones]
		}
	}
	return ch
}

func (c *compiler) readPolicy(name string, spec api.PolicySpec) *policy {
	ch := c.chains[spec.Chain]
	if ch == nil {
		ch = &chain{name: spec.Chain, taps: [][]tap{nil}, blocked: fmt.Errorf("chain %q: unknown", spec.Chain)}
	}
	return c.readPolicyOn(name, spec, ch)
}

func (c *compiler) readPolicyOn(name string, spec api.PolicySpec, ch *chain) *policy {
	p := &policy{name: name, spec: spec, chain: ch}
	var errs [2]error
	p.from, errs[0] = api.ParseSelector(spec.From)
	p.to, errs[1] = api.ParseSelector(spec.To)
	if err := errors.Join(errs[:]...); err != nil {
		p.fail(err)
		return p
	}
	match := spec.Match
	if len(match) == 0 || spec.ModeOrDefault() == api.ModeExhaustive {
		match = []string{string(api.ProtocolAll)}
	}
	for _, text := range match {
		t, err := api.ParseMatch(text)
		if err != nil {
			p.fail(err)
			return p
		}
		p.terms = append(p.terms, t)
	}
	if p.chain.blocked != nil {
		p.fail(p.chain.blocked)
	}
	p.errs = append(p.errs, p.chain.notes...)
	ways := []way{forward}
	if spec.IsSymmetric() {
		ways = append(ways, reverse)
	}
	for _, w := range ways {
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
			p.chain.replica = p.replica()
		}
		var refused error
		for _, d := range p.ways {
			refused = cmp.Or(refused, u[d.way].refuse(d))
		}
		if refused != nil {
			p.fail(refused)
		}
		for _, d := range p.ways {
			if d.refused = refused; refused == nil {
				u[d.way].add(d)
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
	if o.policy.replica() != p.replica() {
		return fmt.Errorf("chain %s is used by the %s policy %s and by the %s policy %s: where it ends, one copies and the other does not; give each a chain of its own",
			ch.name, o.policy.spec.ModeOrDefault(), o.policy.name, p.spec.ModeOrDefault(), p.name)
	}
	if p.replica() || len(ch.inline) == 0 {
		return nil // nothing leaves, or nothing goes out of its way
	}
	if o.exit.op != d.exit.op {
		return fmt.Errorf("chain %s cannot be shared by the policies %s and %s: %s, frames leave it %s for one and %s for the other; give each a chain of its own",
			ch.name, o.policy.name, p.name, d.way, o.exit.describe(), d.exit.describe())
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
		ch.name, o.policy.name, p.name, d.way, many.multicast().term, many.policy.name)
}

// multicast is the first entry that multicast frames may meet.
func (d *direction) multicast() *entry {
	for i, e := range d.entries {
		if mayBeMulticast(e.match) {
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

// mayBeMulticast: TCP and SCTP talk to one station. Frames of theirs that are sent to many all the same are lost where a chain ends at several.
func mayBeMulticast(m flow.Match) bool {
	return m.Proto != flow.ProtoTCP && m.Proto != flow.ProtoSCTP && (m.DstMACMask[0]&1 == 0 || m.DstMAC.Multicast())
}
