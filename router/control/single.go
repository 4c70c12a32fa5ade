package control

import (
	"fmt"
	"time"

	"weir.dev/weir/api"
	"weir.dev/weir/router/rollout"
)

// singleTree is whether a switch can tell by which of two trees frames are flooded.
type singleTree struct {
	is    bool      // it cannot; see fabric.Switch
	said  bool      // its table features say so; else it has refused an entry
	since time.Time // when that was found out last
	told  bool      // an event has told, and none that it can
}

// askAgain is how long a switch that has refused an entry for tree bit 1 is not given one again: each time the trees of its network change twice.
const askAgain = time.Minute

// again gives a switch that connects, and does not say that it cannot, another chance: what it is may have changed meanwhile.
func (s *singleTree) again(another bool, now time.Time) {
	if s.is && (s.said || another || now.Sub(s.since) >= askAgain) {
		s.is = false
	}
}

// oneTree: the switch cannot tell.
func (l *loop) oneTree(d *device, said bool) {
	if d.single.is {
		return
	}
	told := d.single.told
	d.single = singleTree{is: true, said: said, since: l.o.Now(), told: true}
	if !told {
		l.event(api.Info, "OneFloodTree", api.KindSwitch, d.Name, fmt.Sprintf("switch %s does not match a bit of a sender's MAC: floods of its network follow one tree, not two", d.Name), 0)
	}
	l.dirty()
}

// twoTrees: the switch has taken an entry. If it could not tell before, it can now.
func (l *loop) twoTrees(d *device, r *rollout.Rule) {
	if !d.single.told || rollout.TreeBitField(r.Match) < 0 {
		return
	}
	d.single.told = false
	l.event(api.Info, "TwoFloodTrees", api.KindSwitch, d.Name, fmt.Sprintf("switch %s matches a bit of a sender's MAC now: floods of its network may follow two trees", d.Name), 0)
}
