package agent

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"weir.dev/weir/api"
	"weir.dev/weir/datapath"
	"weir.dev/weir/flow"
	"weir.dev/weir/instance"
)

// One event for each endpoint and reason, at once, and not for each frame.
func TestRefusalsAreToldOnceAMinute(t *testing.T) {
	port := func(arp, source uint64) []datapath.PortStatus {
		p := datapath.PortStatus{Name: "endpoint/mallory"}
		p.Refused[flow.RefusedARP], p.Refused[flow.RefusedSource] = arp, source
		return []datapath.PortStatus{p, {Name: "function/fw/in"}}
	}
	seen := map[refusedKey]refusedSeen{}
	begin := time.Now()
	var got []string
	for _, look := range []struct {
		second      int
		arp, source uint64
	}{{0, 7, 0}, {5, 7, 0}, {10, 9, 0}, {15, 100, 3}, {40, 5000, 3}, {71, 6000, 3}, {300, 6000, 3}, {305, 1, 0}} {
		for _, e := range refusals(seen, port(look.arp, look.source), begin.Add(time.Duration(look.second)*time.Second), look.second == 0) {
			got = append(got, e.Reason+" "+e.Object+" "+e.Message)
		}
	}
	want := []string{
		"RefusedArp mallory port security dropped 2 packets (9 in all): ARP for an address or MAC that is not this endpoint's",
		"RefusedSource mallory port security dropped 3 packets (3 in all): the source address is not this endpoint's",
		"RefusedArp mallory port security dropped 5991 packets (6000 in all): ARP for an address or MAC that is not this endpoint's",
		"RefusedArp mallory port security dropped 1 packets (1 in all): ARP for an address or MAC that is not this endpoint's",
	}
	if d := cmp.Diff(want, got); d != "" {
		t.Error(d)
	}
}

// A MAC that Weir derives from a name is taken like one that is given.
func TestDerivedMACIsTaken(t *testing.T) {
	a := &Agent{Options: Options{Instance: instance.Instance{Name: "x"}}}
	mac := func(object string) string { return flow.MAC(a.Instance.MAC(object)).String() }
	alice := api.EndpointSpec{Netns: "a", Interface: "eth0"}
	for name, c := range map[string]struct {
		mac     string
		refused bool
	}{
		"of an endpoint":                     {mac("endpoint/alice"), true},
		"of an endpoint's other side":        {mac("endpoint/alice/switch"), true},
		"of a function":                      {mac("function/fw/in"), true},
		"of a function's other side":         {mac("function/fw/out/switch"), true},
		"of the switch":                      {mac("bridge"), true},
		"its own":                            {mac("endpoint/bob"), false},
		"of nobody":                          {"02:00:00:00:00:01", false},
		"of an endpoint that does not exist": {mac("endpoint/carol"), false},
	} {
		d := api.Document{Endpoints: map[string]api.EndpointSpec{"alice": alice, "bob": {Netns: "b", Interface: "eth0", MAC: c.mac}},
			Functions: map[string]api.FunctionSpec{"fw": {Image: "firewall"}}}
		if p := a.macTaken("bob", d); (p != nil) != c.refused {
			t.Errorf("%s: %v", name, p)
		}
		if p := a.macTaken("alice", d); (p != nil) != (name == "of an endpoint") {
			t.Errorf("alice, while bob's is %s: %v", name, p)
		}
	}
}
