package ebpf

import (
	"encoding/binary"
	"testing"

	"weir.dev/weir/datapath/suite"
	"weir.dev/weir/flow"
)

// A station without port security sends from more MACs than the bridge may learn: it learns no more, and all others are reached as before.
func TestAFloodOfAddressesFillsNoTable(t *testing.T) {
	const room = 64
	h := newHost(t, Options{Hook: HookClsact, Addresses: room})
	n := 0
	arrives(t, h.alice, say(t, &n, h.bob, h.bob.MAC, broadcast, untaken))
	learned := func() (now, most uint32) {
		now, most, err := h.Host.BridgeLearned(h.Instance.Bridge())
		if err != nil {
			t.Fatal(err)
		}
		return now, most
	}
	if _, most := learned(); most != room {
		t.Fatalf("the bridge learns at most %d addresses, want %d", most, room)
	}
	for i := range 20 * room {
		mac := flow.MAC{2, 0x99}
		binary.BigEndian.PutUint32(mac[2:], uint32(i))
		say(t, &n, h.alice, mac, broadcast, untaken)
	}
	arrives(t, h.bob, say(t, &n, h.alice, h.alice.MAC, broadcast, untaken)) // behind all of them
	if now, _ := learned(); now == 0 || now > room {
		t.Fatalf("%d addresses learned, want at most %d", now, room)
	}
	stranger := flow.MAC{2, 0x99, 0xff}
	suite.Until(t, "a frame for one that is not learned arrives", func() bool {
		m := say(t, &n, h.bob, h.bob.MAC, string(stranger[:]), untaken)
		return len(h.alice.Frames(m)) > 0
	})
	arrives(t, h.bob, say(t, &n, h.alice, h.alice.MAC, string(h.bob.MAC[:]), untaken))
}
