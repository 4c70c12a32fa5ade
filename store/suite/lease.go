package suite

import (
	"context"
	"errors"
	"testing"
	"time"

	"weir.dev/weir/store"
)

func lead(t *testing.T, s store.Store, name, holder string) store.Lease {
	t.Helper()
	l, err := s.Lead(ctx(t), name, holder)
	if err != nil {
		t.Fatalf("lead %s: %v", name, err)
	}
	return l
}

func over(l store.Lease) bool {
	select {
	case <-l.Lost:
		return true
	default:
		return false
	}
}

func mustEnd(t *testing.T, l store.Lease) {
	t.Helper()
	select {
	case <-l.Lost:
	case <-time.After(patience):
		t.Fatal("leadership does not end")
	}
}

func resign(t *testing.T, l store.Lease) {
	t.Helper()
	if err := l.Resign(ctx(t)); err != nil {
		t.Fatal(err)
	}
}

func leads(t *testing.T, s store.Store) {
	first, other := lead(t, s, "place", "m1"), lead(t, s, "control", "m1")
	type won struct {
		lease store.Lease
		err   error
	}
	next := make(chan won, 2)
	for range 2 {
		go func() {
			l, err := s.Lead(ctx(t), "place", "m2")
			next <- won{l, err}
		}()
	}
	select {
	case w := <-next:
		t.Fatalf("two lead at once: %v", w.err)
	case <-time.After(300 * time.Millisecond): // nothing to wait for: it must not happen
	}
	if over(first) || over(other) {
		t.Fatal("a leadership ended by itself")
	}
	for range 2 {
		resign(t, first)
		resign(t, first) // again
		mustEnd(t, first)
		w := <-next
		if w.err != nil || over(w.lease) {
			t.Fatalf("the next leads: %v", w.err)
		}
		if len(next) > 0 {
			t.Fatal("and the one after it at once")
		}
		first = w.lease
	}
	if over(other) {
		t.Error("a leadership of another name ended")
	}
	resign(t, first)
	resign(t, other)
}

func fences(t *testing.T, s store.Store) {
	l := lead(t, s, "place", "m1")
	write := func() error {
		_, err := s.Txn(ctx(t), []store.Cond{l.Fence}, []store.Op{{Key: "host/h1", Value: []byte("{}")}})
		return err
	}
	for range 2 {
		if err := write(); err != nil {
			t.Fatalf("the leader writes: %v", err)
		}
	}
	resign(t, l)
	if err := write(); !errors.Is(err, store.ErrConflict) {
		t.Errorf("who has resigned writes: %v", err)
	}
	next := lead(t, s, "place", "m2")
	if err := write(); !errors.Is(err, store.ErrConflict) {
		t.Errorf("who was succeeded writes: %v", err)
	}
	resign(t, next)
}

func campaignEnds(t *testing.T, s store.Store) {
	l := lead(t, s, "place", "m1")
	c, cancel := context.WithTimeout(ctx(t), 200*time.Millisecond)
	defer cancel()
	if _, err := s.Lead(c, "place", "m2"); !errors.Is(err, context.DeadlineExceeded) {
		t.Fatalf("a campaign without a chance: %v", err)
	}
	resign(t, l)
	resign(t, lead(t, s, "place", "m3")) // whoever gave up is not in the way
	keys, _, err := s.List(ctx(t), "lease/", store.ListOptions{KeysOnly: true})
	if err != nil || len(keys) > 0 {
		t.Errorf("left behind: %v, %v", keys, err)
	}
}
