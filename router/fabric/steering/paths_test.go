package steering

import (
	"fmt"
	"maps"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"

	"weir.dev/weir/router/fabric"
)

// What one output says does not change with the next, and what has changed between them is found.
func TestPathsOfFormerOutputsStay(t *testing.T) {
	in := leafSpine(2, 4, 12, 200)
	c := New(in)
	first := c.Output().Paths
	were := maps.Collect(first.All())
	if len(were) != 200 || first.Len() != 200 || len(first.Names()) != 200 {
		t.Fatalf("%d paths, %d names, Len %d: want 200", len(were), len(first.Names()), first.Len())
	}
	next := in
	next.Policies = maps.Clone(in.Policies)
	delete(next.Policies, "p00007")
	next.Policies["q"] = benchPolicy(1000, 12)
	next.Before, next.Edited = in.Policies, []string{"q", "p00007"}
	second := c.Update(next).Paths
	if diff := cmp.Diff(were, maps.Collect(first.All())); diff != "" {
		t.Error("the first output's paths have changed: ", diff)
	}
	if first.Of("q") != nil || second.Of("q") == nil || first.Of("p00007") == nil || second.Of("p00007") != nil {
		t.Error("paths of what has come or gone are wrong")
	}
	changed := second.Changed(first)
	for name, was := range were {
		if changed := slices.Contains(changed, name); changed != (second.Of(name) != was) {
			t.Errorf("%s: said to be changed: %v", name, changed)
		}
	}
	if !slices.Contains(changed, "q") || first.Same(second) || !first.Same(fabric.NewPaths(were)) || !second.Same(second) {
		t.Error("other paths are said to be the same, or the same ones others")
	}
	if left := second.Without(map[string]error{"q": nil}); left.Of("q") != nil || left.Len() != second.Len()-1 {
		t.Error("a policy that was left out is there")
	}
	var none *fabric.Paths
	if none.Len() != 0 || none.Of("q") != nil || len(none.Changed(second)) != second.Len() || !none.Same(fabric.NewPaths(nil)) || none.Same(second) {
		t.Error("no paths are not as empty ones")
	}
}

// An input shares with the one before it what is the same, and nothing else.
func TestInputsShareWhatIsTheSame(t *testing.T) {
	a, b := leafSpine(2, 4, 12, 40), leafSpine(2, 4, 12, 40)
	b.Functions = maps.Clone(b.Functions)
	f := b.Functions["f0-0"]
	f.Ready = false
	b.Functions["f0-0"] = f
	b.Share(&a)
	if !fabric.AtOnePlace(a.Policies, b.Policies) || !fabric.AtOnePlace(a.Endpoints, b.Endpoints) || !fabric.AtOnePlace(a.Switches, b.Switches) || &a.Links[0] != &b.Links[0] {
		t.Error("what is the same is not shared")
	}
	if fabric.AtOnePlace(a.Functions, b.Functions) || b.Functions["f0-0"].Ready {
		t.Error("functions that differ are shared")
	}
	for i, edit := range []string{"p00003", "new", "gone"} {
		next := a
		next.Policies = maps.Clone(a.Policies)
		next.Before, next.Edited = a.Policies, []string{edit}
		switch edit {
		case "new":
			next.Policies[edit] = benchPolicy(500, 12)
		case "gone":
			next.Edited = []string{"p00004"}
			delete(next.Policies, "p00004")
		}
		same := fmt.Sprint(next.Policies) == fmt.Sprint(a.Policies)
		if next.Share(&a); fabric.AtOnePlace(next.Policies, a.Policies) != same {
			t.Errorf("%d: policies shared: %v, the same: %v", i, !same, same)
		}
		if got := len(fabric.Between(a, next, false)); got != len(fabric.Between(a, fabric.Input{Topology: a.Topology, Chains: a.Chains, Functions: a.Functions, Policies: next.Policies}, false)) {
			t.Errorf("%d: %d policies differ", i, got)
		}
	}
}
