package control

import (
	"context"
	"fmt"
	"maps"
	"net/netip"
	"testing"
	"time"

	"weir.dev/weir/api"
	"weir.dev/weir/flow"
	"weir.dev/weir/openflow"
	"weir.dev/weir/openflow/fake"
	"weir.dev/weir/router/fabric"
	fabricrules "weir.dev/weir/router/fabric/steering"
	"weir.dev/weir/router/rollout"
)

// inputOf is a leaf-spine with a tenth of the switches as spines, a station at each leaf, a host at the last one, and policies from each
// station in turn.
func inputOf(switches, policies int) fabric.Input {
	in := fabric.Input{
		Topology:  fabric.Topology{Switches: map[fabric.SwitchID]fabric.Switch{fabric.HostID("h"): {Name: "h", Host: true, Ports: []fabric.Port{{Name: "uplink/eth0"}}}}},
		Endpoints: map[string]fabric.Endpoint{},
		Functions: map[string]fabric.Function{"fw": {Host: fabric.HostID("h"), Ready: true}},
		Chains:    map[string]api.ChainSpec{"c": {Path: "fw"}},
		Policies:  map[string]api.PolicySpec{},
	}
	at := func(i int, p flow.Port) fabric.At {
		return fabric.At{Switch: switchID(uint64(i + 1)), Port: fabric.Port{Number: p}}
	}
	spines := max(1, switches/10)
	for i := range switches {
		s := fabric.Switch{Name: fmt.Sprint("s", i+1), Tables: []uint32{0, 0}}
		for p := range flow.Port(switches + 4) {
			if i >= spines && p >= flow.Port(spines)+2 {
				break
			}
			s.Ports = append(s.Ports, fabric.Port{Number: p + 1})
		}
		in.Switches[switchID(uint64(i+1))] = s
		if i < spines {
			continue
		}
		for j := range spines {
			in.Links = append(in.Links, fabric.Link{A: at(j, flow.Port(i+1)), B: at(i, flow.Port(j+1))})
		}
		m, edge := mac(byte(i+1)), flow.Port(spines+1)
		in.Endpoints[fmt.Sprint("e", i-spines)] = fabric.Endpoint{At: at(i, edge), MACs: []flow.MAC{m}, Prefixes: []netip.Prefix{netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 0, 0, byte(i + 1)}), 32)}}
		in.Stations = append(in.Stations, fabric.Station{MAC: m, At: at(i, edge), Endpoint: fmt.Sprint("e", i-spines)})
	}
	in.Links = append(in.Links, fabric.Link{A: at(switches-1, flow.Port(spines+2)), B: fabric.At{Switch: fabric.HostID("h"), Port: fabric.Port{Name: "uplink/eth0"}}})
	no := false
	for i := range policies {
		in.Policies[fmt.Sprintf("p%05d", i)] = api.PolicySpec{
			From: fmt.Sprint("e", i%(switches-spines)), Chain: "c", Match: []string{fmt.Sprintf("tcp/%d", 1+i%60000)}, Symmetric: &no,
		}
	}
	return in
}

// BenchmarkInstallOnOVS compiles 1,000 policies and brings them into force at 4 Open vSwitch bridges.
func BenchmarkInstallOnOVS(b *testing.B) {
	const switches, policies = 4, 1000
	o := newOVS(b)
	o.bridges(switches)
	in := inputOf(switches, policies)
	var compiling, installing time.Duration
	entries := 0
	for b.Loop() {
		b.StopTimer()
		conns := map[fabric.SwitchID]*openflow.Conn{}
		for i := range switches {
			c, err := openflow.Dial(b.Context(), "unix:"+o.proc.Mgmt(fmt.Sprint("s", i+1)), openflow.Options{})
			if err != nil {
				b.Fatal(err)
			}
			if err := c.Transact(b.Context(), &openflow.FlowMod{Command: openflow.FlowDelete, Table: openflow.TableAll}); err != nil {
				b.Fatal(err)
			}
			conns[switchID(uint64(i+1))] = c
		}
		b.StartTimer()
		began := time.Now()
		out := fabricrules.Compile(in)
		compiled := time.Now()
		n, err := Install(b.Context(), conns, out)
		if err != nil {
			b.Fatal(err)
		}
		compiling, installing = compiling+compiled.Sub(began), installing+time.Since(compiled)
		entries += n
		b.StopTimer()
		for name, err := range out.Errors {
			b.Fatalf("%s: %v", name, err)
		}
		for _, c := range conns {
			c.Close()
		}
		b.StartTimer()
	}
	total := (compiling + installing).Seconds()
	b.ReportMetric(float64(b.N*policies)/total, "policies/s")
	b.ReportMetric(float64(entries)/total, "flow-mods/s")
	b.ReportMetric(float64(entries)/installing.Seconds(), "installed/s")
	b.ReportMetric(float64(compiling.Milliseconds())/float64(b.N), "ms-compile/op")
	b.ReportMetric(0, "ns/op")
}

// BenchmarkPlan10000 measures one more policy among 10,000 on 100 switches, from the input to the batches.
func BenchmarkPlan10000(b *testing.B) {
	in := inputOf(100, 10000)
	c := fabricrules.New(in)
	f := rollout.Fleet{Nodes: map[fabric.SwitchID]*rollout.Node{}, Peers: map[string]*rollout.Peer{}, Drain: defaultDrain}
	for id, s := range in.Switches {
		if !s.Host {
			f.Nodes[id] = rollout.NewNode()
			f.Nodes[id].Reachable = true
		}
	}
	step := func(out fabric.Output) int {
		have := map[fabric.SwitchID][]*fabric.Entry{}
		for id, n := range f.Nodes {
			have[id] = n.Source
		}
		for id, d := range rollout.Translate(out, have, nil, false).Deltas {
			f.Nodes[id].Want(d)
		}
		f.Paths = out.Paths
		sent := 0
		for {
			s := rollout.Plan(&f, time.Now())
			if len(s.Batches) == 0 {
				return sent
			}
			for id, x := range s.Batches {
				n := f.Nodes[id]
				for _, h := range x.Remove {
					n.Removed(h.Key)
				}
				for _, r := range x.Add {
					n.Confirm(r, 0)
					sent++
				}
			}
		}
	}
	began := time.Now()
	n := step(c.Output())
	b.Logf("%d entries planned at once in %v", n, time.Since(began))
	i := 0
	for b.Loop() {
		no := false
		in.Before, in.Edited = in.Policies, []string{fmt.Sprintf("q%05d", i)}
		in.Policies = maps.Clone(in.Policies)
		in.Policies[fmt.Sprintf("q%05d", i)] = api.PolicySpec{From: fmt.Sprint("e", i%90), Chain: "c", Match: []string{fmt.Sprintf("udp/%d", 1+i%60000)}, Symmetric: &no}
		i++
		if step(c.Update(in)) == 0 {
			b.Fatal("nothing was planned")
		}
	}
}

// BenchmarkTranslate10000 makes OpenFlow rules of all entries of 10,000 policies on 100 switches.
func BenchmarkTranslate10000(b *testing.B) {
	out := fabricrules.New(inputOf(100, 10000)).Output()
	none := map[fabric.SwitchID][]*fabric.Entry{}
	for id := range out.Entries {
		none[id] = nil
	}
	for b.Loop() {
		rollout.Translate(out, none, nil, false)
	}
}

// BenchmarkFirstRule measures from the API's answer to a new policy until its last entry is in force at switches in memory.
func BenchmarkFirstRule(b *testing.B) {
	r := newRig(b, Options{Names: map[uint64]string{1: "s1", 2: "s2"}})
	s1, s2 := fake.New(fake.Config{DatapathID: 1, Ports: ports(2)}), fake.New(fake.Config{DatapathID: 2, Ports: ports(3)})
	fake.Cable(s1, 1, s2, 1)
	r.dial(s1)
	r.dial(s2)
	r.waitLinks(1)
	h := r.agent("h1", func(f []byte) { s2.Receive(3, f) })
	h.function("fw")
	ctx := context.Background()
	for _, err := range []error{
		second(r.client.Endpoints().Put(ctx, "vm1", api.EndpointSpec{Switch: "s1", SwitchPort: "2", MAC: mac(1).String(), Address: "10.0.0.1/24"})),
		second(r.client.Chains().Put(ctx, "c", api.ChainSpec{Path: "fw"})),
	} {
		if err != nil {
			b.Fatal(err)
		}
	}
	i := 0
	for b.Loop() {
		i++
		name := fmt.Sprint("p", i)
		if _, err := r.client.Policies().Put(ctx, name, api.PolicySpec{From: "vm1", Chain: "c", Match: []string{fmt.Sprintf("tcp/%d", i)}}); err != nil {
			b.Fatal(err)
		}
		for found := false; !found; {
			for _, f := range s1.Flows() {
				if in, ok := f.Match.Field(openflow.FieldTCPDst); ok && in.Uint() == uint64(i) {
					found = true
				}
			}
		}
	}
}

func second[T any](_ T, err error) error { return err }
