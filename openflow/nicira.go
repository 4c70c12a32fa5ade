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

// Learn adds an entry made from the packet (NXAST_LEARN).
type Learn struct {
	IdleS, HardS       uint16
	Priority           uint16
	Cookie             uint64
	Flags              LearnFlags
	Table              uint8
	FinIdleS, FinHardS uint16
	Specs              []LearnSpec
}

// LearnFlags of a Learn action.
type LearnFlags uint16

const (
	LearnSendFlowRemoved LearnFlags = 1 << 0
	LearnDeleteLearned   LearnFlags = 1 << 1
)

// LearnKind is what a LearnSpec makes.
type LearnKind uint8

const (
	LearnMatch  LearnKind = iota // the new entry matches Dst = source
	LearnLoad                    // its actions load the source into Dst
	LearnOutput                  // its actions output to the port in the source
)

// LearnSpec is one part of the learned entry. The source is Src, or Value if Immediate.
type LearnSpec struct {
	Kind      LearnKind
	Immediate bool
	Value     uint64 // at most 64 bits of Dst.Count
	Src       Bits   // Src.Count is the width if not Immediate
	Dst       Bits   // unused by LearnOutput
}
