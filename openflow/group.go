package openflow

import "fmt"

// GroupCommand is what a GroupMod does.
type GroupCommand uint16

const (
	GroupAdd GroupCommand = iota
	GroupModify
	GroupDelete
)

// GroupType is how a group chooses buckets (5.6.1).
type GroupType uint8

const (
	GroupTypeAll GroupType = iota
	GroupTypeSelect
	GroupTypeIndirect
	GroupTypeFastFailover
)

func (t GroupType) String() string {
	if t <= GroupTypeFastFailover {
		return [...]string{"all", "select", "indirect", "ff"}[t]
	}
	return "unknown"
}

// Bucket of a group.
type Bucket struct {
	Weight     uint16 // select only
	WatchPort  Port   // fast failover; 0 none
	WatchGroup uint32 // fast failover; 0 none
	Actions    []Action
}

// GroupMod changes a group (7.3.4.2). Deleting a group deletes the entries that use it.
type GroupMod struct {
	Command GroupCommand
	Kind    GroupType
	ID      uint32
	Buckets []Bucket
}

// MeterCommand is what a MeterMod does.
type MeterCommand uint16

const (
	MeterAdd MeterCommand = iota
	MeterModify
	MeterDelete
)

// MeterFlags of a meter.
type MeterFlags uint16

const (
	MeterKbps MeterFlags = 1 << iota
	MeterPktps
	MeterBurst
	MeterStats
)

// MeterAll as id deletes or shows all meters.
const MeterAll uint32 = 0xffffffff

// BandType of a meter band.
type BandType uint16

const (
	BandDrop       BandType = 1
	BandDSCPRemark BandType = 2
)

// Band of a meter: above Rate (kb/s or packets/s, as the meter's flags say) packets are dropped or remarked.
type Band struct {
	Type      BandType
	Rate      uint32
	BurstSize uint32 // kb or packets
	PrecLevel uint8  // BandDSCPRemark: drop precedence levels to add
}

// MeterMod changes a meter (7.3.4.4).
type MeterMod struct {
	Command MeterCommand
	Flags   MeterFlags
	ID      uint32
	Bands   []Band
}

func (*GroupMod) Type() Type { return TypeGroupMod }
func (*MeterMod) Type() Type { return TypeMeterMod }

func (m *GroupMod) appendBody(b []byte, _ uint32) ([]byte, error) {
	b = be.AppendUint16(b, uint16(m.Command))
	b = be.AppendUint32(append(b, byte(m.Kind), 0), m.ID)
	return appendBuckets(b, m.Buckets)
}

func appendBuckets(b []byte, bs []Bucket) ([]byte, error) {
	var err error
	for i := range bs {
		k, start := &bs[i], len(b)
		b = be.AppendUint16(append(b, 0, 0), k.Weight)
		b = be.AppendUint32(be.AppendUint32(b, orAny(uint32(k.WatchPort))), orAny(k.WatchGroup))
		b = zeros(b, 4)
		if b, err = appendActions(b, k.Actions); err != nil {
			return b, fmt.Errorf("bucket %d: %w", i, err)
		}
		be.PutUint16(b[start:], uint16(len(b)-start))
	}
	return b, nil
}

func decodeBuckets(r *reader) (bs []Bucket) {
	for len(r.b) > 0 {
		in, ok := r.element(0, 16)
		if !ok {
			return nil
		}
		in.skip(2)
		k := Bucket{Weight: in.u16(), WatchPort: Port(fromAny(in.u32())), WatchGroup: fromAny(in.u32())}
		in.skip(4)
		k.Actions = decodeActions(&in)
		r.join(&in)
		bs = append(bs, k)
	}
	return bs
}

func (m *MeterMod) appendBody(b []byte, _ uint32) ([]byte, error) {
	b = be.AppendUint16(be.AppendUint16(b, uint16(m.Command)), uint16(m.Flags))
	return appendBands(be.AppendUint32(b, m.ID), m.Bands)
}

func appendBands(b []byte, bs []Band) ([]byte, error) {
	for i, k := range bs {
		if k.Type != BandDrop && k.Type != BandDSCPRemark {
			return b, fmt.Errorf("band %d: type %d, want drop (1) or dscp remark (2)", i, k.Type)
		}
		b = be.AppendUint16(be.AppendUint16(b, uint16(k.Type)), 16)
		b = be.AppendUint32(be.AppendUint32(b, k.Rate), k.BurstSize)
		b = append(b, k.PrecLevel, 0, 0, 0)
	}
	return b, nil
}

func decodeBands(r *reader) (bs []Band) {
	for len(r.b) > 0 {
		in, ok := r.element(2, 16)
		if !ok {
			return nil
		}
		k := Band{Type: BandType(in.u16())}
		in.skip(2)
		k.Rate, k.BurstSize, k.PrecLevel = in.u32(), in.u32(), in.u8()
		bs = append(bs, k)
	}
	return bs
}
