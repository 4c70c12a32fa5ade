package datapath

import (
	"errors"
	"fmt"
	"slices"

	"weir.dev/weir/flow"
)

// PortKind is what a port is to the rules that name it.
type PortKind uint8

const (
	NoPort PortKind = iota
	FunctionPort
	EndpointPort
	FabricPort // an endpoint's that leads into the fabric
)

// CheckRules tells why a switch with these ports cannot have the rules in force together.
func CheckRules(rules []flow.Rule, kind func(flow.Port) PortKind) error {
	seen := make(map[uint64]int, len(rules))
	for i := range rules {
		r := &rules[i]
		if at, twice := seen[r.Cookie]; twice {
			return fmt.Errorf("cookie %016x is shared by the rules %q and %q", r.Cookie, rules[at].Note, r.Note)
		}
		seen[r.Cookie] = i
		if err := CheckRule(r, kind); err != nil {
			return err
		}
	}
	return nil
}

// CheckRule checks a rule, and what the rule language leaves to the switch: that ports exist (ErrNotFound) and are of the right kind.
func CheckRule(r *flow.Rule, kind func(flow.Port) PortKind) error {
	if err := r.Validate(); err != nil {
		return err
	}
	var errs []error
	exists := func(what string, n flow.Port, endpoint bool) {
		switch k := kind(n); {
		case n == 0:
		case k == NoPort:
			errs = append(errs, fmt.Errorf("%s %d is no port of this switch: %w", what, n, ErrNotFound))
		case endpoint && k == FunctionPort:
			errs = append(errs, fmt.Errorf("%s %d: a function's port, want an endpoint's", what, n))
		}
	}
	fabric := func(what string, n flow.Port) {
		if k := kind(n); n != 0 && k != NoPort && k != FabricPort {
			errs = append(errs, fmt.Errorf("%s %d, which is none into the fabric", what, n))
		}
	}
	a := r.Action
	exists("in port", r.Match.InPort, r.Stage == flow.Egress)
	exists("out port", r.Match.OutPort, true)
	exists("target port", a.Port, a.Op == flow.Resume)
	for _, c := range a.Clones {
		exists("clone to port", c.Port, false)
		if c.Push != 0 {
			fabric("a copy with a fabric tag goes to port", c.Port)
		}
	}
	if r.Match.Tag != 0 {
		fabric("a fabric tag is matched at port", r.Match.InPort)
	}
	if a.Op == flow.Output && (a.Push != 0 || r.Match.Tag != 0 && !a.Pop) {
		fabric("a frame with a fabric tag goes to port", a.Port)
	}
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("rule %016x (%s): %w", r.Cookie, r.Note, err)
	}
	return nil
}

// Compare tells what a commit changes. Notes do not count.
func Compare(before, after []flow.Rule) (c Commit) {
	at := make(map[uint64]*flow.Rule, len(before))
	for i := range before {
		at[before[i].Cookie] = &before[i]
	}
	for i := range after {
		old := at[after[i].Cookie]
		switch {
		case old == nil:
			c.Added++
		case old.Same(&after[i]):
			c.Unchanged++
		default:
			c.Changed++
		}
	}
	c.Removed = len(before) - c.Unchanged - c.Changed
	return c
}

// SameNotes tells that two rule sets have the same cookies and notes in the same order.
func SameNotes(a, b []flow.Rule) bool {
	return slices.EqualFunc(a, b, func(a, b flow.Rule) bool { return a.Note == b.Note && a.Cookie == b.Cookie })
}
