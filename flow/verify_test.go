package flow

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func topology() Topology {
	return Topology{Endpoints: []Port{alice, bob, carol, up}, Fabric: []Port{up}, Functions: []FunctionPorts{
		{Name: "fw", In: fwIn, Out: fwOut}, {Name: "w1", In: w1In, Out: w1Out}, {Name: "mon", Tap: mon}}}
}

func TestVerifyFindsWhatIsUnsound(t *testing.T) {
	sound := append(chain()[:5:5], Rule{Cookie: 6, Priority: 100, Match: Match{InPort: fwIn}, Action: Action{Op: Resume, Port: bob}})
	change := func(i int, f func(*Rule)) []Rule {
		rules := slices.Clone(sound)
		f(&rules[i])
		return rules
	}
	tests := []struct {
		name  string
		rules []Rule
		is    error
		says  string
	}{
		{"sound", sound, nil, ""},
		{"no rules", nil, nil, ""},
		{"unknown port", change(2, func(r *Rule) { r.Action.Port = 99 }), ErrBlackHole, "port 99"},
		{"unknown clone", change(2, func(r *Rule) { r.Action.Clones = Clones(98) }), ErrBlackHole, "port 98"},
		{"into a tap", change(2, func(r *Rule) { r.Action.Port = mon }), ErrBlackHole, "mon.tap"},
		{"resume in a function", change(5, func(r *Rule) { r.Action.Port = fwIn }), ErrBlackHole, "cannot resume at fw.in"},
		{"no way out", slices.Delete(slices.Clone(sound), 1, 2), ErrBlackHole, "comes out of fw.out"},
		{"a way out for some frames only", change(1, func(r *Rule) { r.Match.VLAN = 7 }), ErrBlackHole, "fw.out"},
		{"loop of two", change(2, func(r *Rule) { r.Action.Port = fwIn }), ErrLoop, "fw.out -> w1.out -> fw.out"},
		{"loop of one", change(1, func(r *Rule) { r.Action.Port = fwIn }), ErrLoop, "fw.out -> fw.out"},
		{"loop by copies", change(2, func(r *Rule) { r.Action.Clones = Clones(w1In) }), ErrLoop, "w1.out -> w1.out"},
		{"caught again as it leaves", change(2, func(r *Rule) { r.Action = Action{Op: Resume, Port: alice} }), ErrLoop, "ordinary switching"},
		{"cookie twice", change(1, func(r *Rule) { r.Cookie = 1 }), nil, "shares its cookie"},
		{"unknown port in a match", change(0, func(r *Rule) { r.Match.InPort = 97 }), nil, "matches port 97"},
		{"tag at an endpoint", change(0, func(r *Rule) {
			r.Stage, r.Match, r.Action.Pop = Ingress, Match{InPort: alice, Tag: TagFirst}, true
		}), nil, "endpoint port 1, which is no port into the fabric"},
		{"tag kept into a function", change(0, func(r *Rule) { r.Stage, r.Match = Ingress, Match{InPort: up, Tag: TagFirst} }), nil, "tag 3585 to fw.in"},
		{"tag pushed to an endpoint", change(2, func(r *Rule) { r.Action = Action{Op: Output, Port: bob, Push: TagLast} }), nil, "tag 4094 to endpoint port 2"},
		{"tag pushed into the fabric", change(2, func(r *Rule) { r.Action = Action{Op: Output, Port: up, Push: TagLast} }), nil, ""},
		{"egress of a function", change(0, func(r *Rule) { r.Match.OutPort = fwIn }), nil, "no egress stage"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			err := Verify(tt.rules, topology())
			if tt.says == "" {
				if err != nil {
					t.Errorf("got %v", err)
				}
				return
			}
			if err == nil || !strings.Contains(err.Error(), tt.says) || tt.is != nil && !errors.Is(err, tt.is) {
				t.Errorf("got %v", err)
			}
		})
	}
}

func TestWayFollowsTheChain(t *testing.T) {
	ports, end, err := Way(chain(), topology(), 1)
	check(t, err)
	if diff := cmp.Diff([]Port{fwIn, w1In}, ports); diff != "" {
		t.Error(diff)
	}
	if end.Op != Output || end.Port != bob {
		t.Errorf("ends with %v", end)
	}
	if _, _, err := Way(chain(), topology(), 77); err == nil {
		t.Error("an unknown rule was followed")
	}
}
