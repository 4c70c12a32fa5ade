package flow

import (
	"errors"
	"fmt"
	"slices"
	"strings"
)

// Topology is what a rule set is verified against.
type Topology struct {
	Endpoints []Port
	Fabric    []Port // those of Endpoints that lead into the fabric
	Functions []FunctionPorts
}

// FunctionPorts are In and Out of an inline function, or Tap.
type FunctionPorts struct {
	Name         string
	In, Out, Tap Port
}

// ErrBlackHole says that frames can vanish without a rule that drops them.
var ErrBlackHole = errors.New("black hole")

// Verify proves, without a packet, that a rule set is sound: every port that a rule names is there and of the right kind, what
// goes into a function has somewhere to go when it comes out (else ErrBlackHole), and nothing goes round in a
// circle, whatever functions do (else ErrLoop). All findings are joined.
func Verify(rules []Rule, t Topology) error {
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
	rules    []Rule
	kind     map[Port]portKind
	fabric   map[Port]bool
	opposite map[Port]Port
	name     map[Port]string
	from     map[Port][]*Rule // rules of functions' ports
	errs     []error
}

func newVerifier(rules []Rule, t Topology) *verifier {
	v := &verifier{rules: rules, kind: map[Port]portKind{}, fabric: map[Port]bool{}, opposite: map[Port]Port{}, name: map[Port]string{}, from: map[Port][]*Rule{}}
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
		if r.Stage == Ingress && r.Match.InPort != 0 && v.kind[r.Match.InPort] != endpointPort {
			v.from[r.Match.InPort] = append(v.from[r.Match.InPort], r)
		}
	}
	return v
}

func (v *verifier) find(r *Rule, err error) {
	v.errs = append(v.errs, fmt.Errorf("rule %016x (%s): %w", r.Cookie, r.Note, err))
}

// ports checks what one rule names.
func (v *verifier) ports(r *Rule) {
	for _, p := range []Port{r.Match.InPort, r.Match.OutPort} {
		if p != 0 && v.kind[p] == absent {
			v.find(r, fmt.Errorf("matches port %d, which is not there", p))
		}
	}
	if r.Stage == Egress && r.Match.OutPort != 0 && v.kind[r.Match.OutPort] != endpointPort {
		v.find(r, fmt.Errorf("%s has no egress stage", v.name[r.Match.OutPort]))
	}
	for _, c := range r.Action.Clones {
		if v.kind[c.Port] == absent {
			v.find(r, fmt.Errorf("%w: copies to port %d, which is not there", ErrBlackHole, c.Port))
		}
	}
	switch kind := v.kind[r.Action.Port]; {
	case r.Action.Port == 0:
	case kind == absent:
		v.find(r, fmt.Errorf("%w: sends to port %d, which is not there", ErrBlackHole, r.Action.Port))
	case r.Action.Op == Output && kind == tapPort:
		v.find(r, fmt.Errorf("%w: sends into %s, from which nothing comes back", ErrBlackHole, v.name[r.Action.Port]))
	case r.Action.Op == Resume && kind != endpointPort:
		v.find(r, fmt.Errorf("%w: cannot resume at %s", ErrBlackHole, v.name[r.Action.Port]))
	}
	v.tags(r)
}

// tags checks that a fabric tag stays in the fabric.
func (v *verifier) tags(r *Rule) {
	tagged := r.Match.Tag != 0 && !r.Action.Pop || r.Action.Push != 0
	if in := r.Match.InPort; r.Match.Tag != 0 && in != 0 && !v.fabric[in] {
		v.find(r, fmt.Errorf("matches a fabric tag at %s, which is no port into the fabric", v.name[in]))
	}
	for _, c := range r.Action.Clones {
		if c.Push != 0 && !v.fabric[c.Port] {
			v.find(r, fmt.Errorf("copies with fabric tag %d to %s, which is no port into the fabric", c.Push, v.name[c.Port]))
		}
	}
	if r.Action.Op == Output && tagged && !v.fabric[r.Action.Port] {
		v.find(r, fmt.Errorf("sends fabric tag %d to %s, which is no port into the fabric", max(r.Action.Push, r.Match.Tag), v.name[r.Action.Port]))
	}
}

// into lists the inline functions' ports into which a rule sends frames or copies.
func (v *verifier) into(r *Rule) []Port {
	var to []Port
	if r.Action.Op == Output && v.kind[r.Action.Port] == inlinePort {
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
	reported := map[Port]bool{}
	for i := range v.rules {
		for _, in := range v.into(&v.rules[i]) {
			out := v.opposite[in]
			if v.total(out) == nil && !reported[out] {
				reported[out] = true
				v.find(&v.rules[i], fmt.Errorf("%w: sends into %s, and no rule takes every frame that comes out of %s", ErrBlackHole, v.name[in], v.name[out]))
			}
		}
	}
}

// total is the rule that takes every frame out of a function's port.
func (v *verifier) total(out Port) *Rule {
	for _, r := range v.from[out] {
		if r.Match == (Match{InPort: out}) && r.Action.Op != Normal {
			return r
		}
	}
	return nil
}

// loops walks from function to function, and from the egress stage back into ordinary switching.
func (v *verifier) loops() {
	const walking, done = 1, 2
	state := map[Port]int{}
	var way []Port
	var walk func(out Port)
	walk = func(out Port) {
		switch state[out] {
		case done:
			return
		case walking:
			i := slices.Index(way, out)
			names := []string{}
			for _, p := range append(slices.Clone(way[i:]), out) {
				names = append(names, v.name[p])
			}
			v.errs = append(v.errs, fmt.Errorf("%w: %s", ErrLoop, strings.Join(names, " -> ")))
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
		if r.Stage != Egress {
			continue
		}
		end := r.Action
		for end.Op == Output && v.kind[end.Port] == inlinePort {
			end = v.total(v.opposite[end.Port]).Action
		}
		if end.Op == Resume {
			v.find(r, fmt.Errorf("%w: it catches frames that leave, and its chain hands them back to ordinary switching", ErrLoop))
		}
	}
}

// Way follows one rule through the functions to its end: the ports into which it sends frames, copies apart, and the last action.
// The rule set is sound (see Verify).
func Way(rules []Rule, t Topology, cookie uint64) ([]Port, Action, error) {
	v := newVerifier(rules, t)
	i := slices.IndexFunc(rules, func(r Rule) bool { return r.Cookie == cookie })
	if i < 0 {
		return nil, Action{}, fmt.Errorf("rule %016x: not there", cookie)
	}
	var ports []Port
	end := &rules[i]
	for end.Action.Op == Output && v.kind[end.Action.Port] == inlinePort {
		in := end.Action.Port
		if slices.Contains(ports, in) {
			return ports, Action{}, fmt.Errorf("%w: again into %s", ErrLoop, v.name[in])
		}
		ports = append(ports, in)
		if end = v.total(v.opposite[in]); end == nil {
			return ports, Action{}, fmt.Errorf("%w: behind %s", ErrBlackHole, v.name[in])
		}
	}
	return ports, end.Action, nil
}
