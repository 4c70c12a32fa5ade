package main

import (
	"context"
	"fmt"
	"maps"
	"net/netip"
	"runtime"
	"slices"
	"time"

	"weir.dev/weir/api"
	"weir.dev/weir/flow"
	"weir.dev/weir/openflow"
	"weir.dev/weir/router/control"
	"weir.dev/weir/router/fabric"
	"weir.dev/weir/router/fabric/steering"
)

// fabric: how fast policies become entries of OpenFlow switches, beside os-ken (Python), and how soon a new one steers.
func (b *bench) fabric() error {
	defer control.Calm()() // as a router does
	for _, f := range []func() error{b.install, b.encode, b.compile, b.applied} {
		if err := f(); err != nil {
			return err
		}
	}
	return nil
}

// compile: 10,000 policies of all kinds on 100 switches, then one more.
func (b *bench) compile() error {
	const stations, policies, more = 1000, 10_000, 150
	in := leafSpine(10, 90, stations, policies)
	var all []float64
	var c *steering.Compiler
	entries := 0
	for range b.Rounds {
		runtime.GC()
		begin := time.Now()
		c = steering.New(in)
		out := c.Output()
		all = append(all, time.Since(begin).Seconds())
		for name, err := range out.Errors {
			return fmt.Errorf("policy %s: %w", name, err)
		}
		entries = 0
		for _, all := range out.Entries {
			for _, e := range all {
				entries++
				if e.Match.Unread != flow.ReadAll {
					entries += len(fabric.Headers(&e.Match)) - 1 // the switch gets one for each
				}
			}
		}
	}
	b.limit("10,000 policies, 100 switches", "s", all, 1)
	b.Notes = append(b.Notes, fmt.Sprintf("10,000 policies (chains of 1 to 4 functions, across hosts) on 100 switches are %d entries", entries))
	var one []float64
	for i := range more {
		next := in
		next.Policies = maps.Clone(in.Policies)
		next.Policies["one-more"] = somePolicy(2*policies+37*i, stations, i%len(in.Chains))
		next.Before, next.Edited = in.Policies, []string{"one-more"} // as the router knows from the API's watch
		begin := time.Now()
		out := c.Update(next)
		one = append(one, time.Since(begin).Seconds()*1e3)
		if err := out.Errors["one-more"]; err != nil {
			return err
		}
		back := in
		back.Before, back.Edited = next.Policies, next.Edited
		c.Update(back)
		if err := b.ctx.Err(); err != nil {
			return err
		}
	}
	b.limit("one more policy among 10,000, p50", "ms", one, 10)
	b.limit("one more policy among 10,000, p99", "ms", []float64{percentile(one, 99)}, 10)
	return nil
}

// percentile of at least one value, nearest rank.
func percentile(v []float64, p int) float64 {
	s := slices.Sorted(slices.Values(v))
	return s[(len(s)*p+99)/100-1]
}

// encode: flow-mods built and encoded, nothing sent, beside os-ken.
func (b *bench) encode() error {
	out := steering.Compile(leafSpine(2, 8, 80, 500))
	mods, err := control.FlowMods(out)
	if err != nil {
		return err
	}
	n := 0
	for _, ms := range mods {
		n += len(ms)
	}
	file, done, err := oskenFile(mods)
	if err != nil {
		return err
	}
	defer done()
	python, err := oskenPython(b.ctx)
	if err != nil {
		b.missing(err)
	}
	var ours, theirs []float64
	for range b.Rounds {
		runtime.GC()
		begin := time.Now()
		bytes, err := encodeAll(out)
		if err != nil {
			return err
		}
		ours = append(ours, float64(n)/time.Since(begin).Seconds())
		if python == "" {
			continue
		}
		r, err := oskenRun(b.ctx, python, "", "encode", file)
		if err != nil {
			return err
		}
		if r.FlowMods != n || r.Bytes != bytes {
			return fmt.Errorf("os-ken encodes %d flow-mods in %d bytes, Weir %d in %d: want the same", r.FlowMods, r.Bytes, n, bytes)
		}
		theirs = append(theirs, float64(n)/r.Seconds)
	}
	b.add("entries made flow-mods and encoded", "1/s", ours, theirs, osken, true, 0)
	return nil
}

// encodeAll makes entries flow-mods and encodes them; it returns how many bytes that are.
func encodeAll(out fabric.Output) (int, error) {
	mods, err := control.FlowMods(out)
	if err != nil {
		return 0, err
	}
	var buf []byte
	n := 0
	for _, ms := range mods {
		buf = buf[:0]
		for i := range ms {
			if buf, err = openflow.Append(buf, uint32(i), &ms[i]); err != nil {
				return 0, err
			}
		}
		n += len(buf)
	}
	return n, nil
}

// missing notes why there is no peer, once.
func (b *bench) missing(err error) {
	if note := fmt.Sprintf("peer missing: %s: %v", osken, err); !slices.Contains(b.Notes, note) {
		b.Notes = append(b.Notes, note)
	}
}

func pause(ctx context.Context, d time.Duration) error {
	select {
	case <-time.After(d):
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func switchID(dpid uint64) fabric.SwitchID { return fabric.SwitchID(fmt.Sprintf("of:%016x", dpid)) }

// leafSpine is a network with stations and one server for functions at each leaf, and policies from each station in turn whose chains have 1
// to 4 functions, on several servers. Switches have datapath ids 1 and on, the spines first.
func leafSpine(spines, leaves, stations, policies int) fabric.Input {
	in := fabric.Input{
		Topology:  fabric.Topology{Switches: map[fabric.SwitchID]fabric.Switch{}},
		Endpoints: map[string]fabric.Endpoint{}, Functions: map[string]fabric.Function{}, Chains: map[string]api.ChainSpec{}, Policies: map[string]api.PolicySpec{},
	}
	port := func(dpid int) fabric.At {
		id := switchID(uint64(dpid))
		s := in.Switches[id]
		p := fabric.Port{Number: flow.Port(len(s.Ports) + 1)}
		s.Ports = append(s.Ports, p)
		in.Switches[id] = s
		return fabric.At{Switch: id, Port: p}
	}
	for i := 1; i <= spines+leaves; i++ {
		in.Switches[switchID(uint64(i))] = fabric.Switch{Name: fmt.Sprint("s", i), Tables: make([]uint32, 8)}
	}
	for l := range leaves {
		leaf := spines + l + 1
		for s := range spines {
			in.Links = append(in.Links, fabric.Link{A: port(s + 1), B: port(leaf)})
		}
		h, uplink := fabric.HostID(fmt.Sprint("h", l)), fabric.Port{Name: "uplink/eth1"}
		in.Switches[h] = fabric.Switch{Name: fmt.Sprint("h", l), Host: true, Ports: []fabric.Port{uplink}}
		in.Links = append(in.Links, fabric.Link{A: port(leaf), B: fabric.At{Switch: h, Port: uplink}})
	}
	for i := range stations {
		a := netip.AddrFrom4([4]byte{10, 0, byte(i / 250), byte(1 + i%250)})
		m := flow.MAC{2, 0, 0, byte(i >> 16), byte(i >> 8), byte(i)}
		name, at := fmt.Sprint("e", i), port(spines+1+i%leaves)
		in.Endpoints[name] = fabric.Endpoint{At: at, MACs: []flow.MAC{m}, Prefixes: []netip.Prefix{netip.PrefixFrom(a, 32)}}
		in.Stations = append(in.Stations, fabric.Station{MAC: m, IPs: []netip.Addr{a}, At: at, Endpoint: name})
	}
	for c := range policies/10 + 1 {
		path := ""
		for f := range 1 + c%4 {
			name := fmt.Sprintf("f%d-%d", c, f)
			in.Functions[name] = fabric.Function{Host: fabric.HostID(fmt.Sprint("h", (c*7+f/2*13)%leaves)), Ready: true}
			if f > 0 {
				path += " | "
			}
			path += name
		}
		in.Chains[fmt.Sprint("c", c)] = api.ChainSpec{Path: path}
	}
	for i := range policies {
		in.Policies[fmt.Sprintf("p%05d", i)] = somePolicy(i, stations, i/10)
	}
	return in
}

// somePolicy is for what a station sends to a port of TCP and gets back from there; a third of them to a certain station.
func somePolicy(i, stations, chain int) api.PolicySpec {
	p := api.PolicySpec{
		From: fmt.Sprint("e", i%stations), Match: []string{fmt.Sprintf("tcp/%d", 1000+i/stations)}, Chain: fmt.Sprint("c", chain), Priority: 1 + i%1000,
	}
	if i%3 == 0 {
		p.To = fmt.Sprint("e", (i*31+1)%stations)
	}
	return p
}
