package claim

import (
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"

	"weir.dev/weir/lab/stats"
	"weir.dev/weir/lab/study"
)

var rate = study.Metric{Name: "rate", Unit: "Gb/s", Better: "higher"}

func of(low, high float64) stats.Interval { return stats.Interval{Low: low, High: high} }

var beside = map[string]string{"platform": "theirs"}

// What is said beforehand is what is done: each row is a claim, an interval, and the verdict that the rule's words give.
func TestFiguresAreJudgedAsTheRuleSays(t *testing.T) {
	ratio := func(v float64) study.Claim { return study.Claim{Value: v, Against: beside} }
	for _, c := range []struct {
		name     string
		claim    study.Claim
		interval stats.Interval
		want     Verdict
	}{
		{"a ratio within 25 %", ratio(3.8), of(3.1, 4.7), Reproduced},
		{"a ratio whose interval is a little too wide", ratio(3.8), of(3.0, 4.7), SameDirection},
		{"a ratio of another size", ratio(3.8), of(1.1, 1.3), SameDirection},
		{"a ratio that is larger", ratio(3.8), of(7, 9), SameDirection},
		{"a wide interval around the published ratio", ratio(3.8), of(0.9, 12), Inconclusive},
		{"a wide interval of nothing", ratio(3.8), of(0.01, 1000), Inconclusive},
		{"the other side of 1", ratio(3.8), of(0.5, 0.9), Contradicted},
		{"no difference", ratio(3.8), of(0.98, 1.02), Contradicted},
		{"no difference, though above 1", ratio(3.8), of(1.01, 1.02), Contradicted},
		{"below 1 as published", ratio(0.32), of(0.3, 0.35), Reproduced},
		{"below 1, larger", ratio(0.32), of(0.7, 0.9), SameDirection},
		{"above 1 where below was published", ratio(0.32), of(7, 9), Contradicted},
		{"around 1 where below was published", ratio(0.32), of(0.8, 1.2), Inconclusive},
		{"a narrower tolerance", study.Claim{Value: 3.8, Against: beside, Tolerance: 0.1}, of(3.1, 4.7), SameDirection},
		{"a small difference, a smaller one seen", ratio(1.2), of(1.06, 1.09), SameDirection},
		{"a small difference, as published", ratio(1.2), of(1.1, 1.3), Reproduced},
		{"a small difference, hardly another", ratio(1.2), of(1.02, 1.3), SameDirection},
		{"a small difference, perhaps none", ratio(1.2), of(0.99, 1.25), Inconclusive},
		{"a small difference, none seen", ratio(1.2), of(0.98, 1.03), Contradicted},
		{"a small difference, its tolerance too large", study.Claim{Value: 0.85, Against: beside, Tolerance: 0.5}, of(0.925, 0.94), SameDirection},
		{"a difference next to the margin", ratio(1.08), of(1.04, 1.045), Contradicted},
		{"no difference as published", ratio(1), of(0.96, 1.04), Reproduced},
		{"no difference within what the study allows", study.Claim{Value: 1, Against: beside, Tolerance: 0.25}, of(0.9, 1.1), Reproduced},
		{"no difference, unsure", ratio(1), of(0.9, 1.1), Inconclusive},
		{"a difference where none was published", ratio(1), of(1.3, 1.4), Contradicted},
		{"a difference within 25 % where none was published", ratio(1), of(1.1, 1.2), Contradicted},
		{"a difference where none was published, unsure", ratio(1), of(1.03, 1.4), Inconclusive},

		{"what this study does not measure", study.Claim{Value: 3.8, Against: beside, Untestable: "why"}, of(3.7, 3.9), NotTestable},
		{"a bound that holds", study.Claim{AtLeast: 1}, of(1, 9), Reproduced},
		{"a bound that does not", study.Claim{AtLeast: 1}, of(0.1, 0.99), Contradicted},
		{"a bound within the interval", study.Claim{AtLeast: 1}, of(0.99, 9), Inconclusive},
		{"an upper bound that holds", study.Claim{AtMost: 1}, of(0.1, 1), Reproduced},
		{"an upper bound that does not", study.Claim{AtMost: 1}, of(1.01, 2), Contradicted},
		{"an upper bound within a wide interval", study.Claim{AtMost: 1}, of(0, 1e6), Inconclusive},
		{"a bound with a margin", study.Claim{AtLeast: 1, Tolerance: 0.05}, of(0.96, 1.2), Reproduced},
		{"a bound whose margin reaches past 1", study.Claim{AtLeast: 1.2, Against: beside, Tolerance: 0.25}, of(0.95, 1.05), Contradicted},
		{"an upper bound whose margin reaches past 1", study.Claim{AtMost: 0.9, Against: beside, Tolerance: 0.25}, of(0.96, 1.05), Contradicted},

		{"an absolute figure, the same", study.Claim{Value: 13.8}, of(13.7, 13.9), NotTestable},
		{"an absolute figure, better", study.Claim{Value: 13.8}, of(30, 40), NotTestable},

		{"a target", study.Claim{AtLeast: 5, Source: "target of the lab"}, of(5.1, 5.2), Met},
		{"a target that is missed", study.Claim{AtLeast: 5, Source: "target of the lab"}, of(4.1, 4.3), Missed},
		{"a target that is missed by less than its margin", study.Claim{AtLeast: 5, Source: "target of the lab", Tolerance: 0.2}, of(4.1, 4.3), Met},
		{"a target within the interval", study.Claim{AtLeast: 5, Source: "target of the lab"}, of(4, 6), Inconclusive},
	} {
		got, why := Figure(c.claim, rate, c.interval)
		if got != c.want || why == "" {
			t.Errorf("%s: %s (%s): want %s", c.name, got, why, c.want)
		}
		r := RuleOf(c.claim, rate)
		if (r.NotTestable == "") != (r.Contradicted != "" && r.Inconclusive != "" && r.Reproduced != "") {
			t.Errorf("%s: nothing says beforehand what would contradict it: %+v", c.name, r)
		}
	}
}

// An interval that is wider than the rule allows reproduces nothing, wherever it lies.
func TestAWideIntervalReproducesNothing(t *testing.T) {
	for _, published := range []float64{0.05, 0.32, 0.519, 1, 1.5, 3.1, 3.83, 50} {
		c := study.Claim{Value: published, Against: beside}
		for shift := 0.01; shift < 100; shift *= 1.07 {
			i := of(published*shift/1.26, published*shift*1.26) // 1.59 times: more than 1.25 * 1.25
			if v, why := Figure(c, rate, i); v == Reproduced {
				t.Errorf("%v by %v: %s (%s)", published, i, v, why)
			}
			if wide := of(published*shift/200, published*shift*200); wide.Contains(1) {
				if v, why := Figure(c, rate, wide); v != Inconclusive {
					t.Errorf("%v by %v: %s (%s)", published, wide, v, why)
				}
			}
		}
	}
}

// TestAToleranceNeverReaches1: where a difference was published nothing that holds 1 reproduces it, nor anything within the margin, whatever the tolerance.
func TestAToleranceNeverReaches1(t *testing.T) {
	for _, margin := range []float64{0, 0.01, 0.2} {
		m := study.Metric{Name: "rate", Margin: margin}
		for _, tolerance := range []float64{0, 0.05, 0.25, 0.9} {
			for published := 0.2; published < 5; published *= 1.013 {
				c := study.Claim{Value: published, Against: beside, Tolerance: tolerance}
				same := of(1/m.Band(), m.Band())
				if same.Contains(published) {
					continue
				}
				near := termsOf(c, m).near()
				ends := []float64{math.Abs(math.Log(near.Low)), math.Abs(math.Log(near.High))}
				if near.Contains(1) || !near.Contains(published) || slices.Min(ends) < math.Abs(math.Log(published))/2-1e-9 {
					t.Fatalf("%v within %v: %v", published, tolerance, near)
				}
				for low := 0.3; low < 4; low *= 1.07 {
					for wide := 1.0; wide < 1.5; wide += 0.03 {
						i := of(low, low*wide)
						none := i.Contains(1) || i.Low > same.Low && i.High < same.High
						if v, why := Figure(c, m, i); v == Reproduced && none {
							t.Fatalf("%v within %v by %v: %s (%s)", published, tolerance, i, v, why)
						}
					}
				}
			}
		}
	}
	for _, c := range []study.Claim{{AtLeast: 1.1, Against: beside, Tolerance: 0.5}, {AtMost: 0.9, Against: beside, Tolerance: 0.5}} {
		if v, why := Figure(c, rate, of(0.99, 1.01)); v != Contradicted {
			t.Errorf("%+v: %s (%s)", c, v, why)
		}
	}
}

func TestTheRuleIsSaidInWords(t *testing.T) {
	for want, c := range map[string]study.Claim{
		"contradicted if the whole interval is below 1, or lies within 0.952 to 1.05": {Value: 3.8, Against: beside},
		"more than 1.56 times apart cannot reproduce it":                              {Value: 3.8, Against: beside},
		"lies within 1.1 to 1.31 (from 1.2 at most half of the way to 1)":             {Value: 1.2, Against: beside},
		"reproduced if the whole interval of the ratio lies within 0.952 to 1.05 (no": {Value: 1, Against: beside},
		"contradicted if the whole interval is below 1 Gb/s":                          {AtLeast: 1},
		"depends on the hardware":                                              {AtMost: 1},
		"missed if the whole interval is above 1 Gb/s":                         {AtMost: 1, Source: "target of the lab"},
		"below 10 % of its median":                                             {Shape: study.Linear, Along: "wires", Metric: "rtt"},
		"the quadratic law, which contains it, is not better by more than 5 %": {Shape: study.Linear, Along: "wires", Metric: "rtt"},
		"every other law is worse: constant, linear, power, quadratic":         {Shape: study.Exponential, Along: "wires", Metric: "rtt"},
		"1/rate grows": {Shape: study.Inverse, Along: "wires", Metric: "rate"},
		"not testable: an absolute figure of other hardware": {Value: 13.8},
	} {
		if text := strings.Join(RuleOf(c, rate).Lines(c.IsTarget()), "\n"); !strings.Contains(text, want) {
			t.Errorf("want %q in:\n%s", want, text)
		}
	}
	for _, c := range []study.Claim{{AtLeast: 1, Against: beside}, {AtLeast: 1, Source: "target of the lab"}} {
		if r := RuleOf(c, rate); r.Note != "" {
			t.Errorf("%+v depends on no hardware: %s", c, r.Note)
		}
	}
}

func TestVerdictsAreCounted(t *testing.T) {
	if fmt.Sprint(Published()) != "[reproduced same direction contradicted inconclusive not testable]" || !slices.Contains(Targets(), Missed) {
		t.Error(Published(), Targets())
	}
}
