package intent

import (
	"context"
	"crypto/sha256"
	"slices"

	"weir.dev/weir/api"
	"weir.dev/weir/manager/object"
)

// Verdict is what hosts say of what is new or changed in a document.
type Verdict struct {
	Problems []api.Problem
	Warnings []string // hosts that should have been asked and did not answer
}

// hearing is a verdict and what it is about.
type hearing struct {
	about   [sha256.Size]byte
	verdict Verdict
}

// askFirst ends an edit that hosts have to be asked about: it holds the lock, and a host may take its time.
type askFirst struct {
	about      [sha256.Size]byte
	d, changed api.Document
}

func (*askFirst) Error() string { return "hosts have to be asked first" }

// hear asks the hosts about what the edit changes, unless they have been asked about just that.
func (st *state) hear(ctx context.Context, d, changed api.Document) (Verdict, error) {
	if len(changed.Endpoints)+len(changed.Functions)+len(changed.Chains)+len(changed.Policies) == 0 {
		return Verdict{}, nil
	}
	about := subject(d, changed)
	switch {
	case st.heard != nil && st.heard.about == about:
	case st.locked:
		return Verdict{}, &askFirst{about, d, changed}
	default:
		st.heard = &hearing{about, st.e.Admit(ctx, d, changed)}
	}
	return st.heard.verdict, nil
}

// subject sums up what a verdict depends on: what is new or changed, other endpoints where some are, the chains that changed functions are in with
// the images of their functions, and, for the room in a switch, how many policies there are. What fits by that and not in the end is closed.
func subject(d, changed api.Document) [sha256.Size]byte {
	about := struct {
		Changed   api.Document
		Endpoints map[string]api.EndpointSpec
		Chains    map[string]string
		Images    map[string]string
		Policies  int
	}{changed, nil, map[string]string{}, map[string]string{}, len(d.Policies)}
	if len(changed.Endpoints) > 0 {
		about.Endpoints = d.Endpoints
	}
	for name, c := range d.Chains {
		members := c.Functions()
		_, new := changed.Chains[name]
		if !new && !slices.ContainsFunc(members, func(f string) bool { _, ok := changed.Functions[f]; return ok }) {
			continue
		}
		about.Chains[name] = c.Path
		for _, f := range members {
			about.Images[f] = d.Functions[f].Image
		}
	}
	return sha256.Sum256(object.Marshal(about))
}

// changed are the objects that an edit makes or changes, as a document of their own.
func (st *state) changed(d api.Document) api.Document {
	out := api.Document{
		Endpoints: map[string]api.EndpointSpec{}, Functions: map[string]api.FunctionSpec{},
		Chains: map[string]api.ChainSpec{}, Policies: map[string]api.PolicySpec{},
	}
	for _, r := range st.order {
		switch r.Kind {
		case api.KindEndpoint:
			pick(out.Endpoints, d.Endpoints, r.Name)
		case api.KindFunction:
			pick(out.Functions, d.Functions, r.Name)
		case api.KindChain:
			pick(out.Chains, d.Chains, r.Name)
		case api.KindPolicy:
			pick(out.Policies, d.Policies, r.Name)
		}
	}
	return out
}

func pick[S any](into, from map[string]S, name string) {
	if s, ok := from[name]; ok { // else it is being deleted
		into[name] = s
	}
}
