package forwarding

import (
	"cmp"
	"slices"

	"weir.dev/weir/router/fabric"
	"weir.dev/weir/router/fabric/graph"
)

// A table may be too small for the entries of all stations. Then some are left out, the same ones whatever the policies, and a part of the
// table is kept for policies. Frames to these stations are flooded where their entry is missing. Elsewhere they then go along the
// broadcast tree as well, of which there is only one then: by a shortest path they could meet a flooded copy of themselves. As they come by places where nobody
// expects them, chains end otherwise, too: see scarce.

// keptShare is the part of such a table that is kept for policies: one of so many.
const keptShare = 4

// shortage is who is left out.
type shortage struct {
	rank  []int  // of stations: those of endpoints first, then in an order that others do not change
	most  []int  // by node: those of a lower rank have their entry there
	treed []bool // stations that lack one somewhere
}

// Scarce tells that frames for some known stations are flooded.
func (w *Network) Scarce() bool { return w.short.rank != nil }

// leftOut tells whether a station has no entry at a switch.
func (w *Network) leftOut(node, station int) bool {
	return w.short.rank != nil && w.short.rank[station] >= w.short.most[node]
}

// treed tells whether frames for a station go along the broadcast tree.
func (w *Network) treed(station int) bool { return w.short.rank != nil && w.short.treed[station] }

// allot finds which stations have entries in which tables, when all entries of default forwarding besides theirs are known.
func (t *Tables) allot() {
	w, g := t.w, t.w.Graph
	t.Short = map[fabric.SwitchID][]fabric.Short{}
	if w.In.Beside {
		return
	}
	most := make([]int, len(t.Nodes))
	for i, n := range t.Nodes {
		most[i] = len(w.stations)
		if n.Switch.Host {
			continue
		}
		for table, size := range n.Switch.Tables {
			if size == 0 || table != 0 && table != int(n.Second()) || int(size) >= int(w.In.Reserve)+n.Used[table]+2+4*len(g.Edges[i])+len(w.stations) {
				continue
			}
			s := fabric.Short{Table: uint8(table), Size: int(size), Others: min(int(w.In.Reserve), int(size)), Needs: n.Used[table]}
			if table == int(n.Second()) {
				s.Needs += len(t.FloodOf(i, n))
				s.Stations = w.reach(i, nil)
			}
			room := s.Size - s.Others - s.Needs
			if s.Needs += s.Stations; s.Stations <= room {
				continue
			}
			if s.Stations > 0 {
				most[i] = max(0, room-(s.Size-s.Others)/keptShare)
			}
			t.Short[g.IDs[i]] = append(t.Short[g.IDs[i]], s)
		}
	}
	if len(most) == 0 || slices.Min(most) == len(w.stations) {
		return
	}
	if slices.Contains(g.Tells, true) { // what is flooded and what is not have to go the same way
		g.Trees[1] = g.Trees[0]
		clear(g.Tells)
		t.allot()
		return
	}
	w.short = shortage{rank: w.ranks(), most: most, treed: make([]bool, len(w.stations))}
	for i, n := range t.Nodes {
		if n.Switch.Host || most[i] == len(w.stations) {
			continue
		}
		left := w.reach(i, func(k int) bool {
			w.short.treed[k] = w.short.treed[k] || w.leftOut(i, k)
			return w.leftOut(i, k)
		})
		for j := range t.Short[g.IDs[i]] {
			if s := &t.Short[g.IDs[i]][j]; s.Stations > 0 {
				s.LeftOut = left
			}
		}
	}
}

// reach counts the stations that a switch has a way to, of those that are meant.
func (w *Network) reach(node int, meant func(station int) bool) int {
	n := 0
	for k := range w.stations {
		if w.Graph.To(w.stations[k].Node)[node] != graph.Unreachable && (meant == nil || meant(k)) {
			n++
		}
	}
	return n
}

// ranks puts stations in order.
func (w *Network) ranks() []int {
	named := map[string]bool{}
	for _, s := range w.In.Stations {
		named[string(s.MAC[:])] = s.Endpoint != ""
	}
	first := func(k int) int {
		if named[w.stations[k].name] {
			return 0
		}
		return 1
	}
	all := make([]int, len(w.stations))
	for k := range all {
		all[k] = k
	}
	slices.SortFunc(all, func(a, b int) int {
		return cmp.Or(cmp.Compare(first(a), first(b)), cmp.Compare(w.stations[a].key, w.stations[b].key), cmp.Compare(a, b))
	})
	rank := make([]int, len(all))
	for r, k := range all {
		rank[k] = r
	}
	return rank
}
