package fabric

import (
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"maps"
	"strings"
	"testing"

	"weir.dev/weir/api"
	"weir.dev/weir/datapath/suite"
	"weir.dev/weir/flow"
)

// What a station of an OpenFlow switch sends in another's name does not enter, with a chain that takes all it sends and without; what it
// sends in its own does. So at a host's port, where the same frames are tried.
func TestPortSecurityAtAnOpenFlowPort(t *testing.T) {
	t.Parallel()
	b := newBed(t, "fig2.yaml", func(s string) string {
		s = strings.Replace(s, "address: 10.0.0.1/24", "address: 10.9.0.1/16, addresses: [\"fd57::1/64\"]", 1)
		return strings.Replace(s, "address: 10.0.0.2/24", "address: 10.9.0.2/16, addresses: [\"fd57::2/64\"]", 1)
	})
	objects := func(security string) string {
		return "endpoints:\n  vm1: {address: 10.9.0.1/16, addresses: [\"fd57::1/64\"]" + security + "}\n  vm2: {address: 10.9.0.2/16}\n"
	}
	const secure = ", port_security: {mode: on, addresses: [10.9.77.0/24], shared: [10.9.0.200, \"fd57::c8\"]}"
	chain := "functions:\n  nf: {image: wire}\nchains:\n  c: nf\npolicies:\n  p: {from: vm1, mode: exhaustive, chain: c}\n"
	b.apply(objects(""))
	b.reach("vm1", "10.9.0.2")
	alice, bob := b.station("vm1"), b.station("vm2")
	heard, sender := listen(t, b.netns("vm2"), "eth0"), newSender(t, b.netns("vm1"), "eth0")
	round := 0
	// try gives the frames that arrive, by name; all come before the last one.
	try := func() map[string]bool {
		round++
		mark := func(name string) []byte { // it fits into an option of neighbour discovery
			return fmt.Appendf(nil, "<%04x%08x>", round, crc32.ChecksumIEEE([]byte(name)))
		}
		frames := suite.GuardFrames(flow.MAC(alice.MAC), flow.MAC(bob.MAC), mark)
		for _, f := range frames {
			if err := sender.Send(f.Data); err != nil {
				t.Fatal(f.Name, err)
			}
		}
		b.await("the last frame arrives", func() (bool, string) {
			last := binary.BigEndian.AppendUint16(append(append([]byte{}, bob.MAC...), alice.MAC...), 0x1234)
			if err := sender.Send(append(last, mark("the last")...)); err != nil {
				t.Fatal(err)
			}
			return len(heard.With(string(mark("the last")))) > 0, "nothing heard"
		})
		came := map[string]bool{}
		for _, f := range frames {
			came[f.Name] = len(heard.With(string(mark(f.Name)))) > 0
		}
		return came
	}
	wanted := map[string]flow.Refusal{}
	for _, f := range suite.GuardFrames(flow.MAC(alice.MAC), flow.MAC(bob.MAC), func(string) []byte { return []byte("<mark of 12>") }) {
		wanted[f.Name] = f.Want
	}
	open := 0
	for name, came := range try() {
		if came && wanted[name] != flow.Accepted {
			open++
		}
	}
	if open < 20 {
		t.Fatalf("without port security %d forged frames arrive: the test tells nothing", open)
	}
	var vm1 api.Endpoint
	b.get(&vm1, "endpoint", "vm1")
	at := strings.TrimPrefix(vm1.Status.Link, "s1:")
	for _, x := range []struct{ what, document string }{
		{"ordinary forwarding", objects(secure)},
		{"an exhaustive chain", objects(secure) + chain},
		{"unasked, where port and MAC are given", objects(fmt.Sprintf(", switch: s1, switch_port: %q, mac: %q, port_security: {shared: [10.9.0.200, \"fd57::c8\"]}", at, flow.MAC(alice.MAC)))},
	} {
		what := x.what
		b.apply(x.document, "--prune")
		b.await("port security is in force", func() (bool, string) {
			flows := b.flows("s1")
			n := 0
			for _, f := range flows {
				if strings.Contains(f, "table=6,") {
					n++
				}
			}
			return n > 2, strings.Join(flows, "\n")
		})
		refused := 0
		for name, came := range try() {
			if ok := wanted[name] == flow.Accepted; came != ok {
				t.Errorf("%s: %s: arrives %t, want %t (%s)", what, name, came, ok, wanted[name])
			} else if !ok {
				refused++
			}
		}
		t.Logf("%s: %d of %d kinds of frames refused", what, refused, len(wanted))
		if what == "ordinary forwarding" {
			b.tellsRefused("vm1")
		}
		b.reach("vm1", "10.9.0.2")
		b.reach("vm1", "fd57::2")
	}
	b.apply(objects(", port_security: {mode: off}"), "--prune")
	b.await("port security is gone", func() (bool, string) {
		flows := b.flows("s1")
		for _, f := range flows {
			if strings.Contains(f, "table=6,") {
				return false, f
			}
		}
		return true, ""
	})
}

// tellsRefused waits for one event of each kind of refusal at an endpoint, and for no second one.
func (b *bed) tellsRefused(endpoint string) {
	b.t.Helper()
	told := func() map[string]int {
		n := map[string]int{}
		for _, e := range b.events() {
			if e.Object == endpoint && strings.HasPrefix(e.Reason, "Refused") {
				n[e.Reason]++
			}
		}
		return n
	}
	want := map[string]int{"RefusedMac": 1, "RefusedUnreadable": 1, "RefusedDhcp": 1, "RefusedRa": 1, "RefusedArp": 1, "RefusedNd": 1, "RefusedSource": 1}
	b.await("an event for each kind of refusal", func() (bool, string) {
		n := told()
		return maps.Equal(n, want), fmt.Sprint(n)
	})
}
