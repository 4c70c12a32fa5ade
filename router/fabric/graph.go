package fabric

import (
	"cmp"
	"maps"
	"math"
	"slices"
	"strconv"

	"weir.dev/weir/flow"
	"weir.dev/weir/router/identity"
)

// arc is a link in one direction.
type arc struct {
	from, to int
	out, in  Port // at from, at to
	cost     uint32
	hash     uint64 // of its ends' names: breaks ties the same way whatever else changes
	a, b     string // its ends for people: "s1:2"
}

// graph is the topology by numbers. Frames pass through OpenFlow switches; a host is only ever an end of a path.
type graph struct {
	ids    []SwitchID // sorted
	sw     []Switch
	index  map[SwitchID]int
	toward []string       // by node, for people: "to s2"
	arcs   []arc          // the two of a link follow each other
	out    [][]int        // arcs by from
	link   []map[Port]int // the arc that leaves by a port
	edges  [][]flow.Port  // of OpenFlow switches: ports without a link behind
	dist   [][]uint32     // by target; filled as needed
	paths  []path         // filled as needed
	known  [][]int32      // by target and beginning: 1 and which of paths; 0 none yet
	root   []int          // of each node's island, the same in both trees; -1 none
	trees  [2]*tree       // for floods of senders whose MAC is even, and odd; they may be one
	tells  []bool         // of OpenFlow switches: entries tell the two from each other
	single map[flow.Port][]Out
}

// path is arcs from one node to another.
type path struct {
	arcs []int
	ok   bool
}

const unreachable = math.MaxUint32

func newGraph(t Topology) *graph {
	n := len(t.Switches)
	g := &graph{ids: slices.Sorted(maps.Keys(t.Switches)), index: make(map[SwitchID]int, n), dist: make([][]uint32, n), known: make([][]int32, n), single: map[flow.Port][]Out{}}
	g.out, g.edges, g.link = make([][]int, n), make([][]flow.Port, n), make([]map[Port]int, n)
	for i, id := range g.ids {
		g.index[id] = i
		g.sw = append(g.sw, t.Switches[id])
		g.link[i] = map[Port]int{}
		g.toward = append(g.toward, "to "+g.name(i))
	}
	links := slices.Clone(t.Links)
	slices.SortFunc(links, func(a, b Link) int { return cmp.Or(a.A.Compare(b.A), a.B.Compare(b.B)) })
	for _, l := range links {
		g.join(l)
	}
	for i, s := range g.sw {
		if s.Host {
			continue
		}
		for _, p := range s.Ports {
			if _, linked := g.link[i][portAt(false, p)]; !linked {
				g.edges[i] = append(g.edges[i], p.Number)
			}
		}
		slices.Sort(g.edges[i])
		g.edges[i] = slices.Compact(g.edges[i])
	}
	g.span()
	return g
}

// portAt is what tells a port from others: the number at an OpenFlow switch, the name at a host.
func portAt(host bool, p Port) Port {
	if host {
		return Port{Name: p.Name}
	}
	return Port{Number: p.Number}
}

func (g *graph) join(l Link) {
	a, known := g.index[l.A.Switch]
	b, known2 := g.index[l.B.Switch]
	if !known || !known2 || a == b {
		return
	}
	pa, pb := portAt(g.sw[a].Host, l.A.Port), portAt(g.sw[b].Host, l.B.Port)
	if _, twice := g.link[a][pa]; twice {
		return
	}
	if _, twice := g.link[b][pb]; twice {
		return
	}
	cost := max(l.Cost, 1)
	for _, x := range []arc{{from: a, to: b, out: pa, in: pb, cost: cost}, {from: b, to: a, out: pb, in: pa, cost: cost}} {
		x.hash = identity.Of(string(g.ids[x.from]), g.port(x.from, x.out), string(g.ids[x.to]), g.port(x.to, x.in))
		x.a, x.b = g.at(x.from, x.out), g.at(x.to, x.in)
		g.link[x.from][x.out] = len(g.arcs)
		g.out[x.from] = append(g.out[x.from], len(g.arcs))
		g.arcs = append(g.arcs, x)
	}
}

// name of a switch for people.
func (g *graph) name(node int) string { return cmp.Or(g.sw[node].Name, string(g.ids[node])) }

// port renders one: "3", or "uplink/eth1".
func (g *graph) port(node int, p Port) string {
	if g.sw[node].Host {
		return p.Name
	}
	return decimal(p.Number)
}

// at renders a port with its switch: "s2:3".
func (g *graph) at(node int, p Port) string { return g.name(node) + ":" + g.port(node, p) }

// outs sends a frame out of one port; entries share them.
func (g *graph) outs(p flow.Port) []Out {
	o := g.single[p]
	if o == nil {
		o = []Out{{Port: p}}
		g.single[p] = o
	}
	return o
}

func decimal(n flow.Port) string { return strconv.FormatUint(uint64(n), 10) }

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

// to gives every node's distance to a target, and back: links cost the same both ways.
func (g *graph) to(target int) []uint32 {
	if g.dist[target] == nil {
		g.dist[target] = g.distances(target, func(a int) uint32 { return g.arcs[a].cost })
	}
	return g.dist[target]
}

// distances are those to a target where links cost what cost says, the same both ways.
func (g *graph) distances(target int, cost func(arc int) uint32) []uint32 {
	d := make([]uint32, len(g.ids))
	for i := range d {
		d[i] = unreachable
	}
	d[target] = 0
	for q := (queue{{target, 0}}); len(q) > 0; {
		x := q.pop()
		if x.dist > d[x.node] || g.sw[x.node].Host && x.node != target {
			continue
		}
		for _, a := range g.out[x.node] {
			y := &g.arcs[a]
			if dist := x.dist + cost(a); dist < d[y.to] {
				d[y.to] = dist
				q.push(far{y.to, dist})
			}
		}
	}
	return d
}

// nexts are the arcs by which a node's shortest ways to the target begin.
func (g *graph) nexts(node, target int) []int {
	d := g.to(target)
	var all []int
	if d[node] == unreachable {
		return nil
	}
	for _, a := range g.out[node] {
		x := &g.arcs[a]
		if (x.to == target || !g.sw[x.to].Host) && d[x.to] != unreachable && d[x.to]+x.cost == d[node] {
			all = append(all, a)
		}
	}
	return all
}

// next chooses one of these arcs.
func (g *graph) next(node, target int, key uint64) int {
	d := g.to(target)
	best, weight := -1, uint64(0)
	if d[node] == unreachable {
		return best
	}
	for _, a := range g.out[node] {
		x := &g.arcs[a]
		if (x.to == target || !g.sw[x.to].Host) && d[x.to] != unreachable && d[x.to]+x.cost == d[node] {
			if w := identity.Mix(x.hash ^ key); best < 0 || w > weight {
				best, weight = a, w
			}
		}
	}
	return best
}

// choose takes one of several arcs, the same one whatever others there are: that with the greatest weight for the key. -1: there is none.
func choose(g *graph, arcs []int, key uint64) int {
	best, weight := -1, uint64(0)
	for _, a := range arcs {
		if w := identity.Mix(g.arcs[a].hash ^ key); best < 0 || w > weight {
			best, weight = a, w
		}
	}
	return best
}

// path is the arcs from one node to another; ok is false when there is no way. It depends, at each node, on the target only.
func (g *graph) path(from, to int) (arcs []int, ok bool) {
	row := g.known[to]
	if row == nil {
		row = make([]int32, len(g.ids))
		g.known[to] = row
	}
	if row[from] == 0 {
		g.paths = append(g.paths, g.find(from, to))
		row[from] = int32(len(g.paths))
	}
	p := &g.paths[row[from]-1]
	return p.arcs, p.ok
}

func (g *graph) find(from, to int) path {
	far := g.to(to)[from]
	if far == unreachable {
		return path{}
	}
	key := identity.Of("to", string(g.ids[to]))
	p := path{arcs: make([]int, 0, min(far, 8)), ok: true}
	for at := from; at != to; {
		a := g.next(at, to, key)
		if a < 0 {
			return path{}
		}
		p.arcs = append(p.arcs, a)
		at = g.arcs[a].to
	}
	return p
}

// opposite is the arc of the same link in the other direction.
func opposite(a int) int { return a ^ 1 }
