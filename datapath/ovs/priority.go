package ovs

import (
	"cmp"
	"fmt"
	"slices"

	"weir.dev/weir/datapath"
	"weir.dev/weir/flow"
)

// OpenFlow leaves open which of two entries of equal priority wins; the rule language says: the lower cookie. So among rules of equal
// priority that overlap, the lower cookie gets a higher level, and (priority, level) becomes the entry's priority.
type rank struct {
	priority uint16
	level    int
}

// priorities of the entries of rules, as stable as can be from commit to commit: a rule keeps its own unless another has to go between.
func (w *world) priorities(before map[uint64]uint16) (map[uint64]uint16, error) {
	byTable := map[uint8][]*flow.Rule{}
	for i := range w.rules {
		t := w.tableOf(&w.rules[i])
		byTable[t] = append(byTable[t], &w.rules[i])
	}
	out := make(map[uint64]uint16, len(w.rules))
	for t, rules := range byTable {
		if err := rankTable(rules, before, out); err != nil {
			return nil, fmt.Errorf("table %d: %w", t, err)
		}
	}
	return out, nil
}

func rankTable(rules []*flow.Rule, before, out map[uint64]uint16) error {
	levels := levels(rules)
	had := map[rank]uint16{}
	for r, level := range levels {
		if p, ok := before[r.Cookie]; ok {
			k := rank{r.Priority, level}
			if q, twice := had[k]; !twice || p < q {
				had[k] = p
			}
		}
	}
	set := map[rank]bool{}
	for r, level := range levels {
		set[rank{r.Priority, level}] = true
	}
	ranks := make([]rank, 0, len(set))
	for k := range set {
		ranks = append(ranks, k)
	}
	slices.SortFunc(ranks, func(a, b rank) int { return cmp.Or(cmp.Compare(a.priority, b.priority), cmp.Compare(a.level, b.level)) })
	given, err := assign(ranks, had)
	if err != nil {
		return err
	}
	for r, level := range levels {
		out[r.Cookie] = given[rank{r.Priority, level}]
	}
	return nil
}

// assign gives rising numbers between floor and ceiling to ranks in rising order: the former ones where they still rise, else near the
// rank's own priority, else in the middle of the gap. Where a gap is too small all are spread anew.
func assign(ranks []rank, had map[rank]uint16) (map[rank]uint16, error) {
	if len(ranks) >= ceiling-floor-1 {
		return nil, fmt.Errorf("%w: rules of %d different priorities", datapath.ErrFull, len(ranks))
	}
	given := make(map[rank]uint16, len(ranks))
	last := floor
	for i := 0; i < len(ranks); {
		if p, ok := had[ranks[i]]; ok && int(p) > last {
			given[ranks[i]], last = p, int(p)
			i++
			continue
		}
		next, limit := i+1, ceiling // the next rank that can keep its number
		for ; next < len(ranks); next++ {
			if p, ok := had[ranks[next]]; ok && int(p) > last+next-i {
				limit = int(p)
				break
			}
		}
		for ; i < next; i++ {
			left := next - i // to be placed below limit
			if limit-last <= left {
				return spread(ranks), nil
			}
			p := int(ranks[i].priority) + floor + 1
			if p <= last || limit-p < left {
				p = last + max(1, (limit-last)/(left+1))
			}
			given[ranks[i]], last = uint16(p), p
		}
	}
	return given, nil
}

func spread(ranks []rank) map[rank]uint16 {
	given := make(map[rank]uint16, len(ranks))
	step := (ceiling - floor) / (len(ranks) + 1)
	for i, k := range ranks {
		given[k] = uint16(floor + (i+1)*step)
	}
	return given
}

// maxPairs bounds the comparisons of one priority's rules with each other; beyond that each gets a level of its own.
const maxPairs = 4 << 20

// levels: 0 for rules that overlap with no rule of equal priority and higher cookie.
func levels(rules []*flow.Rule) map[*flow.Rule]int {
	out := make(map[*flow.Rule]int, len(rules))
	byPriority := map[uint16][]*flow.Rule{}
	for _, r := range rules {
		byPriority[r.Priority] = append(byPriority[r.Priority], r)
	}
	for _, same := range byPriority {
		slices.SortFunc(same, func(a, b *flow.Rule) int { return cmp.Compare(b.Cookie, a.Cookie) })
		places := map[[2]flow.Port][]*flow.Rule{} // seen so far
		pairs := 0
		for i, r := range same {
			if pairs > maxPairs {
				out[r] = i
				continue
			}
			level := 0
			for _, at := range around(r.Match, places) {
				for _, other := range places[at] {
					pairs++
					if out[other] >= level && overlap(&r.Match, &other.Match) {
						level = out[other] + 1
					}
				}
			}
			out[r] = level
			k := [2]flow.Port{r.Match.InPort, r.Match.OutPort}
			places[k] = append(places[k], r)
		}
	}
	return out
}

// around are the places whose rules can meet a frame of m.
func around(m flow.Match, places map[[2]flow.Port][]*flow.Rule) [][2]flow.Port {
	if m.InPort != 0 && m.OutPort != 0 {
		return [][2]flow.Port{{m.InPort, m.OutPort}, {0, m.OutPort}, {m.InPort, 0}, {0, 0}}
	}
	var all [][2]flow.Port
	for k := range places {
		if (m.InPort == 0 || k[0] == 0 || k[0] == m.InPort) && (m.OutPort == 0 || k[1] == 0 || k[1] == m.OutPort) {
			all = append(all, k)
		}
	}
	return all
}

// overlap may say yes where there is no such frame, never no where there is one.
func overlap(a, b *flow.Match) bool {
	for i := range 6 {
		if (a.SrcMAC[i]^b.SrcMAC[i])&a.SrcMACMask[i]&b.SrcMACMask[i] != 0 || (a.DstMAC[i]^b.DstMAC[i])&a.DstMACMask[i]&b.DstMACMask[i] != 0 {
			return false
		}
	}
	differ := func(x, y uint16) bool { return x != 0 && y != 0 && x != y }
	return a.Tag == b.Tag && !differ(a.VLAN, b.VLAN) && !differ(a.EtherType, b.EtherType) && !differ(uint16(a.Proto), uint16(b.Proto)) &&
		(!a.Src.IsValid() || !b.Src.IsValid() || a.Src.Overlaps(b.Src)) && (!a.Dst.IsValid() || !b.Dst.IsValid() || a.Dst.Overlaps(b.Dst)) &&
		meet(a.SrcPorts, b.SrcPorts) && meet(a.DstPorts, b.DstPorts)
}

func meet(a, b flow.PortRange) bool {
	return a.Any() || b.Any() || a.First <= b.Last && b.First <= a.Last
}
