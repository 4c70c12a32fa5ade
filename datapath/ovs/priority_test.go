package ovs

import (
	"net/netip"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"weir.dev/weir/flow"
)

func drawRule(t *rapid.T, cookie uint64) flow.Rule {
	r := flow.Rule{Cookie: cookie, Priority: rapid.SampledFrom([]uint16{0, 1, 2, 3, 100, 101, 0xfffe, 0xffff}).Draw(t, "priority")}
	r.Match.InPort = flow.Port(rapid.IntRange(0, 2).Draw(t, "in"))
	switch rapid.IntRange(0, 4).Draw(t, "match") {
	case 0:
		r.Match.EtherType = rapid.SampledFrom([]uint16{0x800, 0x806}).Draw(t, "type")
	case 1:
		first := rapid.Uint16Range(1, 4).Draw(t, "first")
		r.Match.Proto, r.Match.DstPorts = 6, flow.PortRange{First: first, Last: first + rapid.Uint16Range(0, 3).Draw(t, "more")}
	case 2:
		r.Match.Src = netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 0, 0, 128}), rapid.SampledFrom([]int{8, 25, 32}).Draw(t, "bits")).Masked()
	case 3:
		r.Match.VLAN = rapid.SampledFrom([]uint16{1, 2, flow.VLANNone}).Draw(t, "vlan")
	}
	return r
}

// TestPriorities: from set to set, of two rules that overlap the one that wins by the rule language has the higher priority; equal sets
// get equal priorities.
func TestPriorities(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var before map[uint64]uint16
		for range 4 {
			var rules []flow.Rule
			for c := range uint64(rapid.IntRange(0, 12).Draw(t, "rules")) {
				rules = append(rules, drawRule(t, c*7%13+1))
			}
			w := &world{ports: map[flow.Port]*port{1: {Number: 1}, 2: {Number: 2}}, rules: rules}
			got, err := w.priorities(before)
			if err != nil {
				t.Fatal(err)
			}
			for i := range rules {
				a := &rules[i]
				if p := got[a.Cookie]; p <= floor || p >= ceiling {
					t.Fatalf("priority %d", p)
				}
				for j := range rules {
					b := &rules[j]
					wins := a.Priority > b.Priority || a.Priority == b.Priority && a.Cookie < b.Cookie
					inMeet := a.Match.InPort == 0 || b.Match.InPort == 0 || a.Match.InPort == b.Match.InPort
					if i != j && wins && inMeet && overlap(&a.Match, &b.Match) && got[a.Cookie] <= got[b.Cookie] {
						t.Fatalf("%+v has %d, %+v has %d", a, got[a.Cookie], b, got[b.Cookie])
					}
				}
			}
			again, err := w.priorities(got)
			if err != nil {
				t.Fatal(err)
			}
			if d := cmp.Diff(got, again); d != "" {
				t.Fatalf("the same rules again: %s", d)
			}
			before = got
		}
	})
}
