// Package tags gives fabric tags to the legs of policies' ways.
package tags

import (
	"maps"
	"slices"

	"weir.dev/weir/flow"
	"weir.dev/weir/router/fabric"
	"weir.dev/weir/router/fabric/graph"
)

// ManyTags is how many fabric tags there are.
const ManyTags = int(flow.TagLast-flow.TagFirst) + 1

// Tags tells which tags are in use on which arc. One tag on one arc has one meaning: where the frame is going. Legs to the same end
// share theirs, and legs that never meet may use one tag for different ends.
//
// What a tag means lasts longer than its legs: frames may be on their way yet. So an end keeps its tag over other changes,
// and one that may still be met with another meaning is left alone.
type Tags struct {
	g    *graph.Graph
	used [][(ManyTags + 63) / 64]uint64 // by arc
	ends []map[uint16]*lane             // by arc
	have map[string]map[uint16]int      // tags that lead to an end
	old  []map[uint16][]meaning         // by arc: what frames with a tag may still be met for
	led  map[string]map[uint16]bool     // of these, by end
	left []map[uint16]bool              // of these, told by cookies only, by arc
}

// lane is what a tag means on one arc.
type lane struct {
	end   string
	users int
}

// meaning of a tag that is not in use any more, by the end or by what a rule's cookie tells of it.
type meaning struct {
	end    string
	cookie uint64
}

// New has no tag in use.
func New(g *graph.Graph) *Tags {
	n := len(g.Arcs)
	return &Tags{g: g, used: make([][(ManyTags + 63) / 64]uint64, n), ends: make([]map[uint16]*lane, n), have: map[string]map[uint16]int{}, old: make([]map[uint16][]meaning, n), led: map[string]map[uint16]bool{}, left: make([]map[uint16]bool, n)}
}

func (t *Tags) remember(arc int, tag uint16, m meaning) {
	if t.old[arc] == nil {
		t.old[arc] = map[uint16][]meaning{}
	}
	t.old[arc][tag] = append(t.old[arc][tag], m)
	if m.end == "" {
		if t.left[arc] == nil {
			t.left[arc] = map[uint16]bool{}
		}
		t.left[arc][tag] = true
		return
	}
	if t.led[m.end] == nil {
		t.led[m.end] = map[uint16]bool{}
	}
	t.led[m.end][tag] = true
}

// Linger forgets what was left over before, and takes what is left over now.
func (t *Tags) Linger(left []fabric.Lingering) {
	clear(t.old)
	clear(t.led)
	clear(t.left)
	for _, l := range left {
		if a, ok := t.g.ArcTo(l.At); ok && l.Tag >= flow.TagFirst && l.Tag <= flow.TagLast {
			t.remember(a, l.Tag, meaning{cookie: l.Cookie})
		}
	}
}

// Inherit takes over what tags mean in another topology.
func (t *Tags) Inherit(from *Tags) {
	for a, ends := range from.ends {
		x := from.g.Arcs[a]
		to, ok := t.g.ArcTo(fabric.At{Switch: from.g.IDs[x.To], Port: x.In})
		if !ok {
			continue
		}
		for tag, l := range ends {
			t.remember(to, tag, meaning{end: l.end})
		}
	}
}

// means tells whether all that is left over on an arc for a tag leads to an end; known is false when nothing is left over.
func (t *Tags) means(arc int, tag uint16, end string) (same, known bool) {
	for _, m := range t.old[arc][tag] {
		if m.end != "" && m.end != end || m.end == "" && !t.g.IsTag(arc, tag, end, m.cookie) {
			return false, true
		}
		known = true
	}
	return true, known
}

// Take gives a tag for frames that go along arcs to an end, 0 when all are taken.
func (t *Tags) Take(arcs []int, end string) uint16 {
	tag := t.find(arcs, end)
	if tag == 0 {
		return 0
	}
	for _, a := range arcs {
		if t.ends[a] == nil {
			t.ends[a] = map[uint16]*lane{}
		}
		l := t.ends[a][tag]
		if l == nil {
			l = &lane{end: end}
			t.ends[a][tag] = l
			n := tag - flow.TagFirst
			t.used[a][n/64] |= 1 << (n % 64)
		}
		l.users++
	}
	if t.have[end] == nil {
		t.have[end] = map[uint16]int{}
	}
	t.have[end][tag]++
	return tag
}

func (t *Tags) find(arcs []int, end string) uint16 {
	fits := func(tag uint16) bool {
		return !slices.ContainsFunc(arcs, func(a int) bool {
			if l := t.ends[a][tag]; l != nil && l.end != end {
				return true
			}
			same, _ := t.means(a, tag, end)
			return !same
		})
	}
	for _, tag := range slices.Sorted(maps.Keys(t.have[end])) {
		if fits(tag) {
			return tag
		}
	}
	for _, tag := range t.lasting(arcs, end) {
		if fits(tag) {
			return tag
		}
	}
	var taken [(ManyTags + 63) / 64]uint64
	for _, a := range arcs {
		for i, w := range t.used[a] {
			taken[i] |= w
		}
	}
	for n := range ManyTags {
		if tag := flow.TagFirst + uint16(n); taken[n/64]&(1<<(n%64)) == 0 && fits(tag) {
			return tag
		}
	}
	return 0
}

// lasting are the tags that have led to an end along these arcs, those of most arcs first.
func (t *Tags) lasting(arcs []int, end string) []uint16 {
	if len(t.led[end]) == 0 && !slices.ContainsFunc(arcs, func(a int) bool { return len(t.left[a]) > 0 }) {
		return nil
	}
	count := map[uint16]int{}
	for _, a := range arcs {
		candidates := maps.Clone(t.led[end])
		if len(t.left[a]) > 0 {
			if candidates == nil {
				candidates = map[uint16]bool{}
			}
			maps.Copy(candidates, t.left[a])
		}
		for tag := range candidates {
			if same, known := t.means(a, tag, end); same && known {
				count[tag]++
			}
		}
	}
	return slices.SortedFunc(maps.Keys(count), func(a, b uint16) int {
		if count[a] != count[b] {
			return count[b] - count[a]
		}
		return int(a) - int(b)
	})
}

// Release gives a leg's tag back. Until the next output but one it is nobody else's.
func (t *Tags) Release(arcs []int, tag uint16, end string) {
	for _, a := range arcs {
		l := t.ends[a][tag]
		if l.users--; l.users == 0 {
			delete(t.ends[a], tag)
			n := tag - flow.TagFirst
			t.used[a][n/64] &^= 1 << (n % 64)
			t.remember(a, tag, meaning{end: end})
		}
	}
	if t.have[end][tag]--; t.have[end][tag] == 0 {
		delete(t.have[end], tag)
		if len(t.have[end]) == 0 {
			delete(t.have, end)
		}
	}
}
