package news

import (
	"context"
	"errors"
	"fmt"

	"weir.dev/weir/api"
	"weir.dev/weir/manager/history"
	"weir.dev/weir/manager/object"
	"weir.dev/weir/store"
)

// ForgetStatus clears what the agent of this process and the router had reported of endpoints, functions, chains and policies, for a
// start after which none of it can be true: until they report anew these count as pending. What other hosts have told stays: they do
// not say it again. Safe to repeat.
func (in *Intake) ForgetStatus(ctx context.Context) error {
	return in.Alone(func() error { return in.forgetStatus(ctx) })
}

func (in *Intake) forgetStatus(ctx context.Context) error {
	where := (&news{in: in}).lookup(ctx, manyStatuses)
	for _, kind := range []api.Kind{api.KindEndpoint, api.KindFunction, api.KindChain, api.KindPolicy} {
		objects, _, err := store.List[object.Object](ctx, in.Store, kind)
		if err != nil {
			return fmt.Errorf("forget old status: %w", err)
		}
		var ops []store.Op
		var conds []store.Cond
		flush := func() error {
			if len(ops) == 0 {
				return nil
			}
			_, err := in.Store.Txn(ctx, conds, ops)
			ops, conds = nil, nil
			if errors.Is(err, store.ErrConflict) {
				return nil // someone has news already
			}
			return err
		}
		for i := range objects {
			o := &objects[i]
			if len(o.Status) == 0 || string(o.Status) == "{}" {
				continue
			}
			elsewhere, err := in.elsewhere(kind, o, where)
			if err != nil {
				return fmt.Errorf("forget old status: %w", err)
			}
			if elsewhere {
				continue
			}
			o.Status = []byte("{}")
			op, err := store.Put(kind, o)
			if err != nil {
				return fmt.Errorf("forget old status: %w", err)
			}
			ops, conds = append(ops, op), append(conds, store.Cond{Key: store.Key(kind, o.Name), Revision: o.Revision})
			if len(ops) == history.ForgetAtOnce {
				if err := flush(); err != nil {
					return fmt.Errorf("forget old status: %w", err)
				}
			}
		}
		if err := flush(); err != nil {
			return fmt.Errorf("forget old status: %w", err)
		}
	}
	return nil
}

// elsewhere tells whether another host's agent has told how an object is.
func (in *Intake) elsewhere(kind api.Kind, o *object.Object, where *object.Places) (bool, error) {
	if in.Host == "" {
		return false, nil
	}
	switch kind {
	case api.KindEndpoint, api.KindFunction, api.KindPolicy:
		return o.At() != "" && o.At() != in.Host, nil
	case api.KindChain:
		host, local, err := where.OfChain(o.Name)
		return local && host != in.Host, err
	}
	return false, nil
}
