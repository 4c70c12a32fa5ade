package steering

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"weir.dev/weir/api"
	"weir.dev/weir/flow"
	"weir.dev/weir/router/fabric"
	"weir.dev/weir/router/fabric/graph"
)

func of(n int) fabric.SwitchID { return fabric.SwitchID(fmt.Sprintf("of:%016x", n)) }

func numbers(n ...flow.Port) []fabric.Port {
	var p []fabric.Port
	for _, x := range n {
		p = append(p, fabric.Port{Number: x})
	}
	return p
}

func at(s fabric.SwitchID, p flow.Port) fabric.At {
	return fabric.At{Switch: s, Port: fabric.Port{Number: p}}
}

func named(s fabric.SwitchID, name string) fabric.At {
	return fabric.At{Switch: s, Port: fabric.Port{Name: name}}
}

func mac(n byte) flow.MAC { return flow.MAC{2, 0, 0, 0, 0, n} }

func addr(n byte) netip.Prefix { return netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 0, 0, n}), 32) }

// fig2 is the network of the paper's Fig. 2 with its port numbers.
func fig2() fabric.Input {
	return fabric.Input{
		Topology: fabric.Topology{
			Switches: map[fabric.SwitchID]fabric.Switch{
				of(1):       {Name: "s1", Ports: numbers(1, 2), Tables: make([]uint32, 4)},
				of(2):       {Name: "s2", Ports: numbers(1, 2, 3), Tables: make([]uint32, 4)},
				"host:nfv1": {Name: "nfv1", Host: true, Ports: []fabric.Port{{Name: "uplink/eth0"}}},
			},
			Links: []fabric.Link{
				{A: at(of(1), 1), B: at(of(2), 1)},
				{A: at(of(2), 3), B: named("host:nfv1", "uplink/eth0")},
			},
		},
		Endpoints: map[string]fabric.Endpoint{
			"vm1": {At: at(of(1), 2), MACs: []flow.MAC{mac(1)}, Prefixes: []netip.Prefix{addr(1)}},
			"vm2": {At: at(of(2), 2), MACs: []flow.MAC{mac(2)}, Prefixes: []netip.Prefix{addr(2)}},
		},
		Functions: map[string]fabric.Function{"nf": {Host: "host:nfv1", Ready: true}},
		Chains:    map[string]api.ChainSpec{"through": {Path: "nf"}},
		Policies:  map[string]api.PolicySpec{"p": {From: "vm1", Match: []string{"ip"}, Chain: "through"}},
	}
}

// text renders entries and host rules of policies, without priorities and cookies, as Table I does.
func text(in fabric.Input, out fabric.Output) []string {
	var all []string
	for id, entries := range out.Entries {
		for _, e := range entries {
			if e.Policy == "" || e.Match.Unread != flow.ReadAll { // see TestWhatCannotBeReadIsDropped
				continue
			}
			var outs []string
			for _, o := range e.Outs {
				t := graph.Decimal(o.Port)
				if o.Port == fabric.BackOut {
					t = "back"
				}
				if o.Pop {
					t = "pop " + t
				}
				if o.Push != 0 {
					t = fmt.Sprintf("push %d %s", o.Push, t)
				}
				outs = append(outs, t)
			}
			all = append(all, strings.TrimSpace(fmt.Sprintf("%s: in %d %s-> %s", in.Switches[id].Name, e.Match.InPort, matchText(newWorld(in).hostMatch(&e.Match), e.Match.Tag), strings.Join(outs, ", "))))
		}
	}
	for id, rules := range out.Hosts {
		for _, r := range rules {
			if r.Match.Unread != "" {
				continue
			}
			pop, push := "", ""
			if r.Action.Pop {
				pop = "pop "
			}
			if r.Action.Push != 0 {
				push = fmt.Sprintf("push %d ", r.Action.Push)
			}
			where, copies := "in "+r.Match.InPort, ""
			if r.Match.OutPort != "" {
				where = "out " + r.Match.OutPort
			}
			for _, c := range r.Action.Clones {
				copies += "copy to " + c.String() + ", "
			}
			all = append(all, strings.TrimSpace(fmt.Sprintf("%s: %s %s-> %s%s%s%s %s", in.Switches[id].Name, where, matchText(r.Match, r.Match.Tag), pop, copies, push, r.Action.Op, r.Action.Port)))
		}
	}
	slices.Sort(all)
	return all
}

func matchText(m api.HostMatch, tag uint16) string {
	var b strings.Builder
	for _, f := range [][2]string{{"src", m.Src}, {"dst", m.Dst}, {"mac", m.SrcMAC}, {"to mac", m.DstMAC}, {"tp_src", m.SrcPorts}, {"tp_dst", m.DstPorts}} {
		if f[1] != "" {
			fmt.Fprintf(&b, "%s %s ", f[0], strings.TrimSuffix(f[1], "/32"))
		}
	}
	if tag != 0 {
		fmt.Fprintf(&b, "tag %d ", tag)
	}
	return b.String()
}

func TestTableI(t *testing.T) {
	in := fig2()
	no := false
	p := in.Policies["p"]
	p.Symmetric = &no
	in.Policies["p"] = p
	out := Compile(in)
	if len(out.Errors) > 0 {
		t.Fatal(out.Errors)
	}
	want := []string{
		"nfv1: in function/nf/out src 10.0.0.1 -> output uplink/eth0",
		"nfv1: in uplink/eth0 src 10.0.0.1 -> output function/nf/in",
		"s1: in 2 src 10.0.0.1 -> 1",
		"s2: in 1 src 10.0.0.1 -> 3",
	}
	if diff := cmp.Diff(want, text(in, out)); diff != "" {
		t.Fatal(diff)
	}
	path := []string{"endpoint/vm1", "s1:2", "s1:1", "s2:1", "s2:3", "nfv1:uplink/eth0", "function/nf/in", "function/nf/out", "any"}
	if diff := cmp.Diff(path, out.Paths.Of("p").Forward); diff != "" {
		t.Fatal(diff)
	}
}
