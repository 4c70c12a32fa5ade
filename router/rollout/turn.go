package rollout

import (
	"reflect"
	"slices"
	"strings"
	"time"

	"weir.dev/weir/api"
	"weir.dev/weir/router/fabric"
)

// turn is what a host is to do otherwise than before with frames that it leads on: rules that change, and those at functions' ports
// that take each other's place although their names differ. All of a host's happens in one commit.
type turn struct {
	in, out  map[string]bool // cookies: rules that come with it, or change, and those that go
	policies map[string]bool // that it is for; "" what is common to the policies of a chain
	// over are rules that come or go, each in its own time, and take over frames that another policy leads on to its own way: policies that
	// share a chain share its last function's port. Such a rule comes when what it leads to is in force, and goes before that.
	over map[string]bool
}

func (t turn) none() bool { return len(t.in)+len(t.out) == 0 }

// turns finds it for a host.
func (h *Peer) turns() turn {
	t := turn{in: map[string]bool{}, out: map[string]bool{}, policies: map[string]bool{}, over: map[string]bool{}}
	var now, then map[string][]api.HostRule // at functions' ports
	index := func(rules map[string]api.HostRule) map[string][]api.HostRule {
		at := map[string][]api.HostRule{}
		for _, r := range rules {
			if atFunction(r) {
				at[r.Match.InPort] = append(at[r.Match.InPort], r)
			}
		}
		return at
	}
	note := func(set map[string]bool, c string, r api.HostRule) {
		set[c], t.policies[r.Policy] = true, true
	}
	for c, r := range h.Target {
		have, there := h.Has(c)
		switch {
		case r.Catches(), there && SameHostRule(have, r):
		case there:
			note(t.in, c, r)
		case atFunction(r):
			if now == nil {
				now = index(h.Acked)
			}
			if others := now[r.Match.InPort]; elsewhere(r, others) {
				note(t.in, c, r)
			} else if takesOver(r, others) {
				t.over[c] = true
			}
		}
	}
	for c, r := range h.Acked {
		if _, wanted := h.Target[c]; wanted || !atFunction(r) {
			continue
		}
		if then == nil {
			then = index(h.Target)
		}
		if others := then[r.Match.InPort]; elsewhere(r, others) {
			note(t.out, c, r)
		} else if takesOver(r, others) {
			t.over[c] = true
		}
	}
	return t
}

func atFunction(r api.HostRule) bool {
	return !strings.HasPrefix(r.Stage, "egress") && strings.HasPrefix(r.Match.InPort, "function/")
}

// elsewhere tells whether a rule does otherwise than all others for the same frames at a function's port, and there are some.
func elsewhere(r api.HostRule, others []api.HostRule) bool {
	there := false
	for _, o := range others {
		if o.Policy == r.Policy || o.Policy == "" || r.Policy == "" {
			if there = true; reflect.DeepEqual(o.Action, r.Action) {
				return false
			}
		}
	}
	return there
}

// takesOver tells whether a rule at a function's port comes before one of another policy and does otherwise.
func takesOver(r api.HostRule, others []api.HostRule) bool {
	return r.Policy != "" && slices.ContainsFunc(others, func(o api.HostRule) bool {
		return o.Policy != "" && o.Policy != r.Policy && o.Priority < r.Priority && !reflect.DeepEqual(o.Action, r.Action)
	})
}

// concerns calls each policy that a host's turn is for.
func (f *Fleet) concerns(name string, t turn, call func(policy string)) {
	for p := range t.policies {
		if p != "" {
			call(p)
		}
	}
	if !t.policies[""] {
		return
	}
	for p, path := range f.Paths.All() {
		for _, id := range path.Switches {
			if id == fabric.HostID(name) && !t.policies[p] {
				call(p)
			}
		}
	}
}

// mayTurn tells whether a host may do so now: when all that it leads to is in force, or has not been for long.
func (f *Fleet) mayTurn(name string, h *Peer, t turn, s *Steps, now time.Time) bool {
	waits := false
	f.concerns(name, t, func(policy string) {
		if p := s.Progress[policy]; p != nil && !p.led() {
			waits = true
		}
	})
	switch {
	case t.none() || !waits:
		h.held = time.Time{}
		return true
	case h.held.IsZero():
		h.held = now
	}
	if at := h.held.Add(gateMost); now.Before(at) {
		s.by(at)
		return false
	}
	return true
}

// early tells entries that catch frames in the middle of a policy's way, and so go before what they lead to, the lowest hop first.
func (f *Fleet) early(h *Held) bool {
	if h.Hop == 0 || h.Hop > fabric.FirstLeg || h.Policy == "" {
		return false
	}
	if h.Hop <= fabric.Catching {
		return true
	}
	inForce := f.Paths.Of(h.Policy) != nil
	_, _, tagged := actsOn(h.Match)
	return !inForce && !tagged
}
