package catalogue

import (
	"bytes"
	"encoding/binary"
	"flag"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/gopacket/gopacket"
	"github.com/gopacket/gopacket/layers"
	"github.com/gopacket/gopacket/pcapgo"

	"weir.dev/weir/e2e/rig"
)

var update = flag.Bool("update", false, "write the captures of the catalogue's cases anew; look at what comes out before you commit it")

// capture is what enters a function at in and at out.
type capture struct {
	in, reverse [][]byte
	// When, in milliseconds; nil: the n-th at n, first that of in.
	inAt, reverseAt []int
}

// allKinds are frames of all kinds, which pass both ways.
var allKinds = capture{
	in: append(series(6, "udp 10.0.0.1:4000 10.0.0.2:5000", "udp [2001:db8::1]:4000 [2001:db8::2]:5000", "tcp 10.0.0.1:4000 10.0.0.2:80 syn"),
		tagged(packet("udp 10.0.0.1:4000 10.0.0.2:5000", 6), 0x8100, 7), tagged(tagged(packet("tcp 10.0.0.1:4000 10.0.0.2:80", 7), 0x8100, 7), 0x88a8, 9), whoHas, ofType(0x88cc, 40), ofType(0x1234, 1500), ofType(0x1234, 1)),
	reverse: append(series(6, "tcp 10.0.0.2:80 10.0.0.1:4000", "udp [2001:db8::2]:5000 [2001:db8::1]:4000"), tagged(packet("udp 10.0.0.2:5000 10.0.0.1:4000", 6), 0x8100, 0), ofType(0x8847, 60)),
}

// DNS: a question for a name, and an answer that there is nothing.
const (
	ownName, otherName = "\x03own\x07example\x00\x00\x01\x00\x01", "\x05other\x07example\x00\x00\x01\x00\x01"
	asking, answering  = "\x12\x34\x01\x00\x00\x01\x00\x00\x00\x00\x00\x00", "\x12\x34\x81\x80\x00\x01\x00\x00\x00\x00\x00\x00"
)

// HTTP: a request of 33 bytes and its answer.
const request, answer = "GET /public HTTP/1.1\r\nHost: x\r\n\r\n", "HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nfine"

// cases are the captures that enter functions of the catalogue at in and at out; what comes out is in catalogue/NAME/test.
// There is none of monitor: of a tap only events can be expected, and it raises none.
var cases = map[string]capture{
	"wire/test/frames":        allKinds,
	"wire-bridge/test/frames": allKinds,
	"wire-packet/test/frames": allKinds,
	"wire-xdp/test/frames":    allKinds,
	"firewall/test/services": talk( // that it allows tcp/80 and udp/53
		"> tcp 10.0.0.1:4000 10.0.0.2:80 syn",
		"< tcp 10.0.0.2:80 10.0.0.1:4000 syn ack=2",
		"> tcp 10.0.0.1:4000 10.0.0.2:80 seq=2 ack=2 | some data",
		"> tcp 10.0.0.1:4001 10.0.0.2:81 syn",
		"> tcp [2001:db8::1]:4000 [2001:db8::2]:80 syn",
		"> tcp [2001:db8::1]:4000 [2001:db8::2]:81 syn",
		"> udp 10.0.0.1:4000 10.0.0.2:53 | "+asking+otherName,
		"> udp 10.0.0.1:4000 10.0.0.2:54 | "+asking+otherName,
		"> udp [2001:db8::1]:4000 [2001:db8::2]:53 | "+asking+otherName,
		"< udp 10.0.0.2:53 10.0.0.1:4000 | "+answering+otherName,
		"< udp 10.0.0.2:54 10.0.0.1:4000 | "+answering+otherName,
		"< tcp 10.0.0.2:80 10.0.0.1:4002 syn",
		"< tcp 10.0.0.2:4000 10.0.0.1:80 syn",
	),
	"dns-lb/test/names": talk( // it answers for own.example, by any family and in a VLAN
		"> udp 10.0.0.1:4000 10.0.0.2:53 | "+asking+ownName,
		"> udp 10.0.0.1:4000 10.0.0.2:53 | "+asking+otherName,
		"> udp [2001:db8::1]:4000 [2001:db8::2]:53 | "+asking+ownName,
		"> udp 10.0.0.1:4000 10.0.0.2:53 vlan=7 | "+asking+ownName,
		"> udp 10.0.0.1:4000 10.0.0.2:5353 | "+asking+ownName,
		"< udp 10.0.0.2:53 10.0.0.1:4000 | "+answering+otherName,
		"< udp 10.0.0.2:53 10.0.0.1:4000 | "+answering+ownName,
		"< udp [2001:db8::2]:53 [2001:db8::1]:4000 | "+answering+ownName,
		"< udp 10.0.0.2:53 10.0.0.1:4000 | "+asking+ownName,
	),
	"nat/test/clients": talk( // 10.0.0.1 leaves as 10.0.0.100, whose port 8080 leads to it
		"> tcp 10.0.0.1:4000 10.0.0.200:80 syn",
		"< tcp 10.0.0.200:80 10.0.0.100:4000 syn ack=2",
		"> tcp 10.0.0.1:4000 10.0.0.200:80 seq=2 ack=2 | some data",
		"> udp 10.0.0.1:4000 10.0.0.200:53 vlan=7 | some data",
		"> ping 10.0.0.1:7 10.0.0.200:0 | some data",
		"> udp 10.0.0.7:4000 10.0.0.200:53 | not a client",
		"> udp [2001:db8::1]:4000 [2001:db8::2]:53 | some data",
		"> tcp 10.0.0.1:4001 10.0.0.100:8080 syn",
		"< udp 10.0.0.200:53 10.0.0.100:4000 vlan=7 | some data",
		"< udp 10.0.0.200:53 10.0.0.100:4000 | in no VLAN",
		"< pong 10.0.0.200:0 10.0.0.100:7 | some data",
		"< tcp 10.0.0.200:81 10.0.0.100:4000 syn ack=2",
		"< udp 10.0.0.200:9 10.0.0.1:9 | to its own address",
		"< tcp 10.0.0.200:5000 10.0.0.100:8080 syn",
		"> tcp 10.0.0.1:80 10.0.0.200:5000 syn ack=2",
	),
	// It forbids /admin, over segments, too. Nobody acknowledges the page and the reset: they come three times, a second apart. So this is the end.
	"http-filter/test/rules": talk(
		"> tcp 10.0.0.1:4000 10.0.0.2:80 syn",
		"< tcp 10.0.0.2:80 10.0.0.1:4000 syn ack=2",
		"> tcp 10.0.0.1:4000 10.0.0.2:80 seq=2 ack=2",
		"> tcp 10.0.0.1:4000 10.0.0.2:80 seq=2 ack=2 | "+request,
		"< tcp 10.0.0.2:80 10.0.0.1:4000 seq=2 ack=35 | "+answer,
		"> tcp 10.0.0.1:4001 10.0.0.2:80 syn | with data",
		"> tcp 10.0.0.1:4002 10.0.0.2:80 seq=7 ack=7 | "+request,
		"> tcp 10.0.0.1:4003 10.0.0.2:22 syn",
		"> udp 10.0.0.1:4000 10.0.0.2:53 | "+asking+otherName,
		"> tcp [2001:db8::1]:4000 [2001:db8::2]:80 syn",
		"< tcp [2001:db8::2]:80 [2001:db8::1]:4000 syn ack=2",
		"> tcp [2001:db8::1]:4000 [2001:db8::2]:80 seq=2 ack=2 | GET /pub/../adm",
		"> tcp [2001:db8::1]:4000 [2001:db8::2]:80 seq=17 ack=2 | in HTTP/1.1\r\nHost: x\r\n\r\n",
	),
	"impair/test/line": {
		in:      series(12, "udp 10.0.0.1:4000 10.0.0.2:5000", "udp [2001:db8::1]:4000 [2001:db8::2]:5000", "tcp 10.0.0.1:4000 10.0.0.2:80"),
		reverse: series(12, "udp 10.0.0.2:5000 10.0.0.1:4000", "udp [2001:db8::2]:5000 [2001:db8::1]:4000"),
	},
	"load-balancer/test/services": {
		in: series(12, "tcp 10.0.0.1:4000 10.0.0.100:80 syn", "tcp 10.0.0.1:4001 10.0.0.100:80 syn", "tcp 10.0.0.1:4002 10.0.0.100:80 syn", "udp [2001:db8::1]:4000 [2001:db8::100]:53", "tcp 10.0.0.1:4000 10.0.1.1:8080 syn",
			"udp 10.0.0.1:4000 10.0.1.1:9"),
		reverse: series(8, "tcp 10.0.1.1:8080 10.0.0.1:4001", "udp [2001:db8::1:1]:5353 [2001:db8::1]:4000", "tcp 10.0.1.1:22 10.0.0.1:4000", "udp 10.0.1.1:8080 10.0.0.1:4000"),
	},
	"load-balancer/test/direct": { // MAC addresses change alone; a target's port beside the service and answers pass
		in: series(12, "tcp 10.0.0.1:4000 10.0.0.100:80 syn", "tcp 10.0.0.1:4001 10.0.0.100:80 syn", "tcp 10.0.0.1:4002 10.0.0.100:80 syn", "udp [2001:db8::1]:4000 [2001:db8::100]:53", "tcp 10.0.0.1:4000 10.0.1.1:80 syn",
			"udp 10.0.0.1:4000 10.0.1.1:9"),
		reverse: series(8, "tcp 10.0.0.100:80 10.0.0.1:4001", "udp [2001:db8::100]:53 [2001:db8::1]:4000", "tcp 10.0.1.1:80 10.0.0.1:4000", "udp 10.0.1.1:8080 10.0.0.1:4000"),
	},
	"shaper/test/frames": allKinds,
	"cache/test/others": { // it is for new connections to tcp/8080, where it speaks for itself, at any time; so here is what passes
		in: append(slices.Clone(allKinds.in), packet("udp 10.0.0.1:4000 10.0.0.2:8080", 13), packet("tcp 10.0.0.1:4000 10.0.0.2:8081 syn", 14), packet("tcp 10.0.0.1:4000 10.0.0.2:8080", 15),
			packet("tcp [2001:db8::1]:4000 [2001:db8::2]:8080", 16), packet("tcp [2001:db8::1]:4000 [2001:db8::2]:443 syn vlan=7", 17)),
		reverse: append(slices.Clone(allKinds.reverse), packet("tcp 10.0.0.2:8080 10.0.0.1:4000", 8), packet("tcp 10.0.0.2:4000 10.0.0.1:8081 syn", 9)),
	},
	"ids/test/rules": talk( // it drops a word in datagrams to port 53, and any TCP to port 23
		"> udp 10.0.0.1:4000 10.0.0.2:53 | a good word",
		"> udp 10.0.0.1:4001 10.0.0.2:53 | an evil word",
		"> udp 10.0.0.1:4001 10.0.0.2:54 | an evil word",
		"> udp [2001:db8::1]:4000 [2001:db8::2]:53 | an evil word",
		"> udp [2001:db8::1]:4001 [2001:db8::2]:53 | a good word",
		"> udp 10.0.0.1:4002 10.0.0.2:53 vlan=7 | an evil word",
		"> udp 10.0.0.1:4003 10.0.0.2:53 vlan=7 | a good word",
		"> tcp 10.0.0.1:4000 10.0.0.2:23 syn",
		"> tcp 10.0.0.1:4000 10.0.0.2:80 syn",
		"< tcp 10.0.0.2:80 10.0.0.1:4000 syn ack=2",
		"< udp 10.0.0.2:53 10.0.0.1:4000 | a good answer",
		"< udp 10.0.0.2:53 10.0.0.1:4000 | an evil word",
	),
	"udp-forward/test/others": { // where the next hop is it has to ask, so here is what passes, and what does not
		in:      series(10, "udp 10.0.0.1:4000 10.0.0.2:5000", "udp [2001:db8::1]:4000 [2001:db8::2]:5000", "tcp 10.0.0.1:4000 10.0.0.9:80 syn", "udp 10.0.0.1:4000 10.0.0.9:7001", "tcp 10.0.0.1:4000 10.0.0.2:80 syn"),
		reverse: series(6, "udp 10.0.0.2:5000 10.0.0.1:4000", "udp [2001:db8::2]:5000 [2001:db8::1]:4000", "udp 10.0.0.2:4000 10.0.0.9:7000"),
	},
}

// series is n frames of those packets, in turns.
func series(n int, packets ...string) (all [][]byte) {
	for i := range n {
		all = append(all, packet(packets[i%len(packets)], byte(i)))
	}
	return all
}

// talk is a conversation: ">" enters at in and "<" at out, in this order, each with a packet as made has it, and its data behind "|".
func talk(lines ...string) (c capture) {
	for i, l := range lines {
		text, data, _ := strings.Cut(l[2:], " | ")
		f := made(text, data)
		if l[0] == '>' {
			c.in, c.inAt = append(c.in, f), append(c.inAt, i)
		} else {
			c.reverse, c.reverseAt = append(c.reverse, f), append(c.reverseAt, i)
		}
	}
	return c
}

// tagged has one more VLAN tag.
func tagged(frame []byte, kind, id uint16) []byte {
	return slices.Concat(frame[:12], binary.BigEndian.AppendUint16(binary.BigEndian.AppendUint16(nil, kind), id), frame[12:])
}

// ofType is a frame of another EtherType.
func ofType(kind uint16, size int) []byte {
	return append(binary.BigEndian.AppendUint16([]byte{2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1}, kind), bytes.Repeat([]byte{7}, size)...)
}

// whoHas is a request of 10.0.0.1 for the MAC address of 10.0.0.2.
var whoHas = append([]byte{255, 255, 255, 255, 255, 255, 2, 0, 0, 0, 0, 1, 8, 6, 0, 1, 8, 0, 6, 4, 0, 1, 2, 0, 0, 0, 0, 1, 10, 0, 0, 1, 0, 0, 0, 0, 0, 0, 10, 0, 0, 2}, make([]byte, 18)...)

// packet is what made makes, with data.
func packet(text string, number byte) []byte {
	return made(text, strings.Repeat(string(rune(number)), 30))
}

// made is a packet from one place to another: "udp 10.0.0.1:1000 10.0.0.2:80". From the lower address the frame goes from 02:00:00:00:00:01 to 02:00:00:00:00:02. TCP may have
// "syn", "seq=N" and "ack=N", and ACK if it has no SYN; the source's port of a ping, and the target's of its answer, is the identifier. "vlan=N" has a tag.
func made(text, data string) []byte {
	f := strings.Fields(text)
	src, dst := netip.MustParseAddrPort(f[1]), netip.MustParseAddrPort(f[2])
	eth := &layers.Ethernet{SrcMAC: net.HardwareAddr{2, 0, 0, 0, 0, 1}, DstMAC: net.HardwareAddr{2, 0, 0, 0, 0, 2}, EthernetType: layers.EthernetTypeIPv4}
	if dst.Addr().Less(src.Addr()) {
		eth.SrcMAC, eth.DstMAC = eth.DstMAC, eth.SrcMAC
	}
	var ip interface {
		gopacket.NetworkLayer
		gopacket.SerializableLayer
	}
	proto := map[string]layers.IPProtocol{"udp": layers.IPProtocolUDP, "tcp": layers.IPProtocolTCP, "ping": layers.IPProtocolICMPv4, "pong": layers.IPProtocolICMPv4}[f[0]]
	if src.Addr().Is4() {
		ip = &layers.IPv4{Version: 4, TTL: 64, Protocol: proto, SrcIP: src.Addr().AsSlice(), DstIP: dst.Addr().AsSlice()}
	} else {
		eth.EthernetType = layers.EthernetTypeIPv6
		ip = &layers.IPv6{Version: 6, HopLimit: 64, NextHeader: proto, SrcIP: src.Addr().AsSlice(), DstIP: dst.Addr().AsSlice()}
	}
	tcp := &layers.TCP{SrcPort: layers.TCPPort(src.Port()), DstPort: layers.TCPPort(dst.Port()), Seq: 1, Window: 1000, ACK: true}
	vlan := uint64(0)
	for _, word := range f[3:] {
		name, value, _ := strings.Cut(word, "=")
		number, err := strconv.ParseUint(value, 10, 32)
		if err != nil && name != "syn" {
			panic(err)
		}
		switch name {
		case "syn":
			tcp.SYN, tcp.ACK = true, false
		case "seq":
			tcp.Seq = uint32(number)
		case "ack":
			tcp.Ack, tcp.ACK = uint32(number), true
		case "vlan":
			vlan = number
		}
	}
	_ = tcp.SetNetworkLayerForChecksum(ip)
	parts := []gopacket.SerializableLayer{eth, ip}
	switch f[0] {
	case "udp":
		l := &layers.UDP{SrcPort: layers.UDPPort(src.Port()), DstPort: layers.UDPPort(dst.Port())}
		_ = l.SetNetworkLayerForChecksum(ip)
		parts = append(parts, l)
	case "tcp":
		parts = append(parts, tcp)
	case "ping":
		parts = append(parts, &layers.ICMPv4{TypeCode: layers.CreateICMPv4TypeCode(8, 0), Id: src.Port(), Seq: 1})
	case "pong":
		parts = append(parts, &layers.ICMPv4{Id: dst.Port(), Seq: 1})
	}
	buf := gopacket.NewSerializeBuffer()
	if err := gopacket.SerializeLayers(buf, gopacket.SerializeOptions{FixLengths: true, ComputeChecksums: true}, append(parts, gopacket.Payload(data))...); err != nil {
		panic(err)
	}
	if vlan > 0 {
		return tagged(buf.Bytes(), 0x8100, uint16(vlan))
	}
	return buf.Bytes()
}

// TestCases: `weir function test` sends each case's frames to the real image, and what comes out is what is expected, both ways. With -update, the files of the cases that
// run are written (-run TestCases/nat, or TestCases/nat/clients), and no others.
func TestCases(t *testing.T) {
	t.Parallel()
	bin, _, err := rig.Programs()
	must(t, err)
	top, err := rig.Top()
	must(t, err)
	for name, c := range cases {
		folder, short := filepath.Split(name) // nat/test/, clients
		folder = filepath.Dir(filepath.Clean(folder))
		t.Run(folder+"/"+short, func(t *testing.T) {
			t.Parallel()
			argv := []string{"function", "test", "catalogue/" + folder, "--case", short}
			if *update {
				c.write(t, filepath.Join(top, "catalogue", name), !strings.HasPrefix(name, "udp-forward/"))
				argv = append(argv, "--update")
			}
			c := exec.CommandContext(t.Context(), bin, argv...)
			c.Dir = top
			counting(func() {
				if out, err := c.CombinedOutput(); err != nil || !*update && !strings.Contains(string(out), "PASS") {
					t.Errorf("%v\n%s", err, out)
				}
			})
		})
	}
}

// write the files of a case. The command writes anew those of what is expected: it wants them to be there. forwards: what comes out at out is expected; it is not where the
// function asks for its next hop at any time.
func (c capture) write(t *testing.T, dir string, forwards bool) {
	t.Helper()
	must(t, os.MkdirAll(dir, 0o755))
	write(t, filepath.Join(dir, "in.pcap"), c.in, c.inAt)
	write(t, filepath.Join(dir, "reverse.pcap"), c.reverse, c.reverseAt)
	expected := []string{"expect-reverse.pcap"}
	if forwards {
		expected = append(expected, "expect.pcap")
	}
	for _, name := range expected {
		if _, err := os.Stat(filepath.Join(dir, name)); os.IsNotExist(err) { // a former one stays until there is another
			write(t, filepath.Join(dir, name), nil, nil)
		}
	}
}

// write frames, each at its time; nil: the n-th at n milliseconds.
func write(t *testing.T, file string, frames [][]byte, at []int) {
	t.Helper()
	var b bytes.Buffer
	w := pcapgo.NewWriter(&b)
	must(t, w.WriteFileHeader(65536, layers.LinkTypeEthernet))
	for i, f := range frames {
		if at != nil {
			i = at[i]
		}
		must(t, w.WritePacket(gopacket.CaptureInfo{Timestamp: time.Unix(1e9, int64(i)*1e6), CaptureLength: len(f), Length: len(f)}, f))
	}
	must(t, os.WriteFile(file, b.Bytes(), 0o644))
}
