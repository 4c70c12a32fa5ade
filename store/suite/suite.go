// Package suite holds what every store.Store must do. Each implementation's tests call Run.
package suite

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"weir.dev/weir/api"
	"weir.dev/weir/store"
)

const patience = 10 * time.Second

// Run tests one implementation; open makes a fresh, empty store that the suite closes. It may call t.Parallel if stores share nothing.
func Run(t *testing.T, open func(t *testing.T) store.Store) {
	for name, test := range map[string]func(*testing.T, store.Store){
		"a missing key is not found":                       missing,
		"a value is read back at its revision":             readBack,
		"a list is sorted, bounded and of one prefix":      list,
		"an object keeps its revision out of its value":    typed,
		"a precondition that fails changes nothing":        precondition,
		"a transaction of 5,000 operations is one step":    large,
		"two operations on one key are refused":            twice,
		"of 16 racing writers one wins each round":         race,
		"a watch tells batches in order":                   watch,
		"a watch resumes from a revision":                  resume,
		"a watch from a compacted revision is refused":     compacted,
		"a watch from a revision of the future is refused": future,
		"a watch ends with its context":                    watchEnds,
		"a watcher that never reads ends":                  lagging,
		"a closed store refuses":                           closed,
		"one leads and the next waits for its end":         leads,
		"who led cannot write through its fence":           fences,
		"a campaign ends with its context":                 campaignEnds,
	} {
		t.Run(name, func(t *testing.T) {
			s := open(t)
			t.Cleanup(func() {
				if err := s.Close(); err != nil {
					t.Errorf("close: %v", err)
				}
			})
			test(t, s)
		})
	}
}

func ctx(t *testing.T) context.Context {
	c, cancel := context.WithTimeout(t.Context(), 4*patience)
	t.Cleanup(cancel)
	return c
}

func put(t *testing.T, s store.Store, key, value string) int64 {
	t.Helper()
	rev, err := s.Txn(ctx(t), nil, []store.Op{{Key: key, Value: []byte(value)}})
	if err != nil {
		t.Fatalf("put %s: %v", key, err)
	}
	return rev
}

func missing(t *testing.T, s store.Store) {
	if _, err := s.Get(ctx(t), "function/none"); !errors.Is(err, store.ErrNotFound) {
		t.Errorf("get of a missing key: %v, want ErrNotFound", err)
	}
	if n, err := s.Count(ctx(t), "function/"); n != 0 || err != nil {
		t.Errorf("count %d, %v", n, err)
	}
	if _, rev, err := s.List(ctx(t), "", store.ListOptions{}); rev < 1 || err != nil {
		t.Errorf("an empty list is at revision %d, %v: want at least 1", rev, err)
	}
	if _, err := s.Txn(ctx(t), nil, []store.Op{{Key: "function/none"}}); err != nil {
		t.Errorf("removing what is not there: %v", err)
	}
}

func readBack(t *testing.T, s store.Store) {
	first := put(t, s, "function/a", `{"v":1}`)
	second := put(t, s, "function/a", `{"v":2}`)
	if second <= first {
		t.Errorf("revisions %d, %d do not grow", first, second)
	}
	put(t, s, "function/b", `{}`)
	got, err := s.Get(ctx(t), "function/a")
	if err != nil {
		t.Fatal(err)
	}
	want := store.Item{Key: "function/a", Value: []byte(`{"v":2}`), Revision: second}
	if d := cmp.Diff(want, got); d != "" {
		t.Error(d)
	}
}

func list(t *testing.T, s store.Store) {
	for _, k := range []string{"function/c", "function/a", "chain/x", "function/b"} {
		put(t, s, k, k)
	}
	items, rev, err := s.List(ctx(t), "function/", store.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	var keys []string
	for _, i := range items {
		keys = append(keys, i.Key+"="+string(i.Value))
	}
	if d := cmp.Diff([]string{"function/a=function/a", "function/b=function/b", "function/c=function/c"}, keys); d != "" {
		t.Error(d)
	}
	if last := put(t, s, "chain/y", "y"); last != rev+1 {
		t.Errorf("list at revision %d, the next write is %d", rev, last)
	}
	items, _, err = s.List(ctx(t), "function/", store.ListOptions{Limit: 2, KeysOnly: true})
	if err != nil || len(items) != 2 || items[0].Value != nil {
		t.Errorf("two keys: got %v, %v", items, err)
	}
	if n, err := s.Count(ctx(t), "function/"); n != 3 || err != nil {
		t.Errorf("count %d, %v", n, err)
	}
}

func typed(t *testing.T, s store.Store) {
	in := api.Function{Meta: api.Meta{Name: "fw", Revision: 99}, Spec: api.FunctionSpec{Image: "firewall"}}
	op := store.Put(api.KindFunction, &in)
	rev, err := s.Txn(ctx(t), nil, []store.Op{op})
	if err != nil {
		t.Fatal(err)
	}
	want := in
	want.Revision = rev
	got, err := store.Get[api.Function](ctx(t), s, api.KindFunction, "fw")
	if d := cmp.Diff(want, got); d != "" || err != nil {
		t.Error(d, err)
	}
	all, at, err := store.List[api.Function](ctx(t), s, api.KindFunction)
	if d := cmp.Diff([]api.Function{want}, all); d != "" || err != nil || at != rev {
		t.Error(d, err, at)
	}
	if in.Revision != 99 {
		t.Error("Put changed its argument")
	}
}

func precondition(t *testing.T, s store.Store) {
	rev := put(t, s, "chain/a", "1")
	for name, c := range map[string]struct {
		cond store.Cond
		have int64
	}{
		"present, wanted absent": {store.Cond{Key: "chain/a"}, rev},
		"another revision":       {store.Cond{Key: "chain/a", Revision: rev + 7}, rev},
		"absent, wanted":         {store.Cond{Key: "chain/b", Revision: 3}, 0},
	} {
		_, err := s.Txn(ctx(t), []store.Cond{{Key: "chain/zz"}, c.cond}, []store.Op{{Key: "chain/a"}, {Key: "chain/n", Value: []byte("n")}})
		var conflict *store.ConflictError
		if !errors.As(err, &conflict) || !errors.Is(err, store.ErrConflict) {
			t.Fatalf("%s: %v, want a ConflictError", name, err)
		}
		if d := cmp.Diff(&store.ConflictError{Key: c.cond.Key, Want: c.cond.Revision, Have: c.have}, conflict); d != "" {
			t.Errorf("%s: %s", name, d)
		}
	}
	if i, err := s.Get(ctx(t), "chain/a"); err != nil || i.Revision != rev {
		t.Errorf("changed by a refused transaction: %v, %v", i, err)
	}
	if _, err := s.Get(ctx(t), "chain/n"); !errors.Is(err, store.ErrNotFound) {
		t.Errorf("half done: %v", err)
	}
	if _, err := s.Txn(ctx(t), []store.Cond{{Key: "chain/a", Revision: rev}, {Key: "chain/n"}}, []store.Op{{Key: "chain/a"}}); err != nil {
		t.Errorf("all preconditions hold: %v", err)
	}
}

func large(t *testing.T, s store.Store) {
	const n = 5000
	var ops []store.Op
	var conds []store.Cond
	for i := range n {
		key := fmt.Sprintf("policy/p%05d", i)
		conds = append(conds, store.Cond{Key: key})
		ops = append(ops, store.Op{Key: key, Value: make([]byte, 300)})
	}
	put(t, s, fmt.Sprintf("policy/p%05d", n-1), "in the way")
	if _, err := s.Txn(ctx(t), conds, ops); !errors.Is(err, store.ErrConflict) {
		t.Fatalf("one of %d exists: %v", n, err)
	}
	if c, _ := s.Count(ctx(t), "policy/"); c != 1 {
		t.Fatalf("%d keys after a refused transaction, want 1", c)
	}
	rev, err := s.Txn(ctx(t), conds[:n-1], ops)
	if err != nil {
		t.Fatal(err)
	}
	items, at, err := s.List(ctx(t), "policy/", store.ListOptions{})
	if err != nil || len(items) != n || at != rev {
		t.Fatalf("%d keys at %d, %v", len(items), at, err)
	}
	for _, i := range items {
		if i.Revision != rev {
			t.Fatalf("%s at revision %d, want %d as all", i.Key, i.Revision, rev)
		}
	}
}

func twice(t *testing.T, s store.Store) {
	_, err := s.Txn(ctx(t), nil, []store.Op{{Key: "a/b", Value: []byte("1")}, {Key: "a/b", Value: []byte("2")}})
	if err == nil {
		t.Error("accepted")
	}
	if n, _ := s.Count(ctx(t), ""); n != 0 {
		t.Error("half done")
	}
}

func race(t *testing.T, s store.Store) {
	rev := put(t, s, "chain/a", "0")
	for round := range 5 {
		var won atomic.Int64
		var next atomic.Int64
		var wg sync.WaitGroup
		for w := range 16 {
			wg.Go(func() {
				r, err := s.Txn(ctx(t), []store.Cond{{Key: "chain/a", Revision: rev}}, []store.Op{{Key: "chain/a", Value: fmt.Append(nil, w)}})
				if err == nil {
					won.Add(1)
					next.Store(r)
				} else if !errors.Is(err, store.ErrConflict) {
					t.Errorf("round %d: %v", round, err)
				}
			})
		}
		wg.Wait()
		if won.Load() != 1 {
			t.Fatalf("round %d: %d winners", round, won.Load())
		}
		rev = next.Load()
	}
}

// next reads the next batch that has events.
func next(t *testing.T, w store.Watch) store.Batch {
	t.Helper()
	late := time.After(patience)
	for {
		select {
		case b, ok := <-w.C:
			if !ok {
				t.Fatalf("watch ended: %v", w.Err())
			}
			if len(b.Events) > 0 {
				return b
			}
		case <-late:
			t.Fatal("no batch came")
		}
	}
}

func ended(t *testing.T, w store.Watch) error {
	t.Helper()
	late := time.After(patience)
	for {
		select {
		case _, ok := <-w.C:
			if !ok {
				return w.Err()
			}
		case <-late:
			t.Fatal("watch did not end")
		}
	}
}

func watch(t *testing.T, s store.Store) {
	start := put(t, s, "chain/old", "old")
	w, err := s.Watch(ctx(t), "chain/", start)
	if err != nil {
		t.Fatal(err)
	}
	put(t, s, "function/other", "x")
	a := put(t, s, "chain/a", "1")
	b, err := s.Txn(ctx(t), nil, []store.Op{{Key: "chain/a", Value: []byte("2")}, {Key: "chain/old"}, {Key: "function/other"}})
	if err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(store.Batch{Revision: a, Events: []store.Event{{Key: "chain/a", Value: []byte("1")}}}, next(t, w)); d != "" {
		t.Error(d)
	}
	want := store.Batch{Revision: b, Events: []store.Event{{Key: "chain/a", Value: []byte("2"), Last: []byte("1")}, {Key: "chain/old", Last: []byte("old")}}}
	if d := cmp.Diff(want, next(t, w)); d != "" {
		t.Error(d)
	}
}

func resume(t *testing.T, s store.Store) {
	var revs []int64
	for i := range 20 {
		revs = append(revs, put(t, s, fmt.Sprintf("chain/%02d", i), "x"))
	}
	w, err := s.Watch(ctx(t), "chain/", revs[9])
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range revs[10:] {
		if b := next(t, w); b.Revision != want {
			t.Fatalf("revision %d, want %d", b.Revision, want)
		}
	}
}

func compacted(t *testing.T, s store.Store) {
	old := put(t, s, "chain/a", "1")
	put(t, s, "chain/a", "2")
	last := put(t, s, "chain/a", "3")
	if err := s.Compact(ctx(t), last); err != nil {
		t.Fatal(err)
	}
	if err := s.Compact(ctx(t), last); err != nil {
		t.Errorf("compacting twice: %v", err)
	}
	if w, err := s.Watch(ctx(t), "chain/", old-1); err == nil {
		t.Errorf("accepted; ended with %v", ended(t, w))
	} else if !errors.Is(err, store.ErrCompacted) {
		t.Errorf("%v, want ErrCompacted", err)
	}
	w, err := s.Watch(ctx(t), "chain/", last)
	if err != nil {
		t.Fatalf("from the compaction on: %v", err)
	}
	put(t, s, "chain/a", "4")
	next(t, w)
}

func future(t *testing.T, s store.Store) {
	rev := put(t, s, "chain/a", "1")
	if _, err := s.Watch(ctx(t), "chain/", rev+1000); !errors.Is(err, store.ErrCompacted) {
		t.Errorf("%v, want ErrCompacted", err)
	}
}

func watchEnds(t *testing.T, s store.Store) {
	c, cancel := context.WithCancel(ctx(t))
	w, err := s.Watch(c, "", put(t, s, "chain/a", "1"))
	if err != nil {
		t.Fatal(err)
	}
	cancel()
	if err := ended(t, w); err != nil {
		t.Errorf("ended with %v, want nil", err)
	}
}

func lagging(t *testing.T, s store.Store) {
	w, err := s.Watch(ctx(t), "chain/", put(t, s, "chain/a", "0"))
	if err != nil {
		t.Fatal(err)
	}
	deadline := time.Now().Add(patience)
	for i := 0; w.Err() == nil; i++ {
		if time.Now().After(deadline) {
			t.Fatal("a watcher that never reads goes on")
		}
		put(t, s, "chain/a", fmt.Sprint(i))
	}
	if err := ended(t, w); !errors.Is(err, store.ErrLagging) {
		t.Errorf("ended with %v, want ErrLagging", err)
	}
}

func closed(t *testing.T, s store.Store) {
	w, err := s.Watch(ctx(t), "", put(t, s, "chain/a", "1"))
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	if err := ended(t, w); err == nil {
		t.Error("the watch ended without an error")
	}
	if _, err := s.Get(ctx(t), "chain/a"); !errors.Is(err, store.ErrStopped) {
		t.Errorf("get: %v, want ErrStopped", err)
	}
	if _, err := s.Txn(ctx(t), nil, []store.Op{{Key: "chain/a", Value: []byte("2")}}); !errors.Is(err, store.ErrStopped) {
		t.Errorf("put: %v, want ErrStopped", err)
	}
}
