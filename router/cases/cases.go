// Package cases is the table of what steering means: modes x kinds of frames x directions, and the corners. The same cases run
// against the reference switch (package router) and against each real driver (datapath/suite).
//
// How to run one: add Endpoints and Functions (all functions are wires, or taps that swallow) with no rules; inject Prime, so that the
// bridge knows where every station is; commit the rules that router.Compile makes; then inject Frames one by one at
// their endpoint and compare. A frame arrives byte by byte as it was sent, also its TTL of 1.
package cases

import (
	"net/netip"

	"weir.dev/weir/api"
	"weir.dev/weir/flow"
)

// Case is one topology with its policies and what becomes of frames.
type Case struct {
	Name      string
	Endpoints []string
	Functions []string // those of the chains: "fw", and "tap:mon" for a tap
	Chains    map[string]api.ChainSpec
	Policies  map[string]api.PolicySpec
	Down      map[string]api.OnFail // functions that are down, and what they do then; the others are up
	Frames    []Frame
}

// Frame is one frame and its way.
type Frame struct {
	Name    string
	At      string // endpoint where it is injected
	Bytes   []byte
	Meets   []string // ports at which inline functions get it, in order: "function/fw/in", "function/w1/in"
	Copies  []string // ports at which functions get copies, those of one policy in order
	Arrives []string // endpoints that get it, in any order; once each
}

// MAC of a station behind an endpoint.
func MAC(endpoint string) flow.MAC { return flow.MAC{0x02, 0, 0, 0, 0, endpoint[0]} }

// IPv4 and IPv6 addresses of a station behind an endpoint.
func IPv4(endpoint string) netip.Addr { return netip.AddrFrom4([4]byte{10, 9, 0, endpoint[0]}) }

func IPv6(endpoint string) netip.Addr {
	return netip.AddrFrom16([16]byte{0xfd, 0x09, 15: endpoint[0]})
}

// Prime gives the frame that each endpoint sends first: broadcast, of an experimental EtherType.
func Prime(endpoint string) []byte {
	return build(endpoint, broadcast, flow.Match{EtherType: 0x88b6})
}

const (
	alice, bob, carol = "alice", "bob", "carol"
	broadcast         = "broadcast"
)

// build makes a frame from one station to another.
func build(from, to string, m flow.Match) []byte {
	whole := flow.MAC{255, 255, 255, 255, 255, 255}
	m.SrcMAC, m.SrcMACMask, m.DstMACMask = MAC(from), whole, whole
	if m.DstMAC = whole; to != broadcast {
		m.DstMAC = MAC(to)
	}
	host := func(a netip.Addr) netip.Prefix { return netip.PrefixFrom(a, a.BitLen()) }
	switch m.EtherType {
	case flow.EtherTypeIPv4:
		m.Src, m.Dst = host(IPv4(from)), host(netip.AddrFrom4([4]byte{255, 255, 255, 255}))
		if to != broadcast {
			m.Dst = host(IPv4(to))
		}
	case flow.EtherTypeIPv6:
		m.Src, m.Dst = host(IPv6(from)), host(IPv6(to))
	}
	frame, _, ok := flow.Witness(m)
	if !ok {
		panic("cases: an impossible frame") // a mistake in this table
	}
	return frame
}

// kind is a kind of frame, the term that selects it, and a term that does not.
type kind struct {
	name        string
	term, other string
	request     flow.Match
	response    flow.Match
}

func kinds() []kind {
	ports := func(m flow.Match, src, dst uint16) flow.Match {
		m.SrcPorts, m.DstPorts = flow.PortRange{First: src, Last: src}, flow.PortRange{First: dst, Last: dst}
		return m
	}
	service := func(name, term, other string, m flow.Match, port uint16) kind {
		return kind{name, term, other, ports(m, 40000, port), ports(m, port, 40000)}
	}
	alike := func(name, term, other string, m flow.Match) kind { return kind{name, term, other, m, m} }
	v4, v6 := flow.EtherTypeIPv4, flow.EtherTypeIPv6
	return []kind{
		service("IPv4 TCP", "tcp/80", "tcp/81", flow.Match{EtherType: v4, Proto: flow.ProtoTCP}, 80),
		service("IPv4 TCP in a range", "tcp/8000-8100", "tcp/8001-8100", flow.Match{EtherType: v4, Proto: flow.ProtoTCP}, 8000),
		service("IPv4 UDP", "udp/53", "tcp/53", flow.Match{EtherType: v4, Proto: flow.ProtoUDP}, 53),
		service("IPv4 SCTP", "sctp", "udp", flow.Match{EtherType: v4, Proto: flow.ProtoSCTP}, 36412),
		alike("ICMP", "icmp", "udp", flow.Match{EtherType: v4, Proto: flow.ProtoICMP}),
		service("IPv6 TCP", "tcp/80", "tcp/8080", flow.Match{EtherType: v6, Proto: flow.ProtoTCP}, 80),
		service("IPv6 UDP", "udp", "icmp", flow.Match{EtherType: v6, Proto: flow.ProtoUDP}, 53),
		alike("ICMPv6", "icmp", "tcp", flow.Match{EtherType: v6, Proto: flow.ProtoICMPv6}),
		alike("other IP protocol", "ip", "icmp", flow.Match{EtherType: v4, Proto: 47}),
		alike("ARP", "arp", "ip", flow.Match{EtherType: flow.EtherTypeARP}),
		service("VLAN TCP", "tcp/80", "arp", flow.Match{EtherType: v4, Proto: flow.ProtoTCP, VLAN: 7}, 80),
		alike("VLAN ARP", "arp", "ip", flow.Match{EtherType: flow.EtherTypeARP, VLAN: 7}),
		alike("unknown EtherType", "all", "ip", flow.Match{EtherType: 0x88b6}),
	}
}

// All gives every case.
func All() []Case {
	all := append(modes(), corners()...)
	return append(all, failures()...)
}

func base(name string, p api.PolicySpec) Case {
	p.Chain = "web"
	return Case{
		Name: name, Endpoints: []string{alice, bob, carol}, Functions: []string{"fw", "w1", "tap:mon"},
		Chains:   map[string]api.ChainSpec{"web": {Path: "fw | tap:mon | w1"}},
		Policies: map[string]api.PolicySpec{"p": p},
	}
}

// The chain of base, in both directions.
func there() []string { return []string{"function/fw/in", "function/w1/in"} }
func back() []string  { return []string{"function/w1/out", "function/fw/out"} }
func copied() []string {
	return []string{"function/mon/tap"}
}

func modes() []Case {
	var all []Case
	for _, k := range kinds() {
		all = append(all, selective(k), exhaustive(k), replica(k))
	}
	return all
}

// conversation is one request and response between alice and bob, and what carol says.
func conversation(k kind) (ab, ba, cb, bc []byte) {
	return build(alice, bob, k.request), build(bob, alice, k.response), build(carol, bob, k.request), build(bob, carol, k.response)
}

func selective(k kind) Case {
	c := base("selective "+k.name, api.PolicySpec{From: alice, To: bob, Match: []string{k.term}})
	ab, ba, cb, bc := conversation(k)
	c.Frames = []Frame{
		{Name: "there", At: alice, Bytes: ab, Meets: there(), Copies: copied(), Arrives: []string{bob}},
		{Name: "back", At: bob, Bytes: ba, Meets: back(), Copies: copied(), Arrives: []string{alice}},
		{Name: "someone else there", At: carol, Bytes: cb, Arrives: []string{bob}},
		{Name: "someone else back", At: bob, Bytes: bc, Arrives: []string{carol}},
	}
	for _, other := range kinds() {
		if other.name == k.name && k.term != "all" {
			c.Frames = append(c.Frames, c.unselected(k)...)
		}
	}
	return c
}

// unselected frames of the same two stations, of another kind.
func (c Case) unselected(k kind) []Frame {
	m := flow.Match{EtherType: 0x88b6}
	if k.term == "tcp/80" { // the nearest miss: the service's port at the wrong end
		return []Frame{
			{Name: "not the service", At: alice, Bytes: build(alice, bob, k.response), Arrives: []string{bob}},
			{Name: "not its response", At: bob, Bytes: build(bob, alice, k.request), Arrives: []string{alice}},
		}
	}
	return []Frame{
		{Name: "another kind there", At: alice, Bytes: build(alice, bob, m), Arrives: []string{bob}},
		{Name: "another kind back", At: bob, Bytes: build(bob, alice, m), Arrives: []string{alice}},
	}
}

func exhaustive(k kind) Case {
	c := base("exhaustive "+k.name, api.PolicySpec{From: alice, Mode: api.ModeExhaustive})
	ab, ba, cb, bc := conversation(k)
	c.Frames = []Frame{
		{Name: "from it", At: alice, Bytes: ab, Meets: there(), Copies: copied(), Arrives: []string{bob}},
		{Name: "to it", At: bob, Bytes: ba, Meets: back(), Copies: copied(), Arrives: []string{alice}},
		{Name: "between others", At: carol, Bytes: cb, Arrives: []string{bob}},
		{Name: "between others back", At: bob, Bytes: bc, Arrives: []string{carol}},
		{Name: "broadcast from it", At: alice, Bytes: build(alice, broadcast, anycast(k.request)), Meets: there(), Copies: copied(), Arrives: []string{bob, carol}},
		{Name: "broadcast to all", At: carol, Bytes: build(carol, broadcast, anycast(k.request)), Meets: back(), Copies: copied(), Arrives: []string{alice, bob}},
		{Name: "known where it was met", At: bob, Bytes: ba, Meets: back(), Copies: copied(), Arrives: []string{alice}},
	}
	return c
}

// anycast makes a request that may be broadcast: IPv6 has none.
func anycast(m flow.Match) flow.Match {
	if m.EtherType == flow.EtherTypeIPv6 {
		m.EtherType = flow.EtherTypeIPv4
		if m.Proto == flow.ProtoICMPv6 {
			m.Proto = flow.ProtoICMP
		}
	}
	return m
}

func replica(k kind) Case {
	c := base("replica "+k.name, api.PolicySpec{From: alice, To: bob, Match: []string{k.term}, Mode: api.ModeReplica})
	ab, ba, cb, bc := conversation(k)
	c.Frames = []Frame{
		{Name: "there", At: alice, Bytes: ab, Copies: []string{"function/fw/in", "function/mon/tap", "function/w1/in"}, Arrives: []string{bob}},
		{Name: "back", At: bob, Bytes: ba, Copies: []string{"function/w1/out", "function/mon/tap", "function/fw/out"}, Arrives: []string{alice}},
		{Name: "someone else there", At: carol, Bytes: cb, Arrives: []string{bob}},
		{Name: "someone else back", At: bob, Bytes: bc, Arrives: []string{carol}},
	}
	if k.term != "all" {
		c.Frames = append(c.Frames, c.unselected(k)...)
	}
	return c
}
