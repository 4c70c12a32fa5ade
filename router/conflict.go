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
			if a.policy.name > b.policy.name {
				a, b = b, a
			}
			pair := [2]string{a.policy.name, b.policy.name}
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

// sweep visits the pairs that meet in the field in which the fewest do. It ends early, with false, when visit returns false.
func sweep(entries []planned, visit func(a, b planned) bool) bool {
	type item struct {
		interval
		planned
	}
	best, least := 0, -1
	for f, field := range fields {
		if pairs := meetings(entries, field); least < 0 || pairs < least {
			best, least = f, pairs
		}
	}
	items := make([]item, len(entries))
	for i, e := range entries {
		items[i] = item{fields[best](e.Match), e}
	}
	slices.SortStableFunc(items, func(a, b item) int { return bytes.Compare(a.lo[:], b.lo[:]) })
	var open []item // those that have begun and not yet ended
	for _, next := range items {
		still := open[:0]
		for _, o := range open {
			if bytes.Compare(o.hi[:], next.lo[:]) < 0 {
				continue
			}
			still = append(still, o)
			if !visit(o.planned, next.planned) {
				return false
			}
		}
		open = append(still, next)
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
