package nf

import (
	"bytes"
	"fmt"
	"net"
	"testing"

	"github.com/gopacket/gopacket"
	"github.com/gopacket/gopacket/layers"
)

// Checksums as another library makes them are right, each change of a byte that they cover makes them wrong, and missing ones are computed.
func TestChecksums(t *testing.T) {
	for _, v6 := range []bool{false, true} {
		for _, tcp := range []bool{false, true} {
			for _, payload := range []int{0, 1, 2, 33} {
				t.Run(fmt.Sprint(v6, tcp, payload), func(t *testing.T) {
					frame := checksummed(t, v6, tcp, payload)
					p := Decode(frame)
					if !p.Intact(frame) {
						t.Fatal("it is intact")
					}
					for i := p.Transport; i < p.End; i++ {
						if p.Proto == UDP && (i == p.Transport+4 || i == p.Transport+5) {
							continue // the length
						}
						changed := bytes.Clone(frame)
						changed[i] ^= 0x40
						if p := Decode(changed); p.Intact(changed) {
							t.Errorf("byte %d is another", i)
						}
					}
					missing := bytes.Clone(frame)
					at := map[bool]int{false: 6, true: 16}[tcp]
					missing[p.Transport+at] ^= 0x55
					p.Complete(missing)
					if !bytes.Equal(missing, frame) {
						t.Errorf("completed\n% x\nwant\n% x", missing, frame)
					}
				})
			}
		}
	}
	frame := checksummed(t, false, false, 5)
	frame[24], frame[25] = 0, 0 // of IPv4
	if p := Decode(frame); p.Intact(frame) {
		t.Error("the header's checksum is wrong")
	}
	for _, v6 := range []bool{false, true} {
		frame := checksummed(t, v6, false, 5)
		p := Decode(frame)
		clear(frame[p.Transport+6 : p.Transport+8])
		if p.Intact(frame) == v6 {
			t.Errorf("no checksum, IPv6 %t", v6)
		}
	}
}

func checksummed(t *testing.T, v6, tcp bool, payload int) []byte {
	t.Helper()
	eth := &layers.Ethernet{SrcMAC: net.HardwareAddr{2, 0, 0, 0, 0, 1}, DstMAC: net.HardwareAddr{2, 0, 0, 0, 0, 2}, EthernetType: layers.EthernetTypeIPv4}
	proto := layers.IPProtocolUDP
	if tcp {
		proto = layers.IPProtocolTCP
	}
	var ip interface {
		gopacket.SerializableLayer
		gopacket.NetworkLayer
	} = &layers.IPv4{Version: 4, TTL: 9, Protocol: proto, SrcIP: net.IPv4(10, 0, 0, 1), DstIP: net.IPv4(10, 0, 0, 2)}
	if v6 {
		eth.EthernetType = layers.EthernetTypeIPv6
		ip = &layers.IPv6{Version: 6, HopLimit: 9, NextHeader: proto, SrcIP: net.ParseIP("2001:db8::1"), DstIP: net.ParseIP("2001:db8::2")}
	}
	data := gopacket.Payload(bytes.Repeat([]byte{0xab}, payload))
	var upper interface {
		gopacket.SerializableLayer
		SetNetworkLayerForChecksum(gopacket.NetworkLayer) error
	} = &layers.UDP{SrcPort: 1000, DstPort: 53}
	if tcp {
		upper = &layers.TCP{SrcPort: 1000, DstPort: 53, Seq: 7, SYN: true, Window: 9}
	}
	must(t, upper.SetNetworkLayerForChecksum(ip))
	buf := gopacket.NewSerializeBuffer()
	must(t, gopacket.SerializeLayers(buf, gopacket.SerializeOptions{FixLengths: true, ComputeChecksums: true}, eth, ip, upper, data))
	return buf.Bytes()
}
