package nf

import "encoding/binary"

// Intact tells whether the checksums of a packet of TCP or UDP are right, of IPv4, too; UDP over IPv4 may have none. Not for a frame whose
// checksum is missing, and not for a fragment.
func (p *Packet) Intact(frame []byte) bool {
	if h := frame[p.Network:p.Transport]; p.Src.Is4() && fold(add(0, h)) != 0 {
		return false
	}
	upper := frame[p.Transport:p.End]
	if p.Proto == UDP && binary.BigEndian.Uint16(upper[6:]) == 0 {
		return p.Src.Is4()
	}
	return p.checksum(upper) == 0
}

// Complete computes the checksum of TCP or UDP that a local sender left to the hardware, in bytes that may be changed: a copy of the frame.
func (p *Packet) Complete(frame []byte) {
	upper, at := frame[p.Transport:p.End], 16
	if p.Proto == UDP {
		at = 6
	}
	clear(upper[at : at+2])
	c := p.checksum(upper)
	if c == 0 && p.Proto == UDP {
		c = 0xffff
	}
	binary.BigEndian.PutUint16(upper[at:], c)
}

func (p *Packet) checksum(upper []byte) uint16 {
	sum := uint32(p.Proto) + uint32(len(upper))
	return uint16(fold(add(add(add(sum, p.Src.AsSlice()), p.Dst.AsSlice()), upper)))
}

// Adjust a checksum to bytes at an even place that are others now (RFC 1624): what came damaged stays so. before and after are of one length.
func Adjust(checksum, before, after []byte) {
	sum := uint32(^binary.BigEndian.Uint16(checksum))
	for len(before) > 0 {
		var b, a uint16
		if len(before) == 1 {
			b, a = uint16(before[0])<<8, uint16(after[0])<<8
			before, after = nil, nil
		} else {
			b, a = binary.BigEndian.Uint16(before), binary.BigEndian.Uint16(after)
			before, after = before[2:], after[2:]
		}
		sum += uint32(^b) + uint32(a)
		sum = sum>>16 + sum&0xffff
	}
	sum = sum>>16 + sum&0xffff
	binary.BigEndian.PutUint16(checksum, ^uint16(sum))
}
