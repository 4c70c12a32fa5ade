package manager

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"

	"weir.dev/weir/api"
)

// standing is what statuses tell a trace.
type standing struct {
	macs     map[string]string // of endpoints
	down     map[string]bool   // functions
	policies map[string]api.PolicyStatus
}

// standing is the desired state, and what statuses tell of it.
func (m *Manager) standing(ctx context.Context) (api.Document, standing, error) {
	st, err := m.load(ctx)
	if err != nil {
		return api.Document{}, standing{}, err
	}
	d, err := st.document()
	if err != nil {
		return api.Document{}, standing{}, err
	}
	now := standing{macs: map[string]string{}, down: map[string]bool{}}
	endpoints, err1 := known[api.EndpointStatus](st, api.KindEndpoint)
	functions, err2 := known[api.FunctionStatus](st, api.KindFunction)
	policies, err3 := known[api.PolicyStatus](st, api.KindPolicy)
	for name, s := range endpoints {
		now.macs[name] = s.MAC
	}
	for name, s := range functions {
		now.down[name] = !s.Healthy
	}
	now.policies = policies
	return d, now, errors.Join(err1, err2, err3)
}

// known are the statuses of a kind.
func known[S any](st *state, kind api.Kind) (map[string]S, error) {
	out := make(map[string]S, len(st.objects[kind]))
	for name, o := range st.objects[kind] {
		var s S
		if len(o.Status) > 0 {
			if err := json.Unmarshal(o.Status, &s); err != nil {
				return nil, fmt.Errorf("stored %s/%s: %w", kind, name, err)
			}
		}
		out[name] = s
	}
	return out, nil
}
