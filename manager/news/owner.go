package news

import (
	"context"
	"errors"
	"slices"

	"weir.dev/weir/api"
	"weir.dev/weir/manager/object"
	"weir.dev/weir/store"
)

// lookup finds objects as they are in the store, each once; many are read a kind at a time.
func (n *news) lookup(ctx context.Context, many int) *object.Places {
	cache := map[api.Kind]map[string]*object.Object{}
	return &object.Places{Find: func(kind api.Kind, name string) (*object.Object, error) {
		if cache[kind] == nil {
			cache[kind] = map[string]*object.Object{}
			if many >= manyStatuses {
				all, err := n.read(ctx, kind, make([]string, manyStatuses))
				if err != nil {
					return nil, err
				}
				cache[kind] = all
			}
		}
		if o, seen := cache[kind][name]; seen || many >= manyStatuses {
			return o, nil
		}
		o, err := store.Get[object.Object](ctx, n.in.Store, kind, name)
		if errors.Is(err, store.ErrNotFound) {
			cache[kind][name] = nil
			return nil, nil
		}
		if err != nil {
			return nil, err
		}
		cache[kind][name] = &o
		return &o, nil
	}}
}

// owns tells whether an object is the reporter's to tell about: an endpoint or function that is placed on it, a chain all of whose
// functions are, a policy that it steers. What was moved meanwhile is not: late news are left out.
func (n *news) owns(kind api.Kind, o *object.Object) (bool, error) {
	if n.router {
		return kind != api.KindPolicy || o.Placement.Routed(), nil
	}
	if n.reporter == "" {
		return true, nil
	}
	switch kind {
	case api.KindEndpoint:
		var spec api.EndpointSpec
		if err := o.Into(&spec, nil); err != nil {
			return false, err
		}
		return spec.OfHost() && n.at(o), nil
	case api.KindChain:
		if !n.several {
			return true, nil
		}
		host, ok, err := n.where.OfChain(o.Name)
		return ok && host == n.reporter, err
	case api.KindPolicy:
		return n.at(o) && (o.Placement == nil || !o.Placement.Router), nil
	}
	return n.at(o), nil
}

// at tells whether an object is placed at the reporter. Of what is nowhere only the manager knows how it is, unless the reporter is the only host.
func (n *news) at(o *object.Object) bool { return o.At() == n.reporter || o.At() == "" && !n.several }

// note remembers functions of which more than figures has changed.
func (n *news) note(o *object.Object, now api.FunctionStatus) {
	var spec api.FunctionSpec
	var old api.FunctionStatus
	if o.Into(&spec, &old) == nil && (old.State != now.State || old.Healthy != now.Healthy || now.State == api.FunctionDeleted) {
		n.turned = append(n.turned, o.Name)
	}
}

// crossing tells how chains are whose functions are on several hosts, of which no agent knows all: the reported change of one of them
// is the occasion.
func (n *news) crossing(ctx context.Context) error {
	if !n.several || len(n.turned) == 0 {
		return nil
	}
	chains, _, err := store.List[object.Object](ctx, n.in.Store, api.KindChain)
	if err != nil {
		return err
	}
	for i := range chains {
		var spec api.ChainSpec
		if err := chains[i].Into(&spec, nil); err != nil {
			return err
		}
		members := spec.Functions()
		if !slices.ContainsFunc(members, func(f string) bool { return slices.Contains(n.turned, f) }) {
			continue
		}
		if _, local, err := n.where.OfChain(chains[i].Name); err != nil || local {
			if err != nil {
				return err
			}
			continue
		}
		status, err := n.chainStatus(&chains[i], members)
		if err != nil {
			return err
		}
		if err := n.put(api.KindChain, &chains[i], object.Marshal(status)); err != nil {
			return err
		}
	}
	return nil
}

func (n *news) chainStatus(chain *object.Object, members []string) (api.ChainStatus, error) {
	return object.ChainStatus(chain, members, func(name string) (*object.Object, error) {
		if news, changed := n.changed[object.Ref{Kind: api.KindFunction, Name: name}]; changed {
			return news, nil
		}
		return n.where.Find(api.KindFunction, name)
	})
}

// manyStatuses is from how many objects on a kind is read at once instead of one by one.
const manyStatuses = 8
