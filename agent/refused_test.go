package agent

import (
	"testing"

	"weir.dev/weir/api"
	"weir.dev/weir/container"
	"weir.dev/weir/flow"
	"weir.dev/weir/instance"
)

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

func TestRefusedRingsAreToldOnceEach(t *testing.T) {
	seen := refusedRings{}
	var told []string
	look := func(list ...container.Status) []string {
		told = nil
		seen.tell(list, func(e api.Event) { told = append(told, e.Object+": "+e.Message) })
		return told
	}
	asked := func(id string, n uint64) container.Status {
		return container.Status{ID: id, RingsRefused: n, Limits: container.Limits{Rings: 64 << 20}}
	}
	if got := look(asked("ids.1", 0), asked("fw.7", 2)); len(got) != 1 ||
		got[0] != "fw: it asked 2 times for rings of sockets, for netlink, packet, raw or UDP sockets, or for what the kernel keeps for sockets, beyond its limit of 64M: it was told that there is no memory (ENOMEM), or a packet with a timestamp was dropped (EPERM)" {
		t.Errorf("told %q", got)
	}
	if got := look(asked("ids.1", 0), asked("fw.7", 2)); len(got) != 0 {
		t.Errorf("told again: %q", got)
	}
	if got := look(asked("ids.1", 1), asked("fw.7", 2)); len(got) != 1 {
		t.Errorf("told %q, want that of ids", got)
	}
	look() // both are gone
	if len(seen) != 0 {
		t.Errorf("what is gone is kept: %v", seen)
	}
}
