package manager

import (
	"context"
	"fmt"

	"weir.dev/weir/api"
	"weir.dev/weir/store"
)

// Restored makes a state that came out of a backup the current one: what was reported is not known to be true, and what agents have seen of later
// generations is not this. Agents report anew. Safe to repeat.
func (m *Manager) Restored(ctx context.Context) error {
	return m.writer.alone(func() error { return m.restored(ctx) })
}

func (m *Manager) restored(ctx context.Context) error {
	for _, n := range nouns() {
		if n.spec == nil {
			continue
		}
		objects, _, err := store.List[object](ctx, m.Store, n.kind)
		if err != nil {
			return fmt.Errorf("restore: %w", err)
		}
		for len(objects) > 0 {
			some := objects[:min(len(objects), forgetAtOnce)]
			objects = objects[len(some):]
			var ops []store.Op
			for i := range some {
				o := &some[i]
				o.Generation += generationLeap
				if n.kind != api.KindHost {
					o.Status = []byte("{}")
				}
				op, err := store.Put(n.kind, o)
				if err != nil {
					return fmt.Errorf("restore: %w", err)
				}
				ops = append(ops, op)
			}
			if _, err := m.Store.Txn(ctx, nil, ops); err != nil {
				return fmt.Errorf("restore: %w", err)
			}
		}
	}
	return nil
}
