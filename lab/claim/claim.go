// Package claim has the rules by which a published figure, or a target of our own, is judged from what a run measured. A rule follows from the claim alone,
// before anything is measured: what would reproduce it, what would contradict it, and what would leave it open. The package is pure.
package claim

import (
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"

	"weir.dev/weir/lab/stats"
	"weir.dev/weir/lab/study"
)

// Verdict on a claim.
type Verdict string

// Verdicts on what others published.
const (
	Reproduced    Verdict = "reproduced"
	SameDirection Verdict = "same direction"
	Contradicted  Verdict = "contradicted"
)

// Verdicts on a target of our own.
const (
	Met    Verdict = "met"
	Missed Verdict = "missed"
)

// Verdicts on both.
const (
	Inconclusive Verdict = "inconclusive" // this run is too short, or its noise too large
	NotTestable  Verdict = "not testable" // no run of this study on this machine can tell
)

// Rank of a verdict among those of several systems on one claim: the lowest one is that on all of them together.
func (v Verdict) Rank() int {
	return slices.Index([]Verdict{Contradicted, Missed, Inconclusive, SameDirection, Reproduced, Met, NotTestable}, v)
}

// Published are the verdicts on what others published, in the order in which they are counted.
func Published() []Verdict {
	return []Verdict{Reproduced, SameDirection, Contradicted, Inconclusive, NotTestable}
}

// Targets are the verdicts on targets of our own.
func Targets() []Verdict { return []Verdict{Met, Missed, Inconclusive, NotTestable} }

// Growth is the share of its median by which a metric that grows gains over all levels.
const Growth = 0.1

// Rule says in words, before anything is measured, what each verdict takes. All intervals are those of 95 %. Where nothing can lead to a verdict its words are
// empty.
type Rule struct {
	Reproduced    string `json:"reproduced_if,omitempty"` // of a target: met
	SameDirection string `json:"same_direction_if,omitempty"`
	Contradicted  string `json:"contradicted_if,omitempty"` // of a target: missed
	Inconclusive  string `json:"inconclusive_if,omitempty"`
	NotTestable   string `json:"not_testable,omitempty"` // why no run can tell
	Note          string `json:"note,omitempty"`         // what a verdict does not say
}

// Lines of the rule: what contradicts the claim comes first.
func (r Rule) Lines(target bool) (lines []string) {
	bad, good := Contradicted, Reproduced
	if target {
		bad, good = Missed, Met
	}
	for _, l := range []struct {
		word Verdict
		when string
	}{{bad, r.Contradicted}, {good, r.Reproduced}, {SameDirection, r.SameDirection}, {Inconclusive, r.Inconclusive}} {
		if l.when != "" {
			lines = append(lines, fmt.Sprintf("%s if %s", l.word, l.when))
		}
	}
	if r.NotTestable != "" {
		lines = append(lines, fmt.Sprintf("%s: %s", NotTestable, r.NotTestable))
	}
	if r.Note != "" {
		lines = append(lines, r.Note)
	}
	return lines
}

const (
	otherHardware = "an absolute figure of other hardware, to which the source gives no baseline"
	boundNote     = "A bound in absolute terms depends on the hardware: that this machine meets it does not reproduce the published system, and that it does not meet it is no fault of that system."
)

// terms are a claim's figures.
type terms struct {
	study.Claim
	off, band float64
	unit      string // of an absolute figure
}

func termsOf(c study.Claim, m study.Metric) terms {
	t := terms{Claim: c, off: c.Off(), band: m.Band()}
	if c.IsAbsolute() {
		t.unit = m.Unit
	}
	return t
}

// RuleOf a claim about a metric.
func RuleOf(c study.Claim, m study.Metric) Rule {
	t := termsOf(c, m)
	switch {
	case c.Untestable != "":
		return Rule{NotTestable: c.Untestable}
	case c.Shape != "":
		return t.shapeRule()
	case c.AtLeast > 0 || c.AtMost > 0:
		return t.boundRule()
	case c.IsAbsolute():
		return Rule{NotTestable: otherHardware}
	}
	return t.ratioRule()
}

// near is the range that reproduces a ratio. Where a difference was published it is on the published side of 1: its end towards 1 is at least half of the way
// from 1 to the published ratio, on the scale of logarithms, and outside of the margin within which there is no difference. Where no difference was published
// it is that margin, unless the claim sets a tolerance.
func (t terms) near() stats.Interval {
	if t.equal() && t.Tolerance == 0 {
		return stats.Interval{Low: 1 / t.band, High: t.band}
	}
	off := 1 + t.off
	if !t.equal() {
		off = min(off, math.Sqrt(max(t.Value, 1/t.Value)))
	}
	near := stats.Interval{Low: t.Value / off, High: t.Value * off}
	switch {
	case t.equal():
	case t.Value > 1:
		near.Low = max(near.Low, t.band)
	default:
		near.High = min(near.High, 1/t.band)
	}
	return near
}

// nearText says where the range comes from.
func (t terms) nearText() string {
	switch {
	case t.equal() && t.Tolerance == 0:
		return "no difference"
	case !t.equal() && 1+t.off > math.Sqrt(max(t.Value, 1/t.Value)):
		return fmt.Sprintf("from %s at most half of the way to 1", figure(t.Value))
	}
	return fmt.Sprintf("%s %% of %s", figure(t.off*100), figure(t.Value))
}

// equal tells whether what was published is that there is no difference.
func (t terms) equal() bool { return t.Value >= 1/t.band && t.Value <= t.band }

func (t terms) ratioRule() Rule {
	near := t.near()
	r := Rule{
		Reproduced:   fmt.Sprintf("the whole interval of the ratio lies within %s to %s (%s)", figure(near.Low), figure(near.High), t.nearText()),
		Inconclusive: fmt.Sprintf("the interval reaches to both sides of 1; an interval whose ends are more than %s times apart cannot reproduce it", figure(near.High/near.Low)),
	}
	none := fmt.Sprintf("lies within %s to %s (no difference)", figure(1/t.band), figure(t.band))
	switch {
	case t.equal():
		r.Contradicted = fmt.Sprintf("the whole interval lies below %s, or above %s", figure(near.Low), figure(near.High))
		r.Inconclusive = "the interval reaches beyond one of them"
	case t.Value > 1:
		r.SameDirection, r.Contradicted = "the whole interval is above 1", "the whole interval is below 1, or "+none
	default:
		r.SameDirection, r.Contradicted = "the whole interval is below 1", "the whole interval is above 1, or "+none
	}
	return r
}

// ratio: equivalence with the published one within a margin that was set beforehand, as TOST (Schuirmann 1987), but with the 95 % interval that is shown.
func (t terms) ratio(i stats.Interval) (Verdict, string) {
	near := t.near()
	above, below := i.Low > 1, i.High < 1
	same := i.Low > 1/t.band && i.High < t.band
	within := i.Low >= near.Low && i.High <= near.High
	switch {
	case t.equal() && within:
		return Reproduced, fmt.Sprintf("the whole interval is within %s to %s", figure(near.Low), figure(near.High))
	case t.equal() && (i.High < near.Low || i.Low > near.High):
		return Contradicted, fmt.Sprintf("no part of the interval is within %s to %s", figure(near.Low), figure(near.High))
	case t.equal():
		return Inconclusive, "the interval reaches beyond the tolerance"
	case same:
		return Contradicted, fmt.Sprintf("there is no difference: the whole interval lies within %s to %s", figure(1/t.band), figure(t.band))
	case above && t.Value < 1, below && t.Value > 1:
		return Contradicted, "the whole interval is on the other side of 1"
	case !above && !below:
		return Inconclusive, "the interval contains 1"
	case within:
		return Reproduced, fmt.Sprintf("the whole interval is within %s to %s", figure(near.Low), figure(near.High))
	case i.High < near.Low || i.Low > near.High:
		return SameDirection, "another size: no part of the interval is within the tolerance"
	}
	return SameDirection, "the interval reaches beyond the tolerance: its size is open"
}

// edge is the bound with its tolerance. That of a ratio stays on the bound's side of 1, at least half of the way from 1 to it.
func (t terms) edge() (word string, edge float64) {
	ratio := !t.IsAbsolute()
	if t.AtLeast > 0 {
		edge = t.AtLeast * (1 - t.off)
		if ratio && t.AtLeast > 1 {
			edge = max(edge, math.Sqrt(t.AtLeast))
		}
		return "at least", edge
	}
	edge = t.AtMost * (1 + t.off)
	if ratio && t.AtMost < 1 {
		edge = min(edge, math.Sqrt(t.AtMost))
	}
	return "at most", edge
}

func (t terms) boundRule() Rule {
	word, edge := t.edge()
	at := strings.TrimSpace(figure(edge) + " " + t.unit)
	beyond := map[string]string{"at least": "below", "at most": "above"}[word]
	r := Rule{
		Reproduced:   fmt.Sprintf("the whole interval is %s %s", word, at),
		Contradicted: fmt.Sprintf("the whole interval is %s %s", beyond, at),
		Inconclusive: fmt.Sprintf("the interval reaches to both sides of %s", at),
	}
	if t.IsAbsolute() && !t.IsTarget() {
		r.Note = boundNote
	}
	return r
}

func (t terms) bound(i stats.Interval) (Verdict, string) {
	word, edge := t.edge()
	holds, fails := i.Low >= edge, i.High < edge
	if t.AtMost > 0 {
		holds, fails = i.High <= edge, i.Low > edge
	}
	switch {
	case holds:
		return Reproduced, fmt.Sprintf("the whole interval is %s %s", word, figure(edge))
	case fails:
		return Contradicted, fmt.Sprintf("no part of the interval is %s %s", word, figure(edge))
	}
	return Inconclusive, fmt.Sprintf("the interval reaches to both sides of %s", figure(edge))
}

// Figure judges a figure by its interval: a ratio, or an absolute figure where the claim is one.
func Figure(c study.Claim, m study.Metric, i stats.Interval) (v Verdict, why string) {
	t := termsOf(c, m)
	switch {
	case c.Untestable != "":
		v, why = NotTestable, c.Untestable
	case c.AtLeast > 0 || c.AtMost > 0:
		v, why = t.bound(i)
	case c.IsAbsolute():
		v, why = NotTestable, otherHardware
	default:
		v, why = t.ratio(i)
	}
	return t.word(v), why
}

// word for a verdict: targets are met or missed.
func (t terms) word(v Verdict) Verdict {
	if !t.IsTarget() {
		return v
	}
	switch v {
	case Reproduced:
		return Met
	case SameDirection, Contradicted:
		return Missed
	}
	return v
}

func (t terms) shapeRule() Rule {
	what := t.Metric
	if t.Shape == study.Inverse {
		what = "1/" + what
	}
	law, off := Law(t.Shape), figure(t.off*100)
	var apart []string
	wider := ""
	for _, r := range rivals(law) {
		switch {
		case contains(r, law):
			wider = fmt.Sprintf("; the %s law, which contains it, is not better by more than %s %%", r, off)
		case r == stats.LawPower && law == stats.LawLinear:
			apart = append(apart, fmt.Sprintf("%s (unless its exponent is within %s to %s: a line)", r, figure(1-t.off), figure(1+t.off)))
		default:
			apart = append(apart, r)
		}
	}
	return Rule{
		Reproduced: fmt.Sprintf("%s grows with %s, and by whole intervals: the %s law is at most %s %% off, noise apart%s; every other law is worse: %s",
			what, t.Along, law, off, wider, strings.Join(apart, ", ")),
		SameDirection: fmt.Sprintf("%s grows, and by a whole interval the law is more than %s %% off, or another law is better", what, off),
		Contradicted:  fmt.Sprintf("the whole interval of what %s gains from the least to the most %s is below %s %% of its median", what, t.Along, figure(Growth*100)),
		Inconclusive:  "the interval of the gain contains 0, or one of the others reaches to both sides",
		NotTestable:   fmt.Sprintf("with fewer than %d measured levels of %s", study.MinLevels, t.Along),
	}
}

// Law that a shape is judged by. Of the shape inverse it is that of 1/y.
func Law(shape string) string {
	if shape == study.Exponential {
		return stats.LawExponential
	}
	return stats.LawLinear
}

func rivals(law string) []string {
	return slices.DeleteFunc(stats.Laws(), func(l string) bool { return l == law })
}

// contains tells whether a wider law has another one as a special case. It is worse only by its own noise.
func contains(wider, law string) bool { return wider == stats.LawQuadratic && law == stats.LawLinear }

// isLine tells whether the power law is the line through the origin, which a linear law contains.
func isLine(f stats.ShapeFit, off float64) bool {
	return f.Law == stats.LawLinear && f.ExponentInterval.Low >= 1-off && f.ExponentInterval.High <= 1+off
}

// Shape judges how a metric grows by the fit of the claim's law, of 1/y if the shape is inverse.
func Shape(c study.Claim, f stats.ShapeFit) (Verdict, string) {
	v, why := shape(f, c.Off())
	if c.Shape == study.Inverse {
		why = fmt.Sprintf("of 1/%s: %s", c.Metric, why)
	}
	return terms{Claim: c}.word(v), why
}

func shape(f stats.ShapeFit, off float64) (Verdict, string) {
	switch {
	case f.GainInterval.High < 0:
		return Contradicted, fmt.Sprintf("it shrinks by %s to %s of its median", percent(-f.GainInterval.High), percent(-f.GainInterval.Low))
	case f.GainInterval.High < Growth:
		return Contradicted, fmt.Sprintf("from the least to the most it gains at most %s of its median", percent(f.GainInterval.High))
	case f.GainInterval.Low <= 0:
		return Inconclusive, "the interval of the gain contains 0"
	}
	var against, open []string
	switch m := f.Misfit; {
	case m.Low > off:
		against = append(against, fmt.Sprintf("%s is %s to %s off, noise apart", f.Law, percent(m.Low), percent(m.High)))
	case m.High > off:
		open = append(open, fmt.Sprintf("%s may be up to %s off, noise apart", f.Law, percent(m.High)))
	}
	nearest, by := "", stats.Interval{}
	for _, rival := range rivals(f.Law) {
		behind, ok := f.Behind[rival]
		if !ok || rival == stats.LawPower && isLine(f, off) {
			continue
		}
		better, margin := stats.Interval{Low: -behind.High, High: -behind.Low}, 0.0
		if contains(rival, f.Law) {
			margin = off
		}
		switch {
		case better.Low > margin:
			against = append(against, fmt.Sprintf("%s is better by %s to %s", rival, percent(better.Low), percent(better.High)))
		case better.High > margin || margin == 0 && better.High == 0:
			open = append(open, fmt.Sprintf("%s is between %s worse and %s better", rival, percent(behind.High), percent(better.High)))
		case margin == 0 && (nearest == "" || behind.Low < by.Low):
			nearest, by = rival, behind
		}
	}
	switch {
	case len(against) > 0:
		return SameDirection, "it grows, but " + strings.Join(against, "; ")
	case len(open) > 0:
		return Inconclusive, "it grows, but how is open: " + strings.Join(open, "; ")
	}
	return Reproduced, fmt.Sprintf("%s is at most %s off, noise apart; the nearest other law (%s) is worse by %s to %s", f.Law, percent(max(0, f.Misfit.High)), nearest, percent(by.Low), percent(by.High))
}

// figure with three digits.
func figure(v float64) string {
	if math.Abs(v) >= 1000 {
		return strconv.FormatFloat(v, 'f', 0, 64)
	}
	return strconv.FormatFloat(v, 'g', 3, 64)
}

func percent(share float64) string { return figure(share*100) + " %" }
