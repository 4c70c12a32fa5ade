package fake

import (
	"encoding/binary"

	"weir.dev/weir/openflow"
)

var be = binary.BigEndian

// packet is a frame in the pipeline with its metadata.
type packet struct {
	in       openflow.Port
	data     []byte
	metadata uint64
	tunnel   uint64
	regs     [16]uint32
	fields   map[openflow.Field][16]byte // made when first needed; nil after data has changed
}

func (p *packet) clone() *packet {
	c := *p
	c.data = append([]byte(nil), p.data...)
	return &c
}

// matches reports that all fields of m are in the packet with these values.
func (p *packet) matches(m openflow.Match) bool {
	for i := range m {
		o := &m[i]
		v, ok := p.field(o.Field)
		if !ok {
			return false
		}
		for k := range o.Field.Len() {
			mask := byte(0xff)
			if o.Masked {
				mask = o.Mask[k]
			}
			if v[k]&mask != o.Value[k] {
				return false
			}
		}
	}
	return true
}

func number(f openflow.Field, v uint64) [16]byte { return openflow.Uint(f, v).Value }

func (p *packet) field(f openflow.Field) ([16]byte, bool) {
	switch f {
	case openflow.FieldInPort, openflow.FieldInPhyPort:
		return number(f, uint64(p.in)), true
	case openflow.FieldMetadata:
		return number(f, p.metadata), true
	case openflow.FieldTunnelID, openflow.FieldNXMTunID:
		return number(f, p.tunnel), true
	}
	if f >= openflow.Reg(0) && f <= openflow.Reg(15) && f.Len() == 4 {
		return number(f, uint64(p.regs[f>>9&0x7f])), true
	}
	if p.fields == nil {
		p.parse()
	}
	v, ok := p.fields[f]
	return v, ok
}

// parse reads the headers; EtherType is the one behind all VLAN tags.
func (p *packet) parse() {
	p.fields = map[openflow.Field][16]byte{}
	d := p.data
	if len(d) < 14 {
		return
	}
	p.bytes(openflow.FieldEthDst, d[:6])
	p.bytes(openflow.FieldEthSrc, d[6:12])
	p.number(openflow.FieldVLANVID, 0)
	et, d := be.Uint16(d[12:]), d[14:]
	for first := true; (et == 0x8100 || et == 0x88a8) && len(d) >= 4; first = false {
		if tci := be.Uint16(d); first {
			p.number(openflow.FieldVLANVID, uint64(openflow.VLANPresent|tci&0xfff))
			p.number(openflow.FieldVLANPCP, uint64(tci>>13))
		}
		et, d = be.Uint16(d[2:]), d[4:]
	}
	p.number(openflow.FieldEthType, uint64(et))
	switch {
	case et == 0x0800 && len(d) >= 20:
		p.ipv4(d)
	case et == 0x86dd && len(d) >= 40:
		p.ipv6(d)
	case et == 0x0806 && len(d) >= 28:
		p.number(openflow.FieldARPOp, uint64(be.Uint16(d[6:])))
		p.bytes(openflow.FieldARPSHA, d[8:14])
		p.bytes(openflow.FieldARPSPA, d[14:18])
		p.bytes(openflow.FieldARPTHA, d[18:24])
		p.bytes(openflow.FieldARPTPA, d[24:28])
	}
}

func (p *packet) number(f openflow.Field, v uint64) { p.fields[f] = number(f, v) }

func (p *packet) bytes(f openflow.Field, b []byte) {
	var v [16]byte
	copy(v[:], b)
	p.fields[f] = v
}

func (p *packet) ipv4(d []byte) {
	p.number(openflow.FieldIPDSCP, uint64(d[1]>>2))
	p.number(openflow.FieldIPECN, uint64(d[1]&3))
	p.number(openflow.FieldIPProto, uint64(d[9]))
	p.bytes(openflow.FieldIPv4Src, d[12:16])
	p.bytes(openflow.FieldIPv4Dst, d[16:20])
	if n := int(d[0]&15) * 4; n >= 20 && n <= len(d) && be.Uint16(d[6:])&0x1fff == 0 {
		p.l4(d[9], d[n:])
	}
}

func (p *packet) ipv6(d []byte) {
	p.number(openflow.FieldIPDSCP, uint64(be.Uint16(d)>>6&63))
	p.number(openflow.FieldIPECN, uint64(be.Uint16(d)>>4&3))
	p.number(openflow.FieldIPv6FLabel, uint64(be.Uint32(d)&0xfffff))
	p.bytes(openflow.FieldIPv6Src, d[8:24])
	p.bytes(openflow.FieldIPv6Dst, d[24:40])
	next, d := d[6], d[40:]
	for range 8 {
		if next != 0 && next != 43 && next != 60 || len(d) < 8 { // hop-by-hop, routing, destination options
			break
		}
		n := 8 + 8*int(d[1])
		if n > len(d) {
			return
		}
		next, d = d[0], d[n:]
	}
	p.number(openflow.FieldIPProto, uint64(next))
	p.l4(next, d)
}

func (p *packet) l4(proto uint8, d []byte) {
	if len(d) < 4 {
		return
	}
	src, dst := openflow.FieldTCPSrc, openflow.FieldTCPDst
	switch proto {
	case 6:
	case 17:
		src, dst = openflow.FieldUDPSrc, openflow.FieldUDPDst
	case 132:
		src, dst = openflow.FieldSCTPSrc, openflow.FieldSCTPDst
	case 1:
		p.number(openflow.FieldICMPv4Type, uint64(d[0]))
		p.number(openflow.FieldICMPv4Code, uint64(d[1]))
		return
	case 58:
		p.number(openflow.FieldICMPv6Type, uint64(d[0]))
		p.number(openflow.FieldICMPv6Code, uint64(d[1]))
		if (d[0] == 135 || d[0] == 136) && len(d) >= 24 {
			p.bytes(openflow.FieldNDTarget, d[8:24])
		}
		return
	default:
		return
	}
	p.number(src, uint64(be.Uint16(d)))
	p.number(dst, uint64(be.Uint16(d[2:])))
}

func (p *packet) push(tpid uint16) {
	if len(p.data) < 14 {
		return
	}
	tci := uint16(0) // OpenFlow 1.3, 5.12.1: copied from an outer tag if there is one
	if t := be.Uint16(p.data[12:]); (t == 0x8100 || t == 0x88a8) && len(p.data) >= 18 {
		tci = be.Uint16(p.data[14:])
	}
	d := append(make([]byte, 0, len(p.data)+4), p.data[:12]...)
	d = be.AppendUint16(be.AppendUint16(d, tpid), tci)
	p.data, p.fields = append(d, p.data[12:]...), nil
}

func (p *packet) pop() {
	if !p.tagged() {
		return
	}
	d := append(make([]byte, 0, len(p.data)-4), p.data[:12]...)
	p.data, p.fields = append(d, p.data[16:]...), nil
}

func (p *packet) tagged() bool {
	if len(p.data) < 18 {
		return false
	}
	t := be.Uint16(p.data[12:])
	return t == 0x8100 || t == 0x88a8
}

// matchable lists the fields that parse finds.
func matchable(f openflow.Field) bool {
	switch f {
	case openflow.FieldMPLSLabel, openflow.FieldMPLSTC, openflow.FieldMPLSBOS, openflow.FieldPBBISID, openflow.FieldIPv6ExtHdr,
		openflow.FieldNDSLL, openflow.FieldNDTLL:
		return false
	}
	return f>>16 == 0x8000 || f == openflow.FieldNXMTunID || f >= openflow.Reg(0) && f <= openflow.Reg(15) && f.Len() == 4
}

// settable lists the fields that set writes.
func settable(f openflow.Field) bool {
	switch f {
	case openflow.FieldEthDst, openflow.FieldEthSrc, openflow.FieldVLANVID, openflow.FieldVLANPCP, openflow.FieldTunnelID,
		openflow.FieldMetadata, openflow.FieldNXMTunID:
		return true
	}
	return f >= openflow.Reg(0) && f <= openflow.Reg(15) && f.Len() == 4
}

func (p *packet) set(o openflow.OXM) {
	old, _ := p.field(o.Field)
	v := o.Value
	if o.Masked {
		for i := range v {
			v[i] = v[i]&o.Mask[i] | old[i]&^o.Mask[i]
		}
	}
	n := openflow.OXM{Field: o.Field, Value: v}.Uint()
	switch f := o.Field; f {
	case openflow.FieldEthDst:
		copy(p.data, v[:6])
	case openflow.FieldEthSrc:
		copy(p.data[6:], v[:6])
	case openflow.FieldVLANVID:
		if p.tagged() {
			be.PutUint16(p.data[14:], be.Uint16(p.data[14:])&0xf000|uint16(n)&0xfff)
		}
	case openflow.FieldVLANPCP:
		if p.tagged() {
			be.PutUint16(p.data[14:], be.Uint16(p.data[14:])&0x1fff|uint16(n)<<13)
		}
	case openflow.FieldTunnelID, openflow.FieldNXMTunID:
		p.tunnel = n
	case openflow.FieldMetadata:
		p.metadata = n
	default:
		p.regs[f>>9&0x7f] = uint32(n)
	}
	p.fields = nil
}
