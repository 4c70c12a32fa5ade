package rollout

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"weir.dev/weir/api"
)

// leads is a host's rule that leads frames on from a function to a port.
func leads(cookie, function, to string) api.HostRule {
	return api.HostRule{Cookie: cookie, Stage: "ingress", Match: api.HostMatch{InPort: "function/" + function + "/out"}, Action: api.HostAction{Op: "output", Port: to}, Policy: "p"}
}

func enters(function string) api.HostRule {
	return api.HostRule{Cookie: "e", Stage: "ingress", Match: api.HostMatch{InPort: "endpoint/v1"}, Action: api.HostAction{Op: "output", Port: function}, Policy: "p"}
}

func TestAHostsRuleChangesWhenTheNextHostIsReady(t *testing.T) {
	w := newWorld(t)
	w.host("h1")
	w.host("h2")
	w.want(nil, map[string][]api.HostRule{"h1": {enters("function/a/in"), leads("1", "a", "uplink/eth1")}})
	w.all()
	w.want(nil, map[string][]api.HostRule{
		"h1": {enters("function/a/in"), leads("1", "a", "tunnel/h2")},
		"h2": {leads("2", "b", "endpoint/v2")},
	})
	s := w.plan()
	if _, early := s.Specs["h1"]; early || len(s.Specs["h2"].Rules) != 1 {
		t.Fatalf("first h2 alone, got %v", s.Specs)
	}
	if got := s.Again.Sub(w.now); got != gateMost {
		t.Errorf("again after %v", got)
	}
	if d := cmp.Diff([]string{"h2: 1 rules", "h1: 2 rules"}, w.all()); d != "" {
		t.Error(d)
	}
	if got := w.f.Peers["h1"].Acked["1"].Action.Port; got != "tunnel/h2" {
		t.Errorf("leads to %s", got)
	}
}

func TestAHostThatDoesNotAnswerHoldsUpOthersForABoundedTime(t *testing.T) {
	w := newWorld(t)
	w.host("h1")
	dead := w.host("h2")
	w.want(nil, map[string][]api.HostRule{"h1": {leads("1", "a", "uplink/eth1")}})
	w.all()
	w.want(nil, map[string][]api.HostRule{"h1": {leads("1", "a", "uplink/eth2")}, "h2": {leads("2", "b", "endpoint/v2")}})
	s := w.plan()
	dead.Written, dead.Wrote = s.Specs["h2"], true // and nothing is heard of it
	w.now = w.now.Add(gateMost)
	if s = w.plan(); len(s.Specs["h1"].Rules) != 1 || s.Specs["h1"].Rules[0].Action.Port != "uplink/eth2" {
		t.Errorf("h1 still waits: %v", s.Specs)
	}
}
