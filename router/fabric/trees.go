package fabric

import (
	"slices"

	"weir.dev/weir/flow"
)

// Frames for many follow one of two broadcast trees: which one is told by the lowest bit of their sender's MAC, everywhere and whoever sends
// them on, so that no frame needs a mark. The second tree has another root and goes round the links of the first where it can. In a
// leaf-spine each is a star, of a spine of its own. Where no link is left over, the two are one.
//
// Trees count links, not costs: a link's cost rises when its switch is lost, and that switch goes on with the tree that it has. If the
// others left it, frames would go round by both.

// tree is a way from each switch to all edge ports and hosts of its island, these as leaves, once.
type tree struct {
	ports           [][]flow.Port // of OpenFlow switches, sorted
	up, first, last []int         // the arc to the parent (-1 a root), and the interval of its subtree
}

// What links cost the second tree: it takes two of its own rather than one of the first, but not three. So in a leaf-spine it stays as it is
// when the first one has to go round a lost link.
const (
	ownLink  = 2
	usedLink = 5
)

// oddSender is the bit of a sender's MAC that tells the tree.
var oddSender = flow.MAC{5: 1}

// treeOf is the number of the tree for a sender's frames.
func treeOf(m flow.MAC) int { return int(m[5] & oddSender[5]) }

// span computes the broadcast trees.
func (g *graph) span() {
	n := len(g.ids)
	g.root, g.tells = make([]int, n), make([]bool, n)
	one, other := make([]int, n), make([]int, n)
	for i := range n {
		g.root[i], one[i], other[i] = -1, -1, -1
	}
	var roots []int
	for r := range n {
		if g.sw[r].Host || g.root[r] >= 0 {
			continue
		}
		roots = append(roots, r)
		g.grow(one, r, func(int) uint32 { return 1 })
	}
	first := g.newTree(one)
	g.trees = [2]*tree{first, first}
	used := first.links(g)
	two := false
	for _, r := range roots {
		if g.tell(r); !g.tells[r] {
			g.follow(other, one, r, func(int) bool { return true })
			continue
		}
		if r2 := g.secondRoot(r, used); r2 >= 0 {
			g.grow(other, r2, func(a int) uint32 {
				if used[a] {
					return usedLink
				}
				return ownLink
			})
			two = true
			g.follow(other, one, r, func(v int) bool { return g.sw[v].Host }) // its own switch floods, too: all comes by one port
			continue
		}
		g.follow(other, one, r, func(int) bool { return true })
	}
	if two {
		g.trees[1] = g.newTree(other)
	}
}

// follow gives nodes of an island the same parents in another tree.
func (g *graph) follow(up, other []int, root int, which func(v int) bool) {
	for v, r := range g.root {
		if r == root && which(v) {
			up[v] = other[v]
		}
	}
}

// tell finds whether the switches of an island tell its trees from each other: all of them, also where both are the same. If entries for
// odd senders came and went with links, so would the bit that a switch's cache looks at, and Open vSwitch's datapath in user space (3.1.0)
// mixes up what it has cached with the bit and without: frames would go round by ways that no entry knows any more.
func (g *graph) tell(root int) {
	able := true
	for v, r := range g.root {
		able = able && (r != root || !g.sw[v].OneTree)
	}
	for v, r := range g.root {
		if r == root {
			g.tells[v] = able && !g.sw[v].Host
		}
	}
}

// grow finds the arcs to the parents of an island's nodes, on shortest ways from a root.
func (g *graph) grow(up []int, root int, cost func(arc int) uint32) {
	d := g.distances(root, cost)
	island := root
	if g.root[root] >= 0 {
		island = g.root[root]
	}
	for v := range d {
		if d[v] == unreachable || g.root[v] >= 0 && g.root[v] != island {
			continue
		}
		g.root[v] = island
		if v == root {
			continue
		}
		for _, back := range g.out[v] { // to the parent: the nearest, then the least
			if p := g.arcs[back].to; !g.sw[p].Host && d[p]+cost(back) == d[v] {
				up[v] = back
				break
			}
		}
	}
}

// newTree numbers the nodes. Nothing is sent to a switch behind which there is nobody.
func (g *graph) newTree(up []int) *tree {
	n := len(g.ids)
	t := &tree{ports: make([][]flow.Port, n), up: up, first: make([]int, n), last: make([]int, n)}
	children := make([][]int, n)
	for v, back := range up {
		if back >= 0 {
			p := g.arcs[back].to
			children[p] = append(children[p], v)
		}
	}
	count := 0
	var number func(v int) (somebody bool)
	number = func(v int) bool {
		t.first[v] = count
		count++
		somebody := g.sw[v].Host || len(g.edges[v]) > 0
		for _, c := range children[v] {
			if number(c) {
				t.ports[v] = append(t.ports[v], g.arcs[up[c]].in.Number)
				somebody = true
			}
		}
		if up[v] >= 0 && !g.sw[v].Host {
			t.ports[v] = append(t.ports[v], g.arcs[up[v]].out.Number)
		}
		slices.Sort(t.ports[v])
		t.last[v] = count
		return somebody
	}
	for v := range n {
		if up[v] < 0 {
			number(v)
		}
	}
	return t
}

// links tells which arcs, or their opposites, bear what is flooded.
func (t *tree) links(g *graph) []bool {
	used := make([]bool, len(g.arcs))
	for a := range g.arcs {
		x := &g.arcs[a]
		if _, down := slices.BinarySearch(t.ports[x.from], x.out.Number); down && t.up[x.to] == opposite(a) {
			used[a], used[opposite(a)] = true, true
		}
	}
	return used
}

// secondRoot is where an island's second tree begins: the first switch that has at least half as many unused links as the one with most.
// So it stays where it is when one of them is lost. -1: there are none.
func (g *graph) secondRoot(root int, used []bool) int {
	spare := make([]int, len(g.ids))
	most := 0
	for v := range spare {
		if g.root[v] != root || g.sw[v].Host {
			continue
		}
		for _, a := range g.out[v] {
			if !used[a] && !g.sw[g.arcs[a].to].Host && v != root {
				spare[v]++
			}
		}
		most = max(most, spare[v])
	}
	return slices.IndexFunc(spare, func(n int) bool { return n > 0 && 2*n >= most })
}

// floods tells whether what is flooded from a node, whoever has sent it, crosses an arc.
func (g *graph) floods(from, a int) bool {
	return g.trees[0].floods(g, from, a) || g.trees[0] != g.trees[1] && g.trees[1].floods(g, from, a)
}

func (t *tree) floods(g *graph, from, a int) bool {
	x := &g.arcs[a]
	switch {
	case t.up[x.to] == opposite(a):
		return !t.within(from, x.to) && g.island(from) == g.island(x.to)
	case t.up[x.from] == a:
		return t.within(from, x.from)
	}
	return false
}

// within tells whether a node is in the subtree of another.
func (t *tree) within(node, sub int) bool {
	return t.first[sub] <= t.first[node] && t.first[node] < t.last[sub]
}

// along is the arc of the one broadcast tree by which a node's way to a target begins; other where the tree has none.
func (g *graph) along(node, target, other int) int {
	t := g.trees[0]
	for _, a := range g.out[node] {
		if to := g.arcs[a].to; t.up[to] == opposite(a) && t.within(target, to) {
			return a
		}
	}
	if t.up[node] >= 0 && g.island(node) == g.island(target) {
		return t.up[node]
	}
	return other
}

// island is the root of a node's island; a host without one is its own.
func (g *graph) island(v int) int {
	if g.root[v] < 0 {
		return v
	}
	return g.root[v]
}
