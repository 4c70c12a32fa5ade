package ovs

import (
	"context"
	"encoding/binary"
	"slices"
	"testing"

	"weir.dev/weir/datapath"
	"weir.dev/weir/datapath/suite"
	"weir.dev/weir/flow"
	"weir.dev/weir/instance"
	"weir.dev/weir/openflow"
)

// Of more addresses than there is room for, the latest are known and the table is full, not beyond; frames to a forgotten one are flooded.
func TestTheOldestLearnedAddressesGiveWay(t *testing.T) {
	const room = 8
	r := suite.NewRig(t, func(i instance.Instance) (datapath.Switch, error) {
		s, err := Open(context.Background(), Options{Instance: i, Learned: room})
		if err != nil {
			return nil, err
		}
		return tested{s}, nil
	})
	alice, bob, carol := r.Station("alice"), r.Station("bob"), r.Station("carol")
	mac := func(i int) flow.MAC { return flow.MAC{2, 0xee, 0, 0, 0, byte(i)} }
	frame := func(dst, src flow.MAC, mark uint64) []byte {
		b := slices.Concat(dst[:], src[:], []byte{0x12, 0x34}, make([]byte, 60))
		binary.BigEndian.PutUint64(b[20:], mark)
		return b
	}
	number := func(mark uint64) []byte { return binary.BigEndian.AppendUint64(nil, mark) }
	learned := func() (all []flow.MAC) {
		s := ours(r)
		stats, err := s.connection.of.Flows(suite.Context(t), openflow.FlowStatsRequest{Table: tableMACs})
		if err != nil {
			t.Fatal(err)
		}
		for _, f := range stats {
			for _, o := range f.Match {
				if o.Field == openflow.FieldEthDst {
					all = append(all, flow.MAC(o.Value[:6]))
				}
			}
		}
		return all
	}
	const addresses = 3 * room
	for i := range addresses {
		mark := uint64(0xaa00 + i)
		alice.Send(t, frame(bob.MAC, mac(i), mark))
		suite.Until(t, "the frame comes and its address is learned", func() bool {
			return len(bob.Frames(number(mark))) > 0 && slices.Contains(learned(), mac(i))
		})
		if n := len(learned()); n > room {
			t.Fatalf("%d addresses after %d: want at most %d", n, i+1, room)
		}
	}
	have := learned()
	if len(have) != room {
		t.Errorf("%d addresses are known, want %d", len(have), room)
	}
	if slices.Contains(have, mac(0)) {
		t.Error("the first address is known still")
	}
	if err := r.Switch.(tested).Converge(suite.Context(t)); err != nil {
		t.Fatal(err)
	}
	bob.Send(t, frame(mac(0), bob.MAC, 0xbb00))           // forgotten
	bob.Send(t, frame(mac(addresses-1), bob.MAC, 0xbb01)) // the latest
	for _, m := range []uint64{0xbb00, 0xbb01} {
		suite.Until(t, "alice gets it", func() bool { return len(alice.Frames(number(m))) == 1 })
	}
	suite.Until(t, "the one to a forgotten address is flooded", func() bool { return len(carol.Frames(number(0xbb00))) == 1 })
	if len(carol.Frames(number(0xbb01))) > 0 {
		t.Error("a frame to a known address was flooded")
	}
}
