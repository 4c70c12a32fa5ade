package rig

import (
	"encoding/json"
	"fmt"
	"testing"

	"github.com/google/go-cmp/cmp"

	"weir.dev/weir/api"
)

// A look reads what the command prints, and leaves to the command what it has to say first, and what is an error.
func TestALookReadsWhatTheCommandPrints(t *testing.T) {
	r, ctx := ForTest(t, Options{})
	r.MustApply(ctx, t, r.Endpoints()+"functions: {w: {image: wire}}\nchains: {c: w}\npolicies: {p: {from: alice, to: bob, chain: c}}\n")
	for _, c := range []struct {
		into func() any
		args []string
	}{
		{func() any { return new(api.Function) }, []string{"function", "w"}},
		{func() any { return new(api.List[api.Function]) }, []string{"functions"}},
		{func() any { return new(api.Policy) }, []string{"policies", "p"}},
		{func() any { return new(api.Endpoint) }, []string{"endpoint", "bob"}},
		{func() any { return new(api.List[api.Chain]) }, []string{"chains"}},
		{func() any { return new(api.List[api.Host]) }, []string{"hosts"}},
		{func() any { return new(api.List[api.Event]) }, []string{"events"}},
		{func() any { return new(names) }, []string{"ports"}},
		{func() any { return new(names) }, []string{"counters", "local"}},
	} {
		t.Run(fmt.Sprint(c.args), func(t *testing.T) {
			byCommand.Delete(c.args[0])
			if Look(ctx, r.socket(), c.into(), c.args...) {
				t.Error("the first look is not the command's")
			}
			Eventually(ctx, t, "both read the same", func() (bool, string) { // the host reports meanwhile
				seen, said := c.into(), c.into()
				if !Look(ctx, r.socket(), seen, c.args...) {
					t.Fatal("no answer")
				}
				out, err := r.Weir(ctx, append(append([]string{"get"}, c.args...), "-o", "json")...)
				if err == nil {
					err = json.Unmarshal([]byte(out), said)
				}
				if err != nil {
					t.Fatal(err)
				}
				diff := cmp.Diff(said, seen)
				return diff == "", diff
			})
		})
	}
	var f api.Function
	for range 2 {
		if Look(ctx, r.socket(), &f, "function", "nobody") || Look(ctx, r.socket(), &f, "all") || Look(ctx, r.socket(), &f) || Look(ctx, "/run/nowhere.sock", &f, "function", "w") {
			t.Errorf("a look that the command has to answer: %+v", f)
		}
	}
}

// names of a switch's ports: all else of them changes.
type names struct {
	Ports []struct{ Name string }
}
