package openflow

// Bits is a range of bits of a field, from the least significant one: {FieldReg0, 0, 32} is the whole register.
type Bits struct {
	Field Field
	First uint16
	Count uint16
}

// Resubmit looks the packet up again (NXAST_RESUBMIT_TABLE): with InPort (0: PortInPort, the present one) in Table (TableAll: the present one).
type Resubmit struct {
	InPort uint16
	Table  uint8
}

// RegLoad writes Value into Dst, which is at most 64 bits wide (NXAST_REG_LOAD).
type RegLoad struct {
	Dst   Bits
	Value uint64
}

// RegMove copies bits (NXAST_REG_MOVE); Src and Dst are equally wide.
type RegMove struct{ Src, Dst Bits }

// Clone executes actions on a copy (NXAST_CLONE).
type Clone []Action

// Learn adds an entry made from the packet (NXAST_LEARN). One with flags, constants or outputs is read as a RawAction.
type Learn struct {
	IdleS, HardS uint16
	Priority     uint16
	Cookie       uint64
	Table        uint8
	Specs        []LearnSpec
}

// LearnKind is what a LearnSpec makes.
type LearnKind uint8

const (
	LearnMatch LearnKind = iota // the new entry matches Dst = Src
	LearnLoad                   // its actions load Src into Dst
)

// LearnSpec is one part of the learned entry. Src, of the packet, and Dst are equally wide.
type LearnSpec struct {
	Kind     LearnKind
	Src, Dst Bits
}
