package model

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"pgregory.net/rapid"

	"weir.dev/weir/api"
	"weir.dev/weir/flow"
	"weir.dev/weir/router/fabric"
)

// builder wires a topology.
type builder struct {
	in     fabric.Input
	next   map[fabric.SwitchID]flow.Port
	tables int // of each OpenFlow switch
}

func newBuilder() *builder {
	return &builder{next: map[fabric.SwitchID]flow.Port{}, in: fabric.Input{
		Topology:  fabric.Topology{Switches: map[fabric.SwitchID]fabric.Switch{}},
		Endpoints: map[string]fabric.Endpoint{}, Functions: map[string]fabric.Function{}, Chains: map[string]api.ChainSpec{}, Policies: map[string]api.PolicySpec{},
	}}
}

func (b *builder) openflow(n int) fabric.SwitchID {
	id := fabric.SwitchID(fmt.Sprintf("of:%016x", n))
	b.in.Switches[id] = fabric.Switch{Name: fmt.Sprintf("s%d", n), Tables: make([]uint32, b.tables)}
	return id
}

func (b *builder) host(n int) fabric.SwitchID {
	id := fabric.HostID(fmt.Sprintf("h%d", n))
	b.in.Switches[id] = fabric.Switch{Name: fmt.Sprintf("h%d", n), Host: true}
	return id
}

func (b *builder) port(s fabric.SwitchID, name string) fabric.At {
	sw := b.in.Switches[s]
	p := fabric.Port{Name: name}
	if !sw.Host {
		b.next[s]++
		p = fabric.Port{Number: b.next[s]}
	}
	sw.Ports = append(sw.Ports, p)
	b.in.Switches[s] = sw
	return fabric.At{Switch: s, Port: p}
}

func (b *builder) link(x, y fabric.SwitchID) {
	name := func(at, other fabric.SwitchID) string {
		if b.in.Switches[other].Host {
			host, _ := other.Host()
			return "tunnel/" + host
		}
		return "uplink/eth1"
	}
	b.in.Links = append(b.in.Links, fabric.Link{A: b.port(x, name(x, y)), B: b.port(y, name(y, x))})
}

func stationMAC(n int) flow.MAC        { return flow.MAC{2, 0, 0, 0, 0, byte(n + 1)} }
func station4(n int) netip.Addr        { return netip.AddrFrom4([4]byte{10, 0, 0, byte(n + 1)}) }
func station6(n int) netip.Addr        { return netip.AddrFrom16([16]byte{0xfd, 15: byte(n + 1)}) }
func single(a netip.Addr) netip.Prefix { return netip.PrefixFrom(a, a.BitLen()) }

// station puts one at an edge port or a host.
func (b *builder) station(s fabric.SwitchID) string {
	n := len(b.in.Endpoints)
	name := fmt.Sprintf("e%d", n)
	e := fabric.Endpoint{MACs: []flow.MAC{stationMAC(n)}, Prefixes: []netip.Prefix{single(station4(n)), single(station6(n))}}
	if b.in.Switches[s].Host {
		e.At = fabric.At{Switch: s, Port: fabric.Port{Name: "endpoint/" + name}}
	} else {
		e.At = b.port(s, "")
	}
	b.in.Endpoints[name] = e
	return name
}

var shapes = []string{"line", "ring", "tree", "leaf-spine", "mesh"}

// drawNetwork gives a connected network with stations.
func drawNetwork(t *rapid.T) *builder {
	b := newBuilder()
	b.tables = rapid.SampledFrom([]int{0, 1, 2, 4, 4, 4}).Draw(t, "tables")
	var switches, hosts []fabric.SwitchID
	shape := rapid.SampledFrom(shapes).Draw(t, "shape")
	n := rapid.IntRange(1, 5).Draw(t, "switches")
	switch shape {
	case "mesh":
		n = 0
	case "leaf-spine":
		n = max(n, 3)
	}
	for i := range n {
		switches = append(switches, b.openflow(i+1))
	}
	for i := 1; i < n; i++ {
		switch shape {
		case "line", "ring":
			b.link(switches[i-1], switches[i])
		case "tree":
			b.link(switches[rapid.IntRange(0, i-1).Draw(t, "parent")], switches[i])
		case "leaf-spine":
			if i >= 2 {
				b.link(switches[0], switches[i])
				b.link(switches[1], switches[i])
			}
		}
	}
	if shape == "ring" && n > 2 {
		b.link(switches[n-1], switches[0])
	}
	for i := range rapid.IntRange(1, 3).Draw(t, "hosts") {
		hosts = append(hosts, b.host(i+1))
	}
	for i, h := range hosts {
		if shape == "mesh" {
			for _, other := range hosts[:i] {
				b.link(other, h)
			}
			continue
		}
		b.link(switches[rapid.IntRange(0, n-1).Draw(t, "attach")], h)
	}
	places := append(slices.Clone(switches), hosts...)
	if rapid.Bool().Draw(t, "plain hosts") && n > 0 {
		places = switches
	}
	for range rapid.IntRange(2, 5).Draw(t, "stations") {
		b.station(rapid.SampledFrom(places).Draw(t, "place"))
	}
	for c := range rapid.IntRange(1, 4).Draw(t, "chains") {
		var hops []string
		for h := range rapid.IntRange(1, 4).Draw(t, "hops") {
			name := fmt.Sprintf("f%d%d", c, h)
			f := fabric.Function{Host: rapid.SampledFrom(hosts).Draw(t, "function's host"), Ready: true}
			if rapid.IntRange(0, 3).Draw(t, "tap") == 0 && !strings.Contains(strings.Join(hops, ""), "tap:") {
				f.Tap = true
				hops = append(hops, "tap:"+name)
			} else {
				hops = append(hops, name)
			}
			b.in.Functions[name] = f
		}
		b.in.Chains[fmt.Sprint("c", c)] = api.ChainSpec{Path: strings.Join(hops, " | ")}
	}
	return b
}

// drawPolicy gives one with a chain of its own and a priority of its own.
func (b *builder) drawPolicy(t *rapid.T, i int) {
	selectors := []string{"any", "10.0.0.0/24", "10.0.0.0/30", "10.0.0.2", "02:00:00:00:00:01", "02:00:00:00:00:02"}
	for n := range len(b.in.Endpoints) {
		selectors = append(selectors, fmt.Sprint("e", n), fmt.Sprint("e", n))
	}
	terms := []string{"all", "ip", "arp", "icmp", "tcp", "udp", "tcp/80", "tcp/70-90", "udp/53"}
	p := api.PolicySpec{
		From: rapid.SampledFrom(selectors).Draw(t, "from"), To: rapid.SampledFrom(append(selectors, "any", "any", "any")).Draw(t, "to"),
		Chain: fmt.Sprint("c", i), Mode: rapid.SampledFrom([]api.Mode{"", api.ModeSelective, api.ModeExhaustive, api.ModeReplica}).Draw(t, "mode"),
		Match:    rapid.SliceOfN(rapid.SampledFrom(terms), 0, 2).Draw(t, "match"),
		Priority: 10*rapid.IntRange(1, 9).Draw(t, "priority") + i,
		MatchBy:  rapid.SampledFrom([]api.MatchBy{"", "", api.MatchByMAC, api.MatchByIP}).Draw(t, "match by"),
	}
	if o, before := b.in.Policies[fmt.Sprint("p", i-1)]; before && rapid.Bool().Draw(t, "same ends") {
		p.From, p.To = o.From, o.To
	}
	if strings.Contains(p.From+p.To, "10.") {
		p.Match = slices.DeleteFunc(p.Match, func(term string) bool { return term == "arp" }) // is refused
	}
	if p.Mode == api.ModeExhaustive {
		p.To, p.Match, p.MatchBy = "any", nil, ""
		p.From = fmt.Sprint("e", rapid.IntRange(0, len(b.in.Endpoints)-1).Draw(t, "of"))
	}
	if rapid.IntRange(0, 3).Draw(t, "symmetric") == 0 || p.From == p.To || !b.tells(p) {
		no := false
		p.Symmetric = &no
	}
	b.in.Policies[fmt.Sprint("p", i)] = p
}

// tells whether a policy's replies do not look like its requests, as router.Validate wants it: an end is one station, or all are services.
func (b *builder) tells(p api.PolicySpec) bool {
	one := func(end string) bool {
		s, err := api.ParseSelector(end)
		return err == nil && (s.Kind == api.SelectEndpoint || s.Kind == api.SelectMAC || s.Kind == api.SelectPrefix && s.Prefix.IsSingleIP())
	}
	return one(p.From) || one(p.To) || len(p.Match) > 0 && !slices.ContainsFunc(p.Match, func(term string) bool { return !strings.Contains(term, "/") })
}

func (b *builder) drawFrame(t *rapid.T) (from string, frame []byte) {
	from, m := b.drawMatch(t)
	return from, witness(t, m)
}

// drawHostile gives a frame with its sender's own addresses whose destination MAC and IP address need not belong together. They may also be
// the sender's own.
func (b *builder) drawHostile(t *rapid.T) (from string, frame []byte) {
	from, m := b.drawMatch(t)
	to := []flow.MAC{{2, 9, 9, 9, 9, 9}, {255, 255, 255, 255, 255, 255}}
	for n := range len(b.in.Endpoints) {
		to = append(to, stationMAC(n), stationMAC(n))
	}
	m.DstMAC = rapid.SampledFrom(to).Draw(t, "destination MAC")
	if m.Dst.IsValid() && rapid.IntRange(0, 3).Draw(t, "to its own address") == 0 {
		m.Dst = m.Src
	}
	return from, witness(t, m)
}

func witness(t *rapid.T, m flow.Match) []byte {
	frame, _, ok := flow.Witness(m)
	if !ok {
		t.Fatalf("no frame for %+v", m)
	}
	return frame
}

func (b *builder) drawMatch(t *rapid.T) (from string, m flow.Match) {
	n := len(b.in.Endpoints)
	src := rapid.IntRange(0, n-1).Draw(t, "sender")
	dst := (src + rapid.IntRange(1, n-1).Draw(t, "receiver")) % n
	whole := flow.MAC{255, 255, 255, 255, 255, 255}
	m = flow.Match{SrcMAC: stationMAC(src), SrcMACMask: whole, DstMAC: stationMAC(dst), DstMACMask: whole}
	m.EtherType = rapid.SampledFrom([]uint16{flow.EtherTypeIPv4, flow.EtherTypeIPv4, flow.EtherTypeIPv6, flow.EtherTypeARP, 0x88b6}).Draw(t, "ethertype")
	m.VLAN = rapid.SampledFrom([]uint16{0, 0, 7}).Draw(t, "vlan")
	s, d := station4(src), station4(dst)
	if m.EtherType == flow.EtherTypeIPv6 {
		s, d = station6(src), station6(dst)
	}
	many := rapid.IntRange(0, 4).Draw(t, "broadcast") == 0
	if many {
		m.DstMAC = whole
		if d = netip.AddrFrom4([4]byte{255, 255, 255, 255}); m.EtherType == flow.EtherTypeIPv6 {
			m.DstMAC, d = flow.MAC{0x33, 0x33, 0, 0, 0, 1}, netip.MustParseAddr("ff02::1")
		}
	}
	if m.EtherType == flow.EtherTypeIPv4 || m.EtherType == flow.EtherTypeIPv6 {
		m.Src, m.Dst = single(s), single(d)
		icmp := map[uint16]uint8{flow.EtherTypeIPv4: flow.ProtoICMP, flow.EtherTypeIPv6: flow.ProtoICMPv6}[m.EtherType]
		protos := []uint8{flow.ProtoUDP, icmp, 47, flow.ProtoTCP, flow.ProtoTCP}
		if many {
			protos = protos[:3]
		}
		m.Proto = rapid.SampledFrom(protos).Draw(t, "proto")
		if m.Proto == flow.ProtoTCP || m.Proto == flow.ProtoUDP {
			port := func(label string) flow.PortRange {
				p := rapid.SampledFrom([]uint16{53, 80, 90, 40000}).Draw(t, label)
				return flow.PortRange{First: p, Last: p}
			}
			m.SrcPorts, m.DstPorts = port("sport"), port("dport")
		}
	}
	return fmt.Sprint("e", src), m
}
