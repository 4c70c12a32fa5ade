package fabric

import (
	"errors"
	"net/netip"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"weir.dev/weir/api"
	"weir.dev/weir/flow"
)

// twoHosts: stations a at h1 and b at h2, vm at s1; both hosts and their functions at one switch. Without s1 the hosts are joined by a tunnel.
func twoHosts(tunnel bool) Input {
	in := Input{
		Topology: Topology{Switches: map[SwitchID]Switch{}},
		Endpoints: map[string]Endpoint{
			"a": {At: named("host:h1", "endpoint/a"), MACs: []flow.MAC{mac(1)}, Prefixes: []netip.Prefix{addr(1)}},
			"b": {At: named("host:h2", "endpoint/b"), MACs: []flow.MAC{mac(2)}, Prefixes: []netip.Prefix{addr(2)}},
		},
		Functions: map[string]Function{
			"ids": {Host: "host:h2", Ready: true}, "near": {Host: "host:h1", Tap: true, Ready: true}, "far": {Host: "host:h2", Tap: true, Ready: true},
			"fw": {Host: "host:h2", Ready: true},
		},
		Chains: map[string]api.ChainSpec{
			"inline": {Path: "ids"}, "tap": {Path: "tap:far"}, "both": {Path: "tap:near | tap:far"}, "last": {Path: "tap:near | ids"}, "steer": {Path: "fw"},
		},
	}
	host := func(name, port string) Switch {
		return Switch{Name: name, Host: true, Ports: []Port{{Name: port}}}
	}
	if tunnel {
		in.Switches["host:h1"], in.Switches["host:h2"] = host("h1", "tunnel/h2"), host("h2", "tunnel/h1")
		in.Links = []Link{{A: named("host:h1", "tunnel/h2"), B: named("host:h2", "tunnel/h1")}}
		return in
	}
	in.Switches["host:h1"], in.Switches["host:h2"] = host("h1", "uplink/eth0"), host("h2", "uplink/eth0")
	in.Switches[of(1)] = Switch{Name: "s1", Ports: numbers(1, 2, 3), Tables: make([]uint32, 4)}
	in.Links = []Link{{A: at(of(1), 1), B: named("host:h1", "uplink/eth0")}, {A: at(of(1), 2), B: named("host:h2", "uplink/eth0")}}
	return in
}

// What a host's endpoint sends or gets is copied to wherever the chain is: the copy leaves the host with a fabric tag, the original
// goes its way.
func TestCopiesLeaveTheHostOfTheirEndpoint(t *testing.T) {
	tests := []struct {
		name   string
		tunnel bool
		policy api.PolicySpec
		want   []string
	}{
		{"into a function elsewhere", false, api.PolicySpec{From: "a", Chain: "inline"}, []string{
			"h1: in endpoint/a src 10.0.0.1 -> copy to uplink/eth0 push:3585, normal",
			"h2: in function/ids/out -> drop",
			"h2: in uplink/eth0 tag 3585 -> pop output function/ids/in",
			"s1: in 1 tag 3585 -> 2",
		}},
		{"through a tunnel", true, api.PolicySpec{From: "a", Chain: "inline"}, []string{
			"h1: in endpoint/a src 10.0.0.1 -> copy to tunnel/h2 push:3585, normal",
			"h2: in function/ids/out -> drop",
			"h2: in tunnel/h1 tag 3585 -> pop output function/ids/in",
		}},
		{"to a tap elsewhere", false, api.PolicySpec{From: "a", Chain: "tap"}, []string{
			"h1: in endpoint/a src 10.0.0.1 -> copy to uplink/eth0 push:3585, normal",
			"h2: in uplink/eth0 tag 3585 -> pop copy to function/far/tap, drop",
			"s1: in 1 tag 3585 -> 2",
		}},
		{"to a tap here and one elsewhere", false, api.PolicySpec{From: "a", Chain: "both"}, []string{
			"h1: in endpoint/a src 10.0.0.1 -> copy to function/near/tap, copy to uplink/eth0 push:3585, normal",
			"h2: in uplink/eth0 tag 3585 -> pop copy to function/far/tap, drop",
			"s1: in 1 tag 3585 -> 2",
		}},
		{"to a tap here and a function elsewhere", false, api.PolicySpec{From: "a", Chain: "last"}, []string{
			"h1: in endpoint/a src 10.0.0.1 -> copy to function/near/tap, copy to uplink/eth0 push:3585, normal",
			"h2: in function/ids/out -> drop",
			"h2: in uplink/eth0 tag 3585 -> pop output function/ids/in",
			"s1: in 1 tag 3585 -> 2",
		}},
		{"of what an endpoint gets", false, api.PolicySpec{From: "10.0.0.0/24", To: "a", Chain: "tap"}, []string{
			"h1: out endpoint/a src 10.0.0.0/24 dst 10.0.0.1 -> copy to uplink/eth0 push:3585, normal",
			"h2: in uplink/eth0 tag 3585 -> pop copy to function/far/tap, drop",
			"s1: in 1 tag 3585 -> 2",
		}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			in := twoHosts(tt.tunnel)
			tt.policy.Match, tt.policy.Mode = []string{"ip"}, api.ModeReplica
			in.Policies = oneWay(tt.policy)
			if diff := cmp.Diff(tt.want, rules(in, t)); diff != "" {
				t.Fatal(diff)
			}
		})
	}
}

// A frame that is both copied and steered away from its host leaves it twice, each with what its own leg needs.
func TestCopyLeavesTheHostBesideTheSteeredFrame(t *testing.T) {
	in := twoHosts(true)
	in.Policies = oneWay(api.PolicySpec{From: "a", Match: []string{"ip"}, Mode: api.ModeReplica, Chain: "both"})
	p := in.Policies["p"]
	in.Policies["q"] = api.PolicySpec{From: "a", Match: []string{"tcp/80"}, Chain: "steer", Symmetric: p.Symmetric}
	got := map[string]bool{}
	for _, r := range rules(in, t) {
		got[r] = true
	}
	for _, want := range []string{
		"h1: in endpoint/a src 10.0.0.1 -> copy to function/near/tap, copy to tunnel/h2 push:3585, normal",
		"h1: in endpoint/a src 10.0.0.1 tp_dst 80 -> copy to function/near/tap, copy to tunnel/h2 push:3585, push 3586 output tunnel/h2",
		"h2: in tunnel/h1 tag 3585 -> pop copy to function/far/tap, drop",
	} {
		if !got[want] {
			t.Errorf("no rule %q", want)
		}
	}
	if t.Failed() {
		t.Log(strings.Join(rules(in, t), "\n"))
	}
}

// Without a way to the chain there is nothing to copy to, and the original is left alone.
func TestCopiesWithoutAWay(t *testing.T) {
	in := twoHosts(true)
	in.Links = nil
	in.Policies = oneWay(api.PolicySpec{From: "a", Match: []string{"ip"}, Mode: api.ModeReplica, Chain: "both"})
	in.InForce = map[string]bool{"p": true}
	out := Compile(in)
	if err := out.Errors["p"]; !errors.Is(err, ErrNoPath) {
		t.Fatal(err)
	}
	if left := text(in, out); len(left) > 0 {
		t.Fatal("left over: ", left)
	}
}
