package nf

import (
	"bytes"
	"encoding/binary"
	"net/netip"
)

// End of a packet.
type End int

// Ends.
const (
	Source End = iota
	Target
)

// ICMP of both families.
const (
	ICMP   = 1
	ICMPv6 = 58

	icmpHeader = 8
	echoID     = 4 // offset of the id of an echo request and its answer
)

// Rewrite one end of a packet of TCP, UDP or ICMP echo, whose id stands for a port, in bytes that may be changed. Checksums are adjusted and not computed, so that
// what came damaged stays so (RFC 1624). A later fragment has an address only. missing: the checksum is left to the hardware, and its field has the pseudo header's sum.
func (p *Packet) Rewrite(frame []byte, e End, to netip.AddrPort, missing bool) {
	old, now := rewriteAddress(frame[p.Network:], e, to.Addr())
	if p.Part != Later {
		rewriteUpper(frame[p.Transport:], p.Proto, e, &old, &now, to.Port(), missing)
	}
}

// RewriteAddress is Rewrite for a packet without ports: an ICMP error.
func (p *Packet) RewriteAddress(frame []byte, e End, to netip.Addr) {
	old, now := rewriteAddress(frame[p.Network:], e, to)
	if p.Proto == ICMPv6 && p.Part != Later {
		Adjust(frame[p.Transport+2:], old.bytes(), now.bytes())
	}
}

// RewriteHops sets the TTL or hop limit.
func (p *Packet) RewriteHops(frame []byte, hops uint8) {
	ip := frame[p.Network:]
	if p.Type == EtherIPv6 {
		ip[7] = hops
		return
	}
	old := [2]byte{ip[8], ip[9]}
	ip[8] = hops
	Adjust(ip[10:], old[:], ip[8:10])
}

// address as it stands in a packet.
type address struct {
	b [16]byte
	n int
}

func (a *address) bytes() []byte { return a.b[:a.n] }

// rewriteAddress replaces one in an IP header.
func rewriteAddress(ip []byte, e End, to netip.Addr) (old, now address) {
	at := 8
	if to.Is4() {
		at = 12
		v4 := to.As4()
		now.n = copy(now.b[:], v4[:])
	} else {
		now.b = to.As16()
		now.n = len(now.b)
	}
	field := ip[at+now.n*int(e):][:now.n]
	old.n = copy(old.b[:], field)
	copy(field, now.bytes())
	if to.Is4() {
		Adjust(ip[10:], old.bytes(), now.bytes())
	}
	return old, now
}

// rewriteUpper replaces a port in a header of the upper layer, of which at least 8 bytes are there, and adjusts the checksum if it is.
func rewriteUpper(h []byte, proto uint8, e End, old, now *address, port uint16, missing bool) {
	at, checksum := 2*int(e), 16
	switch proto {
	case UDP:
		checksum = 6
	case ICMP, ICMPv6:
		at, checksum = echoID, 2
	}
	before, after := [2]byte(h[at:]), [2]byte{byte(port >> 8), byte(port)}
	copy(h[at:], after[:])
	if len(h) < checksum+2 {
		return // in an ICMP error, which need not have more
	}
	sum := h[checksum : checksum+2]
	switch {
	case proto == ICMP:
		Adjust(sum, before[:], after[:])
	case missing:
		sum[0], sum[1] = ^sum[0], ^sum[1]
		Adjust(sum, old.bytes(), now.bytes())
		sum[0], sum[1] = ^sum[0], ^sum[1]
	case proto == UDP && sum[0] == 0 && sum[1] == 0: // there is none
	default:
		Adjust(sum, old.bytes(), now.bytes())
		Adjust(sum, before[:], after[:])
		if proto == UDP && sum[0] == 0 && sum[1] == 0 {
			sum[0], sum[1] = 0xff, 0xff
		}
	}
}

// Quoted is the packet that an ICMP error is about.
type Quoted struct {
	Proto          uint8
	Source, Target netip.AddrPort // of ICMP echo: the id is the port of both
	network, upper int            // offsets in the frame
}

// Quote reads it from a packet of ICMP or ICMPv6. false: the packet is no error, or is about none of TCP, UDP and ICMP echo.
func (p *Packet) Quote(frame []byte) (q Quoted, ok bool) {
	at := p.Transport + icmpHeader
	if p.Bad != "" || p.Part != Whole || p.Transport == 0 || p.End < at+20 || !icmpError(p, frame[p.Transport]) {
		return q, false
	}
	ip := frame[at:p.End]
	head := int(ip[0]&15) * 4
	var src, dst netip.Addr
	switch {
	case p.Type == EtherIPv4 && ip[0]>>4 == 4 && head >= 20 && len(ip) >= head+icmpHeader && binary.BigEndian.Uint16(ip[6:])&0x1fff == 0:
		q.Proto, src, dst = ip[9], netip.AddrFrom4([4]byte(ip[12:])), netip.AddrFrom4([4]byte(ip[16:]))
	case p.Type == EtherIPv6 && ip[0]>>4 == 6 && len(ip) >= 40+icmpHeader:
		head = 40
		q.Proto, src, dst = ip[6], netip.AddrFrom16([16]byte(ip[8:])), netip.AddrFrom16([16]byte(ip[24:]))
	default:
		return q, false
	}
	q.network, q.upper = at, at+head
	h := ip[head:]
	switch echo := h[0] == 0 || h[0] == 8; {
	case q.Proto == TCP || q.Proto == UDP:
		q.Source, q.Target = netip.AddrPortFrom(src, binary.BigEndian.Uint16(h)), netip.AddrPortFrom(dst, binary.BigEndian.Uint16(h[2:]))
	case q.Proto == ICMP && p.Type == EtherIPv4 && echo, q.Proto == ICMPv6 && p.Type == EtherIPv6 && (h[0] == 128 || h[0] == 129):
		id := binary.BigEndian.Uint16(h[echoID:])
		q.Source, q.Target = netip.AddrPortFrom(src, id), netip.AddrPortFrom(dst, id)
	default:
		return q, false
	}
	return q, true
}

// icmpError tells whether a type says that something became of another packet.
func icmpError(p *Packet, kind uint8) bool {
	if p.Proto == ICMPv6 && p.Type == EtherIPv6 {
		return kind >= 1 && kind <= 4
	}
	return p.Proto == ICMP && p.Type == EtherIPv4 && (kind == 3 || kind == 4 || kind == 11 || kind == 12) // unreachable, source quench, time exceeded, parameter problem
}

// Requote rewrites one end of the quoted packet, and the error's checksum. It may be cut anywhere behind its first 8 bytes.
func (q *Quoted) Requote(frame []byte, p *Packet, e End, to netip.AddrPort) {
	body := frame[q.network:p.End]
	before := bytes.Clone(body)
	old, now := rewriteAddress(body, e, to.Addr())
	rewriteUpper(frame[q.upper:p.End], q.Proto, e, &old, &now, to.Port(), false)
	Adjust(frame[p.Transport+2:], before, body)
}
