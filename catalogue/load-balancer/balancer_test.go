package main

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math"
	"math/rand/v2"
	"net"
	"net/netip"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/gopacket/gopacket"
	"github.com/gopacket/gopacket/layers"

	"weir.dev/weir/catalogue/nf"
	"weir.dev/weir/catalogue/nf/targets"
)

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// lab is a balancer and what it sent.
type lab struct {
	*balancer
	t    testing.TB
	time time.Time
	sent [2][][]byte
	down map[netip.Addr]bool
	n    uint64
}

func newLab(t testing.TB, text string) *lab {
	t.Helper()
	cfg, err := parseConfig([]byte(text))
	must(t, err)
	l := &lab{t: t, time: time.Unix(1e9, 0), down: map[netip.Addr]bool{}}
	l.balancer = newBalancer(&cfg, func(a netip.Addr, _ *targets.Check) bool { return !l.down[a] }, func() uint64 { return l.n }, func(d nf.Dir, f nf.Frame) { l.sent[d] = append(l.sent[d], bytes.Clone(f.Data)) })
	return l
}

// turn a target off or on.
func (l *lab) turn(addr string, down bool) {
	l.down[netip.MustParseAddr(addr)] = down
	l.n++
}

// give a frame; what comes out in its direction, nil if nothing does.
func (l *lab) give(d nf.Dir, frame []byte) []byte {
	l.t.Helper()
	l.sent = [2][][]byte{}
	before := bytes.Clone(frame)
	v := l.handle(d, nf.NewFrame(frame), l.time)
	if !bytes.Equal(before, frame) {
		l.t.Fatal("it changed the frame that it was given")
	}
	if v == nf.Pass {
		return frame
	}
	if len(l.sent[d]) == 1 {
		return l.sent[d][0]
	}
	return nil
}

// target that a packet of a client goes to; the zero value: none.
func (l *lab) target(text string) netip.AddrPort {
	l.t.Helper()
	out := l.give(nf.Up, packet(l.t, text, nil))
	if out == nil {
		return netip.AddrPort{}
	}
	p := nf.Decode(out)
	if p.Bad != "" || !p.Intact(out) {
		l.t.Fatalf("%s: a wrong packet came out: %s, % x", text, p.Bad, out)
	}
	return netip.AddrPortFrom(p.Dst, p.DstPort)
}

// packet from one place to another: "tcp 10.0.0.1:1000 10.0.0.2:80 syn".
func packet(t testing.TB, text string, data []byte) []byte {
	t.Helper()
	f := strings.Fields(text)
	src, dst := netip.MustParseAddrPort(f[1]), netip.MustParseAddrPort(f[2])
	eth := &layers.Ethernet{SrcMAC: net.HardwareAddr{2, 0, 0, 0, 0, 1}, DstMAC: net.HardwareAddr{2, 0, 0, 0, 0, 2}, EthernetType: layers.EthernetTypeIPv4}
	var ip interface {
		gopacket.NetworkLayer
		gopacket.SerializableLayer
	}
	proto := map[string]layers.IPProtocol{"tcp": layers.IPProtocolTCP, "udp": layers.IPProtocolUDP}[f[0]]
	if src.Addr().Is4() {
		ip = &layers.IPv4{Version: 4, Id: 77, TTL: 9, Protocol: proto, SrcIP: src.Addr().AsSlice(), DstIP: dst.Addr().AsSlice()}
	} else {
		eth.EthernetType = layers.EthernetTypeIPv6
		ip = &layers.IPv6{Version: 6, HopLimit: 9, NextHeader: proto, SrcIP: src.Addr().AsSlice(), DstIP: dst.Addr().AsSlice()}
	}
	parts := []gopacket.SerializableLayer{eth, ip}
	if f[0] == "udp" {
		l := &layers.UDP{SrcPort: layers.UDPPort(src.Port()), DstPort: layers.UDPPort(dst.Port())}
		must(t, l.SetNetworkLayerForChecksum(ip))
		parts = append(parts, l)
	} else {
		l := &layers.TCP{SrcPort: layers.TCPPort(src.Port()), DstPort: layers.TCPPort(dst.Port()), Seq: 5, Window: 9}
		for _, flag := range f[3:] {
			*map[string]*bool{"syn": &l.SYN, "ack": &l.ACK, "fin": &l.FIN, "rst": &l.RST}[flag] = true
		}
		must(t, l.SetNetworkLayerForChecksum(ip))
		parts = append(parts, l)
	}
	buf := gopacket.NewSerializeBuffer()
	must(t, gopacket.SerializeLayers(buf, gopacket.SerializeOptions{FixLengths: true, ComputeChecksums: true}, append(parts, gopacket.Payload(data))...))
	return buf.Bytes()
}

// many is a service of n targets with known MAC addresses, 10.0.1.1 and so on; more is said of targets by number.
func many(n int, more map[int]string) string {
	var list []string
	for i := range n {
		list = append(list, fmt.Sprintf(`{"address": "10.0.1.%d", "port": 8080, "mac": "02:00:00:00:01:%02x"%s}`, i+1, i+1, more[i+1]))
	}
	return `{"services": {"web": {"address": "10.0.0.100", "protocol": "tcp", "port": 80, "targets": [` + strings.Join(list, ",") + `]}}}`
}

// small are services of both families and protocols.
const small = `{"services": {
	"web": {"address": "10.0.0.100", "protocol": "tcp", "port": 80, "targets": [{"address": "10.0.1.1", "port": 8080, "mac": "02:00:00:00:01:01"}, {"address": "10.0.1.2", "port": 8080, "mac": "02:00:00:00:01:02"}]},
	"web6": {"address": "2001:db8::100", "protocol": "tcp", "port": 80, "targets": [{"address": "2001:db8::1:1", "port": 8080, "mac": "02:00:00:00:01:01"}]},
	"dns": {"address": "10.0.0.100", "protocol": "udp", "port": 53, "targets": [{"address": "10.0.1.1", "mac": "02:00:00:00:01:01"}]},
	"dns6": {"address": "2001:db8::100", "protocol": "udp", "port": 53, "targets": [{"address": "2001:db8::1:1", "port": 5353, "mac": "02:00:00:00:01:01"}]}}, "connections": 4096}`

func spreadOf(l *lab, n int, flags string) (by map[string]netip.AddrPort, per map[netip.AddrPort]int) {
	by, per = map[string]netip.AddrPort{}, map[netip.AddrPort]int{}
	for i := range n {
		from := fmt.Sprintf("10.%d.%d.%d:%d", 2+i>>16, i>>8&255, i&255, 1024+i%50000)
		to := l.target("tcp " + from + " 10.0.0.100:80 " + flags)
		by[from] = to
		per[to]++
	}
	return by, per
}

// One of ten targets goes: its connections move, and few others do.
func TestFewConnectionsMoveWhenATargetGoes(t *testing.T) {
	const n = 20_000
	before, per := spreadOf(newLab(t, many(10, nil)), n, "syn")
	for to, count := range per {
		if share := float64(count) / n; math.Abs(share-0.1) > 0.01 {
			t.Errorf("%s has a share of %.3f: want 0.1", to, share)
		}
	}
	l := newLab(t, many(10, nil))
	l.turn("10.0.1.4", true)
	after, _ := spreadOf(l, n, "syn")
	own, others := 0, 0
	for from, to := range before {
		switch gone := to.Addr() == netip.MustParseAddr("10.0.1.4"); {
		case after[from].Addr() == netip.MustParseAddr("10.0.1.4"):
			t.Fatalf("%s still goes to the target that is down", from)
		case gone:
			own++
		case to != after[from]:
			others++
		}
	}
	t.Logf("one of 10 targets goes: its own %.2f %% of the connections move, and %.2f %% of the others", 100*float64(own)/n, 100*float64(others)/float64(n-own))
	if share := float64(others) / float64(n-own); share > 0.03 {
		t.Errorf("%.3f of the other connections move: want at most 0.03", share)
	}
	again, _ := spreadOf(newLab(t, many(10, nil)), n, "ack") // another instance, in the middle of the connections
	for from, to := range before {
		if again[from] != to {
			t.Fatalf("%s goes to %s, and in another instance to %s", from, to, again[from])
		}
	}
}

func TestWeightsAndDrains(t *testing.T) {
	const n = 20_000
	_, per := spreadOf(newLab(t, many(3, map[int]string{1: `, "weight": 1`, 2: `, "weight": 3`, 3: `, "weight": 6`})), n, "syn")
	for i, want := range []float64{0.1, 0.3, 0.6} {
		if got := float64(per[netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 0, 1, byte(i + 1)}), 8080)]) / n; math.Abs(got-want) > 0.02 {
			t.Errorf("target %d has a share of %.3f: want %.1f", i+1, got, want)
		}
	}
	before, _ := spreadOf(newLab(t, many(3, nil)), n, "syn")
	drained := newLab(t, many(3, map[int]string{2: `, "drain": true`}))
	old, _ := spreadOf(drained, n, "ack") // connections of a former instance
	for from, to := range before {
		if old[from] != to {
			t.Fatalf("%s had %s, and has %s now that a target drains", from, to, old[from])
		}
	}
	_, per = spreadOf(newLab(t, many(3, map[int]string{2: `, "drain": true`})), n, "syn")
	if got := per[netip.MustParseAddrPort("10.0.1.2:8080")]; got != 0 || len(per) != 2 {
		t.Errorf("%d new connections go to a target that drains: %v", got, per)
	}
}

func TestTargetsThatAreDown(t *testing.T) {
	l := newLab(t, small)
	const client = "10.0.0.1:1000"
	first := l.target("tcp " + client + " 10.0.0.100:80 syn")
	l.turn(first.Addr().String(), true)
	if to := l.target("tcp " + client + " 10.0.0.100:80 ack"); to != first {
		t.Errorf("an open connection goes to %s: want %s", to, first)
	}
	if to := l.target("tcp " + client + " 10.0.0.100:80 syn"); to == first || !to.IsValid() {
		t.Errorf("a new connection goes to %s, which is down", to)
	}
	l.turn("10.0.1.1", true)
	l.turn("10.0.1.2", true)
	if to := l.target("tcp 10.0.0.1:1001 10.0.0.100:80 syn"); !to.IsValid() {
		t.Error("when all are down a connection goes nowhere: want any")
	}
}

// Packets of both directions are rewritten, with right checksums, and answers come from the virtual address.
func TestBothWays(t *testing.T) {
	l := newLab(t, small)
	for _, tt := range []struct{ proto, client, virtual, target string }{
		{"tcp", "10.0.0.1:1000", "10.0.0.100:80", "10.0.1.1:8080"}, {"tcp", "[2001:db8::9]:1000", "[2001:db8::100]:80", "[2001:db8::1:1]:8080"},
		{"udp", "10.0.0.1:1000", "10.0.0.100:53", "10.0.1.1:53"}, {"udp", "[2001:db8::9]:1000", "[2001:db8::100]:53", "[2001:db8::1:1]:5353"},
	} {
		flags := map[string][2]string{"tcp": {" syn", " syn ack"}}[tt.proto]
		to := l.target(tt.proto + " " + tt.client + " " + tt.virtual + flags[0])
		if tt.virtual != "10.0.0.100:80" && to.String() != tt.target {
			t.Errorf("%s %s goes to %s: want %s", tt.proto, tt.virtual, to, tt.target)
		}
		given := packet(t, tt.proto+" "+to.String()+" "+tt.client+flags[1], []byte("answer"))
		out := l.give(nf.Down, given)
		if want := packet(t, tt.proto+" "+tt.virtual+" "+tt.client+flags[1], []byte("answer")); !bytes.Equal(out, want) {
			t.Errorf("an answer comes as\n% x: want\n% x", out, want)
		}
		if direct := l.give(nf.Up, packet(t, tt.proto+" "+tt.client+" "+to.String()+flags[0], nil)); direct != nil {
			t.Errorf("%s can be reached beside %s", to, tt.virtual)
		}
	}
	for _, closed := range []string{"tcp 10.0.0.1:1000 10.0.0.100:81 syn", "udp [2001:db8::9]:1000 [2001:db8::100]:80"} {
		if out := l.give(nf.Up, packet(t, closed, nil)); out != nil {
			t.Errorf("%s passed: % x", closed, out)
		}
	}
	for _, other := range []string{"tcp 10.0.0.1:1000 10.0.1.1:22 syn", "udp 10.0.0.1:1000 10.0.7.7:53"} {
		if f := packet(t, other, nil); !bytes.Equal(l.give(nf.Up, f), f) || !bytes.Equal(l.give(nf.Down, f), f) {
			t.Errorf("%s did not pass as it is", other)
		}
	}
}

// A priority tag makes no other frame of one: it is balanced, keeps its tag, and reaches no target directly. What is in a VLAN passes.
func TestPriorityTags(t *testing.T) {
	l := newLab(t, small)
	tagged := func(text string, ids ...byte) []byte {
		f := packet(t, text, []byte("data"))
		tags := []byte{}
		for _, id := range ids {
			tags = append(tags, 0x81, 0, 0xe0, id)
		}
		return slices.Concat(f[:12], tags, f[12:])
	}
	const syn, direct = "tcp 10.0.0.1:1000 10.0.0.100:80 syn", "tcp 10.0.0.1:1000 10.0.1.1:8080 syn"
	out := l.give(nf.Up, tagged(syn, 0))
	if p := nf.Decode(out); p.TagCount != 1 || p.Bad != "" || !p.Intact(out) || !l.targets[p.Dst] {
		t.Errorf("to the virtual address: % x", out)
	}
	if p := nf.Decode(l.give(nf.Down, tagged("tcp 10.0.1.1:8080 10.0.0.1:1000 syn ack", 0))); p.TagCount != 1 || p.Src.String() != "10.0.0.100" {
		t.Errorf("the answer: %+v", p)
	}
	for _, ids := range [][]byte{nil, {0}, {0, 0}, {0, 0, 0}} {
		if out := l.give(nf.Up, tagged(direct, ids...)); out != nil {
			t.Errorf("with %d priority tags a target is reached directly", len(ids))
		}
	}
	arp := append(slices.Concat(bytes.Repeat([]byte{0xff}, 6), []byte{2, 0, 0, 0, 0, 1, 0x81, 0, 0, 0, 8, 6, 0, 1, 8, 0, 6, 4, 0, 1}), make([]byte, 20)...)
	copy(arp[18+24:], []byte{10, 0, 0, 100})
	if l.give(nf.Up, arp) != nil {
		t.Error("others are asked for the virtual address")
	}
	for _, ids := range [][]byte{{7}, {0, 7}, {7, 0}} {
		if f := tagged(direct, ids...); !bytes.Equal(l.give(nf.Up, f), f) {
			t.Errorf("in VLAN %v it does not pass", ids)
		}
	}
	bad := packet(t, direct, nil)
	bad[14+20+12] = 0x10 // a header of 4 bytes
	if l.give(nf.Up, bad) != nil {
		t.Error("what cannot be read reaches a target")
	}
}

// One client's fragments take no place of others'.
func TestFragmentsOfOneClient(t *testing.T) {
	l := newLab(t, small)
	first := func(client string, id int) []byte {
		f := packet(t, "udp "+client+":1000 10.0.0.100:53", []byte("data"))
		binary.BigEndian.PutUint16(f[18:], uint16(id))
		f[20] = 0x20
		return f
	}
	for i := range 2 * maxPieces {
		l.give(nf.Up, first("10.0.0.1", i))
		l.give(nf.Up, first("10.0.0.1", 0)) // again: it counts once
	}
	l.give(nf.Up, first("10.0.0.2", 0))
	if len(l.parts) != maxPieces+1 || len(l.pieces) != 2 {
		t.Errorf("%d are remembered of %d clients: want %d of 2", len(l.parts), len(l.pieces), maxPieces+1)
	}
	l.tick(l.time.Add(partsLast + time.Second))
	if len(l.parts)+len(l.pieces) > 0 {
		t.Errorf("%d of %d clients are remembered for ever", len(l.parts), len(l.pieces))
	}
}

// Fragments follow the first one, and errors reach who they are for.
func TestFragmentsAndErrors(t *testing.T) {
	l := newLab(t, small)
	whole := packet(t, "udp 10.0.0.1:1000 10.0.0.100:53", bytes.Repeat([]byte("x"), 64))
	cut := func(first bool) []byte {
		f := bytes.Clone(whole)
		if first {
			f = f[:14+20+40]
			copy(f[16:], []byte{0, 60})
			f[20] = 0x20
		} else {
			f = append(f[:34], whole[34+40:]...)
			copy(f[16:], []byte{0, byte(len(f) - 14)})
			f[21] = 5
		}
		f[24], f[25] = 0, 0
		sum := uint32(0)
		for i := 14; i < 34; i += 2 {
			sum += uint32(f[i])<<8 | uint32(f[i+1])
		}
		sum = sum>>16 + sum&0xffff
		f[24], f[25] = byte(^sum>>8), byte(^sum)
		return f
	}
	if l.give(nf.Up, cut(false)) != nil {
		t.Error("a later fragment passed before its first one")
	}
	for _, first := range []bool{true, false} {
		if out := l.give(nf.Up, cut(first)); out == nil || nf.Decode(out).Dst != netip.MustParseAddr("10.0.1.1") {
			t.Errorf("fragment, first %t: % x", first, out)
		}
	}
	for _, tt := range []struct {
		proto           layers.IPProtocol
		client, virtual string
	}{{layers.IPProtocolICMPv4, "10.0.0.1:1000", "10.0.0.100:80"}, {layers.IPProtocolICMPv6, "[2001:db8::9]:1000", "[2001:db8::100]:80"}} {
		to := l.target("tcp " + tt.client + " " + tt.virtual + " syn")
		failure := func(from, to netip.Addr, about []byte) []byte {
			eth := &layers.Ethernet{SrcMAC: net.HardwareAddr{2, 0, 0, 0, 0, 1}, DstMAC: net.HardwareAddr{2, 0, 0, 0, 0, 2}, EthernetType: layers.EthernetTypeIPv4}
			parts := []gopacket.SerializableLayer{eth}
			if tt.proto == layers.IPProtocolICMPv4 {
				parts = append(parts, &layers.IPv4{Version: 4, TTL: 9, Protocol: tt.proto, SrcIP: from.AsSlice(), DstIP: to.AsSlice()}, &layers.ICMPv4{TypeCode: layers.CreateICMPv4TypeCode(3, 4)})
			} else {
				eth.EthernetType = layers.EthernetTypeIPv6
				ip := &layers.IPv6{Version: 6, HopLimit: 9, NextHeader: tt.proto, SrcIP: from.AsSlice(), DstIP: to.AsSlice()}
				h := &layers.ICMPv6{TypeCode: layers.CreateICMPv6TypeCode(2, 0)}
				must(t, h.SetNetworkLayerForChecksum(ip))
				parts = append(parts, ip, h, gopacket.Payload{0, 0, 5, 0})
			}
			buf := gopacket.NewSerializeBuffer()
			must(t, gopacket.SerializeLayers(buf, gopacket.SerializeOptions{FixLengths: true, ComputeChecksums: true}, append(parts, gopacket.Payload(about[14:]))...))
			return buf.Bytes()
		}
		client, virtual := netip.MustParseAddrPort(tt.client), netip.MustParseAddrPort(tt.virtual)
		router := map[bool]netip.Addr{true: netip.MustParseAddr("10.0.0.254"), false: netip.MustParseAddr("2001:db8::254")}[client.Addr().Is4()]
		got := l.give(nf.Up, failure(router, virtual.Addr(), packet(t, fmt.Sprintf("tcp %s %s ack", virtual, client), nil)))
		want := failure(router, to.Addr(), packet(t, fmt.Sprintf("tcp %s %s ack", to, client), nil))
		copy(want, []byte{2, 0, 0, 0, 1, byte(to.Addr().AsSlice()[len(to.Addr().AsSlice())-1])})
		if !bytes.Equal(got, want) {
			t.Errorf("an error of a router to the virtual address:\n% x: want\n% x", got, want)
		}
		got = l.give(nf.Down, failure(to.Addr(), client.Addr(), packet(t, fmt.Sprintf("tcp %s %s ack", client, to), nil)))
		if want = failure(virtual.Addr(), client.Addr(), packet(t, fmt.Sprintf("tcp %s %s ack", client, virtual), nil)); !bytes.Equal(got, want) {
			t.Errorf("an error of a target:\n% x: want\n% x", got, want)
		}
	}
}

// One station floods the table; others keep their connections, and the table its size.
func TestAFloodTakesNobodysPlace(t *testing.T) {
	l := newLab(t, strings.Replace(many(10, nil), `}]}}}`, `}]}}, "connections": 1000}`, 1))
	open := func(from string) {
		to := l.target("tcp " + from + " 10.0.0.100:80 syn")
		l.give(nf.Down, packet(t, "tcp "+to.String()+" "+from+" syn ack", nil))
		l.target("tcp " + from + " 10.0.0.100:80 ack")
	}
	for i := range 100 {
		open(fmt.Sprintf("10.0.0.1:%d", 2000+i))
	}
	for i := range 5000 {
		open(fmt.Sprintf("10.0.0.2:%d", 2000+i))
	}
	for i := range 5000 { // forged senders that complete nothing
		l.target(fmt.Sprintf("tcp 10.9.%d.%d:9 10.0.0.100:80 syn", i>>8, i&255))
	}
	kept := 0
	for i := range 100 {
		if c := l.table.all[key{0, netip.MustParseAddrPort(fmt.Sprintf("10.0.0.1:%d", 2000+i))}]; c != nil && c.phase == established {
			kept++
		}
	}
	t.Logf("%d of 100 connections kept; %d known of at most 1000, %d open and %d opening ones evicted", kept, len(l.table.all), l.table.evicted, l.table.crowded)
	if kept != 100 || len(l.table.all) > 1000 || l.table.evicted == 0 || l.table.crowded == 0 {
		t.Errorf("%d connections of another station are kept, %d are known", kept, len(l.table.all))
	}
	l.tick(l.time.Add(2 * time.Hour))
	if len(l.table.all)+len(l.table.owners)+len(l.table.buckets)+l.table.most != 0 {
		t.Errorf("left when all is over: %d connections, %d stations, %d buckets", len(l.table.all), len(l.table.owners), len(l.table.buckets))
	}
}

const established = open

// A million frames that were good until somebody changed bytes: nothing crashes, nothing reaches a target that was not to a virtual place, nothing of another
// place leaves as from a virtual one, and the tables are bounded.
func TestAMillionFrames(t *testing.T) {
	frames := 1_000_000
	if testing.Short() {
		frames = 100_000
	}
	l := newLab(t, small)
	var seeds [][]byte
	for _, text := range []string{"tcp 10.0.0.1:1000 10.0.0.100:80 syn", "tcp 10.0.0.1:1000 10.0.0.100:80 ack", "udp 10.0.0.1:1000 10.0.0.100:53", "udp [2001:db8::9]:1000 [2001:db8::100]:53", "tcp [2001:db8::9]:1 [2001:db8::100]:80 fin ack",
		"tcp 10.0.1.1:8080 10.0.0.1:1000 ack", "udp [2001:db8::1:1]:5353 [2001:db8::9]:1000", "tcp 10.0.0.1:1 10.0.1.1:8080 syn"} {
		seeds = append(seeds, packet(t, text, bytes.Repeat([]byte("data"), 20)))
	}
	random := rand.New(rand.NewPCG(3, 4))
	var before, after runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	sent, most := 0, 0
	for i := range frames {
		f := oneOf(seeds, random, i%2 == 0)
		for range random.IntN(5) {
			f[random.IntN(len(f))] = byte(random.Uint32())
		}
		f = f[:14+random.IntN(len(f)-13)]
		if random.IntN(4) > 0 {
			f = f[:cap(f)][:max(len(f), 60)]
		}
		d := nf.Dir(random.IntN(2))
		l.time = l.time.Add(50 * time.Microsecond)
		out := l.give(d, f)
		most = max(most, len(l.table.all), len(l.parts))
		if out == nil || bytes.Equal(out, f) {
			continue
		}
		sent++
		p, q := nf.Decode(f), nf.Decode(out)
		if len(out) != len(f) || q.Bad != "" || d == nf.Up && !l.virtual[p.Dst] || d == nf.Down && !l.virtual[q.Src] && !slices.Contains([]uint8{nf.ICMP, nf.ICMPv6}, q.Proto) {
			t.Fatalf("%s: % x\nbecame\n% x", d, f, out)
		}
		if i%100_000 == 0 {
			l.tick(l.time)
		}
	}
	runtime.GC()
	runtime.ReadMemStats(&after)
	t.Logf("%d frames: %d rewritten, %+v; at most %d connections or fragments known; %d KB more memory", frames, sent, l.count, most, (int64(after.HeapAlloc)-int64(before.HeapAlloc))>>10)
	if most > 4096 || after.HeapAlloc > before.HeapAlloc+16<<20 || sent == 0 || l.count.malformed == 0 {
		t.Errorf("%d known, %d bytes more, %d rewritten", most, after.HeapAlloc-before.HeapAlloc, sent)
	}
}

func TestParseConfig(t *testing.T) {
	of := func(s string) string { return `{"services": {"web": ` + s + `}}` }
	with := func(more, target string) string {
		return of(`{"address": "10.0.0.100", "protocol": "tcp", "port": 80, "targets": [{"address": "10.0.1.1", "mac": "02:00:00:00:00:01"` + target + `}]` + more + `}`)
	}
	for text, want := range map[string]string{
		``: "want at least one", `{}`: "want 1 to 64", of(`null`): "want one", `{"services": {"a b": {}}}`: "want a name", of(`{}`): "address", of(`{"address": "224.0.0.1"}`): "of a station", of(`{"address": "10.0.0.1", "protocol": "sctp"}`): "want tcp or udp",
		of(`{"address": "10.0.0.1", "protocol": "tcp"}`): "port: want 1", of(`{"address": "10.0.0.1", "protocol": "tcp", "port": 80}`): "targets: 0: want 1 to 64", with(`, "by": "x"`, ""): "want connection or client",
		with("", `, "weight": 101`): "want 1 to 100", with("", `, "mac": "x"`): "mac \"x\"", with("", `, "mac": "01:00:00:00:00:01"`): "of a station", with("", `, "mac": ""`): "want health.addresses", with(`, "check": {"tcp": 80}`, ""): "want health.addresses",
		of(`{"address": "10.0.0.100", "protocol": "tcp", "port": 80, "targets": [{"address": "2001:db8::1"}]}`):                                                             "of the family of 10.0.0.100",
		of(`{"address": "10.0.0.100", "protocol": "tcp", "port": 80, "targets": [{"address": "10.0.0.100", "mac": "02:00:00:00:00:01"}]}`):                                  "it is a virtual address",
		strings.Replace(small, `"10.0.1.2", "port": 8080`, `"10.0.1.1", "port": 8080`, 1):                                                                                   "a target's port serves one service",
		strings.Replace(small, `"protocol": "udp", "port": 53, "targets": [{"address": "10.0.1.1"`, `"protocol": "tcp", "port": 80, "targets": [{"address": "10.0.1.3"`, 1): "has it, too",
		strings.Replace(small, `"connections": 4096`, `"connections": 1`, 1):                                                                                                "want 64 to 262144", strings.Replace(small, `"connections": 4096`, `"health": {"addresses": ["10.0.0.100/24"]}`, 1): "is one of health.addresses",
	} {
		if _, err := parseConfig([]byte(text)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v: want %q", text, err, want)
		}
	}
}

// An open connection is rewritten by the switch behind its first packets, each direction for itself, and nothing else is.
func TestOpenConnectionsAreSettled(t *testing.T) {
	l := newLab(t, `{"services": {"web": {"address": "10.9.0.100", "protocol": "tcp", "port": 80, "targets": [{"address": "10.9.0.2", "port": 8080, "mac": "02:00:00:00:00:99"}]},
		"udp": {"address": "10.9.0.100", "protocol": "udp", "port": 53, "targets": [{"address": "10.9.0.2", "port": 53, "mac": "02:00:00:00:00:99"}]}}}`)
	var said []string
	l.settle = func(d nf.Dir, _ []byte, r nf.Rewrite) {
		said = append(said, fmt.Sprintf("%s %s %s %s", d, map[nf.End]string{nf.Source: "src", nf.Target: "dst"}[r.End], r.To, net.HardwareAddr(r.MAC[:])))
	}
	give := func(d nf.Dir, n int, text string) string {
		t.Helper()
		said = nil
		for range n {
			if l.give(d, packet(t, text, nil)) == nil {
				t.Fatalf("%s does not come out", text)
			}
		}
		return strings.Join(said, "; ")
	}
	const up, down = "tcp 10.9.0.1:1000 10.9.0.100:80 ", "tcp 10.9.0.2:8080 10.9.0.1:1000 "
	for _, tt := range []struct {
		what string
		d    nf.Dir
		n    int
		text string
		want string
	}{
		{"a beginning", nf.Up, 20, up + "syn", ""},
		{"its answer", nf.Down, 20, down + "syn ack", ""},
		{"the client", nf.Up, settleAfter, up + "ack", ""},
		{"the client once more", nf.Up, 1, up + "ack", "up dst 10.9.0.2:8080 02:00:00:00:00:99"},
		{"the target", nf.Down, settleAfter, down + "ack", ""},
		{"the target once more", nf.Down, 1, down + "ack", "down src 10.9.0.100:80 00:00:00:00:00:00"},
		{"the end", nf.Up, 1, up + "fin ack", ""},
		{"behind it", nf.Down, 20, down + "ack", ""},
		{"a datagram", nf.Up, 20, "udp 10.9.0.1:1000 10.9.0.100:53", ""},
		{"its answer", nf.Down, 20, "udp 10.9.0.2:53 10.9.0.1:1000", ""},
		{"a datagram again", nf.Up, 20, "udp 10.9.0.1:1000 10.9.0.100:53", ""},
		{"a connection that is known from its target alone", nf.Down, 20, "tcp 10.9.0.2:8080 10.9.0.1:1001 ack", ""},
	} {
		if got := give(tt.d, tt.n, tt.text); got != tt.want {
			t.Errorf("%s: the switch is told %q, want %q", tt.what, got, tt.want)
		}
	}

	// A target that is found elsewhere while a packet is on its way to where it was.
	const other = "tcp 10.9.0.1:1002 10.9.0.100:80 "
	give(nf.Up, 1, other+"syn")
	give(nf.Down, 1, "tcp 10.9.0.2:8080 10.9.0.1:1002 syn ack")
	give(nf.Up, settleAfter, other+"ack")
	anew := 0
	l.unsettle = func() { anew++ }
	give(nf.Up, 1, other+"ack")
	if anew > 0 {
		t.Error("all is taken back although no target has moved")
	}
	l.settle = func(nf.Dir, []byte, nf.Rewrite) { l.services[1].members[0].mac.Store(&[6]byte{2, 0, 0, 0, 0, 0x77}) }
	if give(nf.Up, 1, other+"ack"); anew != 1 {
		t.Error("a connection stays settled to where its target was")
	}
}

// oneOf good frames, or one of another's port and address.
func oneOf(seeds [][]byte, random *rand.Rand, others bool) []byte {
	f := bytes.Clone(seeds[random.IntN(len(seeds))])
	if others {
		p := nf.Decode(f)
		f[p.Transport+random.IntN(4)] = byte(random.Uint32())
		f[p.Network+12+random.IntN(8)] = byte(random.Uint32())
	}
	return f
}
