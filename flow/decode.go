package flow

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"net/netip"
	"strings"
)

// EtherTypes and protocols that have a meaning here.
const (
	EtherTypeIPv4 uint16 = 0x0800
	EtherTypeARP  uint16 = 0x0806
	EtherTypeVLAN uint16 = 0x8100
	EtherTypeIPv6 uint16 = 0x86dd
	EtherTypeQinQ uint16 = 0x88a8

	ProtoICMP   uint8 = 1
	ProtoTCP    uint8 = 6
	ProtoUDP    uint8 = 17
	ProtoICMPv6 uint8 = 58
	ProtoSCTP   uint8 = 132
)

// Extension headers of IPv6 (RFC 8200 section 4; AH RFC 4302). Any other next header is the upper layer's: the mobility header
// (RFC 6275) too, behind which nothing comes.
const (
	extHopByHop uint8 = 0
	extRouting  uint8 = 43
	extFragment uint8 = 44
	extAuth     uint8 = 51
	extDest     uint8 = 60
)

const (
	ethernetHeader = 14
	maxTags        = 2
	maxExtensions  = 6
)

// Key is what rules can see of a frame. Every switch decodes a frame into the same Key:
//
//   - VLAN is the outermost tag's id (12 bits), VLANNone without a tag. Tags are EtherTypes 0x8100 and 0x88a8; at most two are passed, so
//     behind two tags EtherType may be that of a third (UnreadNetwork).
//   - Behind a length (IEEE 802.3) EtherType is that of a SNAP header (RFC 1042: AA-AA-03-00-00-00) if there is one, else the length.
//   - Src, Dst and Proto are set when the whole of an IPv4 header (version 4, header length at least 5), options included, or the 40
//     bytes of an IPv6 header (version 6) are in the frame, else the frame is UnreadNetwork. Packet lengths, checksums and TTL are not looked at.
//   - IPv6: up to six of the extension headers hop-by-hop, routing, fragment, AH and destination options are passed. Behind a fragment
//     header that is not the first, Proto is the next header. Where that is an extension header, where there is a seventh, and where
//     fewer than four bytes of one are in the frame, the upper layer is unknown (UnreadUpper): Proto is 0.
//   - Ports are set (HasPorts) for TCP, UDP and SCTP when the four bytes behind the headers are in the frame and the packet is no
//     fragment other than the first.
type Key struct {
	SrcMAC, DstMAC   MAC
	Tag              uint16 // the fabric tag; see DecodeFabric
	VLAN             uint16
	EtherType        uint16
	Src, Dst         netip.Addr // zero unless HasIP
	Proto            uint8
	SrcPort, DstPort uint16
	HasIP, HasPorts  bool
	Unread           Unread
}

// Decode reads a frame. ok is false for a frame too short for an Ethernet header; such frames are dropped before any stage.
func Decode(frame []byte) (k Key, ok bool) {
	if len(frame) < ethernetHeader {
		return Key{}, false
	}
	copy(k.DstMAC[:], frame)
	copy(k.SrcMAC[:], frame[6:])
	k.VLAN = VLANNone
	k.EtherType = binary.BigEndian.Uint16(frame[12:])
	rest := frame[ethernetHeader:]
	for tags := 0; tags < maxTags && isTag(k.EtherType) && len(rest) >= 4; tags++ {
		if tags == 0 {
			k.VLAN = binary.BigEndian.Uint16(rest) & 0xfff
		}
		k.EtherType = binary.BigEndian.Uint16(rest[2:])
		rest = rest[4:]
	}
	if k.EtherType < firstEtherType && len(rest) >= len(snap)+2 && bytes.HasPrefix(rest, snap) {
		if t := binary.BigEndian.Uint16(rest[len(snap):]); t >= firstEtherType {
			k.EtherType, rest = t, rest[len(snap)+2:]
		}
	}
	switch k.EtherType {
	case EtherTypeIPv4:
		k.decodeIPv4(rest)
	case EtherTypeIPv6:
		k.decodeIPv6(rest)
	case EtherTypeVLAN, EtherTypeQinQ:
		k.Unread = UnreadNetwork
	}
	return k, true
}

// firstEtherType: less than this is a length (IEEE 802.3, 3.2.6).
const firstEtherType = 0x600

// snap is the header of an EtherType behind a length (RFC 1042).
var snap = []byte{0xaa, 0xaa, 3, 0, 0, 0}

// DecodeFabric reads a frame that entered at a port into the fabric: an outermost fabric tag is Key.Tag, and everything else is read as if
// it were not there.
func DecodeFabric(frame []byte) (k Key, ok bool) {
	tag := FabricTag(frame)
	if tag == 0 {
		return Decode(frame)
	}
	k, ok = Decode(PopTag(frame))
	k.Tag = tag
	return k, ok
}

const tagHeader = 4

// FabricTag is the fabric tag of a frame whose outermost tag is one, else 0.
func FabricTag(frame []byte) uint16 {
	if len(frame) < ethernetHeader+tagHeader || binary.BigEndian.Uint16(frame[12:]) != EtherTypeQinQ {
		return 0
	}
	if id := binary.BigEndian.Uint16(frame[ethernetHeader:]) & 0xfff; isFabricTag(id) {
		return id
	}
	return 0
}

func isFabricTag(id uint16) bool { return TagFirst <= id && id <= TagLast }

// PopTag returns a copy of a frame without its outermost tag.
func PopTag(frame []byte) []byte {
	return append(frame[:12:12], frame[12+tagHeader:]...)
}

// PushTag returns a copy of a frame with a fabric tag (priority 0) put on.
func PushTag(frame []byte, tag uint16) []byte {
	out := append(make([]byte, 0, len(frame)+tagHeader), frame[:12]...)
	out = binary.BigEndian.AppendUint16(out, EtherTypeQinQ)
	out = binary.BigEndian.AppendUint16(out, tag)
	return append(out, frame[12:]...)
}

func isTag(etherType uint16) bool { return etherType == EtherTypeVLAN || etherType == EtherTypeQinQ }

func (k *Key) decodeIPv4(p []byte) {
	if len(p) < 20 || p[0]>>4 != 4 || p[0]&0xf < 5 || len(p) < int(p[0]&0xf)*4 {
		k.Unread = UnreadNetwork
		return
	}
	k.HasIP = true
	k.Src = netip.AddrFrom4([4]byte(p[12:16]))
	k.Dst = netip.AddrFrom4([4]byte(p[16:20]))
	k.Proto = p[9]
	length := int(p[0]&0xf) * 4
	if offset := binary.BigEndian.Uint16(p[6:]) & 0x1fff; offset == 0 {
		k.decodePorts(p[length:])
	}
}

func (k *Key) decodeIPv6(p []byte) {
	if len(p) < 40 || p[0]>>4 != 6 {
		k.Unread = UnreadNetwork
		return
	}
	k.HasIP = true
	k.Src = netip.AddrFrom16([16]byte(p[8:24]))
	k.Dst = netip.AddrFrom16([16]byte(p[24:40]))
	next := p[6]
	p = p[40:]
	for passed := 0; isExtension(next); passed++ {
		if passed == maxExtensions || len(p) < 4 {
			k.Unread = UnreadUpper
			return
		}
		length := int(p[1])*8 + 8
		switch next {
		case extAuth:
			length = int(p[1])*4 + 8
		case extFragment:
			length = 8
			if binary.BigEndian.Uint16(p[2:])&0xfff8 == 0 {
				break
			}
			if isExtension(p[0]) { // its upper layer may begin in this fragment or in another
				k.Unread = UnreadUpper
				return
			}
			k.Proto = p[0]
			return
		}
		next = p[0]
		p = p[min(length, len(p)):]
	}
	k.Proto = next
	k.decodePorts(p)
}

func isExtension(next uint8) bool {
	switch next {
	case extHopByHop, extRouting, extFragment, extAuth, extDest:
		return true
	}
	return false
}

func (k *Key) decodePorts(p []byte) {
	if !hasPorts(k.Proto) || len(p) < 4 {
		return
	}
	k.HasPorts = true
	k.SrcPort = binary.BigEndian.Uint16(p)
	k.DstPort = binary.BigEndian.Uint16(p[2:])
}

func hasPorts(proto uint8) bool { return proto == ProtoTCP || proto == ProtoUDP || proto == ProtoSCTP }

// String shows a frame in one line for people: "tcp 10.9.0.1:1024 -> 10.9.0.2:80".
func (k Key) String() string {
	var b strings.Builder
	if k.Tag != 0 {
		fmt.Fprintf(&b, "fabric tag %d ", k.Tag)
	}
	if k.VLAN != VLANNone {
		fmt.Fprintf(&b, "vlan %d ", k.VLAN)
	}
	switch {
	case k.HasPorts:
		fmt.Fprintf(&b, "%s %s -> %s", protoName(k.Proto), netip.AddrPortFrom(k.Src, k.SrcPort), netip.AddrPortFrom(k.Dst, k.DstPort))
	case k.HasIP:
		fmt.Fprintf(&b, "%s %s -> %s", protoName(k.Proto), k.Src, k.Dst)
	default:
		fmt.Fprintf(&b, "%s %s -> %s", etherTypeName(k.EtherType), k.SrcMAC, k.DstMAC)
	}
	if k.Unread != ReadAll {
		fmt.Fprintf(&b, " (%s)", k.Unread)
	}
	return b.String()
}

func protoName(p uint8) string {
	switch p {
	case ProtoICMP:
		return "icmp"
	case ProtoTCP:
		return "tcp"
	case ProtoUDP:
		return "udp"
	case ProtoICMPv6:
		return "icmpv6"
	case ProtoSCTP:
		return "sctp"
	}
	return fmt.Sprintf("ip protocol %d", p)
}

func etherTypeName(t uint16) string {
	switch t {
	case EtherTypeIPv4:
		return "ipv4"
	case EtherTypeARP:
		return "arp"
	case EtherTypeIPv6:
		return "ipv6"
	}
	return fmt.Sprintf("ethertype 0x%04x", t)
}
