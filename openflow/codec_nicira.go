package openflow

import "fmt"

// Subtypes of Nicira's actions (Open vSwitch, ofp-actions.c).
const (
	nxRegMove       = 6
	nxRegLoad       = 7
	nxResubmitTable = 14
	nxLearn         = 16
	nxRegLoad2      = 33
	nxClone         = 42
)

func appendNicira(b []byte, subtype uint16) []byte {
	b = append(b, 0xff, 0xff, 0, 0)
	return be.AppendUint16(be.AppendUint32(b, nicira), subtype)
}

func decodeNicira(in *reader) Action {
	all := in.b
	vendor := in.u32()
	if vendor == nicira && len(in.b) >= 2 {
		switch in.u16() {
		case nxRegMove:
			n, s, d := in.u16(), in.u16(), in.u16()
			return RegMove{Bits{in.field(), s, n}, Bits{in.field(), d, n}}
		case nxRegLoad:
			first, count := offsetBits(in.u16())
			return RegLoad{Bits{in.field(), first, count}, in.u64()}
		case nxResubmitTable:
			a := Resubmit{in.u16(), in.u8()}
			in.skip(3)
			if a.InPort == nxInPort {
				a.InPort = 0
			}
			return a
		case nxLearn:
			if a, ok := decodeLearn(in); ok {
				return a
			}
		case nxRegLoad2: // its field follows at once, without padding
			return decodeSetField(in)
		case nxClone:
			in.skip(6)
			return Clone(decodeActions(in))
		}
	}
	in.b = nil
	return RawAction{actExperiment, append([]byte(nil), all...)}
}

const nxInPort = 0xfff8 // OFPP_IN_PORT in OpenFlow 1.0's 16 bits

func (r *reader) field() Field { return Field(r.u32() &^ 0x100).standard() }

// nxmBasic gives for the fields of NXM class 0 the number of the same field in OpenFlow's own class, 0 if there is none;
// nxmNicira for those of class 1 from 16 (tun_id) on.
var (
	nxmBasic  = [...]uint8{1: 3, 2: 4, 3: 5, 6: 10, 7: 11, 8: 12, 9: 13, 10: 14, 11: 15, 12: 16, 13: 19, 14: 20, 15: 21, 16: 22, 17: 23}
	nxmNicira = [...]uint8{38, 24, 25, 26, 27, 29, 30, 31, 32, 33, 0, 28, 9}
)

// standard is OpenFlow's own name of a field that Open vSwitch writes as NXM within actions.
func (f Field) standard() Field {
	n, to := f.number(), uint8(0)
	switch c := f.class(); {
	case c == 0 && n < len(nxmBasic):
		to = nxmBasic[n]
	case c == 1 && n >= 16 && n-16 < len(nxmNicira):
		to = nxmNicira[n-16]
	}
	if s := Field(0x8000<<16 | uint32(to)<<9 | uint32(f.Len())); to != 0 {
		if _, known := s.info(); known {
			return s
		}
	}
	return f
}

func offsetBits(v uint16) (first, count uint16) { return v >> 6, v&63 + 1 }

func (s Bits) check(max uint16) error {
	if s.Count == 0 || s.Count > max || int(s.First)+int(s.Count) > 8*s.Field.Len() || s.First > 1023 {
		return fmt.Errorf("bits %d..%d of %s, which has %d; at most %d at once", s.First, int(s.First)+int(s.Count)-1, s.Field,
			8*s.Field.Len(), max)
	}
	return nil
}

func (s Bits) offsetBits() uint16 { return s.First<<6 | (s.Count - 1) }

func (a RegMove) append(b []byte) ([]byte, error) {
	if err := a.Src.check(1024); err != nil {
		return b, fmt.Errorf("move from %w", err)
	}
	if err := a.Dst.check(1024); err != nil {
		return b, fmt.Errorf("move to %w", err)
	}
	if a.Src.Count != a.Dst.Count {
		return b, fmt.Errorf("move %d bits to %d", a.Src.Count, a.Dst.Count)
	}
	start := len(b)
	b = appendNicira(b, nxRegMove)
	b = be.AppendUint16(be.AppendUint16(be.AppendUint16(b, a.Src.Count), a.Src.First), a.Dst.First)
	return putLen(be.AppendUint32(be.AppendUint32(b, uint32(a.Src.Field)), uint32(a.Dst.Field)), start)
}

func (a RegLoad) append(b []byte) ([]byte, error) {
	if err := a.Dst.check(64); err != nil {
		return b, fmt.Errorf("load into %w", err)
	}
	if a.Dst.Count < 64 && a.Value>>a.Dst.Count != 0 {
		return b, fmt.Errorf("load: %#x does not fit in %d bits", a.Value, a.Dst.Count)
	}
	start := len(b)
	b = be.AppendUint16(appendNicira(b, nxRegLoad), a.Dst.offsetBits())
	return putLen(be.AppendUint64(be.AppendUint32(b, uint32(a.Dst.Field)), a.Value), start)
}

func (a Resubmit) append(b []byte) ([]byte, error) {
	start, in := len(b), a.InPort
	if in == 0 {
		in = nxInPort
	}
	b = be.AppendUint16(appendNicira(b, nxResubmitTable), in)
	return putLen(append(b, a.Table, 0, 0, 0), start)
}

func (a Clone) append(b []byte) ([]byte, error) {
	start := len(b)
	b, err := appendActions(zeros(appendNicira(b, nxClone), 6), a)
	if err != nil {
		return b, fmt.Errorf("clone: %w", err)
	}
	return putLen(b, start)
}

func (a Learn) append(b []byte) ([]byte, error) {
	start := len(b)
	b = appendNicira(b, nxLearn)
	b = be.AppendUint16(be.AppendUint16(be.AppendUint16(b, a.IdleS), a.HardS), a.Priority)
	b = append(be.AppendUint64(b, a.Cookie), 0, 0, a.Table, 0, 0, 0, 0, 0) // no flags, no timeouts for TCP's FIN
	var err error
	for i := range a.Specs {
		if b, err = a.Specs[i].append(b); err != nil {
			return b, fmt.Errorf("learn: part %d: %w", i, err)
		}
	}
	return putLen(pad8(b, start), start)
}

func (s *LearnSpec) append(b []byte) ([]byte, error) {
	if s.Kind > LearnLoad || s.Src.Count != s.Dst.Count {
		return b, fmt.Errorf("kind %d with %d bits from %d is not possible", s.Kind, s.Dst.Count, s.Src.Count)
	}
	if err := s.Src.check(1023); err != nil {
		return b, fmt.Errorf("from %w", err)
	}
	if err := s.Dst.check(1023); err != nil {
		return b, fmt.Errorf("into %w", err)
	}
	b = be.AppendUint16(b, s.Dst.Count|uint16(s.Kind)<<11)
	b = be.AppendUint16(be.AppendUint32(b, uint32(s.Src.Field)), s.Src.First)
	return be.AppendUint16(be.AppendUint32(b, uint32(s.Dst.Field)), s.Dst.First), nil
}

// decodeLearn reads what Learn can say; false: this is more.
func decodeLearn(in *reader) (a Learn, ok bool) {
	a = Learn{IdleS: in.u16(), HardS: in.u16(), Priority: in.u16(), Cookie: in.u64()}
	flags := in.u16()
	a.Table = in.u8()
	in.skip(1)
	if fin := in.u32(); flags != 0 || fin != 0 {
		return a, false
	}
	for len(in.b) >= 2 {
		h := in.u16()
		if h == 0 {
			break
		}
		kind, n := LearnKind(h>>11), h&0x7ff
		if kind > LearnLoad || n == 0 {
			return a, false
		}
		a.Specs = append(a.Specs, LearnSpec{kind, Bits{in.field(), in.u16(), n}, Bits{in.field(), in.u16(), n}})
	}
	in.b = in.b[:0] // padding
	return a, true
}
