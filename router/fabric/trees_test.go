package fabric

import (
	"maps"
	"slices"
	"testing"

	"weir.dev/weir/flow"
)

// wires are switches 1 to n, each with an edge port 100 but those without, joined by links.
func wires(n int, without []int, links ...[2]int) Input {
	in := Input{Topology: Topology{Switches: map[SwitchID]Switch{}}}
	used := map[int]flow.Port{}
	for i := 1; i <= n; i++ {
		s := Switch{Tables: make([]uint32, 2)}
		if !slices.Contains(without, i) {
			s.Ports = numbers(100)
		}
		in.Switches[of(i)] = s
	}
	port := func(i int) At {
		used[i]++
		s := in.Switches[of(i)]
		s.Ports = append(s.Ports, Port{Number: used[i]})
		in.Switches[of(i)] = s
		return at(of(i), used[i])
	}
	for _, l := range links {
		in.Links = append(in.Links, Link{A: port(l[0]), B: port(l[1])})
	}
	return in
}

// spines are as many, the first switches, each joined to each leaf.
func spines(n, leaves int) Input {
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
func carried(g *graph) (by [2]map[int]bool) {
	for t := range by {
		by[t] = map[int]bool{}
		for a, used := range g.trees[t].links(g) {
			if used {
				by[t][a&^1] = true
			}
		}
	}
	return by
}

func floodEntries(in Input) map[SwitchID]int {
	n := map[SwitchID]int{}
	for id, all := range Compile(in).Entries {
		for _, e := range all {
			if e.Table == 1 && e.Priority < StationPriority {
				n[id]++
			}
		}
	}
	return n
}

func TestTreesOfALeafSpineHaveASpineEach(t *testing.T) {
	for _, n := range []int{2, 3, 4} {
		in := spines(n, 6)
		g := newGraph(in.Topology)
		by := carried(g)
		for a := range by[0] {
			if by[1][a] {
				t.Errorf("%d spines: both trees go from %s to %s", n, g.arcs[a].a, g.arcs[a].b)
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
		in   Input
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
	before := newGraph(in.Topology)
	for i, l := range in.Links {
		less := in
		less.Links = slices.Delete(slices.Clone(in.Links), i, i+1)
		less.Switches = maps.Clone(in.Switches)
		for _, end := range []At{l.A, l.B} {
			s := less.Switches[end.Switch]
			s.Ports = slices.DeleteFunc(slices.Clone(s.Ports), func(p Port) bool { return p == end.Port })
			less.Switches[end.Switch] = s
		}
		after := newGraph(less.Topology)
		spine := int(before.index[l.A.Switch])
		for tree := range 2 {
			if before.trees[tree].up[spine] >= 0 {
				continue
			}
			if after.trees[tree].up[spine] >= 0 {
				t.Errorf("tree %d has another root without the link of %v", tree, l)
			}
			other := 1 - tree
			for v, ports := range before.trees[other].ports {
				if before.tells[v] && !before.sw[v].Host && len(before.edges[v]) > 0 && !slices.Equal(ports, after.trees[other].ports[v]) {
					t.Errorf("without the link %v of tree %d, tree %d has the ports %v at %s, before %v", l, tree, other, after.trees[other].ports[v], before.name(v), ports)
				}
			}
		}
	}
}
