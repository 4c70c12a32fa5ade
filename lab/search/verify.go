package search

import (
	"fmt"
	"math"
)

// Verification is what makes a load that a search has found a result: so many long trials in a row at the same load, each of which meets the goal. A
// search stands on short trials, and tolerates some that lose more; RFC 2544 section 26.1 asks for a long trial (60 s) at the result, and FD.io CSIT
// does the same. A load that does not verify is lowered in growing steps until one does, and then raised again by bisection. Before its long trials, each load
// has a short one: what loses too much there need not be tried for long. All numbers of trials are bounded. It is pure, and not safe for concurrent use; make
// it with Verify.
type Verification struct {
	goal   Goal
	min    float64
	load   float64 // tried now
	first  float64 // the load with which it began
	short  bool    // loads have a short trial first
	tried  bool    // it has met the goal
	passed int     // long trials at it
	void   int     // trials at it in which the machine stalled for too long
	lower  float64 // verified; 0: none yet
	upper  float64 // the lowest that was refused; 0: none yet
	steps  int     // downwards
	halves int     // of the interval
	done   bool
	why    string
}

// Bounds of a verification.
const (
	VerifyTrials = 3    // long ones at a load
	VerifyWidth  = 0.05 // relative: what is verified and what is refused may be so far apart
	verifyStep   = 0.05 // the first step downwards; each further one is twice as large
	verifySteps  = 7    // with all of them, about 3 % of the load are left
	verifyHalves = 4
	verifyVoids  = 6 // trials at a load in which the machine stalled for too long
)

// Verified is the outcome of a verification.
type Verified struct {
	Goal  string  `json:"goal"`
	Load  float64 `json:"load"`  // every trial there met the goal; 0: no such load was found
	Upper float64 `json:"upper"` // the lowest load at which a trial did not; 0: there was none
	Why   string  `json:"why,omitempty"`
}

// Verify begins at a load, for a goal whose trials lose nothing or, with a loss ratio, less than that. It tries no load below min.
func Verify(g Goal, load, min float64) *Verification {
	return &Verification{goal: g, load: load, first: load, min: min, short: true, done: !(load > 0)}
}

// OnlyLong says, before the first trial, that all trials are long: short ones would not be shorter.
func (v *Verification) OnlyLong() { v.short, v.tried = false, true }

// Known tells, before the first trial, that a load has met a stricter goal: it has met this one, too.
func (v *Verification) Known(load float64) {
	v.lower = max(v.lower, load)
	v.done = v.done || v.load <= v.lower
}

// Next is the load of the next trial, and whether that is a short one; ok is false when the verification is over.
func (v *Verification) Next() (load float64, short, ok bool) { return v.load, !v.tried, !v.done }

// Kind of a verification trial's outcome.
type Kind uint8

const (
	Counts     Kind = iota
	Stalled         // a CPU stalled for too much of the trial: it says nothing, and is made again
	NotOffered      // the generator could not send the load: it cannot be verified
)

// Add tells the outcome of a trial; loss is a ratio, of a trial that counts.
func (v *Verification) Add(k Kind, loss float64) {
	switch {
	case v.done:
	case k == Stalled:
		if v.void++; v.void > verifyVoids {
			v.stop(fmt.Sprintf("not found: the machine stalls: in %d trials at %.0f frames a second its CPUs were away for too much of the time", v.void, v.load))
		}
	case k == NotOffered || loss > 0 && loss >= v.goal.Loss:
		v.refuse()
	case !v.tried:
		v.tried = true
	default:
		if v.passed++; v.passed == VerifyTrials {
			v.lower = v.load
			v.choose()
		}
	}
}

func (v *Verification) refuse() {
	v.upper = v.load
	v.choose()
}

// choose the next load: down while none is verified, else between what is verified and what is refused.
func (v *Verification) choose() {
	v.tried, v.passed, v.void = !v.short, 0, 0
	switch {
	case v.lower > 0 && (v.upper == 0 || (v.upper-v.lower)/v.upper <= VerifyWidth || v.halves == verifyHalves):
		v.done = true
	case v.lower > 0:
		v.halves++
		v.load = math.Sqrt(v.lower * v.upper)
	case v.upper <= v.min || v.steps == verifySteps:
		v.stop(fmt.Sprintf("not found between %.0f and %.0f frames a second: no load verified", v.upper, v.first))
	default:
		step := min(verifyStep*math.Pow(2, float64(v.steps)), 0.5)
		v.steps++
		v.load = max(v.load*(1-step), v.min)
	}
}

func (v *Verification) stop(why string) { v.done, v.why = true, why }

// Result when it is over. What is verified stays so if the machine stalled later.
func (v *Verification) Result() Verified {
	return Verified{Goal: v.goal.Name, Load: v.lower, Upper: v.upper, Why: v.why}
}
