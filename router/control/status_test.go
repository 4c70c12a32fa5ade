package control

import (
	"strings"
	"testing"
	"time"

	"weir.dev/weir/api"
	"weir.dev/weir/router/fabric"
	"weir.dev/weir/router/rollout"
)

func TestAPolicyInForceStaysActiveWhileTheRouterTidiesUp(t *testing.T) {
	l := &loop{intent: newIntent(), steering: newSteering(0)}
	l.out.Paths = fabric.NewPaths(map[string]*fabric.Path{"p": {Forward: []string{"a"}}, "new": {Forward: []string{"b"}}})
	l.last.Progress = map[string]*rollout.Progress{"new": {Hosts: 1}}
	l.steady = l.proven()
	l.last.Progress = map[string]*rollout.Progress{"p": {Catching: 1}, "new": {Hosts: 1}}
	state := func(name string) api.PolicyState { return l.policyStatus(name, 1).State }
	if got := state("p"); got != api.PolicyActive {
		t.Errorf("p, which was in force, is %s", got)
	}
	if got := state("new"); got != api.PolicyPending {
		t.Errorf("new, which was not in force, is %s", got)
	}
	l.last.Progress["p"].Refused = fabric.ErrFull
	if got := state("p"); got != api.PolicyError {
		t.Errorf("p, of which an entry was refused, is %s", got)
	}
	l.steady, l.last.Progress["p"].Refused = nil, nil
	if got := state("p"); got != api.PolicyPending {
		t.Errorf("p, which changes, is %s", got)
	}
}

// When the router has tidied up, a policy that lacks something is not in force again until it has that.
func TestAPolicyThatLosesARuleAfterwardsIsNotActive(t *testing.T) {
	l := newLoop(&Controller{o: Options{Now: time.Now}})
	l.out.Paths = fabric.NewPaths(map[string]*fabric.Path{"p": {Forward: []string{"a"}}})
	l.steady = l.proven()
	l.push(time.Now()) // nothing is to be done any more
	l.last.Progress = map[string]*rollout.Progress{"p": {Catching: 1}}
	if got := l.policyStatus("p", 1).State; got != api.PolicyPending {
		t.Errorf("p is %s", got)
	}
}

func TestAnEndpointThatIsNotFoundIsWaiting(t *testing.T) {
	l := newLoop(&Controller{o: Options{Now: time.Now}})
	l.newDevice(1, "s1")
	for says, spec := range map[string]api.EndpointSpec{
		"switch s9 has not connected":                               {Switch: "s9", SwitchPort: "1"},
		"port 1 of switch s1 is not there, not up, or no edge port": {Switch: "s1", SwitchPort: "1"},
		"no station with 10.0.0.1 has been seen":                    {Address: "10.0.0.1"},
	} {
		s := l.endpointStatus(api.Endpoint{Spec: spec})
		if c := s.Conditions.Get(api.ConditionWaiting); c == nil || c.Reason != api.ReasonWaiting || c.Message != says || s.Message != says || s.State != api.EndpointPending {
			t.Errorf("%+v, want %q", s, says)
		}
	}
}

// Across hosts a policy selects its way back by addresses, so one through a function that changes these says what it does not select.
func TestAPolicyThroughAFunctionThatChangesAddressesSaysWhatItDoesNotSelect(t *testing.T) {
	l := &loop{intent: newIntent(), steering: newSteering(0)}
	l.intent.chains["out"] = api.Chain{Spec: api.ChainSpec{Path: "tap:mon | fw | nat"}}
	l.intent.chains["plain"] = api.Chain{Spec: api.ChainSpec{Path: "tap:mon | lower"}}
	for name, rewrites := range map[string][]string{"fw": nil, "nat": {"src-port", "src-ip"}, "mon": {"dst-ip"}, "lower": {"ttl", "dst-mac"}} {
		l.intent.functions[name] = api.Function{Status: api.FunctionStatus{Rewrites: rewrites}}
	}
	one := false
	for name, x := range map[string]struct {
		spec api.PolicySpec
		says string // which end to name
	}{
		"between endpoints":       {api.PolicySpec{From: "a", To: "b", Chain: "out"}, "from: a"},
		"from an endpoint":        {api.PolicySpec{From: "a", Match: []string{"tcp"}, Chain: "out"}, "from: a"},
		"to an endpoint":          {api.PolicySpec{From: "10.0.0.0/8", To: "b", Chain: "out"}, "to: b"},
		"between networks":        {api.PolicySpec{From: "10.0.0.0/8", To: "10.1.0.0/16", Chain: "out"}, ""},
		"exhaustive":              {api.PolicySpec{From: "a", Mode: api.ModeExhaustive, Chain: "out"}, ""},
		"one way":                 {api.PolicySpec{From: "a", To: "b", Symmetric: &one, Chain: "out"}, ""},
		"copies":                  {api.PolicySpec{From: "a", To: "b", Mode: api.ModeReplica, Chain: "out"}, ""},
		"addresses stay the same": {api.PolicySpec{From: "a", To: "b", Chain: "plain"}, ""},
	} {
		l.intent.policies["p"] = api.Policy{Spec: x.spec}
		l.out.Paths = fabric.NewPaths(map[string]*fabric.Path{"p": {Forward: []string{"a"}}})
		s := l.policyStatus("p", 1)
		c := s.Conditions.Get(api.ConditionUnselected)
		if s.State != api.PolicyActive || (c != nil) != (x.says != "") || c != nil && (c.Message != s.Message || !strings.HasPrefix(c.Message, "function nat changes addresses") || !strings.Contains(c.Message, "("+x.says+", mode: exhaustive")) {
			t.Errorf("%s: %+v", name, s)
		}
	}
}
