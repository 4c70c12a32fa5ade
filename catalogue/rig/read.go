package rig

import (
	"encoding/binary"
	"net/netip"

	"golang.org/x/sys/unix"
)

// Reading is what a station makes of a frame. It is another decoder than that of the functions, so that what they do can be judged by it: it looks behind any number of
// VLAN tags and extension headers.
type Reading struct {
	VLANs    []uint16   // ids of the tags, the outer one first
	Kind     uint16     // the EtherType behind them
	Src, Dst netip.Addr // of an IP header, proper or not
	Proper   bool       // an IP packet whose lengths fit
	Headers  int        // extension headers of IPv6
	Proto    int        // of the upper layer; -1: none can be found
	Offset   int        // of a fragment, in units of 8 bytes
	More     bool       // fragments follow
	Upper    []byte     // from the upper layer's header to the frame's end; of a later fragment of IPv6 nothing
	Size     int        // bytes from there on that are of the packet; padding may follow. Less than 0: headers go on in the padding
}

// Read a frame.
func Read(b []byte) Reading {
	r, at := Reading{Proto: -1}, 12
	for ; at+2 <= len(b); at += 4 {
		r.Kind = binary.BigEndian.Uint16(b[at:])
		if r.Kind != unix.ETH_P_8021Q && r.Kind != unix.ETH_P_8021AD {
			break
		}
		id := uint16(0)
		if at+4 <= len(b) {
			id = binary.BigEndian.Uint16(b[at+2:]) & 0xfff
		}
		r.VLANs = append(r.VLANs, id)
	}
	ip := b[min(at+2, len(b)):]
	switch {
	case r.Kind == unix.ETH_P_IP && len(ip) >= 20 && ip[0]>>4 == 4:
		r.Src, r.Dst = netip.AddrFrom4([4]byte(ip[12:])), netip.AddrFrom4([4]byte(ip[16:]))
		head, total := int(ip[0]&15)*4, int(binary.BigEndian.Uint16(ip[2:]))
		if head < 20 || head > total || total > len(ip) {
			break
		}
		fragment := binary.BigEndian.Uint16(ip[6:])
		r.Proper, r.Proto, r.Offset, r.More = true, int(ip[9]), int(fragment&0x1fff), fragment&0x2000 != 0
		r.Upper, r.Size = ip[head:], total-head
	case r.Kind == unix.ETH_P_IPV6 && len(ip) >= 40 && ip[0]>>4 == 6:
		r.Src, r.Dst = netip.AddrFrom16([16]byte(ip[8:])), netip.AddrFrom16([16]byte(ip[24:]))
		size := int(binary.BigEndian.Uint16(ip[4:]))
		if size == 0 && ip[6] == unix.IPPROTO_HOPOPTS { // as Linux reads it
			size = len(ip) - 40
		}
		if 40+size <= len(ip) {
			r.Proper = true
			r.behind(ip[6], ip[40:], size)
		}
	}
	return r
}

// behind extension headers of IPv6. An authentication header is a protocol of its own: who has no key for it takes nothing that is behind it.
func (r *Reading) behind(next byte, rest []byte, size int) {
	for {
		length := 8
		switch next {
		case unix.IPPROTO_HOPOPTS, unix.IPPROTO_ROUTING, unix.IPPROTO_DSTOPTS, unix.IPPROTO_FRAGMENT:
			if len(rest) < length {
				return
			}
		case unix.IPPROTO_NONE:
			return
		default:
			r.Proto, r.Upper, r.Size = int(next), rest, size
			return
		}
		r.Headers++
		if next != unix.IPPROTO_FRAGMENT {
			length += int(rest[1]) * 8
		} else {
			fragment := binary.BigEndian.Uint16(rest[2:])
			r.More = r.More || fragment&1 != 0
			if r.Offset = int(fragment >> 3); r.Offset > 0 {
				r.Proto, r.Size = int(rest[0]), size-length
				return
			}
		}
		if len(rest) < length { // they may go on in the padding: some receivers look at what is there
			return
		}
		next, rest, size = rest[0], rest[length:], size-length
	}
}

// Outside tells whether the frame is in no VLAN: its tags, if it has some, are of VLAN 0, and stations take those off.
func (r Reading) Outside() bool {
	for _, id := range r.VLANs {
		if id != 0 {
			return false
		}
	}
	return true
}

// Ports of TCP and UDP; -1: there are none in this frame.
func (r Reading) Ports() (src, dst int) {
	if r.Proto != unix.IPPROTO_TCP && r.Proto != unix.IPPROTO_UDP || r.Offset > 0 || r.Size < 4 {
		return -1, -1
	}
	return int(binary.BigEndian.Uint16(r.Upper)), int(binary.BigEndian.Uint16(r.Upper[2:]))
}

// Data of a segment of TCP, or of a datagram; of a first fragment those that it has. nil: there are none, or the lengths do not fit.
func (r Reading) Data() []byte {
	at, end := 8, r.Size
	switch {
	case r.Offset > 0 || r.Size < 8:
		return nil
	case r.Proto == unix.IPPROTO_TCP:
		if r.Size < 20 {
			return nil
		}
		at = int(r.Upper[12]>>4) * 4
	case r.Proto != unix.IPPROTO_UDP:
		return nil
	case !r.More:
		if n := int(binary.BigEndian.Uint16(r.Upper[4:])); n != 0 || r.Kind != unix.ETH_P_IPV6 { // Linux takes 0 for all that is there
			end = n
		}
	}
	if at < 8 || at > end || end > r.Size {
		return nil
	}
	return r.Upper[at:end]
}
