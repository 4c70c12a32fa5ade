package openflow

// Action of an entry, bucket or packet-out: Output, Group, SetField, PushVLAN, ... or one of Nicira's: Resubmit, RegLoad, RegMove,
// OutputReg, Learn, Note, Clone; RawAction is any other.
type Action interface {
	append(b []byte) ([]byte, error)
	text() string
}

// Output sends the packet to a port.
type Output struct {
	Port   Port
	MaxLen uint16 // to PortController: bytes of the packet to send; MaxLenNoBuffer: all
}

// Group executes a group.
type Group struct{ ID uint32 }

// SetQueue chooses the queue of the output port.
type SetQueue struct{ ID uint32 }

// SetField writes a header or metadata field. A mask needs Open vSwitch (or OpenFlow 1.5).
type SetField struct{ OXM }

// PushVLAN pushes a tag of EtherType 0x8100 or 0x88a8.
type PushVLAN struct{ EtherType uint16 }

// PopVLAN pops the outermost tag.
type PopVLAN struct{}

// PushMPLS pushes a label of EtherType 0x8847 or 0x8848.
type PushMPLS struct{ EtherType uint16 }

// PopMPLS pops the outermost label; EtherType is that of the payload.
type PopMPLS struct{ EtherType uint16 }

// PushPBB pushes a PBB service tag of EtherType 0x88e7.
type PushPBB struct{ EtherType uint16 }

// PopPBB pops it.
type PopPBB struct{}

// SetNwTTL sets the IP TTL.
type SetNwTTL struct{ TTL uint8 }

// DecNwTTL decrements the IP TTL.
type DecNwTTL struct{}

// SetMPLSTTL sets the MPLS TTL.
type SetMPLSTTL struct{ TTL uint8 }

// DecMPLSTTL decrements the MPLS TTL.
type DecMPLSTTL struct{}

// CopyTTLOut copies the TTL from the next-to-outermost to the outermost header.
type CopyTTLOut struct{}

// CopyTTLIn copies it inwards.
type CopyTTLIn struct{}

// RawAction is one that this package does not know. Body is what follows type and length, without them.
type RawAction struct {
	Type uint16
	Body []byte
}
