package ovs

import (
	"bytes"
	"encoding/binary"
	"os/exec"
	"slices"
	"testing"

	"weir.dev/weir/datapath/suite"
)

// The DEI bit of a VLAN tag is lost by user-space Open vSwitch itself: a bridge without any rule of ours loses it, too. When this fails, a later
// version keeps it, and suite.DropEligible can go from what this switch lacks.
func TestPlainOpenVSwitchLosesTheDEIBit(t *testing.T) {
	r := suite.NewRig(t, factory)
	alice, bob := r.Station("alice"), r.Station("bob")
	carol, dave := r.Unplugged("carol"), r.Unplugged("dave")
	out, err := exec.CommandContext(suite.Context(t), "ovs-vsctl", "--db="+ours(r).processes.own.DB(), "--", "add-br", "plain", "--", "set", "bridge", "plain", "datapath_type=netdev",
		"--", "add-port", "plain", carol.E.Link, "--", "add-port", "plain", dave.E.Link).CombinedOutput()
	if err != nil {
		t.Fatalf("%v %s", err, out)
	}
	const dei = 1 << 12
	for i, way := range [][2]*suite.Station{{alice, bob}, {carol, dave}} {
		mark := []byte{'<', 'd', 'e', 'i', byte('0' + i), '>'}
		frame := slices.Concat(way[1].MAC[:], way[0].MAC[:], []byte{0x81, 0}, binary.BigEndian.AppendUint16(nil, 3<<13|dei|5), []byte{0x12, 0x34}, mark, make([]byte, 46))
		var got []byte
		suite.Until(t, "the frame arrives", func() bool {
			way[0].Send(t, frame)
			all := way[1].Frames(mark)
			if len(all) > 0 {
				got = all[0]
			}
			return len(all) > 0
		})
		want := bytes.Clone(frame)
		want[14] &^= dei >> 8
		if !bytes.Equal(got[:len(want)], want) {
			t.Errorf("%s to %s: got %x, want all but the bit, %x", way[0].Name, way[1].Name, got, want)
		}
	}
}
