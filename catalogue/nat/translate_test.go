package main

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"net"
	"net/netip"
	"runtime"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/gopacket/gopacket"
	"github.com/gopacket/gopacket/layers"

	"weir.dev/weir/catalogue/nf"
)

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// lab is a translator and what it sent.
type lab struct {
	*translator
	t    testing.TB
	time time.Time
	sent [2][][]byte
}

func newLab(t testing.TB, config string) *lab {
	t.Helper()
	cfg, err := parseConfig([]byte(config))
	must(t, err)
	l := &lab{t: t, time: time.Unix(1e9, 0)}
	l.translator = newTranslator(&cfg, func() time.Time { return l.time }, func(d nf.Dir, f nf.Frame) { l.sent[d] = append(l.sent[d], bytes.Clone(f.Data)) })
	return l
}

// end all sessions by silence.
func (l *lab) end() {
	for range 10 * expireTicks {
		l.tick(l.time.Add(3 * time.Hour))
	}
}

// give a frame; what comes out in its direction, nil if nothing does.
func (l *lab) give(d nf.Dir, frame []byte) []byte {
	l.t.Helper()
	l.sent = [2][][]byte{}
	before := bytes.Clone(frame)
	v := l.handle(d, nf.NewFrame(frame))
	if !bytes.Equal(before, frame) {
		l.t.Fatal("it changed the frame that it was given")
	}
	switch {
	case v == nf.Pass:
		return frame
	case len(l.sent[d]) == 1 && nf.Decode(l.sent[d][0]).Type != etherARP:
		return l.sent[d][0]
	}
	return nil
}

var (
	clientMAC = net.HardwareAddr{2, 0, 0, 0, 0, 1}
	serverMAC = net.HardwareAddr{2, 0, 0, 0, 0, 2}
)

// packet from one place to another: "tcp 10.0.0.1:1000 10.0.0.2:80"; flags, numbers ("seq=7 ack=9"), data and VLAN are optional.
func packet(t testing.TB, text string, data []byte, vlans ...uint16) []byte {
	t.Helper()
	f := strings.Fields(text)
	src, dst := netip.MustParseAddrPort(f[1]), netip.MustParseAddrPort(f[2])
	eth := &layers.Ethernet{SrcMAC: clientMAC, DstMAC: serverMAC, EthernetType: layers.EthernetTypeIPv4}
	parts := []gopacket.SerializableLayer{eth}
	for range vlans {
		eth.EthernetType = layers.EthernetTypeDot1Q
	}
	for i, v := range vlans {
		kind := layers.EthernetTypeDot1Q
		if i == len(vlans)-1 {
			kind = layers.EthernetTypeIPv4
		}
		parts = append(parts, &layers.Dot1Q{VLANIdentifier: v, Type: kind})
	}
	ip := &layers.IPv4{Version: 4, Id: 77, TTL: 9, SrcIP: src.Addr().AsSlice(), DstIP: dst.Addr().AsSlice()}
	parts = append(parts, ip)
	switch f[0] {
	case "tcp":
		ip.Protocol = layers.IPProtocolTCP
		l := &layers.TCP{SrcPort: layers.TCPPort(src.Port()), DstPort: layers.TCPPort(dst.Port()), Seq: 5, Window: 9}
		for _, flag := range f[3:] {
			if name, number, ok := strings.Cut(flag, "="); ok {
				n, err := strconv.ParseUint(number, 10, 32)
				must(t, err)
				*map[string]*uint32{"seq": &l.Seq, "ack": &l.Ack}[name] = uint32(n)
				continue
			}
			*map[string]*bool{"syn": &l.SYN, "ack": &l.ACK, "fin": &l.FIN, "rst": &l.RST}[flag] = true
		}
		must(t, l.SetNetworkLayerForChecksum(ip))
		parts = append(parts, l)
	case "udp":
		ip.Protocol = layers.IPProtocolUDP
		l := &layers.UDP{SrcPort: layers.UDPPort(src.Port()), DstPort: layers.UDPPort(dst.Port())}
		must(t, l.SetNetworkLayerForChecksum(ip))
		parts = append(parts, l)
	case "ping", "pong": // the client's port is the identifier
		ip.Protocol = layers.IPProtocolICMPv4
		l := &layers.ICMPv4{TypeCode: layers.CreateICMPv4TypeCode(8, 0), Id: src.Port(), Seq: 1}
		if f[0] == "pong" {
			l.TypeCode, l.Id = 0, dst.Port()
		}
		parts = append(parts, l)
	case "unreachable":
		ip.Protocol = layers.IPProtocolICMPv4
		parts = append(parts, &layers.ICMPv4{TypeCode: layers.CreateICMPv4TypeCode(3, 3)})
	case "gre":
		ip.Protocol = layers.IPProtocolGRE
	}
	buf := gopacket.NewSerializeBuffer()
	must(t, gopacket.SerializeLayers(buf, gopacket.SerializeOptions{FixLengths: true, ComputeChecksums: true}, append(parts, gopacket.Payload(data))...))
	return buf.Bytes()
}

// says what a frame is, in the same words, and "damaged" where a checksum is wrong.
func says(frame []byte) string {
	if frame == nil {
		return "nothing"
	}
	p := nf.Decode(frame)
	text := fmt.Sprintf("%s %s", p.Src, p.Dst)
	intact := fold(sum(frame[p.Network:p.Transport])) == 0xffff
	switch p.Proto {
	case nf.TCP, nf.UDP:
		text = fmt.Sprintf("%s %s:%d %s:%d", map[uint8]string{nf.TCP: "tcp", nf.UDP: "udp"}[p.Proto], p.Src, p.SrcPort, p.Dst, p.DstPort)
		intact = p.Intact(frame)
	case icmp:
		h := frame[p.Transport:p.End]
		intact = intact && fold(sum(h)) == 0xffff
		switch id := binary.BigEndian.Uint16(h[4:]); h[0] {
		case echoRequest:
			text = fmt.Sprintf("ping %s:%d %s:0", p.Src, id, p.Dst)
		case echoReply:
			text = fmt.Sprintf("pong %s:0 %s:%d", p.Src, p.Dst, id)
		default:
			text = "error " + text + " about " + says(append(make([]byte, 12, 200), append([]byte{8, 0}, h[8:]...)...))
		}
	}
	if !intact {
		text += " damaged"
	}
	return text
}

func sum(b []byte) (s uint32) {
	for ; len(b) > 1; b = b[2:] {
		s += uint32(binary.BigEndian.Uint16(b))
	}
	if len(b) == 1 {
		s += uint32(b[0]) << 8
	}
	return s
}

func fold(s uint32) uint32 {
	for s>>16 > 0 {
		s = s>>16 + s&0xffff
	}
	return s
}

const pool = `{"pool": ["192.0.2.1"], "clients": ["10.0.0.0/24"], "forward": [{"protocol": "tcp", "port": 8080, "to": "10.0.0.5:80"}]}`

// A conversation: each line is a direction, what is given, and what comes out.
func TestTranslation(t *testing.T) {
	l := newLab(t, pool)
	for i, c := range []struct {
		d           nf.Dir
		given, want string
	}{
		{nf.Up, "tcp 10.0.0.1:1000 198.51.100.1:80 syn", "tcp 192.0.2.1:1000 198.51.100.1:80"},
		{nf.Down, "tcp 198.51.100.1:80 192.0.2.1:1000 syn ack", "tcp 198.51.100.1:80 10.0.0.1:1000"},
		{nf.Up, "tcp 10.0.0.1:1000 198.51.100.2:80 syn", "tcp 192.0.2.1:1000 198.51.100.2:80"}, // the same place towards everybody
		{nf.Down, "tcp 198.51.100.3:80 192.0.2.1:1000 syn ack", "nothing"},                     // but not from everybody
		{nf.Down, "tcp 198.51.100.1:81 192.0.2.1:1000 ack", "nothing"},
		{nf.Up, "udp 10.0.0.1:1000 198.51.100.1:53", "udp 192.0.2.1:1000 198.51.100.1:53"},
		{nf.Down, "udp 198.51.100.1:53 192.0.2.1:1000", "udp 198.51.100.1:53 10.0.0.1:1000"},
		{nf.Down, "udp 198.51.100.1:53 192.0.2.1:1001", "nothing"},
		{nf.Up, "ping 10.0.0.1:7 198.51.100.1:0", "ping 192.0.2.1:7 198.51.100.1:0"},
		{nf.Down, "pong 198.51.100.1:0 192.0.2.1:7", "pong 198.51.100.1:0 10.0.0.1:7"},
		{nf.Down, "pong 198.51.100.1:0 192.0.2.1:8", "nothing"},
		{nf.Down, "ping 198.51.100.1:9 192.0.2.1:0", "nothing"},
		{nf.Down, "tcp 198.51.100.9:5 10.0.0.1:1000 syn", "nothing"}, // its own address is not known at out
		{nf.Down, "tcp 198.51.100.9:5 10.0.9.1:1000 syn", "tcp 198.51.100.9:5 10.0.9.1:1000"},
		{nf.Up, "tcp 10.0.9.1:1000 198.51.100.1:80 syn", "tcp 10.0.9.1:1000 198.51.100.1:80"}, // no client
		{nf.Up, "tcp 192.0.2.1:1000 198.51.100.1:80 syn", "nothing"},                          // nobody at in has such an address
		{nf.Up, "tcp 10.0.0.1:1000 192.0.2.1:8080 syn", "nothing"},                            // no way back in
		{nf.Up, "gre 10.0.0.1:0 198.51.100.1:0", "nothing"},
		{nf.Up, "udp 10.0.0.1:0 198.51.100.1:53", "nothing"},
		{nf.Up, "udp 10.0.0.1:68 255.255.255.255:67", "udp 10.0.0.1:68 255.255.255.255:67"}, {nf.Up, "udp 10.0.0.1:5353 224.0.0.251:5353", "udp 10.0.0.1:5353 224.0.0.251:5353"},
		{nf.Up, "udp 0.0.0.0:68 198.51.100.1:67", "udp 0.0.0.0:68 198.51.100.1:67"},
		{nf.Down, "tcp 198.51.100.9:5 192.0.2.1:8080 syn", "nothing"},                        // the client was not met yet: it is asked for
		{nf.Up, "tcp 10.0.0.5:80 198.51.100.8:5 ack", "tcp 192.0.2.1:8080 198.51.100.8:5"},   // from a forwarded port: it has the same place
		{nf.Down, "tcp 198.51.100.9:5 192.0.2.1:8080 syn", "tcp 198.51.100.9:5 10.0.0.5:80"}, // now
		{nf.Up, "tcp 10.0.0.5:80 198.51.100.9:5 syn ack", "tcp 192.0.2.1:8080 198.51.100.9:5"},
	} {
		frame := packet(t, c.given, []byte("some data"))
		got := l.give(c.d, frame)
		if says(got) != c.want {
			t.Errorf("%d: %v %s: %s: want %s", i, c.d, c.given, says(got), c.want)
		}
		if got != nil && !bytes.Equal(got, frame) {
			p := nf.Decode(got)
			if c.d == nf.Up && !bytes.Equal(got[:12], frame[:12]) || c.d == nf.Down && (!bytes.Equal(got[:6], clientMAC) || !bytes.Equal(got[6:12], frame[6:12])) || got[p.Network+8] != 9 || !bytes.Contains(got, []byte("some data")) {
				t.Errorf("%d: % x", i, got)
			}
		}
	}
}

// A packet for one station is translated, or stopped, in a frame for several, too: stations take it from there. What is for several passes.
func TestPacketsInFramesForSeveral(t *testing.T) {
	l := newLab(t, pool)
	one, some, all := []byte(serverMAC), []byte{1, 0, 0x5e, 0, 0, 9}, bytes.Repeat([]byte{0xff}, 6)
	for i, c := range []struct {
		d           nf.Dir
		to          []byte
		given, want string
	}{
		{nf.Up, all, "udp 10.0.0.1:1000 198.51.100.1:53", "udp 192.0.2.1:1000 198.51.100.1:53"},
		{nf.Up, some, "udp 10.0.0.1:1000 198.51.100.3:53", "udp 192.0.2.1:1000 198.51.100.3:53"},
		{nf.Up, all, "tcp 10.0.0.1:1000 198.51.100.3:80 syn", "tcp 192.0.2.1:1000 198.51.100.3:80"},
		{nf.Up, all, "udp 10.0.0.1:137 10.0.0.255:137", "udp 192.0.2.1:137 10.0.0.255:137"}, // it may be a network's broadcast address, or a station's
		{nf.Up, all, "udp 10.0.0.1:68 255.255.255.255:67", "udp 10.0.0.1:68 255.255.255.255:67"},
		{nf.Up, all, "udp 10.0.0.1:1000 192.0.2.1:8080", "nothing"},
		{nf.Up, one, "udp 10.0.0.1:1000 127.0.0.1:53", "nothing"},
		{nf.Up, one, "udp 10.0.0.1:1000 0.0.0.0:53", "nothing"},
		{nf.Up, one, "udp 10.0.0.1:1000 198.51.100.3:53", "udp 192.0.2.1:1000 198.51.100.3:53"},
		{nf.Down, all, "udp 198.51.100.9:5 10.0.0.1:1000", "nothing"},
		{nf.Down, some, "udp 198.51.100.9:5 10.0.0.3:1000", "nothing"},
		{nf.Down, all, "ping 198.51.100.9:5 10.0.0.3:0", "nothing"},
		{nf.Down, all, "udp 198.51.100.9:137 10.0.0.255:137", "nothing"},
		{nf.Down, all, "udp 198.51.100.9:67 255.255.255.255:68", "udp 198.51.100.9:67 255.255.255.255:68"},
	} {
		frame := packet(t, c.given, []byte("some data"))
		copy(frame, c.to)
		if got := says(l.give(c.d, frame)); got != c.want {
			t.Errorf("%d: %v %s in a frame to % x: %s: want %s", i, c.d, c.given, c.to, got, c.want)
		}
	}
}

// Two clients with one port, one client in two VLANs, and ports that are taken.
func TestPlacesInThePool(t *testing.T) {
	l := newLab(t, `{"pool": ["192.0.2.1"], "forward": [{"protocol": "udp", "port": 1000, "to": "10.0.0.9:1"}]}`)
	first := says(l.give(nf.Up, packet(t, "tcp 10.0.0.1:1000 198.51.100.1:80 syn", nil)))
	second := says(l.give(nf.Up, packet(t, "tcp 10.0.0.2:1000 198.51.100.1:80 syn", nil)))
	udp := says(l.give(nf.Up, packet(t, "udp 10.0.0.1:1000 198.51.100.1:80", nil)))
	if first != "tcp 192.0.2.1:1000 198.51.100.1:80" || second == first || !strings.HasPrefix(second, "tcp 192.0.2.1:") || strings.HasPrefix(udp, "udp 192.0.2.1:1000 ") {
		t.Errorf("%s, %s, %s", first, second, udp)
	}
	again := newLab(t, `{"pool": ["192.0.2.1"]}`) // a new instance: the one that comes first has its port again, the other the same as before
	if a, b := says(again.give(nf.Up, packet(t, "tcp 10.0.0.1:1000 198.51.100.1:80 ack", nil))), says(again.give(nf.Up, packet(t, "tcp 10.0.0.2:1000 198.51.100.1:80 ack", nil))); a != first || b != second {
		t.Errorf("again: %s, %s: want %s, %s", a, b, first, second)
	}
	v := l.give(nf.Up, packet(t, "tcp 10.0.0.1:1000 198.51.100.1:80 syn", nil, 42))
	if says(v) != first || nf.Decode(v).Tags[0] != 42 {
		t.Errorf("in a VLAN: %s", says(v))
	}
	if got := l.give(nf.Down, packet(t, "tcp 198.51.100.1:80 192.0.2.1:1000 syn ack", nil, 43)); got != nil {
		t.Errorf("from another VLAN: %s", says(got))
	}
	wide := newLab(t, `{"pool": ["192.0.2.1-192.0.2.16"]}`)
	seen := map[string]int{}
	for i := range 200 {
		a := strings.Fields(says(wide.give(nf.Up, packet(t, fmt.Sprintf("udp 10.0.0.%d:5 198.51.100.1:80", i), nil))))[1]
		b := strings.Fields(says(wide.give(nf.Up, packet(t, fmt.Sprintf("udp 10.0.0.%d:6 198.51.100.2:80", i), nil))))[1]
		addr, _, _ := strings.Cut(a, ":")
		if !strings.HasPrefix(b, addr+":") {
			t.Errorf("client %d has two addresses: %s, %s", i, a, b)
		}
		seen[addr]++
	}
	if len(seen) < 10 {
		t.Errorf("200 clients have only these of 16 addresses: %v", seen)
	}
}

// ICMP errors reach who sent what they are about, with its own addresses in them, however short they quote it.
func TestErrorsAreTranslatedInside(t *testing.T) {
	for _, given := range []string{"tcp 10.0.0.1:1000 198.51.100.1:80 syn", "udp 10.0.0.1:1000 198.51.100.1:80", "ping 10.0.0.1:7 198.51.100.1:0"} {
		l := newLab(t, pool)
		out := l.give(nf.Up, packet(t, given, []byte("data")))
		for _, quoted := range []int{28, 38, len(out) - 14} {
			quoted = min(quoted, len(out)-14)
			f := packet(t, "unreachable 203.0.113.9:0 192.0.2.1:0", out[14:14+quoted])
			got := l.give(nf.Down, f)
			want := packet(t, "unreachable 203.0.113.9:0 10.0.0.1:0", packet(t, given, []byte("data"))[14:14+quoted])
			copy(want, got[:12])
			if !bytes.Equal(got, want) {
				t.Errorf("%s, %d bytes quoted:\n% x\nwant\n% x", given, quoted, got, want)
			}
		}
		if got := l.give(nf.Down, packet(t, "unreachable 203.0.113.9:0 192.0.2.1:0", out[14:14+27])); got != nil {
			t.Errorf("too short a quotation: %s", says(got))
		}
		wrong := bytes.Clone(out)
		wrong[33]++ // about another server
		if got := l.give(nf.Down, packet(t, "unreachable 203.0.113.9:0 192.0.2.1:0", wrong[14:])); got != nil {
			t.Errorf("about nothing that was sent: %s", says(got))
		}
	}
	l := newLab(t, pool)
	l.give(nf.Up, packet(t, "udp 10.0.0.1:1000 198.51.100.1:80", nil))
	back := l.give(nf.Down, packet(t, "udp 198.51.100.1:80 192.0.2.1:1000", []byte("data")))
	got := l.give(nf.Up, packet(t, "unreachable 10.0.0.1:0 198.51.100.1:0", back[14:]))
	if want := "error 192.0.2.1 198.51.100.1 about udp 198.51.100.1:80 192.0.2.1:1000"; says(got) != want {
		t.Errorf("a client's error: %s: want %s", says(got), want)
	}
}

func TestFragments(t *testing.T) {
	l := newLab(t, pool)
	whole := packet(t, "udp 10.0.0.1:1000 198.51.100.1:80", make([]byte, 100))
	cut := func(f []byte, id byte) (first, later []byte) {
		first, later = bytes.Clone(f[:14+20+48]), append(bytes.Clone(f[:34]), f[14+20+48:]...)
		for i, part := range [][]byte{first, later} {
			part[19] = id
			binary.BigEndian.PutUint16(part[16:], uint16(len(part)-14))
			binary.BigEndian.PutUint16(part[20:], []uint16{0x2000, 6}[i])
			binary.BigEndian.PutUint16(part[24:], 0)
			binary.BigEndian.PutUint16(part[24:], uint16(^fold(sum(part[14:34]))))
		}
		return first, later
	}
	first, later := cut(whole, 1)
	if got := l.give(nf.Up, later); got != nil {
		t.Errorf("a later fragment without its first: %s", says(got))
	}
	a, b := l.give(nf.Up, first), l.give(nf.Up, later)
	joined := append(bytes.Clone(a), b[34:]...)
	binary.BigEndian.PutUint16(joined[16:], uint16(len(joined)-14))
	binary.BigEndian.PutUint16(joined[20:], 0)
	binary.BigEndian.PutUint16(joined[24:], 0)
	binary.BigEndian.PutUint16(joined[24:], uint16(^fold(sum(joined[14:34]))))
	if says(joined) != "udp 192.0.2.1:1000 198.51.100.1:80" {
		t.Errorf("up: %s", says(joined))
	}
	for i := range 2 * maxPieces {
		f := bytes.Clone(first)
		binary.BigEndian.PutUint16(f[18:], uint16(i+10))
		l.give(nf.Up, f)
	}
	if len(l.parts) != maxPieces {
		t.Errorf("%d packets in pieces are remembered: want %d", len(l.parts), maxPieces)
	}
	other := packet(t, "udp 10.0.0.2:1000 198.51.100.1:80", make([]byte, 100))
	first, later = cut(other, 1)
	if l.give(nf.Up, first) == nil || l.give(nf.Up, later) == nil {
		t.Error("another client has no room for its own")
	}
	l.tick(l.time.Add(partsLast + time.Second))
	if len(l.parts)+len(l.pieces) != 0 {
		t.Errorf("%d are remembered for ever", len(l.parts))
	}
}

// What the hardware makes of a checksum that was left to it is right after translation, too.
func TestMissingChecksums(t *testing.T) {
	for _, given := range []string{"tcp 10.0.0.1:1000 198.51.100.1:80 ack", "udp 10.0.0.1:1000 198.51.100.1:80"} {
		for i := range 2000 {
			f := packet(t, given, []byte(fmt.Sprint("data", i)))
			p := nf.Decode(f)
			at := p.Transport + map[uint8]int{nf.TCP: 16, nf.UDP: 6}[p.Proto]
			binary.BigEndian.PutUint16(f[at:], uint16(fold(sum(f[p.Network+12:p.Network+20])+uint32(p.Proto)+uint32(p.End-p.Transport))))
			for _, e := range []nf.End{nf.Source, nf.Target} {
				p.Rewrite(f, e, netip.AddrPortFrom(netip.AddrFrom4([4]byte{byte(i), byte(i >> 3), 255, byte(e)}), uint16(i*31)), true)
			}
			binary.BigEndian.PutUint16(f[at:], uint16(^fold(sum(f[p.Transport:p.End]))))
			if p := nf.Decode(f); !p.Intact(f) {
				t.Fatalf("%s: % x", given, f)
			}
		}
	}
}

func TestSessionsEnd(t *testing.T) {
	const open = "> tcp syn, < tcp syn ack seq=20 ack=6, > tcp ack ack=21"
	const closing = open + ", > tcp fin ack ack=21, < tcp fin ack seq=21, > tcp ack ack=22"
	for _, c := range []struct {
		conversation string
		lasts        time.Duration
	}{
		{"> tcp syn", silentOpening}, {"> tcp syn, < tcp syn ack, > tcp ack", silentEstablished}, {"> tcp syn, < tcp syn ack, > tcp fin ack", silentOpening},
		{closing, silentClosed}, {closing + ", < tcp syn seq=7", silentOpening}, {closing + ", > tcp syn", silentOpening}, {"> tcp ack, < tcp ack", silentEstablished}, {"> udp", silentUDP}, {"> udp, < udp", silentUDP},
		{"> tcp syn, < tcp rst ack seq=0 ack=6", silentClosed}, {open + ", > tcp rst", silentClosed}, {open + ", < tcp rst seq=21", silentClosed}, {open + ", < tcp rst seq=21, > tcp ack", silentEstablished},
		// What comes from out and does not know the client's numbers ends nothing.
		{"> tcp syn, < tcp rst ack seq=0 ack=7", silentEstablished}, {open + ", < tcp rst", silentEstablished}, {open + ", < tcp rst ack seq=20 ack=6", silentEstablished},
		{open + ", < tcp rst seq=70000", silentEstablished}, {open + ", < tcp rst seq=65556", silentOpening}, {open + ", < tcp rst seq=21, < tcp rst seq=9", silentClosed},
		{open + ", < tcp syn seq=9, < tcp rst ack seq=0 ack=9", silentEstablished}, {open + ", < tcp fin ack seq=99", silentEstablished},
		{open + ", > tcp fin ack ack=21, < tcp fin ack seq=99", silentOpening}, {open + ", > tcp fin ack ack=21, < tcp fin ack seq=99, > tcp ack ack=21", silentOpening},
	} {
		l := newLab(t, pool)
		for line := range strings.SplitSeq(c.conversation, ", ") {
			f := strings.Fields(line)
			d, text := nf.Up, fmt.Sprintf("%s 10.0.0.1:1000 198.51.100.1:80 %s", f[1], strings.Join(f[2:], " "))
			if f[0] == "<" {
				d, text = nf.Down, fmt.Sprintf("%s 198.51.100.1:80 192.0.2.1:1000 %s", f[1], strings.Join(f[2:], " "))
			}
			if l.give(d, packet(t, text, nil)) == nil {
				t.Fatalf("%s: %s does not pass", c.conversation, line)
			}
		}
		l.tick(l.time.Add(c.lasts))
		if len(l.table.inner) != 1 {
			t.Errorf("%s: it ends before %s", c.conversation, c.lasts)
		}
		l.tick(l.time.Add(c.lasts + 1))
		if n := len(l.table.inner) + len(l.table.outer) + len(l.table.mapped) + len(l.table.taken) + len(l.table.clients) + len(l.table.homes) + len(l.table.used); n != 0 {
			t.Errorf("%s: %d things are left after %s", c.conversation, n, c.lasts)
		}
	}
}

// A client that wants all gets its part; others get theirs.
func TestSessionsAreBounded(t *testing.T) {
	l := newLab(t, `{"pool": ["192.0.2.1"], "sessions_per_client": 100}`)
	f := packet(t, "udp 10.0.0.1:1000 198.51.100.1:80", nil)
	passed := 0
	for i := range 1000 {
		binary.BigEndian.PutUint16(f[34:], uint16(2000+i))
		if l.give(nf.Up, f) != nil {
			passed++
		}
	}
	if passed != 100 || l.table.full != 900 {
		t.Errorf("%d sessions: want 100; %d without room", passed, l.table.full)
	}
	if l.give(nf.Up, packet(t, "udp 10.0.0.2:1000 198.51.100.1:80", nil)) == nil {
		t.Error("another client gets none")
	}
}

// A client has the same part however many VLANs it says it is in, and what is learned about it is forgotten with its sessions.
func TestVLANsAreNoMore(t *testing.T) {
	l := newLab(t, `{"pool": ["192.0.2.1"], "sessions_per_client": 100}`)
	passed := 0
	for i := range 5000 {
		if l.give(nf.Up, packet(t, fmt.Sprintf("udp 10.0.0.1:%d 198.51.100.1:80", 1024+i%64), nil, uint16(1+i%4094))) != nil {
			passed++
		}
	}
	if passed != 100 || len(l.table.macs) > passed {
		t.Errorf("%d sessions, %d MAC addresses: want 100", passed, len(l.table.macs))
	}
	if l.give(nf.Up, packet(t, "udp 10.0.0.2:1000 198.51.100.1:80", nil)) == nil || l.table.macs[station{addr: netip.MustParseAddr("192.0.2.1")}] == [6]byte{} {
		t.Error("another client gets none, or is not known")
	}
	l.end()
	if n := len(l.table.inner) + len(l.table.clients) + len(l.table.macs); n != 0 {
		t.Errorf("%d things are left when all sessions are over", n)
	}
}

// Who is learned in many VLANs takes no place for good from the station that a port is forwarded to.
func TestStationsAreLearnedAgain(t *testing.T) {
	l := newLab(t, `{"pool": ["192.0.2.1"], "forward": [{"protocol": "tcp", "port": 8080, "to": "10.0.0.5:80"}], "sessions_per_client": 60000}`)
	for i := range maxStations + 100 {
		l.give(nf.Up, packet(t, "udp 10.0.0.5:1 198.51.100.1:53", nil, uint16(1+i%4094), uint16(1+i/4094)))
	}
	l.give(nf.Up, packet(t, "udp 10.0.0.5:1 198.51.100.1:53", nil))
	l.end()
	if len(l.stations) != maxStations || l.give(nf.Down, packet(t, "tcp 198.51.100.9:5 192.0.2.1:8080 syn", nil)) == nil {
		t.Errorf("%d stations are known, and not the one that was learned last", len(l.stations))
	}
}

// Fragments of a packet whose session has ended belong to nothing. The first one of a packet to a station that is not known yet is dropped.
func TestFragmentsWithoutASession(t *testing.T) {
	const both = `{"pool": ["192.0.2.1"], "forward": [{"protocol": "udp", "port": 53, "to": "10.0.0.5:53"}, {"protocol": "tcp", "port": 8080, "to": "10.0.0.5:80"}], "sessions_per_client": 1}`
	fragment := func(text string, offset uint16) []byte {
		f := packet(t, text, make([]byte, 24))
		if offset > 0 {
			binary.BigEndian.PutUint16(f[20:], offset)
		} else {
			f[20] = 0x20
		}
		return f
	}
	for _, text := range []string{"udp 198.51.100.9:5 192.0.2.1:53", "tcp 198.51.100.9:5 192.0.2.1:8080 syn"} {
		l := newLab(t, both)
		for range 3 {
			for _, offset := range []uint16{0, 6, 6} {
				if got := l.give(nf.Down, fragment(text, offset)); got != nil {
					t.Errorf("%s passes to a station that is not known: %s", text, says(got))
				}
			}
		}
		if n := len(l.table.all) + len(l.table.inner) + len(l.table.used) + len(l.parts); n != 0 {
			t.Errorf("%s: %d things are left", text, n)
		}
		l.give(nf.Up, packet(t, "udp 10.0.0.5:9 198.51.100.1:9", nil)) // it is met
		if l.give(nf.Down, fragment(text, 0)) == nil || l.give(nf.Down, fragment(text, 6)) == nil {
			t.Errorf("%s does not pass in pieces", text)
		}
		l = newLab(t, both)
		l.give(nf.Up, packet(t, "udp 10.0.0.5:9 198.51.100.1:9", nil))
		l.give(nf.Down, fragment(text, 0))
		for _, s := range append([]*session{}, l.table.all...) {
			l.table.remove(s)
			l.table.remove(s)
		}
		if l.give(nf.Down, fragment(text, 6)) != nil {
			t.Errorf("%s: a piece of an ended session passes", text)
		}
	}
}

// A flood of beginnings from forged addresses to a forwarded port takes nothing from the client, and who answers gets through.
func TestForgedBeginnings(t *testing.T) {
	l := newLab(t, `{"pool": ["192.0.2.1"], "forward": [{"protocol": "tcp", "port": 8080, "to": "10.0.0.5:80"}], "sessions_per_client": 2}`)
	l.give(nf.Up, packet(t, "udp 10.0.0.5:1 198.51.100.1:53", nil)) // it is met
	flood := func(n int) {
		f := packet(t, "tcp 203.0.113.1:1 192.0.2.1:8080 syn", nil)
		for i := range n {
			binary.BigEndian.PutUint16(f[28:], uint16(i))
			if l.give(nf.Down, f) == nil {
				t.Fatalf("beginning %d does not pass", i)
			}
		}
	}
	flood(10 * maxUnproven)
	if n := len(l.table.inner); n != maxUnproven+1 || len(l.table.outer) != n || len(l.table.waiting) != maxUnproven {
		t.Errorf("%d sessions, %d wait", n, len(l.table.waiting))
	}
	open := func(remote string) []byte {
		l.give(nf.Down, packet(t, "tcp "+remote+" 192.0.2.1:8080 syn", nil))
		l.give(nf.Up, packet(t, "tcp 10.0.0.5:80 "+remote+" syn ack", nil))
		f := packet(t, "tcp "+remote+" 192.0.2.1:8080 ack", nil)
		p := nf.Decode(f)
		binary.BigEndian.PutUint32(f[p.Transport+8:], 5+1) // what the client sent, and one
		p.Complete(f)
		return l.give(nf.Down, f)
	}
	for i := range 5 { // acknowledged blindly
		remote := fmt.Sprintf("198.51.100.6:%d", i+1)
		l.give(nf.Down, packet(t, "tcp "+remote+" 192.0.2.1:8080 syn", nil))
		l.give(nf.Up, packet(t, "tcp 10.0.0.5:80 "+remote+" syn ack", nil))
		l.give(nf.Down, packet(t, "tcp "+remote+" 192.0.2.1:8080 ack", nil))
	}
	if n := l.table.clients[netip.MustParseAddr("10.0.0.5")]; n != 1 {
		t.Errorf("%d sessions count as the client's: want the one that it began", n)
	}
	if open("198.51.100.7:7") == nil {
		t.Error("who answers does not get through")
	}
	flood(2 * maxUnproven)
	if l.table.outer[outer{nf.TCP, tags{}, netip.MustParseAddrPort("192.0.2.1:8080"), netip.MustParseAddrPort("198.51.100.7:7")}] == nil {
		t.Error("a session that is proven is pushed out")
	}
	if open("198.51.100.8:7") != nil {
		t.Error("the client has more sessions than it may")
	}
	l.end()
	if n := len(l.table.inner) + len(l.table.outer) + len(l.table.mapped) + len(l.table.taken) + len(l.table.clients) + len(l.table.homes) + len(l.table.used); n != 0 {
		t.Errorf("%d things are left when all sessions are over", n)
	}
}

// All sessions that there can be: what they take, and that all of them end.
func TestAllSessionsTakeBoundedMemory(t *testing.T) {
	l := newLab(t, `{"pool": ["192.0.2.1-192.0.2.8"], "sessions_per_client": 60000}`)
	f := packet(t, "udp 10.0.0.1:1000 198.51.100.1:80", nil)
	var before, after runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	for i := range maxSessions + 5000 {
		f[28] = byte(i >> 12)
		binary.BigEndian.PutUint16(f[34:], uint16(1024+i))
		l.give(nf.Up, f)
	}
	runtime.GC()
	runtime.ReadMemStats(&after)
	begin := time.Now()
	l.tick(l.time)
	t.Logf("%d sessions: %d MB; a tick takes %v", len(l.table.inner), (after.HeapAlloc-before.HeapAlloc)>>20, time.Since(begin))
	if len(l.table.inner) != maxSessions || after.HeapAlloc-before.HeapAlloc > 128<<20 {
		t.Errorf("%d sessions, %d bytes", len(l.table.inner), after.HeapAlloc-before.HeapAlloc)
	}
	l.end()
	if n := len(l.table.all) + len(l.table.inner) + len(l.table.outer) + len(l.table.mapped) + len(l.table.taken) + len(l.table.clients) + len(l.table.homes) + len(l.table.used); n != 0 {
		t.Errorf("%d things are left when all sessions are over", n)
	}
}

// The pool's addresses are there for who asks at out, by the MAC address of who uses them. Other ARP passes.
func TestARP(t *testing.T) {
	l := newLab(t, pool)
	arp := func(op uint16, from, to string, vlans ...uint16) []byte {
		f := packet(t, "gre 10.0.0.1:0 10.0.0.2:0", make([]byte, 28), vlans...)
		at := nf.Decode(f).Network
		copy(f[6:], serverMAC)
		binary.BigEndian.PutUint16(f[at-2:], etherARP)
		copy(f[at:], []byte{0, 1, 8, 0, 6, 4, 0, byte(op)})
		copy(f[at+8:], serverMAC)
		copy(f[at+14:], netip.MustParseAddr(from).AsSlice())
		copy(f[at+18:], make([]byte, 6))
		copy(f[at+24:], netip.MustParseAddr(to).AsSlice())
		return f
	}
	answered := func(mac net.HardwareAddr, vlans ...uint16) {
		t.Helper()
		if l.give(nf.Down, arp(1, "192.0.2.9", "192.0.2.1", vlans...)) != nil || len(l.sent[nf.Up]) != 1 {
			t.Fatalf("sent %v", l.sent)
		}
		got := l.sent[nf.Up][0]
		p := nf.Decode(got)
		at := 14 + 4*p.TagCount
		if p.Type != etherARP || p.TagCount != len(vlans) || !bytes.Equal(got[:6], serverMAC) || !bytes.Equal(got[6:12], mac) || got[at+7] != 2 || !bytes.Equal(got[at+8:at+14], mac) ||
			!bytes.Equal(got[at+14:at+18], []byte{192, 0, 2, 1}) || !bytes.Equal(got[at+18:at+24], serverMAC) || !bytes.Equal(got[at+24:at+28], []byte{192, 0, 2, 9}) {
			t.Errorf("% x: want %s", got, mac)
		}
	}
	// Before a client was met there is nobody to answer for: what a port is forwarded to is asked for, once in a second.
	for range 3 {
		if l.give(nf.Down, arp(1, "192.0.2.9", "192.0.2.1")) != nil || len(l.sent[nf.Up]) != 0 {
			t.Fatalf("sent %v", l.sent)
		}
		if n := len(l.sent[nf.Down]); n > 1 {
			t.Fatalf("%d questions", n)
		}
	}
	l.time = l.time.Add(2 * time.Second)
	l.give(nf.Down, packet(t, "tcp 198.51.100.9:5 192.0.2.1:8080 syn", nil))
	if len(l.sent[nf.Down]) != 1 || nf.Decode(l.sent[nf.Down][0]).Type != etherARP || l.sent[nf.Down][0][0] != 0xff {
		t.Fatalf("sent %v", l.sent)
	}
	answer := arp(2, "10.0.0.5", "0.0.0.0")
	other := arp(2, "10.0.0.6", "0.0.0.0") // to somebody else's probe
	if l.give(nf.Up, answer) != nil || l.give(nf.Up, other) == nil || l.give(nf.Up, answer) == nil {
		t.Error("the answer passes, or others do not")
	}
	if got := l.give(nf.Down, packet(t, "tcp 198.51.100.9:5 192.0.2.1:8080 syn", nil)); says(got) != "tcp 198.51.100.9:5 10.0.0.5:80" || !bytes.Equal(got[:6], serverMAC) {
		t.Errorf("behind the answer: %s", says(got))
	}
	answered(serverMAC) // which the answer named
	l.give(nf.Up, packet(t, "tcp 10.0.0.1:1000 198.51.100.1:80 syn", nil))
	answered(clientMAC)
	l.give(nf.Up, packet(t, "tcp 10.0.0.1:1000 198.51.100.1:80 syn", nil, 7))
	answered(clientMAC, 7)
	for _, f := range [][]byte{arp(1, "10.0.0.1", "10.0.0.2"), arp(2, "10.0.0.1", "10.0.0.2")} {
		for _, d := range []nf.Dir{nf.Up, nf.Down} {
			if !bytes.Equal(l.give(d, f), f) {
				t.Errorf("%v: % x does not pass", d, f)
			}
		}
	}
	if l.give(nf.Up, arp(1, "192.0.2.1", "10.0.0.2")) != nil {
		t.Error("a client says that it has an address of the pool")
	}
	l.tick(l.time.Add(time.Minute))
	if len(l.asked) != 0 {
		t.Error("questions are remembered for ever")
	}
}

// Clients with MAC addresses of their own have addresses of their own, as long as there are some.
func TestStationsHaveTheirOwn(t *testing.T) {
	l := newLab(t, `{"pool": ["192.0.2.1-192.0.2.8"]}`)
	seen := map[netip.Addr]bool{}
	for i := range 10 {
		f := packet(t, fmt.Sprintf("udp 10.0.0.%d:1000 198.51.100.1:80", i+1), nil)
		f[11] = byte(i)
		got := l.give(nf.Up, f)
		if got == nil {
			t.Fatalf("client %d has none", i)
		}
		seen[nf.Decode(got).Src] = true
		if i == 7 && len(seen) != 8 {
			t.Errorf("8 stations have %d addresses", len(seen))
		}
	}
	l.end()
	if len(l.table.homes)+len(l.table.used) != 0 {
		t.Error("clients that are gone have addresses")
	}
}

// A million frames that were a conversation until somebody changed bytes: nothing crashes, no client's address comes out, only packets of sessions go in, what
// leaves is as whole as it came, and memory is bounded.
func TestAMillionFrames(t *testing.T) {
	l := newLab(t, `{"pool": ["192.0.2.1-192.0.2.4"], "clients": ["10.0.0.0/24"], "forward": [{"protocol": "tcp", "port": 8080, "to": "10.0.0.5:80"}], "sessions_per_client": 3000}`)
	var seeds [][]byte
	for _, text := range []string{"tcp 10.0.0.1:1000 198.51.100.1:80 syn", "tcp 198.51.100.1:80 192.0.2.1:1000 ack", "tcp 198.51.100.1:80 192.0.2.1:8080 syn", "udp 10.0.0.5:53 198.51.100.1:53", "udp 198.51.100.1:53 192.0.2.2:53", "ping 10.0.0.3:1 198.51.100.1:0",
		"pong 198.51.100.1:0 192.0.2.3:1", "gre 10.0.0.1:0 198.51.100.1:0"} {
		f := packet(t, text, []byte("data that is there"))
		seeds = append(seeds, f, packet(t, text, []byte("data"), 42))
		seeds = append(seeds, packet(t, "unreachable 203.0.113.9:0 192.0.2.1:0", f[14:]), packet(t, "unreachable 10.0.0.1:0 198.51.100.1:0", f[14:]))
	}
	random := rand.New(rand.NewPCG(3, 4))
	intact := func(f []byte) bool { return f == nil || !strings.Contains(says(f), "damaged") }
	var before, after runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	most := 0
	for i := range 1_000_000 {
		f := bytes.Clone(seeds[random.IntN(len(seeds))])
		changes := random.IntN(4)
		for range changes {
			f[random.IntN(len(f))] = byte(random.Uint32())
		}
		if random.IntN(10) == 0 {
			f = f[:random.IntN(len(f)+1)]
		}
		if changes == 0 && random.IntN(2) == 0 { // other ports, whole
			p := nf.Decode(f)
			if p.Payload > 0 && p.Bad == "" {
				binary.BigEndian.PutUint16(f[p.Transport:], uint16(random.Uint32()))
				p.Complete(f)
			}
		}
		if len(f) < 14 {
			continue // no frame
		}
		d := nf.Dir(random.IntN(2))
		l.time = l.time.Add(time.Millisecond)
		got := l.give(d, f)
		p, q := nf.Decode(f), nf.Decode(got)
		switch {
		case got == nil || p.Type != nf.EtherIPv4:
		case d == nf.Up && !group(&p) && q.Src.Is4() && l.cfg.client(q.Src):
			t.Fatalf("a client's address comes out: % x", got)
		case d == nf.Down && !group(&p) && (l.cfg.client(p.Dst) || l.pool[q.Dst]):
			t.Fatalf("it goes in: % x as % x", f, got)
		case q.Part == nf.Whole && q.Bad == "" && (q.Proto == nf.TCP || q.Proto == nf.UDP) && intact(f) != intact(got):
			t.Fatalf("%s\nbecomes\n%s", says(f), says(got))
		}
		if i%1000 == 0 {
			l.tick(l.time)
			most = max(most, len(l.table.inner))
		}
	}
	runtime.GC()
	runtime.ReadMemStats(&after)
	if len(l.table.macs) > len(l.table.used) || len(l.stations) > maxStations || len(l.asked) > maxStations {
		t.Errorf("%d, %d, %d", len(l.table.macs), len(l.stations), len(l.asked))
	}
	t.Logf("%d up and %d down translated, %d and %d dropped, at most %d sessions, %d KB more memory", l.count.translated[0], l.count.translated[1], l.count.dropped[0], l.count.dropped[1], most, (int64(after.HeapAlloc)-int64(before.HeapAlloc))>>10)
	if after.HeapAlloc > before.HeapAlloc+64<<20 || l.count.translated[0] == 0 || l.count.translated[1] == 0 || most == 0 {
		t.Error("too much memory, or too little translated")
	}
	l.end()
	if n := len(l.table.inner) + len(l.table.outer) + len(l.table.mapped) + len(l.table.taken) + len(l.table.clients) + len(l.table.homes) + len(l.table.used); n != 0 {
		t.Errorf("%d things are left when all sessions are over", n)
	}
}

// Sequences of few kinds of frames, of stations that come, go and are not known, with what is remembered of them: counts agree at any moment, and nothing is
// used after its end.
func TestSequences(t *testing.T) {
	var frames [2][][]byte
	add := func(d nf.Dir, text string) {
		for _, vlans := range [][]uint16{nil, {7}} {
			f := packet(t, text, make([]byte, 24), vlans...)
			at := nf.Decode(f).Network
			first, later := bytes.Clone(f), bytes.Clone(f)
			first[at+6] = 0x20
			later[at+7] = 6
			frames[d] = append(frames[d], f, first, later)
		}
	}
	for _, end := range []string{"syn", "ack", "ack ack=6", "fin ack", "rst", "rst ack=6"} {
		add(nf.Down, "tcp 198.51.100.1:80 192.0.2.1:8080 "+end)
		add(nf.Up, "tcp 10.0.0.5:80 198.51.100.1:80 "+end)
	}
	add(nf.Down, "udp 198.51.100.1:80 192.0.2.1:53")
	add(nf.Down, "udp 198.51.100.2:80 192.0.2.1:53")
	add(nf.Up, "udp 10.0.0.5:53 198.51.100.1:80")
	add(nf.Up, "udp 10.0.0.6:53 198.51.100.1:80")
	random := rand.New(rand.NewPCG(5, 6))
	for range 300 {
		l := newLab(t, `{"pool": ["192.0.2.1"], "forward": [{"protocol": "tcp", "port": 8080, "to": "10.0.0.5:80"}, {"protocol": "udp", "port": 53, "to": "10.0.0.6:53"}], "sessions_per_client": 2}`)
		for range 300 {
			switch n := random.IntN(20); n {
			case 0:
				l.time = l.time.Add([]time.Duration{time.Second, silentClosed, silentOpening, silentEstablished}[random.IntN(4)])
				l.tick(l.time)
			default:
				d := nf.Dir(n % 2)
				l.give(d, frames[d][random.IntN(len(frames[d]))])
			}
			sessions, counted := 0, 0
			for i, s := range l.table.all {
				if s.at != i || s.gone || l.table.inner[s.inner] != s || l.table.outer[s.outer()] != s {
					t.Fatalf("session %d: %+v", i, s)
				}
				if !s.unproven {
					sessions++
				}
			}
			for _, n := range l.table.clients {
				counted += n
			}
			if counted != sessions || len(l.table.inner) != len(l.table.all) || len(l.table.outer) != len(l.table.all) || len(l.table.macs) > len(l.table.used) {
				t.Fatalf("%d sessions count, %d are counted, of %d, %d, %d; %d MAC addresses for %d", sessions, counted, len(l.table.all), len(l.table.inner), len(l.table.outer), len(l.table.macs), len(l.table.used))
			}
		}
	}
}

// Whatever comes is survived, and no client's address comes out.
func FuzzFrames(f *testing.F) {
	out := packet(f, "udp 10.0.0.1:1000 198.51.100.1:80", []byte("data"), 7)
	f.Add(out, packet(f, "unreachable 203.0.113.9:0 192.0.2.1:0", out[18:], 7))
	f.Add(packet(f, "tcp 10.0.0.1:1000 198.51.100.1:80 syn", nil), packet(f, "tcp 198.51.100.1:80 192.0.2.1:1000 syn ack", nil))
	f.Add(packet(f, "ping 10.0.0.5:7 198.51.100.1:0", nil), packet(f, "tcp 198.51.100.1:80 192.0.2.1:8080 syn", nil))
	f.Fuzz(func(t *testing.T, up, down []byte) {
		l := newLab(t, pool)
		for range 2 {
			if len(up) >= 14 {
				if p := nf.Decode(l.give(nf.Up, up)); p.Type == nf.EtherIPv4 && p.Src.Is4() && l.cfg.client(p.Src) && !group(&p) {
					t.Fatalf("% x: a client's address comes out", up)
				}
			}
			if len(down) >= 14 {
				l.give(nf.Down, down)
			}
		}
		l.end()
	})
}

func TestParseConfig(t *testing.T) {
	forward := func(s string) string {
		return `{"pool": ["192.0.2.1"], "clients": ["10.0.0.0/24"], "forward": [` + s + `]}`
	}
	for text, want := range map[string]string{
		``: "want at least one", `{}`: "want 1 to 256", `{"pool": ["x"]}`: "want an IPv4 address", `{"pool": ["2001:db8::1"]}`: "want an IPv4", `{"pool": ["192.0.2.2-192.0.2.1"]}`: "want an IPv4", `{"pool": "192.0.2.1"}`: "want a list",
		`{"pool": ["192.0.2.1", "192.0.2.1"]}`: "given twice", `{"pool": ["10.0.0.1-10.0.2.1"]}`: "more than 256", `{"pool": ["0.0.0.0"]}`: "want an IPv4", `{"pool": ["223.255.255.255-224.0.0.1"]}`: "want an IPv4",
		`{"pool": ["192.0.2.1"], "clients": ["2001:db8::/64"]}`: "want an IPv4 network", `{"pool": ["192.0.2.1"], "clients": ["10.0.0.1"]}`: "no '/'", `{"pool": ["192.0.2.1"], "sessions_per_client": 0}`: "want 1 to 60000",
		forward(`{"protocol": "sctp", "port": 1, "to": "10.0.0.5:80"}`): "want tcp or udp", forward(`{"protocol": "tcp", "to": "10.0.0.5:80"}`): "port: want", forward(`{"protocol": "tcp", "port": 1, "to": "10.0.0.5:0"}`): "want an IPv4 address and a port",
		forward(`{"protocol": "tcp", "port": 1, "to": "10.0.1.5:80"}`): "want one of the clients", forward(`{"protocol": "tcp", "port": 1, "to": "192.0.2.1:80"}`): "want one of the clients", forward(`{"protocol": "tcp", "port": 1, "address": "192.0.2.2", "to": "10.0.0.5:80"}`): "want one of the pool",
		forward(`{"protocol": "tcp", "port": 1, "to": "10.0.0.5:80"}, {"protocol": "tcp", "port": 1, "to": "10.0.0.6:80"}`): "given twice", `{"pool": ["192.0.2.1"], "x": 1}`: "unknown field", `{"pool": ["192.0.2.1"]} {}`: "more than one", `{`: "unexpected",
	} {
		if _, err := parseConfig([]byte(text)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v: want %q", text, err, want)
		}
	}
	cfg, err := parseConfig([]byte(`{"pool": ["192.0.2.1-192.0.2.3", "192.0.2.9"], "clients": ["10.0.0.7/24"]}`))
	must(t, err)
	if len(cfg.Pool) != 4 || cfg.Clients[0].String() != "10.0.0.0/24" || cfg.Sessions != defaultSessions || !cfg.client(netip.MustParseAddr("10.0.0.1")) || cfg.client(netip.MustParseAddr("10.0.1.1")) {
		t.Errorf("%+v", cfg)
	}
}

// BenchmarkTranslate a full-sized frame of a session, without sockets.
func BenchmarkTranslate(b *testing.B) {
	cfg, err := parseConfig([]byte(pool))
	must(b, err)
	x := newTranslator(&cfg, time.Now, func(nf.Dir, nf.Frame) {})
	f := nf.NewFrame(packet(b, "tcp 10.0.0.1:1000 198.51.100.1:80 ack", make([]byte, 1448)))
	b.ReportAllocs()
	for b.Loop() {
		x.handle(nf.Up, f)
	}
}

// told is what the switch is told.
type told struct {
	pass  func(nf.Dir)
	lines []string // of rewrites and what is taken back, each when it changes
}

func (s *told) PassAt(d nf.Dir, _ []byte) {
	if s.pass != nil {
		s.pass(d)
	}
}

func (s *told) say(text string) {
	if n := len(s.lines); n == 0 || s.lines[n-1] != text {
		s.lines = append(s.lines, text)
	}
}

func (s *told) RewriteAt(d nf.Dir, frame []byte, r nf.Rewrite) {
	s.say(fmt.Sprintf("%s %s: %s %s %s", d, says(frame), map[nf.End]string{nf.Source: "src", nf.Target: "dst"}[r.End], r.To, net.HardwareAddr(r.MAC[:])))
}

func (s *told) JudgeFlowAt(d nf.Dir, f nf.Flow) {
	s.say(fmt.Sprintf("judge %s %s %s %d", d, f.Src, f.Dst, f.VLAN))
}

// take what was said.
func (s *told) take() string {
	defer func() { s.lines = nil }()
	return strings.Join(s.lines, "; ")
}

// What the function translates the switch is told to translate in the same way, as soon as that is worth it, each direction for itself.
func TestTranslatedFlowsAreSettled(t *testing.T) {
	l := newLab(t, `{"pool": ["192.0.2.1"], "clients": ["10.0.0.0/24"], "forward": [{"protocol": "udp", "port": 7000, "to": "10.0.0.9:7000"}]}`)
	told := &told{}
	l.settler = told
	give := func(d nf.Dir, n int, text string, vlans ...uint16) string {
		t.Helper()
		for range n {
			if l.give(d, packet(t, text, []byte("data"), vlans...)) == nil {
				t.Fatalf("%s does not come out", text)
			}
		}
		return told.take()
	}
	check := func(what, got, want string) {
		t.Helper()
		if got != want {
			t.Errorf("%s: the switch is told %q, want %q", what, got, want)
		}
	}
	const up, down = "tcp 10.0.0.1:1000 198.51.100.1:80 ", "tcp 198.51.100.1:80 192.0.2.1:1000 "
	const client = "02:00:00:00:00:01" // down packets are made with its address as their source, so their destination is another
	const upTold, downTold = "up tcp 10.0.0.1:1000 198.51.100.1:80: src 192.0.2.1:1000 00:00:00:00:00:00", "down tcp 198.51.100.1:80 192.0.2.1:1000: dst 10.0.0.1:1000 " + client
	check("half a connection", give(nf.Up, 20, up+"ack"), "")
	check("the other half", give(nf.Down, settleAfter, down+"ack"), "")
	check("a packet more", give(nf.Down, 1, down+"ack"), downTold)
	check("the client's", give(nf.Up, settleAfter, up+"ack"), "")
	check("one more of the client", give(nf.Up, 1, up+"ack"), upTold)
	s := l.table.inner[inner{nf.TCP, tags{}, netip.MustParseAddrPort("10.0.0.1:1000"), netip.MustParseAddrPort("198.51.100.1:80")}]
	if got, want := s.lasts(), silentEstablished+settledLasts; got != want {
		t.Errorf("a settled connection lasts %s, want %s", got, want)
	}
	check("a reset", give(nf.Down, 1, down+"rst seq=7777"), "judge up 10.0.0.1:1000 198.51.100.1:80 -1")
	if s.established() || s.reset != likely {
		t.Error("a reset whose number cannot be known counts for nothing")
	}
	check("the client after a forged reset", give(nf.Up, settleAfter+1, up+"ack"), upTold)
	if s.reset != none {
		t.Error("the client went on: the reset was forged")
	}
	straight := packet(t, down+"ack", nil)
	copy(straight, clientMAC) // the switch may have been given one with another destination
	for range settleAfter + 1 {
		l.give(nf.Down, straight)
	}
	check("a packet to the client's MAC address", told.take(), downTold)
	const judgeDown = "judge down 198.51.100.1:80 192.0.2.1:1000 -1"
	moved := packet(t, up+"ack", nil)
	moved[11] = 9 // its source is another
	l.give(nf.Up, moved)
	check("a client with another MAC address", told.take(), judgeDown+"; "+upTold)
	check("the client where it was before", give(nf.Up, 1, up+"ack"), upTold)
	l.give(nf.Up, moved)
	check("a client that changes it all the time", told.take(), upTold)
	check("the client where it was before, again", give(nf.Up, 1, up+"ack"), upTold)
	check("what is sent there", give(nf.Down, settleAfter+1, down+"ack"), downTold)
	check("the client's reset", give(nf.Up, 3, up+"rst"), judgeDown)
	check("behind it", give(nf.Down, settleAfter, down+"ack"), "")
	check("the client's end", give(nf.Up, 3, up+"fin ack"), "")
	check("behind it", give(nf.Down, 20, down+"ack"), "")
	give(nf.Down, 1, down+"fin ack seq=50")
	give(nf.Up, 1, up+"ack ack=55")
	if got := s.lasts(); got != silentClosed {
		t.Errorf("a closed connection lasts %s, want %s", got, silentClosed)
	}

	check("datagrams in a VLAN", give(nf.Up, settleAfter+1, "udp 10.0.0.2:5 198.51.100.1:6", 7), "up udp 10.0.0.2:5 198.51.100.1:6: src 192.0.2.1:5 00:00:00:00:00:00")
	v := l.table.inner[inner{nf.UDP, tags{7}, netip.MustParseAddrPort("10.0.0.2:5"), netip.MustParseAddrPort("198.51.100.1:6")}]
	if got := v.flow(nf.Down); got.VLAN != 7 || got.Src != v.inner.remote || got.Dst != v.pool {
		t.Errorf("at out the session is %+v to the switch", got)
	}
	check("datagrams within two VLANs", give(nf.Up, 30, "udp 10.0.0.2:5 198.51.100.1:6", 7, 8), "")
	v = l.table.inner[inner{nf.UDP, tags{7, 8}, netip.MustParseAddrPort("10.0.0.2:5"), netip.MustParseAddrPort("198.51.100.1:6")}]
	if got := v.lasts(); got != silentUDP {
		t.Errorf("a session that the switch cannot translate lasts %s, want %s", got, silentUDP)
	}
	check("queries", give(nf.Up, 30, "udp 10.0.0.2:5 198.51.100.1:53"), "")
	check("echo", give(nf.Up, 30, "ping 10.0.0.2:5 198.51.100.1:0"), "")
	l.give(nf.Up, packet(t, "udp 10.0.0.9:7000 198.51.100.9:1", nil)) // its place is known now
	check("what begins at out is not proven", give(nf.Down, 30, "udp 198.51.100.2:1 192.0.2.1:7000"), "")
	check("nor is its answer", give(nf.Up, 30, "udp 10.0.0.9:7000 198.51.100.2:1"), "")
}

// A missing checksum may be that of a packet within another: the outer one is whole, and stays right. The switch could not tell which is missing.
func TestChecksumsMissingInATunnel(t *testing.T) {
	l := newLab(t, `{"pool": ["192.0.2.1"], "clients": ["10.0.0.0/24"]}`)
	told := &told{}
	l.settler = told
	give := func(d nf.Dir, text string, within int) string {
		t.Helper()
		f := packet(t, text, make([]byte, 100))
		p := nf.Decode(f)
		raw := append(make([]byte, 10), f...) // struct virtio_net_hdr
		raw[0] = 1                            // VIRTIO_NET_HDR_F_NEEDS_CSUM
		binary.NativeEndian.PutUint16(raw[6:], uint16(p.Transport+within))
		for range settleAfter + 1 {
			l.sent = [2][][]byte{}
			l.handle(d, nf.Received(raw))
		}
		return says(l.sent[d][0])
	}
	const up, down = "udp 10.0.0.1:1000 198.51.100.1:4789", "udp 198.51.100.1:4789 192.0.2.1:1000"
	if got, want := give(nf.Up, up, 58), "udp 192.0.2.1:1000 198.51.100.1:4789"; got != want {
		t.Errorf("a client's tunnel: %q, want %q", got, want)
	}
	if got, want := give(nf.Down, down, 58), "udp 198.51.100.1:4789 10.0.0.1:1000"; got != want {
		t.Errorf("a tunnel to a client: %q, want %q", got, want)
	}
	if got := told.take(); got != "" {
		t.Errorf("a tunnel: the switch is told %q", got)
	}
	give(nf.Up, up, 0)
	if got := told.take(); got == "" {
		t.Error("a flow whose own checksum is missing is not settled")
	}
}

// What is settled passes as it is, whatever the frame's MAC addresses are: the switch knows a flow by IP, and gives it to us no more.
func TestOnlyWhatIsNeverTranslatedIsSettled(t *testing.T) {
	l := newLab(t, `{"pool": ["192.0.2.1"], "clients": ["10.0.0.0/24"], "forward": [{"protocol": "tcp", "port": 80, "to": "10.0.0.9:80"}]}`)
	type flow struct {
		d        nf.Dir
		src, dst string
	}
	settled := map[flow]bool{}
	var now flow
	told := &told{}
	l.settler = told
	told.pass = func(d nf.Dir) {
		if now.d != d {
			t.Errorf("%+v is settled in direction %s", now, d)
		}
		settled[now] = true
	}
	places := []string{"10.0.0.1", "10.0.0.9", "10.0.1.1", "192.0.2.1", "198.51.100.1", "224.0.0.9", "255.255.255.255"}
	each := func(look func(f flow, passed bool)) {
		for _, d := range []nf.Dir{nf.Up, nf.Down} {
			for _, src := range places {
				for _, dst := range places {
					for _, proto := range []string{"udp", "tcp"} {
						for mac := range 4 {
							now = flow{d, src, dst}
							frame := packet(t, proto+" "+src+":1000 "+dst+":80"+map[bool]string{true: " ack"}[proto == "tcp"], nil)
							frame[0] |= byte(mac & 1)
							frame[6] |= byte(mac >> 1)
							look(now, bytes.Equal(l.give(d, frame), frame))
						}
					}
				}
			}
		}
	}
	each(func(flow, bool) {})
	each(func(f flow, passed bool) {
		if settled[f] && !passed {
			t.Errorf("%+v is settled, and does not pass as it is", f)
		}
	})
	for f, want := range map[flow]bool{
		{nf.Up, "10.0.1.1", "198.51.100.1"}: true, {nf.Down, "198.51.100.1", "10.0.1.1"}: true, {nf.Up, "10.0.0.1", "224.0.0.9"}: true,
		{nf.Up, "10.0.0.1", "198.51.100.1"}: false, {nf.Down, "198.51.100.1", "192.0.2.1"}: false, {nf.Down, "198.51.100.1", "10.0.0.1"}: false, {nf.Up, "10.0.1.1", "192.0.2.1"}: false,
	} {
		if settled[f] != want {
			t.Errorf("%+v: settled %t, want %t", f, settled[f], want)
		}
	}
}
