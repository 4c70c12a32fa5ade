package intent

import (
	"slices"

	"weir.dev/weir/api"
	"weir.dev/weir/manager/object"
)

// crossing tells of changed chains whose functions are on several hosts and up already: no agent will, and nothing else may change.
func (st *state) crossing() error {
	find := func(kind api.Kind, name string) (*object.Object, error) { return st.get(kind, name), nil }
	where := &object.Places{Find: find}
	for _, r := range slices.Clone(st.order) {
		o := st.get(r.Kind, r.Name)
		if r.Kind != api.KindChain || o == nil || o.Deleting != nil {
			continue
		}
		if _, local, err := where.OfChain(r.Name); err != nil || local {
			if err != nil {
				return err
			}
			continue
		}
		var spec api.ChainSpec
		if err := o.Into(&spec, nil); err != nil {
			return err
		}
		s, err := object.ChainStatus(o, spec.Functions(), func(name string) (*object.Object, error) { return find(api.KindFunction, name) })
		if err != nil {
			return err
		}
		if s.State == api.ChainReady {
			next := *o
			next.Status = object.Marshal(s)
			st.objects[r.Kind][r.Name] = &next
		}
	}
	return nil
}
