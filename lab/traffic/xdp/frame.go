package xdp

import (
	"encoding/binary"

	"weir.dev/weir/lab/traffic"
)

// A frame's payload begins with the fields (traffic.Fields bytes, network order): run (2), sequence number (4), time of departure in ns modulo
// 2^48 (6), and a balance (2) which makes the 16-bit sum of the fields behind run 0xffff. So the UDP checksum of all frames of a slot is
// the same, and a damaged field shows.

// MaxSlots is how many combinations of flows and sizes a run has at most.
const MaxSlots = 4096

// build makes the frame of one flow and wire size, fields zero, and says where these are.
func build(f traffic.Flow, size int, run uint16) (frame []byte, payload int) {
	b := make([]byte, 0, size)
	b = append(b, f.DstMAC[:]...)
	b = append(b, f.SrcMAC[:]...)
	if f.VLAN != 0 {
		b = binary.BigEndian.AppendUint16(b, 0x8100)
		b = binary.BigEndian.AppendUint16(b, f.VLAN)
	}
	total := size - traffic.FCS
	var pseudo uint32
	if f.Src.Is4() {
		b = binary.BigEndian.AppendUint16(b, 0x0800)
		length := total - len(b)
		ip := len(b)
		b = append(b, 0x45, 0, byte(length>>8), byte(length), 0, 0, 0x40, 0, 64, 17, 0, 0)
		b = append(b, f.Src.AsSlice()...)
		b = append(b, f.Dst.AsSlice()...)
		binary.BigEndian.PutUint16(b[ip+10:], ^fold(sum(b[ip:])))
		pseudo = sum(b[ip+12:])
	} else {
		b = binary.BigEndian.AppendUint16(b, 0x86dd)
		length := total - len(b) - 40
		ip := len(b)
		b = append(b, 0x60, 0, 0, 0, byte(length>>8), byte(length), 17, 64)
		b = append(b, f.Src.AsSlice()...)
		b = append(b, f.Dst.AsSlice()...)
		pseudo = sum(b[ip+8:])
	}
	udp := len(b)
	length := total - udp
	b = binary.BigEndian.AppendUint16(b, f.SrcPort)
	b = binary.BigEndian.AppendUint16(b, f.DstPort)
	b = binary.BigEndian.AppendUint16(b, uint16(length))
	b = append(b, 0, 0)
	payload = len(b)
	b = binary.BigEndian.AppendUint16(b, run)
	b = append(b, make([]byte, traffic.Fields-2)...)
	for x := uint32(run)*2654435761 + 1; len(b) < total; { // xorshift: no run of equal bytes for a checksum to miss
		x ^= x << 13
		x ^= x >> 17
		x ^= x << 5
		b = append(b, byte(x))
	}
	check := ^fold(pseudo + 17 + uint32(length) + sum(b[udp:]))
	if check == 0 {
		check = 0xffff
	}
	binary.BigEndian.PutUint16(b[udp+6:], check)
	return b, payload
}

// sum of the 16-bit words, an odd last byte padded.
func sum(b []byte) uint32 {
	var s uint32
	for ; len(b) >= 2; b = b[2:] {
		s += uint32(binary.BigEndian.Uint16(b))
	}
	if len(b) == 1 {
		s += uint32(b[0]) << 8
	}
	return s
}

func fold(s uint32) uint16 {
	for s > 0xffff {
		s = s>>16 + s&0xffff
	}
	return uint16(s)
}
