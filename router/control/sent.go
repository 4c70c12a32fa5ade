package control

import (
	"slices"
	"time"

	"weir.dev/weir/api"
)

// sent is an assignment on its way to a host: until the host answers for it or a later one, its rules may be in force instead of those
// that the host has last told of.
type sent struct {
	spec       api.AssignmentSpec
	generation int64 // 0: the API has not told of it yet
	at         time.Time
}

const specRetention = 64 // of an assignment's last versions, to know what an agent's answer is about

const sentMost = 2 * time.Second // the API does not tell of an assignment that is as it was: it is waited for no longer

// has is a host's rule that is in force and stays: none if an assignment on its way lacks it; if one changes it, as it is to be then.
func (h *peer) has(cookie string) (api.HostRule, bool) {
	acked, there := h.acked[cookie]
	r := acked
	for i := 0; there && i < len(h.sent); i++ {
		var s api.HostRule
		if s, there = find(h.sent[i].spec.Rules, cookie); there && !sameHostRule(s, acked) {
			r = s
		}
	}
	return r, there
}

// sends notes what is written to the API.
func (h *peer) sends(spec api.AssignmentSpec, now time.Time) {
	h.sent = append(h.sent, sent{spec: spec, at: now})
	h.sent = slices.Delete(h.sent, 0, max(0, len(h.sent)-specRetention))
}

// told notes which assignment a generation is: the API counts them, and tells of most.
func (h *peer) told(generation int64, spec api.AssignmentSpec) {
	if generation <= h.newest {
		return
	}
	open := slices.IndexFunc(h.sent, func(s sent) bool { return s.generation == 0 })
	at := open + int(min(generation-h.newest-1, specRetention))
	h.newest = generation
	if open < 0 {
		return
	}
	if at >= len(h.sent) || !sameSpec(h.sent[at].spec, spec) { // others have written too
		if at = open + slices.IndexFunc(h.sent[open:], func(s sent) bool { return sameSpec(s.spec, spec) }); at < open {
			return
		}
	}
	for i := open; i <= at; i++ {
		h.sent[i].generation = generation
	}
}

// answered forgets what a host has gone beyond.
func (h *peer) answered(generation int64) {
	h.sent = slices.DeleteFunc(h.sent, func(s sent) bool { return s.generation != 0 && s.generation <= generation })
}

// refused forgets what the API did not take.
func (h *peer) refused() {
	if n := len(h.sent); n > 0 && h.sent[n-1].generation == 0 {
		h.sent = h.sent[:n-1]
	}
}

// overdue forgets what the API will not tell of.
func (h *peer) overdue(now time.Time) {
	if !h.writing {
		h.sent = slices.DeleteFunc(h.sent, func(s sent) bool { return s.generation == 0 && now.Sub(s.at) >= sentMost })
	}
}

// tell notes what the switch is told: what is in force there is not known until it has answered.
func (n *node) tell(b batch) {
	n.told = make(map[key]*rule, len(b.add)+len(b.remove))
	for _, r := range b.add {
		n.told[r.key] = r
	}
	for _, h := range b.remove {
		n.told[h.key] = nil
	}
	for k := range n.told {
		n.mark(k)
	}
}

// heard notes that it has answered.
func (n *node) heard() {
	told := n.told
	n.told = nil
	for k := range told {
		n.mark(k)
	}
}
