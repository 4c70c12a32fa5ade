package lab

import (
	"cmp"
	"fmt"
	"math"
	"slices"

	"weir.dev/weir/lab/claim"
	"weir.dev/weir/lab/stats"
	"weir.dev/weir/lab/study"
)

// ClaimResult is a published figure, or a target, beside ours.
type ClaimResult struct {
	Claim   study.Claim   `json:"claim"`
	Rule    claim.Rule    `json:"rule"` // fixed by the study, before anything is measured
	Verdict claim.Verdict `json:"verdict"`
	// Systems on which it was judged. The verdict is that of the Headline.
	Systems []ClaimOn `json:"systems"`
}

// ClaimOn is a claim on one system.
type ClaimOn struct {
	System   string          `json:"system"`            // level of the compared factor
	Instead  bool            `json:"instead,omitempty"` // no such system as the published one, but what Weir offers in its place
	Verdict  claim.Verdict   `json:"verdict"`
	Why      string          `json:"why"`
	Unit     string          `json:"unit,omitempty"` // empty for a ratio
	Ours     *float64        `json:"ours"`           // the metric, its ratio, or the slope
	Interval *stats.Interval `json:"interval"`
	Shape    *stats.ShapeFit `json:"shape,omitempty"`
}

// Headline is the system nearest to the published one; of a claim about every system the first of those on which it holds least.
func (r ClaimResult) Headline() ClaimOn {
	if !r.Claim.Every {
		return r.Systems[0]
	}
	return slices.MinFunc(r.Systems[:len(r.Claim.Systems)], func(a, b ClaimOn) int { return a.Verdict.Rank() - b.Verdict.Rank() })
}

// SystemText is a system's name with what it is to the claim.
func (r ClaimResult) SystemText(on ClaimOn) string {
	switch {
	case on.Instead:
		return on.System + ", Weir instead"
	case r.Claim.Every:
		return on.System + ", one of which all are claimed"
	case r.Named() && on.System == r.Claim.Systems[0]:
		return on.System + ", nearest to the published system"
	case !r.Named() && !r.Claim.IsTarget():
		return on.System + ", no nearer system is named"
	}
	return on.System
}

// Named tells whether the study names the system that is nearest to the published one. Studies of earlier versions do not.
func (r ClaimResult) Named() bool { return len(r.Claim.Systems) > 0 }

func judgeClaims(p study.Part, all cells, blocks int, conditions []Condition) (out []ClaimResult) {
	for _, c := range p.Claims {
		i := slices.IndexFunc(p.Metrics, func(m study.Metric) bool { return m.Name == c.Metric })
		if i < 0 {
			on := ClaimOn{}.untestable("the part has no metric %s", c.Metric)
			out = append(out, ClaimResult{Claim: c, Verdict: on.Verdict, Systems: []ClaimOn{on}})
			continue
		}
		j := judge{p, c, p.Metrics[i], all, blocks, conditions}
		r := ClaimResult{Claim: c, Rule: claim.RuleOf(c, j.metric)}
		for _, system := range c.Systems {
			r.Systems = append(r.Systems, j.on(system))
		}
		if len(c.Systems) == 0 {
			r.Systems = append(r.Systems, j.on(systemAt(p, c)))
		}
		for _, system := range c.Instead {
			on := j.on(system)
			on.Instead = true
			r.Systems = append(r.Systems, on)
		}
		r.Verdict = r.Headline().Verdict
		out = append(out, r)
	}
	return out
}

// systemAt is where a claim that names no systems is judged.
func systemAt(p study.Part, c study.Claim) string {
	if level, ok := c.At[p.Compare]; ok {
		return level
	}
	return p.Baseline
}

// judge has what a claim is judged from.
type judge struct {
	part   study.Part
	claim  study.Claim
	metric study.Metric
	all    cells
	blocks int

	conditions []Condition
}

// emulated tells which level has an emulated processor; empty: none. A paper's figures are never compared with such.
func (j judge) emulated(places ...map[string]string) string {
	if j.claim.IsTarget() {
		return ""
	}
	for _, levels := range places {
		level := cmp.Or(levels[j.part.Compare], j.part.Baseline)
		if levels != nil && slices.ContainsFunc(j.conditions, func(c Condition) bool {
			return c.Emulated() && (len(c.Levels) == 0 || slices.Contains(c.Levels, level))
		}) {
			return level
		}
	}
	return ""
}

func (j judge) on(system string) ClaimOn {
	r := ClaimOn{System: system}
	at, against := j.claim.Places(j.part.Compare, system)
	if level := j.emulated(at, against); level != "" {
		return r.untestable("the processor of %s is emulated here, and that of the published system was not", level)
	}
	if j.claim.Shape != "" {
		if j.claim.Untestable != "" {
			return r.untestable("%s", j.claim.Untestable)
		}
		return j.shape(r, at)
	}
	ours, why := j.series(at)
	if why != "" {
		return r.untestable("%s", why)
	}
	if against == nil {
		r.Unit = j.metric.Unit
	} else if why = j.relate(ours, against); why != "" {
		return r.untestable("%s", why)
	}
	x := valid(ours)
	if len(x) > 0 {
		v := stats.Median(x)
		r.Ours = &v
	}
	if len(x) >= stats.MinBlocks {
		iv := stats.MedianInterval(x, 1-stats.Alpha)
		r.Interval = &iv
	}
	switch {
	case claim.RuleOf(j.claim, j.metric).NotTestable != "": // whatever was measured
		r.Verdict, r.Why = claim.Figure(j.claim, j.metric, stats.Interval{})
	case r.Interval == nil:
		return r.open(len(x))
	default:
		r.Verdict, r.Why = claim.Figure(j.claim, j.metric, *r.Interval)
	}
	return r
}

// open: there are too few blocks for a verdict.
func (r ClaimOn) open(blocks int) ClaimOn {
	r.Verdict, r.Why = claim.Inconclusive, fmt.Sprintf("%d complete blocks: want at least %d", blocks, stats.MinBlocks)
	return r
}

// untestable on every system.
func (r ClaimResult) untestable(format string, args ...any) ClaimResult {
	for i := range r.Systems {
		r.Systems[i] = r.Systems[i].untestable(format, args...)
	}
	r.Verdict = claim.NotTestable
	return r
}

func (r ClaimOn) untestable(format string, args ...any) ClaimOn {
	r.Verdict, r.Why = claim.NotTestable, fmt.Sprintf(format, args...)
	return r
}

// relate makes ours a ratio to other levels, block by block.
func (j judge) relate(ours []float64, against map[string]string) (why string) {
	theirs, why := j.series(against)
	if why != "" {
		return why
	}
	zeros := 0
	for b := range ours {
		if !math.IsNaN(ours[b]) && theirs[b] == 0 {
			zeros++
		}
		ours[b] /= theirs[b]
	}
	if zeros == 0 {
		return ""
	}
	return "what it is related to is 0 in " + blocksText(zeros)
}

func blocksText(n int) string {
	if n == 1 {
		return "1 block"
	}
	return fmt.Sprintf("%d blocks", n)
}

// shape of the metric along a factor. Levels that have too few blocks, or were skipped, do not count.
func (j judge) shape(r ClaimOn, at map[string]string) ClaimOn {
	along, ok := j.part.Factor(j.claim.Along)
	if !ok {
		return r.untestable("the part has no factor %s", j.claim.Along)
	}
	levels, ok := numbers(along.Levels)
	if !ok {
		return r.untestable("the levels of %s are no numbers", along.Name)
	}
	var x []float64
	var series [][]float64
	begun, most, skipped := 0, 0, ""
	for i, level := range along.Levels {
		at[along.Name] = level
		s, why := j.series(at)
		if why != "" {
			skipped = why
			continue
		}
		begun++
		n := len(valid(s))
		if most = max(most, n); n >= stats.MinBlocks {
			x, series = append(x, levels[i]), append(series, j.oriented(s))
		}
	}
	switch {
	case begun == 0:
		return r.untestable("%s", skipped)
	case begun < study.MinLevels:
		return r.untestable("%d levels of %s are in this run: a shape stands on at least %d", begun, along.Name, study.MinLevels)
	case len(x) == 0:
		return r.open(most)
	case len(x) < study.MinLevels:
		r.Verdict, r.Why = claim.Inconclusive, fmt.Sprintf("%d levels of %s have %d blocks: a shape stands on at least %d", len(x), along.Name, stats.MinBlocks, study.MinLevels)
		return r
	}
	if complete := len(stats.CompleteBlocks(series)); complete < stats.MinBlocks {
		return r.open(complete)
	}
	f, ok := stats.FitShape(claim.Law(j.claim.Shape), x, series)
	if !ok {
		return r.untestable("a value is not above 0: errors relative to it have no meaning")
	}
	r.Unit = j.metric.Unit + " per " + study.One(along.Name)
	if j.claim.Shape == study.Inverse {
		r.Unit = "1/(" + j.metric.Unit + ") per " + study.One(along.Name)
	}
	r.Ours, r.Interval, r.Shape = &f.Slope, &f.SlopeInterval, &f
	r.Verdict, r.Why = claim.Shape(j.claim, f)
	return r
}

// oriented is what grows if the claim is true.
func (j judge) oriented(s []float64) []float64 {
	if j.claim.Shape != study.Inverse {
		return s
	}
	for i := range s {
		s[i] = 1 / s[i]
	}
	return s
}

// variantAt are the levels at which something is claimed; factors that are not given take their first level, the compared one its baseline.
func variantAt(p study.Part, levels map[string]string) (v study.Variant, why string) {
	for _, f := range p.Factors {
		level, given := levels[f.Name]
		if !given {
			level = f.Levels[0]
			if f.Name == p.Compare {
				level = p.Baseline
			}
		}
		if !slices.Contains(f.Levels, level) {
			return nil, fmt.Sprintf("%s=%s is not part of this run", f.Name, level)
		}
		v = append(v, level)
	}
	return v, ""
}

// series of the metric by block.
func (j judge) series(levels map[string]string) (s []float64, why string) {
	v, why := variantAt(j.part, levels)
	if why != "" {
		return nil, why
	}
	c := j.all[key(v, false)]
	if c != nil && c.skipped != "" {
		return nil, c.skipped
	}
	if n := c.bounds(j.part, j.metric.Name, j.blocks); n > 0 {
		return nil, "it is only a bound in " + blocksText(n)
	}
	return c.series(j.part, j.metric.Name, j.blocks), ""
}
