package rollout

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
	near.Told(1, both)
	less := api.AssignmentSpec{Rules: []api.HostRule{plain}} // what had drained goes
	near.Written, near.Settled = less, false
	near.Sends(less, w.now)

	w.want(nil, map[string][]api.HostRule{"near": {plain, tagged}, "far": {after}})
	turned := func() bool {
		s := w.plan()
		if spec, written := s.Specs["near"]; written {
			near.Written = spec
			near.Sends(spec, w.now)
		}
		spec, there := s.Specs["far"]
		return there && slices.ContainsFunc(spec.Rules, func(r api.HostRule) bool { return r.Action.Push != 0 })
	}
	if turned() {
		t.Fatal("frames are led to a rule that goes")
	}
	near.Told(2, less)
	near.Told(3, both)
	if turned() {
		t.Fatal("frames are led to a rule that goes before it comes back")
	}
	near.Answered(2)
	delete(near.Acked, "2")
	if turned() {
		t.Fatal("frames are led to a rule that is gone")
	}
	near.Answered(3)
	near.Acked["2"] = tagged
	if !turned() {
		t.Fatal("all is in force, and nobody is led there")
	}
	w.install("far", w.plan().Specs["far"])
	w.all()
	if !near.Settled || !far.Settled {
		t.Errorf("settled: %v and %v", near.Settled, far.Settled)
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
		then  func(h *Peer)
		left  int
		tag   uint16 // of the rule that is in force and stays; 0: none
	}{
		{"nothing", nil, func(*Peer) {}, 0, 1},
		{"what changes a rule", []api.AssignmentSpec{b}, func(*Peer) {}, 1, 2},
		{"what changes a rule and changes it back", []api.AssignmentSpec{b, a}, func(*Peer) {}, 2, 2},
		{"what takes a rule and gives it back", []api.AssignmentSpec{none, a}, func(*Peer) {}, 2, 0},
		{"an answer for something older", []api.AssignmentSpec{b}, func(h *Peer) { h.Told(8, b); h.Answered(7) }, 1, 2},
		{"an answer for it", []api.AssignmentSpec{none, a}, func(h *Peer) { h.Told(8, none); h.Told(9, a); h.Answered(9) }, 0, 1},
		{"an answer for the first of two", []api.AssignmentSpec{a, none, a}, func(h *Peer) { h.Told(8, a); h.Told(8, a); h.Answered(8) }, 2, 0},
		{"generations that were not told", []api.AssignmentSpec{a, none, a}, func(h *Peer) { h.Told(10, a); h.Answered(10) }, 0, 1},
		{"others write as well", []api.AssignmentSpec{none, a}, func(h *Peer) { h.Told(8, b); h.Told(9, none); h.Told(10, a); h.Answered(10) }, 0, 1},
		{"what the API refuses", []api.AssignmentSpec{none}, func(h *Peer) { h.Refused() }, 0, 1},
		{"what the API never tells of", []api.AssignmentSpec{none}, func(h *Peer) { h.overdue(now.Add(sentMost)) }, 0, 1},
		{"what is being written yet", []api.AssignmentSpec{none}, func(h *Peer) { h.Writing = true; h.overdue(now.Add(sentMost)) }, 1, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			h := &Peer{Acked: map[string]api.HostRule{"1": a.Rules[0]}, Newest: 7}
			for _, s := range c.sends {
				h.Sends(s, now)
			}
			c.then(h)
			if r, there := h.Has("1"); there != (c.tag != 0) || there && r.Match.Tag != c.tag || len(h.Sent) != c.left {
				t.Errorf("the rule is there: %v, with tag %d; %d are on their way; want tag %d and %d", there, r.Match.Tag, len(h.Sent), c.tag, c.left)
			}
		})
	}
	h := &Peer{}
	for range 3 * SpecRetention {
		h.Sends(a, now)
	}
	if len(h.Sent) != SpecRetention {
		t.Errorf("%d are remembered", len(h.Sent))
	}
}
