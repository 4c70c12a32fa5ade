package compile

import (
	"cmp"
	"fmt"
	"slices"

	"weir.dev/weir/datapath"
)

// The rules of one Place are searched mask by mask. Where their masks are many, the rules are put into lists by one field after the other:
// a prefix of the source, one of the destination, a block of ports. Under each mask of the field a frame finds at most one list, that of
// the rules with its own prefix, and only the masks of these are tried. So the number of look-ups grows with how many prefixes of a Place are nested
// in each other, not with how many combinations of lengths there are.

// flat is how many masks are tried one after the other before a field splits them.
const flat = 16

// opSearch is the operation of an entry that leads to a list (bpf/weir.h).
const opSearch = 254

// splits are the fields by which rules are split, each as the key's bits.
var splits = [...]func(m key) key{
	func(m key) key { return key{Src: m.Src} },
	func(m key) key { return key{Dst: m.Dst} },
	func(m key) key { return key{DstPort: m.DstPort} },
	func(m key) key { return key{SrcPort: m.SrcPort} },
}

// found is a list, and how many steps a search in it takes at most.
type found struct {
	list  []listCopy
	steps int
}

// tree makes the list of rules, given by their keys, from a level of splits on. Lists below it are left to be placed.
func (c *compiler) tree(leaves []key, level int) (found, error) {
	masks := c.priorities(leaves)
	for ; len(masks) > flat && level < len(splits); level++ {
		groups := grouped(leaves, func(k key) key { return splits[level](c.next.Masks[k.Mask]) })
		if len(groups) > 1 || groups[0].at != (key{}) {
			return c.split(groups, level)
		}
	}
	f := found{steps: len(masks) + 1}
	for id, priority := range masks {
		f.list = append(f.list, listCopy{Mask: id, Priority: priority})
	}
	f.sort()
	return f, nil
}

// priorities are the masks of keys, each with the highest priority.
func (c *compiler) priorities(leaves []key) map[uint16]uint32 {
	masks := map[uint16]uint32{}
	for _, k := range leaves {
		masks[k.Mask] = max(masks[k.Mask], c.next.Tuples[k].Priority)
	}
	return masks
}

func (f *found) sort() {
	slices.SortFunc(f.list, func(a, b listCopy) int {
		return cmp.Or(cmp.Compare(b.Priority, a.Priority), cmp.Compare(a.Mask, b.Mask))
	})
}

// split makes a list with one entry for each mask of a field; under it each value has a list of its own.
func (c *compiler) split(groups []group, level int) (found, error) {
	f := found{steps: 1}
	for _, g := range groups {
		masks, priority := c.priorities(g.keys), uint32(0)
		for _, p := range masks {
			priority = max(priority, p)
		}
		f.steps++
		if len(masks) == 1 {
			f.list = append(f.list, listCopy{Mask: g.keys[0].Mask, Priority: priority})
			continue
		}
		part := partOf(c.next.Masks[g.keys[0].Mask], level)
		part.Pad = uint8(level + 1) // unlike a rule's mask, and one of another level
		id, err := c.maskID(part)
		if err != nil {
			return found{}, err
		}
		f.list = append(f.list, listCopy{Mask: id, Priority: priority})
		most := 0
		for _, v := range grouped(g.keys, func(k key) key { return partOf(k, level) }) {
			below, err := c.tree(v.keys, level+1)
			if err != nil {
				return found{}, err
			}
			most = max(most, below.steps)
			v.at.Mask = id
			c.next.Tuples[v.at] = tupleCopy{Priority: below.list[0].Priority, Action: action{Op: opSearch, Target: uint16(len(below.list) + 1)}}
			c.below = append(c.below, &job{node: v.at, list: append(below.list, listCopy{})})
		}
		f.steps += most
	}
	f.sort()
	return f, nil
}

// partOf a key, or a mask, is where its rule stands and the fields up to a level.
func partOf(k key, level int) key {
	part := key{Stage: k.Stage, Port: k.Port}
	for _, field := range splits[:level+1] {
		part = or(part, field(k))
	}
	return part
}

// group of keys that have something in common.
type group struct {
	at   key
	keys []key
}

// grouped keys, in the order of their first ones.
func grouped(keys []key, by func(key) key) []group {
	var all []group
	index := map[key]int{}
	for _, k := range keys {
		at := by(k)
		i, known := index[at]
		if !known {
			i = len(all)
			index[at] = i
			all = append(all, group{at: at})
		}
		all[i].keys = append(all[i].keys, k)
	}
	return all
}

// tooMany tells that a search would take more steps than the program does.
func tooMany(steps, shapes int) error {
	return fmt.Errorf("%w: the rules at one port have %d shapes, and a search among them could take %d steps, %d are possible: use fewer prefixes within each other and fewer kinds of port ranges there",
		datapath.ErrFull, shapes, steps, maxSteps)
}
