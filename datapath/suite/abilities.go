package suite

import (
	"strings"
	"testing"

	"weir.dev/weir/datapath"
	"weir.dev/weir/flow"
	"weir.dev/weir/portkind"
)

// testAbilities: a switch does what it says that it can, and refuses everything else by name.
func testAbilities(t *testing.T, open Factory) {
	r := NewRig(t, open)
	alice, bob := r.Station("alice"), r.Station("bob")
	can := r.Switch.Abilities()
	if len(can.Ports) == 0 {
		t.Error("it takes no ports of functions")
	}
	for _, kind := range []portkind.Kind{portkind.Veth, portkind.Tap, portkind.VhostUser, "af_xdp"} {
		if portkind.Join(can.Ports, []portkind.Kind{kind}) == "" {
			f := r.Links(datapath.Function{Name: "f" + string(kind), Kind: kind}, false).F
			if _, err := r.Switch.AddFunction(Context(t), f); err == nil || !strings.Contains(err.Error(), string(kind)) || !strings.Contains(err.Error(), portkind.List(can.Ports)) {
				t.Errorf("ports of kind %s: %v; want it and %s named", kind, err, portkind.List(can.Ports))
			}
		} else if kind != portkind.Veth {
			t.Errorf("it says that it takes ports of kind %s, for which this suite has no test", kind)
		}
	}
	for _, name := range can.Forwarders {
		fn := r.function(datapath.Function{Name: "own-" + name, Kind: portkind.Veth, Forwarder: name}, false)
		w := newTwins(t, r)
		w.commit(policy{mode: "selective", from: alice, to: bob, chain: []hop{{fn: fn}}, match: flow.Match{EtherType: 0x1234}, cookie: 1}.rules()...)
		w.exchange(alice, bob)
		w.check()
	}
}
