package openflow

import "fmt"

// putLen16 writes the length of what begins at start to the 16 bits at offset at of it.
func putLen16(b []byte, start, at int) ([]byte, error) {
	n := len(b) - start
	if n > MaxMessage {
		return b, fmt.Errorf("list element of %d bytes", n)
	}
	be.PutUint16(b[start+at:], uint16(n))
	return b, nil
}

func (m FlowStatsReply) appendBody(b []byte) ([]byte, error) {
	var err error
	for i := range m {
		if b, err = m[i].Append(b); err != nil {
			return b, err
		}
	}
	return b, nil
}

// Append writes one entry of a FlowStatsReply's body, for those who split long answers.
func (f *FlowStats) Append(b []byte) ([]byte, error) {
	start := len(b)
	b = append(b, 0, 0, f.Table, 0)
	b = be.AppendUint32(be.AppendUint32(b, f.DurationS), f.DurationNS)
	b = be.AppendUint16(be.AppendUint16(be.AppendUint16(b, f.Priority), f.IdleS), f.HardS)
	b = zeros(be.AppendUint16(b, uint16(f.Flags)), 4)
	b = be.AppendUint64(be.AppendUint64(be.AppendUint64(b, f.Cookie), f.Packets), f.Bytes)
	b, err := f.Match.append(b)
	if err != nil {
		return b, err
	}
	if b, err = appendInstructions(b, f.Instructions); err != nil {
		return b, err
	}
	return putLen16(b, start, 0)
}

func decodeFlowStats(r *reader) (f FlowStats) {
	r.skip(2)
	f.Table = r.u8()
	r.skip(1)
	f.DurationS, f.DurationNS = r.u32(), r.u32()
	f.Priority, f.IdleS, f.HardS, f.Flags = r.u16(), r.u16(), r.u16(), FlowFlags(r.u16())
	r.skip(4)
	f.Cookie, f.Packets, f.Bytes = r.u64(), r.u64(), r.u64()
	f.Match = decodeMatch(r)
	f.Instructions = decodeInstructions(r)
	return f
}

func (m TableStatsReply) appendBody(b []byte) ([]byte, error) {
	for _, t := range m {
		b = be.AppendUint32(append(b, t.Table, 0, 0, 0), t.Active)
		b = be.AppendUint64(be.AppendUint64(b, t.Lookups), t.Passed)
	}
	return b, nil
}

func decodeTableStats(r *reader) (t TableStats) {
	t.Table = r.u8()
	r.skip(3)
	t.Active, t.Lookups, t.Passed = r.u32(), r.u64(), r.u64()
	return t
}

func (p *PortStats) counters() [12]*uint64 {
	return [12]*uint64{&p.RxPackets, &p.TxPackets, &p.RxBytes, &p.TxBytes, &p.RxDropped, &p.TxDropped, &p.RxErrors, &p.TxErrors,
		&p.RxFrameErr, &p.RxOverErr, &p.RxCRCErr, &p.Col}
}

func (m PortStatsReply) appendBody(b []byte) ([]byte, error) {
	for i := range m {
		b = zeros(be.AppendUint32(b, uint32(m[i].Port)), 4)
		for _, v := range m[i].counters() {
			b = be.AppendUint64(b, *v)
		}
		b = be.AppendUint32(be.AppendUint32(b, m[i].DurationS), m[i].DurationNS)
	}
	return b, nil
}

func decodePortStats(r *reader) (p PortStats) {
	p.Port = Port(r.u32())
	r.skip(4)
	for _, v := range p.counters() {
		*v = r.u64()
	}
	p.DurationS, p.DurationNS = r.u32(), r.u32()
	return p
}

func (m PortDescReply) appendBody(b []byte) ([]byte, error) {
	var err error
	for i := range m {
		if b, err = m[i].append(b); err != nil {
			return b, err
		}
	}
	return b, nil
}

func appendCounters(b []byte, cs []Counter) []byte {
	for _, c := range cs {
		b = be.AppendUint64(be.AppendUint64(b, c.Packets), c.Bytes)
	}
	return b
}

func decodeCounter(r *reader) Counter { return Counter{r.u64(), r.u64()} }

func (m GroupStatsReply) appendBody(b []byte) ([]byte, error) {
	var err error
	for _, g := range m {
		start := len(b)
		b = be.AppendUint32(append(b, 0, 0, 0, 0), g.ID)
		b = zeros(be.AppendUint32(b, g.RefCount), 4)
		b = be.AppendUint64(be.AppendUint64(b, g.Packets), g.Bytes)
		b = be.AppendUint32(be.AppendUint32(b, g.DurationS), g.DurationNS)
		if b, err = putLen16(appendCounters(b, g.Buckets), start, 0); err != nil {
			return b, err
		}
	}
	return b, nil
}

func decodeGroupStats(r *reader) (g GroupStats) {
	r.skip(4)
	g.ID, g.RefCount = r.u32(), r.u32()
	r.skip(4)
	g.Packets, g.Bytes, g.DurationS, g.DurationNS = r.u64(), r.u64(), r.u32(), r.u32()
	g.Buckets = decodeArray(r, 16, decodeCounter)
	return g
}

func (m GroupDescReply) appendBody(b []byte) ([]byte, error) {
	var err error
	for _, g := range m {
		start := len(b)
		b = be.AppendUint32(append(b, 0, 0, byte(g.Kind), 0), g.ID)
		if b, err = appendBuckets(b, g.Buckets); err != nil {
			return b, fmt.Errorf("group %d: %w", g.ID, err)
		}
		if b, err = putLen16(b, start, 0); err != nil {
			return b, err
		}
	}
	return b, nil
}

func decodeGroupDesc(r *reader) (g GroupDesc) {
	r.skip(2)
	g.Kind = GroupType(r.u8())
	r.skip(1)
	g.ID = r.u32()
	g.Buckets = decodeBuckets(r)
	return g
}

func (m MeterStatsReply) appendBody(b []byte) ([]byte, error) {
	var err error
	for _, s := range m {
		start := len(b)
		b = zeros(be.AppendUint32(b, s.ID), 8)
		b = be.AppendUint32(b, s.Flows)
		b = be.AppendUint64(be.AppendUint64(b, s.Packets), s.Bytes)
		b = be.AppendUint32(be.AppendUint32(b, s.DurationS), s.DurationNS)
		if b, err = putLen16(appendCounters(b, s.Bands), start, 4); err != nil {
			return b, err
		}
	}
	return b, nil
}

func decodeMeterStat(r *reader) (s MeterStat) {
	s.ID = r.u32()
	r.skip(8)
	s.Flows, s.Packets, s.Bytes, s.DurationS, s.DurationNS = r.u32(), r.u64(), r.u64(), r.u32(), r.u32()
	s.Bands = decodeArray(r, 16, decodeCounter)
	return s
}

func (m MeterConfigReply) appendBody(b []byte) ([]byte, error) {
	var err error
	for _, c := range m {
		start := len(b)
		b = be.AppendUint32(be.AppendUint16(append(b, 0, 0), uint16(c.Flags)), c.ID)
		if b, err = appendBands(b, c.Bands); err != nil {
			return b, fmt.Errorf("meter %d: %w", c.ID, err)
		}
		if b, err = putLen16(b, start, 0); err != nil {
			return b, err
		}
	}
	return b, nil
}

func decodeMeterConfig(r *reader) (c MeterConfig) {
	r.skip(2)
	c.Flags, c.ID = MeterFlags(r.u16()), r.u32()
	c.Bands = decodeBands(r)
	return c
}

const tableFeaturesLen = 64

func (m TableFeaturesMsg) appendBody(b []byte) ([]byte, error) {
	var err error
	for _, t := range m {
		start := len(b)
		b = zeros(append(b, 0, 0, t.Table), 5)
		if b, err = appendName(b, t.Name, 32); err != nil {
			return b, err
		}
		b = be.AppendUint64(be.AppendUint64(b, t.MetadataMatch), t.MetadataWrite)
		b = be.AppendUint32(be.AppendUint32(b, t.Config), t.MaxEntries)
		for _, p := range t.Properties {
			at := len(b)
			b = append(be.AppendUint16(b, p.Type), 0, 0)
			if b, err = putLen16(append(b, p.Body...), at, 2); err != nil {
				return b, err
			}
			b = pad8(b, at)
		}
		if b, err = putLen16(b, start, 0); err != nil {
			return b, err
		}
	}
	return b, nil
}

func decodeTableFeatures(r *reader) (t TableFeatures) {
	r.skip(2)
	t.Table = r.u8()
	r.skip(5)
	t.Name = r.name(32)
	t.MetadataMatch, t.MetadataWrite, t.Config, t.MaxEntries = r.u64(), r.u64(), r.u32(), r.u32()
	for len(r.b) > 0 {
		in, ok := r.element(2, 4)
		if !ok {
			return t
		}
		n := len(in.b)
		p := TableProperty{Type: in.u16()}
		in.skip(2)
		p.Body = in.copy(len(in.b))
		t.Properties = append(t.Properties, p)
		r.skip((8 - n%8) % 8)
	}
	return t
}
