// Package search finds the highest loads that meet loss goals: the Multiple Loss Ratio search of draft-ietf-bmwg-mlrsearch (BMWG), as FD.io
// CSIT uses it for NDR and PDR. It is pure: the caller asks for the Next trial, runs it, and tells the outcome with Add, so that the searches
// of several variants can advance in turn under one schedule.
//
// A load is classified by how much of the time that was measured there was too lossy, not by a single trial: with an exceed ratio of one
// half, a machine that is disturbed less than half of the time does not move the result.
package search

import (
	"errors"
	"fmt"
	"math"
	"time"
)

// Goal is one question: the highest load at which at most Exceed of the measured time loses more than Loss.
type Goal struct {
	Name   string
	Loss   float64       // tolerated loss ratio of a trial, 0 for NDR, 0.005 for PDR
	Exceed float64       // share of the time that may lose more, in [0, 1); 0.5 in CSIT
	Trial  time.Duration // a full-length trial
	Sum    time.Duration // of full-length trials that settle a load
	Width  float64       // relative: (upper - lower) / upper of a result
	First  time.Duration // the shortest trials, to get near quickly; 0: Trial
}

// Config of a search. Loads are in whatever unit the caller's generator takes, for example packets per second.
type Config struct {
	Min, Max float64
	Goals    []Goal
	// Trials bounds the search; what is not settled then is told as it is. 0: 1,000.
	Trials int
}

// Trial is what to measure next.
type Trial struct {
	Load     float64
	Duration time.Duration
}

// Outcome of a trial: Loss is the ratio of what was lost to what should have been sent; what the generator could not send counts as lost.
type Outcome struct {
	Trial
	Loss float64
}

// Result of one goal.
type Result struct {
	Goal  string  `json:"goal"`
	Lower float64 `json:"lower"` // highest load that meets the goal; 0: not even Min does
	Upper float64 `json:"upper"` // lowest load that does not; 0: even Max meets it
	// Throughput is the conditional throughput: Lower times what arrives there in the trial at the goal's quantile.
	Throughput float64 `json:"throughput"`
	Settled    bool    `json:"settled"` // bounds are within the goal's width, or at an end of the range
	Why        string  `json:"why,omitempty"`
}

// Search is one variant's search. Make it with New; it is not safe for concurrent use.
type Search struct {
	c       Config
	at      map[float64]*load
	trials  int
	targets []target
	results []Result // of the goals done
}

// target is a goal, or a coarser and quicker form of it on the way.
type target struct {
	Goal
	of    int // index of the goal
	final bool
}

const (
	defaultTrials = 1000
	coarser       = 2 // how much wider and shorter each earlier target is
	maxCoarser    = 6 // targets per goal at most
)

// New checks the configuration.
func New(c Config) (*Search, error) {
	var errs []error
	if !(c.Min > 0) || !(c.Max > c.Min) || math.IsInf(c.Max, 1) {
		errs = append(errs, fmt.Errorf("loads from %v to %v: want 0 < min < max", c.Min, c.Max))
	}
	if len(c.Goals) == 0 {
		errs = append(errs, errors.New("no goal"))
	}
	if c.Trials == 0 {
		c.Trials = defaultTrials
	}
	s := &Search{c: c, at: map[float64]*load{}}
	for i, g := range c.Goals {
		if g.Loss < 0 || g.Loss >= 1 || g.Exceed < 0 || g.Exceed >= 1 || g.Trial <= 0 || g.Sum < g.Trial || !(g.Width > 0 && g.Width < 1) || g.First < 0 || g.First > g.Trial {
			errs = append(errs, fmt.Errorf("goal %s: want loss and exceed ratio in [0, 1), width in (0, 1), 0 < trial <= sum, first <= trial", g.Name))
			continue
		}
		s.targets = append(s.targets, stages(g, i)...)
	}
	return s, errors.Join(errs...)
}

// stages are the goal and what leads to it, the coarsest first.
func stages(g Goal, of int) []target {
	out := []target{{Goal: g, of: of, final: true}}
	t, w := g.Trial, g.Width
	for range maxCoarser {
		if t = t / coarser; g.First == 0 || t < g.First {
			break
		}
		w = min(w*coarser, 0.5)
		quick := g
		quick.Trial, quick.Sum, quick.Width = t, t, w
		out = append([]target{{Goal: quick, of: of}}, out...)
	}
	return out
}

// Next is the trial to run now; ok is false when all goals are done.
func (s *Search) Next() (t Trial, ok bool) {
	for len(s.targets) > 0 {
		g := s.targets[0]
		if s.trials < s.c.Trials {
			if at, more := s.choose(g); more {
				return Trial{Load: at, Duration: g.Trial}, true
			}
		}
		if g.final {
			s.results = append(s.results, s.result(g))
		}
		s.targets = s.targets[1:]
	}
	return Trial{}, false
}

// Add tells the outcome of a trial.
func (s *Search) Add(o Outcome) {
	l := s.at[o.Load]
	if l == nil {
		l = &load{}
		s.at[o.Load] = l
	}
	l.trials = append(l.trials, o)
	s.trials++
}

// Results of the goals that are done, in their order.
func (s *Search) Results() []Result { return s.results }

// Trials that were told so far.
func (s *Search) Trials() int { return s.trials }

// choose gives the load to measure for a target, or none if the target is met.
func (s *Search) choose(g target) (float64, bool) {
	lower, upper, open := s.bounds(g.Goal)
	switch {
	case open != 0: // begun and undecided
		return open, true
	case lower == 0 && upper == 0:
		if hint := s.hint(); hint != 0 {
			return hint, true
		}
		return s.c.Max, true
	case upper == 0 && lower >= s.c.Max, lower == 0 && upper <= s.c.Min:
		return 0, false
	case upper == 0:
		return s.above(g, lower), true
	case lower == 0:
		return s.below(g, upper), true
	case (upper-lower)/upper <= g.Width:
		return 0, false
	}
	return math.Sqrt(lower * upper), true
}

// hint is where an earlier target ended: measure there first.
func (s *Search) hint() float64 {
	best, most := 0.0, 0.0
	for at, l := range s.at {
		// The highest load of which some trial lost little.
		if l.best() <= 0.005 && at > best {
			best = at
		}
		most = max(most, at)
	}
	if best == 0 && most > 0 {
		return s.received(most)
	}
	return best
}

// received is what arrived at a load at its best, kept in range.
func (s *Search) received(at float64) float64 {
	return min(max(at*(1-s.at[at].best()), s.c.Min), s.c.Max)
}

// below goes down from an upper bound: to what arrived there, then further in growing steps.
func (s *Search) below(g target, upper float64) float64 {
	if l := s.at[upper]; l != nil {
		if r := s.received(upper); r < upper*(1-g.Width/2) && s.at[r] == nil {
			return r
		}
	}
	return max(upper*(1-s.step(g, upper, -1)), s.c.Min)
}

func (s *Search) above(g target, lower float64) float64 {
	return min(lower/(1-s.step(g, lower, +1)), s.c.Max)
}

// step grows with the number of loads that this target has already met on that side: an exponential search outwards.
func (s *Search) step(g target, from float64, side int) float64 {
	n := 0
	for at, l := range s.at {
		if (at > from) == (side < 0) && at != from && l.classify(g.Goal) != undecided {
			n++
		}
	}
	return min(g.Width*math.Pow(2, float64(min(n, 10))), 0.5)
}

// bounds are the relevant bounds as the draft defines them: the lowest upper bound, and the highest lower bound under it. open is a load
// between them that was begun with trials of this length and is undecided.
func (s *Search) bounds(g Goal) (lower, upper, open float64) {
	for at, l := range s.at {
		if l.classify(g) == upperBound && (upper == 0 || at < upper) {
			upper = at
		}
	}
	for at, l := range s.at {
		if l.classify(g) == lowerBound && (upper == 0 || at < upper) && at > lower {
			lower = at
		}
	}
	for at, l := range s.at {
		if at > lower && (upper == 0 || at < upper) && l.classify(g) == undecided && l.full(g) > 0 && at > open {
			open = at
		}
	}
	return lower, upper, open
}

func (s *Search) result(g target) Result {
	lower, upper, _ := s.bounds(g.Goal)
	r := Result{Goal: g.Name, Lower: lower, Upper: upper}
	switch {
	case lower > 0 && upper == 0 && lower >= s.c.Max:
		r.Settled, r.Why = true, "the highest load that was tried still meets the goal"
	case lower == 0 && upper > 0 && upper <= s.c.Min:
		r.Settled, r.Why = true, "the lowest load that was tried does not meet the goal"
	case lower > 0 && upper > 0 && (upper-lower)/upper <= g.Width:
		r.Settled = true
	default:
		r.Why = fmt.Sprintf("not settled within %d trials", s.c.Trials)
	}
	if lower > 0 {
		r.Throughput = lower * (1 - s.at[lower].quantileLoss(g.Goal))
	}
	return r
}
