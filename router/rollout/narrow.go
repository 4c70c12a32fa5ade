package rollout

import "time"

// floodLull is between the last switch's confirming that it floods to fewer ports and the first one's that floods to more: what was flooded
// along the old tree has arrived by then, and Open vSwitch, whose cache follows its entries a little later, does as they say.
const floodLull = 50 * time.Millisecond

// lulled reports that entries that flood may grow: the trees agree, and have for a moment.
func (f *Fleet) lulled(s *Steps, now time.Time) bool {
	if !f.treesAgree() {
		f.odds = now
		return false
	}
	if at := f.odds.Add(floodLull); now.Before(at) {
		s.by(at)
		return false
	}
	return true
}

// A switch may refuse to change an entry for odd senders that it has, when it is to go: then it cannot flood to fewer ports and go when all
// have. Instead the entry below, that is to take its frames, is reduced to what both may flood to; the other goes; then that below grows.

// refuses tells that the switch would not have an entry for odd senders flood to fewer ports, to those that t has as well.
func (n *Node) refuses(h *Held, t *Rule) bool {
	x, ok := n.Refused[h.Key]
	return ok && x.Content == h.withPorts(both(h.flooding(), t.flood)).Content
}

// narrow are, by their keys, the entries that are reduced so that one for odd senders above them can go.
func (n *Node) narrow(trees bool) map[Key]*Rule {
	var all map[Key]*Rule
	if trees || len(n.Refused) == 0 {
		return nil
	}
	for k := range n.Differs {
		h := n.Held[k]
		if n.Target[k] != nil || h == nil {
			continue
		}
		t := n.instead(h.Rule)
		if t == nil || !n.refuses(h, t) {
			continue
		}
		if below, _ := h.below(); n.Held[below] != nil {
			if all == nil {
				all = map[Key]*Rule{}
			}
			now := n.Held[below]
			all[below] = t.withPorts(both(both(now.flooding(), t.flood), h.flooding()))
		}
	}
	return all
}
