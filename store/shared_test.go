package store_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"weir.dev/weir/store"
)

// keysOf reads a watch until it has told of n changes.
func keysOf(t *testing.T, w store.Watch, n int) (keys []string) {
	t.Helper()
	late := time.After(20 * time.Second)
	for len(keys) < n {
		select {
		case b, ok := <-w.C:
			if !ok {
				t.Errorf("the watch ended after %d of %d changes: %v", len(keys), n, w.Err())
				return keys
			}
			for _, e := range b.Events {
				keys = append(keys, fmt.Sprintf("%s@%d", e.Key, b.Revision))
			}
		case <-late:
			t.Errorf("%d of %d changes came", len(keys), n)
			return keys
		}
	}
	return keys
}

// TestWatchersShareWhatEtcdTells: many watchers, from many revisions, those too old to be remembered included, have each change once and in order; those that
// end or do not read disturb nobody.
func TestWatchersShareWhatEtcdTells(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	s := open(t, options(shortDir(t)))
	write := func(key string) string {
		t.Helper()
		r, err := s.Txn(ctx, nil, []store.Op{{Key: key, Value: []byte(`{}`)}})
		if err != nil {
			t.Fatal(err)
		}
		return fmt.Sprintf("%s@%d", key, r)
	}
	start, err := s.Txn(ctx, nil, []store.Op{{Key: "host/first", Value: []byte(`{}`)}})
	if err != nil {
		t.Fatal(err)
	}
	deaf, err := s.Watch(ctx, "", start)
	if err != nil {
		t.Fatal(err)
	}
	short, leave := context.WithCancel(ctx)
	defer leave()
	if _, err := s.Watch(short, "", start); err != nil {
		t.Fatal(err)
	}
	var told []string
	const past = 1100 // more than what is remembered
	for n := range past {
		told = append(told, write([]string{"policy/a", "chain/b"}[n%2]))
		if n == past/2 {
			leave()
		}
	}
	under := func(prefix string, from int) (out []string) {
		for _, key := range told[from:] {
			if strings.HasPrefix(key, prefix) {
				out = append(out, key)
			}
		}
		return out
	}
	type follower struct {
		prefix string
		from   int
		got    []string
	}
	var followers []*follower
	var wg sync.WaitGroup
	const more = 20
	for _, from := range []int{0, 1, past / 2, past - 1, past} {
		for _, prefix := range []string{"", "policy/", "chain/"} {
			w, err := s.Watch(ctx, prefix, start+int64(from))
			if err != nil {
				t.Fatal(err)
			}
			f := &follower{prefix: prefix, from: from}
			followers = append(followers, f)
			n := len(under(prefix, from)) + more
			if prefix != "" {
				n -= more / 2 // half of the later ones are policies, half chains
			}
			wg.Go(func() { f.got = keysOf(t, w, n) })
		}
	}
	for n := range more {
		told = append(told, write([]string{"policy/a", "chain/b"}[n%2]))
	}
	wg.Wait()
	for _, f := range followers {
		if d := cmp.Diff(under(f.prefix, f.from), f.got); d != "" {
			t.Errorf("%q from change %d: %s", f.prefix, f.from, d)
		}
	}
	for range deaf.C { // what was kept for it
	}
	if err := deaf.Err(); !errors.Is(err, store.ErrLagging) {
		t.Errorf("a watcher that did not read ended with %v, want ErrLagging", err)
	}
}

// BenchmarkWatchers is what a change costs until all watchers know of it.
func BenchmarkWatchers(b *testing.B) {
	for _, n := range []int{1, 100} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			s := open(b, options(shortDir(b)))
			r, err := s.Txn(b.Context(), nil, []store.Op{{Key: "chain/a", Value: []byte(`{}`)}})
			if err != nil {
				b.Fatal(err)
			}
			var watches []store.Watch
			for range n {
				w, err := s.Watch(b.Context(), "chain/", r)
				if err != nil {
					b.Fatal(err)
				}
				watches = append(watches, w)
			}
			for b.Loop() {
				if _, err := s.Txn(b.Context(), nil, []store.Op{{Key: "chain/a", Value: []byte(`{}`)}}); err != nil {
					b.Fatal(err)
				}
				for _, w := range watches {
					<-w.C
				}
			}
		})
	}
}
