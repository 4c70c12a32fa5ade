package router

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"weir.dev/weir/flow"
)

// errBlackHole says that frames can vanish without a rule that drops them.
var errBlackHole = errors.New("black hole")

// verify proves, without a packet, that a rule set is sound: every port that a rule names is there and of the right kind, what
// goes into a function has somewhere to go when it comes out (else errBlackHole), and nothing goes round in a
// circle, whatever functions do (else flow.ErrLoop). All findings are joined.
func verify(rules []flow.Rule, t flow.Topology) error {
	v := newVerifier(rules, t)
	for i := range rules {
		v.ports(&rules[i])
	}
	v.exits()
	v.loops()
	return errors.Join(v.errs...)
}

type portKind uint8

const (
	absent portKind = iota
	endpointPort
	inlinePort
	tapPort
)

type verifier struct {
	rules    []flow.Rule
	kind     map[flow.Port]portKind
	fabric   map[flow.Port]bool
	opposite map[flow.Port]flow.Port
	name     map[flow.Port]string
	from     map[flow.Port][]*flow.Rule // rules of functions' ports
	errs     []error
}

func newVerifier(rules []flow.Rule, t flow.Topology) *verifier {
	v := &verifier{rules: rules, kind: map[flow.Port]portKind{}, fabric: map[flow.Port]bool{}, opposite: map[flow.Port]flow.Port{}, name: map[flow.Port]string{}, from: map[flow.Port][]*flow.Rule{}}
	for _, p := range t.Endpoints {
		v.kind[p], v.name[p] = endpointPort, fmt.Sprintf("endpoint port %d", p)
	}
	for _, p := range t.Fabric {
		v.fabric[p] = true
	}
	for _, f := range t.Functions {
		if f.Tap != 0 {
			v.kind[f.Tap], v.name[f.Tap] = tapPort, f.Name+".tap"
			continue
		}
		v.kind[f.In], v.kind[f.Out] = inlinePort, inlinePort
		v.opposite[f.In], v.opposite[f.Out] = f.Out, f.In
		v.name[f.In], v.name[f.Out] = f.Name+".in", f.Name+".out"
	}
	cookies := make(map[uint64]bool, len(rules))
	for i := range rules {
		r := &rules[i]
		if cookies[r.Cookie] {
			v.find(r, errors.New("shares its cookie with another rule"))
		}
		cookies[r.Cookie] = true
		if err := r.Validate(); err != nil {
			v.errs = append(v.errs, err)
		}
		if r.Stage == flow.Ingress && r.Match.InPort != 0 && v.kind[r.Match.InPort] != endpointPort {
			v.from[r.Match.InPort] = append(v.from[r.Match.InPort], r)
		}
	}
	return v
}

func (v *verifier) find(r *flow.Rule, err error) {
	v.errs = append(v.errs, fmt.Errorf("rule %016x (%s): %w", r.Cookie, r.Note, err))
}

// ports checks what one rule names.
func (v *verifier) ports(r *flow.Rule) {
	for _, p := range []flow.Port{r.Match.InPort, r.Match.OutPort} {
		if p != 0 && v.kind[p] == absent {
			v.find(r, fmt.Errorf("matches port %d, which is not there", p))
		}
	}
	if r.Stage == flow.Egress && r.Match.OutPort != 0 && v.kind[r.Match.OutPort] != endpointPort {
		v.find(r, fmt.Errorf("%s has no egress stage", v.name[r.Match.OutPort]))
	}
	for _, c := range r.Action.Clones {
		if v.kind[c.Port] == absent {
			v.find(r, fmt.Errorf("%w: copies to port %d, which is not there", errBlackHole, c.Port))
		}
	}
	switch kind := v.kind[r.Action.Port]; {
	case r.Action.Port == 0:
	case kind == absent:
		v.find(r, fmt.Errorf("%w: sends to port %d, which is not there", errBlackHole, r.Action.Port))
	case r.Action.Op == flow.Output && kind == tapPort:
		v.find(r, fmt.Errorf("%w: sends into %s, from which nothing comes back", errBlackHole, v.name[r.Action.Port]))
	case r.Action.Op == flow.Resume && kind != endpointPort:
		v.find(r, fmt.Errorf("%w: cannot resume at %s", errBlackHole, v.name[r.Action.Port]))
	}
	v.tags(r)
}

// tags checks that a fabric tag stays in the fabric.
func (v *verifier) tags(r *flow.Rule) {
	tagged := r.Match.Tag != 0 && !r.Action.Pop || r.Action.Push != 0
	if in := r.Match.InPort; r.Match.Tag != 0 && in != 0 && !v.fabric[in] {
		v.find(r, fmt.Errorf("matches a fabric tag at %s, which is no port into the fabric", v.name[in]))
	}
	for _, c := range r.Action.Clones {
		if c.Push != 0 && !v.fabric[c.Port] {
			v.find(r, fmt.Errorf("copies with fabric tag %d to %s, which is no port into the fabric", c.Push, v.name[c.Port]))
		}
	}
	if r.Action.Op == flow.Output && tagged && !v.fabric[r.Action.Port] {
		v.find(r, fmt.Errorf("sends fabric tag %d to %s, which is no port into the fabric", max(r.Action.Push, r.Match.Tag), v.name[r.Action.Port]))
	}
}

// into lists the inline functions' ports into which a rule sends frames or copies.
func (v *verifier) into(r *flow.Rule) []flow.Port {
	var to []flow.Port
	if r.Action.Op == flow.Output && v.kind[r.Action.Port] == inlinePort {
		to = append(to, r.Action.Port)
	}
	for _, c := range r.Action.Clones {
		if v.kind[c.Port] == inlinePort {
			to = append(to, c.Port)
		}
	}
	return to
}

// exits checks that whatever goes into a function finds a rule for every frame at the other side.
func (v *verifier) exits() {
	reported := map[flow.Port]bool{}
	for i := range v.rules {
		for _, in := range v.into(&v.rules[i]) {
			out := v.opposite[in]
			if v.total(out) == nil && !reported[out] {
				reported[out] = true
				v.find(&v.rules[i], fmt.Errorf("%w: sends into %s, and no rule takes every frame that comes out of %s", errBlackHole, v.name[in], v.name[out]))
			}
		}
	}
}

// total is the rule that takes every frame out of a function's port.
func (v *verifier) total(out flow.Port) *flow.Rule {
	for _, r := range v.from[out] {
		if r.Match == (flow.Match{InPort: out}) && r.Action.Op != flow.Normal {
			return r
		}
	}
	return nil
}

// loops walks from function to function, and from the egress stage back into ordinary switching.
func (v *verifier) loops() {
	const walking, done = 1, 2
	state := map[flow.Port]int{}
	var way []flow.Port
	var walk func(out flow.Port)
	walk = func(out flow.Port) {
		switch state[out] {
		case done:
			return
		case walking:
			i := slices.Index(way, out)
			names := []string{}
			for _, p := range append(slices.Clone(way[i:]), out) {
				names = append(names, v.name[p])
			}
			v.errs = append(v.errs, fmt.Errorf("%w: %s", flow.ErrLoop, strings.Join(names, " -> ")))
			return
		}
		state[out] = walking
		way = append(way, out)
		for _, r := range v.from[out] {
			for _, in := range v.into(r) {
				walk(v.opposite[in])
			}
		}
		way = way[:len(way)-1]
		state[out] = done
	}
	for i := range v.rules {
		for _, in := range v.into(&v.rules[i]) {
			walk(v.opposite[in])
		}
	}
	if len(v.errs) == 0 {
		v.resumes()
	}
}

// resumes: what is caught as it leaves must not be switched again: it would be caught again.
func (v *verifier) resumes() {
	for i := range v.rules {
		r := &v.rules[i]
		if r.Stage != flow.Egress {
			continue
		}
		end := r.Action
		for end.Op == flow.Output && v.kind[end.Port] == inlinePort {
			end = v.total(v.opposite[end.Port]).Action
		}
		if end.Op == flow.Resume {
			v.find(r, fmt.Errorf("%w: it catches frames that leave, and its chain hands them back to ordinary switching", flow.ErrLoop))
		}
	}
}

// wayOf follows one rule through the functions to its end: the ports into which it sends frames, copies apart, and the last action.
// The rule set is sound (see verify).
func wayOf(rules []flow.Rule, t flow.Topology, cookie uint64) ([]flow.Port, flow.Action, error) {
	v := newVerifier(rules, t)
	i := slices.IndexFunc(rules, func(r flow.Rule) bool { return r.Cookie == cookie })
	if i < 0 {
		return nil, flow.Action{}, fmt.Errorf("rule %016x: not there", cookie)
	}
	var ports []flow.Port
	end := &rules[i]
	for end.Action.Op == flow.Output && v.kind[end.Action.Port] == inlinePort {
		in := end.Action.Port
		if slices.Contains(ports, in) {
			return ports, flow.Action{}, fmt.Errorf("%w: again into %s", flow.ErrLoop, v.name[in])
		}
		ports = append(ports, in)
		if end = v.total(v.opposite[in]); end == nil {
			return ports, flow.Action{}, fmt.Errorf("%w: behind %s", errBlackHole, v.name[in])
		}
	}
	return ports, end.Action, nil
}

// Ports of soundTopology.
const (
	endA, endB, endC, uplink flow.Port = 1, 2, 3, 21
	fwIn, fwOut, w1In, w1Out flow.Port = 11, 12, 13, 14
	mon                      flow.Port = 15
)

func soundTopology() flow.Topology {
	return flow.Topology{Endpoints: []flow.Port{endA, endB, endC, uplink}, Fabric: []flow.Port{uplink}, Functions: []flow.FunctionPorts{
		{Name: "fw", In: fwIn, Out: fwOut}, {Name: "w1", In: w1In, Out: w1Out}, {Name: "mon", Tap: mon}}}
}

// soundChain leads from A to B through fw and w1 with a tap, and from B to A back.
func soundChain() []flow.Rule {
	return []flow.Rule{
		{Cookie: 1, Priority: 100, Stage: flow.Egress, Match: flow.Match{InPort: endA, OutPort: endB}, Action: flow.Action{Op: flow.Output, Port: fwIn}},
		{Cookie: 2, Priority: 100, Match: flow.Match{InPort: fwOut}, Action: flow.Action{Op: flow.Output, Port: w1In}},
		{Cookie: 3, Priority: 100, Match: flow.Match{InPort: w1Out}, Action: flow.Action{Clones: flow.Clones(mon), Op: flow.Output, Port: endB}},
		{Cookie: 4, Priority: 100, Match: flow.Match{InPort: endB}, Action: flow.Action{Op: flow.Output, Port: w1Out}},
		{Cookie: 5, Priority: 100, Match: flow.Match{InPort: w1In}, Action: flow.Action{Op: flow.Output, Port: fwOut}},
		{Cookie: 6, Priority: 100, Match: flow.Match{InPort: fwIn}, Action: flow.Action{Op: flow.Resume, Port: endB}},
	}
}

func TestVerifyFindsWhatIsUnsound(t *testing.T) {
	sound := append(soundChain()[:5:5], flow.Rule{Cookie: 6, Priority: 100, Match: flow.Match{InPort: fwIn}, Action: flow.Action{Op: flow.Resume, Port: endB}})
	change := func(i int, f func(*flow.Rule)) []flow.Rule {
		rules := slices.Clone(sound)
		f(&rules[i])
		return rules
	}
	tests := []struct {
		name  string
		rules []flow.Rule
		is    error
		says  string
	}{
		{"sound", sound, nil, ""},
		{"no rules", nil, nil, ""},
		{"unknown port", change(2, func(r *flow.Rule) { r.Action.Port = 99 }), errBlackHole, "port 99"},
		{"unknown clone", change(2, func(r *flow.Rule) { r.Action.Clones = flow.Clones(98) }), errBlackHole, "port 98"},
		{"into a tap", change(2, func(r *flow.Rule) { r.Action.Port = mon }), errBlackHole, "mon.tap"},
		{"resume in a function", change(5, func(r *flow.Rule) { r.Action.Port = fwIn }), errBlackHole, "cannot resume at fw.in"},
		{"no way out", slices.Delete(slices.Clone(sound), 1, 2), errBlackHole, "comes out of fw.out"},
		{"a way out for some frames only", change(1, func(r *flow.Rule) { r.Match.VLAN = 7 }), errBlackHole, "fw.out"},
		{"loop of two", change(2, func(r *flow.Rule) { r.Action.Port = fwIn }), flow.ErrLoop, "fw.out -> w1.out -> fw.out"},
		{"loop of one", change(1, func(r *flow.Rule) { r.Action.Port = fwIn }), flow.ErrLoop, "fw.out -> fw.out"},
		{"loop by copies", change(2, func(r *flow.Rule) { r.Action.Clones = flow.Clones(w1In) }), flow.ErrLoop, "w1.out -> w1.out"},
		{"caught again as it leaves", change(2, func(r *flow.Rule) { r.Action = flow.Action{Op: flow.Resume, Port: endA} }), flow.ErrLoop, "ordinary switching"},
		{"cookie twice", change(1, func(r *flow.Rule) { r.Cookie = 1 }), nil, "shares its cookie"},
		{"unknown port in a match", change(0, func(r *flow.Rule) { r.Match.InPort = 97 }), nil, "matches port 97"},
		{"tag at an endpoint", change(0, func(r *flow.Rule) {
			r.Stage, r.Match, r.Action.Pop = flow.Ingress, flow.Match{InPort: endA, Tag: flow.TagFirst}, true
		}), nil, "endpoint port 1, which is no port into the fabric"},
		{"tag kept into a function", change(0, func(r *flow.Rule) { r.Stage, r.Match = flow.Ingress, flow.Match{InPort: uplink, Tag: flow.TagFirst} }), nil, "tag 3585 to fw.in"},
		{"tag pushed to an endpoint", change(2, func(r *flow.Rule) { r.Action = flow.Action{Op: flow.Output, Port: endB, Push: flow.TagLast} }), nil, "tag 4094 to endpoint port 2"},
		{"tag pushed into the fabric", change(2, func(r *flow.Rule) { r.Action = flow.Action{Op: flow.Output, Port: uplink, Push: flow.TagLast} }), nil, ""},
		{"egress of a function", change(0, func(r *flow.Rule) { r.Match.OutPort = fwIn }), nil, "no egress stage"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			err := verify(tt.rules, soundTopology())
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
	ports, end, err := wayOf(soundChain(), soundTopology(), 1)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]flow.Port{fwIn, w1In}, ports); diff != "" {
		t.Error(diff)
	}
	if end.Op != flow.Output || end.Port != endB {
		t.Errorf("ends with %v", end)
	}
	if _, _, err := wayOf(soundChain(), soundTopology(), 77); err == nil {
		t.Error("an unknown rule was followed")
	}
}
