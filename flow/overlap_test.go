package flow

import (
	"net/netip"
	"testing"

	"pgregory.net/rapid"
)

func TestOverlapShowsAFrame(t *testing.T) {
	prefix := netip.MustParsePrefix
	web := Match{Dst: prefix("10.9.0.0/24"), Proto: ProtoTCP, DstPorts: PortRange{80, 90}}
	tests := []struct {
		name string
		a, b Match
		want string // empty: none
	}{
		{"anything", Match{}, Match{}, "tcp 10.0.0.1:1024 -> 10.0.0.2:80"},
		{"ports meet", web, Match{Proto: ProtoTCP, DstPorts: PortRange{85, 99}}, "tcp 10.0.0.1:1024 -> 10.9.0.1:85"},
		{"ports do not", web, Match{Proto: ProtoTCP, DstPorts: PortRange{91, 99}}, ""},
		{"other protocol", web, Match{Proto: ProtoUDP}, ""},
		{"other family", web, Match{EtherType: EtherTypeIPv6}, ""},
		{"nested prefixes", web, Match{Src: prefix("192.0.2.0/24"), Dst: prefix("10.9.0.128/25")}, "tcp 192.0.2.1:1024 -> 10.9.0.129:80"},
		{"disjoint prefixes", web, Match{Dst: prefix("10.9.1.0/24")}, ""},
		{"ARP and addresses", web, Match{EtherType: EtherTypeARP}, ""},
		{"ARP", Match{}, Match{EtherType: EtherTypeARP, VLAN: 7}, "vlan 7 arp 02:00:00:00:00:01 -> 02:00:00:00:00:02"},
		{"ICMPv6", Match{Proto: ProtoICMPv6}, Match{Src: prefix("fd00::7/128")}, "icmpv6 fd00::7 -> fd00::2"},
		{"other VLAN", Match{VLAN: 7}, Match{VLAN: 8}, ""},
		{"tagged and untagged", Match{VLAN: 7}, Match{VLAN: VLANNone}, ""},
		{"MAC masks meet", Match{DstMACMask: MAC{1}}, Match{DstMAC: macB, DstMACMask: MAC{255, 255, 255, 255, 255, 255}, EtherType: 0x88cc},
			"ethertype 0x88cc 02:00:00:00:00:01 -> 02:00:00:00:00:0b"},
		{"multicast and unicast", Match{DstMACMask: MAC{1}}, Match{DstMAC: MAC{1}, DstMACMask: MAC{1}}, ""},
		{"fabric tag", Match{Tag: 3600, VLAN: 7}, Match{Tag: 3600, Proto: ProtoTCP}, "fabric tag 3600 vlan 7 tcp 10.0.0.1:1024 -> 10.0.0.2:80"},
		{"fabric tag and none", Match{Tag: 3600}, Match{}, ""},
		{"other fabric tag", Match{Tag: 3600}, Match{Tag: 3601}, ""},
		{"other port", Match{InPort: 1}, Match{InPort: 2}, ""},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			_, k, ok := Overlap(tt.a, tt.b)
			got := ""
			if ok {
				got = k.String()
			}
			expect(t, got, tt.want)
		})
	}
}

func TestOverlapIsRight(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		a, b := drawMatch(t), drawMatch(t)
		frame, k, ok := Overlap(a, b)
		if ok {
			m, _ := Intersect(a, b)
			decode := Decode
			if m.Tag != 0 {
				decode = DecodeFabric
			}
			again, whole := decode(frame)
			if !whole || again != k || !a.Matches(k, m.InPort, m.OutPort) || !b.Matches(k, m.InPort, m.OutPort) {
				t.Fatalf("%s is not matched by both %+v and %+v", k, a, b)
			}
		}
		// No random frame says otherwise, and the intersection is exact.
		m, some := Intersect(a, b)
		if some {
			if err := m.Validate(); err != nil {
				t.Fatalf("intersection %+v: %v", m, err)
			}
		}
		for range 30 {
			k, in, out := drawKey(t), drawPort(t), drawPort(t)
			both := a.Matches(k, in, out) && b.Matches(k, in, out)
			if both && !ok && k.SrcPort|k.DstPort != 0 {
				t.Fatalf("%+v matches both %+v and %+v, but no overlap was found", k, a, b)
			}
			if some && both != m.Matches(k, in, out) {
				t.Fatalf("%+v: both match %t, their intersection %+v not", k, both, m)
			}
		}
	})
}
