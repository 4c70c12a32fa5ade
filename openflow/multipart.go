package openflow

// MultipartKind names a statistic or description (7.3.5).
type MultipartKind uint16

const (
	MultipartDesc          MultipartKind = 0
	MultipartFlow          MultipartKind = 1
	MultipartAggregate     MultipartKind = 2
	MultipartPortStats     MultipartKind = 4
	MultipartTableFeatures MultipartKind = 12
	MultipartPortDesc      MultipartKind = 13
)

// MultipartRequest asks for Body's kind.
type MultipartRequest struct {
	More bool
	Body MultipartBody
}

// MultipartReply is one part of an answer; More: another follows with the same xid.
type MultipartReply struct {
	More bool
	Body MultipartBody
}

// MultipartBody is a request's or a reply's body: *DescRequest, *FlowStatsRequest, ..., DescReply, FlowStatsReply, ...
type MultipartBody interface {
	Kind() MultipartKind
	appendBody(b []byte) ([]byte, error)
}

// DescRequest asks for DescReply, TableStatsRequest for TableStatsReply, and so on.
type (
	DescRequest     struct{}
	PortDescRequest struct{}
)

// FlowStatsRequest asks for the entries that match (non-strictly).
type FlowStatsRequest struct {
	Table      uint8 // TableAll: all
	Cookie     uint64
	CookieMask uint64
	Match      Match
}

// AggregateRequest asks for the sum over the entries that match.
type AggregateRequest FlowStatsRequest

// PortStatsRequest asks for one port or, with PortAny, all.
type PortStatsRequest struct{ Port Port }

// TableFeaturesMsg asks for (empty), sets, or tells the features of tables.
type TableFeaturesMsg []TableFeatures

// DescReply describes the switch for people.
type DescReply struct{ Manufacturer, Hardware, Software, Serial, Datapath string }

// FlowStats is an entry with its counters.
type FlowStats struct {
	Table        uint8
	DurationS    uint32
	DurationNS   uint32
	Priority     uint16
	IdleS, HardS uint16
	Flags        FlowFlags
	Cookie       uint64
	Packets      uint64
	Bytes        uint64
	Match        Match
	Instructions []Instruction
}

// AggregateReply sums entries up.
type AggregateReply struct {
	Packets, Bytes uint64
	Flows          uint32
}

// PortStats counts a port.
type PortStats struct {
	Port                                 Port
	RxPackets, TxPackets                 uint64
	RxBytes, TxBytes                     uint64
	RxDropped, TxDropped                 uint64
	RxErrors, TxErrors                   uint64
	RxFrameErr, RxOverErr, RxCRCErr, Col uint64
	DurationS, DurationNS                uint32
}

// TableFeatures describes a table (7.3.5.5). Properties are raw: type and payload.
type TableFeatures struct {
	Table                        uint8
	Name                         string // at most 31 bytes
	MetadataMatch, MetadataWrite uint64
	Config                       uint32
	MaxEntries                   uint32
	Properties                   []TableProperty
}

// TableProperty is one property of a table: instructions, actions or fields that it can do, in wire form.
type TableProperty struct {
	Type uint16
	Body []byte
}

// tableMatch is the property that lists the fields which a table matches: OFPTFPT_MATCH.
const tableMatch = 8

// Masks tells whether the table matches a field under a mask; known is false if it does not say what it matches.
func (t TableFeatures) Masks(f Field) (masked, known bool) {
	const hasMask, field = 0x100, ^uint32(0x1ff)
	for _, p := range t.Properties {
		if p.Type != tableMatch {
			continue
		}
		known = true
		for b := p.Body; len(b) >= 4; {
			h := be.Uint32(b)
			masked = masked || h&field == uint32(f)&field && h&hasMask != 0
			if b = b[4:]; h>>16 == 0xffff { // of an experimenter: its number follows
				b = b[min(4, len(b)):]
			}
		}
	}
	return masked, known
}

// Replies with lists.
type (
	FlowStatsReply []FlowStats
	PortStatsReply []PortStats
	PortDescReply  []PortDesc
)

// RawMultipart is a body that this package does not know.
type RawMultipart struct {
	Type MultipartKind
	Body []byte
}
