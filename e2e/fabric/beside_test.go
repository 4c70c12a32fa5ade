package fabric

import (
	"slices"
	"strings"
	"testing"

	"weir.dev/weir/e2e/rig"
)

// ofOthers are entries that an operator has in every switch: it learns by itself, and one service is not let through.
var ofOthers = []string{"cookie=0xbeef,priority=0,actions=NORMAL", "cookie=0xbeef,priority=10,udp,tp_dst=7777,actions=drop"}

// besideDocument steers one service in one direction. Who does not forward does not see stations either: endpoints say where they are.
const besideDocument = `
endpoints:
  vm1: {switch: s1, switch_port: "2", mac: "02:57:00:00:00:01", address: 10.0.0.1/24}
  vm2: {switch: s2, switch_port: "2", mac: "02:57:00:00:00:02", address: 10.0.0.2/24}
functions:
  nf: {image: wire}
chains:
  through: nf
`

const besidePolicy = `
policies:
  vm1-through-nf: {from: vm1, match: [udp/5000], chain: through, symmetric: false}
`

// Switches that learn by themselves, as their operator has told them to, and a router that only steers (--default-forwarding=false).
func TestOrdinaryForwardingOfOthersGoesOn(t *testing.T) {
	t.Parallel()
	b := newBed(t, "fig2.yaml", func(text string) string {
		return strings.Replace(text, "manager: {}", "manager: {default_forwarding: false}", 1)
	})
	if b.pings("vm1", "10.0.0.2") {
		t.Fatal("somebody forwards already")
	}
	for _, s := range []string{"s1", "s2"} {
		for _, f := range ofOthers {
			if out, err := b.exec("ovs", "ovs-ofctl", "-O", "OpenFlow13", "add-flow", b.management(s), f); err != nil {
				t.Fatal(out)
			}
		}
	}
	b.reach("vm1", "10.0.0.2")
	before := b.others()
	vm1, vm2 := b.station("vm1"), b.station("vm2")
	at := map[string]*rig.Capture{"vm1": listen(t, b.netns("vm1"), "eth0"), "vm2": listen(t, b.netns("vm2"), "eth0")}
	unselected := []passage{
		{name: "back, not selected", node: "vm2", from: vm2, to: vm1, proto: 17, want: map[string]int{"vm1": 1}}, // first: what has been learned by now?
		{name: "ICMP", node: "vm1", from: vm1, to: vm2, proto: 1, want: map[string]int{"vm2": 1}},
		{name: "ICMP back", node: "vm2", from: vm2, to: vm1, proto: 1, want: map[string]int{"vm1": 1}},
		{name: "what the operator drops", node: "vm1", from: vm1, to: vm2, proto: 17, port: 7777, want: map[string]int{}},
	}
	b.frames(at, unselected)

	b.apply(besideDocument + besidePolicy)
	at["nf.in"], at["nf.out"] = listen(t, b.function("nfv1", "nf"), "in"), listen(t, b.function("nfv1", "nf"), "out")
	steered := passage{name: "selected", node: "vm1", from: vm1, to: vm2, proto: 17, want: map[string]int{"nf.in": 1, "vm2": 1}}
	for range 2 { // the second time with all that was learned
		b.frames(at, append([]passage{steered}, unselected...))
	}
	b.same("while Weir steers", before)

	b.kill("manager")
	b.frames(at, append([]passage{steered}, unselected...))
	b.same("while the manager is dead", before)
	b.again()

	b.apply(besideDocument, "--prune")
	delete(at, "nf.in")
	delete(at, "nf.out")
	steered.want = map[string]int{"vm2": 1}
	b.frames(at, append([]passage{steered}, unselected...))
	b.same("after the policy", before)
	b.kill("manager")
	b.kill("nfv1")
	b.frames(at, append([]passage{steered}, unselected...))
	b.same("after Weir", before)
}

// others are the entries of all switches that are not Weir's.
func (b *bed) others() []string {
	b.t.Helper()
	var all []string
	for _, s := range []string{"s1", "s2"} {
		for _, f := range b.flows(s) {
			if !strings.Contains(f, "cookie=0x57") {
				all = append(all, s+" "+f)
			}
		}
	}
	slices.Sort(all)
	return all
}

func (b *bed) same(when string, before []string) {
	b.t.Helper()
	if now := b.others(); len(now) != 2*len(ofOthers) || !slices.Equal(before, now) {
		b.t.Errorf("%s the operator's entries are\n%s\nthey were\n%s", when, strings.Join(now, "\n"), strings.Join(before, "\n"))
	}
}
