package fabric

import (
	"maps"
	"slices"
	"strconv"

	"weir.dev/weir/flow"
	"weir.dev/weir/router/identity"
)

const manyTags = int(flow.TagLast-flow.TagFirst) + 1

// tags tells which tags are in use on which arc. One tag on one arc has one meaning: where the frame is going. Legs to the same end
// share theirs, and legs that never meet may use one tag for different ends.
//
// What a tag means lasts longer than its legs: frames may be on their way yet. So an end keeps its tag over other changes,
// and one that may still be met with another meaning is left alone.
type tags struct {
	g    *graph
	used [][(manyTags + 63) / 64]uint64 // by arc
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

// Lingering is a rule that acts on a tag somewhere although the last output does not have it, or that an earlier life of the router has left.
type Lingering struct {
	At     At // where it takes frames in
	Tag    uint16
	Cookie uint64 // without the controller's bits; of a host rule, its number
}

func newTags(g *graph) *tags {
	n := len(g.arcs)
	return &tags{g: g, used: make([][(manyTags + 63) / 64]uint64, n), ends: make([]map[uint16]*lane, n), have: map[string]map[uint16]int{}, old: make([]map[uint16][]meaning, n), led: map[string]map[uint16]bool{}, left: make([]map[uint16]bool, n)}
}

// arc finds the one that leads to a port; ok is false where there is none any more.
func (g *graph) arcTo(at At) (int, bool) {
	node, ok := g.index[at.Switch]
	if !ok {
		return 0, false
	}
	out, ok := g.link[node][portAt(g.sw[node].Host, at.Port)]
	if !ok {
		return 0, false
	}
	return opposite(out), true
}

func (t *tags) remember(arc int, tag uint16, m meaning) {
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

// linger forgets what was left over before, and takes what is left over now.
func (t *tags) linger(left []Lingering) {
	clear(t.old)
	clear(t.led)
	clear(t.left)
	for _, l := range left {
		if a, ok := t.g.arcTo(l.At); ok && l.Tag >= flow.TagFirst && l.Tag <= flow.TagLast {
			t.remember(a, l.Tag, meaning{cookie: l.Cookie})
		}
	}
}

// inherit takes over what tags mean in another topology.
func (t *tags) inherit(from *tags) {
	for a, ends := range from.ends {
		x := from.g.arcs[a]
		to, ok := t.g.arcTo(At{from.g.ids[x.to], x.in})
		if !ok {
			continue
		}
		for tag, l := range ends {
			t.remember(to, tag, meaning{end: l.end})
		}
	}
}

// means tells whether all that is left over on an arc for a tag leads to an end; known is false when nothing is left over.
func (t *tags) means(arc int, tag uint16, end string) (same, known bool) {
	for _, m := range t.old[arc][tag] {
		if m.end != "" && m.end != end || m.end == "" && !t.g.isTag(arc, tag, end, m.cookie) {
			return false, true
		}
		known = true
	}
	return true, known
}

// tagCookie is the identity of the entry that takes a leg's frames in where an arc ends.
func (g *graph) tagCookie(arc int, tag uint16, end string) uint64 {
	x := &g.arcs[arc]
	return identity.Entry("tag", string(g.ids[x.to]), g.port(x.to, x.in), end, strconv.Itoa(int(tag)))
}

// tagRuleID is that of a host's rule for it, which says the step as well, in its lower half.
func (g *graph) tagRuleID(host int, in string, tag uint16, end, step string) uint64 {
	upper := identity.Entry("tag", string(g.ids[host]), in, end, strconv.Itoa(int(tag)))
	return upper<<32 | identity.Of("step", step)&(1<<32-1)
}

// isTag tells whether a cookie is that of a leg to an end.
func (g *graph) isTag(arc int, tag uint16, end string, cookie uint64) bool {
	want := g.tagCookie(arc, tag, end)
	if g.sw[g.arcs[arc].to].Host {
		return cookie>>32 == want&(1<<32-1)
	}
	return cookie == want
}

// take gives a tag for frames that go along arcs to an end, 0 when all are taken.
func (t *tags) take(arcs []int, end string) uint16 {
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

func (t *tags) find(arcs []int, end string) uint16 {
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
	var taken [(manyTags + 63) / 64]uint64
	for _, a := range arcs {
		for i, w := range t.used[a] {
			taken[i] |= w
		}
	}
	for n := range manyTags {
		if tag := flow.TagFirst + uint16(n); taken[n/64]&(1<<(n%64)) == 0 && fits(tag) {
			return tag
		}
	}
	return 0
}

// lasting are the tags that have led to an end along these arcs, those of most arcs first.
func (t *tags) lasting(arcs []int, end string) []uint16 {
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

// release gives a leg's tag back. Until the next output but one it is nobody else's.
func (t *tags) release(arcs []int, tag uint16, end string) {
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
