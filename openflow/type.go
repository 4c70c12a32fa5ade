package openflow

import "fmt"

// Version13 is OpenFlow 1.3 on the wire.
const Version13 = 0x04

// MaxMessage is the longest message, header included, in bytes.
const MaxMessage = 65535

const headerLen = 8

// Type of a message (7.1).
type Type uint8

const (
	TypeHello Type = iota
	TypeError
	TypeEchoRequest
	TypeEchoReply
	TypeExperimenter
	TypeFeaturesRequest
	TypeFeaturesReply
	TypeGetConfigRequest
	TypeGetConfigReply
	TypeSetConfig
	TypePacketIn
	TypeFlowRemoved
	TypePortStatus
	TypePacketOut
	TypeFlowMod
	TypeGroupMod
	TypePortMod
	TypeTableMod
	TypeMultipartRequest
	TypeMultipartReply
	TypeBarrierRequest
	TypeBarrierReply
	TypeQueueConfigRequest
	TypeQueueConfigReply
	TypeRoleRequest
	TypeRoleReply
	TypeGetAsyncRequest
	TypeGetAsyncReply
	TypeSetAsync
	TypeMeterMod
)

var typeNames = [...]string{"hello", "error", "echo request", "echo reply", "experimenter", "features request", "features reply",
	"get config request", "get config reply", "set config", "packet-in", "flow-removed", "port-status", "packet-out", "flow-mod",
	"group-mod", "port-mod", "table-mod", "multipart request", "multipart reply", "barrier request", "barrier reply",
	"queue config request", "queue config reply", "role request", "role reply", "get async request", "get async reply", "set async",
	"meter-mod"}

func (t Type) String() string {
	if int(t) < len(typeNames) {
		return typeNames[t]
	}
	return fmt.Sprintf("type %d", uint8(t))
}

// Message is one of the pointers to this package's message structs.
type Message interface {
	Type() Type
	// appendBody writes what follows the header. xid is the message's own, for what is nested in it.
	appendBody(b []byte, xid uint32) ([]byte, error)
}

// MAC is an Ethernet address.
type MAC [6]byte

func (m MAC) String() string {
	return fmt.Sprintf("%02x:%02x:%02x:%02x:%02x:%02x", m[0], m[1], m[2], m[3], m[4], m[5])
}

// Port is a port number or one of the reserved ones (7.2.1).
type Port uint32

const (
	PortMax        Port = 0xffffff00
	PortInPort     Port = 0xfffffff8
	PortTable      Port = 0xfffffff9 // packet-out only
	PortNormal     Port = 0xfffffffa
	PortFlood      Port = 0xfffffffb
	PortAll        Port = 0xfffffffc
	PortController Port = 0xfffffffd
	PortLocal      Port = 0xfffffffe
	PortAny        Port = 0xffffffff
)

func (p Port) String() string {
	switch p {
	case PortInPort:
		return "IN_PORT"
	case PortTable:
		return "TABLE"
	case PortNormal:
		return "NORMAL"
	case PortFlood:
		return "FLOOD"
	case PortAll:
		return "ALL"
	case PortController:
		return "CONTROLLER"
	case PortLocal:
		return "LOCAL"
	case PortAny:
		return "ANY"
	}
	return fmt.Sprint(uint32(p))
}

// TableAll in deletes and statistics requests.
const TableAll uint8 = 0xff

// MaxLenNoBuffer as Output.MaxLen sends whole packets to the controller.
const MaxLenNoBuffer uint16 = 0xffff
