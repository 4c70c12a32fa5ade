package store

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
)

// Watch implements Store. All watchers of a process share one watch of etcd, which would read, send and check each change once for each of them. One that
// begins before what that watch remembers has its own.
func (s *Etcd) Watch(ctx context.Context, prefix string, after int64) (Watch, error) {
	if err := s.known(ctx, prefix, after); err != nil {
		return Watch{}, err
	}
	if w, ok := s.shared.watch(ctx, prefix, after); ok {
		return w, nil
	}
	w := newWatcher(prefix, after, 0)
	ctx, cancel := context.WithCancel(ctx)
	in := s.direct(ctx, prefix, after)
	go func() {
		defer cancel()
		w.end(s.pump(ctx, in, func(c change) error {
			events := c.under(prefix)
			for began := time.Now(); ; time.Sleep(time.Millisecond) {
				err := w.hand(c, events)
				if !errors.Is(err, ErrLagging) || ctx.Err() != nil || time.Since(began) >= catchUp {
					return err
				}
			}
		}))
	}()
	return w.Watch(), nil
}

// catchUp is how long a watch of its own waits for its reader: what has passed comes faster than it can be read.
const catchUp = time.Second

// direct is a watch of etcd itself.
func (s *Etcd) direct(ctx context.Context, prefix string, after int64) clientv3.WatchChan {
	return s.client.Watch(clientv3.WithRequireLeader(ctx), s.prefix+prefix, clientv3.WithPrefix(),
		clientv3.WithRev(after+1), clientv3.WithPrevKV(), clientv3.WithProgressNotify())
}

// known asks etcd whether it still has, and has reached, a revision: a watch would tell the first late, the second never.
func (s *Etcd) known(ctx context.Context, prefix string, after int64) error {
	ctx, cancel, err := s.begin(ctx)
	if err != nil {
		return err
	}
	defer cancel()
	_, err = s.client.Get(ctx, s.prefix+prefix, clientv3.WithPrefix(), clientv3.WithCountOnly(), clientv3.WithRev(max(after, 1)))
	if err != nil {
		return fmt.Errorf("watch %s from revision %d: %w", prefix, after, s.fault(ctx, err))
	}
	return nil
}

// change is all of one revision.
type change struct {
	Batch
	bad  map[string]error // keys whose value cannot be read
	size int              // octets of keys and values
}

// under is what of a change is below a prefix.
func (c change) under(prefix string) []Event {
	if prefix == "" {
		return c.Events
	}
	var out []Event
	for _, e := range c.Events {
		if strings.HasPrefix(e.Key, prefix) {
			out = append(out, e)
		}
	}
	return out
}

// pump hands on etcd's answers, one change a revision. nil: ctx ended.
func (s *Etcd) pump(ctx context.Context, in clientv3.WatchChan, hand func(change) error) error {
	var failed <-chan struct{}
	if s.embedded != nil {
		failed = s.embedded.fault.ctx.Done()
	}
	for {
		var r clientv3.WatchResponse
		var ok bool
		select {
		case <-failed:
			return s.embedded.fault.get()
		case r, ok = <-in:
		}
		if !ok {
			if ctx.Err() != nil {
				return nil
			}
			return ErrStopped
		}
		if err := r.Err(); err != nil {
			if ctx.Err() != nil {
				return nil
			}
			return s.fault(ctx, err)
		}
		for _, c := range s.changes(r) {
			if err := hand(c); err != nil {
				return err
			}
		}
	}
}

// changes splits an answer by revision: etcd never splits a revision over two answers.
func (s *Etcd) changes(r clientv3.WatchResponse) []change {
	if r.IsProgressNotify() {
		return []change{{Batch: Batch{Revision: r.Header.Revision}}}
	}
	var out []change
	for _, e := range r.Events {
		if len(out) == 0 || out[len(out)-1].Revision != e.Kv.ModRevision {
			out = append(out, change{Batch: Batch{Revision: e.Kv.ModRevision}})
		}
		c := &out[len(out)-1]
		ev := Event{Key: strings.TrimPrefix(string(e.Kv.Key), s.prefix)}
		var err error
		switch put := e.Type == clientv3.EventTypePut; {
		case put && e.PrevKv != nil:
			ev.Last, _ = unseal(ev.Key, e.PrevKv.Value) // nil: it was damaged, and is mended now
			fallthrough
		case put:
			ev.Value, err = s.open(ev.Key, e.Kv.Value)
		case e.PrevKv != nil:
			ev.Last, err = s.open(ev.Key, e.PrevKv.Value)
		}
		if err != nil {
			if c.bad == nil {
				c.bad = map[string]error{}
			}
			c.bad[ev.Key] = err
		}
		c.size += len(ev.Key) + len(ev.Value) + len(ev.Last)
		c.Events = append(c.Events, ev)
	}
	return out
}

// watcher is one watch as its caller has it. Its methods but end may not be called from several goroutines at once.
type watcher struct {
	prefix string
	after  int64 // what is not later is known to the caller
	told   time.Time
	out    chan Batch

	mu    sync.Mutex
	over  bool
	cause error
}

// newWatcher has room for more batches than others.
func newWatcher(prefix string, after int64, more int) *watcher {
	return &watcher{prefix: prefix, after: after, told: time.Now(), out: make(chan Batch, WatchBuffer+more)}
}

func (w *watcher) Watch() Watch {
	return Watch{C: w.out, Err: func() error {
		w.mu.Lock()
		defer w.mu.Unlock()
		return w.cause
	}}
}

// hand passes a change on, of which events are this watcher's: an error ends it.
func (w *watcher) hand(c change, events []Event) error {
	if c.Revision <= w.after || len(events) == 0 && len(c.Events) > 0 {
		return nil
	}
	for key, err := range c.bad {
		if strings.HasPrefix(key, w.prefix) {
			return err
		}
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.over {
		return nil
	}
	select {
	case w.out <- Batch{Revision: c.Revision, Events: events}:
		w.told = time.Now()
		return nil
	default:
		return ErrLagging
	}
}

// end closes the watch; nil: its context has ended.
func (w *watcher) end(err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.over {
		return
	}
	w.over = true
	if err != nil {
		w.cause = fmt.Errorf("watch %s: %w", w.prefix, err)
	}
	close(w.out)
}

// Bounds of what a shared watch remembers for watchers that begin later, or again.
const (
	maxPast     = 1024 // changes
	maxPastSize = 8 << 20
)

// quietMost is how long a watcher hears nothing of what passes elsewhere: where it resumes from would be forgotten.
const quietMost = time.Minute

// shared is the watch of everything that the watchers of a process have in common. It begins with the first of them and ends with the store.
type shared struct {
	s *Etcd

	mu       sync.Mutex
	running  bool
	after    int64    // past has all changes from after this revision on
	past     []change // the oldest first
	size     int      // of past
	watchers map[*watcher]struct{}
}

// watch adds a watcher; false: what it wants is not remembered.
func (h *shared) watch(ctx context.Context, prefix string, after int64) (Watch, bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	switch {
	case !h.running:
		h.running, h.after, h.past, h.size, h.watchers = true, after, nil, 0, map[*watcher]struct{}{}
		go h.run(h.s.direct(h.s.client.Ctx(), "", after))
	case after < h.after:
		return Watch{}, false
	}
	w := newWatcher(prefix, after, len(h.past))
	h.watchers[w] = struct{}{}
	for _, c := range h.past {
		if err := w.hand(c, c.under(prefix)); err != nil {
			h.drop(w, err)
			return w.Watch(), true
		}
	}
	context.AfterFunc(ctx, func() {
		h.mu.Lock()
		defer h.mu.Unlock()
		h.drop(w, nil)
	})
	return w.Watch(), true
}

func (h *shared) drop(w *watcher, err error) {
	delete(h.watchers, w)
	w.end(err)
}

// run hands on what etcd tells until that ends. The next watcher begins it anew.
func (h *shared) run(in clientv3.WatchChan) {
	err := h.s.pump(context.Background(), in, func(c change) error {
		h.hand(c)
		return nil
	})
	h.mu.Lock()
	defer h.mu.Unlock()
	for w := range h.watchers {
		h.drop(w, err)
	}
	h.running, h.past, h.watchers = false, nil, nil
}

func (h *shared) hand(c change) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if len(c.Events) > 0 {
		h.past = append(h.past, c)
		h.size += c.size
		for len(h.past) > maxPast || h.size > maxPastSize {
			h.after, h.size = h.past[0].Revision, h.size-h.past[0].size
			h.past[0] = change{}
			h.past = h.past[1:]
		}
	}
	of := map[string][]Event{} // by prefix: many watchers want the same
	quiet := change{Batch: Batch{Revision: c.Revision}}
	for w := range h.watchers {
		events, known := of[w.prefix]
		if !known {
			events = c.under(w.prefix)
			of[w.prefix] = events
		}
		err := w.hand(c, events)
		if err == nil && len(events) == 0 && time.Since(w.told) > quietMost {
			err = w.hand(quiet, nil)
		}
		if err != nil {
			h.drop(w, err)
		}
	}
}
