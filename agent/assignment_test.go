package agent

import (
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"weir.dev/weir/api"
	"weir.dev/weir/datapath"
	"weir.dev/weir/flow"
)

var testPorts = map[string]flow.Port{"uplink/eth1": 1, "tunnel/h2": 2, "endpoint/alice": 3, "function/fw/in": 4, "function/fw/out": 5, "function/mon/tap": 6}

func TestResolveNamesPorts(t *testing.T) {
	const cookie = "00000000000000ff"
	tests := []struct {
		name    string
		rule    api.HostRule
		want    []flow.Rule
		missing bool
		says    string
	}{
		{"every field", api.HostRule{Cookie: cookie, Priority: 7, Stage: "ingress", Note: "n",
			Match: api.HostMatch{InPort: "uplink/eth1", Tag: 3600, SrcMAC: "02:00:00:00:00:01", DstMAC: "01:00:00:00:00:00/01:00:00:00:00:00",
				VLAN: 5, EtherType: 0x800, Src: "10.0.0.0/8", Dst: "10.1.0.0/16", Proto: 6, SrcPorts: "80", DstPorts: "90-99"},
			Action: api.HostAction{Clones: []api.HostClone{{Port: "function/mon/tap"}, {Port: "uplink/eth1", Push: 3602}}, Op: "output", Port: "tunnel/h2", Pop: true, Push: 3601}},
			[]flow.Rule{{Cookie: 0xff, Priority: 7, Note: "n",
				Match: flow.Match{InPort: 1, Tag: 3600, SrcMAC: flow.MAC{2, 5: 1}, SrcMACMask: flow.MAC{255, 255, 255, 255, 255, 255},
					DstMAC: flow.MAC{1}, DstMACMask: flow.MAC{1}, VLAN: 5, EtherType: 0x800, Src: netip.MustParsePrefix("10.0.0.0/8"),
					Dst: netip.MustParsePrefix("10.1.0.0/16"), Proto: 6, SrcPorts: flow.PortRange{First: 80, Last: 80}, DstPorts: flow.PortRange{First: 90, Last: 99}},
				Action: flow.Action{Clones: []flow.Clone{{Port: 6}, {Port: 1, Push: 3602}}, Op: flow.Output, Port: 2, Pop: true, Push: 3601}}}, false, ""},
		{"egress", api.HostRule{Cookie: cookie, Stage: "egress", Match: api.HostMatch{OutPort: "endpoint/alice"}, Action: api.HostAction{Op: "output", Port: "function/fw/in"}},
			[]flow.Rule{{Cookie: 0xff, Stage: flow.Egress, Match: flow.Match{OutPort: 3}, Action: flow.Action{Op: flow.Output, Port: 4}}}, false, ""},
		{"missing target drops", api.HostRule{Cookie: cookie, Note: "n", Match: api.HostMatch{InPort: "uplink/eth1"}, Action: api.HostAction{Op: "output", Port: "function/w/in"}},
			[]flow.Rule{{Cookie: 0xff, Note: "n (dropped: function/w/in is not there)", Match: flow.Match{InPort: 1}, Action: flow.Action{Op: flow.Drop}}}, true, ""},
		{"missing tap is left out", api.HostRule{Cookie: cookie, Match: api.HostMatch{InPort: "uplink/eth1"}, Action: api.HostAction{Op: "normal", Clones: []api.HostClone{{Port: "function/w/tap"}, {Port: "function/mon/tap"}}}},
			[]flow.Rule{{Cookie: 0xff, Match: flow.Match{InPort: 1}, Action: flow.Action{Clones: flow.Clones(6)}}}, true, ""},
		{"missing match waits", api.HostRule{Cookie: cookie, Match: api.HostMatch{InPort: "function/w/out"}, Action: api.HostAction{Op: "drop"}}, nil, true, ""},
		{"cookie", api.HostRule{Cookie: "xyz", Action: api.HostAction{Op: "drop"}}, nil, false, "16 hexadecimal digits"},
		{"stage", api.HostRule{Cookie: cookie, Stage: "sideways", Action: api.HostAction{Op: "drop"}}, nil, false, "want ingress or egress"},
		{"unread", api.HostRule{Cookie: cookie, Stage: api.UnreadStage("egress"), Match: api.HostMatch{OutPort: "endpoint/alice", Unread: flow.UnreadUpper.String()}, Action: api.HostAction{Op: "drop"}},
			[]flow.Rule{{Cookie: 0xff, Stage: flow.Egress, Match: flow.Match{OutPort: 3, Unread: flow.UnreadUpper}, Action: flow.Action{Op: flow.Drop}}}, false, ""},
		{"unread at another's stage", api.HostRule{Cookie: cookie, Stage: "ingress", Match: api.HostMatch{Unread: flow.UnreadUpper.String()}, Action: api.HostAction{Op: "drop"}}, nil, false, "want ingress unread"},
		{"the stage of unread alone", api.HostRule{Cookie: cookie, Stage: "ingress unread", Action: api.HostAction{Op: "drop"}}, nil, false, "want ingress or egress"},
		{"unread how", api.HostRule{Cookie: cookie, Match: api.HostMatch{Unread: "badly"}, Action: api.HostAction{Op: "drop"}}, nil, false, `unread "badly"`},
		{"operation", api.HostRule{Cookie: cookie, Action: api.HostAction{Op: "lose"}}, nil, false, "want normal, drop"},
		{"tag to a function", api.HostRule{Cookie: cookie, Action: api.HostAction{Op: "output", Port: "function/fw/in", Push: 3600}}, nil, false, "no port into the fabric"},
		{"tag on a copy to a function", api.HostRule{Cookie: cookie, Action: api.HostAction{Op: "normal", Clones: []api.HostClone{{Port: "function/mon/tap", Push: 3600}}}}, nil, false, "no port into the fabric"},
		{"copy into the fabric with a tag out of range", api.HostRule{Cookie: cookie, Action: api.HostAction{Op: "normal", Clones: []api.HostClone{{Port: "uplink/eth1", Push: 36}}}}, []flow.Rule{}, false, "want 3585"},
		{"missing tunnel is left out", api.HostRule{Cookie: cookie, Action: api.HostAction{Op: "normal", Clones: []api.HostClone{{Port: "tunnel/h9", Push: 3600}, {Port: "uplink/eth1", Push: 3600}}}},
			[]flow.Rule{{Cookie: 0xff, Action: flow.Action{Clones: []flow.Clone{{Port: 1, Push: 3600}}}}}, true, ""},
		{"tag at an endpoint", api.HostRule{Cookie: cookie, Match: api.HostMatch{InPort: "endpoint/alice", Tag: 3600}, Action: api.HostAction{Op: "drop"}}, nil, false, "no port into the fabric"},
		{"MAC", api.HostRule{Cookie: cookie, Match: api.HostMatch{SrcMAC: "nobody"}, Action: api.HostAction{Op: "drop"}}, nil, false, `MAC "nobody"`},
		{"prefix", api.HostRule{Cookie: cookie, Match: api.HostMatch{Src: "10"}, Action: api.HostAction{Op: "drop"}}, nil, false, "10"},
		{"ports", api.HostRule{Cookie: cookie, Match: api.HostMatch{DstPorts: "a-b"}, Action: api.HostAction{Op: "drop"}}, nil, false, `ports "a-b"`},
		{"ports without protocol", api.HostRule{Cookie: cookie, Match: api.HostMatch{DstPorts: "80"}, Action: api.HostAction{Op: "drop"}}, nil, false, "need protocol"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got := resolve(api.AssignmentSpec{Rules: []api.HostRule{tt.rule}}, testPorts)
			if diff := cmp.Diff(tt.want, got.rules, cmpopts.EquateEmpty(), cmp.Comparer(func(a, b netip.Prefix) bool { return a == b })); diff != "" {
				t.Errorf("rules (-want +got):\n%s", diff)
			}
			if (len(got.missing) > 0) != tt.missing {
				t.Errorf("missing %v", got.missing)
			}
			if tt.says == "" && len(got.errs) > 0 || tt.says != "" && (len(got.errs) != 1 || !strings.Contains(got.errs[0].Error(), tt.says)) {
				t.Errorf("errors %v, want %q", got.errs, tt.says)
			}
		})
	}
}

func TestACookieIsTakenOnce(t *testing.T) {
	r := api.HostRule{Cookie: "0000000000000001", Action: api.HostAction{Op: "drop"}}
	got := resolve(api.AssignmentSpec{Rules: []api.HostRule{r, r}}, testPorts)
	if len(got.rules) != 1 || len(got.errs) != 1 {
		t.Errorf("got %+v", got)
	}
}

func placed(host string) *api.Placement {
	if host == "" {
		return nil
	}
	return &api.Placement{Host: host}
}

// A host looks again when a function elsewhere turns well or not if one of its own chains or policies has it, and only then: else hosts would all be busy with
// a function that crashes again and again on one of them.
func TestWhichFunctionsElsewhereConcernAHost(t *testing.T) {
	i := newIntent("h1", func() {})
	function := func(name, host string, healthy bool) api.Function {
		return api.Function{Meta: api.Meta{Name: name}, Placement: placed(host), Status: api.FunctionStatus{Healthy: healthy}}
	}
	for name, host := range map[string]string{"mine": "h1", "beside": "h2", "steered": "h2", "steered-not": "h2", "alone": "h2"} {
		i.now.functions[name] = function(name, host, true)
	}
	for name, path := range map[string]string{"across": "mine | beside", "there": "tap:steered", "theirs": "steered-not"} {
		i.now.chains[name] = api.Chain{Spec: api.ChainSpec{Path: path}}
	}
	i.now.policies["p"] = api.Policy{Placement: placed("h1"), Spec: api.PolicySpec{Chain: "there"}}
	i.now.policies["q"] = api.Policy{Placement: placed("h2"), Spec: api.PolicySpec{Chain: "theirs"}}
	for name, want := range map[string]bool{"mine": true, "beside": true, "steered": true, "steered-not": false, "alone": false} {
		old := i.now.functions[name]
		if got := i.turned(old, function(name, old.At(), false)); got != want {
			t.Errorf("function %s turns ill: looks again %v, want %v", name, got, want)
		}
		if i.turned(old, function(name, old.At(), true)) {
			t.Errorf("function %s: nothing has changed", name)
		}
		if !i.turned(old, function(name, "h3", true)) {
			t.Errorf("function %s has moved, and the host does not look", name)
		}
	}
}

// An assignment that is without a policy which the router has given back waits until the host hears of that, for a while.
func TestAnAssignmentWaitsForTheDecisionsThatItFollows(t *testing.T) {
	poked := make(chan struct{}, 1)
	i := newIntent("h1", func() {
		select {
		case poked <- struct{}{}:
		default:
		}
	})
	now := time.Now()
	known := func() int64 { return i.snapshot(now).assignment.Spec.Known }
	assign := func(known int64) {
		i.now.assignments["h1"] = api.Assignment{Spec: api.AssignmentSpec{Known: known}}
	}
	decide := func(decision int64) { i.now.policies["p"] = api.Policy{Placement: &api.Placement{Decision: decision}} }
	if i.snapshot(now).assignment != nil {
		t.Error("there is no assignment")
	}
	decide(1)
	assign(3) // the first one is taken as it is: the policy of the third decision may be gone
	if got := known(); got != 3 {
		t.Errorf("at first %d", got)
	}
	assign(5)
	if got := known(); got != 3 {
		t.Errorf("%d, but the host has not heard of the decision", got)
	}
	decide(5)
	if got := known(); got != 5 {
		t.Errorf("%d, but the host has heard of the decision", got)
	}
	assign(6)
	if got := known(); got != 5 {
		t.Errorf("%d, but the host has not heard of the last decision", got)
	}
	<-poked
	now = now.Add(aheadMost)
	if got := known(); got != 6 {
		t.Errorf("%d after %s", got, aheadMost)
	}
	assign(6)
	if got := known(); got != 6 {
		t.Errorf("%d again", got)
	}
	assign(9)
	for at := int64(6); at < 9; at++ { // others are on their way
		decide(at)
		if got := known(); got != 6 {
			t.Errorf("%d, but the host has heard of %d only", got, at)
		}
		now = now.Add(aheadMost * 3 / 4)
	}
	i.deaf, now = true, now.Add(aheadMost)
	if got := known(); got != 6 {
		t.Errorf("%d, but the watch of policies is broken", got)
	}
	if now = now.Add(deafMost); known() != 9 {
		t.Error("it waits for ever")
	}
	i.deaf = false
	delete(i.now.assignments, "h1")
	if i.snapshot(now).assignment != nil {
		t.Error("the assignment is gone")
	}
}

func TestAHostTakesItsShare(t *testing.T) {
	a := New(Options{Host: "h1"})
	intent := func(fw, w1 string, caught ...string) state {
		var rules []api.HostRule
		for _, name := range caught {
			rules = append(rules, api.HostRule{Stage: "ingress", Match: api.HostMatch{InPort: "endpoint/alice"}, Policy: name})
		}
		return state{
			endpoints: map[string]api.Endpoint{
				"alice": {Placement: placed("h1")}, "bob": {Placement: placed("h1")}, "carol": {Placement: placed("h2")}, "vm": {}},
			functions: map[string]api.Function{"fw": {Placement: placed(fw)}, "w1": {Placement: placed(w1)}},
			chains:    map[string]api.Chain{"c": {Spec: api.ChainSpec{Path: "fw | w1"}}},
			policies: map[string]api.Policy{
				"here": {Placement: placed("h1")}, "away": {Placement: placed("h2")}, "routed": {Placement: &api.Placement{Router: true, Decision: 1, FormerHost: "h1"}}, "undecided": {}},
			assignment: &api.Assignment{Spec: api.AssignmentSpec{Rules: rules}},
		}
	}
	tests := []struct {
		name     string
		all      state
		policies []string
		tells    bool
	}{
		{"all here", intent("h1", "h1"), []string{"here"}, true},
		{"the router has not given one back yet", intent("h1", "h1", "here"), nil, true},
		{"the chain crosses hosts", intent("h1", "h2"), []string{"here"}, true},
		{"the chain begins elsewhere", intent("h2", "h1"), []string{"here"}, false},
		{"a function has no host yet", intent("h1", ""), []string{"here"}, true},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			s := a.mine(tt.all)
			var got []string
			for name := range s.policies {
				got = append(got, name)
			}
			if diff := cmp.Diff(tt.policies, got, cmpopts.SortSlices(func(a, b string) bool { return a < b }), cmpopts.EquateEmpty()); diff != "" {
				t.Errorf("policies (-want +got):\n%s", diff)
			}
			for name, kept := range map[string]bool{"here": len(tt.policies) > 0, "away": false, "routed": true, "undecided": true, "gone": false} {
				if s.keeps(name) != kept {
					t.Errorf("keeps %s that was in force: %t", name, !kept)
				}
			}
			if len(s.endpoints) != 2 {
				t.Errorf("endpoints %v", s.endpoints)
			}
			if s.tells(s.chains["c"].Spec) != tt.tells {
				t.Errorf("tells of the chain: %t", !tt.tells)
			}
		})
	}
}

// What is inside a function when a rule of the router goes, comes out and goes on, unless another rule takes it.
func TestRulesOfFunctionsDrain(t *testing.T) {
	at := func(cookie uint64, proto uint8, to flow.Port) flow.Rule {
		m := flow.Match{InPort: 5, Proto: proto}
		return flow.Rule{Cookie: cookie, Priority: 9, Match: m, Action: flow.Action{Op: flow.Output, Port: to}}
	}
	views := map[string]view{"fw": {placed: true, ports: datapath.Ports{In: 4, Out: 5}}}
	tests := []struct {
		name string
		now  []flow.Rule
		want []uint64
	}{
		{"nothing else", nil, []uint64{1, 2}},
		{"another of the same frames", []flow.Rule{at(3, 6, 1)}, []uint64{3, 2}},
		{"one of all frames", []flow.Rule{at(3, 0, 1)}, []uint64{3}},
		{"one goes", []flow.Rule{at(1, 6, 2)}, []uint64{1, 2}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			a := New(Options{Host: "h1"})
			a.installed = []flow.Rule{at(1, 6, 2), at(2, 17, 2), {Cookie: 9, Match: flow.Match{InPort: 1}}}
			rules, next := a.withDraining(tt.now, views)
			var got []uint64
			for _, r := range rules {
				got = append(got, r.Cookie)
				if len(got) > len(tt.now) && r.Priority != 0 {
					t.Errorf("rule %d drains at priority %d", r.Cookie, r.Priority)
				}
			}
			if diff := cmp.Diff(tt.want, got); diff != "" {
				t.Error(diff)
			}
			if len(got) > len(tt.now) && next > drainFor || next < time.Millisecond {
				t.Errorf("looks again in %s", next)
			}
		})
	}
	for name, v := range map[string]view{
		"a machine":        {placed: true, machine: true, ports: datapath.Ports{In: 4, Out: 5}},
		"a former machine": {placed: true, wasMachine: true, ports: datapath.Ports{In: 6, Out: 7}, former: datapath.Ports{In: 4, Out: 5}},
	} {
		a := New(Options{Host: "h1"})
		a.installed = []flow.Rule{at(1, 6, 2)}
		if rules, next := a.withDraining(nil, map[string]view{"fw": v}); len(rules) != 1 || next <= drainFor || next > drainSlow {
			t.Errorf("%s: %d rules drain for %v", name, len(rules), next)
		}
	}
}
