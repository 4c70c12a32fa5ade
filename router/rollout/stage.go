package rollout

import (
	"slices"
	"time"

	"weir.dev/weir/api"
	"weir.dev/weir/router/fabric"
	"weir.dev/weir/router/fabric/steering"
)

// Stage is how far the rules have come from one input to the next (see fabric.Variant for the steps): first the old input with what is
// coming, until that is in force; then the new one with what had been, until that has drained; then the new one alone. Where the first
// step changes no rule it takes no time, and likewise the last one.
type Stage struct {
	known  bool
	now    fabric.Input       // what the target is of
	wanted map[string]Version // of its policies
	past   []fabric.Input     // others, of which rules may be in force yet
	Waits  time.Time          // since when another one is to come; zero: none is
	tagged bool               // rules have changed for the one that is to come: it waits until these are in force and what they replaced has drained
	marked bool               // the target has changing policies
}

const (
	maxPast      = 8               // inputs that may be in force in part at once; then the next one waits
	PreparedMost = 3 * time.Second // a change waits no longer for rules that could be taken for its own: someone does not answer
)

// target is an input with its rules.
type target struct {
	In       fabric.Input
	Versions map[string]Version
	Out      fabric.Output
	Tidies   bool // what was in force stays, but for the tags that it needed on the way here
}

// Next computes what is to come into force now that in is wanted. have is what was computed last; settled: that, and nothing else, is in
// force, and what was in flight has drained.
func (s *Stage) Next(in fabric.Input, versions map[string]Version, have fabric.Output, settled bool, now time.Time, compile func(fabric.Input) fabric.Output) target {
	if settled {
		s.past = nil
	}
	var coming map[string][]fabric.Variant
	if s.known {
		coming = fabric.Between(s.now, in, true)
	}
	if len(coming) > 0 {
		if s.Waits.IsZero() {
			s.Waits = now
		}
		if now.Before(s.Waits.Add(PreparedMost)) && !broken(s.now, in, coming) {
			t := s.prepare(in, coming, compile)
			if t.Out.Clash || len(s.past) >= maxPast || !sameOutput(t.Out, have) || s.tagged && !settled {
				s.tagged = true
				return t
			}
		}
		s.past = append(s.past, s.now)
		s.past = s.past[max(0, len(s.past)-maxPast):]
	}
	tidies := settled && s.known && s.marked && len(coming) == 0 && fabric.SameWorld(&s.now, &in)
	s.known, s.now, s.wanted, s.Waits, s.tagged = true, in, versions, time.Time{}, false
	s.now.Changing = nil
	in.Changing = s.changing(in, nil)
	s.marked = len(in.Changing) > 0
	return target{in, versions, compile(in), tidies}
}

// prepare computes what is in force, in the network as it is now, so that it can be told from what is coming.
func (s *Stage) prepare(in fabric.Input, coming map[string][]fabric.Variant, compile func(fabric.Input) fabric.Output) target {
	old := in
	old.Policies, old.Before, old.Edited, old.Chains, old.Functions = s.now.Policies, s.now.Before, s.now.Edited, s.now.Chains, s.now.Functions
	old.Changing = s.changing(old, coming)
	s.marked = true
	return target{old, s.wanted, compile(old), false}
}

// changing adds the forms that policies of an input had.
func (s *Stage) changing(in fabric.Input, all map[string][]fabric.Variant) map[string][]fabric.Variant {
	for _, p := range s.past {
		for name, v := range fabric.Between(in, p, false) {
			if all == nil {
				all = map[string][]fabric.Variant{}
			}
			all[name] = append(all[name], v...)
		}
	}
	return all
}

// More tells whether there is something to compute when all is in force.
func (s *Stage) More() bool { return s.marked || !s.Waits.IsZero() }

// broken tells whether a policy that changes does not work any more as it is: then nothing is gained by waiting.
func broken(old, now fabric.Input, changes map[string][]fabric.Variant) bool {
	for name := range changes {
		p, there := old.Policies[name]
		if !there {
			continue
		}
		for _, end := range []string{p.From, p.To} {
			_, was := old.Endpoints[end]
			if _, is := now.Endpoints[end]; was && !is {
				return true
			}
		}
		hops, _ := api.ParsePath(old.Chains[p.Chain].Path)
		if slices.ContainsFunc(hops, func(h api.PathHop) bool {
			f, g := old.Functions[h.Function], now.Functions[h.Function]
			_, there := now.Functions[h.Function] // one that is deleted works until no rule leads to it
			return there && !h.Tap && f.Ready && (g.Host != f.Host || !g.Ready)
		}) {
			return true
		}
	}
	return false
}

// sameOutput tells whether two outputs put the same rules in force.
func sameOutput(a, b fabric.Output) bool {
	if len(a.Entries) != len(b.Entries) || len(a.Hosts) != len(b.Hosts) || !a.Paths.Same(b.Paths) {
		return false
	}
	for id, x := range a.Entries {
		y, there := b.Entries[id]
		if !there || !SameList(x, y) && !slices.EqualFunc(x, y, func(m, n *fabric.Entry) bool {
			return m == n || m.Table == n.Table && m.Priority == n.Priority && m.Cookie == n.Cookie && sameEntry(m, n)
		}) {
			return false
		}
	}
	for id, x := range a.Hosts {
		y, there := b.Hosts[id]
		if !there || !SameList(x, y) && !slices.EqualFunc(x, y, func(m, n *api.HostRule) bool { return m == n || SameHostRule(*m, *n) }) {
			return false
		}
	}
	return true
}

// compiler computes what differs from the input before. Its calls follow one another.
func NewCompiler() func(fabric.Input) fabric.Output {
	var c *steering.Compiler
	return func(in fabric.Input) fabric.Output {
		if c == nil {
			c = steering.New(in)
			return c.Output()
		}
		return c.Update(in)
	}
}
