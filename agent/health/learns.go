package health

import (
	"slices"

	"weir.dev/weir/api"
)

// A bridge that learns addresses sends no frame back by the port where it came in. Where policies lead frames both from a station and to it into the
// same port of a function, as two one-way policies that share a chain do, such a bridge in the function drops them, and nobody else knows.

// BothWays finds the inline functions one port of which gets frames from a station and frames to it, and the policies by which it does.
func BothWays(chains map[string]api.ChainSpec, policies map[string]api.PolicySpec) map[string][]string {
	type port struct {
		function string
		out      bool
	}
	type traffic struct{ from, to, policies []string }
	at := map[port]*traffic{}
	add := func(p port, from, to, policy string) {
		t := at[p]
		if t == nil {
			t = &traffic{}
			at[p] = t
		}
		t.from, t.to, t.policies = append(t.from, from), append(t.to, to), append(t.policies, policy)
	}
	for name, p := range policies {
		if p.ModeOrDefault() == api.ModeReplica {
			continue
		}
		for _, h := range chains[p.Chain].Hops() {
			if h.Tap {
				continue
			}
			add(port{h.Function, false}, p.From, p.To, name)
			if p.IsSymmetric() {
				add(port{h.Function, true}, p.To, p.From, name)
			}
		}
	}
	// Where frames to an endpoint come in by the port at which its own frames do, a function that is a bridge does not hand them on.
	found := map[string][]string{}
	for p, t := range at {
		for i, from := range t.from {
			for j, to := range t.to {
				if i != j && from != "" && from == to {
					found[p.function] = append(found[p.function], t.policies[i], t.policies[j])
				}
			}
		}
	}
	for f, names := range found {
		slices.Sort(names)
		found[f] = slices.Compact(names)
	}
	return found
}
