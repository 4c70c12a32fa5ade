package manager_test

import (
	"fmt"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"

	"weir.dev/weir/api"
	"weir.dev/weir/manager"
	"weir.dev/weir/store"
)

// Who steers a policy is decided with what makes it necessary, in the same transaction: a document, another host, a switch, a lost endpoint.
func TestOwnersOfPolicies(t *testing.T) {
	b := start(t, manager.Options{})
	generation := map[string]int64{}
	owners := func(when string, want ...string) {
		t.Helper()
		var got []string
		for _, p := range must(b.Policies().List(ctx(t), api.ListOptions{}))(t).Items {
			owner := "nobody"
			if o := p.Placement; o != nil {
				if owner = o.Host; o.Router {
					owner = "router"
				}
				if o.Reason == "" || o.Since.IsZero() {
					t.Errorf("%s: %s has no reason, or no time: %+v", when, p.Name, o)
				}
			}
			got = append(got, fmt.Sprintf("%s %s %d", p.Name, owner, p.Generation-generation[p.Name]))
			generation[p.Name] = p.Generation
		}
		slices.Sort(got)
		if d := cmp.Diff(want, got); d != "" {
			t.Errorf("%s: policy, owner and how often its generation grew (-want +got)\n%s", when, d)
		}
	}
	document := api.Document{
		Endpoints: map[string]api.EndpointSpec{"a": {Netns: "a", Interface: "eth0"}, "s": {MAC: "02:00:00:00:00:01"}},
		Functions: map[string]api.FunctionSpec{"f": {Image: "wire"}, "g": {Image: "wire"}, "h": {Image: "wire"}},
		Chains:    map[string]api.ChainSpec{"c": {Path: "f"}, "d": {Path: "g"}, "e": {Path: "h"}},
		Policies:  map[string]api.PolicySpec{"of-a": {From: "a", Symmetric: new(bool), Chain: "c"}, "of-any": {To: "10.0.0.0/8", Symmetric: new(bool), Chain: "d"}, "of-s": {To: "s", Chain: "e"}},
	}
	must(b.Apply(ctx(t), api.ApplyRequest{Document: document}))(t)
	owners("without a host", "of-a nobody 1", "of-any nobody 1", "of-s nobody 1")
	hostUp(t, b, "h1")
	owners("one host", "of-a h1 1", "of-any h1 1", "of-s router 1")
	must(b.Apply(ctx(t), api.ApplyRequest{Document: document}))(t)
	owners("nothing new", "of-a h1 0", "of-any h1 0", "of-s router 0")
	fabric(t, b, api.FabricReport{Switches: map[string]api.SwitchStatus{"s1": {State: "connected"}}})
	owners("a switch", "of-a router 1", "of-any router 1", "of-s router 0")
	document.Policies["of-any"] = api.PolicySpec{From: "10.0.0.0/8", To: "s", Symmetric: new(bool), Chain: "d"}
	must(b.Apply(ctx(t), api.ApplyRequest{Document: document}))(t)
	owners("it takes frames at the other end only", "of-a h1 1", "of-any router 1", "of-s router 0")
	op := must(b.Policies().Delete(ctx(t), "of-a"))(t)
	fabric(t, b, api.FabricReport{Gone: []string{"s1"}, Policies: map[string]api.PolicyStatus{"of-a": {State: "deleted"}}})
	owners("one is being deleted, and the switch is gone", "of-a h1 0", "of-any router 0", "of-s router 0")
	report(t, b, api.StatusReport{Host: "h1", Policies: map[string]api.PolicyStatus{"of-a": {State: "deleted"}}})
	if done := must(b.Wait(ctx(t), op.Name))(t); done.State != api.OpCompleted {
		t.Errorf("%+v", done)
	}
	owners("its owner has taken it down", "of-any router 0", "of-s router 0")
}

// Decisions are numbered in the order in which watches tell of them, and each says who steered the policy before.
func TestDecisionsAboutOwnersAreNumbered(t *testing.T) {
	b := start(t, manager.Options{})
	hostUp(t, b, "h1")
	var got []string
	watch := b.Policies().Watch(ctx(t), 0, api.ListOptions{})
	next := func(n int) {
		t.Helper()
		for len(got) < n {
			d := <-watch
			for _, p := range append(d.Items, d.Object) {
				if o := p.Placement; o != nil {
					got = append(got, fmt.Sprintf("%s: %d, %q, before %q, router %t", p.Name, o.Decision, o.Host, o.FormerHost, o.FormerRouter))
				}
			}
		}
	}
	document := api.Document{
		Endpoints: map[string]api.EndpointSpec{"a": {Netns: "a", Interface: "eth0"}, "s": {MAC: "02:00:00:00:00:01"}},
		Functions: map[string]api.FunctionSpec{"f": {Image: "wire"}, "g": {Image: "wire"}},
		Chains:    map[string]api.ChainSpec{"c": {Path: "f"}, "d": {Path: "g"}},
		Policies:  map[string]api.PolicySpec{"m": {From: "a", Symmetric: new(bool), Chain: "c"}},
	}
	must(b.Apply(ctx(t), api.ApplyRequest{Document: document}))(t)
	next(1)
	document.Policies["z"] = api.PolicySpec{From: "10.0.0.0/8", Chain: "d"}
	document.Policies["b"] = api.PolicySpec{To: "s", Symmetric: new(bool), Chain: "d"}
	must(b.Apply(ctx(t), api.ApplyRequest{Document: document}))(t)
	next(3)
	fabric(t, b, api.FabricReport{Switches: map[string]api.SwitchStatus{"s1": {State: "connected"}}})
	next(5)
	fabric(t, b, api.FabricReport{Gone: []string{"s1"}})
	next(7)
	if d := cmp.Diff([]string{
		`m: 1, "h1", before "", router false`,
		`b: 2, "", before "", router false`,
		`z: 3, "h1", before "", router false`,
		`m: 4, "", before "h1", router false`,
		`z: 5, "", before "h1", router false`,
		`m: 6, "h1", before "", router true`,
		`z: 7, "h1", before "", router true`,
	}, got); d != "" {
		t.Errorf("-want +got\n%s", d)
	}
}

// A decision is later than all that agents may have heard of, also after a restore, and after a manager of an earlier version has written.
func TestDecisionsNeverCountBack(t *testing.T) {
	b := start(t, manager.Options{})
	hostUp(t, b, "h1")
	decided := func(policy string) int64 {
		t.Helper()
		p := must(b.Policies().Get(ctx(t), policy))(t)
		return p.Placement.Decision
	}
	document := api.Document{
		Endpoints: map[string]api.EndpointSpec{"a": {Netns: "a", Interface: "eth0"}},
		Functions: map[string]api.FunctionSpec{"f": {Image: "wire"}, "g": {Image: "wire"}, "h": {Image: "wire"}},
		Chains:    map[string]api.ChainSpec{"c": {Path: "f"}, "d": {Path: "g"}, "e": {Path: "h"}},
		Policies:  map[string]api.PolicySpec{"p": {From: "a", Symmetric: new(bool), Chain: "c", Priority: 1}},
	}
	must(b.Apply(ctx(t), api.ApplyRequest{Document: document}))(t)
	first := decided("p")
	if _, err := b.store.Txn(ctx(t), nil, []store.Op{{Key: "meta/spec", Value: []byte("{}")}}); err != nil {
		t.Fatal(err)
	}
	document.Policies["q"] = api.PolicySpec{From: "a", Symmetric: new(bool), Chain: "d", Priority: 2}
	must(b.Apply(ctx(t), api.ApplyRequest{Document: document}))(t)
	if second := decided("q"); second <= first {
		t.Errorf("an earlier version wrote: decision %d after %d", second, first)
	}
	if err := b.m.Intent.Restored(ctx(t)); err != nil {
		t.Fatal(err)
	}
	document.Policies["r"] = api.PolicySpec{From: "a", Symmetric: new(bool), Chain: "e", Priority: 3}
	must(b.Apply(ctx(t), api.ApplyRequest{Document: document}))(t)
	if third := decided("r"); third < 1000 {
		t.Errorf("restored: decision %d, and agents may have heard of later ones", third)
	}
}
