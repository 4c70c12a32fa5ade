package fake

import (
	"encoding/binary"
	"maps"
	"slices"

	"weir.dev/weir/openflow"
)

func (s *sw) groupMod(m *openflow.GroupMod) ([]openflow.Message, openflow.ErrorCode) {
	old := s.groupsByID[m.ID]
	switch m.Command {
	case openflow.GroupDelete:
		var gone []openflow.Message
		for id := range s.groupsByID {
			if id == m.ID || m.ID == openflow.GroupAll {
				delete(s.groupsByID, id)
				gone = append(gone, s.remove(func(e *entry) bool { return usesOutput(e.Instructions, 0, id) }, openflow.TableAll,
					openflow.RemovedGroup)...)
			}
		}
		return gone, ok
	case openflow.GroupAdd:
		if old != nil {
			return nil, openflow.GroupExists
		}
	case openflow.GroupModify:
		if old == nil {
			return nil, openflow.GroupUnknown
		}
	default:
		return nil, openflow.GroupBadCommand
	}
	switch {
	case m.ID > openflow.GroupMax, m.Kind == openflow.GroupTypeIndirect && len(m.Buckets) != 1:
		return nil, openflow.GroupInvalid
	case m.Kind > openflow.GroupTypeFastFailover:
		return nil, openflow.GroupBadType
	}
	for _, b := range m.Buckets {
		if m.Kind == openflow.GroupTypeFastFailover && b.WatchPort == 0 && b.WatchGroup == 0 {
			return nil, openflow.GroupBadWatch
		}
		for _, a := range b.Actions {
			if g, is := a.(openflow.Group); is && (g.ID == m.ID || s.reaches(g.ID, m.ID, 0)) {
				return nil, openflow.GroupLoop
			}
		}
		if code := s.checkActions(b.Actions); code != ok {
			return nil, code
		}
	}
	s.groupsByID[m.ID] = &openflow.GroupDesc{Kind: m.Kind, ID: m.ID, Buckets: m.Buckets}
	return nil, ok
}

// reaches reports that a group uses another, perhaps by others.
func (s *sw) reaches(from, to uint32, depth int) bool {
	g := s.groupsByID[from]
	if g == nil || depth > maxGroups {
		return depth > maxGroups
	}
	for _, b := range g.Buckets {
		for _, a := range b.Actions {
			if n, is := a.(openflow.Group); is && (n.ID == to || s.reaches(n.ID, to, depth+1)) {
				return true
			}
		}
	}
	return false
}

func (s *sw) meterMod(m *openflow.MeterMod) ([]openflow.Message, openflow.ErrorCode) {
	_, has := s.meters[m.ID]
	switch m.Command {
	case openflow.MeterAdd:
		if has {
			return nil, openflow.MeterExists
		}
	case openflow.MeterModify:
		if !has {
			return nil, openflow.MeterNotFound
		}
	case openflow.MeterDelete:
		delete(s.meters, m.ID)
		if m.ID == openflow.MeterAll {
			clear(s.meters)
		}
		return s.remove(func(e *entry) bool {
			return slices.ContainsFunc(e.Instructions, func(i openflow.Instruction) bool {
				meter, is := i.(openflow.Meter)
				return is && (meter.ID == m.ID || m.ID == openflow.MeterAll)
			})
		}, openflow.TableAll, openflow.RemovedDelete), ok
	default:
		return nil, openflow.ErrorCode(12<<16 | 4)
	}
	s.meters[m.ID] = openflow.MeterConfig{Flags: m.Flags, ID: m.ID, Bands: m.Bands}
	return nil, ok
}

func (s *sw) portMod(m *openflow.PortMod) ([]openflow.Message, openflow.ErrorCode) {
	p := s.ports[m.Port]
	switch {
	case p == nil:
		return nil, openflow.PortModBadPort
	case p.desc.MAC != m.MAC:
		return nil, openflow.PortModBadMAC
	}
	p.desc.Config = p.desc.Config&^m.Mask | m.Config&m.Mask
	return []openflow.Message{&openflow.PortStatus{Reason: openflow.PortModify, Desc: p.desc}}, ok
}

// maxPart bounds one part of an answer, so that long ones come in several.
const maxPart = 32 << 10

func (s *sw) multipart(m *openflow.MultipartRequest, a *answer) {
	one := func(b openflow.MultipartBody) { a.replies = []openflow.Message{&openflow.MultipartReply{Body: b}} }
	switch r := m.Body.(type) {
	case openflow.DescRequest:
		one(openflow.DescReply{Manufacturer: "Weir", Hardware: "none", Software: "fake switch", Datapath: "in memory"})
	case openflow.FlowStatsRequest:
		a.replies = parts(s.selectFlows(r))
	case openflow.AggregateRequest:
		var sum openflow.AggregateReply
		for _, f := range s.selectFlows(openflow.FlowStatsRequest(r)) {
			sum.Packets, sum.Bytes, sum.Flows = sum.Packets+f.Packets, sum.Bytes+f.Bytes, sum.Flows+1
		}
		one(sum)
	case openflow.TableStatsRequest:
		var ts openflow.TableStatsReply
		for i, t := range s.tables {
			ts = append(ts, openflow.TableStats{Table: uint8(i), Active: uint32(len(t.entries)), Lookups: t.lookups, Passed: t.passed})
		}
		one(ts)
	case openflow.TableFeaturesMsg:
		s.tableFeatures(r, a)
	case openflow.PortDescRequest:
		var ps openflow.PortDescReply
		for _, n := range s.portOrder() {
			ps = append(ps, s.ports[n].desc)
		}
		one(ps)
	case openflow.PortStatsRequest:
		var ps openflow.PortStatsReply
		for _, n := range s.portOrder() {
			if r.Port == n || r.Port == 0 || r.Port == openflow.PortAny {
				ps = append(ps, s.ports[n].stats)
			}
		}
		one(ps)
	case openflow.GroupDescRequest:
		var gs openflow.GroupDescReply
		for _, id := range slices.Sorted(maps.Keys(s.groupsByID)) {
			gs = append(gs, *s.groupsByID[id])
		}
		one(gs)
	case openflow.GroupStatsRequest:
		var gs openflow.GroupStatsReply
		for _, id := range slices.Sorted(maps.Keys(s.groupsByID)) {
			if r.ID == id || r.ID == openflow.GroupAll {
				gs = append(gs, openflow.GroupStats{ID: id, Buckets: make([]openflow.Counter, len(s.groupsByID[id].Buckets))})
			}
		}
		one(gs)
	case openflow.GroupFeaturesRequest:
		most := [4]uint32{1 << 16, 1 << 16, 1 << 16, 1 << 16}
		one(openflow.GroupFeatures{Types: 15, Capabilities: 15, MaxGroups: most})
	case openflow.MeterConfigRequest:
		var ms openflow.MeterConfigReply
		for _, id := range slices.Sorted(maps.Keys(s.meters)) {
			if r.ID == id || r.ID == openflow.MeterAll {
				ms = append(ms, s.meters[id])
			}
		}
		one(ms)
	case openflow.MeterFeaturesRequest:
		one(openflow.MeterFeatures{MaxMeters: 1 << 16, BandTypes: 6, Capabilities: 15, MaxBands: 8})
	default:
		a.code = openflow.BadMultipart
	}
}

func (s *sw) tableFeatures(r openflow.TableFeaturesMsg, a *answer) {
	if len(r) > 0 {
		a.code = openflow.ErrorCode(13<<16 | 5) // EPERM: tables cannot be changed
		return
	}
	size := s.c.TableSize
	if size == 0 {
		size = 1 << 20
	}
	var ts openflow.TableFeaturesMsg
	for i := range s.tables {
		ts = append(ts, openflow.TableFeatures{Table: uint8(i), Name: "table", MetadataMatch: ^uint64(0), MetadataWrite: ^uint64(0), MaxEntries: size, Properties: s.properties()})
	}
	for len(ts) > 0 {
		n := min(len(ts), maxPart/128)
		a.replies = append(a.replies, &openflow.MultipartReply{More: n < len(ts), Body: ts[:n]})
		ts = ts[n:]
	}
}

// properties of a table: the fields that it matches (OFPTFPT_MATCH), as far as masks are a question.
func (s *sw) properties() []openflow.TableProperty {
	if !s.c.TellFields {
		return nil
	}
	var b []byte
	for _, f := range []openflow.Field{openflow.FieldInPort, openflow.FieldEthDst, openflow.FieldEthSrc} {
		h := uint32(f)
		if f != openflow.FieldInPort && !slices.Contains(s.c.NoMask, f) {
			h = h&^0xff | 0x100 | 2*h&0xff
		}
		b = binary.BigEndian.AppendUint32(b, h)
	}
	return []openflow.TableProperty{{Type: 8, Body: b}}
}

func (s *sw) selectFlows(r openflow.FlowStatsRequest) (fs []openflow.FlowStats) {
	want := r.Match.Normal()
	for id, t := range s.tables {
		if r.Table != openflow.TableAll && int(r.Table) != id {
			continue
		}
		for _, e := range t.entries {
			if (e.Cookie^r.Cookie)&r.CookieMask == 0 && covers(want, e.Match) && usesOutput(e.Instructions, r.OutPort, r.OutGroup) {
				fs = append(fs, e.stats())
			}
		}
	}
	return fs
}

func parts(fs []openflow.FlowStats) (ms []openflow.Message) {
	size, from := 0, 0
	var buf []byte
	for i := range fs {
		buf, _ = fs[i].Append(buf[:0])
		if size+len(buf) > maxPart && i > from {
			ms = append(ms, &openflow.MultipartReply{More: true, Body: openflow.FlowStatsReply(fs[from:i])})
			size, from = 0, i
		}
		size += len(buf)
	}
	return append(ms, &openflow.MultipartReply{Body: openflow.FlowStatsReply(fs[from:])})
}
