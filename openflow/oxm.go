package openflow

import (
	"encoding/binary"
	"net/netip"
)

// OXM is one field of a match with its value: comparable, without pointers into other memory.
type OXM struct {
	Field       Field
	Masked      bool
	Value, Mask [16]byte // the first Field.Len() bytes, big endian; Mask only if Masked
	Raw         string   // payload of fields that are longer, or of an experimenter (then Value and Mask are zero)
}

// Uint is a field whose value is an unsigned number of at most 8 bytes.
func Uint(f Field, v uint64) OXM {
	o := OXM{Field: f}
	putUint(o.Value[:], f.Len(), v)
	return o
}

// UintMask is Uint under a mask.
func UintMask(f Field, v, mask uint64) OXM {
	o := Uint(f, v)
	o.Masked = true
	putUint(o.Mask[:], f.Len(), mask)
	return o
}

// Uint is the value as a number, for fields of at most 8 bytes.
func (o OXM) Uint() uint64 { return getUint(o.Value[:], o.Field.Len()) }

// UintMask is the mask as a number; all ones without a mask.
func (o OXM) UintMask() uint64 {
	if !o.Masked {
		n := min(o.Field.Len(), 8)
		return ^uint64(0) >> (64 - 8*n)
	}
	return getUint(o.Mask[:], o.Field.Len())
}

func putUint(b []byte, n int, v uint64) {
	var full [8]byte
	binary.BigEndian.PutUint64(full[:], v)
	if n > 8 {
		copy(b[n-8:], full[:])
		return
	}
	copy(b, full[8-n:])
}

func getUint(b []byte, n int) uint64 {
	var full [8]byte
	if n > 8 {
		copy(full[:], b[n-8:n])
	} else {
		copy(full[8-n:], b[:n])
	}
	return binary.BigEndian.Uint64(full[:])
}

// InPort matches the port where the packet came in.
func InPort(p Port) OXM { return Uint(FieldInPort, uint64(p)) }

// Metadata matches bits written by an earlier table.
func Metadata(v, mask uint64) OXM { return UintMask(FieldMetadata, v, mask).norm() }

// EthType matches the EtherType behind VLAN tags.
func EthType(t uint16) OXM { return Uint(FieldEthType, uint64(t)) }

// EthSrc matches the source address.
func EthSrc(m MAC) OXM { return macOXM(FieldEthSrc, m) }

// EthDst matches the destination address.
func EthDst(m MAC) OXM { return macOXM(FieldEthDst, m) }

// EthSrcMask matches source addresses under a mask.
func EthSrcMask(m, mask MAC) OXM { return macMaskOXM(FieldEthSrc, m, mask) }

// EthDstMask matches destination addresses under a mask.
func EthDstMask(m, mask MAC) OXM { return macMaskOXM(FieldEthDst, m, mask) }

func macOXM(f Field, m MAC) OXM {
	o := OXM{Field: f}
	copy(o.Value[:], m[:])
	return o
}

func macMaskOXM(f Field, m, mask MAC) OXM {
	o := macOXM(f, m)
	o.Masked = true
	copy(o.Mask[:], mask[:])
	return o.norm()
}

// VLANID matches frames tagged with this VLAN id.
func VLANID(id uint16) OXM { return Uint(FieldVLANVID, uint64(VLANPresent|id)) }

// Untagged matches frames without a VLAN tag.
func Untagged() OXM { return Uint(FieldVLANVID, 0) }

// IPProto matches the IPv4 protocol or IPv6 next header.
func IPProto(p uint8) OXM { return Uint(FieldIPProto, uint64(p)) }

// IPSrc matches source addresses, IPv4 or IPv6 as the prefix is.
func IPSrc(p netip.Prefix) OXM { return prefixOXM(FieldIPv4Src, FieldIPv6Src, p) }

// IPDst matches destination addresses.
func IPDst(p netip.Prefix) OXM { return prefixOXM(FieldIPv4Dst, FieldIPv6Dst, p) }

// ARPSPA matches the sender's protocol address.
func ARPSPA(p netip.Prefix) OXM { return prefixOXM(FieldARPSPA, FieldARPSPA, p) }

// ARPTPA matches the target's protocol address.
func ARPTPA(p netip.Prefix) OXM { return prefixOXM(FieldARPTPA, FieldARPTPA, p) }

// ARPSHA matches the sender's hardware address.
func ARPSHA(m MAC) OXM { return macOXM(FieldARPSHA, m) }

// NDTarget, NDSLL and NDTLL match neighbour discovery's target and its source and target link-layer addresses.
func NDTarget(p netip.Prefix) OXM { return prefixOXM(FieldNDTarget, FieldNDTarget, p) }
func NDSLL(m MAC) OXM             { return macOXM(FieldNDSLL, m) }
func NDTLL(m MAC) OXM             { return macOXM(FieldNDTLL, m) }

// Ethernet, UDPFrom and ICMPv6 begin matches of frames of an EtherType, datagrams from a port and messages of a type.
func Ethernet(t uint16, more ...OXM) Match { return append(Match{EthType(t)}, more...) }

func UDPFrom(t, port uint16, more ...OXM) Match {
	return Ethernet(t, append([]OXM{IPProto(17), SrcPort(17, port)}, more...)...)
}

func ICMPv6(kind uint8, more ...OXM) Match {
	return Ethernet(0x86dd, append([]OXM{IPProto(58), Uint(FieldICMPv6Type, uint64(kind))}, more...)...)
}

func prefixOXM(f4, f6 Field, p netip.Prefix) OXM {
	a := p.Masked().Addr()
	o := OXM{Field: f4, Masked: true}
	if a.Is4() {
		v := a.As4()
		copy(o.Value[:], v[:])
	} else {
		o.Field = f6
		o.Value = a.As16()
	}
	for i := range p.Bits() {
		o.Mask[i/8] |= 0x80 >> (i % 8)
	}
	return o.norm()
}

// SrcPort matches the source port of proto 6 (TCP), 17 (UDP) or 132 (SCTP); others panic.
func SrcPort(proto uint8, port uint16) OXM { return Uint(portField(proto, FieldTCPSrc), uint64(port)) }

// DstPort matches the destination port.
func DstPort(proto uint8, port uint16) OXM { return Uint(portField(proto, FieldTCPDst), uint64(port)) }

// SrcPortMask and DstPortMask match ports under a mask; only Open vSwitch does.
func SrcPortMask(proto uint8, port, mask uint16) OXM {
	return UintMask(portField(proto, FieldTCPSrc), uint64(port), uint64(mask)).norm()
}

// DstPortMask: see SrcPortMask.
func DstPortMask(proto uint8, port, mask uint16) OXM {
	return UintMask(portField(proto, FieldTCPDst), uint64(port), uint64(mask)).norm()
}

func portField(proto uint8, tcp Field) Field {
	switch proto {
	case 6:
		return tcp
	case 17:
		return tcp + 2<<9
	case 132:
		return tcp + 4<<9
	}
	panic("openflow: IP protocol without ports")
}

// norm is the same field without a mask of all ones; its value has no bits outside the mask.
func (o OXM) norm() OXM {
	if !o.Masked || o.Raw != "" {
		return o
	}
	n := o.Field.Len()
	ones := true
	for i := range n {
		o.Value[i] &= o.Mask[i]
		ones = ones && o.Mask[i] == byte(fullMask(o.Field, i))
	}
	if ones {
		o.Masked, o.Mask = false, [16]byte{}
	}
	return o
}

// wild reports a mask of zeros: the field matches anything.
func (o OXM) wild() bool { return o.Masked && o.Raw == "" && o.Mask == [16]byte{} }
