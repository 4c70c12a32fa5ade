package router

import (
	"bytes"
	"encoding/binary"
	"net/netip"
	"slices"
	"sort"

	"weir.dev/weir/flow"
)

// conflicts calls report for each pair of policies of which entries can select the same frame at the same stage, once per pair, the
// policy of the lesser name first, until report returns false.
//
// Comparing all pairs would take n squared steps. Each field that a match names is an interval; two matches can meet only where
// their intervals do, in every field. So the field in which the fewest pairs meet is swept along, and only those pairs are compared.
func conflicts(entries []planned, report func(a, b planned) bool) {
	seen := map[[2]string]bool{}
	for _, stage := range []flow.Stage{flow.Ingress, flow.Egress} {
		var at []planned
		for _, e := range entries {
			if e.Stage == stage {
				at = append(at, e)
			}
		}
		ok := sweep(at, func(a, b planned) bool {
			if a.policy == b.policy {
				return true
			}
			if a.policy.Name > b.policy.Name {
				a, b = b, a
			}
			pair := [2]string{a.policy.Name, b.policy.Name}
			if seen[pair] {
				return true
			}
			if _, _, meet := flow.Overlap(a.Match, b.Match); !meet {
				return true
			}
			seen[pair] = true
			return report(a, b)
		})
		if !ok {
			return
		}
	}
}

// interval of the values that a match takes in one field, bounds included, as numbers of 17 bytes.
type interval struct{ lo, hi [17]byte }

func everything() interval {
	var i interval
	for n := range i.hi {
		i.hi[n] = 0xff
	}
	return i
}

// fields give the interval of a match in each field worth sweeping along.
var fields = [...]func(flow.Match) interval{
	func(m flow.Match) interval { return prefixInterval(m.Src) },
	func(m flow.Match) interval { return prefixInterval(m.Dst) },
	func(m flow.Match) interval { return portInterval(m.Proto, m.SrcPorts) },
	func(m flow.Match) interval { return portInterval(m.Proto, m.DstPorts) },
	func(m flow.Match) interval { return number(uint64(m.InPort), uint64(m.InPort), m.InPort == 0) },
	func(m flow.Match) interval { return number(uint64(m.OutPort), uint64(m.OutPort), m.OutPort == 0) },
	func(m flow.Match) interval { return macInterval(m.SrcMAC, m.SrcMACMask) },
	func(m flow.Match) interval { return macInterval(m.DstMAC, m.DstMACMask) },
}

func number(lo, hi uint64, any bool) interval {
	if any {
		return everything()
	}
	var i interval
	binary.BigEndian.PutUint64(i.lo[9:], lo)
	binary.BigEndian.PutUint64(i.hi[9:], hi)
	return i
}

func portInterval(proto uint8, r flow.PortRange) interval {
	first, last := uint64(r.First), uint64(r.Last)
	if r.Any() {
		last = 0xffff
	}
	return number(uint64(proto)<<16|first, uint64(proto)<<16|last, proto == 0)
}

func macInterval(value, mask flow.MAC) interval {
	if mask != (flow.MAC{255, 255, 255, 255, 255, 255}) {
		return everything()
	}
	n := binary.BigEndian.Uint64(append([]byte{0, 0}, value[:]...))
	return number(n, n, false)
}

func prefixInterval(p netip.Prefix) interval {
	if !p.IsValid() {
		return everything()
	}
	var i interval
	i.lo[0] = 4
	if p.Addr().Is6() {
		i.lo[0] = 6
	}
	copy(i.lo[1:], p.Addr().AsSlice())
	i.hi = i.lo
	for bit := p.Bits(); bit < p.Addr().BitLen(); bit++ {
		i.hi[1+bit/8] |= 0x80 >> (bit % 8)
	}
	return i
}

// item is an entry and its interval in the field that is swept.
type item struct {
	interval
	planned
}

// sweep visits the pairs that may meet. It ends early, with false, when visit returns false.
//
// It takes the field in which the fewest pairs meet, and there splits the entries into heaps that do not touch; each heap is then
// swept along the field that is best for it. Entries that do not name the field are compared with all that do.
func sweep(entries []planned, visit func(a, b planned) bool) bool {
	if len(entries) < 2 {
		return true
	}
	best, least := 0, -1
	for f, field := range fields {
		if pairs := meetings(entries, field); least < 0 || pairs < least {
			best, least = f, pairs
		}
	}
	if least == 0 {
		return true
	}
	// Entries that do not name the field meet all others.
	var wide []planned
	var narrow []item
	for _, e := range entries {
		if iv := fields[best](e.Match); iv == everything() {
			wide = append(wide, e)
		} else {
			narrow = append(narrow, item{iv, e})
		}
	}
	slices.SortStableFunc(narrow, func(a, b item) int { return bytes.Compare(a.lo[:], b.lo[:]) })
	for _, w := range wide {
		for _, n := range narrow {
			if !visit(w, n.planned) {
				return false
			}
		}
	}
	all := heaps(narrow)
	if len(narrow) == 0 {
		return pairs(wide, visit)
	}
	if len(all) == 1 && len(wide) == 0 {
		return along(narrow, visit)
	}
	for _, heap := range append(all, wide) {
		if !sweep(heap, visit) {
			return false
		}
	}
	return true
}

// heaps splits entries, sorted by their beginnings, where none of them is open.
func heaps(sorted []item) [][]planned {
	var all [][]planned
	var end [17]byte
	for i, it := range sorted {
		if i == 0 || bytes.Compare(end[:], it.lo[:]) < 0 {
			all = append(all, nil)
			end = it.hi
		}
		all[len(all)-1] = append(all[len(all)-1], it.planned)
		if bytes.Compare(it.hi[:], end[:]) > 0 {
			end = it.hi
		}
	}
	return all
}

// along visits the pairs that meet in the field, of entries sorted by their beginnings.
func along(sorted []item, visit func(a, b planned) bool) bool {
	var open []item // those that have begun and not yet ended
	for _, next := range sorted {
		still := open[:0]
		for _, o := range open {
			if bytes.Compare(o.hi[:], next.lo[:]) >= 0 {
				still = append(still, o)
			}
		}
		for _, o := range still {
			if !visit(o.planned, next.planned) {
				return false
			}
		}
		open = append(still, next)
	}
	return true
}

func pairs(entries []planned, visit func(a, b planned) bool) bool {
	for i, a := range entries {
		for _, b := range entries[i+1:] {
			if !visit(a, b) {
				return false
			}
		}
	}
	return true
}

// meetings counts the pairs whose intervals meet: all pairs, less those of which one ends before the other begins.
func meetings(entries []planned, field func(flow.Match) interval) int {
	los, his := make([][17]byte, len(entries)), make([][17]byte, len(entries))
	for i, e := range entries {
		iv := field(e.Match)
		los[i], his[i] = iv.lo, iv.hi
	}
	slices.SortFunc(his, func(a, b [17]byte) int { return bytes.Compare(a[:], b[:]) })
	n := len(entries)
	pairs := n * (n - 1) / 2
	for _, lo := range los {
		pairs -= sort.Search(n, func(i int) bool { return bytes.Compare(his[i][:], lo[:]) >= 0 })
	}
	return pairs
}
