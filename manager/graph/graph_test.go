package graph_test

import (
	"fmt"
	"testing"

	"github.com/google/go-cmp/cmp"

	"weir.dev/weir/api"
	"weir.dev/weir/manager/graph"
)

func meta(name string) api.Meta { return api.Meta{Name: name, Generation: 1} }

func TestOf(t *testing.T) {
	no := false
	up := api.EndpointStatus{State: api.EndpointUp, ObservedGeneration: 1}
	started := api.FunctionStatus{State: api.FunctionStarted, Healthy: true, ObservedGeneration: 1}
	active := api.PolicyStatus{State: api.PolicyActive, ObservedGeneration: 1}
	at := func(host string) *api.Placement { return &api.Placement{Host: host} }
	got := graph.Of(graph.Objects{
		Endpoints: []api.Endpoint{
			{Meta: meta("alice"), Spec: api.EndpointSpec{Netns: "alice", Address: "10.9.0.1/24"}, Placement: at("h1"), Status: up},
			{Meta: meta("bob"), Spec: api.EndpointSpec{MAC: "06:00:00:00:00:02"}, Status: up},
		},
		Functions: []api.Function{
			{Meta: meta("fw"), Spec: api.FunctionSpec{Image: "firewall"}, Placement: at("h1"), Status: started},
			{Meta: meta("mon"), Spec: api.FunctionSpec{Image: "monitor"}, Placement: at("h2"), Status: api.FunctionStatus{State: api.FunctionFailed, Message: "no image"}},
		},
		Chains: []api.Chain{{Meta: meta("web"), Spec: api.ChainSpec{Path: "fw | tap:mon"}}},
		Policies: []api.Policy{
			{Meta: meta("guests"), Spec: api.PolicySpec{From: "alice", To: "bob", Match: []string{"tcp/80"}, Chain: "web"}, Status: active},
			{Meta: meta("lan"), Spec: api.PolicySpec{From: "alice", To: "bob", Match: []string{"tcp/22"}, Chain: "web", Symmetric: &no}},
			{Meta: meta("out"), Spec: api.PolicySpec{From: "bob", Match: []string{"icmp"}, Mode: api.ModeReplica, Chain: "web"}, Status: active},
			{Meta: meta("lost"), Spec: api.PolicySpec{From: "alice", Chain: "none"}},
		},
		Hosts: []api.Host{{Meta: meta("h1"), Status: api.HostStatus{State: api.HostReady}}, {Meta: meta("h2"), Status: api.HostStatus{State: api.HostReady}}},
		Switches: []api.Switch{
			{Meta: meta("s1"), Status: api.SwitchStatus{State: api.SwitchConnected, Ports: []api.SwitchPort{
				{Number: 1, Name: "p1", Kind: "link", Peer: "s2:p7", State: api.LinkUp}, {Number: 2, Name: "p2", Kind: "host", Peer: "h1:eth1", State: api.LinkUp},
				{Number: 3, Name: "p3", Kind: "link", Peer: "s2:p8", State: api.LinkDown},
			}}},
			{Meta: meta("s2"), Status: api.SwitchStatus{State: api.SwitchConnected, Ports: []api.SwitchPort{
				{Number: 7, Name: "p7", Kind: "link", Peer: "s1:p1", State: api.LinkUp}, {Number: 8, Name: "p8", Kind: "link", Peer: "s1:p3", State: api.LinkDown},
				{Number: 9, Name: "p9", Kind: "edge", Stations: []string{"06:00:00:00:00:02 10.9.0.2"}, State: api.LinkUp},
			}}},
		},
		Assignments: []api.Assignment{
			{Meta: meta("h1"), Spec: api.AssignmentSpec{Tunnels: []api.Tunnel{{Host: "h2", Key: "k"}}}},
			{Meta: meta("h2"), Spec: api.AssignmentSpec{Tunnels: []api.Tunnel{{Host: "h1", Key: "k"}}}},
		},
	})
	want := api.Graph{
		Nodes: []api.GraphNode{
			{ID: "address/any", Kind: "address", Name: "any", Ready: true},
			{ID: "endpoint/alice", Kind: "endpoint", Name: "alice", On: "host/h1", Detail: "10.9.0.1/24", State: "up", Ready: true},
			{ID: "endpoint/bob", Kind: "endpoint", Name: "bob", On: "switch/s2", Detail: "06:00:00:00:00:02", State: "up", Ready: true},
			{ID: "function/fw", Kind: "function", Name: "fw", On: "host/h1", Detail: "firewall", State: "started", Ready: true},
			{ID: "function/mon", Kind: "function", Name: "mon", On: "host/h2", Detail: "monitor", State: "failed", Message: "no image"},
			{ID: "host/h1", Kind: "host", Name: "h1", State: "ready", Ready: true},
			{ID: "host/h2", Kind: "host", Name: "h2", State: "ready", Ready: true},
			{ID: "switch/s1", Kind: "switch", Name: "s1", State: "connected", Ready: true},
			{ID: "switch/s2", Kind: "switch", Name: "s2", State: "connected", Ready: true},
		},
		Edges: []api.GraphEdge{
			{From: "endpoint/bob", To: "function/fw", Kind: api.EdgeCopies, Policies: []string{"out"}, Chain: "web", Detail: "icmp", Ready: true},
			{From: "function/fw", To: "function/mon", Kind: api.EdgeCopies, Policies: []string{"guests", "lan", "out"}, Chain: "web", Detail: "tcp/80, tcp/22, icmp"},
			{From: "endpoint/bob", To: "switch/s2", Kind: api.EdgeLink, Ready: true},
			{From: "host/h1", To: "switch/s1", Kind: api.EdgeLink, Detail: "s1:p2 - h1:eth1", Ready: true},
			{From: "switch/s1", To: "switch/s2", Kind: api.EdgeLink, Detail: "s1:p1 - s2:p7", Ready: true},
			{From: "switch/s1", To: "switch/s2", Kind: api.EdgeLink, Detail: "s1:p3 - s2:p8"},
			{From: "endpoint/alice", To: "function/fw", Kind: api.EdgeSteers, Policies: []string{"guests", "lan"}, Chain: "web", Both: true, Detail: "tcp/80, tcp/22"},
			{From: "endpoint/bob", To: "address/any", Kind: api.EdgeSteers, Policies: []string{"out"}, Chain: "web", Both: true, Detail: "icmp", Ready: true},
			{From: "function/fw", To: "endpoint/bob", Kind: api.EdgeSteers, Policies: []string{"guests", "lan"}, Chain: "web", Both: true, Detail: "tcp/80, tcp/22"},
			{From: "host/h1", To: "host/h2", Kind: api.EdgeTunnel, Detail: "VXLAN in WireGuard", Ready: true},
		},
	}
	if d := cmp.Diff(want, got); d != "" {
		t.Error(d)
	}
}

// Thousands of policies may share a chain: what they match is shown in part, and costs no more than they are.
func TestManyPoliciesOfOneChain(t *testing.T) {
	o := graph.Objects{
		Endpoints: []api.Endpoint{{Meta: meta("alice")}, {Meta: meta("bob")}},
		Functions: []api.Function{{Meta: meta("fw")}},
		Chains:    []api.Chain{{Meta: meta("web"), Spec: api.ChainSpec{Path: "fw"}}},
	}
	for i := range 20_000 {
		o.Policies = append(o.Policies, api.Policy{Meta: meta(fmt.Sprint("p", i)), Spec: api.PolicySpec{From: "alice", To: "bob", Match: []string{fmt.Sprint("tcp/", i+1)}, Chain: "web"}})
	}
	want := "tcp/1, tcp/2, tcp/3, tcp/4, tcp/5, tcp/6, tcp/7, tcp/8, tcp/9, tcp/10, tcp/11, tcp/12, tcp/13, tcp/14, tcp/15, tcp/16, tcp/17, tcp/18, tcp/19, tcp/20, and 19980 more"
	for _, e := range graph.Of(o).Edges {
		if e.Detail != want || len(e.Policies) != len(o.Policies) {
			t.Errorf("%s to %s: %d policies, %q", e.From, e.To, len(e.Policies), e.Detail)
		}
	}
}
