package graph

import (
	"cmp"
	"slices"

	"weir.dev/weir/api"
)

// point is a place in the picture.
type point struct{ x, y float64 }

// placed is a node with the middle of its box.
type placed struct {
	api.GraphNode
	at point
}

// drawn is an edge with the points that it goes through, from one box's middle to the other's.
type drawn struct {
	api.GraphEdge
	through []point
}

// Sizes of the picture, in pixels.
const (
	boxWidth, boxHeight = 150.0, 52.0
	gapX, gapY          = 90.0, 26.0
	margin              = 24.0
	sweeps              = 12 // of the ordering: more change little
)

// spot is a node in its layer, or the place where a long edge passes a layer.
type spot struct {
	node   int // -1: an edge passes here
	before []*spot
	after  []*spot
	weight float64
	at     point
}

// arrange places nodes in layers from left to right, so that edges go to the right where there is no circle, and orders each layer by its neighbours
// (Sugiyama). It returns the size of the picture.
func arrange(nodes []api.GraphNode, edges []api.GraphEdge) ([]placed, []drawn, point) {
	index := map[string]int{}
	for i, n := range nodes {
		index[n.ID] = i
	}
	edges = slices.DeleteFunc(slices.Clone(edges), func(e api.GraphEdge) bool {
		_, from := index[e.From]
		_, to := index[e.To]
		return !from || !to
	})
	backward := circles(len(nodes), edges, index)
	layer := layers(len(nodes), edges, index, backward)
	// A spot for each node, and one wherever an edge passes a layer.
	var rows [][]*spot
	put := func(l int, s *spot) {
		for len(rows) <= l {
			rows = append(rows, nil)
		}
		rows[l] = append(rows[l], s)
	}
	spots := make([]*spot, len(nodes))
	for i := range nodes {
		spots[i] = &spot{node: i}
		put(layer[i], spots[i])
	}
	ways := make([][]*spot, len(edges))
	for i, e := range edges {
		from, to := index[e.From], index[e.To]
		if layer[from] > layer[to] {
			from, to = to, from
		}
		way := []*spot{spots[from]}
		for l := layer[from] + 1; l < layer[to]; l++ {
			pass := &spot{node: -1}
			put(l, pass)
			way = append(way, pass)
		}
		way = append(way, spots[to])
		for j := 1; j < len(way); j++ {
			way[j-1].after, way[j].before = append(way[j-1].after, way[j]), append(way[j].before, way[j-1])
		}
		if index[e.From] != from {
			slices.Reverse(way)
		}
		ways[i] = way
	}
	size := order(rows)
	out := make([]placed, len(nodes))
	for i, n := range nodes {
		out[i] = placed{n, spots[i].at}
	}
	lines := make([]drawn, len(edges))
	for i, e := range edges {
		lines[i].GraphEdge = e
		for _, s := range ways[i] {
			lines[i].through = append(lines[i].through, s.at)
		}
	}
	return out, lines, size
}

// circles finds the edges that close a circle, in the order of the edges.
func circles(nodes int, edges []api.GraphEdge, index map[string]int) []bool {
	out := make([][]int, nodes) // edges by node
	for i, e := range edges {
		out[index[e.From]] = append(out[index[e.From]], i)
	}
	backward := make([]bool, len(edges))
	const unseen, open, done = 0, 1, 2
	state := make([]int, nodes)
	var visit func(n int)
	visit = func(n int) {
		state[n] = open
		for _, i := range out[n] {
			switch to := index[edges[i].To]; state[to] {
			case unseen:
				visit(to)
			case open:
				backward[i] = true
			}
		}
		state[n] = done
	}
	for n := range nodes {
		if state[n] == unseen {
			visit(n)
		}
	}
	return backward
}

// layers gives each node the length of the longest way to it.
func layers(nodes int, edges []api.GraphEdge, index map[string]int, backward []bool) []int {
	in := make([][]int, nodes)
	for i, e := range edges {
		from, to := index[e.From], index[e.To]
		if backward[i] {
			from, to = to, from
		}
		if from != to {
			in[to] = append(in[to], from)
		}
	}
	layer := make([]int, nodes)
	known := make([]bool, nodes)
	var find func(n int) int
	find = func(n int) int {
		if !known[n] {
			known[n] = true
			for _, from := range in[n] {
				layer[n] = max(layer[n], find(from)+1)
			}
		}
		return layer[n]
	}
	for n := range nodes {
		find(n)
	}
	return layer
}

// order sorts each layer by the middle of its neighbours in the one beside it, forth and back, then gives each spot its place.
func order(rows [][]*spot) point {
	rank := map[*spot]float64{}
	number := func(row []*spot) {
		for i, s := range row {
			rank[s] = float64(i) - float64(len(row)-1)/2
		}
	}
	for _, row := range rows {
		number(row)
	}
	sortBy := func(row []*spot, beside func(*spot) []*spot) {
		for _, s := range row {
			s.weight = rank[s]
			if near := beside(s); len(near) > 0 {
				s.weight = 0
				for _, n := range near {
					s.weight += rank[n] / float64(len(near))
				}
			}
		}
		slices.SortStableFunc(row, func(x, y *spot) int { return cmp.Compare(x.weight, y.weight) })
		number(row)
	}
	for range sweeps {
		for _, row := range rows {
			sortBy(row, func(s *spot) []*spot { return s.before })
		}
		for _, row := range slices.Backward(rows) {
			sortBy(row, func(s *spot) []*spot { return s.after })
		}
	}
	most := 0
	for _, row := range rows {
		most = max(most, len(row))
	}
	size := point{2*margin + float64(len(rows))*(boxWidth+gapX) - gapX, 2*margin + float64(most)*(boxHeight+gapY) - gapY}
	for l, row := range rows {
		for _, s := range row {
			s.at = point{margin + boxWidth/2 + float64(l)*(boxWidth+gapX), size.y/2 + rank[s]*(boxHeight+gapY)}
		}
	}
	return size
}
