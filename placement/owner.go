package placement

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	"weir.dev/weir/api"
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
	o := owning{out: out, policies: make(map[string]reading, len(policies)), chains: map[string][]string{}, places: map[takes][]string{}}
	for _, name := range slices.Sorted(maps.Keys(policies)) {
		spec := read(policies[name])
		o.policies[name] = spec
		host, why := p.holder(spec, hosts[spec.Chain])
		if out[name] = (Owner{host, why}); host == "" {
			o.crosses = append(o.crosses, name)
			continue
		}
		o.chains[spec.Chain] = append(o.chains[spec.Chain], name)
		for _, at := range takesAt(spec, true) {
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

// reading is a policy with the endpoints that it names, "" where a selector names none.
type reading struct {
	api.PolicySpec
	from, to string
}

func read(spec api.PolicySpec) reading {
	endpoint := func(selector string) string {
		s, err := api.ParseSelector(selector)
		if err != nil || s.Kind != api.SelectEndpoint {
			return ""
		}
		return s.Endpoint
	}
	return reading{spec, endpoint(spec.From), endpoint(spec.To)}
}

// holder is the host where all that a policy names is.
func (p Places) holder(spec reading, c onHost) (host, why string) {
	if c.host == "" {
		return "", cmp.Or(c.why, fmt.Sprintf("there is no chain %s", spec.Chain))
	}
	named := 0
	for _, name := range []string{spec.from, spec.to} {
		switch at := p.Endpoints[name]; {
		case name == "":
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

// takesAt are the places: package router looks at the destination first, package fabric at the source.
func takesAt(spec reading, host bool) []takes {
	ends := [][2]string{{spec.from, spec.to}}
	if spec.IsSymmetric() {
		ends = append(ends, [2]string{spec.to, spec.from})
	}
	var all []takes
	for _, e := range ends {
		switch src, dst := e[0], e[1]; {
		case dst != "" && (host || src == ""):
			all = append(all, takes{dst, true})
		case src != "":
			all = append(all, takes{src, false})
		}
	}
	return all
}

// owning gives hosts' policies to the router that depend on one of the router's.
type owning struct {
	out      map[string]Owner
	policies map[string]reading
	chains   map[string][]string // of hosts' policies
	places   map[takes][]string  // likewise
	crosses  []string            // the router's whose neighbours have to be looked at
	anywhere bool                // hosts' policies that take what endpoints send are the router's already
}

func (o *owning) spread() {
	for len(o.crosses) > 0 {
		name := o.crosses[0]
		o.crosses = o.crosses[1:]
		spec := o.policies[name]
		o.take(o.chains[spec.Chain], fmt.Sprintf("policy %s, which the router steers, has the same chain", name))
		delete(o.chains, spec.Chain)
		at := takesAt(spec, false)
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
