package control

import (
	"slices"
	"testing"
	"time"

	"weir.dev/weir/api"
)

// A host has what is being taken from it no more, although it has not said so: what would lead to it waits until it has it again.
func TestARuleOnItsWayOutIsNotInForce(t *testing.T) {
	w := newWorld(t)
	near, far := w.host("near"), w.host("far")
	at := func(cookie, in string, tag uint16, to string, push uint16) api.HostRule {
		return api.HostRule{
			Cookie: cookie, Stage: "ingress", Policy: "p", Match: api.HostMatch{InPort: in, Tag: tag}, Action: api.HostAction{Op: "output", Port: to, Pop: tag != 0, Push: push},
		}
	}
	plain, tagged := at("1", "tunnel/far", 0, "function/b/in", 0), at("2", "tunnel/far", 3500, "function/b/in", 0)
	before, after := at("3", "function/a/out", 0, "tunnel/near", 0), at("3", "function/a/out", 0, "tunnel/near", 3500)
	w.want(nil, map[string][]api.HostRule{"near": {plain}, "far": {before}})
	w.all()
	both := api.AssignmentSpec{Rules: []api.HostRule{plain, tagged}}
	w.install("near", both)
	near.told(1, both)
	less := api.AssignmentSpec{Rules: []api.HostRule{plain}} // what had drained goes
	near.written, near.settled = less, false
	near.sends(less, w.now)

	w.want(nil, map[string][]api.HostRule{"near": {plain, tagged}, "far": {after}})
	turned := func() bool {
		s := w.plan()
		if spec, written := s.specs["near"]; written {
			near.written = spec
			near.sends(spec, w.now)
		}
		spec, there := s.specs["far"]
		return there && slices.ContainsFunc(spec.Rules, func(r api.HostRule) bool { return r.Action.Push != 0 })
	}
	if turned() {
		t.Fatal("frames are led to a rule that goes")
	}
	near.told(2, less)
	near.told(3, both)
	if turned() {
		t.Fatal("frames are led to a rule that goes before it comes back")
	}
	near.answered(2)
	delete(near.acked, "2")
	if turned() {
		t.Fatal("frames are led to a rule that is gone")
	}
	near.answered(3)
	near.acked["2"] = tagged
	if !turned() {
		t.Fatal("all is in force, and nobody is led there")
	}
	w.install("far", w.plan().specs["far"])
	w.all()
	if !near.settled || !far.settled {
		t.Errorf("settled: %v and %v", near.settled, far.settled)
	}
}

func TestAssignmentsOnTheirWay(t *testing.T) {
	now := time.Unix(1000, 0)
	rule := func(tag uint16) api.AssignmentSpec {
		return api.AssignmentSpec{Rules: []api.HostRule{{Cookie: "1", Match: api.HostMatch{Tag: tag}}}}
	}
	a, b, none := rule(1), rule(2), api.AssignmentSpec{}
	for _, c := range []struct {
		name  string
		sends []api.AssignmentSpec
		then  func(h *peer)
		left  int
		tag   uint16 // of the rule that is in force and stays; 0: none
	}{
		{"nothing", nil, func(*peer) {}, 0, 1},
		{"what changes a rule", []api.AssignmentSpec{b}, func(*peer) {}, 1, 2},
		{"what changes a rule and changes it back", []api.AssignmentSpec{b, a}, func(*peer) {}, 2, 2},
		{"what takes a rule and gives it back", []api.AssignmentSpec{none, a}, func(*peer) {}, 2, 0},
		{"an answer for something older", []api.AssignmentSpec{b}, func(h *peer) { h.told(8, b); h.answered(7) }, 1, 2},
		{"an answer for it", []api.AssignmentSpec{none, a}, func(h *peer) { h.told(8, none); h.told(9, a); h.answered(9) }, 0, 1},
		{"an answer for the first of two", []api.AssignmentSpec{a, none, a}, func(h *peer) { h.told(8, a); h.told(8, a); h.answered(8) }, 2, 0},
		{"generations that were not told", []api.AssignmentSpec{a, none, a}, func(h *peer) { h.told(10, a); h.answered(10) }, 0, 1},
		{"others write as well", []api.AssignmentSpec{none, a}, func(h *peer) { h.told(8, b); h.told(9, none); h.told(10, a); h.answered(10) }, 0, 1},
		{"what the API refuses", []api.AssignmentSpec{none}, func(h *peer) { h.refused() }, 0, 1},
		{"what the API never tells of", []api.AssignmentSpec{none}, func(h *peer) { h.overdue(now.Add(sentMost)) }, 0, 1},
		{"what is being written yet", []api.AssignmentSpec{none}, func(h *peer) { h.writing = true; h.overdue(now.Add(sentMost)) }, 1, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			h := &peer{acked: map[string]api.HostRule{"1": a.Rules[0]}, newest: 7}
			for _, s := range c.sends {
				h.sends(s, now)
			}
			c.then(h)
			if r, there := h.has("1"); there != (c.tag != 0) || there && r.Match.Tag != c.tag || len(h.sent) != c.left {
				t.Errorf("the rule is there: %v, with tag %d; %d are on their way; want tag %d and %d", there, r.Match.Tag, len(h.sent), c.tag, c.left)
			}
		})
	}
	h := &peer{}
	for range 3 * specRetention {
		h.sends(a, now)
	}
	if len(h.sent) != specRetention {
		t.Errorf("%d are remembered", len(h.sent))
	}
}
