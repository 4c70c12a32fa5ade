package model

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"pgregory.net/rapid"

	"weir.dev/weir/api"
	"weir.dev/weir/flow"
	"weir.dev/weir/router"
	"weir.dev/weir/router/fabric"
	"weir.dev/weir/router/fabric/oracle"
	"weir.dev/weir/router/fabric/steering"
	"weir.dev/weir/router/policy"
)

// up wires a network and lets every station be heard once, without policies.
func up(t interface{ Fatal(...any) }, in fabric.Input, rewrites map[string]oracle.Rewrite) *Network {
	n, err := New(in, rewrites)
	if err != nil {
		t.Fatal(err)
	}
	without := in
	without.Policies = nil
	if err := n.Install(without, steering.Compile(without)); err != nil {
		t.Fatal(err)
	}
	for name, e := range in.Endpoints {
		r, err := n.Send(name, hello(e.MACs[0]))
		if err != nil {
			t.Fatal(err, r.Trail)
		}
		if len(r.Deliveries) != len(in.Endpoints)-1 {
			t.Fatal("a first broadcast reaches ", len(r.Deliveries), " stations, want ", len(in.Endpoints)-1, r.Trail)
		}
	}
	return n
}

func hello(m flow.MAC) []byte {
	whole := flow.MAC{255, 255, 255, 255, 255, 255}
	frame, _, _ := flow.Witness(flow.Match{SrcMAC: m, SrcMACMask: whole, DstMAC: whole, DstMACMask: whole, EtherType: 0x88b6})
	return frame
}

// seen is a result in the oracle's terms.
func seen(in fabric.Input, r Result, many bool) oracle.Prediction {
	p := oracle.Prediction{Arrives: map[string][]byte{}}
	copies := map[string]bool{}
	for _, spec := range in.Policies {
		if spec.ModeOrDefault() == api.ModeReplica {
			hops, _ := api.ParsePath(in.Chains[spec.Chain].Path)
			for _, h := range hops {
				copies[h.Function] = true
			}
		}
	}
	for _, m := range r.Meetings {
		f := strings.Split(m.Port, "/")[1]
		if copies[f] || in.Functions[f].Tap {
			p.Copies = append(p.Copies, m.Port)
		} else {
			p.Meets = append(p.Meets, m.Port)
		}
	}
	for _, d := range r.Deliveries {
		name := d.Endpoint
		for p.Arrives[name] != nil {
			name += " again"
		}
		p.Arrives[name] = d.Frame
	}
	slices.Sort(p.Copies)
	if many {
		slices.Sort(p.Meets)
	}
	return p
}

func agree(t *rapid.T, n *Network, in fabric.Input, out fabric.Output, from string, frame []byte, rewrites map[string]oracle.Rewrite) {
	if diff, trail := differs(n, in, from, frame, rewrites); diff != "" {
		k, _ := flow.Decode(frame)
		t.Fatalf("%v from %s (vlan %d): -want +got\n%s\n%s\n%s", k, from, k.VLAN, diff, strings.Join(trail, "\n"), describe(in, out))
	}
}

// differs compares what becomes of a frame with what policies say.
func differs(n *Network, in fabric.Input, from string, frame []byte, rewrites map[string]oracle.Rewrite) (diff string, trail []string) {
	want := oracle.Predict(in, from, frame, rewrites)
	want.Policies = nil
	k, _ := flow.Decode(frame)
	r, err := n.Send(from, frame)
	if err != nil {
		return err.Error(), r.Trail
	}
	if k.DstMAC.Multicast() {
		slices.Sort(want.Meets)
	}
	return cmp.Diff(want, seen(in, r, k.DstMAC.Multicast()), cmpopts.EquateEmpty()), r.Trail
}

func describe(in fabric.Input, out fabric.Output) string {
	var b strings.Builder
	for _, name := range slices.Sorted(maps.Keys(in.Policies)) {
		p := in.Policies[name]
		fmt.Fprintf(&b, "policy %s: %s -> %s %v %s by %q, %q, priority %d, symmetric %v; crossing %v, error %v\n  %+v\n", name, p.From, p.To, p.Match, p.Mode, p.MatchBy, in.Chains[p.Chain].Path, p.Priority, p.IsSymmetric(),
			out.Paths.Of(name) != nil, out.Errors[name], out.Paths.Of(name))
	}
	for _, name := range slices.Sorted(maps.Keys(in.Functions)) {
		fmt.Fprintf(&b, "function %s: %+v\n", name, in.Functions[name])
	}
	for _, name := range slices.Sorted(maps.Keys(in.Endpoints)) {
		fmt.Fprintf(&b, "endpoint %s: %v\n", name, in.Endpoints[name].At)
	}
	for _, l := range in.Links {
		fmt.Fprintf(&b, "link %v - %v\n", l.A, l.B)
	}
	for id, entries := range out.Entries {
		for _, e := range entries {
			if e.Policy != "" {
				fmt.Fprintf(&b, "%s %d/%d in %d tag %d %s -> %v goto %d\n", id, e.Table, e.Priority, e.Match.InPort, e.Match.Tag, e.Note, e.Outs, e.Goto)
			}
		}
	}
	for id, rules := range out.Hosts {
		for _, r := range rules {
			fmt.Fprintf(&b, "%s %s %d in %s out %s tag %d %s -> %v\n", id, r.Stage, r.Priority, r.Match.InPort, r.Match.OutPort, r.Match.Tag, r.Note, r.Action)
		}
	}
	return b.String()
}

// unserved drops the policies that are refused until the rest is served.
func unserved(t interface{ Fatal(...any) }, in fabric.Input) (fabric.Input, fabric.Output) {
	in.Policies = maps.Clone(in.Policies)
	n, err := New(in, nil)
	if err != nil {
		t.Fatal(err)
	}
	for {
		out := steering.Compile(Routed(in))
		refused := map[string]error{}
		maps.Copy(refused, out.Errors)
		for id := range n.hosts {
			maps.Copy(refused, router.Compile(n.localTo(id, in, out.Paths.Names())).Errors)
		}
		maps.DeleteFunc(refused, func(_ string, err error) bool {
			return errors.Is(err, policy.ErrNotReady)
		})
		if len(refused) == 0 {
			return in, out
		}
		for name, err := range refused {
			if p := in.Policies[name]; p.ModeOrDefault() == api.ModeReplica && !slices.ContainsFunc(noCopies, func(s string) bool { return strings.Contains(err.Error(), s) }) {
				t.Fatal("copies are refused: ", name, err)
			}
			delete(in.Policies, name)
		}
	}
}

// noCopies are the reasons why a policy that copies may be refused.
var noCopies = []string{
	"has one table only",
	"give each a chain of its own",
	"no station sends frames to itself",
}

// drawn is a network with policies, each with a chain of its own.
func drawn(t *rapid.T) (*builder, fabric.Input, fabric.Output) {
	b := drawNetwork(t)
	for i := range len(b.in.Chains) {
		b.drawPolicy(t, i)
	}
	in, out := unserved(t, b.in)
	return b, in, out
}

func check(t *rapid.T, b *builder, in fabric.Input, out fabric.Output, rewrites map[string]oracle.Rewrite, unicast bool) {
	n := up(t, in, rewrites)
	if err := n.Install(in, out); err != nil {
		t.Fatal(err, describe(in, out))
	}
	for range 8 {
		from, frame := b.drawFrame(t)
		if unicast && frame[0]&1 == 1 {
			continue
		}
		agree(t, n, in, out, from, frame, rewrites)
	}
}

// Random networks, policies and frames: each frame meets the functions of its policies in order and once, arrives unchanged and once
// where it would without policies; copies leave it alone; nothing loops, and no tag leaves the fabric.
func TestSteeringIsWhatPoliciesSay(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		b, in, out := drawn(t)
		check(t, b, in, out, nil, false)
	})
}

// A function that rewrites addresses, as NAT does, does not lead frames astray.
func TestRewritingFunctionsDoNotLeadFramesAstray(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		b := drawNetwork(t)
		rewrites := b.drawRewrites(t)
		for i := range len(b.in.Chains) {
			b.drawPolicy(t, i)
		}
		in, out := unserved(t, b.in)
		check(t, b, in, out, rewrites, false)
	})
}

// drawRewrites lets some functions rewrite addresses.
func (b *builder) drawRewrites(t *rapid.T) map[string]oracle.Rewrite {
	rewrites := map[string]oracle.Rewrite{}
	for _, name := range slices.Sorted(maps.Keys(b.in.Functions)) {
		if f := b.in.Functions[name]; !f.Tap && rapid.Bool().Draw(t, "rewrites") {
			f.Rewrites = true
			b.in.Functions[name] = f
			rewrites[name] = nat
		}
	}
	return rewrites
}

// nat gives IPv4 frames another source on the way there, and takes it back on the way back.
func nat(port string, frame []byte) []byte {
	const source, destination = 26, 30
	if len(frame) < 34 || frame[12] != 8 || frame[13] != 0 {
		return frame
	}
	if strings.HasSuffix(port, "/in") {
		frame[source+2] ^= 1
	} else {
		frame[destination+2] ^= 1
	}
	return frame
}

// Functions that are away: a policy that was in force fails closed or is bypassed, a new one waits.
func TestFunctionsAreAway(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		b := drawNetwork(t)
		b.in.InForce = map[string]bool{}
		for _, name := range slices.Sorted(maps.Keys(b.in.Functions)) {
			f := b.in.Functions[name]
			f.Ready = rapid.IntRange(0, 3).Draw(t, "ready") > 0
			f.OnFail = rapid.SampledFrom([]api.OnFail{api.OnFailDrop, api.OnFailBypass}).Draw(t, "on fail")
			b.in.Functions[name] = f
		}
		for i := range len(b.in.Chains) {
			b.drawPolicy(t, i)
			b.in.InForce[fmt.Sprint("p", i)] = rapid.Bool().Draw(t, "in force")
		}
		in, out := unserved(t, b.in)
		check(t, b, in, out, nil, false)
	})
}

// Policies that share chains do not take each other's frames.
func TestChainsAreShared(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		b := drawNetwork(t)
		for i := range rapid.IntRange(2, 6).Draw(t, "policies") {
			b.drawPolicy(t, i)
			name := fmt.Sprint("p", i)
			p := b.in.Policies[name]
			p.Chain = fmt.Sprint("c", rapid.IntRange(0, len(b.in.Chains)-1).Draw(t, "chain"))
			b.in.Policies[name] = p
		}
		in, out := unserved(t, b.in)
		kinds, left := map[string]bool{}, map[string]api.PolicySpec{}
		for _, name := range slices.Sorted(maps.Keys(in.Policies)) { // the oracle tells copies by the chain: the first policy says which it is
			p := in.Policies[name]
			replica := p.ModeOrDefault() == api.ModeReplica
			if was, known := kinds[p.Chain]; known && was != replica {
				continue
			}
			kinds[p.Chain], left[name] = replica, p
		}
		if len(left) < len(in.Policies) {
			in.Policies = left
			in, out = unserved(t, in)
		}
		check(t, b, in, out, nil, true)
	})
}

// Changing policies one by one comes to the same as compiling them at once, but for the numbers of tags.
func TestUpdateIsCompile(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		b := drawNetwork(t)
		for i := range len(b.in.Chains) {
			b.drawPolicy(t, i)
		}
		all := b.in.Policies
		in := b.in
		in.Policies = map[string]api.PolicySpec{}
		c := steering.New(in)
		var out fabric.Output
		before := in.Policies
		for range 8 {
			in.Policies = maps.Clone(in.Policies)
			name := fmt.Sprint("p", rapid.IntRange(0, len(all)-1).Draw(t, "policy"))
			switch _, there := in.Policies[name]; {
			case !there:
				in.Policies[name] = all[name]
			case rapid.Bool().Draw(t, "change"):
				p := in.Policies[name]
				p.Priority = 10*rapid.IntRange(1, 9).Draw(t, "priority") + int(name[1]-'0')
				in.Policies[name] = p
			default:
				delete(in.Policies, name)
			}
			routed := Routed(in)
			if rapid.Bool().Draw(t, "told") {
				routed.Before = before
				for name := range all {
					p, is := routed.Policies[name]
					if q, was := before[name]; is != was || !cmp.Equal(p, q) {
						routed.Edited = append(routed.Edited, name)
					}
				}
			}
			before = routed.Policies
			out = c.Update(routed)
			want := steering.Compile(routed)
			for id, entries := range out.Entries {
				for _, e := range entries {
					if _, there := in.Policies[e.Policy]; !there && e.Policy != "" {
						t.Fatalf("%s: %q bears the name of policy %s, which is gone", id, e.Note, e.Policy)
					}
				}
			}
			for id, rules := range out.Hosts {
				for _, r := range rules {
					if _, there := in.Policies[r.Policy]; !there && r.Policy != "" {
						t.Fatalf("%s: %q bears the name of policy %s, which is gone", id, r.Note, r.Policy)
					}
				}
			}
			if diff := cmp.Diff(shape(want), shape(out)); diff != "" {
				t.Fatalf("after %s: -compiled +updated\n%s", name, diff)
			}
		}
		served, at := unserved(t, in)
		if len(served.Policies) == len(in.Policies) {
			at = out
		}
		check(t, b, served, at, nil, false)
	})
}

// shape is an output without tags' numbers.
func shape(out fabric.Output) map[string]int {
	s := map[string]int{}
	for id, entries := range out.Entries {
		for _, e := range entries {
			tagged := 0
			if e.Match.Tag != 0 {
				tagged = 1
			}
			s[fmt.Sprintf("%s table %d priority %d in %d tagged %d, policy %s", id, e.Table, e.Priority, e.Match.InPort, tagged, e.Note[:min(6, len(e.Note))])]++
		}
	}
	for id, rules := range out.Hosts {
		for _, r := range rules {
			s[fmt.Sprintf("%s %s %d in %s tagged %v pushed %v", id, r.Stage, r.Priority, r.Match.InPort, r.Match.Tag != 0, r.Action.Push != 0)]++
		}
	}
	for key := range s { // legs to one end may share a tag or not, as others have left it
		if strings.Contains(key, "tagged 1") || strings.Contains(key, "tagged true") {
			s[key] = 1
		}
	}
	for name := range out.Errors {
		s["error "+name]++
	}
	for name := range out.Paths.All() {
		s["crossing "+name]++
	}
	return s
}
