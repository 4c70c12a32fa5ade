package openflow

import (
	"errors"
	"fmt"
)

// FlowCommand is what a FlowMod does (6.4).
type FlowCommand uint8

const (
	FlowAdd FlowCommand = iota
	FlowModify
	FlowModifyStrict
	FlowDelete
	FlowDeleteStrict
)

// FlowFlags of an entry (7.3.4.1).
type FlowFlags uint16

const (
	FlagSendFlowRemoved FlowFlags = 1 << iota
	FlagCheckOverlap
	FlagResetCounts
)

// FlowMod changes a flow table (7.3.4.1).
type FlowMod struct {
	Command      FlowCommand
	Table        uint8 // TableAll in deletes
	Priority     uint16
	Cookie       uint64
	CookieMask   uint64 // modify and delete: which bits of the entries' cookies must equal Cookie's; 0 any
	IdleS, HardS uint16 // timeouts in seconds, 0 never
	Flags        FlowFlags
	Match        Match
	Instructions []Instruction
}

// Instruction of a flow entry: GotoTable, ApplyActions or RawInstruction.
type Instruction interface {
	append(b []byte) ([]byte, error)
	text() string
}

// GotoTable goes on in a later table.
type GotoTable struct{ Table uint8 }

// ApplyActions executes a list of actions at once.
type ApplyActions []Action

// RawInstruction is one that this package does not know. Body is what follows type and length, without them.
type RawInstruction struct {
	Type uint16
	Body []byte
}

func (*FlowMod) Type() Type { return TypeFlowMod }

func (m *FlowMod) appendBody(b []byte, _ uint32) ([]byte, error) {
	if err := m.Match.Check(); err != nil {
		return b, err
	}
	b = be.AppendUint64(be.AppendUint64(b, m.Cookie), m.CookieMask)
	b = append(b, m.Table, byte(m.Command))
	b = be.AppendUint16(be.AppendUint16(be.AppendUint16(b, m.IdleS), m.HardS), m.Priority)
	b = be.AppendUint32(b, noBuffer)
	b = be.AppendUint64(b, anyOutput)
	b = append(be.AppendUint16(b, uint16(m.Flags)), 0, 0)
	b, err := m.Match.append(b)
	if err != nil {
		return b, err
	}
	return appendInstructions(b, m.Instructions)
}

func decodeFlowMod(r *reader) *FlowMod {
	m := &FlowMod{Cookie: r.u64(), CookieMask: r.u64(), Table: r.u8(), Command: FlowCommand(r.u8()), IdleS: r.u16(), HardS: r.u16(),
		Priority: r.u16()}
	r.skip(4) // buffer
	if out := r.u64(); out != anyOutput && m.Command >= FlowDelete {
		r.fail(BadRequestEPERM, "delete by output port or group is not supported")
	}
	m.Flags = FlowFlags(r.u16())
	r.skip(2)
	m.Match = decodeMatch(r)
	m.Instructions = decodeInstructions(r)
	return m
}

const (
	instGoto         = 1
	instApplyActions = 4
)

func appendInstructions(b []byte, is []Instruction) ([]byte, error) {
	var err error
	for _, i := range is {
		if i == nil {
			return b, errors.New("nil instruction")
		}
		if b, err = i.append(b); err != nil {
			return b, err
		}
	}
	return b, nil
}

func (i GotoTable) append(b []byte) ([]byte, error) {
	return append(b, 0, instGoto, 0, 8, i.Table, 0, 0, 0), nil
}

func (i ApplyActions) append(b []byte) ([]byte, error) {
	start := len(b)
	b, err := appendActions(append(b, 0, instApplyActions, 0, 0, 0, 0, 0, 0), i)
	if err != nil {
		return b, err
	}
	return putLen(b, start)
}

func (i RawInstruction) append(b []byte) ([]byte, error) {
	start := len(b)
	b = append(be.AppendUint16(b, i.Type), 0, 0)
	return putLen(append(b, i.Body...), start)
}

// putLen writes the length of what begins at start into the 16 bits behind its type.
func putLen(b []byte, start int) ([]byte, error) {
	n := len(b) - start
	if n > MaxMessage || n%8 != 0 {
		return b, fmt.Errorf("instruction or action of %d bytes: want a multiple of 8, at most %d", n, MaxMessage)
	}
	be.PutUint16(b[start+2:], uint16(n))
	return b, nil
}

func decodeInstructions(r *reader) (is []Instruction) {
	for len(r.b) > 0 {
		in, ok := r.element(2, 8)
		if !ok {
			return nil
		}
		is = append(is, decodeInstruction(&in))
		if in.bad == "" && len(in.b) > 0 {
			in.fail(BadInstructionLen, "instruction with %d bytes too many", len(in.b))
		}
		r.join(&in)
	}
	return is
}

func decodeInstruction(in *reader) Instruction {
	t := in.u16()
	in.skip(2)
	switch t {
	case instGoto:
		i := GotoTable{in.u8()}
		in.skip(3)
		return i
	case instApplyActions:
		in.skip(4)
		return ApplyActions(decodeActions(in))
	}
	return RawInstruction{t, in.copy(len(in.b))}
}
