package controllers

import (
	"fmt"
	"net/netip"

	"weir.dev/weir/api"
	"weir.dev/weir/flow"
	"weir.dev/weir/router/fabric"
)

func switchID(dpid uint64) fabric.SwitchID { return fabric.SwitchID(fmt.Sprintf("of:%016x", dpid)) }

// LeafSpine is a network with stations and one server for functions at each leaf, and policies from each station in turn whose chains have 1
// to 4 functions, on several servers. Switches have datapath ids 1 and on, the spines first.
func LeafSpine(spines, leaves, stations, policies int) fabric.Input {
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
		h, uplink := fabric.SwitchID(fmt.Sprint("host:h", l)), fabric.Port{Name: "uplink/eth1"}
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
			in.Functions[name] = fabric.Function{Host: fabric.SwitchID(fmt.Sprint("host:h", (c*7+f/2*13)%leaves)), Ready: true}
			if f > 0 {
				path += " | "
			}
			path += name
		}
		in.Chains[fmt.Sprint("c", c)] = api.ChainSpec{Path: path}
	}
	for i := range policies {
		in.Policies[fmt.Sprintf("p%05d", i)] = Policy(i, stations, i/10)
	}
	return in
}

// Policy is for what a station sends to a port of TCP and gets back from there; a third of them to a certain station.
func Policy(i, stations, chain int) api.PolicySpec {
	p := api.PolicySpec{
		From: fmt.Sprint("e", i%stations), Match: []string{fmt.Sprintf("tcp/%d", 1000+i/stations)}, Chain: fmt.Sprint("c", chain), Priority: 1 + i%1000,
	}
	if i%3 == 0 {
		p.To = fmt.Sprint("e", (i*31+1)%stations)
	}
	return p
}
