package steering

import (
	"net/netip"
	"slices"

	"weir.dev/weir/api"
	"weir.dev/weir/flow"
	"weir.dev/weir/router/fabric"
	"weir.dev/weir/router/fabric/forwarding"
	"weir.dev/weir/router/policy"
)

// element is one function of a chain.
type element struct {
	name    string
	tap     bool
	host    int
	in, out string // ports; of a tap both are the same
}

func newElement(name string, tap bool, host int) element {
	e := element{name: name, tap: tap, host: host}
	if tap {
		e.in = flow.Tap.Of(name)
		e.out = e.in
	} else {
		e.in, e.out = flow.In.Of(name), flow.Out.Of(name)
	}
	return e
}

// port is where frames of a way enter, or leave.
func (e *element) port(enter bool, w policy.Way) string {
	if enter == (w == policy.Forward) {
		return e.in
	}
	return e.out
}

// chain as it can be used now.
type chain struct {
	policy.Chain
	elements []element
	rewrites map[string]bool

	walks [2]walk         // by way
	users [2][2][]*bundle // by way, at their source or at their destination: those that steer
}

// walk is what all policies of a chain have in common, one way.
type walk struct {
	visits []visit
	blind  int // see bundle
}

// compiled is a policy with what is made of it.
type compiled struct {
	policy.Policy
	chain    *chain
	held     bool // had been in force when it was planned
	bundles  []*bundle
	err      error
	path     *fabric.Path // never changed, only replaced
	changing bool         // it has other forms now
	form     bool         // it is one of these: it has no rules here
	coming   bool         // a form whose rules are not in force yet

	pair [2]bundle // room for bundles, by way
	both [2]*bundle
}

// world is what policies are compiled against.
type world struct {
	*forwarding.Network
	chains map[string]*chain

	texts    map[netip.Prefix]string   // as hosts' rules have them
	ranges   map[flow.PortRange]string // likewise
	services map[api.Term]string       // as people write them
	from, to []flow.Match              // in use within matches only
}

func newWorld(in fabric.Input) *world {
	w := &world{Network: forwarding.NewNetwork(in), chains: make(map[string]*chain, len(in.Chains)), texts: map[netip.Prefix]string{}, ranges: map[flow.PortRange]string{}, services: map[api.Term]string{}}
	for name, spec := range in.Chains {
		w.chains[name] = w.readChain(name, spec, in.Functions)
	}
	return w
}

// newChain has no functions yet.
func newChain(c policy.Chain) *chain {
	return &chain{Chain: c, rewrites: map[string]bool{}, walks: [2]walk{{blind: 1}, {blind: 1}}}
}

func (w *world) readChain(name string, spec api.ChainSpec, functions map[string]fabric.Function) *chain {
	c := newChain(policy.ReadChain(name, spec, func(name string) policy.Function {
		f, known := functions[name]
		_, placed := w.Graph.Index[f.Host]
		is := policy.Function{Ready: placed && f.Ready, OnFail: f.OnFail}
		switch {
		case known && f.Tap:
			is.Kind = policy.Tap
		case known:
			is.Kind = policy.Inline
		}
		return is
	}))
	for _, h := range c.Hops {
		f := functions[h.Function]
		c.elements = append(c.elements, newElement(h.Function, h.Tap, w.Graph.Index[f.Host]))
		c.rewrites[h.Function] = f.Rewrites
	}
	for _, v := range []policy.Way{policy.Forward, policy.Reverse} {
		c.walks[v] = c.walk(v)
	}
	return c
}

// walk groups the chain's functions by host.
func (c *chain) walk(v policy.Way) walk {
	elements := slices.Clone(c.elements)
	if v == policy.Reverse {
		slices.Reverse(elements)
	}
	w := walk{blind: len(elements) + 1}
	for i, e := range elements {
		last := len(w.visits) - 1
		if last < 0 || w.visits[last].host != e.host {
			w.visits = append(w.visits, visit{host: e.host})
			last++
		}
		x := &w.visits[last]
		x.elements = elements[i-len(x.elements) : i+1 : i+1]
		x.inline = x.inline || !e.tap
		if c.rewrites[e.name] && !e.tap {
			w.blind = min(w.blind, last+1)
		}
	}
	end := ""
	for i := len(w.visits) - 1; i >= 0; i-- {
		x := &w.visits[i]
		for k := len(x.elements) - 1; k >= 0; k-- {
			end = x.elements[k].name + "/" + end
		}
		x.end = "visit/" + c.Name + "/" + v.String() + "/" + end
	}
	return w
}

func (w *world) readPolicy(p *compiled, name string, spec api.PolicySpec) {
	w.readPolicyOn(p, name, spec, w.chains[spec.Chain])
	_, p.changing = w.In.Changing[name]
}

func (w *world) readPolicyOn(p *compiled, name string, spec api.PolicySpec, ch *chain) {
	if *p = (compiled{chain: ch}); p.chain == nil {
		p.chain = newChain(policy.UnknownChain(spec.Chain))
	}
	p.Policy, p.err = policy.Read(name, spec)
	p.Terms = merged(p.Terms)
}
