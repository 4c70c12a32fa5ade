package manager

import (
	"context"
	"fmt"
	"io"
	"net/http"

	"weir.dev/weir/api"
	"weir.dev/weir/api/backup"
	"weir.dev/weir/store"
)

// generationLeap is added to all generations after a restore: what agents have seen of a later state is not taken for this one.
const generationLeap = 1 << 20

// Backup writes all that the store holds at one revision, secrets included.
func (m *Manager) Backup(ctx context.Context, w io.Writer) (backup.Header, error) {
	h := backup.Header{Version: m.Version, Made: m.Now().UTC()}
	values, revision, err := store.Backup(ctx, m.Store)
	if err != nil {
		return h, fmt.Errorf("backup: %w", err)
	}
	h.Revision, h.Values = revision, len(values)
	if m.SecretsKey != nil {
		if h.SecretsKey, err = m.SecretsKey(); err != nil {
			return h, fmt.Errorf("backup: %w", err)
		}
	}
	return h, backup.Write(w, h, values)
}

// backup answers with a backup. What it holds is worth as much as the token of an admin.
func (m *Manager) backup(w http.ResponseWriter, r *http.Request) error {
	release, err := acquire(m.backups, "backups")
	if err != nil {
		return err
	}
	defer release()
	out := &late{w: w, r: r}
	_, err = m.Backup(r.Context(), out)
	if out.begun { // the client is gone, or the checksum at the end is missing: it sees that
		return nil
	}
	return err
}

// late begins an answer with its first bytes: what fails before is a problem.
type late struct {
	w     http.ResponseWriter
	r     *http.Request
	begun bool
}

func (l *late) Write(p []byte) (int, error) {
	if !l.begun {
		l.begun = true
		l.w.Header().Set("Content-Type", "application/jsonl")
		l.w.Header().Set("Cache-Control", "no-store")
		note(l.r).began(http.StatusOK)
	}
	return flushing{l.w, http.NewResponseController(l.w)}.Write(p)
}

// Restored makes a state that came out of a backup the current one: what was reported is not known to be true, and what agents have seen of later
// generations is not this. Agents report anew. Safe to repeat.
func (m *Manager) Restored(ctx context.Context) error {
	m.mu.Lock()
	defer m.mu.Unlock()
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

// Revision is the store's.
func (m *Manager) Revision(ctx context.Context) (int64, error) {
	_, revision, err := m.Store.List(ctx, store.Prefix(api.KindChain), store.ListOptions{KeysOnly: true, Limit: 1})
	return revision, err
}
