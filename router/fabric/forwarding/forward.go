package forwarding

import (
	"fmt"
	"maps"
	"slices"

	"weir.dev/weir/flow"
	"weir.dev/weir/router/fabric"
	"weir.dev/weir/router/fabric/graph"
	"weir.dev/weir/router/fabric/switches"
	"weir.dev/weir/router/identity"
)

const etherTypeLLDP uint16 = 0x88cc

var (
	group    = flow.MAC{1}
	wholeMAC = flow.MAC{255, 255, 255, 255, 255, 255}
)

// Tables are what all switches hold, default forwarding included.
type Tables struct {
	w     *Network
	Nodes []*switches.Node
	Short map[fabric.SwitchID][]fabric.Short
}

// NewTables has default forwarding, as long as no policy has a part in floods.
func NewTables(w *Network) *Tables {
	t := &Tables{w: w}
	for i, id := range w.Graph.IDs {
		t.Nodes = append(t.Nodes, switches.NewNode(w.Graph.Switch[i], id))
		t.Nodes[i].Beside = w.In.Beside
	}
	t.forwarding()
	t.Flooding()
	return t
}

// forwarding computes what every OpenFlow switch does by itself: LLDP to the controller, fabric tags of users dropped, what is for a
// known station on its shortest path. Tables of the nodes are filled with it for good, until the topology changes.
func (t *Tables) forwarding() {
	for i, n := range t.Nodes {
		if !n.Switch.Host {
			t.plumbing(i, n)
		}
	}
	t.allot()
	g := t.w.Graph
	names := make([]string, len(g.IDs))
	for i := range names {
		names[i] = "a station at " + g.Name(i)
	}
	known := map[uint64][]int{}
	nexts := func(i, target int) []int {
		k := uint64(i)<<32 | uint64(target)
		arcs, ok := known[k]
		if !ok {
			arcs = g.Nexts(i, target)
			known[k] = arcs
		}
		return arcs
	}
	for i, n := range t.Nodes {
		if n.Switch.Host {
			continue
		}
		base := make([]fabric.Entry, 0, len(t.w.stations)) // it does not grow: pointers are taken
		second, station := n.Second(), identity.LabelOf("base", string(g.IDs[i]), "station")
		for k := range t.w.stations {
			s := &t.w.stations[k]
			if t.w.leftOut(i, k) {
				continue
			}
			out, what := s.Port.Number, "a station here"
			if s.Node != i {
				a := graph.Choose(g, nexts(i, s.Node), s.key)
				if a < 0 {
					continue
				}
				if t.w.treed(k) {
					a = g.Along(i, s.Node, a)
				}
				out, what = g.Arcs[a].Out.Number, names[s.Node]
			}
			e := fabric.Entry{Table: second, Priority: switches.PrioStation, Match: flow.Match{DstMAC: s.mac, DstMACMask: wholeMAC}, Outs: g.Outs(out), Note: what}
			e.Cookie = station.With(s.name).Entry()
			base = append(base, e)
			n.Base = append(n.Base, &base[len(base)-1])
		}
		n.Used[second] += len(base)
		slices.SortFunc(n.Base, (*fabric.Entry).Compare)
	}
}

// plumbing are a switch's entries that no station and no policy has a part in, but for floods.
func (t *Tables) plumbing(i int, n *switches.Node) {
	g := t.w.Graph
	size := (1+len(neighbours))*len(g.Edges[i]) + 3
	base := make([]fabric.Entry, 0, size) // it does not grow: pointers are taken
	n.Base = make([]*fabric.Entry, 0, size+len(t.w.stations))
	second := n.Second()
	mine := identity.LabelOf("base", string(g.IDs[i]))
	add := func(e fabric.Entry, is identity.Label) {
		e.Cookie = is.Entry()
		base = append(base, e)
		n.Base = append(n.Base, &base[len(base)-1])
		n.Used[e.Table]++
	}
	add(fabric.Entry{Priority: switches.PrioLLDP, Match: flow.Match{EtherType: etherTypeLLDP}, Outs: g.Outs(fabric.ToController), Note: "LLDP to the router"}, mine.With("lldp"))
	guard := mine.With("guard")
	for _, p := range g.Edges[i] {
		add(fabric.Entry{Priority: switches.PrioGuard, Match: flow.Match{InPort: p}, Tagged: true, Note: "fabric tags are not for stations"}, guard.Port(p))
	}
	// Its leg is gone. Without the tag nobody could tell any more which functions the frame has met.
	add(fabric.Entry{Priority: switches.PrioStray, Tagged: true, Note: "a fabric tag that leads nowhere"}, mine.With("stray"))
	if second == 0 {
		return
	}
	for _, m := range neighbours {
		is := mine.With("neigh").With(fmt.Sprint(m.EtherType))
		if m.EtherType == flow.EtherTypeARP {
			m.DstMAC, m.DstMACMask = flow.MAC{}, flow.MAC{} // answers too, which are for one station only: many stations never ask
		}
		for _, p := range g.Edges[i] {
			m.InPort = p
			add(fabric.Entry{Priority: switches.PrioNeigh, Match: m, Outs: g.Outs(fabric.ToController), Goto: second, Note: "who has, to the router, and on"}, is.Port(p))
		}
	}
	add(fabric.Entry{Goto: second, Note: "on to default forwarding"}, mine.With("miss"))
}

func stationKey(m flow.MAC) uint64 {
	var x uint64
	for _, b := range m {
		x = x<<8 | uint64(b)
	}
	return identity.Mix(x)
}

// Flooding computes, where that has changed, what a switch does with frames for many and for stations that nobody knows: out of every
// edge port and along the sender's tree. Ports whose station has an exhaustive policy send their copy into its chain.
func (t *Tables) Flooding() {
	for i, n := range t.Nodes {
		if n.Switch.Host || !n.FloodDirty {
			continue
		}
		n.FloodDirty, n.Dirty = false, true
		for _, f := range n.Flood {
			n.Drop(f)
		}
		n.Flood = nil
		for _, e := range t.FloodOf(i, n) {
			f := n.Count(&e)
			n.Flood = append(n.Flood, f)
			n.Put(f)
		}
	}
}

// FloodOf gives the entries by which a switch floods.
func (t *Tables) FloodOf(i int, n *switches.Node) []fabric.Entry {
	// An entry's identity is its switch and the parts of its match.
	g := t.w.Graph
	var flood []fabric.Entry
	id := string(g.IDs[i])
	mine := identity.LabelOf("flood", id)
	add := func(e fabric.Entry, outs func(k *graph.Tree) []fabric.Out, parts ...string) {
		e.Table = n.Second()
		is := mine
		for _, p := range parts {
			is = is.With(p)
		}
		e.Cookie = is.Entry()
		flood = t.byTree(flood, i, e, outs)
	}
	from := func(in flow.Port) func(k *graph.Tree) []fabric.Out {
		return func(k *graph.Tree) []fabric.Out { return t.floodOuts(i, k, in, 0) }
	}
	// The entry for all frames.
	add(fabric.Entry{Note: "flood"}, from(0), "all")
	// Ports with hooks of policies: each has a flood of its own.
	special := map[flow.Port]bool{} // ports where a copy would go back out, or must not be made
	for p, hooks := range n.Hooks {
		special[p] = true
		for _, h := range hooks {
			if h.Out != 0 {
				special[h.Out] = true
			}
		}
	}
	for _, p := range slices.Sorted(maps.Keys(special)) {
		add(fabric.Entry{Priority: switches.PrioFlood, Match: flow.Match{InPort: p}, Note: "flood from " + graph.Decimal(p)}, from(p), "in", graph.Decimal(p))
	}
	// Sources whose floods must not come back to them.
	seen := map[flow.MAC]bool{}
	for _, x := range n.Prune {
		if seen[x.MAC] {
			continue
		}
		seen[x.MAC] = true
		m := flow.Match{SrcMAC: x.MAC, SrcMACMask: wholeMAC}
		note := fmt.Sprintf("flood, not back to %s", x.MAC)
		not := func(in flow.Port) func(k *graph.Tree) []fabric.Out {
			return func(k *graph.Tree) []fabric.Out { return t.floodOuts(i, k, in, x.Port) }
		}
		add(fabric.Entry{Priority: switches.PrioFlood + 2, Match: m, Note: note}, not(0), "not", x.MAC.String())
		for _, p := range slices.Sorted(maps.Keys(special)) {
			m.InPort = p
			add(fabric.Entry{Priority: switches.PrioFlood + 3, Match: m, Note: note}, not(p), "not", x.MAC.String(), graph.Decimal(p))
		}
	}
	// Frames that came back with a tag are flooded as from the port where they were caught.
	for j, r := range n.Returns {
		if slices.ContainsFunc(n.Returns[:j], func(o switches.Returned) bool { return o.In == r.In && o.Tag == r.Tag }) {
			continue // policies may share the leg that it came by
		}
		flood = t.byTree(flood, i, fabric.Entry{
			Cookie: identity.Entry("returned", id, graph.Decimal(r.In), fmt.Sprint(r.Tag)), Priority: switches.PrioTag, Match: flow.Match{InPort: r.In, Tag: r.Tag},
			Policy: r.Policy, Hop: 255, Note: "flood as from " + graph.Decimal(r.Port),
		}, func(k *graph.Tree) []fabric.Out {
			outs := t.floodOuts(i, k, r.Port, 0)
			for j := range outs {
				outs[j] = fabric.Out{Port: Back(outs[j].Port, r.In), Pop: true, Push: outs[j].Push}
			}
			return outs
		})
	}
	if n.Second() != 0 {
		return flood // the router has its copies from the first table
	}
	// With one table, ARP and neighbour discovery are flooded and copied to the router.
	for _, p := range g.Edges[i] {
		for _, m := range neighbours {
			m.InPort = p
			add(fabric.Entry{Priority: switches.PrioNeigh, Match: m, Note: "who has, flooded and to the router"}, func(k *graph.Tree) []fabric.Out {
				return append([]fabric.Out{{Port: fabric.ToController}}, t.floodOuts(i, k, p, 0)...)
			}, "neigh", graph.Decimal(p), fmt.Sprint(m.EtherType))
		}
	}
	return flood
}

// neighbours are the frames for many that tell who is where.
var neighbours = [...]flow.Match{
	{EtherType: flow.EtherTypeARP, DstMAC: group, DstMACMask: group},
	{EtherType: flow.EtherTypeIPv6, Proto: flow.ProtoICMPv6, DstMAC: group, DstMACMask: group},
}

// byTree appends an entry that floods: one for the frames of all senders, and above it one for those with tree bit 1.
func (t *Tables) byTree(flood []fabric.Entry, i int, e fabric.Entry, outs func(k *graph.Tree) []fabric.Out) []fabric.Entry {
	g := t.w.Graph
	if e.Match.SrcMACMask == wholeMAC {
		e.Outs = outs(g.Trees[graph.TreeOf(e.Match.SrcMAC)])
		return append(flood, e)
	}
	e.Outs = outs(g.Trees[0])
	flood = append(flood, e)
	if g.Tells[i] {
		e.Outs = outs(g.Trees[1])
		e.Priority++
		e.Match.SrcMAC, e.Match.SrcMACMask = graph.OddSender, graph.OddSender
		e.Cookie, e.Note = identity.Entry("odd", fmt.Sprint(e.Cookie)), e.Note+", odd senders"
		flood = append(flood, e)
	}
	return flood
}

// floodOuts are the copies of a flooded frame that came in by a port, 0 any: a switch never sends it back by itself.
func (t *Tables) floodOuts(i int, k *graph.Tree, in, not flow.Port) []fabric.Out {
	g, n := t.w.Graph, t.Nodes[i]
	var outs []fabric.Out
	for _, p := range k.Ports[i] {
		if p != in {
			outs = append(outs, fabric.Out{Port: p})
		}
	}
	for _, p := range g.Edges[i] {
		if p == in || p == not {
			continue
		}
		if hooks := n.Hooks[p]; len(hooks) > 0 {
			h := hooks[0]
			for _, o := range hooks[1:] {
				if o.Priority > h.Priority || o.Priority == h.Priority && o.Policy < h.Policy {
					h = o
				}
			}
			if h.Out != 0 {
				outs = append(outs, fabric.Out{Port: Back(h.Out, in), Push: h.Tag})
			}
			continue
		}
		outs = append(outs, fabric.Out{Port: p})
	}
	return outs
}

// Back is the port as it must be named when the frame came in there.
func Back(out, in flow.Port) flow.Port {
	if out == in {
		return fabric.BackOut
	}
	return out
}
