package intent

import (
	"context"
	"fmt"

	"weir.dev/weir/api"
	"weir.dev/weir/manager/history"
	"weir.dev/weir/manager/object"
	"weir.dev/weir/store"
)

// generationLeap is added to all generations after a restore: what agents have seen of a later state is not taken for this one.
const generationLeap = 1 << 20

// Restored makes a state that came out of a backup the current one: what was reported is not known to be true, and what agents have seen of later
// generations is not this. Agents report anew. Safe to repeat.
func (e *Editor) Restored(ctx context.Context) error {
	return e.Alone(func() error { return e.restored(ctx) })
}

func (e *Editor) restored(ctx context.Context) error {
	for _, n := range object.Nouns() {
		if n.Spec == nil {
			continue
		}
		objects, _, err := store.List[object.Object](ctx, e.Store, n.Kind)
		if err != nil {
			return fmt.Errorf("restore: %w", err)
		}
		for len(objects) > 0 {
			some := objects[:min(len(objects), history.ForgetAtOnce)]
			objects = objects[len(some):]
			var ops []store.Op
			for i := range some {
				o := &some[i]
				o.Generation += generationLeap
				if n.Kind != api.KindHost {
					o.Status = []byte("{}")
				}
				op, err := store.Put(n.Kind, o)
				if err != nil {
					return fmt.Errorf("restore: %w", err)
				}
				ops = append(ops, op)
			}
			if _, err := e.Store.Txn(ctx, nil, ops); err != nil {
				return fmt.Errorf("restore: %w", err)
			}
		}
	}
	return nil
}
