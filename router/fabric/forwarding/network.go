// Package forwarding computes default forwarding of OpenFlow switches: where each station is, what is flooded, and whom a small table leaves out.
package forwarding

import (
	"maps"
	"slices"

	"weir.dev/weir/flow"
	"weir.dev/weir/router/fabric"
	"weir.dev/weir/router/fabric/graph"
)

// Network is a network with everybody's place.
type Network struct {
	In       fabric.Input
	Graph    *graph.Graph
	Places   map[string]*Place // endpoints that are found
	stations []station         // by MAC
	Local    [][]flow.MAC      // of hosts: the MACs of their own endpoints, sorted
	Guests   []map[string]fabric.Endpoint
	Attached []bool // of hosts: they have a link to an OpenFlow switch, so default forwarding takes frames on from there
	short    shortage
}

// Place is where a station is: at an edge port, or at a host's endpoint.
type Place struct {
	Node int
	Port fabric.Port
}

type station struct {
	mac flow.MAC
	Place
	name string // the address, as part of an identity
	key  uint64 // spreads stations over ways of one length
}

// NewNetwork finds where everything is.
func NewNetwork(in fabric.Input) *Network {
	w := &Network{In: in, Graph: graph.New(in.Topology), Places: make(map[string]*Place, len(in.Endpoints))}
	n := len(w.Graph.IDs)
	w.Attached = make([]bool, n)
	for i := range w.Graph.Arcs {
		if x := &w.Graph.Arcs[i]; !w.Graph.Switch[x.To].Host {
			w.Attached[x.From] = true
		}
	}
	w.Local, w.Guests = make([][]flow.MAC, n), make([]map[string]fabric.Endpoint, n)
	for name, e := range in.Endpoints {
		if p, ok := w.place(e.At); ok {
			w.Places[name] = &p
			if w.Graph.Switch[p.Node].Host {
				if w.Guests[p.Node] == nil {
					w.Guests[p.Node] = map[string]fabric.Endpoint{}
				}
				w.Guests[p.Node][name] = e
			}
		}
	}
	w.settle()
	return w
}

// place finds a port; one with a host behind is that host, one with a switch behind is nobody's place.
func (w *Network) place(at fabric.At) (Place, bool) {
	node, ok := w.Graph.Index[at.Switch]
	if !ok {
		return Place{}, false
	}
	p := graph.PortAt(w.Graph.Switch[node].Host, at.Port)
	a, linked := w.Graph.Link[node][p]
	if !linked {
		if !w.Graph.Switch[node].Host && !slices.Contains(w.Graph.Edges[node], p.Number) {
			return Place{}, false
		}
		return Place{node, p}, true
	}
	if other := w.Graph.Arcs[a].To; !w.Graph.Switch[node].Host && w.Graph.Switch[other].Host {
		return Place{Node: other}, true
	}
	return Place{}, false
}

// settle finds where each address is: endpoints know best.
func (w *Network) settle() {
	found := map[flow.MAC]Place{}
	for _, s := range w.In.Stations {
		if p, ok := w.place(s.At); ok && !s.MAC.Multicast() && s.MAC != (flow.MAC{}) {
			found[s.MAC] = p
		}
	}
	for _, name := range slices.Sorted(maps.Keys(w.Places)) {
		for _, m := range w.In.Endpoints[name].MACs {
			found[m] = *w.Places[name]
		}
	}
	for m, p := range found {
		w.stations = append(w.stations, station{m, p, string(m[:]), stationKey(m)})
		if w.Graph.Switch[p.Node].Host {
			w.Local[p.Node] = append(w.Local[p.Node], m)
		}
	}
	slices.SortFunc(w.stations, func(a, b station) int { return slices.Compare(a.mac[:], b.mac[:]) })
	for _, l := range w.Local {
		slices.SortFunc(l, func(a, b flow.MAC) int { return slices.Compare(a[:], b[:]) })
	}
}

// Settled tells whether a host has stations of its own.
func (w *Network) Settled(node int) bool { return len(w.Local[node]) > 0 || len(w.Guests[node]) > 0 }
