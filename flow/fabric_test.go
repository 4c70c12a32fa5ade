package flow

import (
	"encoding/json"
	"strconv"
	"strings"
	"testing"
)

const (
	up  Port = 21 // into the fabric
	tu1 Port = 22 // isolated, too
	tu2 Port = 23
)

// edge is the lab with ports into the fabric.
func edge(t testing.TB, rules ...Rule) *Switch {
	t.Helper()
	s := lab(t)
	check(t, s.AddFabric(up, "up", false))
	check(t, s.AddFabric(tu1, "tu1", true))
	check(t, s.AddFabric(tu2, "tu2", true))
	check(t, s.Commit(rules))
	return s
}

// trace is what becomes of a frame: where it came, with which fabric tag.
func trace(t testing.TB, s *Switch, at Port, frame []byte) string {
	t.Helper()
	r, err := s.Inject(at, frame)
	check(t, err)
	var steps []string
	for _, step := range r.Trail {
		text := step.Name
		if tag := FabricTag(step.Frame); tag != 0 {
			text += "+" + Match{Tag: tag}.tagName()
		}
		switch step.Event {
		case Steered, Delivered:
			steps = append(steps, text)
		case Dropped:
			steps = append(steps, "dropped: "+step.Why)
		}
	}
	return strings.Join(steps, " ")
}

func (m Match) tagName() string { return Key{Tag: m.Tag}.String()[len("fabric tag "):][:4] }

func TestFabricTagStaysInTheFabric(t *testing.T) {
	plain := from(macA, macB)
	in := func(at Port, tag uint16) Match { return Match{InPort: at, Tag: tag} }
	tests := []struct {
		name  string
		rules []Rule
		at    Port
		frame []byte
		want  string
	}{
		{"without a rule it is dropped", nil, up, PushTag(plain, 3600), "dropped: no rule knows fabric tag 3600"},
		{"a rule without a tag does not select it", []Rule{{Cookie: 1, Priority: 9, Match: in(up, 0), Action: Action{Op: Output, Port: bob}}}, up,
			PushTag(plain, 3600), "dropped: no rule knows fabric tag 3600"},
		{"nor one with another", []Rule{{Cookie: 1, Priority: 9, Match: in(up, 3601), Action: Action{Pop: true, Op: Output, Port: bob}}}, up,
			PushTag(plain, 3600), "dropped: no rule knows fabric tag 3600"},
		{"popped into a function", []Rule{
			{Cookie: 1, Priority: 9, Match: in(up, 3600), Action: Action{Pop: true, Clones: Clones(mon), Op: Output, Port: fwIn}},
			{Cookie: 2, Match: in(fwOut, 0), Action: Action{Push: 3601, Op: Output, Port: up}},
		}, up, PushTag(plain, 3600), "function/mon/tap function/fw/in endpoint/up+3601"},
		{"popped into ordinary switching", []Rule{{Cookie: 1, Priority: 9, Match: in(0, 3600), Action: Action{Pop: true}}}, up, PushTag(plain, 3600),
			"endpoint/alice endpoint/bob endpoint/carol endpoint/tu1 endpoint/tu2"},
		{"exchanged in transit", []Rule{{Cookie: 1, Priority: 9, Match: in(tu1, 3600), Action: Action{Pop: true, Push: 3602, Op: Output, Port: tu2}}}, tu1,
			PushTag(plain, 3600), "endpoint/tu2+3602"},
		{"kept in transit", []Rule{{Cookie: 1, Priority: 9, Match: in(tu1, 3600), Action: Action{Op: Output, Port: tu2}}}, tu1, PushTag(plain, 3600),
			"endpoint/tu2+3600"},
		{"kept to an endpoint", []Rule{{Cookie: 1, Priority: 9, Match: in(tu1, 3600), Action: Action{Op: Output, Port: bob}}}, tu1, PushTag(plain, 3600),
			"dropped: a fabric tag stays in the fabric"},
		{"pushed behind the egress stage", []Rule{{Cookie: 1, Priority: 9, Stage: Egress, Match: Match{OutPort: carol}, Action: Action{Push: 3600, Op: Output, Port: up}}},
			alice, from(macA, macB), "endpoint/bob endpoint/up+3600 endpoint/up endpoint/tu1 endpoint/tu2"},
		{"copies are without", []Rule{{Cookie: 1, Priority: 9, Match: in(alice, 0), Action: Action{Clones: Clones(mon), Push: 3600, Op: Output, Port: up}}}, alice,
			plain, "function/mon/tap endpoint/up+3600"},
		{"copies with one of their own", []Rule{{Cookie: 1, Priority: 9, Match: in(alice, 0), Action: Action{Clones: []Clone{{mon, 0}, {up, 3600}}, Op: Output, Port: bob}}}, alice,
			plain, "function/mon/tap endpoint/up+3600 endpoint/bob"},
		{"copies and the original with different ones", []Rule{{Cookie: 1, Priority: 9, Match: in(alice, 0), Action: Action{Clones: []Clone{{up, 3601}, {mon, 0}, {tu1, 3602}}, Push: 3600, Op: Output, Port: up}}}, alice,
			plain, "endpoint/up+3601 function/mon/tap endpoint/tu1+3602 endpoint/up+3600"},
		{"exchanged on copies", []Rule{{Cookie: 1, Priority: 9, Match: in(tu1, 3600), Action: Action{Pop: true, Clones: []Clone{{tu2, 3601}}, Op: Output, Port: bob}}}, tu1,
			PushTag(plain, 3600), "endpoint/tu2+3601 endpoint/bob"},
		{"copies with one to an endpoint", []Rule{{Cookie: 1, Priority: 9, Match: in(alice, 0), Action: Action{Clones: []Clone{{bob, 3600}}, Op: Output, Port: carol}}}, alice,
			plain, "dropped: a fabric tag stays in the fabric endpoint/carol"},
		{"a user's own behind a copy's leaves", []Rule{{Cookie: 1, Priority: 9, Match: in(alice, 0), Action: Action{Clones: []Clone{{up, 3601}, {up, 0}}, Op: Output, Port: bob}}}, alice,
			PushTag(plain, 3600), "endpoint/up+3601 dropped: the user's own tag is one of the fabric's endpoint/bob+3600"},
		{"a user's own at an endpoint", []Rule{{Cookie: 1, Priority: 9, Match: Match{InPort: alice, VLAN: 3600}, Action: Action{Op: Output, Port: bob}}}, alice,
			PushTag(plain, 3600), "endpoint/bob+3600"},
		{"a user's own does not leave", []Rule{{Cookie: 1, Priority: 9, Match: in(alice, 0), Action: Action{Op: Output, Port: up}}}, alice,
			PushTag(plain, 3600), "dropped: the user's own tag is one of the fabric's"},
		{"a user's own behind another does", []Rule{{Cookie: 1, Priority: 9, Match: in(alice, 0), Action: Action{Push: 3700, Op: Output, Port: up}}}, alice,
			PushTag(plain, 3600), "endpoint/up+3700"},
		{"a user's own behind another comes back", []Rule{{Cookie: 1, Priority: 9, Match: Match{InPort: up, Tag: 3700, VLAN: 3600}, Action: Action{Pop: true, Op: Output, Port: bob}}},
			up, PushTag(PushTag(plain, 3600), 3700), "endpoint/bob+3600"},
		{"another VLAN of 802.1ad is the user's", []Rule{{Cookie: 1, Priority: 9, Match: Match{InPort: up, VLAN: 100}, Action: Action{Op: Output, Port: bob}}}, up,
			PushTag(plain, 100), "endpoint/bob"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			expect(t, trace(t, edge(t, tt.rules...), tt.at, tt.frame), tt.want)
		})
	}
}

func TestIsolatedPortsDoNotSwitchToEachOther(t *testing.T) {
	s := edge(t)
	expect(t, path(t, s, tu1, from(macA, macB)), "endpoint/alice endpoint/bob endpoint/carol endpoint/up")
	expect(t, path(t, s, tu2, from(macB, macA)), "")
	expect(t, path(t, s, alice, from(macC, macA)), "endpoint/tu1")
	expect(t, path(t, s, tu2, from(macB, macC)), "endpoint/alice")
}

func TestTagRulesThatNoSwitchCanInstall(t *testing.T) {
	tests := []struct {
		name string
		rule Rule
		says string
	}{
		{"tag out of range", Rule{Match: Match{Tag: 100}, Action: Action{Op: Drop}}, "want 3585 to 4094"},
		{"push out of range", Rule{Action: Action{Op: Output, Port: up, Push: 100}}, "want 3585 to 4094"},
		{"push out of range on a copy", Rule{Action: Action{Clones: []Clone{{up, 100}}}}, "want 3585 to 4094"},
		{"push on a copy of a frame that keeps its tag", Rule{Match: Match{Tag: 3600}, Action: Action{Clones: []Clone{{up, 3601}}, Op: Output, Port: up}}, "needs the tag popped first"},
		{"push without output", Rule{Action: Action{Op: Normal, Push: 3600}}, "only with the output"},
		{"push to a learned port", Rule{Action: Action{Op: Output, Push: 3600}}, "only with the output"},
		{"pop of nothing", Rule{Action: Action{Pop: true}}, "only where the rule matches one"},
		{"tag where a frame leaves", Rule{Stage: Egress, Match: Match{Tag: 3600}, Action: Action{Op: Drop}}, "where a frame enters only"},
		{"tag into ordinary switching", Rule{Match: Match{Tag: 3600}}, "needs the tag popped first"},
		{"tag on copies", Rule{Match: Match{Tag: 3600}, Action: Action{Clones: Clones(mon), Op: Drop}}, "needs the tag popped first"},
		{"two tags", Rule{Match: Match{Tag: 3600}, Action: Action{Push: 3601, Op: Output, Port: up}}, "needs the tag popped first"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if err := tt.rule.Validate(); err == nil || !strings.Contains(err.Error(), tt.says) {
				t.Errorf("got %v", err)
			}
		})
	}
}

// Rules kept by a version whose copies had no tags are read as they were meant.
func TestClonesAreReadInBothForms(t *testing.T) {
	want := Action{Clones: []Clone{{mon, 0}, {up, 3600}}, Op: Output, Port: bob}
	b, err := json.Marshal(want)
	check(t, err)
	for _, text := range []string{string(b), `{"Clones":[9,{"Port":21,"Push":3600}],"Op":2,"Port":2}`} {
		var got Action
		check(t, json.Unmarshal([]byte(strings.Replace(text, "[9,", "["+strconv.Itoa(int(mon))+",", 1)), &got))
		got.Port = bob
		expect(t, got.String(), want.String())
	}
	for _, text := range []string{`{"Clones":["a"]}`, `{"Clones":[-1]}`, `{"Clones":[{"Port":1,"Push":70000}]}`} {
		if err := json.Unmarshal([]byte(text), new(Action)); err == nil {
			t.Errorf("%s was read", text)
		}
	}
}
