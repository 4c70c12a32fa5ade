package steering

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"weir.dev/weir/api"
	"weir.dev/weir/flow"
	"weir.dev/weir/router/fabric"
)

// leafSpine is a fabric with stations and one host for functions at each leaf, and policies of all modes with chains of 1 to 4 functions.
func leafSpine(spines, leaves, stations, policies int) fabric.Input {
	in := fabric.Input{
		Topology:  fabric.Topology{Switches: map[fabric.SwitchID]fabric.Switch{}},
		Endpoints: map[string]fabric.Endpoint{}, Functions: map[string]fabric.Function{}, Chains: map[string]api.ChainSpec{}, Policies: map[string]api.PolicySpec{},
	}
	used := map[fabric.SwitchID]flow.Port{}
	port := func(s fabric.SwitchID) fabric.At {
		used[s]++
		sw := in.Switches[s]
		sw.Ports = append(sw.Ports, fabric.Port{Number: used[s]})
		in.Switches[s] = sw
		return at(s, used[s])
	}
	for i := range spines + leaves {
		in.Switches[of(i+1)] = fabric.Switch{Name: fmt.Sprint("s", i+1), Tables: make([]uint32, 8)}
	}
	for l := range leaves {
		leaf := of(spines + l + 1)
		for s := range spines {
			in.Links = append(in.Links, fabric.Link{A: port(of(s + 1)), B: port(leaf)})
		}
		h := fabric.HostID(fmt.Sprintf("h%d", l))
		in.Switches[h] = fabric.Switch{Name: fmt.Sprint("h", l), Host: true, Ports: []fabric.Port{{Name: "uplink/eth1"}}}
		in.Links = append(in.Links, fabric.Link{A: port(leaf), B: named(h, "uplink/eth1")})
	}
	for i := range stations {
		a := netip.AddrFrom4([4]byte{10, 0, byte(i / 250), byte(1 + i%250)})
		in.Endpoints[fmt.Sprint("e", i)] = fabric.Endpoint{
			At: port(of(spines + 1 + i%leaves)), MACs: []flow.MAC{{2, 0, 0, byte(i >> 16), byte(i >> 8), byte(i)}}, Prefixes: []netip.Prefix{netip.PrefixFrom(a, 32)},
		}
	}
	for c := range policies/10 + 1 {
		path := ""
		for f := range 1 + c%4 {
			name := fmt.Sprintf("f%d-%d", c, f)
			in.Functions[name] = fabric.Function{Host: fabric.HostID(fmt.Sprintf("h%d", (c*7+f/2*13)%leaves)), Ready: true}
			if f > 0 {
				path += " | "
			}
			path += name
		}
		in.Chains[fmt.Sprint("c", c)] = api.ChainSpec{Path: path}
	}
	for i := range policies {
		in.Policies[fmt.Sprintf("p%05d", i)] = benchPolicy(i, stations)
	}
	return in
}

func benchPolicy(i, stations int) api.PolicySpec {
	p := api.PolicySpec{
		From: fmt.Sprint("e", i%stations), Match: []string{fmt.Sprintf("tcp/%d", 1000+i/stations)}, Chain: fmt.Sprint("c", i/10), Priority: 1 + i%1000,
	}
	if i%3 == 0 {
		p.To = fmt.Sprint("e", (i*31+1)%stations)
	}
	return p
}

func BenchmarkCompile10000PoliciesOn100Switches(b *testing.B) {
	in := leafSpine(10, 90, 1000, 10000)
	var out fabric.Output
	for b.Loop() {
		out = Compile(in)
	}
	if len(out.Errors) > 0 {
		for name, err := range out.Errors {
			b.Fatal(len(out.Errors), " errors, ", name, ": ", err)
		}
	}
	entries, rules := 0, 0
	for _, e := range out.Entries {
		entries += len(e)
	}
	for _, r := range out.Hosts {
		rules += len(r)
	}
	b.ReportMetric(float64(entries), "entries")
	b.ReportMetric(float64(rules), "host-rules")
}

// BenchmarkChangeAmong10000 measures one change of 10,000 policies on 100 switches, with and without what makes it cheap. DESIGN.md has figures.
func BenchmarkChangeAmong10000(b *testing.B) {
	was := leafSpine(10, 90, 1000, 10000)
	// change gives the i-th input with one policy more. shared: all else is the same in memory; named: what is edited is said.
	change := func(i int, shared, named bool) fabric.Input {
		in := was
		in.Policies = maps.Clone(was.Policies)
		p := benchPolicy(20000+i%8*37, 1000)
		p.Chain = "c5"
		in.Policies["one-more"] = p
		if named {
			in.Before, in.Edited = was.Policies, []string{"one-more"}
		}
		if !shared {
			in.Endpoints, in.Functions, in.Chains, in.Switches = maps.Clone(in.Endpoints), maps.Clone(in.Functions), maps.Clone(in.Chains), maps.Clone(in.Switches)
			in.Links, in.Stations = slices.Clone(in.Links), slices.Clone(in.Stations)
		}
		return in
	}
	c := New(was)
	c.Output()
	measure := func(name string, shared, named bool, f func(in fabric.Input)) {
		b.Run(name, func(b *testing.B) {
			var spent time.Duration // of the processor: others use it, too
			for i := range b.N {
				in := change(i, shared, named)
				began := processor(b)
				f(in)
				spent += processor(b) - began
				back := was
				back.Before, back.Edited = in.Policies, []string{"one-more"}
				c.Update(back)
			}
			b.ReportMetric(float64(spent.Microseconds())/1000/float64(b.N), "cpu-ms/op")
			b.ReportMetric(0, "ns/op")
		})
	}
	update := func(in fabric.Input) {
		if out := c.Update(in); out.Errors["one-more"] != nil {
			b.Fatal(out.Errors["one-more"])
		}
	}
	steps := func(in fabric.Input) { // as the router takes them
		first, second := was, in
		first.Changing = fabric.Between(was, in, true)
		update(first)
		second.Changing = fabric.Between(in, was, false)
		update(second)
		update(in)
	}
	shared := func(in fabric.Input) {
		in.Share(&was)
		steps(in)
	}
	measure("update", true, true, update)
	measure("update/unnamed", true, false, update)
	measure("update/unshared", false, true, update)
	measure("steps", false, true, shared)
	measure("steps/unnamed", false, false, shared)
	measure("steps/unshared", false, true, steps)
	measure("anew", true, true, func(in fabric.Input) { Compile(in) })
}

// processor is the processor time of this process.
func processor(b *testing.B) time.Duration {
	var t unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_PROCESS_CPUTIME_ID, &t); err != nil {
		b.Fatal(err)
	}
	return time.Duration(t.Nano())
}
