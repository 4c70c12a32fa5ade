package steering

import (
	"fmt"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"

	"weir.dev/weir/api"
	"weir.dev/weir/flow"
	"weir.dev/weir/router/fabric"
)

// unreads renders what drops frames that cannot be read.
func unreads(in fabric.Input, out fabric.Output) []string {
	var all []string
	for id, entries := range out.Entries {
		for _, e := range entries {
			if u := e.Match.Unread; u != flow.ReadAll {
				all = append(all, fmt.Sprintf("%s/%d: in %d %s%s -> %v", in.Switches[id].Name, e.Table, e.Match.InPort, matchText(newWorld(in).hostMatch(&e.Match), 0), u, e.Outs))
			}
		}
	}
	for id, rules := range out.Hosts {
		for _, r := range rules {
			if r.Match.Unread != "" {
				all = append(all, fmt.Sprintf("%s: %s %s%s %s%s -> %s", in.Switches[id].Name, r.Stage, r.Match.InPort, r.Match.OutPort, matchText(r.Match, 0), r.Match.Unread, r.Action.Op))
			}
		}
	}
	slices.Sort(all)
	return all
}

func TestWhatCannotBeReadIsDropped(t *testing.T) {
	far := func() fabric.Input { // alice is an endpoint of a host h1 at s1
		in := fig2()
		s1 := in.Switches[of(1)]
		s1.Ports = append(s1.Ports, numbers(3)...)
		in.Switches[of(1)] = s1
		in.Switches["host:h1"] = fabric.Switch{Name: "h1", Host: true, Ports: []fabric.Port{{Name: "uplink/eth0"}, {Name: "endpoint/alice"}}}
		in.Links = append(in.Links, fabric.Link{A: at(of(1), 3), B: named("host:h1", "uplink/eth0")})
		in.Endpoints["alice"] = fabric.Endpoint{At: named("host:h1", "endpoint/alice"), MACs: []flow.MAC{mac(9)}}
		return in
	}
	no, yes := false, true
	tests := []struct {
		name   string
		onFail api.OnFail
		policy api.PolicySpec
		want   []string
		tagged bool
	}{
		{"from a station", api.OnFailDrop, api.PolicySpec{From: "vm1", Match: []string{"ip"}, Symmetric: &no}, []string{"s1/0: in 2 unread behind Ethernet -> []"}, false},
		{"a protocol", api.OnFailDrop, api.PolicySpec{From: "vm1", Match: []string{"tcp", "udp"}, MatchBy: api.MatchByMAC, Symmetric: &no}, []string{
			"s1/0: in 2 mac 02:00:00:00:00:01 unread behind Ethernet -> []", "s1/0: in 2 mac 02:00:00:00:00:01 unread behind IPv6 -> []",
		}, false},
		{"to a station", api.OnFailDrop, api.PolicySpec{To: "vm2", From: "10.0.0.0/24", Match: []string{"tcp"}, Symmetric: &no}, []string{
			"s2/1: in 0 to mac 02:00:00:00:00:02 unread behind Ethernet -> []",
		}, false},
		{"everywhere", api.OnFailDrop, api.PolicySpec{From: "10.0.0.0/24", Match: []string{"ip"}, Symmetric: &no}, []string{
			"h1: ingress unread endpoint/alice to mac 00:00:00:00:00:00/01:00:00:00:00:00 unread behind Ethernet -> drop", "s1/0: in 2 to mac 00:00:00:00:00:00/01:00:00:00:00:00 unread behind Ethernet -> []", "s2/0: in 2 to mac 00:00:00:00:00:00/01:00:00:00:00:00 unread behind Ethernet -> []",
		}, true},
		{"from and to a host's endpoint", api.OnFailDrop, api.PolicySpec{From: "alice", Match: []string{"udp"}, Symmetric: &yes}, []string{
			"h1: egress unread endpoint/alice to mac 02:00:00:00:00:09 unread behind Ethernet -> drop", "h1: egress unread endpoint/alice to mac 02:00:00:00:00:09 unread behind IPv6 -> drop",
			"h1: ingress unread endpoint/alice mac 02:00:00:00:00:09 unread behind Ethernet -> drop", "h1: ingress unread endpoint/alice mac 02:00:00:00:00:09 unread behind IPv6 -> drop",
		}, true},
		{"all frames", api.OnFailDrop, api.PolicySpec{From: "vm1", Mode: api.ModeExhaustive, Symmetric: &no}, nil, false},
		{"a function that says bypass", api.OnFailBypass, api.PolicySpec{From: "vm1", Match: []string{"ip"}}, nil, false},
		{"copies", api.OnFailDrop, api.PolicySpec{From: "vm1", Match: []string{"ip"}, Mode: api.ModeReplica}, nil, true},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			in := far()
			in.Functions["nf"] = fabric.Function{Host: "host:nfv1", Ready: true, OnFail: tt.onFail}
			tt.policy.Chain = "through"
			in.Policies = map[string]api.PolicySpec{"p": tt.policy}
			out := Compile(in)
			if out.Errors["p"] != nil {
				t.Fatal(out.Errors)
			}
			if diff := cmp.Diff(tt.want, unreads(in, out)); diff != "" {
				t.Error(diff)
			}
			if tt.name != "to a station" && (len(out.Paths.Of("p").Tags) > 0) != tt.tagged {
				t.Errorf("tags %v: what a host reads further than switches needs one", out.Paths.Of("p").Tags)
			}
			in.Functions["nf"] = fabric.Function{Host: "host:nfv1", OnFail: tt.onFail}
			if diff := cmp.Diff(tt.want, unreads(in, Compile(in))); diff != "" {
				t.Error("while the function is not ready: ", diff)
			}
		})
	}
}

// First fragments whose ports a switch cannot read are dropped where it tells them from others, for policies that name ports.
func TestTinyFragmentsAreDropped(t *testing.T) {
	in := fig2()
	s := in.Switches[of(1)]
	s.Fragments = true
	in.Switches[of(1)] = s
	in.Policies = oneWay(api.PolicySpec{From: "vm1", Match: []string{"tcp/80", "tcp/90", "udp/53", "icmp"}, Chain: "through"})
	var got []string
	for id, entries := range Compile(in).Entries {
		for _, e := range entries {
			if e.Tiny {
				got = append(got, fmt.Sprintf("%s: in %d %sproto %d ports %v -> %v", in.Switches[id].Name, e.Match.InPort, matchText(newWorld(in).hostMatch(&e.Match), 0), e.Match.Proto, e.Match.DstPorts, e.Outs))
			}
		}
	}
	if diff := cmp.Diff([]string{"s1: in 2 src 10.0.0.1 proto 6 ports {0 0} -> []"}, got); diff != "" {
		t.Error(diff)
	}
}

// Policies of one priority share their entries, one that goes leaves them to the others.
func TestPoliciesShareTheEntriesOfWhatCannotBeRead(t *testing.T) {
	in := fig2()
	in.Policies = map[string]api.PolicySpec{
		"p": {From: "vm1", To: "vm2", Match: []string{"tcp/80"}, Chain: "through"}, "q": {From: "vm1", To: "vm2", Match: []string{"udp"}, Chain: "through"},
	}
	c := New(in)
	want := []string{"s1/0: in 2 unread behind Ethernet -> []", "s2/0: in 2 unread behind Ethernet -> []"}
	if diff := cmp.Diff(want, unreads(in, c.Output())); diff != "" {
		t.Fatal(diff)
	}
	for name := range in.Policies {
		in.Policies = map[string]api.PolicySpec{"p": in.Policies["p"], "q": in.Policies["q"]}
		delete(in.Policies, name)
		if diff := cmp.Diff(want, unreads(in, c.Update(in))); diff != "" {
			t.Fatal("without ", name, ": ", diff)
		}
		break
	}
	in.Policies = map[string]api.PolicySpec{}
	if left := unreads(in, c.Update(in)); len(left) > 0 {
		t.Fatal(left)
	}
}
