package control

import (
	"sync/atomic"
	"testing"
	"time"

	"weir.dev/weir/openflow"
	"weir.dev/weir/openflow/fake"
	"weir.dev/weir/router/rollout"
)

// A switch that floods could not follow two trees for is asked again when it has become another one, and an event says when it can.
func TestASwitchMayLearnToTellTrees(t *testing.T) {
	t.Parallel()
	mask := []openflow.Field{openflow.FieldEthSrc}
	for name, before := range map[string]fake.Config{
		"said so": {NoMask: mask, TellFields: true},
		"refused": {NoMask: mask},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var ahead atomic.Int64
			r := newRig(t, Options{Names: map[uint64]string{1: "s1"}, Now: func() time.Time { return time.Now().Add(time.Duration(ahead.Load())) }})
			before.DatapathID, before.Ports = 1, ports(3)
			after := before
			after.NoMask = nil
			connect := func(c fake.Config) (s *fake.Switch, hangUp func()) {
				s = fake.New(c)
				return s, r.dial(s)
			}
			odd := func(s *fake.Switch) (n int) {
				for _, f := range s.Flows() {
					if rollout.TreeBitField(f.Match) >= 0 {
						n++
					}
				}
				return n
			}
			events := func(reason string, want int) {
				t.Helper()
				if n := r.events(reason, "switch s1"); n != want {
					t.Errorf("%d events %s, want %d", n, reason, want)
				}
			}
			_, hangUp := connect(before)
			r.waitEvent("OneFloodTree", "switch s1")
			r.waitEdge("s1", 3)
			for range 2 { // it is as before, also later
				hangUp()
				r.waitEvent("SwitchLost", "s1")
				ahead.Add(int64(askAgain))
				lives := r.events("SwitchConnected", "s1")
				_, hangUp = connect(before)
				eventually(t, "the switch", func() string {
					if r.events("SwitchConnected", "s1") == lives {
						return "not connected"
					}
					return ""
				})
				r.quiet(1, 0)
				events("OneFloodTree", 1)
				events("TwoFloodTrees", 0)
			}
			hangUp()
			ahead.Add(int64(askAgain))
			s, _ := connect(after)
			r.waitEvent("TwoFloodTrees", "switch s1")
			r.quiet(1, 0)
			if odd(s) == 0 {
				t.Error("no entries for odd senders")
			}
			events("OneFloodTree", 1)
			events("TwoFloodTrees", 1)
		})
	}
}

func TestWhenASwitchIsAskedAgainForTwoTrees(t *testing.T) {
	since := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	for name, tt := range map[string]struct {
		said, another bool
		after         time.Duration
		want          bool // still one
	}{
		"refused a moment ago":                   {false, false, askAgain - 1, true},
		"refused long ago":                       {false, false, askAgain, false},
		"refused a moment ago, and is another":   {false, true, 0, false},
		"said a moment ago, and says no more so": {true, false, 0, false},
	} {
		s := singleTree{is: true, said: tt.said, since: since}
		if s.again(tt.another, since.Add(tt.after)); s.is != tt.want {
			t.Errorf("%s: floods follow one tree: %v, want %v", name, s.is, tt.want)
		}
	}
}
