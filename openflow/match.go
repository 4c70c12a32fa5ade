package openflow

import (
	"cmp"
	"fmt"
	"slices"
)

// Match is a list of fields that must all match; empty matches every packet. A field stands behind its prerequisites (7.2.3.8):
// EthType before IP addresses, IPProto before L4 ports. Check says so where it does not.
type Match []OXM

// InPort is the port that the match names.
func (m Match) InPort() (Port, bool) {
	o, ok := m.Field(FieldInPort)
	return Port(o.Uint()), ok
}

// Field finds a field.
func (m Match) Field(f Field) (OXM, bool) {
	for _, o := range m {
		if o.Field == f {
			return o, true
		}
	}
	return OXM{}, false
}

// Normal is the same match in canonical form: sorted so that prerequisites come first, masks applied, masks of all ones and fields that
// match anything gone. It is a copy.
func (m Match) Normal() Match { return m.normal(make(Match, 0, len(m))) }

// normal appends to an empty match.
func (m Match) normal(n Match) Match {
	for _, o := range m {
		if o = o.norm(); !o.wild() {
			n = append(n, o)
		}
	}
	sorted := true
	for i := 1; i < len(n); i++ {
		sorted = sorted && n[i-1].Field.rank() <= n[i].Field.rank()
	}
	if !sorted {
		slices.SortStableFunc(n, func(a, b OXM) int { return cmp.Compare(a.Field.rank(), b.Field.rank()) })
	}
	return n
}

// rank sorts OpenFlow's own fields before others, which may have them as prerequisites.
func (f Field) rank() uint64 {
	if f.class() == 0x8000 {
		return uint64(f)
	}
	return 1<<32 | uint64(f)
}

// Equal reports that two matches are the same, in whatever order and form.
func (m Match) Equal(o Match) bool {
	return slices.Equal(m.Normal(), o.Normal())
}

// Key is a string that equal matches share, for maps: the wire form of Normal.
func (m Match) Key() string {
	var few [8]OXM
	b := make([]byte, 0, 96)
	n := m.normal(few[:0])
	for i := range n {
		b, _ = n[i].append(b)
	}
	return string(b)
}

// Check reports the first missing prerequisite, duplicate field, value with bits outside its field or mask, or mask where none is allowed.
// Masks that only Open vSwitch takes (on L4 ports) pass.
func (m Match) Check() error {
	for i := range m {
		o := &m[i]
		info, known := o.Field.info()
		if !known {
			continue
		}
		if o.Masked && info.mask == noMask {
			return fmt.Errorf("match: %s takes no mask", info.name)
		}
		n := o.Field.Len()
		for k := range n {
			if !o.Masked && info.bits == 8*n {
				break
			}
			full := fullMask(o.Field, k)
			if o.Value[k]&^full != 0 {
				return fmt.Errorf("match: %s = %#x does not fit in %d bits", info.name, o.Value[:n], info.bits)
			}
			if o.Masked && o.Value[k]&^o.Mask[k] != 0 {
				return fmt.Errorf("match: %s = %#x has bits outside its mask %#x", info.name, o.Value[:n], o.Mask[:n])
			}
		}
		for k := range i {
			if m[k].Field == o.Field {
				return fmt.Errorf("match: %s occurs twice", info.name)
			}
		}
		if !m[:i].meets(info.pre) {
			return fmt.Errorf("match: %s needs %s before it", info.name, info.pre)
		}
	}
	return nil
}

// exact is the value of a field matched without a mask.
func (m Match) exact(f Field) (uint64, bool) {
	for i := range m {
		if m[i].Field == f && !m[i].Masked {
			return m[i].Uint(), true
		}
	}
	return 0, false
}

func (m Match) is(f Field, vs ...uint64) bool {
	v, ok := m.exact(f)
	return ok && slices.Contains(vs, v)
}

func (m Match) meets(p prerequisite) bool {
	const v4, v6 = 0x0800, 0x86dd
	switch p {
	case preVLAN:
		o, ok := m.Field(FieldVLANVID)
		return ok && o.Uint()&uint64(VLANPresent) != 0
	case preIP:
		return m.is(FieldEthType, v4, v6)
	case preIPv4:
		return m.is(FieldEthType, v4)
	case preIPv6:
		return m.is(FieldEthType, v6)
	case preARP:
		return m.is(FieldEthType, 0x0806, 0x8035)
	case preTCP:
		return m.is(FieldIPProto, 6)
	case preUDP:
		return m.is(FieldIPProto, 17)
	case preSCTP:
		return m.is(FieldIPProto, 132)
	case preICMPv4:
		return m.is(FieldEthType, v4) && m.is(FieldIPProto, 1)
	case preICMPv6:
		return m.is(FieldEthType, v6) && m.is(FieldIPProto, 58)
	case preND:
		return m.is(FieldICMPv6Type, 135, 136)
	case preNS:
		return m.is(FieldICMPv6Type, 135)
	case preNA:
		return m.is(FieldICMPv6Type, 136)
	case preMPLS:
		return m.is(FieldEthType, 0x8847, 0x8848)
	case prePBB:
		return m.is(FieldEthType, 0x88e7)
	}
	return true
}

// append writes the match structure: type, length, fields, padding.
func (m Match) append(b []byte) ([]byte, error) {
	start := len(b)
	b = append(b, 0, 1, 0, 0)
	var err error
	for i := range m {
		if b, err = m[i].append(b); err != nil {
			return b, err
		}
	}
	if len(b)-start > MaxMessage {
		return b, fmt.Errorf("match of %d bytes", len(b)-start)
	}
	be.PutUint16(b[start+2:], uint16(len(b)-start))
	return pad8(b, start), nil
}

func (o *OXM) append(b []byte) ([]byte, error) {
	h := uint32(o.Field) &^ 0x100
	n := o.Field.Len()
	if o.Raw != "" {
		if len(o.Raw) != n {
			return b, fmt.Errorf("%s: payload of %d bytes, its header says %d", o.Field, len(o.Raw), n)
		}
		if o.Masked {
			h |= 0x100
		}
		return append(be.AppendUint32(b, h), o.Raw...), nil
	}
	if n > 16 {
		return b, fmt.Errorf("%s: %d bytes are too long for a value", o.Field, n)
	}
	if o.Masked {
		b = be.AppendUint32(b, h&^0xff|0x100|uint32(2*n))
		return append(append(b, o.Value[:n]...), o.Mask[:n]...), nil
	}
	return append(be.AppendUint32(b, h), o.Value[:n]...), nil
}

func decodeMatch(r *reader) (m Match) {
	if len(r.b) < 4 {
		r.fail(BadLen, "truncated match: %d bytes left", len(r.b))
		return nil
	}
	t, n := be.Uint16(r.b), int(be.Uint16(r.b[2:]))
	if t != 1 {
		r.fail(BadMatchType, "match of type %d, want 1 (OXM)", t)
		return nil
	}
	if n < 4 || n > len(r.b) {
		r.fail(BadMatchLen, "match of %d bytes, %d are left", n, len(r.b))
		return nil
	}
	in := r.sub(n)
	r.skip((8 - n%8) % 8)
	in.skip(4)
	if len(in.b) > 0 {
		m = make(Match, 0, min(len(in.b)/6+1, 12))
	}
	for len(in.b) > 0 {
		m = append(m, decodeOXM(&in))
	}
	r.join(&in)
	if r.bad != "" {
		return nil
	}
	return m
}

func decodeOXM(r *reader) (o OXM) {
	h := r.u32()
	o.Masked = h&0x100 != 0
	n := int(h & 0xff)
	p := r.take(n)
	if p == nil && n > 0 {
		return o
	}
	if h>>16 == 0xffff || o.Masked && n%2 != 0 || n > 32 || !o.Masked && n > 16 || n == 0 {
		// The length stays that of the payload, mask included: such a field is only kept, never looked into.
		if n == 0 {
			r.fail(BadMatchLen, "field without a value")
		}
		o.Field, o.Raw = Field(h&^0x100), string(p)
		return o
	}
	if o.Masked {
		n /= 2
		copy(o.Mask[:], p[n:])
	}
	copy(o.Value[:], p[:n])
	o.Field = Field(h&^0x1ff | uint32(n))
	return o
}
