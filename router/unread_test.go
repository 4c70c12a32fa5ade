package router

import (
	"bytes"
	"encoding/binary"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"weir.dev/weir/api"
	"weir.dev/weir/flow"
	"weir.dev/weir/router/cases"
)

// hidden are forms of a frame that nobody can read to the end, and that a receiver may take for the same.
func hidden(frame []byte) map[string][]byte {
	tags := bytes.Repeat([]byte{0x81, 0, 0, 0}, 3)
	all := map[string][]byte{"three priority tags": slices.Concat(frame[:12], tags, frame[12:])}
	if binary.BigEndian.Uint16(frame[12:]) != flow.EtherTypeIPv6 {
		return all
	}
	b := bytes.Clone(frame[:54])
	next := b[20]
	b[20] = 60
	for i := range 7 {
		n := byte(60)
		if i == 6 {
			n = next
		}
		b = append(b, n, 0, 1, 4, 0, 0, 0, 0)
	}
	b = append(b, frame[54:]...)
	binary.BigEndian.PutUint16(b[18:], uint16(len(b)-54))
	all["seven extension headers"] = b
	return all
}

// A frame that a policy would steer if it could be read meets the same functions when it cannot be, or it does not arrive.
func TestNothingUnreadPassesAPolicyBy(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		d := drawDocument(t)
		var functions []string
		for _, c := range d.Chains {
			for _, h := range strings.Split(c.Path, "|") {
				functions = append(functions, strings.TrimSpace(h))
			}
		}
		slices.Sort(functions)
		endpoints := stations[:len(d.Endpoints)]
		w := newWorld(t, endpoints, functions, nil)
		w.in.Chains, w.in.Policies = d.Chains, d.Policies
		out := Compile(w.in)
		if err := verify(out.Rules, topologyOf(w.in)); err != nil {
			t.Fatal(err)
		}
		must(t, w.Commit(out.Rules))
		for range 8 {
			from, frame := drawFrame(t, len(endpoints))
			k, _ := flow.Decode(frame)
			if k.DstMAC.Multicast() {
				continue
			}
			var want cases.Frame
			survives := told(d, nil, flow.Ingress, from, "", k, &want)
			for _, to := range endpoints {
				if survives && to != from && k.DstMAC == cases.MAC(to) {
					told(d, nil, flow.Egress, from, to, k, &want)
				}
			}
			for how, b := range hidden(frame) {
				r, err := w.Inject(w.in.Endpoints[from], b)
				must(t, err)
				got := seen(r)
				if len(got.Arrives) > 0 && !inOrderWithin(want.Meets, got.Meets) {
					t.Fatalf("%v at %s with %s: met %v, want %v\n%v\n%v", k, from, how, got.Meets, want.Meets, d.Policies, r.Trail)
				}
			}
		}
	})
}

func inOrderWithin(part, all []string) bool {
	for _, s := range all {
		if len(part) > 0 && part[0] == s {
			part = part[1:]
		}
	}
	return len(part) == 0
}

func TestUnreadFrames(t *testing.T) {
	everything := []string{"tcp", "udp", "icmp", "sctp"}
	web, alt := []string{"function/fw/in"}, []string{"function/w1/in"}
	yes, no := true, false
	tests := []struct {
		name     string
		policies map[string]api.PolicySpec
		meets    []string // nil: dropped, unless it passes
		passes   bool     // ordinary switching
	}{
		{"no policy", nil, nil, true},
		{"a firewall for some protocols", map[string]api.PolicySpec{"a": {From: "alice", To: "bob", Match: everything, Chain: "web"}}, web, false},
		{"a firewall for prefixes, one way", map[string]api.PolicySpec{"a": {From: "10.0.0.0/8", To: "bob", Chain: "web", Symmetric: &no}}, web, false},
		{"a policy between others", map[string]api.PolicySpec{"a": {From: "carol", To: "bob", Match: everything, Chain: "web"}}, nil, true},
		{"one policy where it enters, one where it leaves", map[string]api.PolicySpec{
			"a": {From: "alice", Mode: api.ModeExhaustive, Chain: "web"}, "b": {From: "alice", To: "bob", Match: []string{"udp"}, Chain: "alt"}}, slices.Concat(web, alt), false},
		{"two policies, one chain", map[string]api.PolicySpec{
			"a": {From: "alice", To: "bob", Match: []string{"tcp/80"}, Chain: "web"}, "b": {From: "alice", To: "bob", Match: []string{"udp"}, Chain: "web"}}, web, false},
		{"two policies, two chains", map[string]api.PolicySpec{
			"a": {From: "alice", To: "bob", Match: []string{"tcp/80"}, Chain: "web"}, "b": {From: "alice", To: "bob", Match: []string{"udp"}, Chain: "alt"}}, nil, false},
		{"another policy for all has less priority", map[string]api.PolicySpec{
			"a": {From: "alice", To: "bob", Match: []string{"tcp/80"}, Chain: "web"}, "b": {From: "alice", To: "bob", Chain: "alt", Priority: 50}}, nil, false},
		{"another policy for all has more priority", map[string]api.PolicySpec{
			"a": {From: "alice", To: "bob", Match: []string{"tcp/80"}, Chain: "web"}, "b": {From: "alice", To: "bob", Chain: "alt", Priority: 150}}, alt, false},
		{"both directions are possible", map[string]api.PolicySpec{"a": {From: "any", To: "any", Match: []string{"tcp/80"}, Chain: "web", Symmetric: &yes}}, nil, false},
	}
	wholeMAC := flow.MAC{255, 255, 255, 255, 255, 255}
	from := flow.Match{SrcMAC: cases.MAC("alice"), SrcMACMask: wholeMAC, DstMAC: cases.MAC("bob"), DstMACMask: wholeMAC, EtherType: flow.EtherTypeIPv4, Proto: flow.ProtoUDP}
	frame, _, _ := flow.Witness(from)
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			w := newWorld(t, []string{"alice", "bob", "carol"}, []string{"fw", "w1"}, nil)
			w.in.Chains, w.in.Policies = map[string]api.ChainSpec{"web": {Path: "fw"}, "alt": {Path: "w1"}}, tt.policies
			out := Compile(w.in)
			if len(out.Errors) > 0 {
				t.Fatal(out.Errors)
			}
			must(t, w.Commit(out.Rules))
			r, err := w.Inject(w.in.Endpoints["alice"], hidden(frame)["three priority tags"])
			must(t, err)
			got := seen(r)
			if diff := cmp.Diff(tt.meets, got.Meets); diff != "" {
				t.Error(diff, r.Trail)
			}
			if arrives := slices.Contains(got.Arrives, "bob"); arrives != (tt.meets != nil || tt.passes) {
				t.Errorf("arrives: %t\n%v", arrives, r.Trail)
			}
		})
	}
}
