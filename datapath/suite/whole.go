package suite

import (
	"testing"

	"weir.dev/weir/datapath"
)

// testWhole: frames that enter a function which wants them whole, by links that finish them, are as on a wire: a sender's segments are cut, and no checksum is missing.
// The function's raw sockets would lose what is left to others, and the stream would stand still.
func testWhole(t *testing.T, open Factory) {
	r := NewRig(t, open)
	alice, bob := r.Station("alice"), r.Station("bob")
	fn := r.Inline(datapath.Function{Name: "whole", Whole: true})
	for _, link := range []string{fn.F.In, fn.F.Out} {
		must(t, r.Host.Finish(link))
	}
	r.Commit(policy{mode: "exhaustive", from: alice, to: bob, chain: []hop{{fn: fn}}, cookie: 1}.rules()...)
	r.stream(alice, bob)
	for name, s := range fn.Sockets {
		s.mu.Lock()
		most := 0
		for _, f := range s.frames {
			most = max(most, len(f))
		}
		s.mu.Unlock()
		if most != 1514 {
			t.Errorf("the longest frame that came to %s has %d bytes: want 1514", name, most)
		}
	}
}
