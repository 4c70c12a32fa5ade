package news

import (
	"context"
	"slices"

	"errors"
	"fmt"

	"weir.dev/weir/api"
	"weir.dev/weir/manager/history"
	"weir.dev/weir/manager/object"
	"weir.dev/weir/manager/tx"
	"weir.dev/weir/store"
)

// owns tells whether an object is the reporter's to tell about: an endpoint or function that is placed on it, a chain all of whose
// functions are, a policy that it steers. What was moved meanwhile is not: late news are left out.
func (n *news) owns(ctx context.Context, kind api.Kind, o *object.Object) (bool, error) {
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
		host, ok, err := object.ChainHost(o.Name, n.finder(ctx))
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
		if _, local, err := object.ChainHost(chains[i].Name, n.finder(ctx)); err != nil || local {
			if err != nil {
				return err
			}
			continue
		}
		status, err := object.ChainStatus(&chains[i], members, func(kind api.Kind, name string) (*object.Object, error) {
			if news, changed := n.changed[object.Ref{Kind: kind, Name: name}]; changed {
				return news, nil
			}
			return n.find(ctx, kind, name)
		})
		if err != nil {
			return err
		}
		status.Conditions = n.dated(&chains[i], status.Conditions)
		if err := n.put(api.KindChain, &chains[i], object.Marshal(status)); err != nil {
			return err
		}
	}
	return nil
}

func (n *news) finder(ctx context.Context) object.Finder {
	return func(kind api.Kind, name string) (*object.Object, error) { return n.find(ctx, kind, name) }
}

// ForgetStatus clears what the agent of this process and the router had reported of endpoints, functions, chains and policies, for a
// start after which none of it can be true: until they report anew these count as pending. What other hosts have told stays: they do
// not say it again. Safe to repeat.
func (in *Intake) ForgetStatus(ctx context.Context) error {
	if err := in.Alone(func() error { return in.forgetStatus(ctx) }); err != nil {
		return fmt.Errorf("forget old status: %w", err)
	}
	return nil
}

func (in *Intake) forgetStatus(ctx context.Context) error {
	n := in.begin()
	n.many = true
	for _, kind := range []api.Kind{api.KindEndpoint, api.KindFunction, api.KindChain, api.KindPolicy} {
		objects, _, err := store.List[object.Object](ctx, in.Store, kind)
		if err != nil {
			return err
		}
		for some := range slices.Chunk(objects, history.ForgetAtOnce) {
			var c tx.Change
			for i := range some {
				o := &some[i]
				elsewhere, err := in.elsewhere(kind, o, n.finder(ctx))
				if err != nil {
					return err
				}
				if elsewhere || len(o.Status) == 0 || string(o.Status) == "{}" {
					continue
				}
				o.Status = []byte("{}")
				tx.Add(&c, kind, o, o.Revision)
			}
			if len(c.Ops) == 0 {
				continue
			}
			if _, err := in.Store.Txn(ctx, c.Conds, c.Ops); err != nil && !errors.Is(err, store.ErrConflict) { // else someone has news already
				return err
			}
		}
	}
	return nil
}

// elsewhere tells whether another host's agent has told how an object is.
func (in *Intake) elsewhere(kind api.Kind, o *object.Object, find object.Finder) (bool, error) {
	if in.Host == "" {
		return false, nil
	}
	switch kind {
	case api.KindEndpoint, api.KindFunction, api.KindPolicy:
		return o.At() != "" && o.At() != in.Host, nil
	case api.KindChain:
		host, local, err := object.ChainHost(o.Name, find)
		return local && host != in.Host, err
	}
	return false, nil
}
