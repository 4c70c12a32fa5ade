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
		} else if kind == portkind.Tap {
			testTaps(t, r, alice, bob)
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

// testTaps: functions with ports of kind tap are steered through, probed, taken down and found again as others are.
func testTaps(t *testing.T, r *Rig, alice, bob *Station) {
	vm := r.Inline(datapath.Function{Name: "vm", Kind: portkind.Tap, OnFail: datapath.FailBypass})
	wire := r.Wire("wire")
	mon := r.function(datapath.Function{Name: "mon", Kind: portkind.Tap}, true)
	w := newTwins(t, r)
	for _, mode := range modes {
		p := policy{mode: mode, from: alice, to: bob, chain: []hop{{fn: wire}, {fn: mon, tap: true}, {fn: vm}}, match: flow.Match{EtherType: 0x1234}, cookie: 1}
		w.commit(p.rules()...)
		w.exchange(alice, bob)
		w.state("vm", datapath.Down)
		w.exchange(alice, bob)
		w.state("vm", datapath.Up)
		w.exchange(alice, bob)
		w.check()
	}
	if _, err := r.Switch.Probe(Context(t), "vm"); err != nil {
		t.Errorf("probe: %v", err)
	}
	r.Close()
	r.Reopen()
	w.exchange(alice, bob)
	if ports, err := r.Switch.AddFunction(Context(t), vm.F); err != nil || ports != vm.Ports {
		t.Errorf("added again: %v, %v; want %v", ports, err, vm.Ports)
	}
	w.exchange(alice, bob)
	w.check()
	veth := r.Links(datapath.Function{Name: "veth"}, false).F
	veth.Kind, veth.Netns, veth.MACs = portkind.Tap, "", vm.F.MACs
	if _, err := r.Switch.AddFunction(Context(t), veth); err == nil || !strings.Contains(err.Error(), "want a tap") {
		t.Errorf("a veth for a tap: %v", err)
	}
	own := l2(bob.MAC, vm.F.MACs[flow.Out], nil, 0x1234, []byte("the function's own words"))
	vm.Sockets["out"].Send(t, own)
	m := w.next()
	w.send("after its own words", alice, m, l2(bob.MAC, alice.MAC, nil, 0x1234, m))
	w.check()
	if n := len(bob.Frames([]byte("own words"))); n > 0 {
		t.Errorf("%d frames of its own left", n)
	}
}
