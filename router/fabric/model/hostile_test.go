package model

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"weir.dev/weir/api"
	"weir.dev/weir/flow"
	"weir.dev/weir/router/fabric"
	"weir.dev/weir/router/fabric/oracle"
	"weir.dev/weir/router/fabric/steering"
)

// A hostile station chooses the destination MAC and the destination IP address of its frames independently. Its frames need not arrive,
// but they do not loop, meet no function twice in one direction, and do not pass around a chain.
func TestHostileFramesDoNotLoop(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		b := drawNetwork(t)
		rewrites := map[string]oracle.Rewrite{}
		if rapid.IntRange(0, 3).Draw(t, "functions rewrite") == 0 {
			rewrites = b.drawRewrites(t)
		}
		shared := rapid.IntRange(0, 3).Draw(t, "chains are shared") == 0
		for i := range len(b.in.Chains) {
			b.drawPolicy(t, i)
			if name := fmt.Sprint("p", i); shared {
				p := b.in.Policies[name]
				p.Chain = fmt.Sprint("c", rapid.IntRange(0, len(b.in.Chains)-1).Draw(t, "chain"))
				if p.Mode == api.ModeReplica {
					p.Mode = api.ModeSelective // nobody tells copies from others in one chain
				}
				b.in.Policies[name] = p
			}
		}
		in, out := unserved(t, b.in)
		n := up(t, in, rewrites)
		if err := n.Install(in, out); err != nil {
			t.Fatal(err, describe(in, out))
		}
		for range 8 {
			from, frame := b.drawHostile(t)
			if wrong, trail := abused(n, in, from, frame, rewrites); wrong != "" {
				k, _ := flow.Decode(frame)
				t.Fatalf("%v from %s (vlan %d): %s\n%s\n%s", k, from, k.VLAN, wrong, strings.Join(trail, "\n"), describe(in, out))
			}
		}
	})
}

// abused says what a hostile frame does that it must not.
func abused(n *Network, in fabric.Input, from string, frame []byte, rewrites map[string]oracle.Rewrite) (wrong string, trail []string) {
	r, err := n.Send(from, frame)
	if err != nil {
		return err.Error(), r.Trail
	}
	k, _ := flow.Decode(frame)
	to := ""
	for name, e := range in.Endpoints {
		if slices.Contains(e.MACs, k.DstMAC) {
			to = name
		}
	}
	most := 1
	if to == "" {
		most = len(in.Endpoints) // one flooded copy for each may meet a chain
	}
	count := map[string]int{}
	for _, m := range r.Meetings {
		ways := 1
		if strings.HasSuffix(m.Port, "/tap") {
			ways = 2 // both directions of a policy use the same port
		}
		if count[m.Port]++; count[m.Port] > ways*most {
			return "it meets " + m.Port + " again", r.Trail
		}
	}
	if to == from || !slices.ContainsFunc(r.Deliveries, func(d Delivery) bool { return d.Endpoint == to }) {
		return "", r.Trail // policies for an IP address take its frames to the address's owner
	}
	for _, port := range oracle.Predict(in, from, frame, rewrites).Meets {
		if count[port] == 0 {
			return "it passes around " + port, r.Trail
		}
	}
	return "", r.Trail
}

// Frames that looped between the end and the beginning of a chain.
func TestHostileFramesThatLooped(t *testing.T) {
	no := false
	tests := []struct {
		name     string
		policies map[string]api.PolicySpec
		to       flow.MAC // of a frame from e0
		address  int      // of a station, its destination
		arrives  string
		meets    []string
	}{
		{
			"e1's address, e2's MAC: as towards a router in the fabric",
			map[string]api.PolicySpec{"p": {From: "e0", To: "e1", Chain: "across", Match: []string{"ip"}}},
			stationMAC(2), 1, "e2", []string{"function/f1/in", "function/f2/in"},
		},
		{
			"e1's address, a MAC that nobody has",
			map[string]api.PolicySpec{"p": {From: "e0", To: "e1", Chain: "across", Match: []string{"ip"}}},
			flow.MAC{2, 9, 9, 9, 9, 9}, 1, "e2", []string{"function/f1/in", "function/f2/in"},
		},
		{
			"e1's address, the broadcast MAC",
			map[string]api.PolicySpec{"p": {From: "e0", To: "e1", Chain: "across", Match: []string{"ip"}}},
			flow.MAC{255, 255, 255, 255, 255, 255}, 1, "e2", []string{"function/f1/in", "function/f2/in"},
		},
		{
			"to itself, one policy from it and one to it",
			map[string]api.PolicySpec{
				"p": {From: "e0", To: "any", Chain: "beside", Match: []string{"ip"}, Priority: 90, Symmetric: &no},
				"q": {From: "any", To: "e0", Chain: "one", Match: []string{"ip"}, Priority: 10, Symmetric: &no},
			},
			stationMAC(0), 0, "e0", []string{"function/f2/in", "function/f4/in", "function/f3/in"},
		},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			b := newBuilder()
			b.tables = 4
			s1, s2 := b.openflow(1), b.openflow(2)
			b.link(s1, s2)
			h1, h2, h3 := b.host(1), b.host(2), b.host(3)
			b.link(s2, h1)
			b.link(s1, h2)
			b.link(s1, h3)
			for name, h := range map[string]fabric.SwitchID{"f1": h1, "f2": h2, "f3": h2, "f4": h3} {
				b.in.Functions[name] = fabric.Function{Host: h, Ready: true}
			}
			b.in.Chains = map[string]api.ChainSpec{"across": {Path: "f1 | f2"}, "beside": {Path: "f2 | f4"}, "one": {Path: "f3"}}
			for _, s := range []fabric.SwitchID{s1, s1, s2} {
				b.station(s)
			}
			b.in.Policies = tt.policies
			out := steering.Compile(b.in)
			if len(out.Errors) > 0 {
				t.Fatal(out.Errors)
			}
			n := up(t, b.in, nil)
			if err := n.Install(b.in, out); err != nil {
				t.Fatal(err)
			}
			frame := datagram(0, tt.address, [2]uint16{80, 90})
			copy(frame, tt.to[:])
			r, err := n.Send("e0", frame)
			if err != nil {
				t.Fatal(err, describe(b.in, out), r.Trail[:30])
			}
			if diff := cmp.Diff(tt.meets, seen(b.in, r, false).Meets); diff != "" {
				t.Errorf("-want +got\n%s\n%s\n%s", diff, strings.Join(r.Trail, "\n"), describe(b.in, out))
			}
			if !slices.ContainsFunc(r.Deliveries, func(d Delivery) bool { return d.Endpoint == tt.arrives }) {
				t.Errorf("%s does not get it:\n%s\n%s", tt.arrives, strings.Join(r.Trail, "\n"), describe(b.in, out))
			}
		})
	}
}
