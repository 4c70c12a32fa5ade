package manager

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"sync"
	"time"

	"weir.dev/weir/api"
	"weir.dev/weir/store"
)

// editAttempts is how often a transaction is prepared when other managers write at the same time.
const editAttempts = 10

// maxOperations are kept.
const maxOperations = 1_000

// change is what one transaction writes.
type change struct {
	conds      []store.Cond
	ops        []store.Op
	events     []api.Event
	operations []*api.Operation // new ones
}

// writer writes for this process, one transaction at a time. Other managers are kept apart by preconditions.
type writer struct {
	Store store.Store
	Log   *slog.Logger
	Now   func() time.Time

	mu      sync.Mutex
	repeats repeats // while mu is held
}

// write writes a change, and returns its revision; 0: it is empty.
func (w *writer) write(ctx context.Context, c change) (revision int64, err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.commit(ctx, c)
}

// loop writes what prepare returns. When another manager was faster, it is prepared anew.
func (w *writer) loop(ctx context.Context, what string, prepare func() (change, error)) (revision int64, err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for range editAttempts {
		c, err := prepare()
		if err == nil {
			revision, err = w.commit(ctx, c)
		}
		if !errors.Is(err, store.ErrConflict) {
			return revision, err
		}
	}
	return 0, othersWrite(what)
}

// alone runs f while nobody else in this process writes.
func (w *writer) alone(f func() error) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	return f()
}

// othersWrite says that a transaction could not be written because other managers were faster each time.
func othersWrite(what string) error {
	return api.Refuse(http.StatusServiceUnavailable, fmt.Sprintf("others changed the %s %d times meanwhile: try again", what, editAttempts))
}

func (w *writer) commit(ctx context.Context, c change) (revision int64, err error) {
	told, fresh, err := w.repeats.add(w.Now().UTC(), c.events)
	if err != nil {
		return 0, err
	}
	ops := append(c.ops, told...)
	for _, made := range c.operations {
		o, err := operationOps(made)
		if err != nil {
			return 0, err
		}
		ops = append(ops, o...)
	}
	if len(ops) == 0 {
		return 0, nil
	}
	if revision, err = w.Store.Txn(ctx, c.conds, ops); err != nil {
		return 0, err
	}
	w.repeats.keep(fresh)
	for _, made := range c.operations {
		made.Revision = revision
	}
	w.trim(ctx, c)
	return revision, nil
}

// trim makes room after a change. It is no fault of the request if that fails: the next one tries again.
func (w *writer) trim(ctx context.Context, c change) {
	if len(c.operations) > 0 {
		if err := trimOperations(ctx, w.Store); err != nil {
			w.Log.Warn("trim history", "kind", api.KindOperation, "error", err)
		}
	}
	if len(c.events) > 0 {
		if err := trimSources(ctx, w.Store, api.KindEvent, maxEvents+eventSlack, maxEvents); err != nil {
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
			ops = append(ops, store.Op{Key: openKey(&op)})
		}
	}
	_, err = s.Txn(ctx, nil, ops)
	return err
}
