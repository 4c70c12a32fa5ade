package hostile

import (
	"encoding/binary"
	"net/netip"
	"slices"
)

// Frames of the attacks. Nothing here needs to be right but what an attack depends on.

var (
	everybody = []byte{255, 255, 255, 255, 255, 255}
	allNodes  = []byte{0x33, 0x33, 0, 0, 0, 1}
)

func frame(dst, src []byte, kind uint16, payload ...[]byte) []byte {
	b := slices.Concat(dst, src, []byte{byte(kind >> 8), byte(kind)})
	b = slices.Concat(append([][]byte{b}, payload...)...)
	return append(b, make([]byte, max(0, 60-len(b)))...)
}

// tagged puts a VLAN tag on a frame.
func tagged(b []byte, tpid, id uint16) []byte {
	return slices.Concat(b[:12], []byte{byte(tpid >> 8), byte(tpid), byte(id >> 8), byte(id)}, b[12:])
}

func arp(op byte, senderMAC []byte, sender string, targetMAC []byte, target string) []byte {
	return slices.Concat([]byte{0, 1, 8, 0, 6, 4, 0, op}, senderMAC, raw(sender), targetMAC, raw(target))
}

func raw(address string) []byte { return netip.MustParseAddr(address).AsSlice() }

func sum(parts ...[]byte) uint16 {
	s := uint32(0)
	b := slices.Concat(parts...)
	if len(b)%2 == 1 {
		b = append(b, 0)
	}
	for i := 0; i < len(b); i += 2 {
		s += uint32(binary.BigEndian.Uint16(b[i:]))
	}
	for s > 0xffff {
		s = s>>16 + s&0xffff
	}
	return ^uint16(s)
}

// six is an IPv6 packet with the checksum of its message at the offset.
func six(src, dst string, proto byte, at int, message ...[]byte) []byte {
	m := slices.Concat(message...)
	length := []byte{byte(len(m) >> 8), byte(len(m))}
	binary.BigEndian.PutUint16(m[at:], sum(raw(src), raw(dst), length, []byte{0, proto}, m))
	return slices.Concat([]byte{0x60, 0, 0, 0}, length, []byte{proto, 255}, raw(src), raw(dst), m)
}

func icmp6(src, dst string, message ...[]byte) []byte { return six(src, dst, 58, 2, message...) }

func udp6(src, dst string, from, to uint16, payload string) []byte {
	return six(src, dst, 17, 6, udp(from, to, payload))
}

func udp(from, to uint16, payload string) []byte {
	b := binary.BigEndian.AppendUint16(binary.BigEndian.AppendUint16(nil, from), to)
	return append(binary.BigEndian.AppendUint16(b, uint16(8+len(payload))), append([]byte{0, 0}, payload...)...)
}

func udp4(src, dst string, from, to uint16, payload string) []byte {
	m := udp(from, to, payload) // without a checksum, which IPv4 allows
	h := slices.Concat([]byte{0x45, 0, 0, byte(20 + len(m)), 0, 7, 0, 0, 64, 17, 0, 0}, raw(src), raw(dst))
	binary.BigEndian.PutUint16(h[10:], sum(h))
	return append(h, m...)
}

// option of neighbour discovery with a link-layer address.
func option(kind byte, mac []byte) []byte { return append([]byte{kind, 1}, mac...) }

// advertisement of a prefix by a router that lives for half an hour.
func advertisement(mac []byte) []byte {
	prefix := slices.Concat([]byte{3, 4, 64, 0xc0, 0, 0, 0x07, 8, 0, 0, 0x07, 8, 0, 0, 0, 0}, raw("2001:db8:bad::"))
	return slices.Concat([]byte{134, 0, 0, 0, 64, 0, 0x07, 8, 0, 0, 0, 0, 0, 0, 0, 0}, prefix, option(1, mac))
}
