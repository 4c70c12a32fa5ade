package flow

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
)

// table finds the winning rule among many by tuple space search: rules that look at the same fields with the same masks share one
// hash table, and the tables are tried from the greatest priority down.
type table struct{ tuples []*tuple }

type tuple struct {
	mask     mask
	priority uint16                 // greatest of its rules
	rules    map[Match][]*ruleState // by the masked fields, without L4 port ranges; the winner first
}

// mask is the shape of a Match.
type mask struct {
	in, out          bool
	tag              bool
	srcMAC, dstMAC   MAC
	vlan, etherType  bool
	src, dst         int // prefix length, -1 none
	src6, dst6       bool
	proto, wantsPort bool
	unread           Unread
}

type ruleState struct {
	Rule
	hits Counter
}

func shape(m Match) mask {
	k := mask{
		in: m.InPort != 0, out: m.OutPort != 0, tag: m.Tag != 0, srcMAC: m.SrcMACMask, dstMAC: m.DstMACMask,
		vlan: m.VLAN != 0, etherType: m.EtherType != 0, src: -1, dst: -1, proto: m.Proto != 0,
		wantsPort: !m.SrcPorts.Any() || !m.DstPorts.Any(), unread: m.Unread,
	}
	if m.Src.IsValid() {
		k.src, k.src6 = m.Src.Bits(), m.Src.Addr().Is6()
	}
	if m.Dst.IsValid() {
		k.dst, k.dst6 = m.Dst.Bits(), m.Dst.Addr().Is6()
	}
	return k
}

// apply masks a frame's key to the form in which the tuple's rules are filed; ok is false when no rule of this shape can match it.
func (s mask) apply(k Key, in, out Port) (m Match, ok bool) {
	if s.wantsPort && !k.HasPorts || s.proto && !k.HasIP || s.tag != (k.Tag != 0) || s.unread != ReadAll && s.unread != k.Unread {
		return Match{}, false
	}
	if s.in {
		m.InPort = in
	}
	if s.out {
		m.OutPort = out
	}
	m.Tag, m.Unread = k.Tag, s.unread
	m.SrcMAC, m.SrcMACMask = k.SrcMAC.and(s.srcMAC), s.srcMAC
	m.DstMAC, m.DstMACMask = k.DstMAC.and(s.dstMAC), s.dstMAC
	if s.vlan {
		m.VLAN = k.VLAN
	}
	if s.etherType {
		m.EtherType = k.EtherType
	}
	if s.proto {
		m.Proto = k.Proto
	}
	if m.Src, ok = cut(k, k.Src, s.src, s.src6); !ok {
		return Match{}, false
	}
	m.Dst, ok = cut(k, k.Dst, s.dst, s.dst6)
	return m, ok
}

func cut(k Key, a netip.Addr, bits int, six bool) (netip.Prefix, bool) {
	if bits < 0 {
		return netip.Prefix{}, true
	}
	if !k.HasIP || a.Is6() != six {
		return netip.Prefix{}, false
	}
	return netip.PrefixFrom(a, bits).Masked(), true
}

func newTable(rules []*ruleState) *table {
	t := &table{}
	byMask := map[mask]*tuple{}
	for _, r := range rules {
		s := shape(r.Match)
		tu := byMask[s]
		if tu == nil {
			tu = &tuple{mask: s, rules: map[Match][]*ruleState{}}
			byMask[s] = tu
			t.tuples = append(t.tuples, tu)
		}
		tu.priority = max(tu.priority, r.Priority)
		key := r.Match
		key.SrcPorts, key.DstPorts = PortRange{}, PortRange{}
		tu.rules[key] = append(tu.rules[key], r)
	}
	for _, tu := range t.tuples {
		for _, same := range tu.rules {
			slices.SortFunc(same, winner)
		}
	}
	slices.SortStableFunc(t.tuples, func(a, b *tuple) int { return cmp.Compare(b.priority, a.priority) })
	return t
}

// winner orders rules that match the same frame: the first one applies.
func winner(a, b *ruleState) int {
	return cmp.Or(cmp.Compare(b.Priority, a.Priority), cmp.Compare(a.Cookie, b.Cookie))
}

// find returns the winning rule or nil. With named, rules that name no InPort do not count.
func (t *table) find(k Key, in, out Port, named bool) *ruleState {
	var best *ruleState
	for _, tu := range t.tuples {
		if best != nil && tu.priority < best.Priority {
			break
		}
		if named && !tu.mask.in {
			continue
		}
		key, ok := tu.mask.apply(k, in, out)
		if !ok {
			continue
		}
		for _, r := range tu.rules[key] {
			if r.Match.matchesPorts(k) {
				if best == nil || winner(r, best) < 0 {
					best = r
				}
				break
			}
		}
	}
	return best
}

// Counter of frames and their bytes.
type Counter struct{ Packets, Bytes uint64 }

func (c *Counter) add(frame []byte) {
	c.Packets++
	c.Bytes += uint64(len(frame))
}

// Commit puts exactly these rules in force, or none of them. Counters follow the cookie.
func (s *Switch) Commit(rules []Rule) error {
	states := [2][]*ruleState{}
	all := make(map[uint64]*ruleState, len(rules))
	for _, r := range rules {
		if err := r.Validate(); err != nil {
			return err
		}
		if twin, taken := all[r.Cookie]; taken {
			return fmt.Errorf("cookie %016x is shared by the rules %q and %q", r.Cookie, twin.Note, r.Note)
		}
		r.Action.Clones = slices.Clone(r.Action.Clones)
		state := &ruleState{Rule: r}
		if old := s.rules[r.Cookie]; old != nil {
			state.hits = old.hits
		}
		all[r.Cookie] = state
		states[r.Stage] = append(states[r.Stage], state)
	}
	s.rules = all
	for stage := range states {
		s.tables[stage] = newTable(states[stage])
	}
	return nil
}
