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
