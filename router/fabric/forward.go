package fabric

import (
	"fmt"
	"maps"
	"slices"

	"weir.dev/weir/flow"
	"weir.dev/weir/router/identity"
)

const etherTypeLLDP uint16 = 0x88cc

var group = flow.MAC{1}

// Tables are what all switches hold, default forwarding included.
type Tables struct {
	w     *Network
	nodes []*node
	short map[SwitchID][]Short
}

// newTables has default forwarding, as long as no policy has a part in floods.
func newTables(w *Network) *Tables {
	t := &Tables{w: w}
	for i, id := range w.g.ids {
		t.nodes = append(t.nodes, newNode(w.g.sw[i], id))
		t.nodes[i].beside = w.in.Beside
	}
	t.forwarding()
	t.flooding()
	return t
}

// forwarding computes what every OpenFlow switch does by itself: LLDP to the controller, fabric tags of users dropped, what is for a
// known station on its shortest path. Tables of the nodes are filled with it for good, until the topology changes.
func (t *Tables) forwarding() {
	for i, n := range t.nodes {
		if !n.sw.Host {
			t.plumbing(i, n)
		}
	}
	t.allot()
	g := t.w.g
	names := make([]string, len(g.ids))
	for i := range names {
		names[i] = "a station at " + g.name(i)
	}
	known := map[uint64][]int{}
	nexts := func(i, target int) []int {
		k := uint64(i)<<32 | uint64(target)
		arcs, ok := known[k]
		if !ok {
			arcs = g.nexts(i, target)
			known[k] = arcs
		}
		return arcs
	}
	for i, n := range t.nodes {
		if n.sw.Host {
			continue
		}
		base := make([]Entry, 0, len(t.w.stations)) // it does not grow: pointers are taken
		second, station := n.second(), identity.LabelOf("base", string(g.ids[i]), "station")
		for k := range t.w.stations {
			s := &t.w.stations[k]
			if t.w.leftOut(i, k) {
				continue
			}
			out, what := s.port.Number, "a station here"
			if s.node != i {
				a := choose(g, nexts(i, s.node), s.key)
				if a < 0 {
					continue
				}
				if t.w.treed(k) {
					a = g.along(i, s.node, a)
				}
				out, what = g.arcs[a].out.Number, names[s.node]
			}
			e := Entry{Table: second, Priority: prioStation, Match: flow.Match{DstMAC: s.mac, DstMACMask: whole}, Outs: g.outs(out), Note: what}
			e.Cookie = station.With(s.name).Entry()
			base = append(base, e)
			n.base = append(n.base, &base[len(base)-1])
		}
		n.used[second] += len(base)
		slices.SortFunc(n.base, order)
	}
}

// plumbing are a switch's entries that no station and no policy has a part in, but for floods.
func (t *Tables) plumbing(i int, n *node) {
	g := t.w.g
	size := (1+len(neighbours))*len(g.edges[i]) + 3
	base := make([]Entry, 0, size) // it does not grow: pointers are taken
	n.base = make([]*Entry, 0, size+len(t.w.stations))
	second := n.second()
	mine := identity.LabelOf("base", string(g.ids[i]))
	add := func(e Entry, is identity.Label) {
		e.Cookie = is.Entry()
		base = append(base, e)
		n.base = append(n.base, &base[len(base)-1])
		n.used[e.Table]++
	}
	add(Entry{Priority: prioLLDP, Match: flow.Match{EtherType: etherTypeLLDP}, Outs: g.outs(ToController), Note: "LLDP to the router"}, mine.With("lldp"))
	guard := mine.With("guard")
	for _, p := range g.edges[i] {
		add(Entry{Priority: prioGuard, Match: flow.Match{InPort: p}, Tagged: true, Note: "fabric tags are not for stations"}, guard.Port(p))
	}
	// Its leg is gone. Without the tag nobody could tell any more which functions the frame has met.
	add(Entry{Priority: prioStray, Tagged: true, Note: "a fabric tag that leads nowhere"}, mine.With("stray"))
	if second == 0 {
		return
	}
	for _, m := range neighbours {
		is := mine.With("neigh").With(fmt.Sprint(m.EtherType))
		if m.EtherType == flow.EtherTypeARP {
			m.DstMAC, m.DstMACMask = flow.MAC{}, flow.MAC{} // answers too, which are for one station only: many stations never ask
		}
		for _, p := range g.edges[i] {
			m.InPort = p
			add(Entry{Priority: prioNeigh, Match: m, Outs: g.outs(ToController), Goto: second, Note: "who has, to the router, and on"}, is.Port(p))
		}
	}
	add(Entry{Goto: second, Note: "on to default forwarding"}, mine.With("miss"))
}

func stationKey(m flow.MAC) uint64 {
	var x uint64
	for _, b := range m {
		x = x<<8 | uint64(b)
	}
	return identity.Mix(x)
}

// flooding computes, where that has changed, what a switch does with frames for many and for stations that nobody knows: out of every
// edge port and along the sender's tree. Ports whose station has an exhaustive policy send their copy into its chain.
func (t *Tables) flooding() {
	for i, n := range t.nodes {
		if n.sw.Host || !n.floodDirty {
			continue
		}
		n.floodDirty, n.dirty = false, true
		for _, f := range n.flood {
			n.drop(f)
		}
		n.flood = nil
		for _, e := range t.floodOf(i, n) {
			f := n.count(&e)
			n.flood = append(n.flood, f)
			n.put(f)
		}
	}
}

func (t *Tables) floodOf(i int, n *node) []Entry {
	g := t.w.g
	var flood []Entry
	id := string(g.ids[i])
	mine := identity.LabelOf("flood", id)
	add := func(e Entry, outs func(k *tree) []Out, parts ...string) {
		e.Table = n.second()
		is := mine
		for _, p := range parts {
			is = is.With(p)
		}
		e.Cookie = is.Entry()
		flood = t.byTree(flood, i, e, outs)
	}
	from := func(in flow.Port) func(k *tree) []Out {
		return func(k *tree) []Out { return t.floodOuts(i, k, in, 0) }
	}
	add(Entry{Note: "flood"}, from(0), "all")
	special := map[flow.Port]bool{} // ports where a copy would go back out, or must not be made
	for p, hooks := range n.hooks {
		special[p] = true
		for _, h := range hooks {
			if h.out != 0 {
				special[h.out] = true
			}
		}
	}
	for _, p := range slices.Sorted(maps.Keys(special)) {
		add(Entry{Priority: prioFlood, Match: flow.Match{InPort: p}, Note: "flood from " + decimal(p)}, from(p), "in", decimal(p))
	}
	seen := map[flow.MAC]bool{}
	for _, x := range n.prune {
		if seen[x.mac] {
			continue
		}
		seen[x.mac] = true
		m := flow.Match{SrcMAC: x.mac, SrcMACMask: whole}
		note := fmt.Sprintf("flood, not back to %s", x.mac)
		not := func(in flow.Port) func(k *tree) []Out {
			return func(k *tree) []Out { return t.floodOuts(i, k, in, x.port) }
		}
		add(Entry{Priority: prioFlood + 2, Match: m, Note: note}, not(0), "not", x.mac.String())
		for _, p := range slices.Sorted(maps.Keys(special)) {
			m.InPort = p
			add(Entry{Priority: prioFlood + 3, Match: m, Note: note}, not(p), "not", x.mac.String(), decimal(p))
		}
	}
	for j, r := range n.returns {
		if slices.ContainsFunc(n.returns[:j], func(o returned) bool { return o.in == r.in && o.tag == r.tag }) {
			continue // policies may share the leg that it came by
		}
		flood = t.byTree(flood, i, Entry{
			Cookie: identity.Entry("returned", id, decimal(r.in), fmt.Sprint(r.tag)), Priority: prioTag, Match: flow.Match{InPort: r.in, Tag: r.tag},
			Policy: r.Policy, Hop: 255, Note: "flood as from " + decimal(r.port),
		}, func(k *tree) []Out {
			outs := t.floodOuts(i, k, r.port, 0)
			for j := range outs {
				outs[j] = Out{Port: back(outs[j].Port, r.in), Pop: true, Push: outs[j].Push}
			}
			return outs
		})
	}
	if n.second() != 0 {
		return flood // the router has its copies from the first table
	}
	for _, p := range g.edges[i] {
		for _, m := range neighbours {
			m.InPort = p
			add(Entry{Priority: prioNeigh, Match: m, Note: "who has, flooded and to the router"}, func(k *tree) []Out {
				return append([]Out{{Port: ToController}}, t.floodOuts(i, k, p, 0)...)
			}, "neigh", decimal(p), fmt.Sprint(m.EtherType))
		}
	}
	return flood
}

// neighbours are the frames for many that tell who is where.
var neighbours = [...]flow.Match{
	{EtherType: flow.EtherTypeARP, DstMAC: group, DstMACMask: group},
	{EtherType: flow.EtherTypeIPv6, Proto: flow.ProtoICMPv6, DstMAC: group, DstMACMask: group},
}

// byTree appends an entry that floods: one for the frames of all senders, and above it another one for those of odd ones.
func (t *Tables) byTree(flood []Entry, i int, e Entry, outs func(k *tree) []Out) []Entry {
	g := t.w.g
	if e.Match.SrcMACMask == whole {
		e.Outs = outs(g.trees[treeOf(e.Match.SrcMAC)])
		return append(flood, e)
	}
	e.Outs = outs(g.trees[0])
	flood = append(flood, e)
	if g.tells[i] {
		e.Outs = outs(g.trees[1])
		e.Priority++
		e.Match.SrcMAC, e.Match.SrcMACMask = oddSender, oddSender
		e.Cookie, e.Note = identity.Entry("odd", fmt.Sprint(e.Cookie)), e.Note+", odd senders"
		flood = append(flood, e)
	}
	return flood
}

// floodOuts are the copies of a flooded frame that came in by a port, 0 any: a switch never sends it back by itself.
func (t *Tables) floodOuts(i int, k *tree, in, not flow.Port) []Out {
	g, n := t.w.g, t.nodes[i]
	var outs []Out
	for _, p := range k.ports[i] {
		if p != in {
			outs = append(outs, Out{Port: p})
		}
	}
	for _, p := range g.edges[i] {
		if p == in || p == not {
			continue
		}
		if hooks := n.hooks[p]; len(hooks) > 0 {
			h := hooks[0]
			for _, o := range hooks[1:] {
				if o.Priority > h.Priority || o.Priority == h.Priority && o.Policy < h.Policy {
					h = o
				}
			}
			if h.out != 0 {
				outs = append(outs, Out{Port: back(h.out, in), Push: h.tag})
			}
			continue
		}
		outs = append(outs, Out{Port: p})
	}
	return outs
}

// back is the port as it must be named when the frame came in there.
func back(out, in flow.Port) flow.Port {
	if out == in {
		return BackOut
	}
	return out
}
