package openflow

import (
	"errors"
	"fmt"
)

const (
	actOutput     = 0
	actPushVLAN   = 17
	actPopVLAN    = 18
	actSetField   = 25
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

func (a PopVLAN) append(b []byte) ([]byte, error) {
	return append(b, 0, actPopVLAN, 0, 8, 0, 0, 0, 0), nil
}

func (a PushVLAN) append(b []byte) ([]byte, error) {
	if a.EtherType != 0x8100 && a.EtherType != 0x88a8 {
		return b, fmt.Errorf("push_vlan: EtherType %#04x, want 0x8100 or 0x88a8", a.EtherType)
	}
	return append(b, 0, actPushVLAN, 0, 8, byte(a.EtherType>>8), byte(a.EtherType), 0, 0), nil
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
	case actPushVLAN:
		a := PushVLAN{in.u16()}
		in.skip(2)
		return a
	case actPopVLAN:
		in.skip(4)
		return PopVLAN{}
	case actSetField:
		return decodeSetField(in)
	case actExperiment:
		return decodeNicira(in)
	}
	return RawAction{t, in.copy(len(in.b))}
}

// decodeSetField reads an OXM that must be the whole rest but padding.
func decodeSetField(in *reader) Action {
	a := SetField{decodeOXM(in)}
	in.skip(len(in.b) % 8)
	return a
}
