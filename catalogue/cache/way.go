package main

import (
	"encoding/binary"
	"net/netip"

	"weir.dev/weir/catalogue/nf"
)

// way is where a segment goes that came with other addresses.
type way struct {
	link             []byte // the header of Ethernet, tags included
	src, dst         netip.Addr
	srcPort, dstPort uint16 // 0: as it is
}

const (
	dontFragment = 0x4000
)

// put a segment on its way. Its headers of IP are made new, without options; what they say of congestion, class and fragments goes on. The checksum of TCP is
// adjusted and not computed, so that a damaged one stays so.
func (w way) put(f nf.Frame, p *nf.Packet) nf.Frame {
	class, ttl, id, fragments := about(f.Data[p.Network:], p)
	headers := make([]byte, len(w.link), len(w.link)+40)
	copy(headers, w.link)
	length := p.End - p.Transport
	if w.src.Is4() {
		var h [20]byte
		h[0], h[1], h[8], h[9] = 0x45, class, ttl, nf.TCP
		binary.BigEndian.PutUint16(h[2:], uint16(20+length))
		binary.BigEndian.PutUint16(h[4:], id)
		binary.BigEndian.PutUint16(h[6:], fragments)
		copy(h[12:], w.src.AsSlice())
		copy(h[16:], w.dst.AsSlice())
		sum := [2]byte{0xff, 0xff} // of a header of zeros
		nf.Adjust(sum[:], make([]byte, len(h)), h[:])
		copy(h[10:], sum[:])
		headers = append(headers, h[:]...)
	} else {
		var h [40]byte
		h[0], h[1], h[6], h[7] = 0x60|class>>4, class<<4, nf.TCP, ttl
		binary.BigEndian.PutUint16(h[4:], uint16(length))
		copy(h[8:], w.src.AsSlice())
		copy(h[24:], w.dst.AsSlice())
		headers = append(headers, h[:]...)
	}
	out := f.Readdressed(headers, p, !w.src.Is4())
	w.adjust(out.Data[len(headers):], p, f.ChecksumMissing())
	return out
}

// about a packet: its traffic class, TTL, IPv4 identification and flags of fragments.
func about(ip []byte, p *nf.Packet) (class, ttl uint8, id, fragments uint16) {
	if p.Type == nf.EtherIPv6 {
		return ip[0]<<4 | ip[1]>>4, ip[7], 0, dontFragment
	}
	return ip[1], ip[8], binary.BigEndian.Uint16(ip[4:]), binary.BigEndian.Uint16(ip[6:]) & dontFragment
}

// adjust TCP's header to other addresses and ports. missing: the checksum is left to the hardware, and its field has the sum of the pseudo header, which has no
// ports.
func (w way) adjust(tcp []byte, p *nf.Packet, missing bool) {
	before, after := append(wide(p.Src), wide(p.Dst)...), append(wide(w.src), wide(w.dst)...)
	sum := tcp[16:18]
	if missing {
		sum[0], sum[1] = ^sum[0], ^sum[1]
	} else {
		before = append(before, tcp[:4]...)
	}
	for i, port := range []uint16{w.srcPort, w.dstPort} {
		if port != 0 {
			binary.BigEndian.PutUint16(tcp[2*i:], port)
		}
	}
	if !missing {
		after = append(after, tcp[:4]...)
	}
	nf.Adjust(sum, before, after)
	if missing {
		sum[0], sum[1] = ^sum[0], ^sum[1]
	}
}

// wide is an address in 16 bytes; zeros do not change a sum.
func wide(a netip.Addr) []byte {
	b := make([]byte, 16)
	copy(b, a.AsSlice())
	return b
}
