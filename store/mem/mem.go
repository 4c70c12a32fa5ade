// Package mem is a store in memory: the fake for tests. It passes the same suite as etcd.
package mem

import (
	"context"
	"fmt"
	"slices"
	"sort"
	"strings"
	"sync"

	"weir.dev/weir/store"
)

// history is how many revisions are kept for watches; older ones are compacted.
const history = 10_000

// Store is a store.Store in memory.
type Store struct {
	mu        sync.Mutex
	revision  int64
	compacted int64
	items     map[string]store.Item
	log       []store.Batch // revisions compacted+1 ... revision
	watchers  map[*watcher]struct{}
	leaders   map[string]*leader
	closed    bool
}

// leader is who leads under a name.
type leader struct {
	revision int64
	lost     chan struct{}
}

type watcher struct {
	prefix string
	c      chan store.Batch
	err    error
}

// New makes an empty store. As etcd's, its revision begins at 1.
func New() *Store {
	return &Store{revision: 1, compacted: 1, items: map[string]store.Item{}, watchers: map[*watcher]struct{}{}, leaders: map[string]*leader{}}
}

// Get implements store.Store.
func (s *Store) Get(ctx context.Context, key string) (store.Item, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.ready(ctx); err != nil {
		return store.Item{}, err
	}
	i, ok := s.items[key]
	if !ok {
		return store.Item{}, fmt.Errorf("%s: %w", key, store.ErrNotFound)
	}
	return i, nil
}

// List implements store.Store.
func (s *Store) List(ctx context.Context, prefix string, o store.ListOptions) ([]store.Item, int64, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.ready(ctx); err != nil {
		return nil, 0, err
	}
	var out []store.Item
	for key, i := range s.items {
		if strings.HasPrefix(key, prefix) {
			if o.KeysOnly {
				i.Value = nil
			}
			out = append(out, i)
		}
	}
	sort.Slice(out, func(a, b int) bool { return out[a].Key < out[b].Key })
	if o.Limit > 0 && len(out) > o.Limit {
		out = out[:o.Limit]
	}
	return out, s.revision, nil
}

// Count implements store.Store.
func (s *Store) Count(ctx context.Context, prefix string) (int, error) {
	items, _, err := s.List(ctx, prefix, store.ListOptions{KeysOnly: true})
	return len(items), err
}

// Txn implements store.Store.
func (s *Store) Txn(ctx context.Context, conds []store.Cond, ops []store.Op) (int64, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.ready(ctx); err != nil {
		return 0, err
	}
	for _, c := range conds {
		if have := s.items[c.Key].Revision; have != c.Revision {
			return 0, &store.ConflictError{Key: c.Key, Want: c.Revision, Have: have}
		}
	}
	seen := map[string]bool{}
	b := store.Batch{Revision: s.revision + 1}
	for _, op := range ops {
		if seen[op.Key] {
			return 0, fmt.Errorf("transaction has two operations on %s: want one", op.Key)
		}
		seen[op.Key] = true
		old, ok := s.items[op.Key]
		if op.Value == nil {
			if ok {
				b.Events = append(b.Events, store.Event{Key: op.Key, Last: old.Value})
			}
			continue
		}
		b.Events = append(b.Events, store.Event{Key: op.Key, Value: slices.Clone(op.Value), Last: old.Value})
	}
	if len(b.Events) == 0 {
		return s.revision, nil
	}
	s.commit(b)
	return s.revision, nil
}

func (s *Store) commit(b store.Batch) {
	s.revision = b.Revision
	for _, e := range b.Events {
		if e.Value == nil {
			delete(s.items, e.Key)
			continue
		}
		s.items[e.Key] = store.Item{Key: e.Key, Value: e.Value, Revision: b.Revision}
	}
	s.log = append(s.log, b)
	if len(s.log) > history {
		s.forget(s.revision - history/2)
	}
	for w := range s.watchers {
		s.tell(w, b)
	}
}

// tell gives a watcher its part of a batch; one that has no room left ends.
func (s *Store) tell(w *watcher, b store.Batch) {
	mine := store.Batch{Revision: b.Revision}
	for _, e := range b.Events {
		if strings.HasPrefix(e.Key, w.prefix) {
			mine.Events = append(mine.Events, e)
		}
	}
	if len(mine.Events) == 0 {
		return
	}
	select {
	case w.c <- mine:
	default:
		s.end(w, store.ErrLagging)
	}
}

func (s *Store) end(w *watcher, err error) {
	if _, ok := s.watchers[w]; ok {
		delete(s.watchers, w)
		w.err = err
		close(w.c)
	}
}

// Watch implements store.Store.
func (s *Store) Watch(ctx context.Context, prefix string, after int64) (store.Watch, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.ready(ctx); err != nil {
		return store.Watch{}, err
	}
	if after < s.compacted-1 || after > s.revision {
		return store.Watch{}, fmt.Errorf("watch %s from revision %d: %w (known: %d to %d)", prefix, after, store.ErrCompacted, s.compacted, s.revision)
	}
	w := &watcher{prefix: prefix}
	var past []store.Batch
	for _, b := range s.log {
		if b.Revision > after {
			past = append(past, b)
		}
	}
	w.c = make(chan store.Batch, store.WatchBuffer+len(past))
	s.watchers[w] = struct{}{}
	for _, b := range past {
		s.tell(w, b)
	}
	context.AfterFunc(ctx, func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.end(w, nil)
	})
	return store.Watch{C: w.c, Err: func() error {
		s.mu.Lock()
		defer s.mu.Unlock()
		return w.err
	}}, nil
}

// Lead implements store.Store.
func (s *Store) Lead(ctx context.Context, name, holder string) (store.Lease, error) {
	for {
		s.mu.Lock()
		if err := s.ready(ctx); err != nil {
			s.mu.Unlock()
			return store.Lease{}, err
		}
		old := s.leaders[name]
		if old == nil {
			defer s.mu.Unlock()
			return s.lead(name, holder), nil
		}
		s.mu.Unlock()
		select {
		case <-old.lost:
		case <-ctx.Done():
			return store.Lease{}, fmt.Errorf("lead %s: %w", name, ctx.Err())
		}
	}
}

func (s *Store) lead(name, holder string) store.Lease {
	key := "lease/" + name
	s.commit(store.Batch{Revision: s.revision + 1, Events: []store.Event{{Key: key, Value: []byte(holder)}}})
	l := &leader{revision: s.revision, lost: make(chan struct{})}
	s.leaders[name] = l
	return store.Lease{
		Lost: l.lost, Fence: store.Cond{Key: key, Revision: l.revision},
		Resign: func(context.Context) error {
			s.mu.Lock()
			defer s.mu.Unlock()
			s.depose(name, l)
			return nil
		},
	}
}

// depose ends a leadership that has not ended yet.
func (s *Store) depose(name string, l *leader) {
	if s.leaders[name] != l {
		return
	}
	delete(s.leaders, name)
	if i, ok := s.items["lease/"+name]; ok {
		s.commit(store.Batch{Revision: s.revision + 1, Events: []store.Event{{Key: i.Key, Last: i.Value}}})
	}
	close(l.lost)
}

// Depose ends whoever leads under a name, as a lease does that could not be renewed.
func (s *Store) Depose(name string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if l := s.leaders[name]; l != nil {
		s.depose(name, l)
	}
}

// Compact implements store.Store.
func (s *Store) Compact(ctx context.Context, revision int64) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.ready(ctx); err != nil {
		return err
	}
	if revision > s.revision {
		return fmt.Errorf("compact at revision %d: the store is at %d", revision, s.revision)
	}
	s.forget(revision)
	return nil
}

func (s *Store) forget(revision int64) {
	s.compacted = max(s.compacted, revision)
	s.log = slices.DeleteFunc(s.log, func(b store.Batch) bool { return b.Revision < s.compacted })
}

// Close implements store.Store.
func (s *Store) Close() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	for name, l := range s.leaders {
		s.depose(name, l)
	}
	s.closed = true
	for w := range s.watchers {
		s.end(w, store.ErrStopped)
	}
	return nil
}

func (s *Store) ready(ctx context.Context) error {
	if s.closed {
		return store.ErrStopped
	}
	return ctx.Err()
}
