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
	FlagNoPacketCounts
	FlagNoByteCounts
)

// FlowMod changes a flow table (7.3.4.1).
type FlowMod struct {
	Command      FlowCommand
	Table        uint8 // TableAll in deletes
	Priority     uint16
	Cookie       uint64
	CookieMask   uint64 // modify and delete: which bits of the entries' cookies must equal Cookie's; 0 any
	IdleS, HardS uint16 // timeouts in seconds, 0 never
	Buffer       uint32 // as in PacketIn
	OutPort      Port   // delete: only entries that output there; 0 any
	OutGroup     uint32 // delete: only entries with that group; 0 any
	Flags        FlowFlags
	Match        Match
	Instructions []Instruction
}

// Instruction of a flow entry: GotoTable, WriteMetadata, WriteActions, ApplyActions, ClearActions, Meter or RawInstruction.
type Instruction interface {
	append(b []byte) ([]byte, error)
	text() string
}

// GotoTable goes on in a later table.
type GotoTable struct{ Table uint8 }

// WriteMetadata sets the bits of Mask in the metadata field.
type WriteMetadata struct{ Metadata, Mask uint64 }

// WriteActions puts actions into the action set.
type WriteActions []Action

// ApplyActions executes a list of actions at once.
type ApplyActions []Action

// ClearActions empties the action set.
type ClearActions struct{}

// Meter passes the packet through a meter.
type Meter struct{ ID uint32 }

// RawInstruction is one that this package does not know. Body is what follows type and length, without them.
type RawInstruction struct {
	Type uint16
	Body []byte
}

// TableMod configures a table (7.3.4.3): deprecated in the protocol, sent to switches that want it.
type TableMod struct {
	Table  uint8
	Config uint32
}

func (*FlowMod) Type() Type  { return TypeFlowMod }
func (*TableMod) Type() Type { return TypeTableMod }

func (m *FlowMod) appendBody(b []byte, _ uint32) ([]byte, error) {
	if err := m.Match.Check(); err != nil {
		return b, err
	}
	b = be.AppendUint64(be.AppendUint64(b, m.Cookie), m.CookieMask)
	b = append(b, m.Table, byte(m.Command))
	b = be.AppendUint16(be.AppendUint16(be.AppendUint16(b, m.IdleS), m.HardS), m.Priority)
	b = be.AppendUint32(b, m.Buffer-1)
	b = be.AppendUint32(be.AppendUint32(b, orAny(uint32(m.OutPort))), orAny(m.OutGroup))
	b = append(be.AppendUint16(b, uint16(m.Flags)), 0, 0)
	b, err := m.Match.append(b)
	if err != nil {
		return b, err
	}
	return appendInstructions(b, m.Instructions)
}

func decodeFlowMod(r *reader) *FlowMod {
	m := &FlowMod{Cookie: r.u64(), CookieMask: r.u64(), Table: r.u8(), Command: FlowCommand(r.u8()), IdleS: r.u16(), HardS: r.u16(),
		Priority: r.u16(), Buffer: r.u32() + 1, OutPort: Port(fromAny(r.u32()))}
	group := r.u32()
	if group == 0 && m.Command >= FlowDelete {
		r.fail(BadRequestEPERM, "delete by output group 0 is not supported")
	}
	m.OutGroup = fromAny(group)
	m.Flags = FlowFlags(r.u16())
	r.skip(2)
	m.Match = decodeMatch(r)
	m.Instructions = decodeInstructions(r)
	return m
}

func (m *TableMod) appendBody(b []byte, _ uint32) ([]byte, error) {
	return be.AppendUint32(append(b, m.Table, 0, 0, 0), m.Config), nil
}

const (
	instGoto = iota + 1
	instWriteMetadata
	instWriteActions
	instApplyActions
	instClearActions
	instMeter
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

func (i WriteMetadata) append(b []byte) ([]byte, error) {
	b = append(b, 0, instWriteMetadata, 0, 24, 0, 0, 0, 0)
	return be.AppendUint64(be.AppendUint64(b, i.Metadata), i.Mask), nil
}

func (i ClearActions) append(b []byte) ([]byte, error) {
	return append(b, 0, instClearActions, 0, 8, 0, 0, 0, 0), nil
}

func (i Meter) append(b []byte) ([]byte, error) {
	return be.AppendUint32(append(b, 0, instMeter, 0, 8), i.ID), nil
}

func (i WriteActions) append(b []byte) ([]byte, error) {
	return appendActionInstruction(b, instWriteActions, i)
}

func (i ApplyActions) append(b []byte) ([]byte, error) {
	return appendActionInstruction(b, instApplyActions, i)
}

func appendActionInstruction(b []byte, t byte, as []Action) ([]byte, error) {
	start := len(b)
	b, err := appendActions(append(b, 0, t, 0, 0, 0, 0, 0, 0), as)
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
	case instWriteMetadata:
		in.skip(4)
		return WriteMetadata{in.u64(), in.u64()}
	case instWriteActions:
		in.skip(4)
		return WriteActions(decodeActions(in))
	case instApplyActions:
		in.skip(4)
		return ApplyActions(decodeActions(in))
	case instClearActions:
		in.skip(4)
		return ClearActions{}
	case instMeter:
		return Meter{in.u32()}
	}
	return RawInstruction{t, in.copy(len(in.b))}
}
