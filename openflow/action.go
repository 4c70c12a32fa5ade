package openflow

// Action of an entry or packet-out: Output, SetField, PushVLAN, PopVLAN, or one of Nicira's: Resubmit, RegLoad, RegMove, Learn, Clone.
// RawAction is any other: it is kept as it is.
type Action interface {
	append(b []byte) ([]byte, error)
	text() string
}

// Output sends the packet to a port.
type Output struct {
	Port   Port
	MaxLen uint16 // to PortController: bytes of the packet to send; MaxLenNoBuffer: all
}

// SetField writes a header or metadata field. A mask needs Open vSwitch (or OpenFlow 1.5).
type SetField struct{ OXM }

// PushVLAN pushes a tag of EtherType 0x8100 or 0x88a8.
type PushVLAN struct{ EtherType uint16 }

// PopVLAN pops the outermost tag.
type PopVLAN struct{}

// RawAction is one that this package does not know. Body is what follows type and length, without them.
type RawAction struct {
	Type uint16
	Body []byte
}
