package openflow

// Hello opens a connection (7.5.1). Header version is the highest one of Versions.
type Hello struct {
	Versions uint32 // bit n: wire version n (1<<4 is 1.3); 0: no bitmap, only Highest counts
	Highest  uint8  // the header's version; 0 is 1.3
}

// EchoRequest asks for an EchoReply with the same Data.
type EchoRequest struct{ Data []byte }

// EchoReply answers an EchoRequest.
type EchoReply struct{ Data []byte }

// Experimenter is a message of an experimenter that this package does not know.
type Experimenter struct {
	ID   uint32
	Kind uint32 // exp_type
	Data []byte
}

// Raw is a message of a type that this package does not know.
type Raw struct {
	Kind Type
	Body []byte
}

// FeaturesRequest asks for a FeaturesReply.
type FeaturesRequest struct{}

// Capabilities of a switch (7.3.1).
type Capabilities uint32

const (
	CapFlowStats  Capabilities = 1 << 0
	CapTableStats Capabilities = 1 << 1
	CapPortStats  Capabilities = 1 << 2
)

// FeaturesReply says what a switch is (7.3.1).
type FeaturesReply struct {
	DatapathID   uint64
	Buffers      uint32
	Tables       uint8
	AuxiliaryID  uint8
	Capabilities Capabilities
}

// Fragment handling in a switch's configuration (7.3.2).
const (
	FragNormal uint16 = 0
	FragMatch  uint16 = 3 // Nicira's OFPC_FRAG_NX_MATCH: first fragments have their ports, and nw_frag can be matched
)

// SetConfig sets it.
type SetConfig struct{ Flags, MissSendLen uint16 }

// BarrierRequest is answered when all messages before it have been processed.
type BarrierRequest struct{}

// BarrierReply answers it.
type BarrierReply struct{}

// Role of a controller (7.3.9).
type Role uint32

const (
	RoleNoChange Role = iota
	RoleEqual
	RoleMaster
	RoleSlave
)

// RoleRequest changes the role; GenerationID must not be behind the highest that the switch has seen, for master and slave.
type RoleRequest struct {
	Role         Role
	GenerationID uint64
}

// RoleReply is the role in force.
type RoleReply struct {
	Role         Role
	GenerationID uint64
}

// AsyncMasks says which asynchronous messages are sent: bit n is reason n; index 0 for master and equal, 1 for slave (7.3.10).
type AsyncMasks struct{ PacketIn, PortStatus, FlowRemoved [2]uint32 }

// SetAsync sets it.
type SetAsync struct{ AsyncMasks }

// PacketInReason is why a packet came to the controller.
type PacketInReason uint8

const (
	ReasonNoMatch PacketInReason = iota // table-miss
	ReasonAction
)

// PacketIn carries a packet to the controller (7.4.1).
type PacketIn struct {
	Buffer   uint32 // the switch's buffer id + 1; 0 not buffered
	TotalLen uint16 // of the frame; more than len(Data) if cut
	Reason   PacketInReason
	Table    uint8
	Cookie   uint64
	Match    Match // pipeline fields: in_port at least
	Data     []byte
}

// InPort is the port in the match, 0 if it has none.
func (p *PacketIn) InPort() Port {
	port, _ := p.Match.InPort()
	return port
}

// PacketOut makes the switch send a packet (7.3.7).
type PacketOut struct {
	Buffer  uint32 // as in PacketIn; 0: Data is the packet
	InPort  Port   // 0 is PortController
	Actions []Action
	Data    []byte
}

// RemovedReason is why a flow is gone.
type RemovedReason uint8

const RemovedDelete RemovedReason = 2

// FlowRemoved says that an entry with FlagSendFlowRemoved is gone (7.4.2).
type FlowRemoved struct {
	Cookie         uint64
	Priority       uint16
	Reason         RemovedReason
	Table          uint8
	DurationS      uint32
	DurationNS     uint32
	IdleS, HardS   uint16
	Packets, Bytes uint64
	Match          Match
}
