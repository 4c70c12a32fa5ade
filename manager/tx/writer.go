package tx

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"weir.dev/weir/api"
	"weir.dev/weir/manager/history"
	"weir.dev/weir/manager/object"
	"weir.dev/weir/store"
)

// Attempts is how often a transaction is prepared when other managers write at the same time.
const Attempts = 10

// maxOperations are kept.
const maxOperations = 1_000

// Change is what one transaction writes.
type Change struct {
	Conds      []store.Cond
	Ops        []store.Op
	Events     []api.Event
	Operations []*api.Operation // new ones
}

// Add writes an object in place of what is at a revision; 0: nothing is.
func Add[T any, P store.Object[T]](c *Change, kind api.Kind, v P, at int64) {
	op := store.Put(kind, v)
	c.Conds, c.Ops = append(c.Conds, store.Cond{Key: op.Key, Revision: at}), append(c.Ops, op)
}

// Remove removes what is at a revision.
func (c *Change) Remove(kind api.Kind, name string, at int64) {
	op := store.Delete(kind, name)
	c.Conds, c.Ops = append(c.Conds, store.Cond{Key: op.Key, Revision: at}), append(c.Ops, op)
}

// Tell adds an event.
func (c *Change) Tell(e api.Event) { c.Events = append(c.Events, e) }

// Writer writes for this process, one transaction at a time. Other managers are kept apart by preconditions.
type Writer struct {
	Store store.Store
	Log   *slog.Logger
	Now   func() time.Time

	mu      sync.Mutex
	repeats history.Repeats // while mu is held

	infos, warnings, errors atomic.Uint64 // events that were written
}

// Write writes a change, and returns its revision; 0: it is empty.
func (w *Writer) Write(ctx context.Context, c Change) (revision int64, err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.commit(ctx, c)
}

// Loop writes what prepare returns. When another manager was faster, it is prepared anew.
func (w *Writer) Loop(ctx context.Context, what string, prepare func() (Change, error)) (revision int64, err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for range Attempts {
		c, err := prepare()
		if err == nil {
			revision, err = w.commit(ctx, c)
		}
		if !errors.Is(err, store.ErrConflict) {
			return revision, err
		}
	}
	return 0, OthersWrite(what)
}

// Alone runs f while nobody else in this process writes.
func (w *Writer) Alone(f func() error) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	return f()
}

// OthersWrite says that a transaction could not be written because other managers were faster each time.
func OthersWrite(what string) error {
	return api.Refuse(http.StatusServiceUnavailable, fmt.Sprintf("others changed the %s %d times meanwhile: try again", what, Attempts))
}

// Events is how many events were written, by severity; those that are counted as one are several.
func (w *Writer) Events() map[api.Severity]uint64 {
	return map[api.Severity]uint64{api.Info: w.infos.Load(), api.Warning: w.warnings.Load(), api.Error: w.errors.Load()}
}

func (w *Writer) commit(ctx context.Context, c Change) (revision int64, err error) {
	if w.repeats == nil {
		w.repeats = history.Repeats{}
	}
	told, fresh, err := w.repeats.Add(w.Now().UTC(), c.Events)
	if err != nil {
		return 0, err
	}
	ops := append(c.Ops, told...)
	for _, made := range c.Operations {
		o, err := object.OperationOps(made)
		if err != nil {
			return 0, err
		}
		ops = append(ops, o...)
	}
	if len(ops) == 0 {
		return 0, nil
	}
	if revision, err = w.Store.Txn(ctx, c.Conds, ops); err != nil {
		return 0, err
	}
	w.repeats.Keep(fresh)
	for _, e := range c.Events {
		switch e.Severity {
		case api.Error:
			w.errors.Add(1)
		case api.Warning:
			w.warnings.Add(1)
		default:
			w.infos.Add(1)
		}
	}
	for _, made := range c.Operations {
		made.Revision = revision
	}
	w.trim(ctx, c)
	return revision, nil
}

// trim makes room after a change. It is no fault of the request if that fails: the next one tries again.
func (w *Writer) trim(ctx context.Context, c Change) {
	if len(c.Operations) > 0 {
		if err := trimOperations(ctx, w.Store); err != nil {
			w.Log.Warn("trim history", "kind", api.KindOperation, "error", err)
		}
	}
	if len(c.Events) > 0 {
		if err := history.Trim(ctx, w.Store, api.KindEvent, history.MaxEvents+history.EventSlack, history.MaxEvents); err != nil {
			w.Log.Warn("trim history", "kind", api.KindEvent, "error", err)
		}
	}
}

// trimOperations removes the oldest operations: their names sort by time.
func trimOperations(ctx context.Context, s store.Store) error {
	n, err := s.Count(ctx, store.Prefix(api.KindOperation))
	if err != nil || n <= maxOperations {
		return err
	}
	old, _, err := s.List(ctx, store.Prefix(api.KindOperation), store.ListOptions{Limit: n - maxOperations})
	if err != nil {
		return err
	}
	var ops []store.Op
	for _, i := range old {
		ops = append(ops, store.Op{Key: i.Key})
		var op api.Operation
		if json.Unmarshal(i.Value, &op) == nil {
			ops = append(ops, store.Op{Key: object.OpenKey(&op)})
		}
	}
	_, err = s.Txn(ctx, nil, ops)
	return err
}

// Put writes one object, if it is at a revision still; 0: it is not there.
func Put[T any, P store.Object[T]](ctx context.Context, s store.Store, kind api.Kind, v P, at int64) error {
	var c Change
	Add(&c, kind, v, at)
	_, err := s.Txn(ctx, c.Conds, c.Ops)
	return err
}

// Update changes one object. When another manager was faster, it is changed anew. change returns false to leave the object as it is.
func Update[T any, P store.Object[T]](ctx context.Context, s store.Store, kind api.Kind, name string, change func(v P) (bool, error)) (T, error) {
	for range Attempts {
		v, err := store.Get[T, P](ctx, s, kind, name)
		if err != nil {
			return v, err
		}
		at := P(&v).Metadata().Revision
		if changed, err := change(&v); err != nil || !changed {
			return v, err
		}
		if err = Put(ctx, s, kind, P(&v), at); !errors.Is(err, store.ErrConflict) {
			return v, err
		}
	}
	var none T
	return none, OthersWrite(string(kind))
}
