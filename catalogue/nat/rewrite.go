package main

import (
	"bytes"
	"encoding/binary"
	"net/netip"

	"weir.dev/weir/catalogue/nf"
)

// Offsets in headers.
const (
	ipChecksum = 10
	ipSource   = 12
	ipTarget   = 16

	echoID = 4 // of an echo request and its answer
)

// end of a packet that is rewritten.
type end int

const (
	source end = iota
	target
)

// rewrite one end of a packet in bytes that may be changed. Checksums are adjusted and not computed, so that what came damaged stays so (RFC 1624).
// missing: the checksum is left to the hardware, and its field has the pseudo header's sum.
func rewrite(frame []byte, p *nf.Packet, e end, to netip.AddrPort, missing bool) {
	old, addr := address(frame[p.Network:], e, to.Addr())
	if p.Part == nf.Later {
		return
	}
	upper(frame[p.Transport:], p.Proto, e, old, addr, to.Port(), missing)
}

// address replaces one in an IPv4 header.
func address(ip []byte, e end, to netip.Addr) (old, addr [4]byte) {
	at := ipSource + 4*int(e)
	old, addr = [4]byte(ip[at:]), to.As4()
	copy(ip[at:], addr[:])
	nf.Adjust(ip[ipChecksum:], old[:], addr[:])
	return old, addr
}

// upper replaces a port in a header of the upper layer, of which at least 8 bytes are there, and adjusts the checksum if it is.
func upper(h []byte, proto uint8, e end, old, addr [4]byte, port uint16, missing bool) {
	at, checksum := 2*int(e), 16
	switch proto {
	case nf.UDP:
		checksum = 6
	case icmp:
		at, checksum = echoID, 2
	}
	before, after := [2]byte(h[at:]), binary.BigEndian.AppendUint16(nil, port)
	copy(h[at:], after)
	if len(h) < checksum+2 {
		return // in an ICMP error, which need not have more
	}
	sum := h[checksum : checksum+2]
	switch {
	case proto == icmp:
		nf.Adjust(sum, before[:], after)
	case missing:
		sum[0], sum[1] = ^sum[0], ^sum[1]
		nf.Adjust(sum, old[:], addr[:])
		sum[0], sum[1] = ^sum[0], ^sum[1]
	case proto == nf.UDP && sum[0] == 0 && sum[1] == 0: // there is none
	default:
		nf.Adjust(sum, old[:], addr[:])
		nf.Adjust(sum, before[:], after)
		if proto == nf.UDP && sum[0] == 0 && sum[1] == 0 {
			sum[0], sum[1] = 0xff, 0xff
		}
	}
}

// quoted is the packet that an ICMP error is about.
type quoted struct {
	proto          uint8
	source, target netip.AddrPort
	network, upper int // offsets in the frame
}

const icmpHeader = 8

// quote reads it. false: it is none that a session can have.
func quote(frame []byte, p *nf.Packet) (q quoted, ok bool) {
	at := p.Transport + icmpHeader
	if p.End < at+20 {
		return q, false
	}
	ip := frame[at:p.End]
	head := int(ip[0]&15) * 4
	if ip[0]>>4 != 4 || head < 20 || len(ip) < head+8 || binary.BigEndian.Uint16(ip[6:])&0x1fff != 0 {
		return q, false
	}
	h := ip[head:]
	q = quoted{proto: ip[9], network: at, upper: at + head}
	src, dst := netip.AddrFrom4([4]byte(ip[ipSource:])), netip.AddrFrom4([4]byte(ip[ipTarget:]))
	switch {
	case q.proto == nf.TCP || q.proto == nf.UDP:
		q.source, q.target = netip.AddrPortFrom(src, binary.BigEndian.Uint16(h)), netip.AddrPortFrom(dst, binary.BigEndian.Uint16(h[2:]))
	case q.proto == icmp && echo(h[0]):
		id := binary.BigEndian.Uint16(h[echoID:])
		q.source, q.target = netip.AddrPortFrom(src, id), netip.AddrPortFrom(dst, id)
	default:
		return q, false
	}
	return q, true
}

// requote rewrites one end of the quoted packet, and the error's checksum. It may be cut anywhere behind its first 8 bytes.
func (q *quoted) requote(frame []byte, p *nf.Packet, e end, to netip.AddrPort) {
	body := frame[q.network:p.End]
	before := bytes.Clone(body)
	old, addr := address(body, e, to.Addr())
	upper(frame[q.upper:p.End], q.proto, e, old, addr, to.Port(), false)
	nf.Adjust(frame[p.Transport+2:], before, body)
}

// Types of ICMP.
const (
	echoReply       = 0
	unreachable     = 3
	sourceQuench    = 4
	echoRequest     = 8
	timeExceeded    = 11
	parameterFaulty = 12
)

func echo(kind uint8) bool { return kind == echoRequest || kind == echoReply }

func failure(kind uint8) bool {
	return kind == unreachable || kind == sourceQuench || kind == timeExceeded || kind == parameterFaulty
}
