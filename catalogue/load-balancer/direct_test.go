package main

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"net"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"weir.dev/weir/catalogue/nf"
)

// directly are services of both families and protocols whose targets answer by themselves, and one whose answers come back.
const directly = `{"services": {
	"web": {"address": "10.0.0.100", "protocol": "tcp", "port": 80, "return": "direct", "targets": [{"address": "10.0.1.1", "mac": "02:00:00:00:01:01"}, {"address": "10.0.1.2", "port": 80, "mac": "02:00:00:00:01:02"}]},
	"web6": {"address": "2001:db8::100", "protocol": "tcp", "port": 80, "return": "direct", "targets": [{"address": "2001:db8::1:1", "mac": "02:00:00:00:01:01"}]},
	"dns": {"address": "10.0.0.100", "protocol": "udp", "port": 53, "return": "direct", "targets": [{"address": "10.0.1.1", "mac": "02:00:00:00:01:01"}, {"address": "10.0.1.2", "mac": "02:00:00:00:01:02"}]},
	"dns6": {"address": "2001:db8::100", "protocol": "udp", "port": 53, "return": "direct", "targets": [{"address": "2001:db8::1:1", "mac": "02:00:00:00:01:01"}]},
	"other": {"address": "10.0.0.101", "protocol": "tcp", "port": 80, "targets": [{"address": "10.0.1.1", "port": 80, "mac": "02:00:00:00:01:01"}]}}, "connections": 4096}`

// targetMAC is the MAC address that a packet of a client leaves with; the rest of it has to be as it came. nil: it does not come out.
func (l *lab) targetMAC(frame []byte) net.HardwareAddr {
	l.t.Helper()
	out := l.give(nf.Up, frame)
	if out == nil {
		return nil
	}
	if len(out) != len(frame) || !bytes.Equal(out[6:], frame[6:]) {
		l.t.Errorf("more than the MAC address changed:\n% x: was\n% x", out, frame)
	}
	return net.HardwareAddr(out[:6])
}

// Packets reach targets as clients sent them, whatever their checksums are like; answers pass as they come, and so does what is between a client and a target.
func TestDirectReturn(t *testing.T) {
	l := newLab(t, directly)
	mac := func(n byte) net.HardwareAddr { return net.HardwareAddr{2, 0, 0, 0, 1, n} }
	for _, tt := range []struct{ proto, client, virtual string }{
		{"tcp", "10.0.0.1:1000", "10.0.0.100:80"}, {"tcp", "[2001:db8::9]:1000", "[2001:db8::100]:80"}, {"udp", "10.0.0.1:1000", "10.0.0.100:53"}, {"udp", "[2001:db8::9]:1000", "[2001:db8::100]:53"},
	} {
		flags := map[string][2]string{"tcp": {" syn", " syn ack"}}[tt.proto]
		given := packet(t, tt.proto+" "+tt.client+" "+tt.virtual+flags[0], []byte("data"))
		to := l.targetMAC(given)
		if !bytes.Equal(to, mac(1)) && !bytes.Equal(to, mac(2)) {
			t.Errorf("%s %s goes to %s", tt.proto, tt.virtual, to)
		}
		for _, damage := range []int{len(given) - 1, len(given) - 6} { // data, and with four bytes of them the checksum's end
			bad := bytes.Clone(given)
			bad[damage] ^= 0x55
			if got := l.targetMAC(bad); !bytes.Equal(got, to) {
				t.Errorf("%s %s: damaged, it goes to %s, want %s", tt.proto, tt.virtual, got, to)
			}
		}
		before := l.count.answers
		answer := packet(t, tt.proto+" "+tt.virtual+" "+tt.client+flags[1], []byte("answer"))
		if out := l.give(nf.Down, answer); !bytes.Equal(out, answer) || l.count.answers != before+1 {
			t.Errorf("an answer that comes here: % x, %d of them counted", out, l.count.answers-before)
		}
		beside := packet(t, tt.proto+" "+tt.client+" "+map[bool]string{true: "10.0.1.2:53", false: "[2001:db8::1:1]:80"}[strings.HasPrefix(tt.client, "10")]+flags[0], nil)
		if out := l.give(nf.Up, beside); !bytes.Equal(out, beside) {
			t.Errorf("%s %s: a target cannot be reached beside the service", tt.proto, tt.virtual)
		}
	}
	// One target's port may serve a service whose answers come back, too.
	if to := l.target("tcp 10.0.0.1:1000 10.0.0.101:80 syn"); to.String() != "10.0.1.1:80" {
		t.Errorf("the other service's target is %s", to)
	}
	if out := l.give(nf.Down, packet(t, "tcp 10.0.1.1:80 10.0.0.1:1000 syn ack", nil)); !bytes.Equal(out, packet(t, "tcp 10.0.0.101:80 10.0.0.1:1000 syn ack", nil)) {
		t.Errorf("the other service's answer: % x", out)
	}
	if l.targetMAC(packet(t, "tcp 10.0.0.1:1000 10.0.0.100:81 syn", nil)) != nil {
		t.Error("a port of no service is open")
	}
}

// The function hears only the clients of these connections, and still knows when they are open: it settles them, keeps them, and forgets the others.
func TestDirectConnections(t *testing.T) {
	l := newLab(t, directly)
	var said []string
	l.settle = func(d nf.Dir, _ []byte, r nf.Rewrite) {
		said = append(said, fmt.Sprintf("%s %d %s %s", d, r.End, r.To, net.HardwareAddr(r.MAC[:])))
	}
	const up = "tcp 10.0.0.1:1000 10.0.0.100:80 "
	phase := func() phase {
		all := l.table.list
		if len(all) != 1 {
			t.Fatalf("%d connections", len(all))
		}
		return all[0].phase
	}
	give := func(n int, text string) net.HardwareAddr {
		t.Helper()
		said = nil
		var to net.HardwareAddr
		for range n {
			if to = l.targetMAC(packet(t, text, nil)); to == nil {
				t.Fatalf("%s does not come out", text)
			}
		}
		return to
	}
	first := give(3, up+"syn")
	if phase() != opening {
		t.Error("what only asks is open")
	}
	if give(1, up+"ack"); phase() != open {
		t.Error("a connection whose client goes on is not open")
	}
	give(settleAfter-1, up+"ack")
	if give(1, up+"ack"); !slices.Equal(said, []string{fmt.Sprintf("up %d 10.0.0.100:80 %s", nf.Target, first)}) {
		t.Errorf("the switch is told %q", said)
	}
	// Its target drains and goes down: it is not broken off. A new connection of the same port goes elsewhere.
	is := map[string]string{"02:00:00:00:01:01": "10.0.1.1", "02:00:00:00:01:02": "10.0.1.2"}
	l.turn(is[first.String()], true)
	if to := give(1, up+"ack"); !bytes.Equal(to, first) {
		t.Error("an open connection moved")
	}
	if to := give(1, up+"syn"); bytes.Equal(to, first) {
		t.Error("a new connection goes to a target that is down")
	}
	l.turn(is[first.String()], false)
	if give(1, up+"fin ack"); phase() != closing {
		t.Error("a connection that ends is not closing")
	}
	l.time = l.time.Add(silence[closing] + time.Second)
	if l.tick(l.time); len(l.table.all) != 0 {
		t.Error("it is not forgotten")
	}
	// One that is older than this instance is open behind its second packet, and a single packet is forgotten soon.
	give(1, up+"ack")
	if phase() != opening {
		t.Error("one packet opens a connection")
	}
	if give(1, up+"ack"); phase() != open {
		t.Error("two packets of an old connection do not open it")
	}
	l.table.remove(l.table.list[0])
	if give(1, "udp 10.0.0.1:1000 10.0.0.100:53"); phase() != opening {
		t.Error("one datagram opens a connection")
	}
	to := give(1, "udp 10.0.0.1:1000 10.0.0.100:53")
	if phase() != datagrams || len(said) > 0 {
		t.Errorf("the second datagram: phase %d, the switch is told %q", phase(), said)
	}
	l.turn(is[to.String()], true)
	if again := give(1, "udp 10.0.0.1:1000 10.0.0.100:53"); bytes.Equal(again, to) {
		t.Error("a datagram goes to a target that is down")
	}
}

// A new instance takes connections over, whether answers came back in the former one or not.
func TestDirectConnectionsAreHandedOver(t *testing.T) {
	l := newLab(t, directly)
	to := map[string]net.HardwareAddr{}
	for i := range 50 {
		text := fmt.Sprintf("tcp 10.0.0.1:%d 10.0.0.100:80 ", 1000+i)
		to[text] = l.targetMAC(packet(t, text+"syn", nil))
		l.targetMAC(packet(t, text+"ack", nil))
	}
	state := l.export(direct, l.time)
	next := newLab(t, strings.Replace(directly, `{"address": "10.0.1.1", "mac": "02:00:00:00:01:01"}, {"address": "10.0.1.2", "port": 80,`, `{"address": "10.0.1.1", "mac": "02:00:00:00:01:01", "drain": true}, {"address": "10.0.1.2",`, 1))
	if taken, left, err := next.restore(direct, state, next.time); taken != 50 || left != 0 || err != nil {
		t.Fatalf("%d taken, %d left, %v", taken, left, err)
	}
	for text, was := range to {
		if is := next.targetMAC(packet(t, text+"ack", nil)); !bytes.Equal(is, was) {
			t.Errorf("%s: %s, was %s", text, is, was)
		}
	}
}

// Fragments follow their first one, and errors of routers on the way to a client reach the target of its connection, all as they came.
func TestDirectFragmentsAndErrors(t *testing.T) {
	l := newLab(t, directly)
	whole := packet(t, "udp 10.0.0.1:1000 10.0.0.100:53", bytes.Repeat([]byte("x"), 64))
	begin, rest := bytes.Clone(whole[:14+20+40]), slices.Concat(whole[:34], whole[34+40:])
	begin[17], begin[20] = 60, 0x20
	rest[17], rest[21] = byte(len(rest)-14), 5
	if l.targetMAC(rest) != nil {
		t.Error("a later fragment passed before its first one")
	}
	if first, later := l.targetMAC(begin), l.targetMAC(rest); first == nil || !bytes.Equal(first, later) {
		t.Errorf("the first fragment goes to %s, a later one to %s", first, later)
	}
	for _, tt := range []struct {
		client, virtual, router string
		proto, at               byte
		head                    []byte
	}{
		{"10.0.0.1:1000", "10.0.0.100:80", "10.0.0.254:1", 1, 23, []byte{3, 4, 0, 0, 0, 0, 5, 0}},
		{"[2001:db8::9]:1000", "[2001:db8::100]:80", "[2001:db8::254]:1", 58, 20, []byte{2, 0, 0, 0, 0, 0, 5, 0}},
	} {
		to := l.targetMAC(packet(t, "tcp "+tt.client+" "+tt.virtual+" syn", nil))
		failure := packet(t, "udp "+tt.router+" "+netip.AddrPortFrom(netip.MustParseAddrPort(tt.virtual).Addr(), 8).String(), packet(t, "tcp "+tt.virtual+" "+tt.client+" ack", nil)[14:])
		upper := len(failure) - len(packet(t, "tcp "+tt.virtual+" "+tt.client+" ack", nil)[14:]) - 8
		failure[tt.at] = tt.proto
		copy(failure[upper:], tt.head)
		if got := l.targetMAC(failure); !bytes.Equal(got, to) {
			t.Errorf("a router's error about %s goes to %s, want %s", tt.virtual, got, to)
		}
		other := bytes.Clone(failure)
		other[upper+8+upper-14+3] ^= 1 // of another port of the client: the quoted headers are as long as those before
		if got := l.targetMAC(other); got != nil {
			t.Errorf("an error about no connection goes to %s", got)
		}
	}
}

// A target with the virtual address that tells of it is not heard through the function; its other ARP and neighbour discovery are.
func TestTargetsMustNotTellOfASharedAddress(t *testing.T) {
	l := newLab(t, directly)
	all, own := bytes.Repeat([]byte{0xff}, 6), []byte{2, 0, 0, 0, 1, 1}
	arp := func(op byte, sender, target string, tags ...byte) []byte {
		s, d := netip.MustParseAddr(sender).As4(), netip.MustParseAddr(target).As4()
		return slices.Concat(all, own, tags, []byte{8, 6, 0, 1, 8, 0, 6, 4, 0, op}, own, s[:], make([]byte, 6), d[:])
	}
	nd := func(kind byte, src, target string) []byte {
		s, d := netip.MustParseAddr(src).As16(), netip.MustParseAddr(target).As16()
		m := append([]byte{kind, 0, 0, 0, 0x60, 0, 0, 0}, d[:]...)
		if kind == routerAsk {
			m = m[:8]
		}
		m = append(append(m, 2, 1), own...)
		return slices.Concat([]byte{0x33, 0x33, 0, 0, 0, 1}, own, []byte{0x86, 0xdd, 0x60, 0, 0, 0, 0, byte(len(m)), 58, 255}, s[:], []byte{0xff, 2, 15: 1}, m)
	}
	for _, tt := range []struct {
		what  string
		frame []byte
		told  bool
	}{
		{"ARP request", arp(1, "10.0.1.1", "10.0.0.1"), false},
		{"ARP reply", arp(2, "10.0.1.1", "10.0.0.1"), false},
		{"ARP for an address that is not shared", arp(2, "10.0.0.101", "10.0.0.1"), false},
		{"ARP request for the shared address", arp(1, "10.0.1.1", "10.0.0.100"), false},
		{"ARP request from the shared address", arp(1, "10.0.0.100", "10.0.0.1"), true},
		{"ARP reply for the shared address", arp(2, "10.0.0.100", "10.0.0.1"), true},
		{"gratuitous ARP for the shared address, with a priority", arp(1, "10.0.0.100", "10.0.0.100", 0x81, 0, 0xe0, 0), true},
		{"advertisement", nd(neighbourTell, "2001:db8::1:1", "2001:db8::1:1"), false},
		{"advertisement of the shared address", nd(neighbourTell, "2001:db8::1:1", "2001:db8::100"), true},
		{"solicitation", nd(neighbourAsk, "2001:db8::1:1", "2001:db8::9"), false},
		{"solicitation from the shared address", nd(neighbourAsk, "2001:db8::100", "2001:db8::9"), true},
		{"router solicitation", nd(routerAsk, "2001:db8::1:1", "::"), false},
		{"router solicitation from the shared address", nd(routerAsk, "2001:db8::100", "::"), true},
	} {
		before := l.count.claims
		out := l.give(nf.Down, tt.frame)
		if told := l.count.claims > before; told != tt.told || (out == nil) != tt.told || out != nil && !bytes.Equal(out, tt.frame) {
			t.Errorf("%s: dropped %t, counted %t: want %t", tt.what, out == nil, told, tt.told)
		}
	}
}

func TestParseDirect(t *testing.T) {
	of := func(target, more string) string {
		return `{"services": {"web": {"address": "10.0.0.100", "protocol": "tcp", "port": 80, "return": "direct", "targets": [` + target + `]}}` + more + `}`
	}
	const health = `, "health": {"addresses": ["10.0.1.9/24"], "gateways": ["10.0.1.254"]}`
	for text, want := range map[string]string{
		of(`{"address": "10.0.1.1"}`, health):                                               "",
		of(`{"address": "10.0.1.1", "port": 80}`, health):                                   "",
		of(`{"address": "10.7.0.1", "mac": "02:00:00:00:00:01"}`, ""):                       "",
		of(`{"address": "10.0.1.1", "port": 8080}`, health):                                 "target 10.0.1.1: port 8080: with return: direct a target gets packets as clients sent them: want the service's port 80, or none",
		of(`{"address": "10.7.0.1"}`, health):                                               "target 10.7.0.1: it is behind a router",
		of(`{"address": "10.0.1.1"}, {"address": "10.0.1.1"}`, health):                      "target 10.0.1.1 is given twice",
		of(`{"address": "10.0.0.100", "mac": "02:00:00:00:00:01"}`, ""):                     "it is a virtual address",
		strings.Replace(of(`{"address": "10.0.1.1"}`, health), `"direct"`, `"dsr"`, 1):      `return "dsr": want function or direct`,
		strings.Replace(of(`{"address": "10.0.1.1"}`, health), `80, "`, `80, "by": 1,"`, 1): "by",
	} {
		_, err := parseConfig([]byte(text))
		if want == "" && err != nil || want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
			t.Errorf("%s: %v: want %q", text, err, want)
		}
	}
}

// Frames that were good until somebody changed bytes: what is to a virtual place gets a target's MAC address and no other change, or goes nowhere. Nothing that a target sends is changed.
func TestManyDirectFrames(t *testing.T) {
	const frames = 300_000
	text, _, _ := strings.Cut(directly, `,
	"other"`)
	l := newLab(t, text+`}, "connections": 4096}`)
	var seeds [][]byte
	for _, text := range []string{"tcp 10.0.0.1:1000 10.0.0.100:80 syn", "tcp 10.0.0.1:1000 10.0.0.100:80 ack", "udp 10.0.0.1:1000 10.0.0.100:53", "udp [2001:db8::9]:1000 [2001:db8::100]:53", "tcp [2001:db8::9]:1 [2001:db8::100]:80 fin ack",
		"tcp 10.0.0.100:80 10.0.0.1:1000 ack", "udp [2001:db8::100]:53 [2001:db8::9]:1000", "tcp 10.0.0.1:1 10.0.1.1:80 syn"} {
		seeds = append(seeds, packet(t, text, bytes.Repeat([]byte("data"), 20)))
	}
	random := rand.New(rand.NewPCG(5, 6))
	sent, most := 0, 0
	for i := range frames {
		f := oneOf(seeds, random, i%2 == 0)
		for range random.IntN(4) {
			f[random.IntN(len(f))] = byte(random.Uint32())
		}
		if f = f[:14+random.IntN(len(f)-13)]; random.IntN(4) > 0 {
			f = f[:cap(f)]
		}
		d := nf.Dir(random.IntN(2))
		l.time = l.time.Add(50 * time.Microsecond)
		out := l.give(d, f)
		most = max(most, len(l.table.all), len(l.parts))
		p := nf.Decode(f)
		if out == nil || bytes.Equal(out, f) {
			if out != nil && d == nf.Up && l.virtual[p.Dst] && p.Tags == [2]uint16{} {
				t.Fatalf("to a virtual address, and it passed: % x", f)
			}
			continue
		}
		sent++
		if d == nf.Down || !bytes.Equal(out[6:], f[6:]) || !bytes.HasPrefix(out, []byte{2, 0, 0, 0, 1}) || !l.virtual[p.Dst] {
			t.Fatalf("%s: % x\nbecame\n% x", d, f, out)
		}
		if i%100_000 == 0 {
			l.tick(l.time)
		}
	}
	t.Logf("%d frames: %d to targets, %+v; at most %d connections or fragments known", frames, sent, l.count, most)
	if most > 4096 || sent == 0 || l.count.malformed == 0 || l.count.answers == 0 {
		t.Errorf("%d known, %d to targets, %+v", most, sent, l.count)
	}
}
