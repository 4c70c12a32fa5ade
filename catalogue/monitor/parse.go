package main

import (
	"encoding/binary"
	"fmt"
	"net"
	"net/netip"
	"strconv"

	"weir.dev/weir/catalogue/names"
	"weir.dev/weir/catalogue/nf"
)

// address is an IP address, or a MAC for what is not IP.
type address [16]byte

// packet is what tells a packet's flow.
type packet struct {
	ethertype    uint16
	proto        uint8 // IP protocol
	vlan         uint16
	src, dst     address
	sport, dport uint16 // of TCP, UDP, SCTP; zero in fragments
}

const (
	etherIPv4 = 0x0800
	etherIPv6 = 0x86dd
	etherARP  = 0x0806
)

// parse reads a frame's headers as far as they are there; what is cut short stands as far as it was read. vlan is the tag that the
// kernel took out, 0 none. flags are those of TCP.
func parse(b []byte, vlan uint16) (p packet, flags uint8) {
	p = packet{vlan: vlan & 0xfff}
	if len(b) < 14 {
		return p, 0
	}
	copy(p.dst[:], b[0:6])
	copy(p.src[:], b[6:12])
	p.ethertype = binary.BigEndian.Uint16(b[12:])
	b = b[14:]
	for range 2 { // tags that the kernel left in
		if p.ethertype != 0x8100 && p.ethertype != 0x88a8 || len(b) < 4 {
			break
		}
		if p.vlan == 0 {
			p.vlan = binary.BigEndian.Uint16(b) & 0xfff
		}
		p.ethertype = binary.BigEndian.Uint16(b[2:])
		b = b[4:]
	}
	switch p.ethertype {
	case etherIPv4:
		flags = p.ipv4(b)
	case etherIPv6:
		flags = p.ipv6(b)
	}
	return p, flags
}

func (p *packet) ipv4(b []byte) (flags uint8) {
	if len(b) < 20 || b[0]>>4 != 4 {
		return 0
	}
	header := int(b[0]&0xf) * 4
	p.proto = b[9]
	p.src, p.dst = address{}, address{}
	copy(p.src[:], b[12:16])
	copy(p.dst[:], b[16:20])
	if header < 20 || len(b) < header || binary.BigEndian.Uint16(b[6:])&0x1fff != 0 {
		return 0
	}
	return p.ports(b[header:])
}

// ipv6 walks the extension headers (RFC 8200, section 4).
func (p *packet) ipv6(b []byte) (flags uint8) {
	if len(b) < 40 || b[0]>>4 != 6 {
		return 0
	}
	p.proto = b[6]
	copy(p.src[:], b[8:24])
	copy(p.dst[:], b[24:40])
	b = b[40:]
	for range 8 {
		var length int
		switch p.proto {
		case 0, 43, 60: // hop-by-hop, routing, destination options
			if len(b) < 8 {
				return 0
			}
			length = (int(b[1]) + 1) * 8
		case 51: // authentication
			if len(b) < 8 {
				return 0
			}
			length = (int(b[1]) + 2) * 4
		case 44: // fragment
			if len(b) < 8 {
				return 0
			}
			if binary.BigEndian.Uint16(b[2:])&0xfff8 != 0 {
				p.proto = b[0]
				return 0
			}
			length = 8
		default:
			return p.ports(b)
		}
		p.proto = b[0]
		if len(b) < length {
			return 0
		}
		b = b[length:]
	}
	return 0
}

func (p *packet) ports(b []byte) (flags uint8) {
	switch p.proto {
	case 6, 17, 132:
		if len(b) >= 4 {
			p.sport, p.dport = binary.BigEndian.Uint16(b), binary.BigEndian.Uint16(b[2:])
		}
	}
	if p.proto == 6 && len(b) >= 14 {
		flags = b[13]
	}
	return flags
}

// reversed is the same flow's other direction.
func (p packet) reversed() packet {
	p.src, p.dst, p.sport, p.dport = p.dst, p.src, p.dport, p.sport
	return p
}

func (p packet) protoName() string {
	switch p.ethertype {
	case etherIPv4, etherIPv6:
	case etherARP:
		return "arp"
	default:
		return fmt.Sprintf("%#04x", p.ethertype)
	}
	switch p.proto {
	case 1:
		return "icmp"
	case 6:
		return "tcp"
	case 17:
		return "udp"
	case 58:
		return "icmpv6"
	case 132:
		return "sctp"
	}
	return strconv.Itoa(int(p.proto))
}

// station is who sends packets: an address of IPv4 or IPv6, or a MAC.
type station struct {
	ethertype uint16 // 0: address is a MAC
	address   address
}

func (p packet) station(a address) station {
	switch p.ethertype {
	case etherIPv4: // of a cut header it is a MAC, of which the text has the beginning
		s := station{ethertype: etherIPv4}
		copy(s.address[:4], a[:])
		return s
	case etherIPv6:
		return station{etherIPv6, a}
	}
	return station{address: a}
}

func (s station) String() string {
	switch s.ethertype {
	case etherIPv4:
		return netip.AddrFrom4([4]byte(s.address[:4])).String()
	case etherIPv6:
		return netip.AddrFrom16(s.address).String()
	}
	return net.HardwareAddr(s.address[:6]).String()
}

func (p packet) text(a address) string { return p.station(a).String() }

// nameIn is the name that a frame asks for, by DNS or in the begin of a TLS connection.
func nameIn(frame []byte) string {
	p := nf.Decode(frame)
	data := p.Data(frame)
	switch {
	case p.Part != nf.Whole:
	case p.Proto == nf.UDP && p.DstPort == portDNS:
		var q names.Question
		if q.Read(data) {
			return string(q.Text())
		}
	case p.Proto == nf.TCP && p.DstPort == portTLS:
		return names.ServerName(data)
	}
	return ""
}

const (
	portDNS = 53
	portTLS = 443
)
