package suite

import (
	"testing"

	"weir.dev/weir/datapath"
	"weir.dev/weir/flow"
)

// testMoves: rules at the port where frames leave hold for where the station is now, as ordinary switching has met it, whatever the switch
// was told of the stations.
func testMoves(t *testing.T, open Factory) {
	r := NewRig(t, open)
	alice, bob, carol := r.Station("alice"), r.Station("bob"), r.Station("carol")
	left, right := r.Unplugged("left"), r.Unplugged("right") // two links of one station
	right.MAC, right.E.Peer = left.MAC, left.MAC
	r.plugStation(left)
	r.plugStation(right)
	fn, tap := r.Inline(datapath.Function{Name: "f"}), r.Tap("tap")
	w := newTwins(t, r)
	w.hello()
	rules := policy{mode: "selective", from: alice, to: bob, chain: []hop{{fn: fn}}, match: flow.Match{EtherType: 0x1234}, cookie: 1}.rules()
	rules = append(rules, policy{mode: "replica", from: alice, to: bob, chain: []hop{{fn: tap, tap: true}}, match: flow.Match{EtherType: 0x1235}, cookie: 100}.rules()...)
	rules = append(rules, policy{mode: "exhaustive", from: left, chain: []hop{{fn: fn}}, cookie: 200, priority: 50}.rules()...)
	rules = append(rules, flow.Rule{Cookie: 300, Priority: 200, Stage: flow.Egress, Match: flow.Match{OutPort: bob.Port, EtherType: 0x1236}, Action: flow.Action{Op: flow.Drop}})
	w.commit(rules...)
	// say sends from a station's link under any address, one frame for each of the rules and one for none.
	say := func(from *Station, as, to flow.MAC) {
		for _, etherType := range []uint16{0x1234, 0x1235, 0x1236, 0x9000} {
			w.say("from "+from.Name, from, to, as, nil, etherType)
		}
	}
	both := func() {
		for range 2 {
			say(alice, alice.MAC, bob.MAC)
			say(bob, bob.MAC, alice.MAC)
		}
	}
	both()
	for _, from := range []*Station{carol, alice, left} { // bob's address turns up there
		say(from, bob.MAC, broadcast)
		say(alice, alice.MAC, bob.MAC)
		say(carol, carol.MAC, bob.MAC)
		both()
	}
	say(carol, alice.MAC, bob.MAC)
	say(bob, bob.MAC, alice.MAC)
	both()
	for range 2 {
		for _, from := range []*Station{left, right} { // where it spoke last
			say(from, left.MAC, alice.MAC)
			say(alice, alice.MAC, left.MAC)
			say(bob, bob.MAC, left.MAC)
		}
	}
	say(alice, alice.MAC, alice.MAC) // to itself
	w.check()
}
