package rig

import (
	"bytes"
	"encoding/binary"
	"math/rand/v2"
	"net"
	"slices"

	"github.com/gopacket/gopacket"
	"github.com/gopacket/gopacket/layers"
	"golang.org/x/sys/unix"
)

// frames makes frames that no honest station sends: packets of common protocols with something wrong about them, and noise. The same seed makes the same ones.
type frames struct {
	random *rand.Rand
	seeds  [][]byte
	noise  []byte // to cut from: cheaper than to make random bytes for each frame
	most   int    // bytes of a frame
}

func newFrames(seed uint64, more [][]byte, most int) *frames {
	f := &frames{random: rand.New(rand.NewPCG(seed, 1)), seeds: append(seeds(), more...), noise: make([]byte, 64<<10), most: most}
	for i := range f.noise {
		f.noise[i] = byte(f.random.Uint32())
	}
	return f
}

// Ethertypes, and how a frame of noise begins behind them.
const (
	etherIPv4, etherARP, etherIPv6, etherVLAN, etherAD = 0x0800, 0x0806, 0x86dd, 0x8100, 0x88a8
)

var kinds = [][]byte{{8, 0, 0x45}, {8, 0}, {0x86, 0xdd, 0x60}, {0x86, 0xdd}, {8, 6, 0, 1, 8, 0, 6, 4}, {0x81, 0}, {0x88, 0xa8, 0, 7, 0x81, 0}, {0, 40, 0x42, 0x42, 3}, {0x88, 0x63}, {0x88, 0x47}, {0x88, 0xcc}, {0x99, 0x99}}

// next frame, in the place of b: of 14 bytes to the most.
func (f *frames) next(b []byte) []byte {
	r := f.random
	if r.IntN(16) == 0 {
		b = append(b[:0], f.cut(f.size())...)
		if r.IntN(2) == 0 {
			copy(b[12:], kinds[r.IntN(len(kinds))])
		}
	} else {
		b = append(b[:0], f.seeds[r.IntN(len(f.seeds))]...)
		for range r.IntN(4) {
			b = f.change(b)
		}
	}
	f.address(b)
	if r.IntN(2) == 0 { // else checksums alone would tell
		checksums(b)
	}
	return b[:min(len(b), f.most)]
}

func (f *frames) cut(n int) []byte {
	at := f.random.IntN(len(f.noise) - n + 1)
	return f.noise[at : at+n]
}

// size of a frame: many are tiny, some as long as may be.
func (f *frames) size() int {
	most := [...]int{60, 60, 60, 128, 128, 600, 1514, f.most}[f.random.IntN(8)]
	return 14 + f.random.IntN(min(most, f.most)-13)
}

// address gives a frame its source and destination. They are not those of the stations, whose kernels would answer.
func (f *frames) address(b []byte) {
	r := f.random
	copy(b, []byte{2, 9, 9, 9, 9, byte(1 + r.IntN(2)), 2, 9, 9, 9, 9, byte(1 + r.IntN(2))})
	switch r.IntN(32) {
	case 0:
		copy(b, []byte{255, 255, 255, 255, 255, 255})
	case 1:
		copy(b, []byte{1, 0x80, 0xc2, 0, 0, byte(r.IntN(0x22))})
	case 2:
		copy(b, []byte{0x33, 0x33, 0, 0, 0, byte(r.IntN(3))})
	case 3:
		copy(b, make([]byte, 12))
	case 4:
		b[6] |= 1 // from a group
	case 5:
		copy(b, f.cut(12))
	}
}

// limits of numbers of 16 bits.
var limits = [][]byte{{0, 0}, {0, 1}, {0, 7}, {0x7f, 0xff}, {0x80, 0}, {0xff, 0xfe}, {0xff, 0xff}}

// change one thing about a frame.
func (f *frames) change(b []byte) []byte {
	r := f.random
	head := min(len(b), 90) // where headers are, mostly
	switch r.IntN(10) {
	case 0:
		for range 1 + r.IntN(8) {
			b[12+r.IntN(head-12)] ^= 1 << r.IntN(8)
		}
	case 1:
		copy(b[12+r.IntN(head-13):], limits[r.IntN(len(limits))])
	case 2:
		b = b[:14+r.IntN(len(b)-13)]
	case 3: // more than lengths say
		b = append(b, f.cut(f.size())...)
	case 4:
		for range 1 + r.IntN(3) {
			b = slices.Insert(b, 12, [2]byte{0x81, 0x88}[r.IntN(2)], 0, byte(r.IntN(256)), byte(r.IntN(3)))
			if b[12] == 0x88 {
				b[13] = 0xa8
			}
		}
	case 5:
		b = f.options(b)
	case 6:
		for range 1 + r.IntN(9) {
			b = f.extension(b)
		}
	case 7:
		b = f.fragment(b)
	case 8: // the end of another
		other, at := f.seeds[r.IntN(len(f.seeds))], 14+r.IntN(len(b)-13)
		b = append(b[:at], other[min(at, len(other)):]...)
	case 9: // more, and lengths say so
		b = append(b, f.cut(f.size())...)
		lengths(b)
	}
	return b
}

// network is where what is behind VLAN tags begins, and its ethertype.
func network(b []byte) (at int, kind uint16) {
	for at = 12; at+2 <= len(b); at += 4 {
		if kind = binary.BigEndian.Uint16(b[at:]); kind != etherVLAN && kind != etherAD {
			return at + 2, kind
		}
	}
	return len(b), 0
}

// options of IPv4, some without an end: more than there are is left out.
func (f *frames) options(b []byte) []byte {
	at, kind := network(b)
	n := 4 * (1 + f.random.IntN(10))
	if kind != etherIPv4 || len(b) < at+20 || int(b[at]&15)+n/4 > 15 {
		return b
	}
	all := append([]byte{[...]byte{0, 1, 7, 68, 131, 137, 148, 255}[f.random.IntN(8)], [...]byte{0, 1, 3, 4, byte(n), 255}[f.random.IntN(6)]}, f.cut(n-2)...)
	b[at] += byte(n / 4)
	f.longer(b[at+2:], n)
	return slices.Insert(b, at+20, all...)
}

// longer has a length say so, mostly.
func (f *frames) longer(field []byte, n int) {
	if f.random.IntN(4) > 0 {
		binary.BigEndian.PutUint16(field, binary.BigEndian.Uint16(field)+uint16(n))
	}
}

// extension header of IPv6: a right one, or one whose length is wrong.
func (f *frames) extension(b []byte) []byte {
	at, kind := network(b)
	if kind != etherIPv6 || len(b) < at+40 {
		return b
	}
	r := f.random
	n, name := 8*(1+r.IntN(3)), [...]byte{0, 43, 44, 51, 59, 60, 60, 135, 139, 140}[r.IntN(10)]
	h := append([]byte{b[at+6], byte(n/8 - 1), 1, byte(n - 4)}, make([]byte, n-4)...) // PadN
	switch {
	case r.IntN(8) == 0:
		copy(h[1:], f.cut(n-1))
	case name == 44:
		h = []byte{b[at+6], 0, byte(r.IntN(2)), byte(r.IntN(256)), 0, 0, 0, byte(r.IntN(4))}
	case name == 51:
		h[1] = byte(n/4 - 2)
	}
	b[at+6] = name
	f.longer(b[at+4:], len(h))
	return slices.Insert(b, at+40, h...)
}

// fragment makes a packet a part of one, of few, so that parts meet and overlap.
func (f *frames) fragment(b []byte) []byte {
	at, kind := network(b)
	if kind != etherIPv4 || len(b) < at+20 {
		return f.extension(b)
	}
	offset := [...]uint16{0, 1, 2, 3, 185, 370, 0x1fff}[f.random.IntN(7)]
	binary.BigEndian.PutUint16(b[at+4:], uint16(f.random.IntN(8)))
	binary.BigEndian.PutUint16(b[at+6:], offset|uint16(f.random.IntN(8))<<13)
	return b
}

// lengths says in the headers of a packet how long it is.
func lengths(b []byte) {
	at, kind := network(b)
	switch {
	case kind == etherIPv4 && len(b) >= at+20:
		binary.BigEndian.PutUint16(b[at+2:], uint16(len(b)-at))
		if n := at + int(b[at]&15)*4; b[at+9] == 17 && len(b) >= n+8 {
			binary.BigEndian.PutUint16(b[n+4:], uint16(len(b)-n))
		}
	case kind == etherIPv6 && len(b) >= at+40:
		binary.BigEndian.PutUint16(b[at+4:], uint16(len(b)-at-40))
		if b[at+6] == 17 && len(b) >= at+48 {
			binary.BigEndian.PutUint16(b[at+44:], uint16(len(b)-at-40))
		}
	}
}

// checksums makes those of a packet right, as far as its headers can be read; behind extension headers those of the seed stay.
func checksums(b []byte) {
	at, kind := network(b)
	ip := b[at:]
	switch {
	case kind == etherIPv4 && len(ip) >= 20:
		n := int(ip[0]&15) * 4
		if n < 20 || n > len(ip) {
			return
		}
		binary.BigEndian.PutUint16(ip[10:], 0)
		binary.BigEndian.PutUint16(ip[10:], ^sum(0, ip[:n]))
		seal(ip[9], ip[12:20], ip[n:min(max(n, int(binary.BigEndian.Uint16(ip[2:]))), len(ip))])
	case kind == etherIPv6 && len(ip) >= 40:
		seal(ip[6], ip[8:40], ip[40:min(40+int(binary.BigEndian.Uint16(ip[4:])), len(ip))])
	}
}

// seal puts the checksum into what an IP packet carries.
func seal(proto byte, addresses, part []byte) {
	const icmp, tcp, udp, icmp6 = 1, 6, 17, 58
	at, start := 2, uint32(0) // of ICMP
	switch proto {
	case icmp, icmp6:
	case tcp:
		at = 16
	case udp:
		at = 6
	default:
		return
	}
	if len(part) < at+2 {
		return
	}
	if proto != icmp {
		start = uint32(sum(uint32(proto)+uint32(len(part)), addresses))
	}
	binary.BigEndian.PutUint16(part[at:], 0)
	binary.BigEndian.PutUint16(part[at:], ^sum(start, part))
}

func sum(s uint32, b []byte) uint16 {
	for ; len(b) > 1; b = b[2:] {
		s += uint32(binary.BigEndian.Uint16(b))
	}
	if len(b) == 1 {
		s += uint32(b[0]) << 8
	}
	for s > 0xffff {
		s = s>>16 + s&0xffff
	}
	return uint16(s)
}

// question and answer of DNS: the name in the answer points at that in the question.
const (
	question = "\x12\x34\x01\x00\x00\x01\x00\x00\x00\x00\x00\x00\x03www\x07example\x03com\x00\x00\x01\x00\x01"
	answer   = "\x12\x34\x81\x80\x00\x01\x00\x01\x00\x00\x00\x00\x03www\x07example\x03com\x00\x00\x01\x00\x01\xc0\x0c\x00\x01\x00\x01\x00\x00\x00\x3c\x00\x04\x0a\x01\x01\x02"
	// hello of a TLS 1.2 client: a random number, two suites, one extension with the name a.example.
	hello = "\x16\x03\x01\x00\x43\x01\x00\x00\x3f\x03\x03" + "0123456789abcdef0123456789abcdef" + "\x00\x00\x04\xc0\x2f\x00\x2f\x01\x00\x00\x12\x00\x00\x00\x0e\x00\x0c\x00\x00\x09a.example"
	get   = "GET /index.html HTTP/1.1\r\nHost: www.example.com\r\nCookie: a=b\r\n\r\n"
	post  = "POST /form HTTP/1.1\r\nHost: www.example.com\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n"
	found = "HTTP/1.1 200 OK\r\nContent-Length: 5\r\nContent-Type: text/plain\r\n\r\nhello"
)

// seeds are packets of common protocols by IPv4 and IPv6, between addresses that no station has.
func seeds() (all [][]byte) {
	eth := func(kind layers.EthernetType) *layers.Ethernet {
		return &layers.Ethernet{SrcMAC: net.HardwareAddr{2, 9, 9, 9, 9, 1}, DstMAC: net.HardwareAddr{2, 9, 9, 9, 9, 2}, EthernetType: kind}
	}
	add := func(parts ...gopacket.SerializableLayer) {
		b := gopacket.NewSerializeBuffer()
		if err := gopacket.SerializeLayers(b, gopacket.SerializeOptions{FixLengths: true, ComputeChecksums: true}, parts...); err != nil {
			panic(err) // what is below is right
		}
		all = append(all, slices.Clone(b.Bytes()))
	}
	for _, six := range []bool{false, true} {
		packet := func(proto layers.IPProtocol, upper gopacket.SerializableLayer, data string) {
			var ip interface {
				gopacket.SerializableLayer
				gopacket.NetworkLayer
			} = &layers.IPv4{Version: 4, TTL: 64, Id: 7, Protocol: proto, SrcIP: net.IP{10, 1, 1, 1}, DstIP: net.IP{10, 1, 1, 2}}
			kind := layers.EthernetTypeIPv4
			if six {
				ip, kind = &layers.IPv6{Version: 6, HopLimit: 64, NextHeader: proto, SrcIP: net.ParseIP("fd00::1"), DstIP: net.ParseIP("fd00::2")}, layers.EthernetTypeIPv6
			}
			if l, ok := upper.(interface {
				SetNetworkLayerForChecksum(gopacket.NetworkLayer) error
			}); ok {
				_ = l.SetNetworkLayerForChecksum(ip) // it is one
			}
			parts := []gopacket.SerializableLayer{eth(kind), ip}
			if upper != nil {
				parts = append(parts, upper)
			}
			add(append(parts, gopacket.Payload(data))...)
		}
		tcp := func(from, to layers.TCPPort, flags layers.TCP, data string) {
			flags.SrcPort, flags.DstPort, flags.Seq, flags.Window = from, to, 1000, 64240
			packet(layers.IPProtocolTCP, &flags, data)
		}
		udp := func(from, to layers.UDPPort, data string) {
			packet(layers.IPProtocolUDP, &layers.UDP{SrcPort: from, DstPort: to}, data)
		}
		tcp(5000, 80, layers.TCP{SYN: true, Options: []layers.TCPOption{{OptionType: 2, OptionLength: 4, OptionData: []byte{5, 0xb4}}, {OptionType: 8, OptionLength: 10, OptionData: make([]byte, 8)}, {OptionType: 4, OptionLength: 2}}}, "")
		tcp(80, 5000, layers.TCP{SYN: true, ACK: true, Ack: 1001}, "")
		tcp(5000, 80, layers.TCP{ACK: true, PSH: true, Ack: 7}, get)
		tcp(5000, 80, layers.TCP{ACK: true, PSH: true, Ack: 7}, post)
		tcp(80, 5000, layers.TCP{ACK: true, PSH: true, Ack: 7}, found)
		tcp(5000, 443, layers.TCP{ACK: true, PSH: true, Ack: 7}, hello)
		tcp(5000, 81, layers.TCP{RST: true, ACK: true, URG: true, FIN: true, SYN: true, Urgent: 9}, "all flags")
		tcp(5000, 53, layers.TCP{ACK: true, Ack: 7}, "\x00\x21"+question)
		udp(5000, 53, question)
		udp(53, 5000, answer)
		udp(68, 67, "\x01\x01\x06\x00"+string(make([]byte, 232))+"\x63\x82\x53\x63\x35\x01\x01\xff") // DHCP
		udp(5000, 4789, "\x08\x00\x00\x00\x00\x00\x07\x00"+string(all[0]))                           // VXLAN
		udp(5000, 5000, string(make([]byte, 1400)))
		packet(layers.IPProtocolSCTP, nil, "\x13\x88\x00\x09\x00\x00\x00\x00\x00\x00\x00\x00\x01\x00\x00\x14")
		packet(layers.IPProtocolGRE, nil, "\x00\x00\x08\x00"+string(all[0][14:]))
		packet(layers.IPProtocolIPv4, nil, string(all[0][14:]))
		packet(layers.IPProtocolESP, nil, string(make([]byte, 40)))
		if six {
			packet(layers.IPProtocolICMPv6, &layers.ICMPv6{TypeCode: layers.CreateICMPv6TypeCode(128, 0)}, "\x00\x07\x00\x01ping")
			packet(layers.IPProtocolICMPv6, &layers.ICMPv6{TypeCode: layers.CreateICMPv6TypeCode(135, 0)}, "\x00\x00\x00\x00"+string(net.ParseIP("fd00::2"))+"\x01\x01\x02\x09\x09\x09\x09\x01")
			packet(layers.IPProtocolICMPv6, &layers.ICMPv6{TypeCode: layers.CreateICMPv6TypeCode(2, 0)}, "\x00\x00\x05\x00"+string(all[len(all)-1][14:]))
			continue
		}
		packet(layers.IPProtocolICMPv4, &layers.ICMPv4{TypeCode: layers.CreateICMPv4TypeCode(8, 0), Id: 7, Seq: 1}, "ping")
		packet(layers.IPProtocolICMPv4, &layers.ICMPv4{TypeCode: layers.CreateICMPv4TypeCode(3, 4), Seq: 1400}, string(all[0][14:]))
		packet(layers.IPProtocolIGMP, nil, "\x11\x64\xee\x9b\x00\x00\x00\x00")
	}
	add(eth(etherARP), &layers.ARP{AddrType: layers.LinkTypeEthernet, Protocol: layers.EthernetTypeIPv4, HwAddressSize: 6, ProtAddressSize: 4, Operation: layers.ARPRequest,
		SourceHwAddress: []byte{2, 9, 9, 9, 9, 1}, SourceProtAddress: []byte{10, 1, 1, 1}, DstHwAddress: make([]byte, 6), DstProtAddress: []byte{10, 1, 1, 2}})
	for _, f := range slices.Clone(all) { // what is behind is read by Linux, and not by everybody
		const header = 14 + 40
		if kind := binary.BigEndian.Uint16(f[12:]); kind != etherIPv6 || f[20] != unix.IPPROTO_TCP && f[20] != unix.IPPROTO_UDP {
			continue
		}
		lengthless := slices.Insert(slices.Clone(f), header, f[20], 0, 1, 4, 0, 0, 0, 0)
		copy(lengthless[18:], []byte{0, 0, unix.IPPROTO_HOPOPTS})
		all = append(all, lengthless, slices.Insert(slices.Clone(f), 12, bytes.Repeat([]byte{0x81, 0, 0, 0}, 3)...))
	}
	for _, kind := range kinds {
		all = append(all, slices.Concat(make([]byte, 12), kind, make([]byte, 46)))
	}
	return all
}
