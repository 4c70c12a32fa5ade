package model

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"weir.dev/weir/api"
	"weir.dev/weir/flow"
	"weir.dev/weir/router/fabric"
	"weir.dev/weir/router/fabric/steering"
)

// Forward takes the frames that both directions of a policy select, alone and together with copies. Frames to their sender do not loop.
func TestBothDirectionsSelectOneFrame(t *testing.T) {
	tests := []struct {
		name   string
		policy api.PolicySpec
		others []api.PolicySpec // that copy
	}{
		{"services from anywhere to anywhere", api.PolicySpec{From: "any", To: "any", Match: []string{"udp/53", "tcp/70-90"}}, []api.PolicySpec{
			{From: "any", To: "any", Match: []string{"udp/53"}},
			{From: "10.0.0.0/24", To: "any", Match: []string{"udp/1-100"}},
			{From: "10.0.0.2", To: "10.0.0.0/24"},
			{From: "02:00:00:00:00:01", To: "any"},
			{From: "e0", To: "any"},
			{From: "e0", To: "e1"},
		}},
		{"services within a network", api.PolicySpec{From: "10.0.0.0/24", To: "10.0.0.0/30", Match: []string{"udp/53", "tcp/80"}}, []api.PolicySpec{
			{From: "10.0.0.0/30", To: "10.0.0.0/24", Match: []string{"udp/53"}},
			{From: "any", To: "any", Match: []string{"udp/53", "tcp/80-90"}},
		}},
		{"one MAC", api.PolicySpec{From: "02:00:00:00:00:01", To: "any"}, []api.PolicySpec{
			{From: "02:00:00:00:00:01", To: "any"},
			{From: "any", To: "02:00:00:00:00:01"},
			{From: "10.0.0.1", To: "any"},
			{From: "10.0.0.0/24", To: "any", Match: []string{"udp/53"}},
		}},
		{"one address", api.PolicySpec{From: "10.0.0.1", To: "10.0.0.0/24"}, []api.PolicySpec{
			{From: "10.0.0.1", To: "any"},
			{From: "10.0.0.0/24", To: "10.0.0.1"},
			{From: "any", To: "any", Match: []string{"udp/53"}},
		}},
	}
	stations := []fabric.SwitchID{"of:0000000000000001", "of:0000000000000003", "of:0000000000000002", "host:h1"}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			for _, chain := range []string{"one", "two"} {
				for _, name := range []string{"p0", "p1"} { // which of two rules wins must not depend on their names
					p := tt.policy
					p.Chain = chain
					for _, o := range append(tt.others, api.PolicySpec{}) {
						policies := map[string]api.PolicySpec{name: p}
						if o.From != "" {
							o.Chain, o.Mode = "copies", api.ModeReplica
							policies["copy"] = o
						}
						twoWays(t, policies, stations[:3])
						twoWays(t, policies, stations)
					}
				}
			}
		})
	}
}

// twoWays sends frames between all stations of a line of three switches, with a host at each and one more at the first.
func twoWays(t *testing.T, policies map[string]api.PolicySpec, stations []fabric.SwitchID) {
	t.Helper()
	b := newBuilder()
	b.tables = 4
	s1, s2, s3 := b.openflow(1), b.openflow(2), b.openflow(3)
	b.link(s1, s2)
	b.link(s2, s3)
	for i, s := range []fabric.SwitchID{s1, s2, s3, s1} {
		h := b.host(i + 1)
		b.link(s, h)
		b.in.Functions[fmt.Sprint("f", i+1)] = fabric.Function{Host: h, Ready: true}
	}
	b.in.Chains = map[string]api.ChainSpec{"one": {Path: "f1"}, "two": {Path: "f1 | f2"}, "copies": {Path: "f3 | f4"}}
	for _, s := range stations {
		b.station(s)
	}
	b.in.Policies = policies
	out := steering.Compile(b.in)
	if len(out.Errors) > 0 {
		t.Fatal(out.Errors)
	}
	n := up(t, b.in, nil)
	if err := n.Install(b.in, out); err != nil {
		t.Fatalf("%v: %v", policies, err)
	}
	for i := range len(stations) * len(stations) {
		from, to := i/len(stations), i%len(stations)
		for _, ports := range [][2]uint16{{53, 53}, {53, 9}, {80, 53}} {
			name, frame := fmt.Sprint("e", from), datagram(from, to, ports)
			if from != to {
				if diff, trail := differs(n, b.in, name, frame, nil); diff != "" {
					t.Fatalf("%s to e%d, ports %v: -want +got\n%s\n%s\n%s", name, to, ports, diff, strings.Join(trail, "\n"), describe(b.in, out))
				}
			} else if r, err := n.Send(name, frame); err != nil { // a hostile station's; the oracle does not say what it meets
				t.Fatalf("%s to itself, ports %v: %v\n%s\n%s", name, ports, err, strings.Join(r.Trail, "\n"), describe(b.in, out))
			}
		}
	}
}

func datagram(from, to int, ports [2]uint16) []byte {
	whole := flow.MAC{255, 255, 255, 255, 255, 255}
	port := func(p uint16) flow.PortRange { return flow.PortRange{First: p, Last: p} }
	frame, _, _ := flow.Witness(flow.Match{
		SrcMAC: stationMAC(from), SrcMACMask: whole, DstMAC: stationMAC(to), DstMACMask: whole, EtherType: flow.EtherTypeIPv4, Proto: flow.ProtoUDP,
		Src: netip.PrefixFrom(station4(from), 32), Dst: netip.PrefixFrom(station4(to), 32), SrcPorts: port(ports[0]), DstPorts: port(ports[1]),
	})
	return frame
}
