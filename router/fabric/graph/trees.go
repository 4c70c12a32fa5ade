package graph

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

// Tree is a way from each switch to all edge ports and hosts of its island, these as leaves, once.
type Tree struct {
	Ports           [][]flow.Port // of OpenFlow switches, sorted
	Up, first, last []int         // the arc to the parent (-1 a root), and the interval of its subtree
}

// What links cost the second tree: it takes two of its own rather than one of the first, but not three. So in a leaf-spine it stays as it is
// when the first one has to go round a lost link.
const (
	ownLink  = 2
	usedLink = 5
)

// oddSender is the bit of a sender's MAC that tells the tree.
var OddSender = flow.MAC{5: 1}

// TreeOf is the number of the tree for a sender's frames.
func TreeOf(m flow.MAC) int { return int(m[5] & OddSender[5]) }

// span computes the broadcast trees.
func (g *Graph) span() {
	n := len(g.IDs)
	g.root, g.Tells = make([]int, n), make([]bool, n)
	one, other := make([]int, n), make([]int, n)
	for i := range n {
		g.root[i], one[i], other[i] = -1, -1, -1
	}
	var roots []int
	for r := range n {
		if g.Switch[r].Host || g.root[r] >= 0 {
			continue
		}
		roots = append(roots, r)
		g.grow(one, r, func(int) uint32 { return 1 })
	}
	first := g.newTree(one)
	g.Trees = [2]*Tree{first, first}
	used := first.Links(g)
	two := false
	for _, r := range roots {
		if g.tell(r); !g.Tells[r] {
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
			g.follow(other, one, r, func(v int) bool { return g.Switch[v].Host }) // its own switch floods, too: all comes by one port
			continue
		}
		g.follow(other, one, r, func(int) bool { return true })
	}
	if two {
		g.Trees[1] = g.newTree(other)
	}
}

// follow gives nodes of an island the same parents in another tree.
func (g *Graph) follow(up, other []int, root int, which func(v int) bool) {
	for v, r := range g.root {
		if r == root && which(v) {
			up[v] = other[v]
		}
	}
}

// tell finds whether the switches of an island tell its trees from each other: all of them, also where both are the same. If entries for
// odd senders came and went with links, so would the bit that a switch's cache looks at, and Open vSwitch's datapath in user space (3.1.0)
// mixes up what it has cached with the bit and without: frames would go round by ways that no entry knows any more.
func (g *Graph) tell(root int) {
	able := true
	for v, r := range g.root {
		able = able && (r != root || !g.Switch[v].OneTree)
	}
	for v, r := range g.root {
		if r == root {
			g.Tells[v] = able && !g.Switch[v].Host
		}
	}
}

// grow finds the arcs to the parents of an island's nodes, on shortest ways from a root.
func (g *Graph) grow(up []int, root int, cost func(arc int) uint32) {
	d := g.distances(root, cost)
	island := root
	if g.root[root] >= 0 {
		island = g.root[root]
	}
	for v := range d {
		if d[v] == Unreachable || g.root[v] >= 0 && g.root[v] != island {
			continue
		}
		g.root[v] = island
		if v == root {
			continue
		}
		for _, back := range g.Out[v] { // to the parent: the nearest, then the least
			if p := g.Arcs[back].To; !g.Switch[p].Host && d[p]+cost(back) == d[v] {
				up[v] = back
				break
			}
		}
	}
}

// newTree numbers the nodes. Nothing is sent to a switch behind which there is nobody.
func (g *Graph) newTree(up []int) *Tree {
	n := len(g.IDs)
	t := &Tree{Ports: make([][]flow.Port, n), Up: up, first: make([]int, n), last: make([]int, n)}
	children := make([][]int, n)
	for v, back := range up {
		if back >= 0 {
			p := g.Arcs[back].To
			children[p] = append(children[p], v)
		}
	}
	count := 0
	var number func(v int) (somebody bool)
	number = func(v int) bool {
		t.first[v] = count
		count++
		somebody := g.Switch[v].Host || len(g.Edges[v]) > 0
		for _, c := range children[v] {
			if number(c) {
				t.Ports[v] = append(t.Ports[v], g.Arcs[up[c]].In.Number)
				somebody = true
			}
		}
		if up[v] >= 0 && !g.Switch[v].Host {
			t.Ports[v] = append(t.Ports[v], g.Arcs[up[v]].Out.Number)
		}
		slices.Sort(t.Ports[v])
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

// Links tells which arcs, or their opposites, bear what is flooded.
func (t *Tree) Links(g *Graph) []bool {
	used := make([]bool, len(g.Arcs))
	for a := range g.Arcs {
		x := &g.Arcs[a]
		if _, down := slices.BinarySearch(t.Ports[x.From], x.Out.Number); down && t.Up[x.To] == Opposite(a) {
			used[a], used[Opposite(a)] = true, true
		}
	}
	return used
}

// secondRoot is where an island's second tree begins: the first switch that has at least half as many unused links as the one with most.
// So it stays where it is when one of them is lost. -1: there are none.
func (g *Graph) secondRoot(root int, used []bool) int {
	spare := make([]int, len(g.IDs))
	most := 0
	for v := range spare {
		if g.root[v] != root || g.Switch[v].Host {
			continue
		}
		for _, a := range g.Out[v] {
			if !used[a] && !g.Switch[g.Arcs[a].To].Host && v != root {
				spare[v]++
			}
		}
		most = max(most, spare[v])
	}
	return slices.IndexFunc(spare, func(n int) bool { return n > 0 && 2*n >= most })
}

// Floods tells whether what is flooded from a node, whoever has sent it, crosses an arc.
func (g *Graph) Floods(from, a int) bool {
	return g.Trees[0].floods(g, from, a) || g.Trees[0] != g.Trees[1] && g.Trees[1].floods(g, from, a)
}

func (t *Tree) floods(g *Graph, from, a int) bool {
	x := &g.Arcs[a]
	switch {
	case t.Up[x.To] == Opposite(a):
		return !t.within(from, x.To) && g.island(from) == g.island(x.To)
	case t.Up[x.From] == a:
		return t.within(from, x.From)
	}
	return false
}

// within tells whether a node is in the subtree of another.
func (t *Tree) within(node, sub int) bool {
	return t.first[sub] <= t.first[node] && t.first[node] < t.last[sub]
}

// Along is the arc of the one broadcast tree by which a node's way to a target begins; other where the tree has none.
func (g *Graph) Along(node, target, other int) int {
	t := g.Trees[0]
	for _, a := range g.Out[node] {
		if to := g.Arcs[a].To; t.Up[to] == Opposite(a) && t.within(target, to) {
			return a
		}
	}
	if t.Up[node] >= 0 && g.island(node) == g.island(target) {
		return t.Up[node]
	}
	return other
}

// island is the root of a node's island; a host without one is its own.
func (g *Graph) island(v int) int {
	if g.root[v] < 0 {
		return v
	}
	return g.root[v]
}
