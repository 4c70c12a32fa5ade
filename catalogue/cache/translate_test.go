package main

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/gopacket/gopacket"
	"github.com/gopacket/gopacket/layers"

	"weir.dev/weir/catalogue/nf"
)

// bench is a translator with a clock and what it sent.
type bench struct {
	t    *testing.T
	x    *translator
	now  time.Time
	sent []nf.Frame
	dirs []nf.Dir
}

func newBench(t *testing.T) *bench {
	b := &bench{t: t, now: time.Unix(1000, 0)}
	b.x = newTranslator([]uint16{80, 8080}, net.HardwareAddr{2, 2, 2, 2, 2, 2}, func() time.Time { return b.now }, func(d nf.Dir, f nf.Frame) {
		b.sent, b.dirs = append(b.sent, f.Clone()), append(b.dirs, d)
	})
	return b
}

// give a frame; what is sent on is whole, and its checksums are right.
func (b *bench) give(d nf.Dir, frame []byte) (nf.Verdict, []nf.Frame) {
	b.t.Helper()
	b.sent, b.dirs = nil, nil
	v := b.x.handle(d, nf.NewFrame(frame))
	for _, f := range b.sent {
		if p := nf.Decode(f.Data); p.Bad != "" || !p.Intact(f.Data) {
			b.t.Errorf("sent on: %+v, checksums right: %v", p, p.Bad == "" && p.Intact(f.Data))
		}
	}
	return v, b.sent
}

type segment struct {
	from, to         string
	fromMAC, toMAC   byte
	sport, dport     int
	tags             []uint16
	syn, ack, fin, r bool
	text             string
}

func (s segment) frame(t *testing.T) []byte {
	t.Helper()
	src, dst := netip.MustParseAddr(s.from), netip.MustParseAddr(s.to)
	tcp := &layers.TCP{SrcPort: layers.TCPPort(s.sport), DstPort: layers.TCPPort(s.dport), SYN: s.syn, ACK: s.ack, FIN: s.fin, RST: s.r, Window: 1000, Seq: 5}
	kind := layers.EthernetTypeIPv4
	if src.Is6() {
		kind = layers.EthernetTypeIPv6
	}
	e := &layers.Ethernet{SrcMAC: net.HardwareAddr{2, 0, 0, 0, 0, s.fromMAC}, DstMAC: net.HardwareAddr{2, 0, 0, 0, 0, s.toMAC}, EthernetType: kind}
	parts := []gopacket.SerializableLayer{e}
	for i, tag := range s.tags {
		q := &layers.Dot1Q{VLANIdentifier: tag, Priority: 3, Type: kind}
		if i+1 < len(s.tags) {
			q.Type = layers.EthernetTypeDot1Q
		}
		parts = append(parts, q)
		e.EthernetType = layers.EthernetTypeDot1Q
	}
	var network gopacket.NetworkLayer
	if src.Is4() {
		ip := &layers.IPv4{Version: 4, TTL: 9, TOS: 0x2a, Id: 77, Flags: layers.IPv4DontFragment, Protocol: layers.IPProtocolTCP, SrcIP: src.AsSlice(), DstIP: dst.AsSlice()}
		parts, network = append(parts, ip), ip
	} else {
		ip := &layers.IPv6{Version: 6, HopLimit: 9, TrafficClass: 0x2a, NextHeader: layers.IPProtocolTCP, SrcIP: src.AsSlice(), DstIP: dst.AsSlice()}
		parts, network = append(parts, ip), ip
	}
	if err := tcp.SetNetworkLayerForChecksum(network); err != nil {
		t.Fatal(err)
	}
	buf := gopacket.NewSerializeBuffer()
	if err := gopacket.SerializeLayers(buf, gopacket.SerializeOptions{FixLengths: true, ComputeChecksums: true}, append(parts, tcp, gopacket.Payload(s.text))...); err != nil {
		t.Fatal(err)
	}
	return buf.Bytes()
}

// A client's connection, and the one that nginx makes for it, go both ways: with the addresses, ports, MAC addresses and tags of client and server.
func TestConnections(t *testing.T) {
	for name, tt := range map[string]struct {
		client, server string
		tags           []uint16
	}{
		"IPv4": {"10.0.0.1", "10.0.0.2", nil}, "IPv6": {"fd00::1", "fd00::2", nil}, "VLAN": {"10.0.0.1", "10.0.0.2", []uint16{7}}, "two tags, IPv6": {"fd00::1", "fd00::2", []uint16{3, 7}},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t)
			up := segment{from: tt.client, to: tt.server, fromMAC: 1, toMAC: 2, sport: 4000, dport: 8080, tags: tt.tags, syn: true}
			down := segment{from: tt.server, to: tt.client, fromMAC: 2, toMAC: 1, sport: 8080, dport: 4000, tags: tt.tags, syn: true, ack: true}
			expect := func(what string, d nf.Dir, in, want segment, wantDir nf.Dir) {
				t.Helper()
				v, sent := b.give(d, in.frame(t))
				if v != nf.Drop || len(sent) != 1 || b.dirs[0] != wantDir {
					t.Fatalf("%s: verdict %v, sent %v", what, v, b.dirs)
				}
				got, exp := sent[0].Data, want.frame(t)
				if wantDir == nf.Side { // its MAC addresses are of no account, but the receiver's
					copy(exp, got[:12])
				}
				i := 14 + 4*len(want.tags)
				if netip.MustParseAddr(want.from).Is4() { // the identification, TTL and checksum are of who sends
					copy(exp[i+4:], got[i+4:i+6])
					copy(exp[i+8:], got[i+8:i+9])
					copy(exp[i+10:], got[i+10:i+12])
				} else {
					exp[i+7] = got[i+7]
				}
				exp = exp[:min(len(got), len(exp))] // it is padded
				if !bytes.Equal(got, exp) {
					t.Errorf("%s:\ngot  % x\nwant % x", what, got, exp)
				}
			}
			link := func(from, to string, sport, dport int, flags segment) segment {
				return segment{from: from, to: to, sport: sport, dport: dport, syn: flags.syn, ack: flags.ack, fin: flags.fin, text: flags.text}
			}
			expect("SYN of the client", nf.Up, up, link("241.0.0.1", "242.0.0.1", 4000, 20001, up), nf.Side)
			expect("answer of nginx", nf.Side, link("242.0.0.1", "241.0.0.1", 20001, 4000, down), down, nf.Down)
			data := up
			data.syn, data.ack, data.text = false, true, "GET / odd"
			expect("data of the client", nf.Up, data, link("241.0.0.1", "242.0.0.1", 4000, 20001, data), nf.Side)

			dialled := up
			dialled.sport = 33000
			expect("SYN of nginx", nf.Side, link("243.0.0.1", "244.0.0.1", 33000, 8080, dialled), dialled, nf.Up)
			answer := down
			answer.dport = 33000
			expect("answer of the server", nf.Down, answer, link("244.0.0.1", "243.0.0.1", 8080, 33000, answer), nf.Side)

			// Neither end speaks for nginx.
			for what, f := range map[string]struct {
				d nf.Dir
				s segment
			}{
				"the server in the client's connection": {nf.Down, segment{from: tt.server, to: tt.client, fromMAC: 2, toMAC: 1, sport: 8080, dport: 4000, tags: tt.tags, ack: true}},
				"the client in nginx's connection":      {nf.Up, segment{from: tt.client, to: tt.server, fromMAC: 1, toMAC: 2, sport: 33000, dport: 8080, tags: tt.tags, ack: true, text: "GET"}},
			} {
				if v, sent := b.give(f.d, f.s.frame(t)); v != nf.Drop || len(sent) > 0 {
					t.Errorf("%s: verdict %v, %d sent", what, v, len(sent))
				}
			}
		})
	}
}

// What nginx is not to have passes: other ports, connections from before, what is not plain, and what there is no room for.
func TestPasses(t *testing.T) {
	b := newBench(t)
	syn := segment{from: "10.0.0.1", to: "10.0.0.2", fromMAC: 1, toMAC: 2, sport: 4000, dport: 80, syn: true}
	for name, change := range map[string]func(*segment){
		"another port":     func(s *segment) { s.dport = 81 },
		"from before":      func(s *segment) { s.syn, s.ack = false, true },
		"an answer":        func(s *segment) { s.ack = true },
		"to itself":        func(s *segment) { s.to = s.from },
		"to a group":       func(s *segment) { s.to = "224.0.0.1" },
		"from port 0":      func(s *segment) { s.sport = 0 },
		"to loopback":      func(s *segment) { s.to = "127.0.0.1" },
		"to a group, IPv6": func(s *segment) { s.from, s.to = "fd00::1", "ff02::1" },
	} {
		s := syn
		change(&s)
		if v, sent := b.give(nf.Up, s.frame(t)); v != nf.Pass || len(sent) > 0 {
			t.Errorf("%s: verdict %v, %d sent", name, v, len(sent))
		}
	}
	for port := range maxConnections {
		s := syn
		s.sport, s.from, s.to = 1+port, fmt.Sprintf("10.0.1.%d", 1+port/mostOfOne), "10.0.0.3"
		if v, _ := b.give(nf.Up, s.frame(t)); v != nf.Drop {
			t.Fatalf("connection %d: verdict %v", port, v)
		}
	}
	if v, _ := b.give(nf.Up, syn.frame(t)); v != nf.Pass || b.x.count.Full != 1 {
		t.Errorf("one more than there is room for: verdict %v, %+v", v, b.x.count)
	}
	// They were never opened: after some seconds there is room again.
	b.now = b.now.Add(opensWithin + time.Second)
	b.x.tick(b.now)
	if n := len(b.x.accepted.of) + len(b.x.accepted.link) + len(b.x.accepted.pairs); n > 0 {
		t.Errorf("%d are still remembered", n)
	}
	if v, _ := b.give(nf.Up, syn.frame(t)); v != nf.Drop {
		t.Errorf("there is room again: verdict %v", v)
	}
	b.now = b.now.Add(2 * forgotten)
	b.x.tick(b.now)
	b.x.tick(b.now)
	if len(b.x.clients.of)+len(b.x.servers.of) > 0 {
		t.Error("stations are remembered for ever")
	}
	if v, sent := b.give(nf.Up, syn.frame(t)); v != nf.Drop || !bytes.Contains(sent[0].Data, []byte{242, 0, 0, 3}) {
		t.Errorf("a server's number was given again: verdict %v, % x", v, sent)
	}
}

// A client may have its share of nginx's connections, and what is over counts no more.
func TestOneClientHasItsShare(t *testing.T) {
	b := newBench(t)
	syn := segment{from: "10.0.0.1", to: "10.0.0.2", fromMAC: 1, toMAC: 2, dport: 80, syn: true}
	for port := range mostOfOne {
		syn.sport = 1 + port
		if v, _ := b.give(nf.Up, syn.frame(t)); v != nf.Drop {
			t.Fatalf("connection %d: verdict %v", port, v)
		}
	}
	syn.sport = 60000
	if v, _ := b.give(nf.Up, syn.frame(t)); v != nf.Pass || b.x.count.Full != 1 {
		t.Errorf("one more: verdict %v, %+v", v, b.x.count)
	}
	other := syn
	other.from, other.fromMAC = "10.0.0.3", 3
	if v, _ := b.give(nf.Up, other.frame(t)); v != nf.Drop {
		t.Errorf("another client: verdict %v", v)
	}
	b.now = b.now.Add(opensWithin + time.Second)
	b.x.tick(b.now)
	if v, _ := b.give(nf.Up, syn.frame(t)); v != nf.Drop {
		t.Errorf("after those are over: verdict %v", v)
	}
}

// Who takes a client's or a server's address, but not its MAC address, leads nothing of the client elsewhere, speaks in none of its connections, and keeps it from
// none.
func TestAddressesOfOthers(t *testing.T) {
	syn := segment{from: "10.0.0.1", to: "10.0.0.2", fromMAC: 1, toMAC: 2, sport: 4000, dport: 80, syn: true}
	dial := func(b *bench, server string) []nf.Frame {
		_, sent := b.give(nf.Side, segment{from: "243.0.0.1", to: server, sport: 33000, dport: 80, syn: true}.frame(t))
		return sent
	}
	leads := func(b *bench, what string, mac byte) {
		t.Helper()
		if sent := dial(b, "244.0.0.1"); len(sent) != 1 || b.dirs[0] != nf.Up || sent[0].Data[5] != mac {
			t.Errorf("%s: nginx's SYN: %v", what, sent)
		}
	}
	for what, forged := range map[string]segment{
		"the server's": {from: "10.0.0.1", to: "10.0.0.2", fromMAC: 1, toMAC: 9, sport: 4001, dport: 80, syn: true},
		"the client's": {from: "10.0.0.1", to: "10.0.0.2", fromMAC: 9, toMAC: 2, sport: 4001, dport: 80, syn: true},
		"both":         {from: "10.0.0.1", to: "10.0.0.2", fromMAC: 8, toMAC: 9, sport: 4001, dport: 80, syn: true},
	} {
		b := newBench(t)
		b.give(nf.Up, syn.frame(t))
		_, sent := b.give(nf.Up, forged.frame(t))
		if len(sent) != 1 || bytes.Contains(sent[0].Data, []byte{241, 0, 0, 1, 242, 0, 0, 1}) {
			t.Errorf("%s: it is taken for the client and the server: % x", what, sent)
		}
		leads(b, what, 2)
	}

	b := newBench(t)
	b.give(nf.Up, syn.frame(t))
	ack := syn
	ack.syn, ack.ack = false, true
	b.give(nf.Up, ack.frame(t))
	for _, forged := range []segment{
		{from: "10.0.0.1", to: "10.0.0.2", fromMAC: 9, toMAC: 2, sport: 4000, dport: 80, r: true},
		{from: "10.0.0.1", to: "10.0.0.2", fromMAC: 9, toMAC: 2, sport: 4000, dport: 80, ack: true, text: "GET /"},
		{from: "10.0.0.1", to: "10.0.0.2", fromMAC: 9, toMAC: 2, sport: 4000, dport: 80, syn: true},
	} {
		if v, sent := b.give(nf.Up, forged.frame(t)); v != nf.Drop || len(sent) > 0 {
			t.Errorf("%+v in an open connection: verdict %v, %d sent", forged, v, len(sent))
		}
	}
	ack.text, ack.toMAC = "GET /", 7 // the client's router has changed
	if v, sent := b.give(nf.Up, ack.frame(t)); v != nf.Drop || len(sent) != 1 {
		t.Errorf("the client: verdict %v, %d sent", v, len(sent))
	}

	b = newBench(t) // somebody knows the client's next port
	early := syn
	early.fromMAC = 9
	b.give(nf.Up, early.frame(t))
	if _, sent := b.give(nf.Up, syn.frame(t)); len(sent) != 1 {
		t.Error("the client's SYN is not taken")
	}
	if _, sent := b.give(nf.Side, segment{from: "242.0.0.1", to: "241.0.0.2", sport: 20000, dport: 4000, syn: true, ack: true}.frame(t)); len(sent) != 1 || sent[0].Data[5] != 1 {
		t.Errorf("the answer does not go to the client: %v", sent)
	}
}

// What nginx dials and cannot have is refused at once.
func TestRefusedToTheStack(t *testing.T) {
	b := newBench(t)
	b.give(nf.Up, segment{from: "10.0.0.1", to: "10.0.0.2", fromMAC: 1, toMAC: 2, sport: 4000, dport: 80, syn: true}.frame(t))
	for i := range maxConnections {
		b.give(nf.Side, segment{from: "243.0.0.1", to: "244.0.0.1", sport: 1000 + i, dport: 80, syn: true}.frame(t))
	}
	_, sent := b.give(nf.Side, segment{from: "243.0.0.1", to: "244.0.0.1", sport: 33000, dport: 80, syn: true}.frame(t))
	if len(sent) != 1 || b.dirs[0] != nf.Side {
		t.Fatalf("%d sent to %v", len(sent), b.dirs)
	}
	p := nf.Decode(sent[0].Data)
	if p.Flags != nf.RST|nf.ACK || p.Src.String() != "244.0.0.1" || p.SrcPort != 80 || p.DstPort != 33000 || binary.BigEndian.Uint32(sent[0].Data[p.Transport+8:]) != 6 {
		t.Errorf("%+v", p)
	}
}

// nginx's link leads nowhere else.
func TestFromTheStack(t *testing.T) {
	b := newBench(t)
	for _, s := range []segment{
		{from: "242.0.0.1", to: "241.0.0.1", sport: 20000, dport: 4000, syn: true, ack: true},
		{from: "243.0.0.1", to: "244.0.0.1", sport: 33000, dport: 80, syn: true},
		{from: "10.0.0.1", to: "10.0.0.2", sport: 33000, dport: 80, syn: true},
		{from: "fd00::1", to: "fd00::2", sport: 33000, dport: 80, syn: true},
	} {
		v, sent := b.give(nf.Side, s.frame(t))
		if v == nf.Pass || len(sent) > 0 && (b.dirs[0] != nf.Side || nf.Decode(sent[0].Data).Flags != nf.RST|nf.ACK) { // nginx's SYN is refused
			t.Errorf("%+v: verdict %v, %d sent", s, v, len(sent))
		}
	}
	b.give(nf.Up, segment{from: "10.0.0.1", to: "10.0.0.2", fromMAC: 1, toMAC: 2, sport: 4000, dport: 80, syn: true}.frame(t))
	if _, sent := b.give(nf.Side, segment{from: "243.0.0.1", to: "244.0.0.1", sport: 33000, dport: 22, syn: true}.frame(t)); len(sent) != 1 || b.dirs[0] != nf.Side {
		t.Error("to a port that is not configured")
	}
}

// noted is a shortcut that notes what it is told.
type noted struct {
	told []string
	err  error
}

func (n *noted) add(c *conn) error {
	n.told = append(n.told, fmt.Sprint("add ", c.key.clientPort))
	return n.err
}

func (n *noted) remove(all []*conn) error {
	for _, c := range all {
		n.told = append(n.told, fmt.Sprint("remove ", c.key.clientPort))
	}
	return n.err
}

// TestConnectionsThatLastAreShortened: again and again while they last, and no longer than others have none of their addresses and ports. What the kernel cannot
// rewrite, and connections for one answer, stay with the loop.
func TestConnectionsThatLastAreShortened(t *testing.T) {
	connect := func(b *bench, s segment, more int) {
		s.syn = true
		b.give(nf.Up, s.frame(t))
		s.syn, s.ack = false, true
		for range more {
			b.give(nf.Up, s.frame(t))
		}
	}
	client := segment{from: "10.0.0.1", to: "10.0.0.2", fromMAC: 1, toMAC: 2, sport: 4000, dport: 80}
	ack := client
	ack.ack = true
	fin, reset, other, tagged, six := ack, ack, client, client, client
	fin.fin, reset.r, other.fromMAC, tagged.tags = true, true, 9, []uint16{7}
	six.from, six.to = "fd00::1", "fd00::2"
	pass := func(b *bench, d time.Duration) {
		b.now = b.now.Add(d)
		b.x.tick(b.now)
	}
	for what, tt := range map[string]struct {
		do   func(*bench)
		want []string
	}{
		"one answer":    {func(b *bench) { connect(b, client, few-1) }, nil},
		"many segments": {func(b *bench) { connect(b, client, 5*few) }, []string{"add 4000"}},
		"another's":     {func(b *bench) { connect(b, client, 1); connect(b, other, 5*few) }, nil},
		"a VLAN tag":    {func(b *bench) { connect(b, tagged, 5*few) }, nil},
		"IPv6":          {func(b *bench) { connect(b, six, 5*few) }, nil},
		"it goes on": {func(b *bench) {
			connect(b, client, few)
			pass(b, shortFor)
			b.give(nf.Up, ack.frame(t))
		}, []string{"add 4000", "add 4000"}},
		"it has ended": {func(b *bench) {
			connect(b, client, few)
			b.give(nf.Up, fin.frame(t))
			pass(b, shortFor+time.Second)
			b.give(nf.Up, fin.frame(t))
		}, []string{"add 4000"}},
		"the same ports": {func(b *bench) { connect(b, client, few); b.give(nf.Up, fin.frame(t)); connect(b, client, few) }, []string{"add 4000", "remove 4000", "add 4000"}},
		"reset, and over": {func(b *bench) {
			connect(b, client, few)
			b.give(nf.Up, reset.frame(t))
			pass(b, closesIn+time.Second)
		}, []string{"add 4000", "remove 4000"}},
		"over for long": {func(b *bench) { connect(b, client, few); pass(b, quietFor+time.Second) }, []string{"add 4000"}},
	} {
		b, n := newBench(t), &noted{}
		b.x.short = n
		tt.do(b)
		if !slices.Equal(n.told, tt.want) {
			t.Errorf("%s: told %q, want %q", what, n.told, tt.want)
		}
	}
	b, n := newBench(t), &noted{err: errors.New("no")}
	b.x.short = n
	connect(b, client, 5*few)
	pass(b, pauseAfter)
	b.give(nf.Up, ack.frame(t))
	if want := []string{"add 4000", "add 4000"}; !slices.Equal(n.told, want) || b.x.count.Failed != 2 || len(b.sent) != 1 {
		t.Errorf("a shortcut that fails: told %q, want %q; %+v", n.told, want, b.x.count)
	}
}

func FuzzFrames(f *testing.F) {
	f.Add(0, []byte{})
	f.Add(2, make([]byte, 60))
	f.Fuzz(func(t *testing.T, d int, frame []byte) {
		if len(frame) < 14 {
			return
		}
		b := newBench(t)
		b.give(nf.Up, segment{from: "10.0.0.1", to: "10.0.0.2", fromMAC: 1, toMAC: 2, sport: 4000, dport: 80, syn: true}.frame(t))
		b.x.handle(nf.Dir(uint(d)%3), nf.NewFrame(frame))
	})
}
