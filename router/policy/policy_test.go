package policy

import (
	"errors"
	"testing"

	"github.com/google/go-cmp/cmp"

	"weir.dev/weir/api"
)

func TestReadChain(t *testing.T) {
	ready := map[string]Function{"fw": {Inline, true, ""}, "nat": {Inline, true, api.OnFailBypass}, "mon": {Tap, true, ""}}
	but := func(name string, f Function) map[string]Function {
		all := map[string]Function{"fw": ready["fw"], "nat": ready["nat"], "mon": ready["mon"]}
		all[name] = f
		return all
	}
	tests := []struct {
		name, path string
		functions  map[string]Function
		hops       int
		blocked    string
		notes      int
		guarded    bool
	}{
		{"all ready", "fw | nat | tap:mon", ready, 3, "", 0, true},
		{"all say bypass", "nat | tap:mon", ready, 2, "", 0, false},
		{"the first that is missing", "x | y", ready, 0, "function x: not ready", 0, true},
		{"one that says bypass is left out", "fw | nat", but("nat", Function{Kind: Inline, OnFail: api.OnFailBypass}), 1, "", 1, true},
		{"a tap is left out", "fw | tap:mon", but("mon", Function{}), 1, "", 1, true},
		{"a tap where frames pass", "fw | mon", ready, 1, `function mon has only a tap port: write "tap:mon"`, 0, true},
		{"no tap where a tap stands", "nat | tap:fw", ready, 1, "", 1, false},
		{"no path", "fw |", ready, 0, `chain web: place 2 of the chain: "" is no function's name: want function names separated by '|', "tap:" before one that gets a copy, as in "fw | w1 | tap:mon"`, 0, true},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			c := ReadChain("web", api.ChainSpec{Path: tt.path}, func(name string) Function { return tt.functions[name] })
			got := ""
			if c.Blocked != nil {
				got = c.Blocked.Error()
			}
			if d := cmp.Diff([]any{tt.hops, tt.blocked, tt.notes, tt.guarded}, []any{len(c.Hops), got, len(c.Notes), c.Guarded}); d != "" {
				t.Error(d)
			}
			for _, n := range c.Notes {
				if tt.name != "no tap where a tap stands" && !errors.Is(n, ErrNotReady) {
					t.Errorf("%v is not ErrNotReady", n)
				}
			}
		})
	}
}

func TestDirection(t *testing.T) {
	for _, tt := range []struct {
		from, to     string
		host, fabric string // where each order catches forward, then reverse
	}{
		{"alice", "bob", "to bob, to alice", "from alice, from bob"},
		{"alice", "any", "from alice, to alice", "from alice, to alice"},
		{"10.0.0.0/8", "bob", "to bob, from bob", "to bob, from bob"},
		{"any", "any", "anywhere, anywhere", "anywhere, anywhere"},
	} {
		p, err := Read("p", api.PolicySpec{From: tt.from, To: tt.to, Chain: "web", Mode: api.ModeSelective})
		if err != nil {
			t.Fatal(err)
		}
		yes := true
		p.Spec.Symmetric = &yes
		caught := func(o Order) (text string) {
			for _, w := range p.Ways() {
				d := p.Direction(w, o)
				if text != "" {
					text += ", "
				}
				text += map[Where]string{Anywhere: "anywhere", AtSource: "from ", AtDestination: "to "}[d.At] + d.Caught()
			}
			return text
		}
		if d := cmp.Diff([]string{tt.host, tt.fabric}, []string{caught(DestinationFirst), caught(SourceFirst)}); d != "" {
			t.Errorf("%s to %s: %s", tt.from, tt.to, d)
		}
	}
}
