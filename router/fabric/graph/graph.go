// Package graph has a topology by numbers: links, the shortest ways between switches, and the trees along which floods go.
package graph

import (
	"cmp"
	"maps"
	"math"
	"slices"
	"strconv"

	"weir.dev/weir/flow"
	"weir.dev/weir/router/fabric"
	"weir.dev/weir/router/identity"
)

// arc is a link in one direction.
type arc struct {
	From, To int
	Out, In  fabric.Port // at from, at to
	Cost     uint32
	hash     uint64 // of its ends' names: breaks ties the same way whatever else changes
	A, B     string // its ends for people: "s1:2"
}

// Graph is the topology by numbers. Frames pass through OpenFlow switches; a host is only ever an end of a path.
type Graph struct {
	IDs    []fabric.SwitchID // sorted
	Switch []fabric.Switch
	Index  map[fabric.SwitchID]int
	Toward []string              // by node, for people: "to s2"
	Arcs   []arc                 // the two of a link follow each other
	Out    [][]int               // arcs by from
	Link   []map[fabric.Port]int // the arc that leaves by a port
	Edges  [][]flow.Port         // of OpenFlow switches: ports without a link behind
	dist   [][]uint32            // by target; filled as needed
	key    []uint64              // by target: chooses among ways of one length
	root   []int                 // of each node's island, the same in both trees; -1 none
	Trees  [2]*Tree              // for floods of senders whose MAC is even, and odd; they may be one
	Tells  []bool                // of OpenFlow switches: entries tell the two from each other
	single map[flow.Port][]fabric.Out
}

// Unreachable is the distance where there is no way.
const Unreachable = math.MaxUint32

// New makes the graph of a topology.
func New(t fabric.Topology) *Graph {
	n := len(t.Switches)
	g := &Graph{IDs: slices.Sorted(maps.Keys(t.Switches)), Index: make(map[fabric.SwitchID]int, n), dist: make([][]uint32, n), single: map[flow.Port][]fabric.Out{}}
	g.Out, g.Edges, g.Link = make([][]int, n), make([][]flow.Port, n), make([]map[fabric.Port]int, n)
	for i, id := range g.IDs {
		g.Index[id] = i
		g.Switch = append(g.Switch, t.Switches[id])
		g.Link[i] = map[fabric.Port]int{}
		g.key = append(g.key, identity.Of("to", string(id)))
		g.Toward = append(g.Toward, "to "+g.Name(i))
	}
	links := slices.Clone(t.Links)
	slices.SortFunc(links, func(a, b fabric.Link) int { return cmp.Or(a.A.Compare(b.A), a.B.Compare(b.B)) })
	for _, l := range links {
		g.join(l)
	}
	for i, s := range g.Switch {
		if s.Host {
			continue
		}
		for _, p := range s.Ports {
			if _, linked := g.Link[i][PortAt(false, p)]; !linked {
				g.Edges[i] = append(g.Edges[i], p.Number)
			}
		}
		slices.Sort(g.Edges[i])
		g.Edges[i] = slices.Compact(g.Edges[i])
	}
	g.span()
	return g
}

// PortAt is what tells a port from others: the number at an OpenFlow switch, the name at a host.
func PortAt(host bool, p fabric.Port) fabric.Port {
	if host {
		return fabric.Port{Name: p.Name}
	}
	return fabric.Port{Number: p.Number}
}

func (g *Graph) join(l fabric.Link) {
	a, known := g.Index[l.A.Switch]
	b, known2 := g.Index[l.B.Switch]
	if !known || !known2 || a == b {
		return
	}
	pa, pb := PortAt(g.Switch[a].Host, l.A.Port), PortAt(g.Switch[b].Host, l.B.Port)
	if _, twice := g.Link[a][pa]; twice {
		return
	}
	if _, twice := g.Link[b][pb]; twice {
		return
	}
	cost := max(l.Cost, 1)
	for _, x := range []arc{{From: a, To: b, Out: pa, In: pb, Cost: cost}, {From: b, To: a, Out: pb, In: pa, Cost: cost}} {
		x.hash = identity.Of(string(g.IDs[x.From]), g.port(x.From, x.Out), string(g.IDs[x.To]), g.port(x.To, x.In))
		x.A, x.B = g.At(x.From, x.Out), g.At(x.To, x.In)
		g.Link[x.From][x.Out] = len(g.Arcs)
		g.Out[x.From] = append(g.Out[x.From], len(g.Arcs))
		g.Arcs = append(g.Arcs, x)
	}
}

// Name of a switch for people.
func (g *Graph) Name(node int) string { return cmp.Or(g.Switch[node].Name, string(g.IDs[node])) }

// port renders one: "3", or "uplink/eth1".
func (g *Graph) port(node int, p fabric.Port) string {
	if g.Switch[node].Host {
		return p.Name
	}
	return Decimal(p.Number)
}

// At renders a port with its switch: "s2:3".
func (g *Graph) At(node int, p fabric.Port) string { return g.Name(node) + ":" + g.port(node, p) }

// Outs sends a frame out of one port; entries share them.
func (g *Graph) Outs(p flow.Port) []fabric.Out {
	o := g.single[p]
	if o == nil {
		o = []fabric.Out{{Port: p}}
		g.single[p] = o
	}
	return o
}

// Decimal renders the number of a port.
func Decimal(n flow.Port) string { return strconv.FormatUint(uint64(n), 10) }

// queue is a heap of nodes, the nearest first.
type queue []far

type far struct {
	node int
	dist uint32
}

func (q *queue) push(x far) {
	h := append(*q, x)
	i := len(h) - 1
	for up := (i - 1) / 2; i > 0 && x.dist < h[up].dist; up = (i - 1) / 2 {
		h[i], i = h[up], up
	}
	h[i] = x
	*q = h
}

func (q *queue) pop() far {
	h := *q
	top, last := h[0], h[len(h)-1]
	h = h[:len(h)-1]
	for i := 0; len(h) > 0; {
		down := 2*i + 1
		if down+1 < len(h) && h[down+1].dist < h[down].dist {
			down++
		}
		if down >= len(h) || last.dist <= h[down].dist {
			h[i] = last
			break
		}
		h[i], i = h[down], down
	}
	*q = h
	return top
}

// To gives every node's distance to a target, and back: links cost the same both ways.
func (g *Graph) To(target int) []uint32 {
	if g.dist[target] == nil {
		g.dist[target] = g.distances(target, func(a int) uint32 { return g.Arcs[a].Cost })
	}
	return g.dist[target]
}

// distances are those to a target where links cost what cost says, the same both ways.
func (g *Graph) distances(target int, cost func(arc int) uint32) []uint32 {
	d := make([]uint32, len(g.IDs))
	for i := range d {
		d[i] = Unreachable
	}
	d[target] = 0
	for q := (queue{{target, 0}}); len(q) > 0; {
		x := q.pop()
		if x.dist > d[x.node] || g.Switch[x.node].Host && x.node != target {
			continue
		}
		for _, a := range g.Out[x.node] {
			y := &g.Arcs[a]
			if dist := x.dist + cost(a); dist < d[y.To] {
				d[y.To] = dist
				q.push(far{y.To, dist})
			}
		}
	}
	return d
}

// Nexts are the arcs by which a node's shortest ways to the target begin.
func (g *Graph) Nexts(node, target int) []int {
	d := g.To(target)
	var all []int
	if d[node] == Unreachable {
		return nil
	}
	for _, a := range g.Out[node] {
		x := &g.Arcs[a]
		if (x.To == target || !g.Switch[x.To].Host) && d[x.To] != Unreachable && d[x.To]+x.Cost == d[node] {
			all = append(all, a)
		}
	}
	return all
}

// next chooses one of these arcs.
func (g *Graph) next(node, target int, key uint64) int {
	d := g.To(target)
	best, weight := -1, uint64(0)
	if d[node] == Unreachable {
		return best
	}
	for _, a := range g.Out[node] {
		x := &g.Arcs[a]
		if (x.To == target || !g.Switch[x.To].Host) && d[x.To] != Unreachable && d[x.To]+x.Cost == d[node] {
			if w := identity.Mix(x.hash ^ key); best < 0 || w > weight {
				best, weight = a, w
			}
		}
	}
	return best
}

// Choose takes one of several arcs, the same one whatever others there are: that with the greatest weight for the key. -1: there is none.
func Choose(g *Graph, arcs []int, key uint64) int {
	best, weight := -1, uint64(0)
	for _, a := range arcs {
		if w := identity.Mix(g.Arcs[a].hash ^ key); best < 0 || w > weight {
			best, weight = a, w
		}
	}
	return best
}

// Path is the arcs from one node to another; ok is false when there is no way. It depends, at each node, on the target only.
func (g *Graph) Path(from, to int) (arcs []int, ok bool) {
	far := g.To(to)[from]
	if far == Unreachable {
		return nil, false
	}
	arcs = make([]int, 0, min(far, 8))
	for at := from; at != to; {
		a := g.next(at, to, g.key[to])
		if a < 0 {
			return nil, false
		}
		arcs = append(arcs, a)
		at = g.Arcs[a].To
	}
	return arcs, true
}

// Opposite is the arc of the same link in the other direction.
func Opposite(a int) int { return a ^ 1 }

// arc finds the one that leads to a port; ok is false where there is none any more.
func (g *Graph) ArcTo(at fabric.At) (int, bool) {
	node, ok := g.Index[at.Switch]
	if !ok {
		return 0, false
	}
	out, ok := g.Link[node][PortAt(g.Switch[node].Host, at.Port)]
	if !ok {
		return 0, false
	}
	return Opposite(out), true
}

// TagCookie is the identity of the entry that takes a leg's frames in where an arc ends.
func (g *Graph) TagCookie(arc int, tag uint16, end string) uint64 {
	x := &g.Arcs[arc]
	return identity.Entry("tag", string(g.IDs[x.To]), g.port(x.To, x.In), end, strconv.Itoa(int(tag)))
}

// TagRuleID is that of a host's rule for it, which says the step as well, in its lower half.
func (g *Graph) TagRuleID(host int, in string, tag uint16, end, step string) uint64 {
	upper := identity.Entry("tag", string(g.IDs[host]), in, end, strconv.Itoa(int(tag)))
	return upper<<32 | identity.Of("step", step)&(1<<32-1)
}

// IsTag tells whether a cookie is that of a leg to an end.
func (g *Graph) IsTag(arc int, tag uint16, end string, cookie uint64) bool {
	want := g.TagCookie(arc, tag, end)
	if g.Switch[g.Arcs[arc].To].Host {
		return cookie>>32 == want&(1<<32-1)
	}
	return cookie == want
}
