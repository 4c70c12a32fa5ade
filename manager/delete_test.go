package manager_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"weir.dev/weir/api"
	"weir.dev/weir/manager"
	"weir.dev/weir/store"
	"weir.dev/weir/store/mem"
)

// txnCount counts the transactions that touch policies, and those that make operations.
type txnCount struct {
	store.Store
	policies, operations atomic.Int64
}

func (c *txnCount) Txn(ctx context.Context, conds []store.Cond, ops []store.Op) (int64, error) {
	touches := func(kind api.Kind) bool {
		return slices.ContainsFunc(ops, func(o store.Op) bool { return strings.HasPrefix(o.Key, store.Prefix(kind)) })
	}
	if touches(api.KindPolicy) {
		c.policies.Add(1)
	}
	if touches(api.KindOperation) {
		c.operations.Add(1)
	}
	return c.Store.Txn(ctx, conds, ops)
}

// More objects than operations are kept are deleted in one transaction. Operations of others stay.
func TestManyObjectsAreDeletedInOneTransaction(t *testing.T) {
	for _, n := range []int{1_500, 10_000} {
		t.Run(fmt.Sprint(n), func(t *testing.T) {
			s := &txnCount{Store: mem.New()}
			b := start(t, manager.Options{Store: s})
			d := many(n)
			must(b.Apply(ctx(t), api.ApplyRequest{Document: d}))(t)
			must(b.Functions().Put(ctx(t), "other", api.FunctionSpec{Image: "wire"}))(t)
			op := must(b.Functions().Delete(ctx(t), "other"))(t)
			policies, operations := s.policies.Load(), s.operations.Load()

			request := api.DeleteRequest{Endpoints: slices.Collect(maps.Keys(d.Endpoints)), Functions: slices.Collect(maps.Keys(d.Functions)),
				Chains: slices.Collect(maps.Keys(d.Chains)), Policies: slices.Collect(maps.Keys(d.Policies))}
			request.Policies = append(request.Policies, "none", "guests")
			got := must(b.Delete(ctx(t), request))(t)
			if want := len(d.Endpoints) + len(d.Functions) + len(d.Chains) + len(d.Policies); len(got.Changes) != want {
				t.Errorf("%d objects are deleted, want %d", len(got.Changes), want)
			}
			if p, o := s.policies.Load()-policies, s.operations.Load()-operations; p != 1 || o != 0 {
				t.Errorf("%d transactions with policies, want 1; %d with operations, want 0", p, o)
			}
			for _, p := range must(b.Policies().List(ctx(t), api.ListOptions{}))(t).Items {
				if p.Deleting == nil || p.Revision != got.Revision {
					t.Fatalf("policy %s: deleting %v at revision %d, want all at %d", p.Name, p.Deleting, p.Revision, got.Revision)
				}
			}
			if left := must(b.Chains().List(ctx(t), api.ListOptions{}))(t).Items; len(left) != 0 {
				t.Errorf("%d chains are left", len(left))
			}
			if _, err := b.Operations().Get(ctx(t), op.Name); err != nil {
				t.Errorf("operation of someone else: %v", err)
			}
		})
	}
}

// What an object that stays uses is not deleted, and then nothing is; what is named with its user is.
func TestDeletingManyIsAllOrNothing(t *testing.T) {
	b := start(t, manager.Options{})
	must(b.Apply(ctx(t), api.ApplyRequest{Document: demo()}))(t)
	must(b.Functions().Put(ctx(t), "free", api.FunctionSpec{Image: "wire"}))(t)
	before := dump(t, b.store)
	for name, x := range map[string]struct {
		request api.DeleteRequest
		says    []string
	}{
		"one in use": {api.DeleteRequest{Functions: []string{"free", "w1"}}, []string{"function w1 is in use by chain/web: nothing was changed"}},
		"two in use": {api.DeleteRequest{Functions: []string{"free", "w1"}, Endpoints: []string{"bob"}},
			[]string{"2 objects are in use by others: nothing was changed", "chain/web: uses function/w1", "policy/guests: uses endpoint/bob"}},
	} {
		_, err := b.Delete(ctx(t), x.request)
		if !errors.Is(err, api.ErrConflict) {
			t.Errorf("%s: %v, want a conflict", name, err)
			continue
		}
		for _, want := range x.says {
			if !strings.Contains(err.Error(), want) {
				t.Errorf("%s: says %q, want %q", name, err, want)
			}
		}
	}
	if after := dump(t, b.store); !maps.Equal(before, after) {
		t.Error("refused, but changed")
	}
	must(b.Delete(ctx(t), api.DeleteRequest{Chains: []string{"web"}, Policies: []string{"guests"}}))(t)
}
