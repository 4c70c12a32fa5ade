package suite

import (
	"encoding/binary"
	"fmt"

	"weir.dev/weir/flow"
)

// mark of a frame: what tells it from all others, somewhere in its payload.
func mark(n int) []byte { return fmt.Appendf(nil, "weir-frame-%08d.", n) }

var broadcast = flow.MAC{255, 255, 255, 255, 255, 255}

// l2 is an Ethernet frame; tags are VLAN ids, outermost first (the outer of two is an 802.1ad one).
func l2(dst, src flow.MAC, tags []uint16, etherType uint16, payload []byte) []byte {
	b := append(dst[:], src[:]...)
	for i, id := range tags {
		tpid := flow.EtherTypeVLAN
		if i == 0 && len(tags) > 1 {
			tpid = flow.EtherTypeQinQ
		}
		b = binary.BigEndian.AppendUint16(b, tpid)
		b = binary.BigEndian.AppendUint16(b, id|3<<13) // with a priority
	}
	return append(binary.BigEndian.AppendUint16(b, etherType), payload...)
}

func ipv4(src, dst byte, proto, ttl uint8, fragment uint16, payload []byte) []byte {
	b := []byte{0x45, 0x10, 0, 0, 0x12, 0x34, byte(fragment >> 8), byte(fragment), ttl, proto, 0, 0, 10, 9, 0, src, 10, 9, 0, dst}
	binary.BigEndian.PutUint16(b[2:], uint16(20+len(payload)))
	binary.BigEndian.PutUint16(b[10:], ^sum(b))
	return append(b, payload...)
}

func sum(b []byte) uint16 {
	var s uint32
	for i := 0; i+1 < len(b); i += 2 {
		s += uint32(binary.BigEndian.Uint16(b[i:]))
	}
	for s > 0xffff {
		s = s>>16 + s&0xffff
	}
	return uint16(s)
}

// ipv6 with extension headers of these types, eight bytes each, before the upper layer.
func ipv6(src, dst byte, proto, hops uint8, extensions []byte, payload []byte) []byte {
	b := make([]byte, 40)
	b[0], b[7] = 0x60, hops
	copy(b[8:], []byte{0xfd, 0x57})
	copy(b[24:], []byte{0xfd, 0x57})
	b[23], b[39] = src, dst
	next := append(extensions[:len(extensions):len(extensions)], proto)
	b[6] = next[0]
	for i := range extensions {
		b = append(b, next[i+1], 0, 0, 0, 0, 0, 0, 0)
	}
	b = append(b, payload...)
	binary.BigEndian.PutUint16(b[4:], uint16(len(b)-40))
	return b
}

func ports(src, dst uint16, rest ...byte) []byte {
	b := binary.BigEndian.AppendUint16(nil, src)
	return append(binary.BigEndian.AppendUint16(b, dst), rest...)
}

func tcp(src, dst uint16, mark []byte) []byte {
	return append(ports(src, dst, 0, 0, 0, 1, 0, 0, 0, 1, 0x50, 0x18, 1, 0, 0xab, 0xcd, 0, 0), mark...)
}

func udp(src, dst uint16, mark []byte) []byte {
	return append(ports(src, dst, 0, byte(8+len(mark)), 0xab, 0xcd), mark...)
}

func arp(op byte, src, dst flow.MAC, mark []byte) []byte {
	b := []byte{0, 1, 8, 0, 6, 4, 0, op}
	b = append(append(b, src[:]...), 10, 9, 0, 1)
	b = append(append(b, dst[:]...), 10, 9, 0, 2)
	return append(b, mark...) // trailing bytes are padding to ARP
}
