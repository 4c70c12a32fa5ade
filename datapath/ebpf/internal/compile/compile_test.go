package compile

import (
	"errors"
	"net/netip"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"weir.dev/weir/datapath"
	"weir.dev/weir/flow"
)

var places = map[flow.Port]Place{1: {Slot: 1, Kind: PortEndpoint}, 2: {Slot: 2, Kind: PortEndpoint}, 3: {Slot: 3, Kind: PortFunction}}

func drawPrefix(t *rapid.T) netip.Prefix {
	a := netip.AddrFrom4([4]byte{10, rapid.Byte().Draw(t, "a"), rapid.Byte().Draw(t, "b"), 1})
	return netip.PrefixFrom(a, rapid.IntRange(1, 32).Draw(t, "bits")).Masked()
}

// drawRules for one place, of many shapes, so that lists are split.
func drawRules(t *rapid.T, stage flow.Stage, port flow.Port, cookie uint64) (rules []flow.Rule) {
	for range rapid.IntRange(1, 40).Draw(t, "rules") {
		cookie++
		r := flow.Rule{Cookie: cookie, Priority: rapid.Uint16Range(0, 3).Draw(t, "priority"), Stage: stage, Action: flow.Action{Op: flow.Output, Port: 3}}
		if stage == flow.Egress {
			r.Match.OutPort = port
		} else {
			r.Match.InPort = port
		}
		if rapid.Bool().Draw(t, "source") {
			r.Match.Src = drawPrefix(t)
		}
		if rapid.Bool().Draw(t, "destination") {
			r.Match.Dst = drawPrefix(t)
		}
		if rapid.Bool().Draw(t, "service") {
			r.Match.Proto, r.Match.DstPorts = flow.ProtoTCP, flow.PortRange{First: 80, Last: rapid.Uint16Range(80, 90).Draw(t, "last")}
		}
		rules = append(rules, r)
	}
	return rules
}

// From set to set, in which places have rules or none: the rules in force compiled again change nothing, lists do not lie over each other and end where
// they say, and those of places whose rules stay stay where they are.
func TestFromSetToSet(t *testing.T) {
	limit := Limits{Keys: 2048, Masks: 1024}
	rapid.Check(t, func(t *rapid.T) {
		var groups [4][]flow.Rule // by stage and port
		slots := map[uint64]uint32{}
		for i := range groups {
			groups[i] = drawRules(t, flow.Stage(i%2), flow.Port(1+i/2), uint64(100*i))
			for _, r := range groups[i] {
				slots[r.Cookie] = uint32(len(slots) + 1)
			}
		}
		img, had := NewImage(), [len(groups)]bool{}
		for range 5 {
			var rules []flow.Rule
			var has [len(groups)]bool
			for i := range groups {
				if has[i] = rapid.Bool().Draw(t, "has"); has[i] {
					rules = append(rules, groups[i]...)
				}
			}
			next, err := Rules(limit, rules, slots, places, img)
			if err != nil {
				t.Fatal(err)
			}
			img.Diff(next)
			again, err := Rules(limit, rules, slots, places, next)
			if err != nil {
				t.Fatal(err)
			}
			if d := next.Diff(again); !d.None() {
				t.Fatalf("equal rules change %+v", d)
			}
			checkLists(t, next, limit)
			for i := range groups {
				was, is := img.Stages[uint16(1+i/2)].Stage[i%2], next.Stages[uint16(1+i/2)].Stage[i%2]
				if had[i] && has[i] && was.First != is.First {
					t.Fatalf("the list of place %d was at %d and is at %d, with the same rules", i, was.First, is.First)
				}
			}
			img, had = next, has
		}
	})
}

func checkLists(t *rapid.T, img *Image, limit Limits) {
	var all []span
	for first, count := range img.Spans() {
		s := span{int(first), int(first) + int(count)}
		if s.end > limit.Lists() || img.Lists[first+uint32(count)-1] != (listCopy{}) {
			t.Fatalf("a list from %d to %d: its last entry is %+v", s.first, s.end, img.Lists[first+uint32(count)-1])
		}
		all = append(all, s)
	}
	slices.SortFunc(all, func(a, b span) int { return a.first - b.first })
	all = slices.Compact(all) // equal lists share a place
	for i := range max(0, len(all)-1) {
		if all[i+1].first < all[i].end {
			t.Fatalf("lists overlap: %v and %v", all[i], all[i+1])
		}
	}
}

// What does not fit says which table is full.
func TestLimits(t *testing.T) {
	rules, slots := []flow.Rule{}, map[uint64]uint32{}
	for i := range 20 {
		m := flow.Match{OutPort: 2, Src: netip.PrefixFrom(netip.AddrFrom4([4]byte{10}), 8+i)}
		rules = append(rules, flow.Rule{Cookie: uint64(i + 1), Stage: flow.Egress, Match: m})
		slots[uint64(i+1)] = uint32(i + 1)
	}
	for _, l := range []Limits{{Keys: 16, Masks: 64}, {Keys: 64, Masks: 16}} {
		if _, err := Rules(l, rules, slots, places, NewImage()); !errors.Is(err, datapath.ErrFull) {
			t.Errorf("%+v: %v, want ErrFull", l, err)
		}
	}
	if _, err := Rules(Limits{Keys: 64, Masks: 64}, rules, slots, places, NewImage()); err != nil {
		t.Error(err)
	}
}
