package flow

import (
	"encoding/binary"
	"net"
	"net/netip"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/gopacket/gopacket"
	"github.com/gopacket/gopacket/layers"
	"pgregory.net/rapid"
)

var (
	macA = MAC{2, 0, 0, 0, 0, 0xa}
	macB = MAC{2, 0, 0, 0, 0, 0xb}
	v4A  = netip.MustParseAddr("10.9.0.1")
	v4B  = netip.MustParseAddr("10.9.0.2")
	v6A  = netip.MustParseAddr("fd00::1")
	v6B  = netip.MustParseAddr("fd00::2")
)

func eth(etherType uint16, payload ...byte) []byte {
	f := append(append([]byte{}, macB[:]...), macA[:]...)
	return append(binary.BigEndian.AppendUint16(f, etherType), payload...)
}

func ipv4(proto uint8, fragment uint16, payload ...byte) []byte {
	h := make([]byte, 20)
	h[0], h[8], h[9] = 0x45, 64, proto
	binary.BigEndian.PutUint16(h[2:], uint16(20+len(payload)))
	binary.BigEndian.PutUint16(h[6:], fragment)
	copy(h[12:], v4A.AsSlice())
	copy(h[16:], v4B.AsSlice())
	return append(h, payload...)
}

func ipv6(next uint8, payload ...byte) []byte {
	h := make([]byte, 40)
	h[0], h[6], h[7] = 0x60, next, 64
	binary.BigEndian.PutUint16(h[4:], uint16(len(payload)))
	copy(h[8:], v6A.AsSlice())
	copy(h[24:], v6B.AsSlice())
	return append(h, payload...)
}

func join(parts ...[]byte) []byte {
	var all []byte
	for _, p := range parts {
		all = append(all, p...)
	}
	return all
}

func ext(next uint8) []byte { return []byte{next, 0, 0, 0, 0, 0, 0, 0} }

func TestDecode(t *testing.T) {
	ports := []byte{0x04, 0x00, 0x00, 80, 0, 0, 0, 0}
	base := Key{SrcMAC: macA, DstMAC: macB, VLAN: VLANNone}
	with := func(etherType uint16, f func(*Key)) Key {
		k := base
		k.EtherType = etherType
		if f != nil {
			f(&k)
		}
		return k
	}
	k4 := func(proto uint8, ports bool) Key {
		return with(EtherTypeIPv4, func(k *Key) {
			k.HasIP, k.Src, k.Dst, k.Proto = true, v4A, v4B, proto
			if k.HasPorts = ports; ports {
				k.SrcPort, k.DstPort = 1024, 80
			}
		})
	}
	k6 := func(proto uint8, ports bool) Key {
		k := k4(proto, ports)
		k.EtherType, k.Src, k.Dst = EtherTypeIPv6, v6A, v6B
		return k
	}
	vlan := func(id uint16, k Key) Key { k.VLAN = id; return k }
	unread := func(u Unread, k Key) Key { k.Unread = u; return k }
	options := ipv4(ProtoTCP, 0, 1, 1, 1, 1)
	options[0] = 0x46
	tests := []struct {
		name  string
		frame []byte
		want  Key
	}{
		{"IPv4 TCP", eth(EtherTypeIPv4, ipv4(ProtoTCP, 0, ports...)...), k4(ProtoTCP, true)},
		{"IPv4 options are skipped", eth(EtherTypeIPv4, join(options, ports)...), k4(ProtoTCP, true)},
		{"first fragment has ports", eth(EtherTypeIPv4, ipv4(ProtoUDP, 0x2000, ports...)...), k4(ProtoUDP, true)},
		{"later fragment has none", eth(EtherTypeIPv4, ipv4(ProtoUDP, 0x2001, ports...)...), k4(ProtoUDP, false)},
		{"ports cut short", eth(EtherTypeIPv4, ipv4(ProtoUDP, 0, 1, 2, 3)...), k4(ProtoUDP, false)},
		{"ICMP has no ports", eth(EtherTypeIPv4, ipv4(ProtoICMP, 0, ports...)...), k4(ProtoICMP, false)},
		{"IPv4 header cut short", eth(EtherTypeIPv4, ipv4(ProtoTCP, 0)[:19]...), unread(UnreadNetwork, with(EtherTypeIPv4, nil))},
		{"IPv4 options cut short", eth(EtherTypeIPv4, options[:23]...), unread(UnreadNetwork, with(EtherTypeIPv4, nil))},
		{"IPv4 options, nothing behind", eth(EtherTypeIPv4, options...), k4(ProtoTCP, false)},
		{"IPv4 EtherType, version 6", eth(EtherTypeIPv4, ipv6(ProtoTCP, ports...)...), unread(UnreadNetwork, with(EtherTypeIPv4, nil))},
		{"IPv6 UDP", eth(EtherTypeIPv6, ipv6(ProtoUDP, ports...)...), k6(ProtoUDP, true)},
		{"IPv6 one of each extension", eth(EtherTypeIPv6, ipv6(extHopByHop, join(ext(extRouting), ext(extDest), ext(extAuth),
			ext(extFragment), ext(ProtoTCP), ports)...)...), k6(ProtoTCP, true)},
		{"IPv6 six extensions", eth(EtherTypeIPv6, ipv6(extDest, join(ext(extDest), ext(extDest), ext(extDest), ext(extDest),
			ext(extDest), ext(ProtoTCP), ports)...)...), k6(ProtoTCP, true)},
		{"IPv6 seven extensions", eth(EtherTypeIPv6, ipv6(extDest, join(ext(extDest), ext(extDest), ext(extDest), ext(extDest),
			ext(extDest), ext(extDest), ext(ProtoTCP), ports)...)...), unread(UnreadUpper, k6(0, false))},
		{"IPv6 later fragment", eth(EtherTypeIPv6, ipv6(extFragment, join([]byte{ProtoUDP, 0, 0, 8, 0, 0, 0, 1}, ports)...)...), k6(ProtoUDP, false)},
		{"IPv6 later fragment hides extensions", eth(EtherTypeIPv6, ipv6(extFragment, join([]byte{extDest, 0, 0, 8, 0, 0, 0, 1}, ext(ProtoUDP), ports)...)...), unread(UnreadUpper, k6(0, false))},
		{"IPv6 first fragment", eth(EtherTypeIPv6, ipv6(extFragment, join([]byte{ProtoUDP, 0, 0, 1, 0, 0, 0, 1}, ports)...)...), k6(ProtoUDP, true)},
		{"IPv6 extension behind the end", eth(EtherTypeIPv6, ipv6(extDest, ProtoTCP, 9, 0, 0, 0, 0, 0, 0)...), k6(ProtoTCP, false)},
		{"IPv6 extension cut short", eth(EtherTypeIPv6, ipv6(extDest, ProtoTCP, 0, 0)...), unread(UnreadUpper, k6(0, false))},
		{"IPv6 mobility header is the upper layer", eth(EtherTypeIPv6, ipv6(135, ext(59)...)...), k6(135, false)},
		{"IPv6 two extensions behind the end", eth(EtherTypeIPv6, ipv6(extDest, extRouting, 9, 0, 0, 0, 0, 0, 0)...), unread(UnreadUpper, k6(0, false))},
		{"IPv6 header cut short", eth(EtherTypeIPv6, ipv6(ProtoTCP)[:39]...), unread(UnreadNetwork, with(EtherTypeIPv6, nil))},
		{"ARP has no addresses", eth(EtherTypeARP, make([]byte, 28)...), with(EtherTypeARP, nil)},
		{"unknown EtherType", eth(0x88cc), with(0x88cc, nil)},
		{"VLAN", eth(EtherTypeVLAN, join([]byte{0x60, 7, 8, 0}, ipv4(ProtoTCP, 0, ports...))...), vlan(7, k4(ProtoTCP, true))},
		{"priority tag", eth(EtherTypeVLAN, join([]byte{0x60, 0, 8, 0}, ipv4(ProtoTCP, 0, ports...))...), vlan(0, k4(ProtoTCP, true))},
		{"QinQ: the outer id", eth(EtherTypeQinQ, join([]byte{0, 5, 0x81, 0, 0, 6, 8, 0}, ipv4(ProtoTCP, 0, ports...))...), vlan(5, k4(ProtoTCP, true))},
		{"three tags", eth(EtherTypeQinQ, 0, 5, 0x81, 0, 0, 6, 0x81, 0, 0, 7, 8, 0), unread(UnreadNetwork, vlan(5, with(EtherTypeVLAN, nil)))},
		{"a length and SNAP", eth(46, join([]byte{0xaa, 0xaa, 3, 0, 0, 0, 8, 0}, ipv4(ProtoTCP, 0, ports...))...), k4(ProtoTCP, true)},
		{"a length and SNAP, tagged", eth(EtherTypeVLAN, join([]byte{0, 7, 0, 46, 0xaa, 0xaa, 3, 0, 0, 0, 8, 0}, ipv4(ProtoTCP, 0, ports...))...), vlan(7, k4(ProtoTCP, true))},
		{"a tag behind SNAP", eth(46, join([]byte{0xaa, 0xaa, 3, 0, 0, 0, 0x81, 0, 0, 7, 8, 0}, ipv4(ProtoTCP, 0, ports...))...), unread(UnreadNetwork, with(EtherTypeVLAN, nil))},
		{"a length and another LLC header", eth(38, join([]byte{0x42, 0x42, 3, 0, 0}, ports)...), with(38, nil)},
		{"tag cut short", eth(EtherTypeVLAN, 0, 5, 8), unread(UnreadNetwork, with(EtherTypeVLAN, nil))},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got, ok := Decode(tt.frame)
			if !ok {
				t.Fatal("a runt?")
			}
			if diff := cmp.Diff(tt.want, got, cmpAddr); diff != "" {
				t.Error(diff)
			}
		})
	}
	if _, ok := Decode(make([]byte, 13)); ok {
		t.Error("13 bytes are a frame?")
	}
}

var cmpAddr = cmp.Comparer(func(a, b netip.Addr) bool { return a == b })

func FuzzDecode(f *testing.F) {
	f.Add(eth(EtherTypeIPv4, ipv4(ProtoTCP, 0, 1, 2, 3, 4)...))
	f.Add(eth(EtherTypeQinQ, join([]byte{0, 5, 0x81, 0, 0, 6, 0x86, 0xdd}, ipv6(extFragment, ext(ProtoUDP)...))...))
	f.Add([]byte{})
	f.Fuzz(func(t *testing.T, frame []byte) {
		k, ok := Decode(frame)
		if ok != (len(frame) >= 14) {
			t.Fatalf("ok %t for %d bytes", ok, len(frame))
		}
		if k.HasPorts && !k.HasIP || k.HasIP && k.EtherType != EtherTypeIPv4 && k.EtherType != EtherTypeIPv6 {
			t.Fatalf("contradiction: %+v", k)
		}
		// What is behind the bytes looked at changes nothing.
		if long, _ := Decode(append(append([]byte{}, frame...), 0)); ok && k.HasPorts && long != k {
			t.Fatalf("%+v, with one more byte %+v", k, long)
		}
		_ = k.String()
	})
}

// Another decoder, written by others, must see the same in well-formed packets.
func TestDecodeAgreesWithGopacket(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		frame := wellFormed(t)
		got, ok := Decode(frame)
		if !ok {
			t.Fatal("a runt?")
		}
		if diff := cmp.Diff(oracle(frame), got, cmpAddr); diff != "" {
			t.Fatalf("% x\n%s", frame, diff)
		}
	})
}

func wellFormed(t *rapid.T) []byte {
	var stack []gopacket.SerializableLayer
	types := []layers.EthernetType{layers.EthernetTypeIPv4, layers.EthernetTypeIPv6, layers.EthernetTypeARP, 0x88b5}
	inner := rapid.SampledFrom(types).Draw(t, "ethertype")
	tags := rapid.IntRange(0, 2).Draw(t, "tags")
	e := &layers.Ethernet{SrcMAC: drawMAC(t), DstMAC: drawMAC(t), EthernetType: inner}
	stack = append(stack, e)
	if tags > 0 {
		e.EthernetType = layers.EthernetTypeDot1Q
	}
	for i := range tags {
		q := &layers.Dot1Q{VLANIdentifier: rapid.Uint16Range(0, 4094).Draw(t, "vlan"), Type: inner}
		if i < tags-1 {
			q.Type = layers.EthernetTypeDot1Q
		}
		stack = append(stack, q)
	}
	proto := rapid.SampledFrom([]layers.IPProtocol{layers.IPProtocolTCP, layers.IPProtocolUDP, layers.IPProtocolSCTP, layers.IPProtocolICMPv4}).Draw(t, "proto")
	upper := func() gopacket.SerializableLayer {
		src, dst := rapid.Uint16().Draw(t, "sport"), rapid.Uint16().Draw(t, "dport")
		switch proto {
		case layers.IPProtocolTCP:
			return &layers.TCP{SrcPort: layers.TCPPort(src), DstPort: layers.TCPPort(dst)}
		case layers.IPProtocolUDP:
			return &layers.UDP{SrcPort: layers.UDPPort(src), DstPort: layers.UDPPort(dst)}
		case layers.IPProtocolSCTP:
			return &layers.SCTP{SrcPort: layers.SCTPPort(src), DstPort: layers.SCTPPort(dst)}
		}
		return &layers.ICMPv4{TypeCode: layers.CreateICMPv4TypeCode(8, 0)}
	}
	switch inner {
	case layers.EthernetTypeIPv4:
		ip := &layers.IPv4{Version: 4, TTL: 9, Protocol: proto, SrcIP: drawBytes(t, 4), DstIP: drawBytes(t, 4)}
		if rapid.Bool().Draw(t, "options") {
			ip.Options = []layers.IPv4Option{{OptionType: 1}}
		}
		stack = append(stack, ip, upper())
	case layers.EthernetTypeIPv6:
		ip := &layers.IPv6{Version: 6, HopLimit: 9, NextHeader: proto, SrcIP: drawBytes(t, 16), DstIP: drawBytes(t, 16)}
		stack = append(stack, ip)
		if rapid.Bool().Draw(t, "destination options") {
			ip.NextHeader = layers.IPProtocolIPv6Destination
			d := &layers.IPv6Destination{Options: []*layers.IPv6DestinationOption{{OptionType: 1, OptionLength: 4, OptionData: make([]byte, 4)}}}
			d.NextHeader = proto
			stack = append(stack, d)
		}
		stack = append(stack, upper())
	}
	stack = append(stack, gopacket.Payload(drawBytes(t, rapid.IntRange(4, 60).Draw(t, "length"))))
	buf := gopacket.NewSerializeBuffer()
	if err := gopacket.SerializeLayers(buf, gopacket.SerializeOptions{FixLengths: true}, stack...); err != nil {
		t.Fatal(err)
	}
	return buf.Bytes()
}

func drawBytes(t *rapid.T, n int) []byte { return rapid.SliceOfN(rapid.Byte(), n, n).Draw(t, "bytes") }

func drawMAC(t *rapid.T) net.HardwareAddr { return drawBytes(t, 6) }

func oracle(frame []byte) Key {
	k := Key{VLAN: VLANNone}
	tags := 0
	for _, l := range gopacket.NewPacket(frame, layers.LayerTypeEthernet, gopacket.Default).Layers() {
		switch l := l.(type) {
		case *layers.Ethernet:
			k.SrcMAC, k.DstMAC, k.EtherType = MAC(l.SrcMAC), MAC(l.DstMAC), uint16(l.EthernetType)
		case *layers.Dot1Q:
			if tags++; tags == 1 {
				k.VLAN = l.VLANIdentifier
			}
			k.EtherType = uint16(l.Type)
		case *layers.IPv4:
			k.HasIP, k.Proto = true, uint8(l.Protocol)
			k.Src, _ = netip.AddrFromSlice(l.SrcIP)
			k.Dst, _ = netip.AddrFromSlice(l.DstIP)
		case *layers.IPv6:
			k.HasIP, k.Proto = true, uint8(l.NextHeader)
			k.Src, _ = netip.AddrFromSlice(l.SrcIP)
			k.Dst, _ = netip.AddrFromSlice(l.DstIP)
		case *layers.IPv6Destination:
			k.Proto = uint8(l.NextHeader)
		case *layers.TCP:
			k.HasPorts, k.SrcPort, k.DstPort = true, uint16(l.SrcPort), uint16(l.DstPort)
		case *layers.UDP:
			k.HasPorts, k.SrcPort, k.DstPort = true, uint16(l.SrcPort), uint16(l.DstPort)
		case *layers.SCTP:
			k.HasPorts, k.SrcPort, k.DstPort = true, uint16(l.SrcPort), uint16(l.DstPort)
		}
	}
	return k
}

func TestValidateNamesWhatIsWrong(t *testing.T) {
	prefix := netip.MustParsePrefix
	tests := []struct {
		name string
		m    Match
		ok   bool
	}{
		{"anything", Match{}, true},
		{"web", Match{Dst: prefix("10.0.0.0/8"), Proto: ProtoTCP, DstPorts: PortRange{80, 80}}, true},
		{"unicast only", Match{DstMACMask: MAC{1}}, true},
		{"untagged", Match{VLAN: VLANNone}, true},
		{"MAC outside its mask", Match{DstMAC: MAC{2}, DstMACMask: MAC{1}}, false},
		{"VLAN too great", Match{VLAN: 4095}, false},
		{"EtherType is a length", Match{EtherType: 0x5ff}, false},
		{"host bits", Match{Src: netip.PrefixFrom(v4A, 24)}, false},
		{"mapped", Match{Src: netip.PrefixFrom(netip.MustParseAddr("::ffff:1.2.3.4"), 128)}, false},
		{"two families", Match{Src: prefix("10.0.0.0/8"), Dst: prefix("fd00::/8")}, false},
		{"family against EtherType", Match{EtherType: EtherTypeARP, Dst: prefix("10.0.0.0/8")}, false},
		{"protocol of ARP", Match{EtherType: EtherTypeARP, Proto: ProtoTCP}, false},
		{"ports without protocol", Match{DstPorts: PortRange{80, 80}}, false},
		{"ports of ICMP", Match{Proto: ProtoICMP, SrcPorts: PortRange{80, 80}}, false},
		{"ports backwards", Match{Proto: ProtoTCP, DstPorts: PortRange{81, 80}}, false},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if err := tt.m.Validate(); (err == nil) != tt.ok {
				t.Errorf("got %v", err)
			}
		})
	}
	rules := []struct {
		name string
		r    Rule
	}{
		{"OutPort at ingress", Rule{Match: Match{OutPort: 1}}},
		{"too many clones", Rule{Action: Action{Clones: make([]Clone, MaxClones+1)}}},
		{"clone without port", Rule{Action: Action{Clones: []Clone{{}}}}},
		{"drop to a port", Rule{Action: Action{Op: Drop, Port: 1}}},
		{"unknown operation", Rule{Action: Action{Op: Resume + 1}}},
	}
	for _, tt := range rules {
		t.Run(tt.name, func(t *testing.T) {
			if tt.r.Validate() == nil {
				t.Error("accepted")
			}
		})
	}
}
