package suite

import (
	"bytes"
	"fmt"
	"testing"

	"weir.dev/weir/datapath"
	"weir.dev/weir/flow"
)

// testTooLarge: of frames that are larger than a port's MTU each arrives, or is counted in what that port has dropped.
func testTooLarge(t *testing.T, open Factory) {
	r := NewRig(t, open)
	if !r.can(TooLarge) {
		return
	}
	alice, bob, carol := r.Station("alice"), r.Station("bob"), r.Station("carol")
	fn, whole, mon := r.Inline(datapath.Function{Name: "f"}), r.Inline(datapath.Function{Name: "whole", Whole: true}), r.Tap("mon")
	for _, st := range []*Station{alice, bob} {
		for _, err := range []error{r.Host.SetMTU(st.E.Link, 9000), st.NS.SetMTU("eth0", 9000)} {
			must(t, err)
		}
	}
	// Ports of every kind. No switch forwards all of these frames everywhere; where one does not, it counts them.
	dropped := func(port string) uint64 { return r.port(port).Dropped.Packets }
	const frames = 20
	for i, x := range []struct {
		port   string
		at     *Socket
		action flow.Action
	}{
		{"function/mon/tap", mon.Sockets["tap"], flow.Action{Clones: flow.Clones(mon.Ports.Tap), Op: flow.Output, Port: bob.Port}},
		{"function/f/in", fn.Sockets["in"], flow.Action{Op: flow.Output, Port: fn.Ports.In}},
		{"function/whole/in", whole.Sockets["in"], flow.Action{Op: flow.Output, Port: whole.Ports.In}},
		{"endpoint/carol", carol.Socket, flow.Action{Op: flow.Output, Port: carol.Port}},
		{"endpoint/bob", bob.Socket, flow.Action{Op: flow.Output, Port: bob.Port}},
	} {
		kind := 0x2345 + uint16(i)
		r.Commit(flow.Rule{Cookie: uint64(i + 1), Match: flow.Match{InPort: alice.Port, EtherType: kind}, Action: x.action})
		before := dropped(x.port)
		mark := fmt.Appendf(nil, "<large %d>", i)
		for range frames {
			alice.Send(t, l2(bob.MAC, alice.MAC, nil, kind, append(bytes.Clone(mark), make([]byte, 3000)...)))
		}
		Until(t, "large frames for "+x.port+" arrive or are counted", func() bool {
			return uint64(len(x.at.Frames(mark)))+dropped(x.port)-before == frames
		})
		t.Logf("%s: %d arrived, %d counted", x.port, len(x.at.Frames(mark)), dropped(x.port)-before)
		if i == 0 || x.port == "endpoint/bob" {
			arrives := len(bob.Socket.Frames(mark))
			Until(t, "large frames arrive where the MTU allows", func() bool { arrives = len(bob.Socket.Frames(mark)); return arrives == frames })
		}
	}
}
