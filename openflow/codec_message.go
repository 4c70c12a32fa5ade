package openflow

import "fmt"

func (*Hello) Type() Type           { return TypeHello }
func (*EchoRequest) Type() Type     { return TypeEchoRequest }
func (*EchoReply) Type() Type       { return TypeEchoReply }
func (*Experimenter) Type() Type    { return TypeExperimenter }
func (r *Raw) Type() Type           { return r.Kind }
func (*FeaturesRequest) Type() Type { return TypeFeaturesRequest }
func (*FeaturesReply) Type() Type   { return TypeFeaturesReply }
func (*SetConfig) Type() Type       { return TypeSetConfig }
func (*BarrierRequest) Type() Type  { return TypeBarrierRequest }
func (*BarrierReply) Type() Type    { return TypeBarrierReply }
func (*RoleRequest) Type() Type     { return TypeRoleRequest }
func (*RoleReply) Type() Type       { return TypeRoleReply }
func (*SetAsync) Type() Type        { return TypeSetAsync }
func (*PacketIn) Type() Type        { return TypePacketIn }
func (*PacketOut) Type() Type       { return TypePacketOut }
func (*FlowRemoved) Type() Type     { return TypeFlowRemoved }
func (*BundleControl) Type() Type   { return TypeExperimenter }
func (*BundleAdd) Type() Type       { return TypeExperimenter }

func (m *Hello) appendBody(b []byte, _ uint32) ([]byte, error) {
	if m.Versions == 0 {
		return b, nil
	}
	return be.AppendUint32(append(b, 0, 1, 0, 8), m.Versions), nil
}

func decodeHello(r *reader, version uint8) *Hello {
	m := &Hello{Highest: version}
	for len(r.b) > 0 {
		in, ok := r.element(2, 4)
		if !ok {
			return m
		}
		pad := min(len(r.b), (8-len(in.b)%8)%8)
		if in.u32()>>16 == 1 && len(in.b) >= 4 {
			m.Versions = in.u32()
		}
		r.skip(pad)
	}
	return m
}

func (m *EchoRequest) appendBody(b []byte, _ uint32) ([]byte, error) {
	return append(b, m.Data...), nil
}
func (m *EchoReply) appendBody(b []byte, _ uint32) ([]byte, error) { return append(b, m.Data...), nil }
func (m *Raw) appendBody(b []byte, _ uint32) ([]byte, error)       { return append(b, m.Body...), nil }

func (m *Experimenter) appendBody(b []byte, _ uint32) ([]byte, error) {
	b = be.AppendUint32(b, m.ID)
	b = be.AppendUint32(b, m.Kind)
	return append(b, m.Data...), nil
}

const (
	onf               = 0x4f4e4600
	nicira            = 0x00002320
	kindBundleControl = 2300
	kindBundleAdd     = 2301
)

func decodeExperimenter(r *reader, xid uint32) Message {
	id, kind := r.u32(), r.u32()
	switch {
	case id == onf && kind == kindBundleControl:
		m := &BundleControl{r.u32(), BundleKind(r.u16()), BundleFlags(r.u16())}
		r.b = r.b[:0] // properties
		return m
	case id == onf && kind == kindBundleAdd:
		return decodeBundleAdd(r, xid)
	}
	return &Experimenter{id, kind, r.copy(len(r.b))}
}

func (m *BundleControl) appendBody(b []byte, _ uint32) ([]byte, error) {
	b = be.AppendUint32(be.AppendUint32(b, onf), kindBundleControl)
	b = be.AppendUint32(b, m.ID)
	return be.AppendUint16(be.AppendUint16(b, uint16(m.Kind)), uint16(m.Flags)), nil
}

func (m *BundleAdd) appendBody(b []byte, xid uint32) ([]byte, error) {
	switch m.Message.(type) {
	case *FlowMod, *PacketOut:
	case nil:
		return b, fmt.Errorf("bundle %d: no message", m.ID)
	default:
		return b, fmt.Errorf("bundle %d: a %s cannot be in a bundle", m.ID, m.Message.Type())
	}
	b = be.AppendUint32(be.AppendUint32(b, onf), kindBundleAdd)
	b = be.AppendUint32(b, m.ID)
	b = be.AppendUint16(append(b, 0, 0), uint16(m.Flags))
	return Append(b, xid, m.Message)
}

func decodeBundleAdd(r *reader, xid uint32) Message {
	m := &BundleAdd{ID: r.u32()}
	r.skip(2)
	m.Flags = BundleFlags(r.u16())
	if len(r.b) < headerLen {
		r.fail(BadLen, "message in bundle %d: %d bytes are shorter than a header", m.ID, len(r.b))
		return m
	}
	n := int(be.Uint16(r.b[2:]))
	if n < headerLen || n > len(r.b) {
		r.fail(BundleMsgBadLen, "message in bundle %d says %d bytes, there are %d", m.ID, n, len(r.b))
		return m
	}
	if t := Type(r.b[1]); t == TypeExperimenter || t == TypeHello || t == TypeError {
		r.fail(BundleMsgUnsupported, "a %s cannot be in bundle %d", t, m.ID)
		return m
	}
	inner, msg, err := Decode(r.b[:n])
	if err != nil {
		r.fail(err.(*DecodeError).Code, "in bundle %d: %s: %s", m.ID, Type(r.b[1]), err.(*DecodeError).Reason)
		return m
	}
	if inner != xid {
		r.fail(BundleMsgBadXID, "message in bundle %d has xid %#x, want %#x", m.ID, inner, xid)
		return m
	}
	m.Message = msg
	r.b = r.b[:0] // properties
	return m
}

func (*FeaturesRequest) appendBody(b []byte, _ uint32) ([]byte, error) { return b, nil }
func (*BarrierRequest) appendBody(b []byte, _ uint32) ([]byte, error)  { return b, nil }
func (*BarrierReply) appendBody(b []byte, _ uint32) ([]byte, error)    { return b, nil }

func (m *FeaturesReply) appendBody(b []byte, _ uint32) ([]byte, error) {
	b = be.AppendUint64(b, m.DatapathID)
	b = be.AppendUint32(b, m.Buffers)
	b = append(b, m.Tables, m.AuxiliaryID, 0, 0)
	b = be.AppendUint32(b, uint32(m.Capabilities))
	return zeros(b, 4), nil
}

func (m *SetConfig) appendBody(b []byte, _ uint32) ([]byte, error) {
	return be.AppendUint16(be.AppendUint16(b, m.Flags), m.MissSendLen), nil
}

func (m *RoleRequest) appendBody(b []byte, _ uint32) ([]byte, error) {
	return be.AppendUint64(zeros(be.AppendUint32(b, uint32(m.Role)), 4), m.GenerationID), nil
}

func (m *RoleReply) appendBody(b []byte, _ uint32) ([]byte, error) {
	return be.AppendUint64(zeros(be.AppendUint32(b, uint32(m.Role)), 4), m.GenerationID), nil
}

func (m *AsyncMasks) appendBody(b []byte, _ uint32) ([]byte, error) {
	for _, p := range [][2]uint32{m.PacketIn, m.PortStatus, m.FlowRemoved} {
		b = be.AppendUint32(be.AppendUint32(b, p[0]), p[1])
	}
	return b, nil
}

func decodeAsync(r *reader) AsyncMasks {
	return AsyncMasks{[2]uint32{r.u32(), r.u32()}, [2]uint32{r.u32(), r.u32()}, [2]uint32{r.u32(), r.u32()}}
}

func (m *PacketIn) appendBody(b []byte, _ uint32) ([]byte, error) {
	b = be.AppendUint32(b, m.Buffer-1)
	b = be.AppendUint16(b, m.TotalLen)
	b = append(b, byte(m.Reason), m.Table)
	b = be.AppendUint64(b, m.Cookie)
	b, err := m.Match.append(b)
	return append(append(b, 0, 0), m.Data...), err
}

func decodePacketIn(r *reader) *PacketIn {
	m := &PacketIn{Buffer: r.u32() + 1, TotalLen: r.u16(), Reason: PacketInReason(r.u8()), Table: r.u8(), Cookie: r.u64()}
	m.Match = decodeMatch(r)
	r.skip(2)
	m.Data = r.copy(len(r.b))
	return m
}

func (m *PacketOut) appendBody(b []byte, _ uint32) ([]byte, error) {
	b = be.AppendUint32(b, m.Buffer-1)
	in := m.InPort
	if in == 0 {
		in = PortController
	}
	b = be.AppendUint32(b, uint32(in))
	b = zeros(b, 8)
	start := len(b)
	b, err := appendActions(b, m.Actions)
	if err != nil {
		return b, err
	}
	be.PutUint16(b[start-8:], uint16(len(b)-start))
	return append(b, m.Data...), nil
}

func decodePacketOut(r *reader) *PacketOut {
	m := &PacketOut{Buffer: r.u32() + 1, InPort: Port(r.u32())}
	if m.InPort == 0 { // no port at all
		m.InPort = PortController
	}
	n := int(r.u16())
	r.skip(6)
	in := r.sub(n)
	m.Actions = decodeActions(&in)
	r.join(&in)
	m.Data = r.copy(len(r.b))
	return m
}

func (m *FlowRemoved) appendBody(b []byte, _ uint32) ([]byte, error) {
	b = be.AppendUint64(b, m.Cookie)
	b = be.AppendUint16(b, m.Priority)
	b = append(b, byte(m.Reason), m.Table)
	b = be.AppendUint32(be.AppendUint32(b, m.DurationS), m.DurationNS)
	b = be.AppendUint16(be.AppendUint16(b, m.IdleS), m.HardS)
	b = be.AppendUint64(be.AppendUint64(b, m.Packets), m.Bytes)
	return m.Match.append(b)
}

func decodeFlowRemoved(r *reader) *FlowRemoved {
	m := &FlowRemoved{Cookie: r.u64(), Priority: r.u16(), Reason: RemovedReason(r.u8()), Table: r.u8(), DurationS: r.u32(),
		DurationNS: r.u32(), IdleS: r.u16(), HardS: r.u16(), Packets: r.u64(), Bytes: r.u64()}
	m.Match = decodeMatch(r)
	return m
}
