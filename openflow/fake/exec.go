package fake

import (
	"weir.dev/weir/openflow"
)

const (
	maxResubmits = 64
)

// run is one packet's way through the pipeline; mu is held.
type run struct {
	s         *Switch
	out       []emission
	told      []openflow.Message // packet-ins
	resubmits int
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
			case openflow.GotoTable:
				next = int(i.Table)
			}
		}
		id = next
	}
}

func (r *run) actions(p *packet, as []openflow.Action, packetOut bool) {
	for _, a := range as {
		switch a := a.(type) {
		case openflow.Output:
			r.output(p, a, packetOut)
		case openflow.SetField:
			p.set(a.OXM)
		case openflow.PushVLAN:
			p.push(a.EtherType)
		case openflow.PopVLAN:
			p.pop()
		case openflow.RegLoad:
			mask := ^uint64(0) >> (64 - a.Dst.Count) << a.Dst.First
			p.set(openflow.UintMask(a.Dst.Field, a.Value<<a.Dst.First, mask))
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

func (r *run) output(p *packet, a openflow.Output, packetOut bool) {
	switch a.Port {
	case openflow.PortController:
		r.toController(p, a.MaxLen)
	case openflow.PortInPort:
		r.emit(p, p.in)
	case openflow.PortAll, openflow.PortFlood:
		r.flood(p)
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

func (r *run) flood(p *packet) {
	for _, n := range r.s.portOrder() {
		if n != p.in && n < openflow.PortMax {
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
	r.flood(p)
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
