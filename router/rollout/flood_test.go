package rollout

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"weir.dev/weir/api"
	"weir.dev/weir/flow"
	"weir.dev/weir/openflow"
	"weir.dev/weir/router/fabric"
	"weir.dev/weir/router/fabric/steering"
)

// floods is a network under change, whose switches carry out what they are told entry by entry, late and in any order.
type floods struct {
	t     *rapid.T
	w     *world
	in    fabric.Input
	cut   map[int]bool // of links
	links []fabric.Link
	all   map[string]api.PolicySpec
	edges []fabric.At // where frames come from: stations, and the host
	force map[fabric.SwitchID]map[Key]*Rule
	open  map[fabric.SwitchID][]func() // what a switch has been told and has not done
	back  map[fabric.SwitchID]func()   // its answer
	deaf  fabric.SwitchID              // takes no entry for odd senders, any more
	hits  map[string]int
}

func floodAt(n int) fabric.SwitchID { return fabric.SwitchID(fmt.Sprintf("of:%016x", n)) }

// drawFloods gives a connected network with stations, a host, and policies that change how their ports are flooded.
func drawFloods(t *rapid.T) *floods {
	f := &floods{
		t: t, cut: map[int]bool{}, all: map[string]api.PolicySpec{}, hits: map[string]int{},
		force: map[fabric.SwitchID]map[Key]*Rule{}, open: map[fabric.SwitchID][]func(){}, back: map[fabric.SwitchID]func(){},
	}
	f.in = fabric.Input{
		Topology:  fabric.Topology{Switches: map[fabric.SwitchID]fabric.Switch{}},
		Endpoints: map[string]fabric.Endpoint{}, Functions: map[string]fabric.Function{}, Chains: map[string]api.ChainSpec{}, Policies: map[string]api.PolicySpec{},
	}
	tables := make([]uint32, rapid.IntRange(1, 2).Draw(t, "tables"))
	next := map[fabric.SwitchID]flow.Port{}
	port := func(id fabric.SwitchID) fabric.At {
		next[id]++
		s := f.in.Switches[id]
		s.Ports = append(s.Ports, fabric.Port{Number: next[id]})
		f.in.Switches[id] = s
		return fabric.At{Switch: id, Port: fabric.Port{Number: next[id]}}
	}
	n := rapid.IntRange(3, 6).Draw(t, "switches")
	var ids []fabric.SwitchID
	for i := range n {
		ids = append(ids, floodAt(i+1))
		f.in.Switches[ids[i]] = fabric.Switch{Name: fmt.Sprint("s", i+1), Tables: tables}
	}
	link := func(a, b int) { f.links = append(f.links, fabric.Link{A: port(ids[a]), B: port(ids[b])}) }
	if rapid.Bool().Draw(t, "leaf-spine") {
		for leaf := 2; leaf < n; leaf++ {
			link(0, leaf)
			link(1, leaf)
		}
	} else {
		for i := 1; i < n; i++ {
			link(rapid.IntRange(0, i-1).Draw(t, "parent"), i)
		}
		for range rapid.IntRange(0, 4).Draw(t, "more links") {
			a := rapid.IntRange(0, n-1).Draw(t, "from")
			link(a, (a+rapid.IntRange(1, n-1).Draw(t, "to"))%n)
		}
	}
	for i := range rapid.IntRange(2, 5).Draw(t, "stations") {
		at := port(rapid.SampledFrom(ids).Draw(t, "place"))
		f.edges = append(f.edges, at)
		f.in.Endpoints[fmt.Sprint("e", i)] = fabric.Endpoint{
			At: at, MACs: []flow.MAC{stationMAC(byte(i + 1))}, Prefixes: []netip.Prefix{netip.MustParsePrefix(fmt.Sprintf("10.0.0.%d/32", i+1))},
		}
	}
	f.in.Switches["host:h"] = fabric.Switch{Name: "h", Host: true, Ports: []fabric.Port{{Name: "uplink/eth0"}}}
	at := port(rapid.SampledFrom(ids).Draw(t, "host"))
	f.edges = append(f.edges, at)
	f.in.Links = []fabric.Link{{A: at, B: fabric.At{Switch: "host:h", Port: fabric.Port{Name: "uplink/eth0"}}}}
	for i := range 3 {
		nf, name := fmt.Sprint("f", i), fmt.Sprint("p", i)
		f.in.Functions[nf], f.in.Chains[name] = fabric.Function{Host: "host:h", Ready: true}, api.ChainSpec{Path: nf}
		from := fmt.Sprint("e", rapid.IntRange(0, len(f.in.Endpoints)-1).Draw(t, "of"))
		f.all[name] = api.PolicySpec{From: from, Chain: name, Priority: 10 + i, Mode: rapid.SampledFrom([]api.Mode{api.ModeExhaustive, api.ModeSelective}).Draw(t, "mode")}
	}
	f.w = newWorld(t, ids...)
	f.w.host("h")
	return f
}

// change makes something else wanted.
func (f *floods) change(label string) {
	switch kind := rapid.SampledFrom([]string{"link", "link", "link", "policy", "one tree"}).Draw(f.t, label); kind {
	case "link":
		i := rapid.IntRange(0, len(f.links)-1).Draw(f.t, "link")
		f.cut[i] = !f.cut[i]
	case "policy":
		name := fmt.Sprint("p", rapid.IntRange(0, 2).Draw(f.t, "policy"))
		f.in.Policies = maps.Clone(f.in.Policies)
		if _, there := f.in.Policies[name]; there {
			delete(f.in.Policies, name)
		} else {
			f.in.Policies[name] = f.all[name]
		}
	case "one tree":
		id := rapid.SampledFrom(slices.Sorted(maps.Keys(f.w.f.Nodes))).Draw(f.t, "switch")
		s := f.in.Switches[id]
		s.OneTree = !s.OneTree || id == f.deaf
		f.in.Switches = maps.Clone(f.in.Switches)
		f.in.Switches[id] = s
	}
	f.want()
}

func (f *floods) want() {
	in := f.in
	in.Links = slices.Clone(in.Links)
	for i, l := range f.links {
		if !f.cut[i] {
			in.Links = append(in.Links, l)
			continue
		}
		in.Switches = maps.Clone(in.Switches)
		for _, at := range []fabric.At{l.A, l.B} { // its ports are down
			s := in.Switches[at.Switch]
			s.Ports = slices.DeleteFunc(slices.Clone(s.Ports), func(p fabric.Port) bool { return p == at.Port })
			in.Switches[at.Switch] = s
		}
	}
	out := steering.Compile(in)
	entries := map[fabric.SwitchID][]fabric.Entry{}
	for id, list := range out.Entries {
		for _, e := range list {
			if entries[id] = append(entries[id], *e); strings.HasSuffix(e.Note, "odd senders") {
				f.hits["entries for odd senders"]++
			}
		}
	}
	var rules []api.HostRule
	for _, r := range out.Hosts["host:h"] {
		rules = append(rules, *r)
	}
	f.w.want(entries, map[string][]api.HostRule{"h": rules})
}

// step has the router tell what it may, and a switch do a part of it, or answer.
func (f *floods) step() (more bool) {
	s := f.w.plan()
	for name, spec := range s.Specs {
		f.w.install(name, spec)
	}
	for id, b := range s.Batches {
		n := f.w.f.Nodes[id]
		n.Busy = true
		n.Tell(b)
		f.carry(id, b)
	}
	if len(f.back) == 0 {
		if s.Again.IsZero() {
			return len(s.Specs) > 0
		}
		f.w.now = s.Again
		return true
	}
	id := rapid.SampledFrom(slices.Sorted(maps.Keys(f.back))).Draw(f.t, "next")
	for range rapid.IntRange(0, 1+len(f.open[id])).Draw(f.t, "entries") {
		if len(f.open[id]) == 0 {
			answer := f.back[id]
			delete(f.back, id)
			answer()
			break
		}
		f.open[id][0]()
		f.open[id] = f.open[id][1:]
		f.check(false)
	}
	return true
}

// carry notes what a switch has to do, in the order of session.apply.
func (f *floods) carry(id fabric.SwitchID, b Batch) {
	force := f.force[id]
	if force == nil {
		force = map[Key]*Rule{}
		f.force[id] = force
	}
	remove := func(h *Held) { f.open[id] = append(f.open[id], func() { delete(force, h.Key) }) }
	var no []*Rule
	for _, h := range b.Remove {
		if h.Gives() {
			remove(h)
		}
	}
	for _, r := range b.Add {
		f.open[id] = append(f.open[id], func() {
			if id == f.deaf && TreeBitField(r.Match) >= 0 {
				if force[r.Key] != nil {
					f.hits["refusals of changes"]++
				}
				no = append(no, r)
				return
			}
			force[r.Key] = r
		})
	}
	for _, h := range b.Remove {
		if !h.Gives() {
			remove(h)
		}
	}
	f.back[id] = func() {
		n := f.w.f.Nodes[id]
		n.Busy = false
		n.Heard()
		for _, r := range b.Add {
			if !slices.Contains(no, r) {
				n.Confirm(r, Cookie(0, r.Identity))
			}
		}
		for _, h := range b.Remove {
			n.Removed(h.Key)
		}
		for _, r := range no {
			n.Refused[r.Key] = refusal{Content: r.Content, Until: f.w.now.Add(30 * time.Second), Err: fmt.Errorf("bad mask")}
		}
		if s := f.in.Switches[id]; len(no) > 0 && !s.OneTree {
			f.hits["refusals"]++
			s.OneTree = true
			f.in.Switches = maps.Clone(f.in.Switches)
			f.in.Switches[id] = s
			f.want()
		}
	}
}

// restart has the router begin a second life, with what it finds in the switches.
func (f *floods) restart() {
	clear(f.open)
	clear(f.back)
	for id, n := range f.w.f.Nodes {
		var found []openflow.FlowStats
		for _, r := range f.force[id] {
			found = append(found, openflow.FlowStats{Table: r.Table, Priority: r.Priority, Cookie: Cookie(0, r.Identity), Match: r.Match, Instructions: r.Do})
		}
		clear(n.Held)
		n.Adopt(found, f.w.now)
		n.emptied = time.Time{}
	}
}

// check follows frames for many, whoever sends them: none comes to a switch twice. whole: and each comes to all stations.
func (f *floods) check(whole bool) {
	f.t.Helper()
	peers := map[fabric.At]fabric.At{}
	for i, l := range f.links {
		if !f.cut[i] {
			peers[l.A], peers[l.B] = l.B, l.A
		}
	}
	for i, from := range f.edges {
		senders := []flow.MAC{{6, 0, 0, 0, 0, 8}, {6, 0, 0, 0, 0, 9}}
		if i < len(f.in.Endpoints) {
			senders = append(senders, stationMAC(byte(i+1)))
		} else { // what comes out of a chain
			for k := range len(f.in.Endpoints) {
				senders = append(senders, stationMAC(byte(k+1)))
			}
		}
		for _, src := range senders {
			for _, kind := range []uint16{0x88b5, flow.EtherTypeARP} {
				seen, got := map[fabric.SwitchID]bool{}, map[fabric.At]bool{}
				queue := []fabric.At{from}
				for len(queue) > 0 {
					at := queue[0]
					queue = queue[1:]
					if seen[at.Switch] {
						f.t.Fatalf("a frame of %v that comes in at %v comes to %v again\n%s", src, from, at, f.text(src))
					}
					seen[at.Switch] = true
					for _, p := range f.out(at, src, kind) {
						out := fabric.At{Switch: at.Switch, Port: fabric.Port{Number: flow.Port(p)}}
						if to, linked := peers[out]; linked {
							queue = append(queue, to)
						}
						got[out] = true
					}
				}
				for k, to := range f.edges {
					if own := src == stationMAC(byte(k+1)); whole && to != from && !own && !f.hooked(k) && got[to] != f.joined(from.Switch, to.Switch, peers) {
						f.t.Fatalf("a frame of %v that comes in at %v goes out at %v: %t\n%s", src, from, to, got[to], f.text(src))
					}
				}
			}
		}
	}
}

// hooked tells whether what is flooded to a station goes into a chain.
func (f *floods) hooked(station int) bool {
	for _, p := range f.in.Policies {
		if p.Mode == api.ModeExhaustive && p.From == fmt.Sprint("e", station) {
			return true
		}
	}
	return false
}

// joined tells whether there is a way between two switches.
func (f *floods) joined(a, b fabric.SwitchID, peers map[fabric.At]fabric.At) bool {
	seen := map[fabric.SwitchID]bool{a: true}
	for more := true; more; {
		more = false
		for x, y := range peers {
			if seen[x.Switch] && !seen[y.Switch] {
				seen[y.Switch], more = true, true
			}
		}
	}
	return seen[b]
}

// out are the ports to which a switch sends a frame for many without a tag.
func (f *floods) out(at fabric.At, src flow.MAC, kind uint16) (ports []openflow.Port) {
	var best *Rule
	second := uint8(len(f.in.Switches[at.Switch].Tables) - 1)
	for _, r := range f.force[at.Switch] {
		if r.Table != second || r.Priority >= fabric.StationPriority || best != nil && best.Priority > r.Priority || !floodMatches(r.Match, openflow.Port(at.Port.Number), src, kind) {
			continue
		}
		best = r
	}
	if best == nil {
		return nil
	}
	for _, i := range best.Do {
		as, _ := i.(openflow.ApplyActions)
		for _, a := range as {
			switch a := a.(type) {
			case openflow.PushVLAN:
				return ports
			case openflow.Output:
				if a.Port < openflow.PortMax && a.Port != openflow.Port(at.Port.Number) {
					ports = append(ports, a.Port)
				}
			}
		}
	}
	return ports
}

// floodMatches tells whether an entry takes a frame for many without a tag.
func floodMatches(m openflow.Match, in openflow.Port, src flow.MAC, kind uint16) bool {
	for _, o := range m {
		var have uint64
		switch o.Field {
		case openflow.FieldInPort:
			have = uint64(in)
		case openflow.FieldEthSrc:
			for _, b := range src {
				have = have<<8 | uint64(b)
			}
		case openflow.FieldEthDst:
			have = 1<<48 - 1
		case openflow.FieldEthType:
			have = uint64(kind)
		default:
			return false
		}
		if (have^o.Uint())&o.UintMask() != 0 {
			return false
		}
	}
	return true
}

// text is what is in force.
func (f *floods) text(src flow.MAC) string {
	var b strings.Builder
	for i, l := range f.links {
		fmt.Fprintf(&b, "link %v - %v cut %t\n", l.A, l.B, f.cut[i])
	}
	for _, id := range slices.Sorted(maps.Keys(f.force)) {
		for _, k := range slices.SortedFunc(maps.Keys(f.force[id]), func(a, b Key) int { return int(b.Priority) - int(a.Priority) }) {
			r := f.force[id][k]
			if r.Priority < fabric.StationPriority {
				want := "nothing"
				if t := f.w.f.Nodes[id].Target[k]; t != nil {
					want = t.Content
				}
				fmt.Fprintf(&b, "%s %d/%d %s -> %s (%s), want %s\n", id, r.Table, r.Priority, r.Match, r.Content, r.Note, want)
			}
		}
	}
	return b.String()
}

// TestFloodsOfTwoTreesArriveOnce: links are cut and come back, policies that change how ports are flooded come and go, switches turn out
// not to tell the two trees, at once or when they have entries for both, and the router is restarted, while switches carry out what they are
// told entry by entry and answer late. At no time does a frame come to a switch twice, whoever sends it, and at last it comes to all stations.
func TestFloodsOfTwoTreesArriveOnce(t *testing.T) {
	hits := map[string]int{}
	rapid.Check(t, func(t *rapid.T) {
		f := drawFloods(t)
		if rapid.IntRange(0, 3).Draw(t, "deaf") == 0 {
			f.deaf = floodAt(rapid.IntRange(1, len(f.w.f.Nodes)).Draw(t, "deaf switch"))
		}
		f.want()
		settle := func() {
			for range 2000 {
				if !f.step() {
					f.check(true)
					return
				}
			}
			t.Fatalf("no end\n%s", f.text(flow.MAC{}))
		}
		settle()
		var late fabric.SwitchID
		if f.deaf == "" && rapid.IntRange(0, 3).Draw(t, "turns deaf") == 0 {
			late = floodAt(rapid.IntRange(1, len(f.w.f.Nodes)).Draw(t, "switch that turns deaf"))
		}
		for round := range rapid.IntRange(1, 4).Draw(t, "changes") {
			if late != "" && round == 0 {
				f.deaf = late // what it has it keeps
			}
			f.change(fmt.Sprint("change ", round))
			for range rapid.IntRange(0, 12).Draw(t, "steps") {
				f.step()
			}
			if rapid.IntRange(0, 5).Draw(t, "restart") == 0 {
				f.restart()
				f.hits["restarts"]++
			}
		}
		settle()
		for what, n := range f.hits {
			hits[what] += n
		}
	})
	for _, what := range []string{"entries for odd senders", "refusals", "refusals of changes", "restarts"} {
		if hits[what] == 0 {
			t.Errorf("no %s: the test proves nothing", what)
		}
	}
}

func stationMAC(n byte) flow.MAC { return flow.MAC{2, 0, 0, 0, 0, n} }
