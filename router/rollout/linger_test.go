package rollout

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"weir.dev/weir/api"
	"weir.dev/weir/flow"
	"weir.dev/weir/router/fabric"
)

func tagEntry(policy string, cookie uint64, in flow.Port, tag uint16) fabric.Entry {
	return fabric.Entry{Cookie: cookie, Priority: 63000, Match: flow.Match{InPort: in, Tag: tag}, Outs: []fabric.Out{{Port: 3}}, Policy: policy, Hop: 1}
}

func TestTagsLingerUntilTheirRulesAreGone(t *testing.T) {
	w := newWorld(t, "s1", "s2")
	h := w.host("h")
	rule := api.HostRule{Cookie: "00000000000000aa", Stage: "ingress", Match: api.HostMatch{InPort: "uplink/eth0", Tag: 3585}, Policy: "p"}
	w.want(map[fabric.SwitchID][]fabric.Entry{"s1": {hopEntry("p", 0, 2, 1)}, "s2": {tagEntry("p", 7, 1, 3585)}}, map[string][]api.HostRule{"h": {rule}})
	w.all()
	if left := w.f.Lingering(); len(left) > 0 {
		t.Fatalf("what is wanted lingers: %v", left)
	}
	w.want(nil, nil)
	want := []fabric.Lingering{
		{At: fabric.At{Switch: "s2", Port: fabric.Port{Number: 1}}, Tag: 3585, Cookie: 7},
		{At: fabric.At{Switch: "host:h", Port: fabric.Port{Name: "uplink/eth0"}}, Tag: 3585, Cookie: 0xaa},
	}
	if d := cmp.Diff(want, w.f.Lingering()); d != "" {
		t.Error(d)
	}
	h.Settled = false
	w.all()
	if left := w.f.Lingering(); len(left) > 0 {
		t.Errorf("what is gone lingers: %v", left)
	}
}

// Frames set out for a policy's way as long as something catches them: until then nothing drains.
func TestDrainingBeginsWhenNothingIsCaughtAnyMore(t *testing.T) {
	w := newWorld(t, "s1", "s2")
	w.want(map[fabric.SwitchID][]fabric.Entry{"s1": {hopEntry("p", 0, 2, 1)}, "s2": {hopEntry("p", 40, 1, 3)}}, nil)
	w.all()
	w.want(nil, nil)
	for range 3 { // s1 is slow
		s := w.plan()
		if len(s.Batches["s1"].Remove) != 1 || len(s.Batches["s2"].Remove) != 0 {
			t.Fatalf("%+v", s.Batches)
		}
		w.now = w.now.Add(2 * testDrain)
	}
	if d := cmp.Diff([]string{"s1 remove p hop 0: in_port=2", "wait 500ms", "s2 remove p hop 40: in_port=1"}, w.all()); d != "" {
		t.Error(d)
	}
}
