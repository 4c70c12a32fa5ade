package steering

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"weir.dev/weir/api"
	"weir.dev/weir/flow"
	"weir.dev/weir/router/fabric"
	"weir.dev/weir/router/fabric/switches"
)

// twoHosts: stations a at h1 and b at h2, vm at s1; both hosts and their functions at one switch. Without s1 the hosts are joined by a tunnel.
func twoHosts(tunnel bool) fabric.Input {
	in := fabric.Input{
		Topology: fabric.Topology{Switches: map[fabric.SwitchID]fabric.Switch{}},
		Endpoints: map[string]fabric.Endpoint{
			"a": {At: named("host:h1", "endpoint/a"), MACs: []flow.MAC{mac(1)}, Prefixes: []netip.Prefix{addr(1)}},
			"b": {At: named("host:h2", "endpoint/b"), MACs: []flow.MAC{mac(2)}, Prefixes: []netip.Prefix{addr(2)}},
		},
		Functions: map[string]fabric.Function{
			"ids": {Host: "host:h2", Ready: true}, "near": {Host: "host:h1", Tap: true, Ready: true}, "far": {Host: "host:h2", Tap: true, Ready: true},
			"fw": {Host: "host:h2", Ready: true},
		},
		Chains: map[string]api.ChainSpec{
			"inline": {Path: "ids"}, "tap": {Path: "tap:far"}, "both": {Path: "tap:near | tap:far"}, "last": {Path: "tap:near | ids"}, "steer": {Path: "fw"},
		},
	}
	host := func(name, port string) fabric.Switch {
		return fabric.Switch{Name: name, Host: true, Ports: []fabric.Port{{Name: port}}}
	}
	if tunnel {
		in.Switches["host:h1"], in.Switches["host:h2"] = host("h1", "tunnel/h2"), host("h2", "tunnel/h1")
		in.Links = []fabric.Link{{A: named("host:h1", "tunnel/h2"), B: named("host:h2", "tunnel/h1")}}
		return in
	}
	in.Switches["host:h1"], in.Switches["host:h2"] = host("h1", "uplink/eth0"), host("h2", "uplink/eth0")
	in.Switches[of(1)] = fabric.Switch{Name: "s1", Ports: numbers(1, 2, 3), Tables: make([]uint32, 4)}
	in.Links = []fabric.Link{{A: at(of(1), 1), B: named("host:h1", "uplink/eth0")}, {A: at(of(1), 2), B: named("host:h2", "uplink/eth0")}}
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

// Forward takes the frames that both directions of a policy select. So each has one entry or rule that decides, and no two have one match.
func TestCopiedAndSteeredInBothDirections(t *testing.T) {
	tests := []struct {
		name           string
		steers, copied api.PolicySpec
		want           []string // what is for both, at the edge port of s1 and at endpoint a
	}{
		{"one MAC", api.PolicySpec{From: "02:00:00:00:00:01"}, api.PolicySpec{From: "02:00:00:00:00:01"}, []string{
			"30058 to mac 02:00:00:00:00:01",
			"30060 mac 02:00:00:00:00:01 to mac 00:00:00:00:00:00/01:00:00:00:00:00",
		}},
		{"one MAC, the other way round", api.PolicySpec{From: "02:00:00:00:00:01"}, api.PolicySpec{To: "02:00:00:00:00:01"}, []string{
			"30059 mac 02:00:00:00:00:01 to mac 00:00:00:00:00:00/01:00:00:00:00:00",
			"30059 to mac 02:00:00:00:00:01",
			"30060 mac 02:00:00:00:00:01 to mac 02:00:00:00:00:01",
		}},
		{"one address", api.PolicySpec{From: "10.0.0.1"}, api.PolicySpec{From: "10.0.0.1", To: "10.0.0.0/24"}, []string{
			"30058 src 10.0.0.0/24 dst 10.0.0.1 to mac 00:00:00:00:00:00/01:00:00:00:00:00",
			"30060 src 10.0.0.1 dst 10.0.0.0/24 to mac 00:00:00:00:00:00/01:00:00:00:00:00",
		}},
		{"one service", api.PolicySpec{From: "10.0.0.0/24", Match: []string{"udp/53"}}, api.PolicySpec{From: "10.0.0.0/24", Match: []string{"udp/53"}}, []string{
			"30058 dst 10.0.0.0/24 to mac 00:00:00:00:00:00/01:00:00:00:00:00 tp_src 53",
			"30060 src 10.0.0.0/24 to mac 00:00:00:00:00:00/01:00:00:00:00:00 tp_dst 53",
		}},
		{"services that overlap", api.PolicySpec{From: "10.0.0.0/24", Match: []string{"udp/50-60"}}, api.PolicySpec{From: "10.0.0.0/24", Match: []string{"udp/53"}}, []string{
			"30058 dst 10.0.0.0/24 to mac 00:00:00:00:00:00/01:00:00:00:00:00 tp_src 53",
			"30059 src 10.0.0.0/24 dst 10.0.0.0/24 to mac 00:00:00:00:00:00/01:00:00:00:00:00 tp_src 53 tp_dst 50-60",
			"30060 src 10.0.0.0/24 to mac 00:00:00:00:00:00/01:00:00:00:00:00 tp_dst 53",
		}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			in := twoHosts(false)
			tt.steers.Chain, tt.steers.Priority = "steer", 2
			tt.copied.Chain, tt.copied.Mode = "inline", api.ModeReplica
			in.Policies = map[string]api.PolicySpec{"p": tt.copied, "q": tt.steers}
			out := Compile(in)
			if len(out.Errors) > 0 {
				t.Fatal(out.Errors)
			}
			both := map[string][]string{}
			add := func(at string, priority uint16, m api.HostMatch, note string) {
				if strings.Contains(note, "policy q: ") && strings.Contains(note, "policy p: ") {
					both[at] = append(both[at], strings.TrimSpace(fmt.Sprint(priority, " ", matchText(m, 0))))
				}
			}
			for _, e := range out.Entries[of(1)] {
				add("s1", e.Priority, newWorld(in).hostMatch(&e.Match), e.Note)
			}
			for _, r := range out.Hosts["host:h1"] {
				add(r.Match.InPort, r.Priority, r.Match, r.Note)
			}
			for _, at := range []string{"s1", "endpoint/a"} {
				slices.Sort(both[at])
				if diff := cmp.Diff(tt.want, both[at]); diff != "" {
					t.Errorf("%s: %s", at, diff)
				}
			}
		})
	}
}

// Switches without a way to the chain copy nothing; those with one do, and steering goes on at both.
func TestCopiesWhereSomeSwitchesHaveNoWay(t *testing.T) {
	in := twoHosts(false)
	in.Switches[of(2)] = fabric.Switch{Name: "s2", Ports: numbers(1), Tables: make([]uint32, 4)}
	in.Policies = oneWay(api.PolicySpec{From: "10.0.0.0/24", Match: []string{"ip"}, Mode: api.ModeReplica, Chain: "inline"})
	in.Policies["q"] = oneWay(api.PolicySpec{From: "10.0.0.0/24", Match: []string{"tcp/80"}, Chain: "steer"})["p"]
	var got []string
	for _, r := range rules(in, t) {
		if strings.HasPrefix(r, "s2: ") || strings.HasPrefix(r, "s1: in 3 ") {
			got = append(got, strings.ReplaceAll(r, " to mac 00:00:00:00:00:00/01:00:00:00:00:00", ""))
		}
	}
	want := []string{
		"s1: in 3 src 10.0.0.0/24 -> push 3585 2",
		"s1: in 3 src 10.0.0.0/24 tp_dst 80 -> push 3586 2",
		"s1: in 3 src 10.0.0.0/24 tp_dst 80 -> push 3586 2, push 3585 2",
		"s2: in 1 src 10.0.0.0/24 tp_dst 80 ->",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Fatal(diff)
	}
}

// What copying policies add to a steering one's priority stays below what drops frames that cannot be read, and below the next priority.
func TestManyCopyingPolicies(t *testing.T) {
	in := twoHosts(false)
	in.Policies = map[string]api.PolicySpec{"steers": {From: "02:00:00:00:00:01", Chain: "steer", Priority: 2}}
	for i := range maxRanks + 1 {
		in.Policies[fmt.Sprint("p", i)] = api.PolicySpec{From: "02:00:00:00:00:01", Mode: api.ModeReplica, Chain: "inline", Priority: 1 + i}
	}
	out := Compile(in)
	if err := out.Errors["p0"]; len(out.Errors) != 1 || err == nil || !strings.Contains(err.Error(), "more than 12 different priorities") {
		t.Fatal(out.Errors)
	}
	c := New(in)
	highest, drops := uint16(0), switches.PrioSource+3*c.scale-1
	for _, e := range out.Entries[of(1)] {
		switch {
		case e.Policy == "steers" && e.Table == 0 && e.Match.Tag == 0 && e.Match.Unread == flow.ReadAll:
			highest = max(highest, e.Priority)
		case e.Policy == "steers" && e.Match.Unread != flow.ReadAll && e.Priority != drops:
			t.Errorf("what cannot be read is dropped at priority %d, want %d", e.Priority, drops)
		}
	}
	if want := switches.PrioSource + 2*c.scale + 2*maxRanks + 2; highest != want || want >= drops {
		t.Errorf("the highest priority is %d, want %d, which is less than %d", highest, want, drops)
	}
}

// Without a way to the chain there is nothing to copy to, and the original is left alone.
func TestCopiesWithoutAWay(t *testing.T) {
	in := twoHosts(true)
	in.Links = nil
	in.Policies = oneWay(api.PolicySpec{From: "a", Match: []string{"ip"}, Mode: api.ModeReplica, Chain: "both"})
	in.InForce = map[string]bool{"p": true}
	out := Compile(in)
	if err := out.Errors["p"]; !errors.Is(err, fabric.ErrNoPath) {
		t.Fatal(err)
	}
	if left := text(in, out); len(left) > 0 {
		t.Fatal("left over: ", left)
	}
}
