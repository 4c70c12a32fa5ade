package rollout

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

const SpecRetention = 64 // of an assignment's last versions, to know what an agent's answer is about

const sentMost = 2 * time.Second // the API does not tell of an assignment that is as it was: it is waited for no longer

// Has is a host's rule that is in force and stays: none if an assignment on its way lacks it; if one changes it, as it is to be then.
func (h *Peer) Has(cookie string) (api.HostRule, bool) {
	acked, there := h.Acked[cookie]
	r := acked
	for i := 0; there && i < len(h.Sent); i++ {
		var s api.HostRule
		if s, there = find(h.Sent[i].spec.Rules, cookie); there && !SameHostRule(s, acked) {
			r = s
		}
	}
	return r, there
}

// Sends notes what is written to the API.
func (h *Peer) Sends(spec api.AssignmentSpec, now time.Time) {
	h.Sent = append(h.Sent, sent{spec: spec, at: now})
	h.Sent = slices.Delete(h.Sent, 0, max(0, len(h.Sent)-SpecRetention))
}

// Told notes which assignment a generation is: the API counts them, and tells of most.
func (h *Peer) Told(generation int64, spec api.AssignmentSpec) {
	if generation <= h.Newest {
		return
	}
	open := slices.IndexFunc(h.Sent, func(s sent) bool { return s.generation == 0 })
	at := open + int(min(generation-h.Newest-1, SpecRetention))
	h.Newest = generation
	if open < 0 {
		return
	}
	if at >= len(h.Sent) || !SameSpec(h.Sent[at].spec, spec) { // others have written too
		if at = open + slices.IndexFunc(h.Sent[open:], func(s sent) bool { return SameSpec(s.spec, spec) }); at < open {
			return
		}
	}
	for i := open; i <= at; i++ {
		h.Sent[i].generation = generation
	}
}

// Answered forgets what a host has gone beyond.
func (h *Peer) Answered(generation int64) {
	h.Sent = slices.DeleteFunc(h.Sent, func(s sent) bool { return s.generation != 0 && s.generation <= generation })
}

// Refused forgets what the API did not take.
func (h *Peer) Refused() {
	if n := len(h.Sent); n > 0 && h.Sent[n-1].generation == 0 {
		h.Sent = h.Sent[:n-1]
	}
}

// overdue forgets what the API will not tell of.
func (h *Peer) overdue(now time.Time) {
	if !h.Writing {
		h.Sent = slices.DeleteFunc(h.Sent, func(s sent) bool { return s.generation == 0 && now.Sub(s.at) >= sentMost })
	}
}

// Tell notes what the switch is told: what is in force there is not known until it has answered.
func (n *Node) Tell(b Batch) {
	n.told = make(map[Key]*Rule, len(b.Add)+len(b.Remove))
	for _, r := range b.Add {
		n.told[r.Key] = r
	}
	for _, h := range b.Remove {
		n.told[h.Key] = nil
	}
	for k := range n.told {
		n.mark(k)
	}
}

// Heard notes that it has answered.
func (n *Node) Heard() {
	told := n.told
	n.told = nil
	for k := range told {
		n.mark(k)
	}
}
