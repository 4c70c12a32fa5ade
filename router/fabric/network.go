package fabric

import (
	"maps"
	"slices"

	"weir.dev/weir/flow"
)

// Network is a network with everybody's place.
type Network struct {
	in       Input
	g        *graph
	places   map[string]*place // endpoints that are found
	stations []station         // by MAC
	local    [][]flow.MAC      // of hosts: the MACs of their own endpoints, sorted
	guests   []map[string]Endpoint
	attached []bool // of hosts: they have a link to an OpenFlow switch, so default forwarding takes frames on from there
	short    shortage
}

// place is where a station is: at an edge port, or at a host's endpoint.
type place struct {
	node int
	port Port
}

type station struct {
	mac flow.MAC
	place
	name string // the address, as part of an identity
	key  uint64 // spreads stations over ways of one length
}

// newNetwork finds where everything is.
func newNetwork(in Input) *Network {
	w := &Network{in: in, g: newGraph(in.Topology), places: make(map[string]*place, len(in.Endpoints))}
	n := len(w.g.ids)
	w.attached = make([]bool, n)
	for i := range w.g.arcs {
		if x := &w.g.arcs[i]; !w.g.sw[x.to].Host {
			w.attached[x.from] = true
		}
	}
	w.local, w.guests = make([][]flow.MAC, n), make([]map[string]Endpoint, n)
	for name, e := range in.Endpoints {
		if p, ok := w.place(e.At); ok {
			w.places[name] = &p
			if w.g.sw[p.node].Host {
				if w.guests[p.node] == nil {
					w.guests[p.node] = map[string]Endpoint{}
				}
				w.guests[p.node][name] = e
			}
		}
	}
	w.settle()
	return w
}

// place finds a port; one with a host behind is that host, one with a switch behind is nobody's place.
func (w *Network) place(at At) (place, bool) {
	node, ok := w.g.index[at.Switch]
	if !ok {
		return place{}, false
	}
	p := portAt(w.g.sw[node].Host, at.Port)
	a, linked := w.g.link[node][p]
	if !linked {
		if !w.g.sw[node].Host && !slices.Contains(w.g.edges[node], p.Number) {
			return place{}, false
		}
		return place{node, p}, true
	}
	if other := w.g.arcs[a].to; !w.g.sw[node].Host && w.g.sw[other].Host {
		return place{node: other}, true
	}
	return place{}, false
}

// settle finds where each address is: endpoints know best.
func (w *Network) settle() {
	found := map[flow.MAC]place{}
	for _, s := range w.in.Stations {
		if p, ok := w.place(s.At); ok && !s.MAC.Multicast() && s.MAC != (flow.MAC{}) {
			found[s.MAC] = p
		}
	}
	for _, name := range slices.Sorted(maps.Keys(w.places)) {
		for _, m := range w.in.Endpoints[name].MACs {
			found[m] = *w.places[name]
		}
	}
	for m, p := range found {
		w.stations = append(w.stations, station{m, p, string(m[:]), stationKey(m)})
		if w.g.sw[p.node].Host {
			w.local[p.node] = append(w.local[p.node], m)
		}
	}
	slices.SortFunc(w.stations, func(a, b station) int { return slices.Compare(a.mac[:], b.mac[:]) })
	for _, l := range w.local {
		slices.SortFunc(l, func(a, b flow.MAC) int { return slices.Compare(a[:], b[:]) })
	}
}

// settled tells whether a host has stations of its own.
func (w *Network) settled(node int) bool { return len(w.local[node]) > 0 || len(w.guests[node]) > 0 }
