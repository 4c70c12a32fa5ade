package intent

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"

	"weir.dev/weir/api"
)

// Standing is what statuses tell a trace.
type Standing struct {
	Macs     map[string]string // of endpoints
	Down     map[string]bool   // functions
	Policies map[string]api.PolicyStatus
}

// Standing is the desired state, and what statuses tell of it.
func (e *Editor) Standing(ctx context.Context) (api.Document, Standing, error) {
	st, err := e.load(ctx)
	if err != nil {
		return api.Document{}, Standing{}, err
	}
	d, err := st.document()
	if err != nil {
		return api.Document{}, Standing{}, err
	}
	now := Standing{Macs: map[string]string{}, Down: map[string]bool{}}
	endpoints, err1 := known[api.EndpointStatus](st, api.KindEndpoint)
	functions, err2 := known[api.FunctionStatus](st, api.KindFunction)
	policies, err3 := known[api.PolicyStatus](st, api.KindPolicy)
	for name, s := range endpoints {
		now.Macs[name] = s.MAC
	}
	for name, s := range functions {
		now.Down[name] = !s.Healthy
	}
	now.Policies = policies
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
