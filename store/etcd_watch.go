package store

import (
	"context"
	"fmt"
	"strings"
	"sync"

	clientv3 "go.etcd.io/etcd/client/v3"
)

// Watch implements Store.
func (s *Etcd) Watch(ctx context.Context, prefix string, after int64) (Watch, error) {
	if err := s.known(ctx, prefix, after); err != nil {
		return Watch{}, err
	}
	ctx, cancel := context.WithCancel(ctx)
	in := s.client.Watch(clientv3.WithRequireLeader(ctx), s.prefix+prefix, clientv3.WithPrefix(),
		clientv3.WithRev(after+1), clientv3.WithPrevKV(), clientv3.WithProgressNotify())
	out := make(chan Batch, WatchBuffer)
	var mu sync.Mutex
	var cause error
	go func() {
		defer close(out)
		defer cancel()
		err := s.pump(ctx, in, out)
		mu.Lock()
		defer mu.Unlock()
		if err != nil {
			cause = fmt.Errorf("watch %s: %w", prefix, err)
		}
	}()
	return Watch{C: out, Err: func() error {
		mu.Lock()
		defer mu.Unlock()
		return cause
	}}, nil
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

// pump moves etcd's answers into the bounded channel, one batch a revision. nil: ctx ended.
func (s *Etcd) pump(ctx context.Context, in clientv3.WatchChan, out chan<- Batch) error {
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
		batches, err := s.batches(r)
		if err != nil {
			return err
		}
		for _, b := range batches {
			select {
			case out <- b:
			default:
				return ErrLagging
			}
		}
	}
}

// batches splits an answer by revision: etcd never splits a revision over two answers.
func (s *Etcd) batches(r clientv3.WatchResponse) ([]Batch, error) {
	if r.IsProgressNotify() {
		return []Batch{{Revision: r.Header.Revision}}, nil
	}
	var out []Batch
	for _, e := range r.Events {
		if len(out) == 0 || out[len(out)-1].Revision != e.Kv.ModRevision {
			out = append(out, Batch{Revision: e.Kv.ModRevision})
		}
		ev := Event{Key: strings.TrimPrefix(string(e.Kv.Key), s.prefix)}
		var err error
		if e.Type == clientv3.EventTypePut {
			ev.Value, err = s.open(ev.Key, e.Kv.Value)
		} else if e.PrevKv != nil {
			ev.Last, err = s.open(ev.Key, e.PrevKv.Value)
		}
		if err != nil {
			return nil, err
		}
		b := &out[len(out)-1]
		b.Events = append(b.Events, ev)
	}
	return out, nil
}
