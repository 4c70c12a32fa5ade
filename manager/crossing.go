package manager

import (
	"slices"

	"weir.dev/weir/api"
)

// crossing tells of changed chains whose functions are on several hosts and up already: no agent will, and nothing else may change.
func (st *state) crossing() error {
	find := func(kind api.Kind, name string) (*object, error) { return st.get(kind, name), nil }
	where := &whereabouts{find: find}
	for _, r := range slices.Clone(st.order) {
		o := st.get(r.kind, r.name)
		if r.kind != api.KindChain || o == nil || o.Deleting != nil {
			continue
		}
		if _, local, _, err := where.ofChain(r.name); err != nil || local {
			if err != nil {
				return err
			}
			continue
		}
		var spec api.ChainSpec
		if err := o.into(&spec, nil); err != nil {
			return err
		}
		s, err := chainStatus(o, spec.Functions(), func(name string) (*object, error) { return find(api.KindFunction, name) })
		if err != nil {
			return err
		}
		if s.State == api.ChainReady {
			next := *o
			next.Status = marshal(s)
			st.objects[r.kind][r.name] = &next
		}
	}
	return nil
}
