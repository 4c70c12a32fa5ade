package rollout

import (
	"testing"
	"time"

	"weir.dev/weir/openflow"
	"weir.dev/weir/router/fabric"
)

// Floods grow only a moment after the last switch has shrunk: frames are under way yet. Where nothing had to shrink nobody waits.
func TestFloodsGrowAMomentAfterTheyHaveShrunk(t *testing.T) {
	k, now := Key{Table: 1}, time.Now()
	n := NewNode()
	n.Reachable = true
	f := &Fleet{Nodes: map[fabric.SwitchID]*Node{"s1": n}}
	lulled := func() (bool, time.Time) {
		s := Steps{}
		ok := f.lulled(&s, now)
		return ok, s.Again
	}
	if ok, _ := lulled(); !ok {
		t.Error("nothing has shrunk, and yet it waits")
	}
	n.Target[k] = &Rule{Key: k, Content: "1", flood: []openflow.Port{1}}
	n.Held[k] = &Held{Rule: &Rule{Key: k, Content: "1,2", flood: []openflow.Port{1, 2}}, Known: true}
	n.mark(k)
	if ok, again := lulled(); ok || !again.IsZero() {
		t.Errorf("it grows while a switch floods to a port too many, or looks again at %v without an answer", again)
	}
	end := now.Add(floodLull)
	n.Confirm(n.Target[k], 1)
	now = end.Add(-time.Millisecond)
	if ok, again := lulled(); ok || !again.Equal(end) {
		t.Errorf("it grows at once, or looks again at %v, want %v", again, end)
	}
	now = end
	if ok, _ := lulled(); !ok {
		t.Error("it does not grow any more")
	}
}
