package rollout

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"weir.dev/weir/api"
	"weir.dev/weir/router/fabric"
)

// What catches frames in the middle of their way goes before what it leads to: at once, one hop after the other, when the policy is gone;
// else each hop when what was in flight has drained.
func TestWhatCatchesGoesFirst(t *testing.T) {
	first := map[fabric.SwitchID][]fabric.Entry{"s1": {hopEntry("p", 0, 2, 1)}, "s2": {hopEntry("p", 18, 1, 3)}, "s3": {hopEntry("p", 19, 1, 3)}, "s4": {hopEntry("p", 40, 1, 3)}}
	w := newWorld(t, "s1", "s2", "s3", "s4")
	w.want(first, nil)
	w.all()
	w.want(nil, nil)
	if d := cmp.Diff([]string{
		"s1 remove p hop 0: in_port=2", "s2 remove p hop 18: in_port=1", "s3 remove p hop 19: in_port=1", "wait 500ms", "s4 remove p hop 40: in_port=1",
	}, w.all()); d != "" {
		t.Error(d)
	}
	w.want(map[fabric.SwitchID][]fabric.Entry{"s1": {hopEntry("p", 0, 2, 1)}, "s2": {hopEntry("p", 2, 1, 3)}, "s3": {hopEntry("p", 3, 1, 3)}}, nil)
	w.all()
	w.want(map[fabric.SwitchID][]fabric.Entry{"s1": {hopEntry("p", 0, 2, 5)}}, nil)
	if d := cmp.Diff([]string{
		"s1 add p hop 0: in_port=2 -> output:5", "wait 500ms", "s2 remove p hop 2: in_port=1", "wait 500ms", "s3 remove p hop 3: in_port=1",
	}, w.all()); d != "" {
		t.Error(d)
	}
}

// Rules of other names that take each other's place at a function's port do so in one commit, when all behind them is in force.
func TestRulesAtAFunctionTakeEachOthersPlace(t *testing.T) {
	w := newWorld(t, "s1")
	h := w.host("h")
	w.want(nil, map[string][]api.HostRule{"h": {leads("1", "a", "uplink/eth1")}})
	w.all()
	inner := api.HostRule{Cookie: "2", Stage: "ingress", Match: api.HostMatch{InPort: "function/a/out"}, Action: api.HostAction{Op: "output", Port: "function/b/in"}}
	w.want(map[fabric.SwitchID][]fabric.Entry{"s1": {hopEntry("p", 40, 1, 3)}}, map[string][]api.HostRule{"h": {inner, leads("3", "b", "uplink/eth1")}})
	s := w.plan()
	if rules := s.Specs["h"].Rules; len(rules) != 2 || rules[0].Cookie != "1" || rules[1].Cookie != "3" {
		t.Fatalf("first what b does, got %v", rules)
	}
	w.install("h", s.Specs["h"])
	if s = w.plan(); len(s.Specs) > 0 || len(s.Batches["s1"].Add) != 1 {
		t.Fatalf("then the switch, got %+v", s)
	}
	w.do("s1", s.Batches["s1"])
	s = w.plan()
	if rules := s.Specs["h"].Rules; len(rules) != 2 || rules[0].Cookie != "2" || rules[1].Cookie != "3" {
		t.Fatalf("then a's rules at once, got %v", rules)
	}
	w.all()
	if len(h.Acked) != 2 {
		t.Errorf("the host has %v", h.Acked)
	}
}

// A rule that takes over frames which another policy leads out of the same chain comes when what it leads to is in force, and goes before that.
func TestFramesAreTakenOverWhenTheNewWayIsThere(t *testing.T) {
	w := newWorld(t, "s1", "s2")
	w.host("h")
	way := func(policy, cookie string, priority uint16, tag uint16) api.HostRule {
		r := leads(cookie, "a", "uplink/eth1")
		r.Policy, r.Priority, r.Action.Push = policy, priority, tag
		return r
	}
	p := hopEntry("p", 40, 1, 3)
	first := map[fabric.SwitchID][]fabric.Entry{"s2": {p}}
	w.want(first, map[string][]api.HostRule{"h": {way("p", "1", 10, 5)}})
	w.all()
	both := map[fabric.SwitchID][]fabric.Entry{"s1": {hopEntry("q", 0, 2, 1)}, "s2": {p, hopEntry("q", 40, 2, 3)}}
	w.want(both, map[string][]api.HostRule{"h": {way("p", "1", 10, 5), way("q", "2", 20, 6), way("r", "3", 5, 7)}})
	if d := cmp.Diff([]string{
		"s2 add q hop 40: in_port=2 -> output:3", "h: 2 rules", "h: 3 rules", "s1 add q hop 0: in_port=2 -> output:1",
	}, w.all()); d != "" {
		t.Error(d)
	}
	w.want(first, map[string][]api.HostRule{"h": {way("p", "1", 10, 5)}})
	if d := cmp.Diff([]string{
		"s1 remove q hop 0: in_port=2", "wait 500ms", "h: 1 rules", "wait 500ms", "s2 remove q hop 40: in_port=2",
	}, w.all()); d != "" {
		t.Error(d)
	}
}
