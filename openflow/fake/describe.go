package fake

import (
	"encoding/binary"
	"slices"

	"weir.dev/weir/openflow"
)

// maxPart bounds one part of an answer, so that long ones come in several.
const maxPart = 32 << 10

func (s *Switch) multipart(m *openflow.MultipartRequest, a *answer) {
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
			if r.Port == n || r.Port == openflow.PortAny {
				ps = append(ps, s.ports[n].stats)
			}
		}
		one(ps)
	default:
		a.code = openflow.BadMultipart
	}
}

func (s *Switch) tableFeatures(r openflow.TableFeaturesMsg, a *answer) {
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
func (s *Switch) properties() []openflow.TableProperty {
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

func (s *Switch) selectFlows(r openflow.FlowStatsRequest) (fs []openflow.FlowStats) {
	want := r.Match.Normal()
	for id, t := range s.tables {
		if r.Table != openflow.TableAll && int(r.Table) != id {
			continue
		}
		for _, e := range t.entries {
			if (e.Cookie^r.Cookie)&r.CookieMask == 0 && covers(want, e.Match) {
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
