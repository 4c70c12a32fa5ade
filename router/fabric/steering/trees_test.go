package steering

import (
	"maps"
	"slices"
	"testing"

	"weir.dev/weir/flow"
	"weir.dev/weir/router/fabric"
	"weir.dev/weir/router/fabric/graph"
)

// wires are switches 1 to n, each with an edge port 100 but those without, joined by links.
func wires(n int, without []int, links ...[2]int) fabric.Input {
	in := fabric.Input{Topology: fabric.Topology{Switches: map[fabric.SwitchID]fabric.Switch{}}}
	used := map[int]flow.Port{}
	for i := 1; i <= n; i++ {
		s := fabric.Switch{Tables: make([]uint32, 2)}
		if !slices.Contains(without, i) {
			s.Ports = numbers(100)
		}
		in.Switches[of(i)] = s
	}
	port := func(i int) fabric.At {
		used[i]++
		s := in.Switches[of(i)]
		s.Ports = append(s.Ports, fabric.Port{Number: used[i]})
		in.Switches[of(i)] = s
		return at(of(i), used[i])
	}
	for _, l := range links {
		in.Links = append(in.Links, fabric.Link{A: port(l[0]), B: port(l[1])})
	}
	return in
}

// spines are as many, the first switches, each joined to each leaf.
func spines(n, leaves int) fabric.Input {
	var links [][2]int
	var without []int
	for s := 1; s <= n; s++ {
		without = append(without, s)
		for l := 1; l <= leaves; l++ {
			links = append(links, [2]int{s, n + l})
		}
	}
	return wires(n+leaves, without, links...)
}

// carried are the links that floods go along, by tree: those of all switches that somebody sends to.
func carried(g *graph.Graph) (by [2]map[int]bool) {
	for t := range by {
		by[t] = map[int]bool{}
		for a, used := range g.Trees[t].Links(g) {
			if used {
				by[t][a&^1] = true
			}
		}
	}
	return by
}

func floodEntries(in fabric.Input) map[fabric.SwitchID]int {
	n := map[fabric.SwitchID]int{}
	for id, all := range Compile(in).Entries {
		for _, e := range all {
			if e.Table == 1 && e.Priority < fabric.StationPriority {
				n[id]++
			}
		}
	}
	return n
}

func TestTreesOfALeafSpineHaveASpineEach(t *testing.T) {
	for _, n := range []int{2, 3, 4} {
		in := spines(n, 6)
		g := graph.New(in.Topology)
		by := carried(g)
		for a := range by[0] {
			if by[1][a] {
				t.Errorf("%d spines: both trees go from %s to %s", n, g.Arcs[a].A, g.Arcs[a].B)
			}
		}
		if len(by[0]) != 6 || len(by[1]) != 6 {
			t.Errorf("%d spines: floods go along %d and %d links, want 6", n, len(by[0]), len(by[1]))
		}
	}
}

// A second tree costs an entry at each switch, however many ports that has.
func TestTwoTreesCostAnEntry(t *testing.T) {
	for name, c := range map[string]struct {
		in   fabric.Input
		more int
	}{
		"leaf-spine": {spines(2, 6), 8},
		"line":       {wires(4, nil, [2]int{1, 2}, [2]int{2, 3}, [2]int{3, 4}), 4},
		"ring":       {wires(4, nil, [2]int{1, 2}, [2]int{2, 3}, [2]int{3, 4}, [2]int{4, 1}), 4},
	} {
		two := floodEntries(c.in)
		one := c.in
		one.Switches = maps.Clone(c.in.Switches)
		s := one.Switches[of(2)]
		s.OneTree = true
		one.Switches[of(2)] = s
		more := 0
		for id, n := range floodEntries(one) {
			if more += two[id] - n; two[id] > n+1 {
				t.Errorf("%s: %s has %d entries for floods, want %d or one more", name, id, two[id], n)
			}
		}
		if more != c.more {
			t.Errorf("%s: two trees cost %d entries more than one, want %d", name, more, c.more)
		}
	}
}

// A lost link moves neither root, and nothing of the tree that did not go along it.
func TestALostLinkLeavesTheOtherTree(t *testing.T) {
	in := spines(4, 6)
	before := graph.New(in.Topology)
	for i, l := range in.Links {
		less := in
		less.Links = slices.Delete(slices.Clone(in.Links), i, i+1)
		less.Switches = maps.Clone(in.Switches)
		for _, end := range []fabric.At{l.A, l.B} {
			s := less.Switches[end.Switch]
			s.Ports = slices.DeleteFunc(slices.Clone(s.Ports), func(p fabric.Port) bool { return p == end.Port })
			less.Switches[end.Switch] = s
		}
		after := graph.New(less.Topology)
		spine := int(before.Index[l.A.Switch])
		for tree := range 2 {
			if before.Trees[tree].Up[spine] >= 0 {
				continue
			}
			if after.Trees[tree].Up[spine] >= 0 {
				t.Errorf("tree %d has another root without the link of %v", tree, l)
			}
			other := 1 - tree
			for v, ports := range before.Trees[other].Ports {
				if before.Tells[v] && !before.Switch[v].Host && len(before.Edges[v]) > 0 && !slices.Equal(ports, after.Trees[other].Ports[v]) {
					t.Errorf("without the link %v of tree %d, tree %d has the ports %v at %s, before %v", l, tree, other, after.Trees[other].Ports[v], before.Name(v), ports)
				}
			}
		}
	}
}
