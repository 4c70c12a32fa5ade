package router

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"weir.dev/weir/api"
	"weir.dev/weir/flow"
	"weir.dev/weir/router/policy"
)

func portOf(i int) flow.Port { return flow.Port(i) }

func input() Input {
	return Input{
		Endpoints: map[string]flow.Port{"alice": 1, "bob": 2, "carol": 3},
		Functions: map[string]Function{"fw": {In: 11, Out: 12}, "w1": {In: 13, Out: 14}, "mon": {Tap: 15}, "w2": {In: 16, Out: 17}},
		Chains:    map[string]api.ChainSpec{"web": {Path: "fw | w1 | tap:mon"}, "alt": {Path: "w2"}},
		Policies:  map[string]api.PolicySpec{"guests": {From: "alice", To: "bob", Match: []string{"tcp/80"}, Chain: "web"}},
	}
}

func topologyOf(in Input) flow.Topology {
	var t flow.Topology
	for _, p := range in.Endpoints {
		t.Endpoints = append(t.Endpoints, p)
	}
	for name, f := range in.Functions {
		if f.In != 0 || f.Tap != 0 {
			t.Functions = append(t.Functions, flow.FunctionPorts{Name: name, In: f.In, Out: f.Out, Tap: f.Tap})
		}
	}
	return t
}

// rendered are rules in short, but for those for frames that cannot be read to the end.
func rendered(rules []flow.Rule) []string {
	var lines []string
	for _, r := range rules {
		if r.Match.Unread != flow.ReadAll {
			continue
		}
		lines = append(lines, fmt.Sprintf("%d %s in=%d out=%d %v learn=%t | %s", r.Priority, r.Stage, r.Match.InPort, r.Match.OutPort, r.Action, r.Learn, r.Note))
	}
	slices.Sort(lines)
	return lines
}

func TestCompileOnePolicy(t *testing.T) {
	out := Compile(input())
	want := []string{
		"1 ingress in=11 out=0 output:1 learn=false | chain web: fw.in -> endpoint/alice",
		"1 ingress in=12 out=0 output:13 learn=false | chain web: fw.out -> w1.in",
		"1 ingress in=13 out=0 output:12 learn=false | chain web: w1.in -> fw.out",
		"1 ingress in=14 out=0 clone:15 output:2 learn=false | chain web: w1.out -> endpoint/bob",
		"100 egress in=2 out=1 clone:15 output:14 learn=false | policy guests: tcp/80 returns through web at w1.out",
		"100 egress in=1 out=2 output:11 learn=false | policy guests: tcp/80 enters web at fw.in",
	}
	slices.Sort(want)
	if diff := cmp.Diff(want, rendered(out.Rules)); diff != "" {
		t.Error(diff)
	}
	path := Path{Rules: 6,
		Forward: strings.Fields("endpoint/alice function/fw/in function/fw/out function/w1/in function/w1/out function/mon/tap endpoint/bob"),
		Reverse: strings.Fields("endpoint/bob function/mon/tap function/w1/out function/w1/in function/fw/out function/fw/in endpoint/alice")}
	if diff := cmp.Diff(map[string]Path{"guests": path}, out.Paths); diff != "" {
		t.Error(diff)
	}
	if err := verify(out.Rules, topologyOf(input())); err != nil {
		t.Error(err)
	}
	if diff := cmp.Diff(out, Compile(input()), cmpopts.EquateComparable(netip.Prefix{})); diff != "" {
		t.Errorf("not the same again: %s", diff)
	}
}

func TestCookiesSurvive(t *testing.T) {
	cookies := func(in Input, note string) []uint64 {
		var all []uint64
		for _, r := range Compile(in).Rules {
			if strings.Contains(r.Note, note) {
				all = append(all, r.Cookie)
			}
		}
		slices.Sort(all)
		return all
	}
	before := cookies(input(), "")
	changes := map[string]func(*Input){
		"other port numbers": func(in *Input) {
			in.Endpoints["alice"], in.Functions["fw"] = 71, Function{In: 81, Out: 82}
		},
		"another policy":   func(in *Input) { in.Policies["x"] = api.PolicySpec{From: "carol", Chain: "alt"} },
		"another priority": func(in *Input) { p := in.Policies["guests"]; p.Priority = 7; in.Policies["guests"] = p },
		"a function more": func(in *Input) {
			in.Chains["web"] = api.ChainSpec{Path: "fw | w2 | w1 | tap:mon"}
			delete(in.Chains, "alt")
		},
		"a service more": func(in *Input) {
			p := in.Policies["guests"]
			p.Match = []string{"tcp/443", "tcp/80"}
			in.Policies["guests"] = p
		},
	}
	for name, change := range changes {
		t.Run(name, func(t *testing.T) {
			in := input()
			change(&in)
			after := cookies(in, "")
			for _, c := range before {
				if !slices.Contains(after, c) {
					t.Errorf("cookie %016x is gone", c)
				}
			}
		})
	}
	owners := Compile(input()).Owners
	for _, c := range before {
		if o := owners[c]; (len(o.Policies) == 1) == (o.Chain != "") {
			t.Errorf("owner of %016x: %+v", c, o)
		}
	}
}

func TestWhatIsNotReadyFailsClosed(t *testing.T) {
	tests := []struct {
		name   string
		change func(*Input)
		err    string // of policy guests
		rules  []string
	}{
		{"function with drop", func(in *Input) { in.Functions["fw"] = Function{} }, "function fw: not ready", []string{
			"100 egress in=2 out=1 drop learn=false | policy guests: tcp/80 on the way back is dropped, chain web cannot work",
			"100 egress in=1 out=2 drop learn=false | policy guests: tcp/80 is dropped, chain web cannot work"}},
		{"function with bypass is left out", func(in *Input) { in.Functions["fw"] = Function{OnFail: api.OnFailBypass} }, "function fw: not ready", []string{
			"1 ingress in=13 out=0 output:1 learn=false | chain web: w1.in -> endpoint/alice",
			"1 ingress in=14 out=0 clone:15 output:2 learn=false | chain web: w1.out -> endpoint/bob",
			"100 egress in=2 out=1 clone:15 output:14 learn=false | policy guests: tcp/80 returns through web at w1.out",
			"100 egress in=1 out=2 output:13 learn=false | policy guests: tcp/80 enters web at w1.in"}},
		{"tap is left out", func(in *Input) {
			in.Functions["mon"] = Function{}
			in.Chains["web"] = api.ChainSpec{Path: "tap:mon"}
		}, "function mon: not ready", nil},
		{"endpoint", func(in *Input) { delete(in.Endpoints, "bob") }, "endpoint bob: not ready", nil},
		{"replica leaves the original alone", func(in *Input) {
			in.Functions["fw"] = Function{}
			p := in.Policies["guests"]
			p.Mode = api.ModeReplica
			in.Policies["guests"] = p
		}, "function fw: not ready", nil},
		{"unknown chain", func(in *Input) { delete(in.Chains, "web") }, `chain "web": unknown`, []string{
			"100 egress in=2 out=1 drop learn=false | policy guests: tcp/80 on the way back is dropped, chain web cannot work",
			"100 egress in=1 out=2 drop learn=false | policy guests: tcp/80 is dropped, chain web cannot work"}},
		{"a tap where an inline function stands", func(in *Input) { in.Functions["w1"] = Function{Tap: 99} }, `write "tap:w1"`, []string{
			"100 egress in=2 out=1 drop learn=false | policy guests: tcp/80 on the way back is dropped, chain web cannot work",
			"100 egress in=1 out=2 drop learn=false | policy guests: tcp/80 is dropped, chain web cannot work"}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			in := input()
			tt.change(&in)
			out := Compile(in)
			slices.Sort(tt.rules)
			if diff := cmp.Diff(tt.rules, rendered(out.Rules)); diff != "" {
				t.Error(diff)
			}
			if err := out.Errors["guests"]; err == nil || !strings.Contains(err.Error(), tt.err) {
				t.Errorf("got %v, want %q", err, tt.err)
			} else if ready := strings.Contains(tt.err, "not ready"); ready != errors.Is(err, policy.ErrNotReady) {
				t.Errorf("ErrNotReady: %t, want %t", !ready, ready)
			}
			if err := verify(out.Rules, topologyOf(in)); err != nil {
				t.Error(err)
			}
		})
	}
}

func TestPolicyThatCannotShareItsChainFailsClosed(t *testing.T) {
	in := input()
	in.Policies["later"] = api.PolicySpec{From: "carol", To: "bob", Match: []string{"udp"}, Chain: "web", Mode: api.ModeReplica}
	in.Policies["third"] = api.PolicySpec{From: "carol", To: "10.0.0.0/8", Match: []string{"udp"}, Chain: "web"}
	out := Compile(in)
	if out.Errors["guests"] != nil || out.Errors["later"] == nil || out.Errors["third"] == nil {
		t.Errorf("errors: %v", out.Errors)
	}
	w := newWorld(t, []string{"alice", "bob", "carol"}, []string{"fw", "w1", "tap:mon"}, nil)
	w.in.Chains, w.in.Policies = in.Chains, in.Policies
	must(t, w.Commit(Compile(w.in).Rules))
	frame, _, _ := flow.Witness(flow.Match{Dst: prefix("10.1.0.0/16"), Proto: flow.ProtoUDP})
	r, err := w.Inject(w.in.Endpoints["carol"], frame)
	must(t, err)
	if len(r.Deliveries) != 0 {
		t.Errorf("let past: %v", r.Trail)
	}
}

func TestManyReplicaPriorities(t *testing.T) {
	in := input()
	for i := range maxReplicaPriorities + 2 {
		in.Policies[fmt.Sprint("r", i)] = api.PolicySpec{From: "alice", To: "bob", Mode: api.ModeReplica, Chain: "alt", Priority: i + 1}
	}
	out := Compile(in)
	if len(out.Errors) != 2 || out.Errors["r0"] == nil || out.Errors["r1"] == nil {
		t.Errorf("errors: %v", out.Errors)
	}
	for _, r := range out.Rules {
		if err := r.Validate(); err != nil {
			t.Error(err)
		}
	}
}

// A rule's text tells it from the policy's others; its cookie, by which counters survive an upgrade, does not depend on the text.
func TestEachRuleOfAPolicyHasATextOfItsOwn(t *testing.T) {
	in := input()
	in.Policies = map[string]api.PolicySpec{
		"guests": {From: "alice", To: "bob", Match: []string{"tcp/80", "udp/5000-5100", "icmp"}, Chain: "web"},
		"copies": {From: "carol", Match: []string{"ip", "arp"}, Mode: api.ModeReplica, Chain: "alt"},
		"seen":   {From: "bob", To: "10.0.0.0/8", Match: []string{"ip"}, Mode: api.ModeReplica, Chain: "tap"},
		"lost":   {From: "bob", To: "carol", Chain: "none", Priority: 50},
	}
	in.Chains["tap"] = api.ChainSpec{Path: "tap:mon"}
	in.Chains["web"] = api.ChainSpec{Path: "fw | w1"}
	got := map[string]string{}
	for _, r := range Compile(in).Rules {
		if strings.HasPrefix(r.Note, "policy ") && !strings.Contains(r.Note, ";") && r.Match.Unread == flow.ReadAll {
			got[fmt.Sprintf("%016x", r.Cookie)] = strings.TrimPrefix(r.Note, "policy ")
		}
	}
	want := map[string]string{
		"0048ca940cd95082": "copies: a copy of arp enters alt at w2.in",
		"0bef9dbcdf9bec94": "guests: icmp (IPv6) enters web at fw.in",
		"1bb20925718523fe": "lost: everything is dropped, chain none cannot work",
		"1c4ceccd73b33c8b": "guests: icmp (IPv4) enters web at fw.in",
		"21b181ba22ad03d3": "guests: tcp/80 enters web at fw.in",
		"2e62122ff27be299": "guests: udp/5000-5100 enters web at fw.in",
		"52e328610448934e": "copies: a copy of ip (IPv6) enters alt at w2.in",
		"63c6826b4af29dca": "seen: a copy of ip goes to mon",
		"6f1f88cec9d19095": "copies: a copy of ip (IPv4) enters alt at w2.in",
		"92820fa9b2deea52": "copies: a copy of ip (IPv6) returns through alt at w2.out",
		"92eb62529db52fd8": "guests: tcp/80 returns through web at w1.out",
		"9fb67b0a927a622c": "lost: everything on the way back is dropped, chain none cannot work",
		"ae703c719719e67c": "guests: udp/5000-5100 returns through web at w1.out",
		"b7639467007471fc": "copies: a copy of ip (IPv4) returns through alt at w2.out",
		"c0a649f203e0cbc7": "guests: icmp (IPv4) returns through web at w1.out",
		"e18a2d37bef185d2": "seen: a copy of ip on the way back goes to mon",
		"effc18946cff761b": "guests: icmp (IPv6) returns through web at w1.out",
		"f49076ed81c32f45": "copies: a copy of arp returns through alt at w2.out",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}

// Forward takes the frames that both directions of a policy select, alone and together with copies.
func TestBothDirectionsSelectOneFrame(t *testing.T) {
	wholeMAC := flow.MAC{255, 255, 255, 255, 255, 255}
	station := flow.Match{SrcMAC: flow.MAC{2, 0, 0, 0, 0, 0x99}, SrcMACMask: wholeMAC}
	station.DstMAC, station.DstMACMask = station.SrcMAC, wholeMAC
	dns := flow.PortRange{First: 53, Last: 53}
	service := flow.Match{EtherType: flow.EtherTypeIPv4, Proto: flow.ProtoUDP, SrcPorts: dns, DstPorts: dns}
	tests := []struct {
		name   string
		policy api.PolicySpec
		frame  flow.Match
	}{
		{"one MAC", api.PolicySpec{From: "02:00:00:00:00:99"}, station},
		{"one service", api.PolicySpec{Match: []string{"udp/53"}}, service},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			_, k, ok := flow.Witness(tt.frame)
			if !ok {
				t.Fatal("no such frame")
			}
			for i := range 16 { // names decide cookies
				steers, copies := tt.policy, tt.policy
				steers.Chain, copies.Chain, copies.Mode = "web", "alt", api.ModeReplica
				in := input()
				in.Policies = map[string]api.PolicySpec{fmt.Sprint("p", i): steers, fmt.Sprint("q", i): copies}
				out := Compile(in)
				if len(out.Errors) > 0 {
					t.Fatal(out.Errors)
				}
				var best *flow.Rule
				for _, r := range out.Rules { // in the order of cookies: of two with one priority the first wins
					if r.Match.InPort == 0 && r.Match.Matches(k, 1, 0) && (best == nil || r.Priority > best.Priority) {
						best = &r
					}
				}
				if best == nil || best.Action.Port != 11 || !slices.Equal(best.Action.Clones, []flow.Clone{{Port: 16}}) {
					t.Fatalf("got %+v, want the first ports of both chains", best)
				}
			}
		})
	}
}
