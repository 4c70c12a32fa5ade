package placement

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	"weir.dev/weir/api"
	"weir.dev/weir/router/policy"
)

// Places is where everything is that policies speak of: names to hosts. "" or no entry is no host: a station of the fabric, or nowhere yet.
type Places struct {
	Alone     bool // there is one host and no switch besides: nothing is left to a router but what is on no host
	Endpoints map[string]string
	Functions map[string]string
	Chains    map[string]api.ChainSpec
}

// Owner is who steers a policy.
type Owner struct {
	Host   string // by itself; "": the router does
	Reason string
}

// Owners decides who steers each policy. A host does where all of it is there: the functions of its chain, and the endpoints that it names, at
// least one. What shares a chain with a policy of the router's, or takes frames at the same place, is the router's, too: only one
// compiler can put such rules in order.
func Owners(p Places, policies map[string]api.PolicySpec) map[string]Owner {
	out := make(map[string]Owner, len(policies))
	hosts := make(map[string]onHost, len(p.Chains))
	for name, c := range p.Chains {
		hosts[name] = p.chain(c)
	}
	o := owning{out: out, policies: make(map[string]policy.Policy, len(policies)), chains: map[string][]string{}, places: map[takes][]string{}}
	for _, name := range slices.Sorted(maps.Keys(policies)) {
		read, _ := policy.Read(name, policies[name]) // what cannot be read names no endpoint
		o.policies[name] = read
		chain := read.Spec.Chain
		host, why := p.holder(&read, hosts[chain])
		if out[name] = (Owner{host, why}); host == "" {
			o.crosses = append(o.crosses, name)
			continue
		}
		o.chains[chain] = append(o.chains[chain], name)
		for _, at := range takesAt(&read, policy.DestinationFirst) {
			o.places[at] = append(o.places[at], name)
		}
	}
	if !p.Alone {
		o.spread()
	}
	return out
}

// onHost is where all functions of a chain are.
type onHost struct {
	host string
	why  string // there is no such host
}

func (p Places) chain(c api.ChainSpec) onHost {
	functions := c.Functions()
	if len(functions) == 0 {
		return onHost{why: "its chain has no functions"}
	}
	first := p.Functions[functions[0]]
	for _, f := range functions {
		switch host := p.Functions[f]; {
		case host == "":
			return onHost{why: fmt.Sprintf("function %s is on no host", f)}
		case host != first:
			return onHost{why: fmt.Sprintf("function %s is on %s, function %s on %s", functions[0], first, f, host)}
		}
	}
	return onHost{host: first}
}

// holder is the host where all that a policy names is.
func (p Places) holder(read *policy.Policy, c onHost) (host, why string) {
	if c.host == "" {
		return "", cmp.Or(c.why, fmt.Sprintf("there is no chain %s", read.Spec.Chain))
	}
	named := 0
	for _, end := range [2]api.Selector{read.From, read.To} {
		name := end.Endpoint
		switch at := p.Endpoints[name]; {
		case end.Kind != api.SelectEndpoint:
			continue
		case at == "":
			return "", fmt.Sprintf("endpoint %s is on no host", name)
		case at != c.host:
			return "", fmt.Sprintf("endpoint %s is on %s, its chain on %s", name, at, c.host)
		}
		named++
	}
	switch {
	case p.Alone:
		return c.host, "the only host"
	case named == 0:
		return "", "it names no endpoint, so its frames may come from any host"
	}
	return c.host, "all of it is there"
}

// takes is a place where a policy's frames are taken out of their way.
type takes struct {
	endpoint string
	to       bool // what goes to the endpoint; else what comes from it
}

func (t takes) String() string {
	if t.to {
		return "to endpoint " + t.endpoint
	}
	return "from endpoint " + t.endpoint
}

// takesAt are the places of a policy's directions.
func takesAt(p *policy.Policy, o policy.Order) []takes {
	var all []takes
	for _, w := range p.Ways() {
		if d := p.Direction(w, o); d.At != policy.Anywhere {
			all = append(all, takes{d.Caught(), d.At == policy.AtDestination})
		}
	}
	return all
}

// owning gives hosts' policies to the router that depend on one of the router's.
type owning struct {
	out      map[string]Owner
	policies map[string]policy.Policy
	chains   map[string][]string // of hosts' policies
	places   map[takes][]string  // likewise
	crosses  []string            // the router's whose neighbours have to be looked at
	anywhere bool                // hosts' policies that take what endpoints send are the router's already
}

func (o *owning) spread() {
	for len(o.crosses) > 0 {
		name := o.crosses[0]
		o.crosses = o.crosses[1:]
		read := o.policies[name]
		o.take(o.chains[read.Spec.Chain], fmt.Sprintf("policy %s, which the router steers, has the same chain", name))
		delete(o.chains, read.Spec.Chain)
		at := takesAt(&read, policy.SourceFirst)
		if len(at) == 0 && !o.anywhere {
			o.anywhere = true
			for _, place := range slices.SortedFunc(maps.Keys(o.places), func(a, b takes) int { return strings.Compare(a.endpoint, b.endpoint) }) {
				if !place.to {
					o.take(o.places[place], fmt.Sprintf("policy %s, which the router steers, takes frames from every endpoint", name))
				}
			}
		}
		for _, place := range at {
			o.take(o.places[place], fmt.Sprintf("policy %s, which the router steers, takes frames %s, too", name, place))
			delete(o.places, place)
		}
	}
}

func (o *owning) take(names []string, why string) {
	for _, name := range names {
		if o.out[name].Host != "" {
			o.out[name] = Owner{Reason: why}
			o.crosses = append(o.crosses, name)
		}
	}
}
