package main

import (
	"bytes"
	"compress/gzip"
	"encoding/binary"
	"fmt"
	"maps"
	"math/rand/v2"
	"net"
	"net/netip"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/gopacket/gopacket"
	"github.com/gopacket/gopacket/layers"

	"weir.dev/weir/catalogue/http-filter/inspect"
	"weir.dev/weir/catalogue/nf"
)

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

const rules = `{"rules": [
	{"name": "host", "hosts": ["bad.example"]},
	{"name": "path", "paths": ["/secret*"]},
	{"name": "word", "words": ["forbidden"]}]`

// sent is a frame that the filter sends by itself.
type sent struct {
	dir nf.Dir
	p   nf.Packet
	raw []byte
}

func (s sent) data() string { return string(s.p.Data(s.raw)) }

// bench is a filter and what comes out of it.
type bench struct {
	t      testing.TB
	x      *filter
	sent   []sent
	events []string
	six    bool
	tags   int
	port   uint16
}

func newBench(t testing.TB, more string) *bench {
	t.Helper()
	b := &bench{t: t, port: 80}
	cfg, err := parseConfig([]byte(rules + more + "}"))
	must(t, err)
	b.x, err = newFilter(cfg, func(d nf.Dir, f nf.Frame) { b.sent = append(b.sent, sent{d, nf.Decode(f.Data), f.Data}) },
		func(kind, text string) { b.events = append(b.events, text) }, time.Unix(1000, 0))
	must(t, err)
	return b
}

type segment struct {
	side     inspect.Side
	seq, ack uint32
	flags    uint8
	data     string
}

func (b *bench) frame(s segment) []byte {
	b.t.Helper()
	eth := &layers.Ethernet{SrcMAC: net.HardwareAddr{2, 9, 9, 9, 9, 1}, DstMAC: net.HardwareAddr{2, 9, 9, 9, 9, 2}, EthernetType: layers.EthernetTypeIPv4}
	tcp := &layers.TCP{SrcPort: 4000, DstPort: layers.TCPPort(b.port), Seq: s.seq, Ack: s.ack, FIN: s.flags&nf.FIN != 0, SYN: s.flags&nf.SYN != 0, RST: s.flags&nf.RST != 0,
		ACK: s.flags&nf.ACK != 0, URG: s.flags&nf.URG != 0}
	v4 := &layers.IPv4{Version: 4, IHL: 5, TTL: 7, Protocol: layers.IPProtocolTCP, SrcIP: net.IP{10, 1, 1, 1}, DstIP: net.IP{10, 1, 1, 2}}
	v6 := &layers.IPv6{Version: 6, HopLimit: 7, NextHeader: layers.IPProtocolTCP, SrcIP: net.ParseIP("fd00::1"), DstIP: net.ParseIP("fd00::2")}
	if s.side == inspect.Server {
		eth.SrcMAC, eth.DstMAC = eth.DstMAC, eth.SrcMAC
		tcp.SrcPort, tcp.DstPort = tcp.DstPort, tcp.SrcPort
		v4.SrcIP, v4.DstIP, v6.SrcIP, v6.DstIP = v4.DstIP, v4.SrcIP, v6.DstIP, v6.SrcIP
	}
	parts := []gopacket.SerializableLayer{eth}
	kind := layers.EthernetTypeIPv4
	if b.six {
		kind = layers.EthernetTypeIPv6
	}
	eth.EthernetType = kind
	if b.tags > 0 {
		eth.EthernetType = layers.EthernetTypeDot1Q
		parts = append(parts, &layers.Dot1Q{VLANIdentifier: 5, Type: kind})
	}
	if b.six {
		parts = append(parts, v6)
	} else {
		parts = append(parts, v4)
	}
	buf := gopacket.NewSerializeBuffer()
	must(b.t, gopacket.SerializeLayers(buf, gopacket.SerializeOptions{FixLengths: true}, append(parts, tcp, gopacket.Payload(s.data))...))
	return bytes.Clone(buf.Bytes())
}

func (b *bench) give(s segment) bool {
	b.t.Helper()
	return b.raw(s.side, b.frame(s))
}

func (b *bench) raw(side inspect.Side, frame []byte) bool {
	return b.x.frame(nf.Dir(side), nf.NewFrame(frame)) == nf.Pass
}

// The sides' first sequence numbers, near where they wrap.
var isnC, isnS uint32 = 0xfffffff0, 0xffffff00

// open a connection.
func (b *bench) open() {
	b.t.Helper()
	if !b.give(segment{inspect.Client, isnC, 0, nf.SYN, ""}) || !b.give(segment{inspect.Server, isnS, isnC + 1, nf.SYN | nf.ACK, ""}) || !b.give(segment{inspect.Client, isnC + 1, isnS + 1, nf.ACK, ""}) {
		b.t.Fatal("the handshake does not pass")
	}
}

// client sends data at a place of its stream.
func (b *bench) client(at int, data string) bool {
	b.t.Helper()
	return b.give(segment{inspect.Client, isnC + 1 + uint32(at), isnS + 1, nf.ACK, data})
}

// forge a segment in a side's name from the other side's port.
func (b *bench) forge(s segment) bool {
	b.t.Helper()
	return b.raw(s.side.Other(), b.frame(s))
}

// openUnknown opens a connection that is soon not looked at. 19 bytes of the client and 11 of the server have come.
func (b *bench) openUnknown() {
	b.t.Helper()
	b.open()
	b.passes(b.server(0, "SSH-2.0-x\r\n", 0), b.client(0, "SSH-2.0-forbidden\r\n"))
	b.passes(b.give(segment{inspect.Client, isnC + 1 + 19, isnS + 1 + 11, nf.ACK, ""}), b.server(11, "", 19))
	if b.x.flows[keyOf(b.x)].state != passing {
		b.t.Fatal("it is looked at")
	}
}

func (b *bench) server(at int, data string, acked int) bool {
	b.t.Helper()
	return b.give(segment{inspect.Server, isnS + 1 + uint32(at), isnC + 1 + uint32(acked), nf.ACK, data})
}

// want checks that what happened last is a block with a page, or by reset.
func (b *bench) want(blocked bool, page bool) {
	b.t.Helper()
	if got := b.x.count.Blocked > 0; got != blocked {
		b.t.Fatalf("blocked: %t, want %t; events %q", got, blocked, b.events)
	}
	if !blocked {
		return
	}
	if len(b.sent) != 2 || b.sent[0].dir != nf.Down || b.sent[1].dir != nf.Up || b.sent[1].p.Flags&nf.RST == 0 || (b.sent[0].p.Flags&nf.RST == 0) != page || strings.Contains(b.sent[0].data(), "HTTP/1.1 403") != page {
		b.t.Fatalf("sent %+v; want page: %t", b.sent, page)
	}
}

const (
	line   = "GET / HTTP/1.1\r\n"
	good   = line + "Host: good.example\r\n\r\n"
	bad    = line + "Host: bad.example\r\n\r\n"
	answer = "HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nfine"
)

// TestAPageHasItsPlace: the 403 is where the client waits for the answer and acknowledges its request, and the server's connection ends where it is.
func TestAPageHasItsPlace(t *testing.T) {
	for _, six := range []bool{false, true} {
		for tags := range 2 {
			b := newBench(t, "")
			b.six, b.tags = six, tags
			b.open()
			if !b.client(0, good) || !b.server(0, answer, len(good)) {
				t.Fatal("does not pass")
			}
			second := segment{inspect.Client, isnC + 1 + uint32(len(good)), isnS + 1 + uint32(len(answer)), nf.ACK, bad}
			if b.give(second) {
				t.Fatal("passes")
			}
			b.want(true, true)
			page, reset := b.sent[0].p, b.sent[1].p
			if page.Seq != second.ack || page.Ack != second.seq+uint32(len(bad)) || page.Flags != nf.PSH|nf.FIN|nf.ACK || page.DstPort != 4000 || page.TagCount != tags || reset.Seq != second.seq || reset.DstPort != 80 {
				t.Errorf("page %+v, reset %+v", page, reset)
			}
			if want := `rule "host": `; !strings.HasPrefix(b.events[0], want) || !strings.Contains(b.events[0], `request: "GET" "bad.example" "/": 403`) {
				t.Errorf("%q", b.events)
			}
			b.x.tick(b.x.now.Add(time.Second)) // what was sent is sent again, in case it was lost
			if len(b.sent) != 4 || !bytes.Equal(b.sent[0].raw, b.sent[2].raw) || !bytes.Equal(b.sent[1].raw, b.sent[3].raw) {
				t.Errorf("%+v", b.sent)
			}
			// The client asks again, as it would if the page was lost; then it has it, and ends.
			b.sent = nil
			b.give(second)
			if len(b.sent) != 1 || !strings.Contains(b.sent[0].data(), "403") {
				t.Errorf("%+v", b.sent)
			}
			b.sent = nil
			after := page.Seq + uint32(len(b.x.flows[keyOf(b.x)].page)) + 1
			b.give(segment{inspect.Client, page.Ack, after, nf.ACK, ""})
			b.give(segment{inspect.Client, page.Ack, after, nf.ACK | nf.FIN, ""})
			if len(b.sent) != 1 || b.sent[0].p.Seq != after || b.sent[0].p.Ack != page.Ack+1 || b.sent[0].p.Flags != nf.ACK {
				t.Errorf("%+v", b.sent)
			}
			b.sent = nil
			if b.give(segment{inspect.Server, isnS + 1, 77, nf.ACK, "late"}) || len(b.sent) != 1 || b.sent[0].p.Flags != nf.RST || b.sent[0].p.Seq != 77 {
				t.Errorf("%+v", b.sent)
			}
		}
	}
}

func keyOf(x *filter) (k key) {
	for k = range x.flows {
	}
	return k
}

// TestEvasions: what an end could take for a forbidden request never passes whole; and what is none passes.
func TestEvasions(t *testing.T) {
	half := len(line) + 10 // in bad
	for name, x := range map[string]struct {
		blocked, page bool
		do            func(b *bench)
	}{
		"nothing": {false, false, func(b *bench) { b.open(); b.passes(b.client(0, good), b.server(0, answer, len(good))) }},
		"two segments": {true, true, func(b *bench) {
			b.open()
			b.passes(b.client(0, bad[:half]))
			b.stops(b.client(half, bad[half:]))
		}},
		"byte by byte": {true, true, func(b *bench) {
			b.open()
			for i := range len(bad) - 1 {
				b.passes(b.client(i, bad[i:i+1]))
			}
			b.stops(b.client(len(bad)-1, "\n"))
		}},
		"other order": {true, true, func(b *bench) {
			b.open()
			b.passes(b.client(half, bad[half:]))
			b.stops(b.client(0, bad[:half]))
		}},
		"later copy differs": {true, true, func(b *bench) {
			b.open()
			b.passes(b.client(0, line+"Host: x"))
			b.stops(b.client(len(line)+6, "bad.example"))
			b.passes(b.client(len(line)+6, "xbad.example\r\n")) // the name that was judged goes on
			b.passes(b.client(0, line))
			b.stops(b.client(0, bad))
			b.passes(b.x.count.Blocked == 0)
			b.stops(b.client(len(line)+20, "Host: bad.example\r\n\r\n"))
		}},
		"early copy differs": {false, false, func(b *bench) {
			b.open()
			b.passes(b.client(len(line), "Host: good.example\r\n\r\n"))
			b.stops(b.client(0, bad))
			b.stops(b.client(len(line), "Host: bad.example\r\n\r\n"))
			b.passes(b.client(0, line))
		}},
		"retransmission": {false, false, func(b *bench) {
			b.open()
			b.passes(b.client(0, good), b.client(0, good), b.client(3, good[3:]), b.server(0, answer, len(good)), b.client(0, good))
		}},
		"data before the answer to SYN": {false, false, func(b *bench) {
			b.passes(b.give(segment{inspect.Client, isnC, 0, nf.SYN, ""}))
			b.stops(b.client(0, good))
			b.passes(len(b.events) == 1 && strings.Contains(b.events[0], "is the policy symmetric?"))
		}},
		"data in SYN": {true, true, func(b *bench) {
			b.stops(b.give(segment{inspect.Client, isnC, 0, nf.SYN, bad}), b.give(segment{inspect.Client, isnC, 0, nf.SYN, good}))
			b.open()
			b.stops(b.client(0, bad))
		}},
		"data in a second SYN shift the stream": {true, true, func(b *bench) { // the second one has a TTL that does not reach the server
			b.passes(b.give(segment{inspect.Client, isnC, 0, nf.SYN, ""}))
			b.stops(b.give(segment{inspect.Client, isnC - uint32(len(good)), 0, nf.SYN, good}))
			b.passes(b.give(segment{inspect.Server, isnS, isnC + 1, nf.SYN | nf.ACK, ""}), b.client(0, bad[:half]))
			b.stops(b.client(half, bad[half:]))
		}},
		"data in the answer to SYN": {false, false, func(b *bench) {
			b.passes(b.give(segment{inspect.Client, isnC, 0, nf.SYN, ""}))
			b.stops(b.give(segment{inspect.Server, isnS, isnC + 1, nf.SYN | nf.ACK, "x"}), b.client(0, good))
		}},
		"odd flags": {false, false, func(b *bench) {
			for _, flags := range []uint8{0, nf.FIN, nf.SYN | nf.FIN, nf.SYN | nf.RST, nf.SYN | nf.ACK | nf.FIN, nf.SYN | nf.ACK | nf.RST, nf.FIN | nf.URG} {
				b.stops(b.give(segment{inspect.Client, isnC, 0, flags, ""}))
			}
			b.open()
			b.stops(b.give(segment{inspect.Client, isnC + 1, isnS + 1, 0, good}), b.give(segment{inspect.Client, isnC + 1, isnS + 1, nf.FIN, good}))
		}},
		"answer to SYN from the client's port": {true, true, func(b *bench) {
			b.passes(b.give(segment{inspect.Client, isnC, 0, nf.SYN, ""}))
			forged := segment{inspect.Server, isnS + 9, isnC + 1, nf.SYN | nf.ACK, ""}
			b.stops(b.forge(forged), b.client(0, good))
			b.open()
			b.stops(b.client(0, bad))
		}},
		"SYN again where nothing is looked at": {true, true, func(b *bench) {
			b.openUnknown()
			b.stops(b.give(segment{inspect.Client, isnC, 0, nf.SYN, ""}))
			b.passes(b.give(segment{inspect.Client, isnC + 19, 0, nf.RST, ""}))
			b.stops(b.give(segment{inspect.Client, isnC, 0, nf.SYN, ""}))
			b.passes(b.give(segment{inspect.Client, isnC + 5, 0, nf.SYN, ""})) // the server has taken the RST
			b.passes(b.give(segment{inspect.Server, isnS + 5, isnC + 6, nf.SYN | nf.ACK, ""}))
			b.stops(b.give(segment{inspect.Client, isnC + 6, isnS + 6, nf.ACK, bad}))
		}},
		"SYN again behind the end of what is not looked at": {true, true, func(b *bench) {
			b.openUnknown()
			b.passes(b.give(segment{inspect.Client, isnC + 20, isnS + 12, nf.ACK | nf.FIN, ""}), b.give(segment{inspect.Server, isnS + 12, isnC + 21, nf.ACK | nf.FIN, ""}))
			b.passes(b.give(segment{inspect.Client, isnC, 0, nf.SYN, ""}))
			b.passes(b.give(segment{inspect.Server, isnS + 5, isnC + 1, nf.SYN | nf.ACK, ""}))
			b.stops(b.give(segment{inspect.Client, isnC + 1, isnS + 6, nf.ACK, bad}))
		}},
		"SYN again behind a reset": {true, true, func(b *bench) { // what the server sent before it had the data does not begin the stream anew
			b.open()
			b.passes(b.client(0, "GET /sec"), b.give(segment{inspect.Client, isnC + 9, 0, nf.RST, ""}))
			answer := segment{inspect.Server, isnS, isnC + 1, nf.SYN | nf.ACK, ""}
			b.passes(b.give(segment{inspect.Client, isnC, 0, nf.SYN, ""}))
			b.stops(b.give(answer), b.client(0, "GET /goo"))
			b.passes(b.give(segment{inspect.Client, isnC - 9, 0, nf.SYN, ""}), b.give(segment{inspect.Client, isnC, 0, nf.SYN, ""}))
			b.stops(b.give(answer), b.client(0, "GET /goo"))
			b.x.evict()
			b.stops(b.give(answer), b.client(0, "GET /goo"))
			answer.seq++ // it begins anew indeed
			b.passes(b.give(answer))
			b.stops(b.give(segment{inspect.Client, isnC + 1, isnS + 2, nf.ACK, bad}))
		}},
		"SYN again behind a reset and a SYN in the server's name": {false, false, func(b *bench) {
			b.open()
			b.passes(b.client(0, "GET /sec"), b.give(segment{inspect.Client, isnC + 9, 0, nf.RST, ""}))
			b.passes(b.forge(segment{inspect.Server, isnS, 0, nf.SYN, ""}))
			b.stops(b.client(8, "ret HTTP/1.1\r\n\r\n"))
			b.passes(b.give(segment{inspect.Client, isnC, 0, nf.SYN, ""}))
			b.stops(b.give(segment{inspect.Server, isnS, isnC + 1, nf.SYN | nf.ACK, ""}), b.client(0, "GET /goo"))
		}},
		"SYN again late": {true, true, func(b *bench) {
			b.open()
			b.passes(b.give(segment{inspect.Client, isnC, 0, nf.SYN, ""}), b.client(0, bad[:half]))
			b.stops(b.give(segment{inspect.Client, isnC, 0, nf.SYN, ""}), b.client(half, bad[half:]))
		}},
		"SYN 0 where the begin is not known": {true, true, func(b *bench) {
			b.x.cfg.Midstream = "pass"
			b.passes(b.client(0, "x"), b.give(segment{inspect.Client, 0, 0, nf.SYN, ""}))
			b.passes(b.give(segment{inspect.Server, isnS, 1, nf.SYN | nf.ACK, ""}))
			b.stops(b.give(segment{inspect.Client, 1, isnS + 1, nf.ACK, bad}))
		}},
		"two SYNs where the begin is not known": {false, false, func(b *bench) { // the second one does not reach the server
			b.x.cfg.Midstream = "pass"
			b.passes(b.client(0, "x"), b.give(segment{inspect.Client, 10, 0, nf.SYN, ""}), b.give(segment{inspect.Client, 20, 0, nf.SYN, ""}))
			b.stops(b.give(segment{inspect.Server, isnS, 11, nf.SYN | nf.ACK, ""}))
		}},
		"answer to a SYN that is not known": {false, false, func(b *bench) {
			b.x.cfg.Midstream = "pass"
			b.stops(b.give(segment{inspect.Server, isnS, isnC + 1, nf.SYN | nf.ACK, ""}))
			b.open()
		}},
		"SYN in the server's name": {true, true, func(b *bench) {
			b.passes(b.forge(segment{inspect.Server, isnS, 0, nf.SYN, ""}))
			b.stops(b.client(0, bad))
			b.open()
			b.stops(b.forge(segment{inspect.Server, isnS, 0, nf.SYN, ""}), b.client(0, bad))
		}},
		"SYN of the server": {true, true, func(b *bench) {
			b.passes(b.give(segment{inspect.Server, isnS, 0, nf.SYN, ""}))
			b.open()
			b.stops(b.give(segment{inspect.Server, isnS, 0, nf.SYN, ""}), b.client(0, bad))
		}},
		"SYN of the server while it opens": {true, true, func(b *bench) {
			b.passes(b.give(segment{inspect.Client, isnC, 0, nf.SYN, ""}))
			b.stops(b.give(segment{inspect.Server, isnS, 0, nf.SYN, ""}))
			b.open()
			b.stops(b.client(0, bad))
		}},
		"both open, all ports": {true, true, func(b *bench) { // the last SYN says who is the client
			b.x.cfg.Ports = nil
			b.passes(b.give(segment{inspect.Server, isnS, 0, nf.SYN, ""}))
			b.open()
			b.stops(b.give(segment{inspect.Server, isnS, 0, nf.SYN, ""}), b.client(0, bad))
		}},
		"answer to another SYN": {false, false, func(b *bench) {
			b.passes(b.give(segment{inspect.Client, isnC, 0, nf.SYN, ""}), b.give(segment{inspect.Client, isnC - 100, 0, nf.SYN, ""}))
			b.stops(b.give(segment{inspect.Server, isnS, isnC + 1, nf.SYN | nf.ACK, ""}), b.client(0, bad))
		}},
		"second SYN": {true, true, func(b *bench) {
			b.open()
			b.passes(b.give(segment{inspect.Client, isnC - 100, 0, nf.SYN, ""}), b.server(0, "", 0)) // the server says where it is
			b.stops(b.give(segment{inspect.Server, isnS, isnC - 99, nf.SYN | nf.ACK, ""}), b.client(0, bad))
		}},
		"second SYN is answered": {true, true, func(b *bench) { // whatever has happened to the first one
			b.open()
			b.passes(b.client(0, line))
			b.passes(b.give(segment{inspect.Client, isnC - 100, 0, nf.SYN, ""}), b.give(segment{inspect.Server, isnS + 9, isnC - 99, nf.SYN | nf.ACK, ""}))
			b.passes(b.give(segment{inspect.Client, isnC - 99, isnS + 10, nf.ACK, bad[:half]}))
			b.stops(b.give(segment{inspect.Client, isnC - 99 + uint32(half), isnS + 10, nf.ACK, bad[half:]}))
		}},
		"acknowledged by somebody else": {false, false, func(b *bench) { // from the client's port, in the server's name
			b.open()
			b.passes(b.client(0, line+"Host: x"))
			b.stops(b.x.frame(nf.Up, nf.NewFrame(b.frame(segment{inspect.Server, isnS + 1, isnC + 1 + uint32(len(line)) + 7, nf.ACK, ""}))) == nf.Pass)
			b.stops(b.client(len(line), "Host: bad.example\r\n\r\n"))
		}},
		"SYN again behind a refusal": {true, true, func(b *bench) {
			b.passes(b.give(segment{inspect.Client, isnC, 0, nf.SYN, ""}), b.give(segment{inspect.Server, 0, isnC + 1, nf.RST | nf.ACK, ""}))
			b.open()
			b.stops(b.client(0, bad))
		}},
		"urgent": {true, false, func(b *bench) {
			b.open()
			b.stops(b.give(segment{inspect.Client, isnC + 1, isnS + 1, nf.ACK | nf.URG, good}))
		}},
		"data behind FIN": {false, false, func(b *bench) {
			b.open()
			b.passes(b.give(segment{inspect.Client, isnC + 1, isnS + 1, nf.ACK | nf.FIN, line}))
			b.stops(b.client(len(line), "Host: bad.example\r\n\r\n"))
		}},
		"data behind RST": {false, false, func(b *bench) {
			b.open()
			b.passes(b.give(segment{inspect.Client, isnC + 1, 0, nf.RST, ""}))
			b.stops(b.client(0, bad), b.client(0, good))
		}},
		"RST elsewhere": {true, true, func(b *bench) {
			b.open()
			b.passes(b.give(segment{inspect.Client, isnC + 1000, 0, nf.RST, ""}))
			b.passes(b.client(0, bad[:half]))
			b.stops(b.client(half, bad[half:]))
		}},
		"far ahead": {false, false, func(b *bench) {
			b.open()
			b.stops(b.client(2<<20, "x"), b.client(1<<30, "x"), b.client(-(1<<30), strings.Repeat("x", 100)) && false)
		}},
		"many gaps": {false, false, func(b *bench) {
			b.open()
			for i := range maxAhead {
				b.passes(b.client(2*i+2, "x"))
			}
			b.stops(b.client(1000, "x"))
		}},
		"word in an answer": {true, false, func(b *bench) {
			b.open()
			b.passes(b.client(0, good), b.server(0, "HTTP/1.1 200 OK\r\n\r\nforb", len(good)))
			b.stops(b.server(23, "idden", len(good)), b.server(23, "idden", len(good)))
		}},
		"other port": {false, false, func(b *bench) { b.port = 81; b.open(); b.passes(b.client(0, bad)); b.passes(len(b.x.flows) == 0) }},
		"content is never settled": {false, false, func(b *bench) {
			said := heard{}
			b.x.settle = said
			b.open()
			b.passes(b.client(0, good), b.server(0, answer, len(good)), len(said) == 0)
		}},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t, "")
			x.do(b)
			blocked := b.sent
			if len(blocked) > 2 { // what was answered later
				b.sent = blocked[:2]
			}
			b.want(x.blocked, x.page)
		})
	}
}

func (b *bench) passes(ok ...bool) {
	b.t.Helper()
	for i, ok := range ok {
		if !ok {
			b.t.Fatalf("segment %d does not pass; events %q", i, b.events)
		}
	}
}

func (b *bench) stops(ok ...bool) {
	b.t.Helper()
	for i, ok := range ok {
		if ok {
			b.t.Fatalf("segment %d passes; events %q", i, b.events)
		}
	}
}

// TestStreamsAreWhatWasJudged sends a stream in random pieces, some in another order, twice, or with other bytes, and puts together what passes as a
// receiver does that takes the last copy of each byte, or the first. Whatever it gets is what was judged, and never the forbidden word.
func TestStreamsAreWhatWasJudged(t *testing.T) {
	for seed := range uint64(300) {
		random := rand.New(rand.NewPCG(seed, 1))
		b := newBench(t, `, "unknown": "reset"`)
		b.open()
		stream := "POST / HTTP/1.1\r\nHost: good.example\r\nContent-Length: 300\r\n\r\n" + strings.Repeat("x", 100) + "forbidden" + strings.Repeat("y", 191)
		if seed%2 == 1 {
			stream = strings.Replace(stream, "forbidden", "allowed!!", 1)
		}
		first, last := make([]byte, len(stream)), make([]byte, len(stream))
		acked := 0
		for range 400 {
			at := min(max(0, acked-20+random.IntN(60)), len(stream)-1)
			data := []byte(stream[at:min(len(stream), at+1+random.IntN(40))])
			if at >= strings.Index(stream, "\n\r\n")+3 && random.IntN(4) == 0 { // another copy of some content
				data[random.IntN(len(data))] = "forbidnx"[random.IntN(8)]
			}
			if !b.client(at, string(data)) || at+len(data) <= acked {
				continue
			}
			for i, x := range data[max(0, acked-at):] {
				i += max(at, acked)
				if first[i] != 0 && first[i] != x {
					t.Fatalf("seed %d: two copies of byte %d pass: %q, %q", seed, i, first[i], x)
				}
				if last[i] = x; first[i] == 0 {
					first[i] = x
				}
			}
			for acked < len(first) && first[acked] != 0 {
				acked++
			}
			b.server(0, "", acked)
		}
		if got := string(last[:acked]); strings.Contains(strings.ToLower(got), "forbidden") {
			t.Fatalf("seed %d: the receiver has %q", seed, got)
		}
	}
}

// TestMidstream: connections that were there before.
func TestMidstream(t *testing.T) {
	b := newBench(t, "")
	b.stops(b.client(0, good))
	if len(b.sent) != 2 || b.sent[0].p.Flags&nf.RST == 0 || b.sent[0].p.Seq != isnS+1 || b.sent[0].dir != nf.Down || b.sent[1].p.Seq != isnC+1 || b.sent[1].dir != nf.Up {
		t.Errorf("%+v", b.sent)
	}
	b = newBench(t, `, "midstream": "pass"`)
	b.passes(b.client(0, bad), b.server(0, answer, 0))
	b.x.tick(b.x.now.Add(startingFor))
	b.passes(b.client(0, bad)) // it goes on
	b.port = 8080
	b.stops(b.client(0, good)) // this one was not there
}

// TestFull: new connections are refused when there is no room, or pass unread.
func TestFull(t *testing.T) {
	b := newBench(t, `, "limits": {"connections": 1}`)
	b.open()
	b.port = 8080
	b.stops(b.give(segment{inspect.Client, isnC, 0, nf.SYN, ""}))
	if len(b.sent) != 1 || b.sent[0].p.Flags != nf.RST|nf.ACK || b.sent[0].p.Ack != isnC+1 || b.sent[0].dir != nf.Down {
		t.Errorf("%+v", b.sent)
	}
	b = newBench(t, `, "full": "pass", "limits": {"connections": 1}`)
	b.open()
	b.port = 8080
	b.open()
	b.passes(b.client(0, bad))
	b.x.tick(b.x.now.Add(time.Hour))
	if len(b.x.flows) != 0 || b.x.budget.Used != 0 {
		t.Errorf("%d connections, %d bytes", len(b.x.flows), b.x.budget.Used)
	}
}

// TestAFloodLeavesRoom: SYNs without answers, and one client's connections, do not keep others out.
func TestAFloodLeavesRoom(t *testing.T) {
	const most = 60 // so that all are tried, not some at random
	b := newBench(t, fmt.Sprintf(`, "limits": {"connections": %d}`, most))
	from := func(addr byte, port uint16, s segment) bool {
		f := b.frame(s)
		at := 29 // the client's address and port
		if s.side == inspect.Server {
			at = 33
		}
		f[at] = addr
		binary.BigEndian.PutUint16(f[34+2*int(s.side):], port)
		return b.raw(s.side, f)
	}
	for i := range 1000 {
		if !from(byte(i/20), uint16(5000+i), segment{inspect.Client, isnC, 0, nf.SYN, ""}) {
			t.Fatalf("SYN %d is refused", i)
		}
	}
	for i := range most/2 + 10 {
		if ok := from(77, uint16(5000+i), segment{inspect.Client, isnC, 0, nf.SYN, ""}); ok != (i < most/2) {
			t.Fatalf("the client's connection %d: %t", i, ok)
		}
		from(77, uint16(5000+i), segment{inspect.Server, isnS, isnC + 1, nf.SYN | nf.ACK, ""})
	}
	b.passes(from(78, 5000, segment{inspect.Client, isnC, 0, nf.SYN, ""}))
	for i := range most/2 - 1 {
		b.passes(from(78, uint16(5001+i), segment{inspect.Client, isnC, 0, nf.SYN, ""}))
		from(78, uint16(5001+i), segment{inspect.Server, isnS, isnC + 1, nf.SYN | nf.ACK, ""})
	}
	b.passes(from(79, 5000, segment{inspect.Client, isnC, 0, nf.SYN, ""})) // in place of the one without an answer
	from(79, 5000, segment{inspect.Server, isnS, isnC + 1, nf.SYN | nf.ACK, ""})
	b.stops(from(79, 5001, segment{inspect.Client, isnC, 0, nf.SYN, ""}))
	b.x.tick(b.x.now.Add(pressedFor))
	b.passes(from(79, 5001, segment{inspect.Client, isnC, 0, nf.SYN, ""})) // in place of idle ones
	b.x.tick(b.x.now.Add(2 * time.Hour))
	if len(b.x.flows) != 0 || len(b.x.clients) != 0 || b.x.budget.Used != 0 {
		t.Errorf("%d connections, %d clients, %d bytes", len(b.x.flows), len(b.x.clients), b.x.budget.Used)
	}
}

// TestBombsAreSlow: content that is much longer when decoded is not read faster than it may be, and other clients do not wait for it.
func TestBombsAreSlow(t *testing.T) {
	b := newBench(t, "")
	b.open()
	var z bytes.Buffer
	w := gzip.NewWriter(&z)
	_, _ = w.Write(make([]byte, 15<<20))
	must(t, w.Close())
	bomb := fmt.Sprintf("POST / HTTP/1.1\r\nHost: x\r\nContent-Encoding: gzip\r\nContent-Length: %d\r\n\r\n%s", z.Len(), z.String())
	at, passed := 0, 0
	for range 10 {
		if !b.client(at, bomb) {
			break
		}
		at += len(bomb)
		b.server(0, "", at)
		passed++
	}
	if passed != 3 {
		t.Errorf("%d bombs of 15 MB pass at once", passed)
	}
	b.stops(b.client(at, "GET"))
	b.x.tick(b.x.now.Add(time.Second))
	b.passes(b.client(at, "GET"))
	b.want(false, false)
}

// TestTablesAreWork: blocks that decode to nothing are work, too.
func TestTablesAreWork(t *testing.T) {
	var bits []byte // a block that is its tables and its end
	for _, x := range []struct{ n, v int }{{1, 0}, {2, 2}, {5, 0}, {5, 0}, {4, 14}, {6, 0}, {3, 1}, {42, 0}, {3, 1}, {1, 1}, {7, 127}, {1, 1}, {7, 107}, {1, 0}, {1, 0}, {1, 0}} {
		for i := range x.n {
			bits = append(bits, byte(x.v>>i&1))
		}
	}
	const blocks = 4000
	piece := make([]byte, blocks*len(bits)/8)
	for i := range blocks * len(bits) {
		piece[i/8] |= bits[i%len(bits)] << (i % 8)
	}
	b := newBench(t, "")
	b.open()
	head := "POST / HTTP/1.1\r\nHost: x\r\nContent-Encoding: deflate\r\nContent-Length: 100000000\r\n\r\n"
	b.passes(b.client(0, head))
	at, passed := len(head), 0
	for passed < 100 && b.client(at, string(piece)) {
		at += len(piece)
		b.server(0, "", at)
		passed++
	}
	if passed < 2 || passed > 20 {
		t.Errorf("%d tables pass at once", passed*blocks)
	}
	b.x.tick(b.x.now.Add(time.Second))
	b.passes(b.client(at, string(piece)))
	b.want(false, false)
}

// TestConnectionsEnd: those that have ended are forgotten soon, and a new one with the same ports begins at once.
func TestConnectionsEnd(t *testing.T) {
	b := newBench(t, "")
	b.open()
	b.passes(b.client(0, good), b.server(0, answer, len(good)))
	b.passes(b.give(segment{inspect.Server, isnS + 1 + uint32(len(answer)), isnC + 1 + uint32(len(good)), nf.ACK | nf.FIN, ""}))
	ack := uint32(isnS + 2 + uint32(len(answer)))
	b.passes(b.give(segment{inspect.Client, isnC + 1 + uint32(len(good)), ack, nf.ACK | nf.FIN, ""}), b.give(segment{inspect.Server, ack, isnC + 2 + uint32(len(good)), nf.ACK, ""}))
	b.passes(b.give(segment{inspect.Client, 5000, 0, nf.SYN, ""}), b.give(segment{inspect.Server, 7000, 5001, nf.SYN | nf.ACK, ""}), b.give(segment{inspect.Client, 5001, 7001, nf.ACK, good}))
	b.passes(b.give(segment{inspect.Client, 5001 + uint32(len(good)), 0, nf.RST, ""}))
	b.x.tick(b.x.now.Add(endedFor))
	if len(b.x.flows) != 0 || b.x.budget.Used != 0 {
		t.Errorf("%d connections, %d bytes", len(b.x.flows), b.x.budget.Used)
	}
}

// TestForgedEndsEndNothing: a connection that is not looked at lives on behind RST and SYN of somebody who guesses, and makes room only where others need it.
func TestForgedEndsEndNothing(t *testing.T) {
	b := newBench(t, `, "limits": {"connections": 2}`)
	b.openUnknown()
	b.passes(b.give(segment{inspect.Client, 77, 0, nf.RST, ""}), b.give(segment{inspect.Server, 77, 0, nf.RST, ""}), b.give(segment{inspect.Client, 99, 0, nf.SYN, ""}))
	for range 60 {
		b.x.tick(b.x.now.Add(10 * time.Second))
	}
	b.passes(b.client(19, "more"), b.server(11, "more", 23), b.give(segment{inspect.Client, 77, 0, nf.RST, ""}))
	if len(b.x.flows) != 1 || b.x.count.Midstream > 0 {
		t.Errorf("%d connections, %+v", len(b.x.flows), b.x.count)
	}
	b.port = 8080
	b.stops(b.give(segment{inspect.Client, isnC, 0, nf.SYN, ""})) // a client has half of the room
	b.x.tick(b.x.now.Add(surelyOver))
	b.passes(b.give(segment{inspect.Client, isnC, 0, nf.SYN, ""}))
	if len(b.x.flows) != 1 {
		t.Errorf("%d connections", len(b.x.flows))
	}
}

// TestTheSmallDoNotWaitForTheLarge: clients that have much decoded keep themselves waiting, not one that has little.
func TestTheSmallDoNotWaitForTheLarge(t *testing.T) {
	b := newBench(t, "")
	large, small := make([]*client, 8), &client{flows: 1}
	for i := range large {
		large[i] = &client{flows: 1}
		b.x.clients[share(netip.AddrFrom4([4]byte{10, 0, 0, byte(i)}))] = large[i]
		b.x.owe(large[i], decodeRate)
	}
	b.x.clients[share(netip.AddrFrom4([4]byte{10, 0, 1, 0}))] = small
	for range 100 {
		for _, c := range large {
			if !b.x.owesTooMuch(c) {
				b.x.owe(c, decodeRate)
			}
		}
		if !b.x.owesTooMuch(large[0]) || b.x.owesTooMuch(small) {
			t.Fatal("the small one waits, or the large ones do not")
		}
		b.x.owe(small, 1<<20)
		b.x.tick(b.x.now.Add(time.Second))
	}
	if b.x.debt > len(large)*2*decodeRate {
		t.Errorf("%d bytes", b.x.debt)
	}
	for range 60 {
		b.x.tick(b.x.now.Add(time.Second))
	}
	if b.x.debt != 0 || b.x.debtors != 0 {
		t.Errorf("%d bytes of %d", b.x.debt, b.x.debtors)
	}
}

// TestAlerts: traffic passes, and the event says whose it was.
func TestAlerts(t *testing.T) {
	b := newBench(t, "")
	cfg, err := parseConfig([]byte(`{"rules": [{"name": "see", "words": ["look"], "action": "alert"}]}`))
	must(t, err)
	must(t, b.x.configure(cfg))
	b.open()
	b.passes(b.client(0, good), b.server(0, "HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nlook", len(good)))
	if want := `rule "see": 10.1.1.1:4000 -> 10.1.1.2:80: word in the response's content: "GET" "good.example" "/": alert only`; len(b.events) != 1 || b.events[0] != want {
		t.Errorf("%q, want %q", b.events, want)
	}
}

// TestOthersPass: what is not HTTP or TLS on its ports passes unread, and is soon not looked at; long contents without rules are not kept.
func TestOthersPass(t *testing.T) {
	b := newBench(t, "")
	said := heard{}
	b.x.settle = said
	b.openUnknown()
	b.passes(b.server(11, "more", 19), said["10.1.1.2 down"] > 0)
	if fl := b.x.flows[keyOf(b.x)]; fl.state != passing || b.x.budget.Used != flowSize {
		t.Errorf("%+v, %d bytes", fl, b.x.budget.Used)
	}
	cfg, err := parseConfig([]byte(`{"rules": [{"name": "host", "hosts": ["bad.example"]}]}`))
	must(t, err)
	b = newBench(t, "")
	must(t, b.x.configure(cfg))
	b.open()
	b.passes(b.client(0, good), b.server(0, "HTTP/1.1 200 OK\r\nContent-Length: 100000000\r\n\r\n", len(good)))
	b.passes(b.server(90_000_000, "anything", len(good)), b.server(90_000_000, "whatever", len(good)))
	if b.x.budget.Used > 20<<10 {
		t.Errorf("%d bytes", b.x.budget.Used)
	}
}

// heard counts what is said of flows, by their sender and the port.
type heard map[string]int

func (h heard) Pass(frame []byte)             { h[nf.Decode(frame).Src.String()]++ }
func (h heard) PassAt(d nf.Dir, frame []byte) { h[nf.Decode(frame).Src.String()+" "+d.String()]++ }

// TestAConnectionIsSettledAtItsPorts: of a connection that is not looked at any more each direction is settled by its own frames, at the port where they come.
// Frames in its name from the other port are dropped, so they settle nothing. What is on other ports passes from everywhere.
func TestAConnectionIsSettledAtItsPorts(t *testing.T) {
	b, said := newBench(t, ""), heard{}
	b.x.settle = said
	b.openUnknown()
	clear(said)
	for _, side := range []inspect.Side{inspect.Client, inspect.Server} {
		s := segment{side, isnC + 1 + 19, isnS + 1 + 11, nf.ACK, "more"}
		if side == inspect.Server {
			s.seq, s.ack = s.ack, s.seq
		}
		b.stops(b.forge(s))
		if len(said) > 0 {
			t.Fatalf("a segment from the wrong port settles: %v", said)
		}
		b.passes(b.give(s))
		if want := (heard{map[inspect.Side]string{inspect.Client: "10.1.1.1 up", inspect.Server: "10.1.1.2 down"}[side]: 1}); !maps.Equal(said, want) {
			t.Fatalf("said %v, want %v", said, want)
		}
		clear(said)
	}
	b.port = 81
	s := segment{inspect.Client, 1, 1, nf.ACK, "more"}
	b.passes(b.forge(s), b.give(s), maps.Equal(said, heard{"10.1.1.1": 2}))
}

// TestContentOfManyGigabytes: what need not be looked at may be longer than sequence numbers count, and what follows is judged in its place.
func TestContentOfManyGigabytes(t *testing.T) {
	cfg, err := parseConfig([]byte(`{"rules": [{"name": "host", "hosts": ["bad.example"]}]}`))
	must(t, err)
	b := newBench(t, "")
	must(t, b.x.configure(cfg))
	b.open()
	const length, step = 10_000_000_000, 50_000
	head := fmt.Sprintf("HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n", length)
	b.passes(b.client(0, good), b.server(0, head, len(good)))
	data := strings.Repeat("x", step)
	f, ack := nf.NewFrame(b.frame(segment{inspect.Server, 0, isnC + 1 + uint32(len(good)), nf.ACK, data})), nf.NewFrame(b.frame(segment{inspect.Client, isnC + 1 + uint32(len(good)), 0, nf.ACK, ""}))
	at := isnS + 1 + uint32(len(head))
	for range length / step {
		binary.BigEndian.PutUint32(f.Data[38:], at)
		at += step
		binary.BigEndian.PutUint32(ack.Data[42:], at)
		if b.x.frame(nf.Down, f) != nf.Pass || b.x.frame(nf.Up, ack) != nf.Pass {
			t.Fatalf("does not pass; %+v", b.x.count)
		}
	}
	if h := b.x.flows[keyOf(b.x)].halves[inspect.Server]; len(h.blind) > 1 || h.next != at || b.x.budget.Used > 20<<10 {
		t.Errorf("%+v; at %d, %d bytes", h, at, b.x.budget.Used)
	}
	b.stops(b.give(segment{inspect.Client, isnC + 1 + uint32(len(good)), at, nf.ACK, bad}))
	b.want(true, true)
}

// TestFragments of TCP to the ports do not pass; others do.
func TestFragments(t *testing.T) {
	b := newBench(t, "")
	for _, x := range []struct {
		port uint16
		bits uint16
		pass bool
	}{{80, 0x2000, false}, {80, 1, true}, {81, 0x2000, true}, {80, 0, true}} {
		b.port = x.port
		f := b.frame(segment{inspect.Client, isnC, 0, nf.SYN, ""})
		binary.BigEndian.PutUint16(f[20:], x.bits)
		if b.raw(inspect.Client, f) != x.pass {
			t.Errorf("%+v", x)
		}
	}
	f := b.frame(segment{inspect.Client, isnC, 0, nf.SYN, ""})
	f[46] = 0x10 // TCP header of 4 bytes
	if b.port = 80; b.raw(inspect.Client, f) {
		t.Error("a bad header passes")
	}
}

func udp6(t *testing.T, data string) []byte {
	t.Helper()
	buf := gopacket.NewSerializeBuffer()
	must(t, gopacket.SerializeLayers(buf, gopacket.SerializeOptions{FixLengths: true}, &layers.Ethernet{SrcMAC: make([]byte, 6), DstMAC: make([]byte, 6), EthernetType: layers.EthernetTypeIPv6},
		&layers.IPv6{Version: 6, HopLimit: 7, NextHeader: layers.IPProtocolUDP, SrcIP: net.ParseIP("fd00::1"), DstIP: net.ParseIP("fd00::2")}, &layers.UDP{SrcPort: 5, DstPort: 443}, gopacket.Payload(data)))
	return buf.Bytes()
}

func TestQUIC(t *testing.T) {
	for more, want := range map[string]bool{"": false, `, "quic": "pass"`: true} {
		b := newBench(t, more)
		udp := func(port layers.UDPPort, data string) []byte {
			buf := gopacket.NewSerializeBuffer()
			must(t, gopacket.SerializeLayers(buf, gopacket.SerializeOptions{FixLengths: true}, &layers.Ethernet{SrcMAC: make([]byte, 6), DstMAC: make([]byte, 6), EthernetType: layers.EthernetTypeIPv4},
				&layers.IPv4{Version: 4, IHL: 5, TTL: 7, Protocol: layers.IPProtocolUDP, SrcIP: net.IP{10, 1, 1, 1}, DstIP: net.IP{10, 1, 1, 2}}, &layers.UDP{SrcPort: 5, DstPort: port}, gopacket.Payload(data)))
			return buf.Bytes()
		}
		if got := b.raw(0, udp(443, "\xc3\x00\x00\x00\x01\x08aaaaaaaa")); got != want {
			t.Errorf("%s: %t", more, got)
		}
		cut := udp(443, "\xc3\x00\x00\x00\x01\x08aaaaaaaa")
		cut[20] = 0x20 // more fragments
		if got := b.raw(0, cut); got != want {
			t.Errorf("fragment: %s: %t", more, got)
		}
		cut[17] = 28 // of the UDP header alone
		if got := b.raw(0, cut); got != want {
			t.Errorf("small fragment: %s: %t", more, got)
		}
		empty := udp6(t, "")[:14+40]
		empty[18], empty[19], empty[20] = 0, 8, 44
		if got := b.raw(0, append(empty, 17, 0, 0, 1, 0, 0, 0, 9)); got != want { // the UDP header is in another fragment
			t.Errorf("empty fragment: %s: %t", more, got)
		}
		six := udp6(t, "\xc3\x00\x00\x00\x01\x08aaaaaaaa")
		for _, length := range []byte{0, 4, 250} { // receivers take 0 for all that is there
			six[59] = length
			if got := b.raw(0, six); got != want {
				t.Errorf("length %d: %s: %t", length, more, got)
			}
		}
		// Two datagrams in a frame, which the sender leaves to the hardware to cut.
		both := udp(443, "anything that is"+"\xc3\x00\x00\x00\x01\x08aaaaaaaaaa")
		raw := append(make([]byte, 10), both...) // struct virtio_net_hdr
		raw[0], raw[1] = 1, 5                    // VIRTIO_NET_HDR_F_NEEDS_CSUM, VIRTIO_NET_HDR_GSO_UDP_L4
		binary.NativeEndian.PutUint16(raw[4:], 16)
		if got := b.x.frame(nf.Up, nf.Received(raw)) == nf.Pass; got != want {
			t.Errorf("the second datagram of a frame: %s: %t", more, got)
		}
		b.passes(b.raw(0, udp(443, "anything")), b.raw(0, both), b.raw(0, udp(53, "\xc3\x00\x00\x00\x01\x08aaaaaaaa")))
	}
}

// TestAMillionFrames: nothing crashes on nonsense that looks like connections, and memory stays where its limit says.
func TestAMillionFrames(t *testing.T) {
	frames := 500_000
	b := newBench(t, `, "limits": {"connections": 500, "memory_mb": 2}`)
	b.x.send, b.x.event = func(nf.Dir, nf.Frame) {}, func(string, string) {}
	random := rand.New(rand.NewPCG(7, 7))
	texts := []string{good, bad, answer, line, "forb", "idden", "\x16\x03\x01\x00\x04\x01", "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\x00\x00\x00\x04\x00\x00\x00\x00\x00", "POST / HTTP/1.1\r\nContent-Length: 99999\r\n\r\n",
		"GET / HTTP/1.1\r\nUpgrade: h2c\r\n\r\n", "5\r\nhello\r\n", "HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\n\r\n\x1f\x8b\x08\x00\x00\x00\x00\x00\x00\x00", strings.Repeat("x", 9000)}
	var templates [][]byte
	for _, text := range texts {
		for side := range inspect.Side(2) {
			templates = append(templates, b.frame(segment{side, isnC, isnS, nf.ACK, text}))
		}
	}
	var before, after runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	begin, most := time.Now(), 0
	for i := range frames {
		f := bytes.Clone(templates[random.IntN(len(templates))])
		for _, at := range []int{34, 36} { // the client's port, so that there are many connections
			if f[at] != 0 || f[at+1] != 80 {
				binary.BigEndian.PutUint16(f[at:], uint16(4000+random.IntN(2000)))
			}
		}
		binary.BigEndian.PutUint32(f[38:], isnC+uint32(random.IntN(200)))
		binary.BigEndian.PutUint32(f[42:], isnC+uint32(random.IntN(200)))
		f[47] = []byte{nf.SYN, nf.SYN | nf.ACK, nf.ACK, nf.ACK, nf.ACK, nf.ACK | nf.FIN, nf.RST, byte(random.Uint32())}[random.IntN(8)]
		if f[47]&nf.SYN != 0 && random.IntN(8) > 0 { // without data
			f = f[:54]
			binary.BigEndian.PutUint16(f[16:], 40)
			binary.BigEndian.PutUint32(f[38:], isnC+uint32(random.IntN(8)/7))
			binary.BigEndian.PutUint32(f[42:], isnC+1+uint32(random.IntN(8)/7))
		}
		switch random.IntN(40) {
		case 0:
			f[random.IntN(len(f))] = byte(random.Uint32())
		case 1:
			f = f[:random.IntN(len(f))]
		}
		side := inspect.Client
		if len(f) > 35 && f[34] == 0 && f[35] == 80 != (random.IntN(20) == 0) {
			side = inspect.Server
		}
		b.raw(side, f)
		most = max(most, b.x.budget.Used)
		if i%1000 == 0 {
			b.x.tick(b.x.now.Add(time.Second))
		}
	}
	took := time.Since(begin)
	runtime.GC()
	runtime.ReadMemStats(&after)
	if c := b.x.count; c.Connections < 1000 || c.Blocked < 100 || c.Refused == 0 {
		t.Errorf("hardly anything is looked at: %+v", c)
	}
	if most > 2<<20 || len(b.x.flows) > 500 {
		t.Errorf("%d bytes of the budget, %d connections", most, len(b.x.flows))
	}
	grown := int64(after.HeapAlloc) - int64(before.HeapAlloc)
	if grown > 4<<20 {
		t.Errorf("%d bytes more in use than before", grown)
	}
	t.Logf("%d frames in %v; at most %d KB of the budget; the heap grew by %d KB; %+v", frames, took, most>>10, grown>>10, b.x.count)
	b.x.tick(b.x.now.Add(2 * time.Hour))
	if b.x.budget.Used != 0 {
		t.Errorf("%d bytes of the budget are not given back", b.x.budget.Used)
	}
}

func TestParseConfig(t *testing.T) {
	for text, want := range map[string]string{
		`{"rules": 5}`: "cannot unmarshal", `{"ports": "all"}`: "want a list, or any", `{"ports": [0]}`: "want 1 to 65535", `{"ports": [70000]}`: "want a list of numbers", `{"ports": []}`: "at least one",
		`{"midstream": "drop"}`: "want reset or pass", `{"tls": {"no_name": "x"}}`: "tls.no_name", `{"limits": {"idle_s": 1}}`: "want 10 to 86400", `{"fast": true}`: "unknown field", `{} {}`: "more than one", `{`: "unexpected",
		`{"rules": [{"name": "x", "host": ["x"]}]}`: "unknown field",
	} {
		if _, err := parseConfig([]byte(text)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v: want %q", text, err, want)
		}
	}
	cfg, err := parseConfig([]byte(`{"ports": "any", "limits": {"memory_mb": 8}}`))
	must(t, err)
	if !cfg.Ports.has(9999) || cfg.Limits.MemoryMB != 8 || cfg.Limits.IdleS != 3600 || cfg.Midstream != "reset" {
		t.Errorf("%+v", cfg)
	}
	for _, h := range []string{"http://games.example", "games.example:8080", "games.example/x", "user@games.example", "*.games.example:80"} {
		if _, err := newFilter(config{Rules: []inspect.Rule{{Name: "x", Hosts: []string{h}}}}, nil, nil, time.Now()); err == nil || !strings.Contains(err.Error(), "without scheme, port and path") {
			t.Errorf("host %q: %v", h, err)
		}
	}
	cfg, err = parseConfig([]byte(`{"rules": [{"name": "x", "hosts": ["2001:db8::1", "[2001:db8::2]", "*", "*.x"], "action": 403}, {"name": "y", "hosts": ["y"], "action": "reset"}]}`))
	must(t, err)
	if a, b := cfg.Rules[0].Action, cfg.Rules[1].Action; a != inspect.Forbid || b != inspect.Reset {
		t.Errorf("actions %q and %q", a, b)
	}
	_, err = newFilter(cfg, nil, nil, time.Now())
	must(t, err)
	if _, err := newFilter(config{Rules: []inspect.Rule{{Name: "x"}}}, nil, nil, time.Now()); err == nil {
		t.Error("a rule without a condition is taken")
	}
}

func BenchmarkContent(b *testing.B) {
	for _, words := range []bool{true, false} {
		b.Run(fmt.Sprintf("words=%t", words), func(b *testing.B) {
			x := newBench(b, "")
			if !words {
				cfg, err := parseConfig([]byte(`{"rules": [{"name": "host", "hosts": ["bad.example"]}]}`))
				must(b, err)
				must(b, x.x.configure(cfg))
			}
			x.open()
			x.client(0, good)
			head := "HTTP/1.1 200 OK\r\nContent-Length: 100000000000\r\n\r\n"
			x.server(0, head, len(good))
			f := x.frame(segment{inspect.Server, isnS + 1, isnC + 1, nf.ACK, strings.Repeat("some text of a page ", 3000)})
			ack := x.frame(segment{inspect.Client, isnC + 1 + uint32(len(good)), 0, nf.ACK, ""})
			frame, back := nf.NewFrame(f), nf.NewFrame(ack)
			b.SetBytes(60000)
			b.ReportAllocs()
			for i := range b.N {
				at := isnS + 1 + uint32(len(head)) + uint32(i)*60000
				binary.BigEndian.PutUint32(frame.Data[38:], at)
				if x.x.frame(nf.Down, frame) != nf.Pass {
					b.Fatal("does not pass")
				}
				binary.BigEndian.PutUint32(back.Data[42:], at+60000)
				x.x.frame(nf.Up, back)
			}
		})
	}
}

// FuzzFrames: no frame panics.
func FuzzFrames(f *testing.F) {
	b := newBench(f, "")
	f.Add(b.frame(segment{inspect.Client, isnC, 0, nf.SYN, good}))
	f.Add(b.frame(segment{inspect.Server, isnS, isnC + 1, nf.SYN | nf.ACK, ""}))
	b.six = true
	f.Add(b.frame(segment{inspect.Client, isnC + 1, isnS + 1, nf.ACK, bad}))
	f.Fuzz(func(t *testing.T, raw []byte) {
		b := newBench(t, "")
		b.six = len(raw)%2 == 0
		b.open()
		b.raw(inspect.Client, raw)
		b.raw(inspect.Server, raw)
		b.client(0, string(raw))
	})
}

// BenchmarkRequests is one request over a connection that stays, and its answer, past as many rules as the study bench has.
func BenchmarkRequests(b *testing.B) {
	x := newBench(b, "")
	var rules []string
	for _, pattern := range []string{`"hosts": ["forbidden%d.example"]`, `"paths": ["/forbidden-%d/*"]`} {
		for i := range 20 {
			rules = append(rules, fmt.Sprintf(`{"name": "r%d", `+pattern+`}`, len(rules), i))
		}
	}
	cfg, err := parseConfig([]byte(`{"rules": [` + strings.Join(rules, ", ") + `]}`))
	must(b, err)
	must(b, x.x.configure(cfg))
	x.open()
	asked := "GET /page HTTP/1.1\r\nHost: 10.9.0.2\r\nUser-Agent: Go-http-client/1.1\r\nAccept-Encoding: gzip\r\n\r\n"
	answer := "HTTP/1.1 200 OK\r\nContent-Type: application/octet-stream\r\nDate: Sun, 29 Nov 2026 10:00:00 GMT\r\nContent-Length: 16384\r\n\r\n" + strings.Repeat("x", 16384)
	up, down := nf.NewFrame(x.frame(segment{inspect.Client, 0, 0, nf.ACK, asked})), nf.NewFrame(x.frame(segment{inspect.Server, 0, 0, nf.ACK, answer}))
	b.ReportAllocs()
	for i := range b.N {
		client, server := isnC+1+uint32(i*len(asked)), isnS+1+uint32(i*len(answer))
		binary.BigEndian.PutUint32(up.Data[38:], client)
		binary.BigEndian.PutUint32(up.Data[42:], server)
		binary.BigEndian.PutUint32(down.Data[38:], server)
		binary.BigEndian.PutUint32(down.Data[42:], client+uint32(len(asked)))
		if x.x.frame(nf.Up, up) != nf.Pass || x.x.frame(nf.Down, down) != nf.Pass {
			b.Fatal("does not pass")
		}
	}
}
