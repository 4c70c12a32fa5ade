package fake

import (
	"cmp"
	"hash/fnv"
	"slices"

	"weir.dev/weir/openflow"
)

const (
	maxResubmits = 64
	maxGroups    = 16
)

// run is one packet's way through the pipeline; mu is held.
type run struct {
	s         *sw
	out       []emission
	told      []openflow.Message // packet-ins
	resubmits int
	depth     int // of groups
	e         *entry
	table     uint8
	reason    openflow.PacketInReason
}

// emission is a frame that leaves a port.
type emission struct {
	port openflow.Port
	data []byte
}

// pipeline looks the packet up from a table on.
func (r *run) pipeline(p *packet, id int) {
	var set []openflow.Action
	for id < len(r.s.tables) {
		e := r.s.tables[id].lookup(p)
		if e == nil {
			return
		}
		next := len(r.s.tables)
		for _, i := range e.Instructions {
			r.e, r.table, r.reason = e, uint8(id), openflow.ReasonAction
			if e.Priority == 0 && len(e.Match) == 0 {
				r.reason = openflow.ReasonNoMatch
			}
			switch i := i.(type) {
			case openflow.ApplyActions:
				r.actions(p, i, false)
			case openflow.WriteActions:
				set = mergeSet(set, i)
			case openflow.ClearActions:
				set = nil
			case openflow.WriteMetadata:
				p.metadata = p.metadata&^i.Mask | i.Metadata&i.Mask
			case openflow.GotoTable:
				next = int(i.Table)
			}
		}
		id = next
	}
	r.e, r.reason = nil, openflow.ReasonAction // no cookie for what the action set and groups send (7.4.1)
	r.actions(p, set, false)
}

// rank is the order in which an action set is executed (5.10).
func rank(a openflow.Action) int {
	switch a.(type) {
	case openflow.PopVLAN:
		return 1
	case openflow.PushVLAN:
		return 2
	case openflow.DecNwTTL:
		return 3
	case openflow.Group:
		return 8
	case openflow.Output:
		return 9
	}
	return 4
}

// mergeSet puts actions into an action set: one of each type, and one set-field for each field.
func mergeSet(set []openflow.Action, as []openflow.Action) []openflow.Action {
	same := func(a, b openflow.Action) bool {
		x, isX := a.(openflow.SetField)
		y, isY := b.(openflow.SetField)
		if isX || isY {
			return isX && isY && x.Field == y.Field
		}
		return rank(a) == rank(b)
	}
	for _, a := range as {
		set = append(slices.DeleteFunc(slices.Clone(set), func(b openflow.Action) bool { return same(a, b) }), a)
	}
	slices.SortStableFunc(set, func(a, b openflow.Action) int { return cmp.Compare(rank(a), rank(b)) })
	if slices.ContainsFunc(set, func(a openflow.Action) bool { return rank(a) == 8 }) {
		set = slices.DeleteFunc(set, func(a openflow.Action) bool { return rank(a) == 9 })
	}
	return set
}

func (r *run) actions(p *packet, as []openflow.Action, packetOut bool) {
	for _, a := range as {
		switch a := a.(type) {
		case openflow.Output:
			r.output(p, a, packetOut)
		case openflow.Group:
			r.group(p, a.ID)
		case openflow.SetField:
			p.set(a.OXM)
		case openflow.PushVLAN:
			p.push(a.EtherType)
		case openflow.PopVLAN:
			p.pop()
		case openflow.DecNwTTL:
			p.decTTL()
		case openflow.RegLoad:
			mask := ^uint64(0) >> (64 - a.Dst.Count) << a.Dst.First
			p.set(openflow.UintMask(a.Dst.Field, a.Value<<a.Dst.First, mask))
		case openflow.OutputReg:
			v, _ := p.field(a.Src.Field)
			n := openflow.OXM{Field: a.Src.Field, Value: v}.Uint() >> a.Src.First & (^uint64(0) >> (64 - a.Src.Count))
			r.output(p, openflow.Output{Port: openflow.Port(n), MaxLen: a.MaxLen}, packetOut)
		case openflow.Clone:
			r.actions(p.clone(), a, packetOut)
		case openflow.Resubmit:
			r.resubmit(p, a)
		}
	}
}

func (r *run) resubmit(p *packet, a openflow.Resubmit) {
	if r.resubmits++; r.resubmits > maxResubmits {
		return
	}
	table, e, id, why, in := a.Table, r.e, r.table, r.reason, p.in
	if table == openflow.TableAll {
		table = r.table
	}
	if a.InPort != 0 {
		p.in = openflow.Port(a.InPort)
	}
	r.pipeline(p, int(table))
	r.e, r.table, r.reason, p.in = e, id, why, in
}

func (p *packet) decTTL() {
	v, ok := p.field(openflow.FieldEthType)
	if !ok {
		return
	}
	at := 14
	for t := be.Uint16(p.data[at-2:]); (t == 0x8100 || t == 0x88a8) && len(p.data) >= at+4; t = be.Uint16(p.data[at-2:]) {
		at += 4
	}
	switch et := be.Uint16(v[:2]); {
	case et == 0x0800 && len(p.data) >= at+20 && p.data[at+8] > 0:
		p.data[at+8]--
		sum := uint32(be.Uint16(p.data[at+10:])) + 0x0100 // RFC 1141
		be.PutUint16(p.data[at+10:], uint16(sum+sum>>16))
	case et == 0x86dd && len(p.data) >= at+40 && p.data[at+7] > 0:
		p.data[at+7]--
	}
	p.fields = nil
}

func (r *run) output(p *packet, a openflow.Output, packetOut bool) {
	switch a.Port {
	case openflow.PortController:
		r.toController(p, a.MaxLen)
	case openflow.PortInPort:
		r.emit(p, p.in)
	case openflow.PortAll, openflow.PortFlood:
		r.flood(p, a.Port == openflow.PortFlood)
	case openflow.PortNormal:
		r.normal(p)
	case openflow.PortTable:
		if packetOut {
			r.pipeline(p.clone(), 0)
		}
	default:
		if a.Port != p.in { // 5.12: back out only by IN_PORT
			r.emit(p, a.Port)
		}
	}
}

func (r *run) flood(p *packet, onlyFlood bool) {
	for _, n := range r.s.portOrder() {
		if n != p.in && n < openflow.PortMax && !(onlyFlood && r.s.ports[n].desc.Config&openflow.PortNoFwd != 0) {
			r.emit(p, n)
		}
	}
}

// normal is a learning bridge without VLANs.
func (r *run) normal(p *packet) {
	if len(p.data) < 14 {
		return
	}
	dst, src := openflow.MAC(p.data[:6]), openflow.MAC(p.data[6:12])
	if src[0]&1 == 0 {
		r.s.learned[src] = p.in
	}
	if port, known := r.s.learned[dst]; known && dst[0]&1 == 0 {
		if port != p.in {
			r.emit(p, port)
		}
		return
	}
	r.flood(p, true)
}

func (r *run) emit(p *packet, n openflow.Port) {
	port := r.s.ports[n]
	if port == nil || !port.desc.Up() {
		return
	}
	port.stats.TxPackets++
	port.stats.TxBytes += uint64(len(p.data))
	r.out = append(r.out, emission{n, append([]byte(nil), p.data...)})
}

func (r *run) toController(p *packet, maxLen uint16) {
	m := &openflow.PacketIn{TotalLen: uint16(len(p.data)), Reason: r.reason, Table: r.table, Match: openflow.Match{openflow.InPort(p.in)},
		Cookie: ^uint64(0), Data: append([]byte(nil), p.data[:min(len(p.data), int(maxLen))]...)}
	if r.e != nil {
		m.Cookie = r.e.Cookie
	}
	if p.metadata != 0 {
		m.Match = append(m.Match, openflow.Uint(openflow.FieldMetadata, p.metadata))
	}
	r.told = append(r.told, m)
}

func (r *run) group(p *packet, id uint32) {
	g := r.s.groupsByID[id]
	if g == nil || r.depth >= maxGroups {
		return
	}
	e := r.e
	r.e = nil
	r.depth++
	defer func() { r.depth--; r.e = e }()
	switch g.Kind {
	case openflow.GroupTypeAll:
		for _, b := range g.Buckets {
			r.actions(p.clone(), mergeSet(nil, b.Actions), false)
		}
	case openflow.GroupTypeSelect:
		total := uint32(0)
		for _, b := range g.Buckets {
			total += uint32(b.Weight)
		}
		if total == 0 {
			return
		}
		n := p.hash() % total
		for _, b := range g.Buckets {
			if n < uint32(b.Weight) {
				r.actions(p.clone(), mergeSet(nil, b.Actions), false)
				return
			}
			n -= uint32(b.Weight)
		}
	case openflow.GroupTypeIndirect:
		r.actions(p.clone(), mergeSet(nil, g.Buckets[0].Actions), false)
	case openflow.GroupTypeFastFailover:
		for _, b := range g.Buckets {
			if r.s.live(b, 0) {
				r.actions(p.clone(), mergeSet(nil, b.Actions), false)
				return
			}
		}
	}
}

// live reports that what a bucket watches is up (6.5.1).
func (s *sw) live(b openflow.Bucket, depth int) bool {
	if b.WatchPort != 0 {
		if p := s.ports[b.WatchPort]; p != nil && p.desc.Up() {
			return true
		}
	}
	if g := s.groupsByID[b.WatchGroup]; b.WatchGroup != 0 && g != nil && depth < maxGroups {
		return slices.ContainsFunc(g.Buckets, func(b openflow.Bucket) bool { return s.live(b, depth+1) })
	}
	return false
}

// hash is the same for all packets of a flow.
func (p *packet) hash() uint32 {
	h := fnv.New32a()
	for _, f := range [...]openflow.Field{openflow.FieldEthSrc, openflow.FieldEthDst, openflow.FieldIPv4Src, openflow.FieldIPv4Dst,
		openflow.FieldIPv6Src, openflow.FieldIPv6Dst, openflow.FieldIPProto, openflow.FieldTCPSrc, openflow.FieldTCPDst, openflow.FieldUDPSrc,
		openflow.FieldUDPDst} {
		v, _ := p.field(f)
		h.Write(v[:])
	}
	return h.Sum32()
}
