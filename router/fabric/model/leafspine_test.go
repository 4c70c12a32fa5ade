package model

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"weir.dev/weir/api"
	"weir.dev/weir/flow"
	"weir.dev/weir/router/fabric"
	"weir.dev/weir/router/fabric/steering"
)

// dense is a leaf-spine of 4 leaves and 2 spines with 2 stations and a host for functions at each leaf, and many policies of all modes,
// with chains of 1 to 4 functions across hosts.
type dense struct {
	*builder
	frames map[string][][]byte // by sender
}

func drawDense(policies int) *rapid.Generator[dense] {
	return rapid.Custom(func(t *rapid.T) dense {
		b := newBuilder()
		b.tables = 4
		var hosts []fabric.SwitchID
		spines := []fabric.SwitchID{b.openflow(1), b.openflow(2)}
		for i := range 4 {
			leaf := b.openflow(3 + i)
			for _, s := range spines {
				b.link(s, leaf)
			}
			b.station(leaf)
			b.station(leaf)
			h := b.host(i + 1)
			b.link(leaf, h)
			hosts = append(hosts, h)
		}
		for i := range policies {
			var hops []string
			for h := range rapid.IntRange(1, 4).Draw(t, "hops") {
				name := fmt.Sprintf("f%dx%d", i, h)
				f := fabric.Function{Host: rapid.SampledFrom(hosts).Draw(t, "host"), Ready: true}
				if f.Tap = h == 1 && rapid.Bool().Draw(t, "tap"); f.Tap {
					name = "t" + name
					hops = append(hops, "tap:"+name)
				} else {
					hops = append(hops, name)
				}
				b.in.Functions[name] = f
			}
			b.in.Chains[fmt.Sprint("c", i)] = api.ChainSpec{Path: strings.Join(hops, " | ")}
			b.drawPolicy(t, i)
			p := b.in.Policies[fmt.Sprint("p", i)]
			if p.Priority = 1 + i; p.Mode == api.ModeReplica {
				p.Priority = 991 + i%10 // there is room for a few priorities of these only; of two, the names decide
				if i >= 10 {
					p.Mode = ""
					p.Priority = 1 + i
				}
			}
			b.in.Policies[fmt.Sprint("p", i)] = p
		}
		d := dense{b, map[string][][]byte{}}
		for range 400 {
			from, frame := b.drawFrame(t)
			d.frames[from] = append(d.frames[from], frame)
		}
		return d
	})
}

// A hundred policies at once: every frame does what they say, though many cross each other's ways.
func TestHundredPoliciesOnLeafSpine(t *testing.T) {
	for seed := range 4 {
		d := drawDense(100).Example(seed)
		out := steering.Compile(d.in)
		tagged := 0
		for name, p := range out.Paths.All() {
			if err := out.Errors[name]; err != nil && !strings.Contains(err.Error(), "no station sends frames to itself") {
				t.Errorf("policy %s: %v", name, err)
			}
			if len(p.Tags) > 0 {
				tagged++
			}
		}
		if tagged == 0 {
			t.Error("no policy needs a tag: the case is too easy")
		}
		n := up(t, d.in, nil)
		if err := n.Install(d.in, out); err != nil {
			t.Fatal(err)
		}
		for from, frames := range d.frames {
			for _, frame := range frames {
				if diff, trail := differs(n, d.in, from, frame, nil); diff != "" {
					k, _ := flow.Decode(frame)
					t.Fatalf("%v from %s: -want +got\n%s\n%s", k, from, diff, strings.Join(trail, "\n"))
				}
			}
		}
		if r, err := n.Send("e0", hello(flow.MAC{2, 9, 9, 9, 9, 9})); errors.Is(err, ErrLoop) {
			t.Fatal("a stranger's broadcast loops: ", r.Trail)
		}
	}
}
