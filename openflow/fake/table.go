package fake

import (
	"cmp"
	"slices"
	"strings"
	"time"

	"weir.dev/weir/openflow"
)

// entry of a table. It is not changed in place but for its counters, so that a bundle can be undone.
type entry struct {
	openflow.FlowStats
	key   string // of the match
	since time.Time
	count *counter
}

type counter struct{ packets, bytes uint64 }

// table is sorted by descending priority, then key.
type table struct {
	entries []*entry
}

func (t *table) find(priority uint16, key string) (int, bool) {
	return slices.BinarySearchFunc(t.entries, priority, func(e *entry, p uint16) int {
		if c := cmp.Compare(p, e.Priority); c != 0 {
			return c
		}
		return strings.Compare(e.key, key)
	})
}

func (t *table) lookup(p *packet) *entry {
	for _, e := range t.entries {
		if p.matches(e.Match) {
			e.count.packets++
			e.count.bytes += uint64(len(p.data))
			return e
		}
	}
	return nil
}

// flowMod changes tables; it returns what to tell controllers. Called with mu held.
func (s *Switch) flowMod(m *openflow.FlowMod) ([]openflow.Message, openflow.ErrorCode) {
	if m.Table != openflow.TableAll && int(m.Table) >= len(s.tables) || m.Table == openflow.TableAll && m.Command < openflow.FlowDelete {
		return nil, openflow.FlowBadTable
	}
	for _, o := range m.Match {
		if !matchable(o.Field) {
			return nil, openflow.BadMatchField
		}
	}
	if m.Match.Check() != nil {
		return nil, openflow.BadMatchPrereq
	}
	for _, o := range m.Match.Normal() {
		if o.Masked && slices.Contains(s.c.NoMask, o.Field) {
			return nil, openflow.BadMatchMask
		}
	}
	if code := s.checkInstructions(m); code != ok {
		return nil, code
	}
	switch m.Command {
	case openflow.FlowAdd:
		return nil, s.add(m)
	case openflow.FlowModify, openflow.FlowModifyStrict:
		s.modify(m)
		return nil, ok
	case openflow.FlowDelete, openflow.FlowDeleteStrict:
		return s.remove(m), ok
	}
	return nil, openflow.FlowBadCommand
}

func (s *Switch) add(m *openflow.FlowMod) openflow.ErrorCode {
	t, match := s.tables[m.Table], m.Match.Normal()
	key := match.Key()
	i, found := t.find(m.Priority, key)
	if m.Flags&openflow.FlagCheckOverlap != 0 {
		for _, e := range t.entries {
			if e.Priority == m.Priority && overlap(e.Match, match) {
				return openflow.FlowOverlap
			}
		}
	}
	e := &entry{key: key, since: time.Now(), count: &counter{}, FlowStats: openflow.FlowStats{Table: m.Table, Priority: m.Priority,
		IdleS: m.IdleS, HardS: m.HardS, Flags: m.Flags &^ openflow.FlagCheckOverlap, Cookie: m.Cookie, Match: match,
		Instructions: m.Instructions}}
	if found {
		if m.Flags&openflow.FlagResetCounts == 0 {
			e.count = t.entries[i].count
		}
		t.entries[i] = e
		return ok
	}
	if s.c.TableSize > 0 && len(t.entries) >= int(s.c.TableSize) {
		return openflow.TableFull
	}
	t.entries = slices.Insert(t.entries, i, e)
	return ok
}

// selects reports that a modify or delete is about the entry.
func (s *Switch) selects(m *openflow.FlowMod, e *entry) bool {
	if (m.Cookie^e.Cookie)&m.CookieMask != 0 {
		return false
	}
	if m.Command == openflow.FlowModifyStrict || m.Command == openflow.FlowDeleteStrict {
		return e.Priority == m.Priority && e.key == m.Match.Key()
	}
	return covers(m.Match.Normal(), e.Match)
}

func (s *Switch) modify(m *openflow.FlowMod) {
	for i, e := range s.tables[m.Table].entries {
		if !s.selects(m, e) {
			continue
		}
		n := *e
		n.Instructions = m.Instructions
		if m.Flags&openflow.FlagResetCounts != 0 {
			n.count = &counter{}
		}
		s.tables[m.Table].entries[i] = &n
	}
}

// remove deletes the entries that m selects, and returns the flow-removed messages that were asked for.
func (s *Switch) remove(m *openflow.FlowMod) (gone []openflow.Message) {
	for id, t := range s.tables {
		if m.Table != openflow.TableAll && int(m.Table) != id {
			continue
		}
		kept := make([]*entry, 0, len(t.entries))
		for _, e := range t.entries {
			if !s.selects(m, e) {
				kept = append(kept, e)
				continue
			}
			if e.Flags&openflow.FlagSendFlowRemoved != 0 {
				f := e.stats()
				gone = append(gone, &openflow.FlowRemoved{Cookie: f.Cookie, Priority: f.Priority, Reason: openflow.RemovedDelete, Table: f.Table,
					DurationS: f.DurationS, DurationNS: f.DurationNS, IdleS: f.IdleS, HardS: f.HardS, Packets: f.Packets, Bytes: f.Bytes, Match: f.Match})
			}
		}
		t.entries = kept
	}
	return gone
}

func (e *entry) stats() openflow.FlowStats {
	f := e.FlowStats
	age := time.Since(e.since)
	f.DurationS, f.DurationNS = uint32(age/time.Second), uint32(age%time.Second)
	f.Packets, f.Bytes = e.count.packets, e.count.bytes
	return f
}

// covers reports that every packet of narrow is one of wide; both are normal.
func covers(wide, narrow openflow.Match) bool {
	for _, w := range wide {
		n, has := narrow.Field(w.Field)
		if !has {
			return false
		}
		for k := range w.Field.Len() {
			wm, nm := maskByte(w, k), maskByte(n, k)
			if wm&^nm != 0 || (w.Value[k]^n.Value[k])&wm != 0 {
				return false
			}
		}
	}
	return true
}

// overlap reports that a packet can match both, as far as their fields tell.
func overlap(a, b openflow.Match) bool {
	for _, x := range a {
		y, has := b.Field(x.Field)
		if !has {
			continue
		}
		for k := range x.Field.Len() {
			if (x.Value[k]^y.Value[k])&maskByte(x, k)&maskByte(y, k) != 0 {
				return false
			}
		}
	}
	return true
}

func maskByte(o openflow.OXM, k int) byte {
	if !o.Masked {
		return 0xff
	}
	return o.Mask[k]
}

func (s *Switch) checkInstructions(m *openflow.FlowMod) openflow.ErrorCode {
	if m.Command >= openflow.FlowDelete {
		return ok
	}
	for _, i := range m.Instructions {
		switch i := i.(type) {
		case openflow.GotoTable:
			if i.Table <= m.Table || int(i.Table) >= len(s.tables) {
				return openflow.BadInstructionTable
			}
		case openflow.ApplyActions:
			if code := s.checkActions(i); code != ok {
				return code
			}
		default:
			return openflow.BadInstruction
		}
	}
	return ok
}

const badSetType openflow.ErrorCode = 2<<16 | 13

func (s *Switch) checkActions(as []openflow.Action) openflow.ErrorCode {
	for _, a := range as {
		switch a := a.(type) {
		case openflow.Output:
			if a.Port == 0 || a.Port == openflow.PortAny {
				return openflow.BadActionOutPort
			}
		case openflow.SetField:
			if !settable(a.Field) {
				return badSetType
			}
		case openflow.RegLoad:
			if !settable(a.Dst.Field) || a.Dst.Field.Len() > 8 {
				return badSetType
			}
		case openflow.Clone:
			if code := s.checkActions(a); code != ok {
				return code
			}
		case openflow.PushVLAN, openflow.PopVLAN, openflow.Resubmit:
		default:
			return openflow.BadActionType
		}
	}
	return ok
}
