package ebpf

import (
	"encoding/binary"
	"testing"

	"weir.dev/weir/datapath"
	"weir.dev/weir/datapath/suite"
	"weir.dev/weir/flow"
)

// A chain that ends at several endpoints takes frames to where it has met their sender. Many stations may push one's exit out of that table while
// its flow, which does not learn again, is still known: frames without an exit bring it back.
func TestForgottenExitIsLearnedAgain(t *testing.T) {
	h := newHost(t, Options{Hook: HookClsact, Flows: 16384}) // and 8192 exits
	fn := h.Inline(datapath.Function{Name: "f"})
	carol := h.Station("carol")
	n := 0
	h.Commit(flow.Rule{Cookie: 1, Match: flow.Match{EtherType: taken}, Action: flow.Action{Op: flow.Output, Port: fn.Ports.In}, Learn: true},
		flow.Rule{Cookie: 2, Match: flow.Match{InPort: fn.Ports.Out}, Action: flow.Action{Op: flow.Resume}})

	// While the function is down nobody looks at exits, which would keep them; alice's flow is kept by alice.
	state := func(s datapath.State) {
		t.Helper()
		if err := h.Switch.SetState(suite.Context(t), "f", s, 0); err != nil {
			t.Fatal(err)
		}
	}
	state(datapath.Down)
	for i := range 14000 {
		mac := flow.MAC{2, 0x99}
		binary.BigEndian.PutUint32(mac[2:], uint32(i))
		say(t, &n, carol, mac, broadcast, taken)
		say(t, &n, h.alice, h.alice.MAC, broadcast, taken)
	}
	arrives(t, h.bob, say(t, &n, carol, carol.MAC, broadcast, untaken)) // behind all of them
	state(datapath.Up)
	got := false
	for range 20 {
		m := say(t, &n, h.alice, h.alice.MAC, broadcast, taken)
		suite.Until(t, "the frame in the function", func() bool { return len(fn.Sockets["in"].Frames(m)) == 1 })
		arrives(t, h.bob, say(t, &n, h.alice, h.alice.MAC, broadcast, untaken))
		got = got || len(h.bob.Frames(m)) > 0
	}
	if !got {
		t.Error("none of 20 frames got out of the chain")
	}
}
