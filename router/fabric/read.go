package fabric

import (
	"errors"
	"maps"
	"net/netip"
	"slices"

	"weir.dev/weir/api"
	"weir.dev/weir/flow"
	"weir.dev/weir/router/policy"
)

// ErrNoPath says that the network has no way between two places.
var ErrNoPath = errors.New("no path")

// ErrFull says that a switch's table cannot take the policy's entries.
var ErrFull = errors.New("table full")

// ErrTags says that every fabric tag is taken on some link of the policy's way.
var ErrTags = errors.New("no fabric tag left")

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

// place is where a station is: at an edge port, or at a host's endpoint.
type place struct {
	node int
	port Port
}

// compiled is a policy with what is made of it.
type compiled struct {
	policy.Policy
	chain    *chain
	held     bool // had been in force when it was planned
	bundles  []*bundle
	err      error
	path     *Path // never changed, only replaced
	changing bool  // it has other forms now
	form     bool  // it is one of these: it has no rules here
	coming   bool  // a form whose rules are not in force yet

	pair [2]bundle // room for bundles, by way
	both [2]*bundle
}

// world is what policies are compiled against.
type world struct {
	in       Input
	g        *graph
	chains   map[string]*chain
	places   map[string]*place // endpoints that are found
	stations []station         // by MAC
	local    [][]flow.MAC      // of hosts: the MACs of their own endpoints, sorted
	guests   []map[string]Endpoint
	attached []bool // of hosts: they have a link to an OpenFlow switch, so default forwarding takes frames on from there
	short    shortage

	texts           map[netip.Prefix]string   // as hosts' rules have them
	ranges          map[flow.PortRange]string // likewise
	services        map[api.Term]string       // as people write them
	from, to, terms []flow.Match              // in use within matches only
}

type station struct {
	mac flow.MAC
	place
	name string // the address, as part of an identity
	key  uint64 // spreads stations over ways of one length
}

func newWorld(in Input) *world {
	w := &world{in: in, g: newGraph(in.Topology), chains: make(map[string]*chain, len(in.Chains)), places: make(map[string]*place, len(in.Endpoints)),
		texts: map[netip.Prefix]string{}, ranges: map[flow.PortRange]string{}, services: map[api.Term]string{}}
	n := len(w.g.ids)
	w.attached = make([]bool, n)
	for i := range w.g.arcs {
		if x := &w.g.arcs[i]; !w.g.sw[x.to].Host {
			w.attached[x.from] = true
		}
	}
	w.local, w.guests = make([][]flow.MAC, n), make([]map[string]Endpoint, n)
	for name, e := range in.Endpoints {
		if p, ok := w.place(e.At); ok {
			w.places[name] = &p
			if w.g.sw[p.node].Host {
				if w.guests[p.node] == nil {
					w.guests[p.node] = map[string]Endpoint{}
				}
				w.guests[p.node][name] = e
			}
		}
	}
	for name, spec := range in.Chains {
		w.chains[name] = w.readChain(name, spec, in.Functions)
	}
	w.settle()
	return w
}

// place finds a port; one with a host behind is that host, one with a switch behind is nobody's place.
func (w *world) place(at At) (place, bool) {
	node, ok := w.g.index[at.Switch]
	if !ok {
		return place{}, false
	}
	p := portAt(w.g.sw[node].Host, at.Port)
	a, linked := w.g.link[node][p]
	if !linked {
		if !w.g.sw[node].Host && !slices.Contains(w.g.edges[node], p.Number) {
			return place{}, false
		}
		return place{node, p}, true
	}
	if other := w.g.arcs[a].to; !w.g.sw[node].Host && w.g.sw[other].Host {
		return place{node: other}, true
	}
	return place{}, false
}

// settle finds where each address is: endpoints know best.
func (w *world) settle() {
	found := map[flow.MAC]place{}
	for _, s := range w.in.Stations {
		if p, ok := w.place(s.At); ok && !s.MAC.Multicast() && s.MAC != (flow.MAC{}) {
			found[s.MAC] = p
		}
	}
	for _, name := range slices.Sorted(maps.Keys(w.places)) {
		for _, m := range w.in.Endpoints[name].MACs {
			found[m] = *w.places[name]
		}
	}
	for m, p := range found {
		w.stations = append(w.stations, station{m, p, string(m[:]), stationKey(m)})
		if w.g.sw[p.node].Host {
			w.local[p.node] = append(w.local[p.node], m)
		}
	}
	slices.SortFunc(w.stations, func(a, b station) int { return slices.Compare(a.mac[:], b.mac[:]) })
	for _, l := range w.local {
		slices.SortFunc(l, func(a, b flow.MAC) int { return slices.Compare(a[:], b[:]) })
	}
}

// settled tells whether a host has stations of its own.
func (w *world) settled(node int) bool { return len(w.local[node]) > 0 || len(w.guests[node]) > 0 }

// newChain has no functions yet.
func newChain(c policy.Chain) *chain {
	return &chain{Chain: c, rewrites: map[string]bool{}, walks: [2]walk{{blind: 1}, {blind: 1}}}
}

func (w *world) readChain(name string, spec api.ChainSpec, functions map[string]Function) *chain {
	c := newChain(policy.ReadChain(name, spec, func(name string) policy.Function {
		f, known := functions[name]
		_, placed := w.g.index[f.Host]
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
		c.elements = append(c.elements, newElement(h.Function, h.Tap, w.g.index[f.Host]))
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
	_, p.changing = w.in.Changing[name]
}

func (w *world) readPolicyOn(p *compiled, name string, spec api.PolicySpec, ch *chain) {
	if *p = (compiled{chain: ch}); p.chain == nil {
		p.chain = newChain(policy.UnknownChain(spec.Chain))
	}
	p.Policy, p.err = policy.Read(name, spec)
	p.Terms = merged(p.Terms)
}
