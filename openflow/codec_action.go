package openflow

import (
	"errors"
	"fmt"
)

const (
	actOutput     = 0
	actTTLOut     = 11
	actTTLIn      = 12
	actSetMPLSTTL = 15
	actDecMPLSTTL = 16
	actPushVLAN   = 17
	actPopVLAN    = 18
	actPushMPLS   = 19
	actPopMPLS    = 20
	actSetQueue   = 21
	actGroup      = 22
	actSetNwTTL   = 23
	actDecNwTTL   = 24
	actSetField   = 25
	actPushPBB    = 26
	actPopPBB     = 27
	actExperiment = 0xffff
)

// maxDepth bounds actions within actions (Clone).
const maxDepth = 16

func appendActions(b []byte, as []Action) ([]byte, error) {
	var err error
	for _, a := range as {
		if a == nil {
			return b, errors.New("nil action")
		}
		if b, err = a.append(b); err != nil {
			return b, err
		}
	}
	return b, nil
}

func (a Output) append(b []byte) ([]byte, error) {
	b = be.AppendUint32(append(b, 0, actOutput, 0, 16), uint32(a.Port))
	return zeros(be.AppendUint16(b, a.MaxLen), 6), nil
}

func simple(b []byte, t byte) ([]byte, error) { return append(b, 0, t, 0, 8, 0, 0, 0, 0), nil }

func simple8(b []byte, t byte, v uint8) ([]byte, error) {
	return append(b, 0, t, 0, 8, v, 0, 0, 0), nil
}

func simple16(b []byte, t byte, v uint16) ([]byte, error) {
	return append(b, 0, t, 0, 8, byte(v>>8), byte(v), 0, 0), nil
}

func simple32(b []byte, t byte, v uint32) ([]byte, error) {
	return be.AppendUint32(append(b, 0, t, 0, 8), v), nil
}

func (a Group) append(b []byte) ([]byte, error)      { return simple32(b, actGroup, a.ID) }
func (a SetQueue) append(b []byte) ([]byte, error)   { return simple32(b, actSetQueue, a.ID) }
func (a PopVLAN) append(b []byte) ([]byte, error)    { return simple(b, actPopVLAN) }
func (a PopMPLS) append(b []byte) ([]byte, error)    { return simple16(b, actPopMPLS, a.EtherType) }
func (a PopPBB) append(b []byte) ([]byte, error)     { return simple(b, actPopPBB) }
func (a SetNwTTL) append(b []byte) ([]byte, error)   { return simple8(b, actSetNwTTL, a.TTL) }
func (a DecNwTTL) append(b []byte) ([]byte, error)   { return simple(b, actDecNwTTL) }
func (a SetMPLSTTL) append(b []byte) ([]byte, error) { return simple8(b, actSetMPLSTTL, a.TTL) }
func (a DecMPLSTTL) append(b []byte) ([]byte, error) { return simple(b, actDecMPLSTTL) }
func (a CopyTTLOut) append(b []byte) ([]byte, error) { return simple(b, actTTLOut) }
func (a CopyTTLIn) append(b []byte) ([]byte, error)  { return simple(b, actTTLIn) }

func (a PushVLAN) append(b []byte) ([]byte, error) {
	if a.EtherType != 0x8100 && a.EtherType != 0x88a8 {
		return b, fmt.Errorf("push_vlan: EtherType %#04x, want 0x8100 or 0x88a8", a.EtherType)
	}
	return simple16(b, actPushVLAN, a.EtherType)
}

func (a PushMPLS) append(b []byte) ([]byte, error) {
	if a.EtherType != 0x8847 && a.EtherType != 0x8848 {
		return b, fmt.Errorf("push_mpls: EtherType %#04x, want 0x8847 or 0x8848", a.EtherType)
	}
	return simple16(b, actPushMPLS, a.EtherType)
}

func (a PushPBB) append(b []byte) ([]byte, error) {
	if a.EtherType != 0x88e7 {
		return b, fmt.Errorf("push_pbb: EtherType %#04x, want 0x88e7", a.EtherType)
	}
	return simple16(b, actPushPBB, a.EtherType)
}

// append writes NXAST_REG_LOAD2 if there is a mask: OpenFlow 1.3 has no masked set-field.
func (a SetField) append(b []byte) ([]byte, error) {
	start := len(b)
	if a.Masked {
		b = appendNicira(b, nxRegLoad2)
	} else {
		b = append(b, 0, actSetField, 0, 0)
	}
	b, err := a.OXM.append(b)
	if err != nil {
		return b, fmt.Errorf("set_field: %w", err)
	}
	return putLen(pad8(b, start), start)
}

func (a RawAction) append(b []byte) ([]byte, error) {
	start := len(b)
	b = append(be.AppendUint16(b, a.Type), 0, 0)
	return putLen(append(b, a.Body...), start)
}

func decodeActions(r *reader) (as []Action) {
	if r.depth >= maxDepth && len(r.b) > 0 {
		r.fail(BadActionTooMany, "actions nested deeper than %d", maxDepth)
		return nil
	}
	for len(r.b) > 0 {
		in, ok := r.element(2, 8)
		if !ok {
			return nil
		}
		in.depth++
		as = append(as, decodeAction(&in))
		if in.bad == "" && len(in.b) > 0 {
			in.fail(BadActionLen, "action with %d bytes too many", len(in.b))
		}
		r.join(&in)
	}
	return as
}

func decodeAction(in *reader) Action {
	t := in.u16()
	in.skip(2)
	switch t {
	case actOutput:
		a := Output{Port(in.u32()), in.u16()}
		in.skip(6)
		return a
	case actGroup:
		return Group{in.u32()}
	case actSetQueue:
		return SetQueue{in.u32()}
	case actSetField:
		return decodeSetField(in)
	case actExperiment:
		return decodeNicira(in)
	}
	a, v := Action(nil), in.u32()
	switch t {
	case actTTLOut:
		a = CopyTTLOut{}
	case actTTLIn:
		a = CopyTTLIn{}
	case actSetMPLSTTL:
		a = SetMPLSTTL{uint8(v >> 24)}
	case actDecMPLSTTL:
		a = DecMPLSTTL{}
	case actPushVLAN:
		a = PushVLAN{uint16(v >> 16)}
	case actPopVLAN:
		a = PopVLAN{}
	case actPushMPLS:
		a = PushMPLS{uint16(v >> 16)}
	case actPopMPLS:
		a = PopMPLS{uint16(v >> 16)}
	case actSetNwTTL:
		a = SetNwTTL{uint8(v >> 24)}
	case actDecNwTTL:
		a = DecNwTTL{}
	case actPushPBB:
		a = PushPBB{uint16(v >> 16)}
	case actPopPBB:
		a = PopPBB{}
	default:
		a = RawAction{t, append(be.AppendUint32(nil, v), in.take(len(in.b))...)}
	}
	return a
}

// decodeSetField reads an OXM that must be the whole rest but padding.
func decodeSetField(in *reader) Action {
	a := SetField{decodeOXM(in)}
	in.skip(len(in.b) % 8)
	return a
}
