package nf

import (
	"bytes"
	"encoding/binary"
	"net/netip"
)

// EtherTypes and protocols.
const (
	EtherIPv4 = 0x0800
	EtherIPv6 = 0x86dd

	TCP = 6
	UDP = 17
)

// Flags of TCP.
const (
	FIN = 1 << iota
	SYN
	RST
	PSH
	ACK
	URG
)

// Part says which part of an IP packet a frame has.
type Part int

// Parts.
const (
	Whole Part = iota
	First      // a fragment, the one with the upper layer's header
	Later      // another fragment
)

// Packet is what Decode reads of a frame. Offsets count from the frame's begin; 0: not there.
type Packet struct {
	Tags             [2]uint16 // ids of the VLAN tags, the outer one first
	TagCount         int
	Type             uint16 // the EtherType behind them, or behind a SNAP header
	Network          int    // where the IP packet begins
	End              int    // where the IP packet ends (UDP: its data); what follows is padding
	Src, Dst         netip.Addr
	Part             Part
	ID               uint32 // of the packet that a fragment is of
	Offset           int    // of a later fragment's data in that packet, in bytes
	Proto            uint8  // the upper layer's protocol
	Transport        int    // where the upper layer begins; none in a later fragment
	SrcPort, DstPort uint16
	Payload          int // where the data of TCP or UDP begin
	Seq, Ack         uint32
	Flags            uint8
	Window           uint16
	// Bad says what is wrong with the packet: receivers may read it otherwise than we do, or not at all. Empty: it is no IP packet, or a
	// proper one. Fields up to the fault are set.
	Bad string
}

const (
	ethernetHeader = 14
	maxExtensions  = 8
)

// What is wrong where Decode stops to look, and receivers may not.
const (
	manyTags       = "more than two VLAN tags"
	manyExtensions = "too many IPv6 extension headers"
)

// Deeper tells whether receivers may find an upper layer where Decode has stopped to look: behind more tags (stations take those of VLAN 0 off, any number of them), or
// behind more extension headers.
func (p *Packet) Deeper() bool { return p.Bad == manyTags || p.Bad == manyExtensions }

// Decode reads a frame: up to two VLAN tags, IPv4 with options, IPv6 with up to eight extension headers, TCP, UDP. Checksums are not looked at.
func Decode(b []byte) (p Packet) {
	if len(b) < ethernetHeader {
		p.Bad = "no Ethernet header"
		return p
	}
	at := 12
	p.Type = binary.BigEndian.Uint16(b[at:])
	for isTag(p.Type) {
		if p.TagCount == len(p.Tags) {
			p.Bad = manyTags
			return p
		}
		if len(b) < at+6 {
			p.Bad = "cut in a VLAN tag"
			return p
		}
		p.Tags[p.TagCount] = binary.BigEndian.Uint16(b[at+2:]) & 0xfff
		p.TagCount++
		at += 4
		p.Type = binary.BigEndian.Uint16(b[at:])
	}
	at += 2
	if p.Type < 0x600 && len(b) >= at+8 && bytes.HasPrefix(b[at:], []byte{0xaa, 0xaa, 3, 0, 0, 0}) { // RFC 1042
		p.Type = binary.BigEndian.Uint16(b[at+6:])
		at += 8
	}
	switch p.Type {
	case EtherIPv4:
		p.ipv4(b, at)
	case EtherIPv6:
		p.ipv6(b, at)
	}
	return p
}

func isTag(t uint16) bool { return t == 0x8100 || t == 0x88a8 || t == 0x9100 }

func (p *Packet) ipv4(b []byte, at int) {
	p.Network = at
	h := b[at:]
	if len(h) < 20 || h[0]>>4 != 4 {
		p.Bad = "no IPv4 header"
		return
	}
	length, total := int(h[0]&15)*4, int(binary.BigEndian.Uint16(h[2:]))
	if length < 20 || total < length || total > len(h) {
		p.Bad = "IPv4 lengths"
		return
	}
	p.End = at + total
	p.Proto, p.Src, p.Dst = h[9], netip.AddrFrom4([4]byte(h[12:])), netip.AddrFrom4([4]byte(h[16:]))
	p.ID = uint32(binary.BigEndian.Uint16(h[4:]))
	switch fragment := binary.BigEndian.Uint16(h[6:]); {
	case fragment&0x1fff != 0:
		p.Part, p.Offset = Later, int(fragment&0x1fff)*8
		return
	case fragment&0x2000 != 0:
		p.Part = First
	}
	p.transport(b[:p.End], at+length)
}

// ipv6 passes extension headers (RFC 8200, section 4).
func (p *Packet) ipv6(b []byte, at int) {
	p.Network = at
	h := b[at:]
	if len(h) < 40 || h[0]>>4 != 6 {
		p.Bad = "no IPv6 header"
		return
	}
	total := 40 + int(binary.BigEndian.Uint16(h[4:]))
	jumbo := total == 40 && len(h) > 40 && h[6] == 0
	if jumbo { // a jumbogram, of which there are none so short. Without its option Linux takes all that is there for the packet
		total = len(h)
	}
	if total > len(h) {
		p.Bad = "IPv6 lengths"
		return
	}
	p.End = at + total
	p.Proto, p.Src, p.Dst = h[6], netip.AddrFrom16([16]byte(h[8:])), netip.AddrFrom16([16]byte(h[24:]))
	p.extensions(b[:p.End], at+40)
	if jumbo && p.Bad == "" {
		p.Bad = "IPv6 lengths"
	}
}

func (p *Packet) extensions(b []byte, at int) {
	for range maxExtensions + 1 {
		length := 8
		switch p.Proto {
		case 0, 43, 60: // hop-by-hop, routing, destination options
			if len(b) >= at+2 {
				length = (int(b[at+1]) + 1) * 8
			}
		case 51: // authentication
			if len(b) >= at+2 {
				length = (int(b[at+1]) + 2) * 4
			}
		case 44: // fragment
			if len(b) >= at+8 {
				p.ID = binary.BigEndian.Uint32(b[at+4:])
				switch f := binary.BigEndian.Uint16(b[at+2:]); {
				case f&0xfff8 != 0:
					p.Proto, p.Part, p.Offset = b[at], Later, int(f&0xfff8)
					return
				case f&1 != 0:
					p.Part = First
				}
			}
		default:
			p.transport(b, at)
			return
		}
		if len(b) < at+length {
			p.Bad = "cut in an IPv6 extension header"
			return
		}
		p.Proto = b[at]
		at += length
	}
	p.Bad = manyExtensions
}

func (p *Packet) transport(b []byte, at int) {
	p.Transport = at
	h := b[at:]
	switch p.Proto {
	case TCP:
		if len(h) >= 4 {
			p.ports(h)
		}
		if len(h) < 20 {
			p.Bad = "no TCP header"
			return
		}
		p.Seq, p.Ack = binary.BigEndian.Uint32(h[4:]), binary.BigEndian.Uint32(h[8:])
		p.Flags, p.Window = h[13], binary.BigEndian.Uint16(h[14:])
		length := int(h[12]>>4) * 4
		if length < 20 || length > len(h) {
			p.Bad = "TCP header length"
			return
		}
		p.Payload = at + length
	case UDP:
		if len(h) >= 4 {
			p.ports(h)
		}
		if len(h) < 8 {
			p.Bad = "no UDP header"
			return
		}
		p.Payload = at + 8
		length := int(binary.BigEndian.Uint16(h[4:]))
		if p.Part == First {
			return // of the whole packet
		}
		if length == 0 && p.Type == EtherIPv6 { // all that is there, as in a jumbogram; Linux takes it in any packet
			length = len(h)
		}
		if length < 8 || length > len(h) {
			p.Bad = "UDP length"
			return
		}
		p.End = at + length
	}
}

func (p *Packet) ports(h []byte) {
	p.SrcPort, p.DstPort = binary.BigEndian.Uint16(h), binary.BigEndian.Uint16(h[2:])
}

// Data of TCP or UDP.
func (p *Packet) Data(frame []byte) []byte {
	if p.Payload == 0 || p.Bad != "" {
		return nil
	}
	return frame[p.Payload:p.End]
}

// Segment is one of TCP that a function sends.
type Segment struct {
	Back     bool // to the sender of the frame that it is made like; else on, to that frame's receiver
	Seq, Ack uint32
	Flags    uint8
	Window   uint16
	Data     []byte // as much as the MTU allows
}

// MakeTCP makes a frame of the connection of a frame: with its addresses and VLAN tags.
func (p *Packet) MakeTCP(frame []byte, s Segment) Frame {
	h := make([]byte, 20, 20+len(s.Data))
	from, to := p.SrcPort, p.DstPort
	if s.Back {
		from, to = to, from
	}
	binary.BigEndian.PutUint16(h, from)
	binary.BigEndian.PutUint16(h[2:], to)
	binary.BigEndian.PutUint32(h[4:], s.Seq)
	binary.BigEndian.PutUint32(h[8:], s.Ack)
	h[12], h[13] = 5<<4, s.Flags
	binary.BigEndian.PutUint16(h[14:], s.Window)
	return p.wrap(frame, TCP, append(h, s.Data...), 16, s.Back)
}

// MakeUDP makes a frame with a datagram back to the sender of a frame, with its addresses and VLAN tags.
func (p *Packet) MakeUDP(frame, data []byte) Frame {
	h := make([]byte, 8, 8+len(data))
	binary.BigEndian.PutUint16(h, p.DstPort)
	binary.BigEndian.PutUint16(h[2:], p.SrcPort)
	binary.BigEndian.PutUint16(h[4:], uint16(8+len(data)))
	return p.wrap(frame, UDP, append(h, data...), 6, true)
}

const hops = 64

// wrap an upper layer's packet, whose checksum is at an offset.
func (p *Packet) wrap(frame []byte, proto uint8, upper []byte, checksum int, back bool) Frame {
	src, dst := p.Src.AsSlice(), p.Dst.AsSlice()
	out := make([]byte, p.Network, p.Network+40+len(upper))
	copy(out, frame)
	if back {
		src, dst = dst, src
		copy(out, frame[6:12])
		copy(out[6:], frame[:6])
	}
	sum := uint32(proto) + uint32(len(upper))
	sum = add(add(add(sum, src), dst), upper)
	if sum = fold(sum); proto == UDP && sum == 0 {
		sum = 0xffff // 0 would say: none
	}
	binary.BigEndian.PutUint16(upper[checksum:], uint16(sum))
	if len(src) == 4 {
		var h [20]byte
		h[0], h[6], h[8], h[9] = 0x45, 0x40, hops, proto // do not fragment
		binary.BigEndian.PutUint16(h[2:], uint16(20+len(upper)))
		copy(h[12:], src)
		copy(h[16:], dst)
		binary.BigEndian.PutUint16(h[10:], uint16(fold(add(0, h[:]))))
		out = append(out, h[:]...)
	} else {
		var h [40]byte
		h[0], h[6], h[7] = 0x60, proto, hops
		binary.BigEndian.PutUint16(h[4:], uint16(len(upper)))
		copy(h[8:], src)
		copy(h[24:], dst)
		out = append(out, h[:]...)
	}
	return NewFrame(append(out, upper...))
}

// add sums 16-bit words (RFC 1071). The sum of 64 KiB fits.
func add(sum uint32, b []byte) uint32 {
	for ; len(b) >= 2; b = b[2:] {
		sum += uint32(b[0])<<8 | uint32(b[1])
	}
	if len(b) == 1 {
		sum += uint32(b[0]) << 8
	}
	return sum
}

func fold(sum uint32) uint32 {
	for sum > 0xffff {
		sum = sum>>16 + sum&0xffff
	}
	return ^sum & 0xffff
}
