package manager

import "weir.dev/weir/api"

// changed are the objects that an edit makes or changes, as a document of their own.
func (st *state) changed(d api.Document) api.Document {
	out := api.Document{
		Endpoints: map[string]api.EndpointSpec{}, Functions: map[string]api.FunctionSpec{},
		Chains: map[string]api.ChainSpec{}, Policies: map[string]api.PolicySpec{},
	}
	for _, r := range st.order {
		switch r.kind {
		case api.KindEndpoint:
			pick(out.Endpoints, d.Endpoints, r.name)
		case api.KindFunction:
			pick(out.Functions, d.Functions, r.name)
		case api.KindChain:
			pick(out.Chains, d.Chains, r.name)
		case api.KindPolicy:
			pick(out.Policies, d.Policies, r.name)
		}
	}
	return out
}

func pick[S any](into, from map[string]S, name string) {
	if s, ok := from[name]; ok { // else it is being deleted
		into[name] = s
	}
}
