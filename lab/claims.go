package lab

import (
	"fmt"
	"math"
	"slices"

	"weir.dev/weir/lab/stats"
	"weir.dev/weir/lab/study"
)

// Agreement of what we see with what was published.
type Agreement string

const (
	Reproduced   Agreement = "reproduced"
	SameShape    Agreement = "same shape"
	Contradicted Agreement = "contradicted"
	NotTestable  Agreement = "not testable here"
)

// near is how close to a published figure counts as the same.
const near = 0.25

// linearR2 is from which on medians count as lying on a line; GrowingR2 as growing with it.
const (
	linearR2  = 0.95
	GrowingR2 = 0.7
	// growth is how much of its median a metric that grows gains over all levels.
	growth = 0.1
)

// ClaimResult is a published figure beside ours.
type ClaimResult struct {
	Claim     study.Claim     `json:"claim"`
	Agreement Agreement       `json:"agreement"`
	Why       string          `json:"why"`
	Unit      string          `json:"unit,omitempty"` // empty for a ratio
	Ours      *float64        `json:"ours"`           // the metric, its ratio, or the slope
	Interval  *stats.Interval `json:"interval"`
}

func judgeClaims(p study.Part, all cells, blocks int, seed uint64) (out []ClaimResult) {
	for _, c := range p.Claims {
		out = append(out, judgeClaim(p, c, all, blocks, seed))
	}
	return out
}

func judgeClaim(p study.Part, c study.Claim, all cells, blocks int, seed uint64) ClaimResult {
	r := ClaimResult{Claim: c}
	i := slices.IndexFunc(p.Metrics, func(m study.Metric) bool { return m.Name == c.Metric })
	if i < 0 {
		return r.untestable("the part has no metric %s", c.Metric)
	}
	m := p.Metrics[i]
	if c.Shape != "" {
		return r.shape(p, m, all, blocks, seed)
	}
	ours, why := seriesAt(p, c.Metric, c.At, all, blocks)
	if why != "" {
		return r.untestable("%s", why)
	}
	if c.Against != nil {
		theirs, why := seriesAt(p, c.Metric, c.Against, all, blocks)
		if why != "" {
			return r.untestable("%s", why)
		}
		zeros := 0
		for b := range ours {
			if !math.IsNaN(ours[b]) && theirs[b] == 0 {
				zeros++
			}
			ours[b] /= theirs[b]
		}
		if zeros > 0 {
			return r.untestable("what it is related to is 0 in %s", blocksText(zeros))
		}
	} else {
		r.Unit = m.Unit
	}
	x := valid(ours)
	if len(x) < stats.MinBlocks {
		return r.untestable("%d complete blocks: want at least %d", len(x), stats.MinBlocks)
	}
	v, iv := stats.Median(x), stats.MedianInterval(x, 1-stats.Alpha)
	r.Ours, r.Interval = &v, &iv
	return r.figure(m)
}

func blocksText(n int) string {
	if n == 1 {
		return "1 block"
	}
	return fmt.Sprintf("%d blocks", n)
}

func (r ClaimResult) untestable(format string, args ...any) ClaimResult {
	r.Agreement, r.Why = NotTestable, fmt.Sprintf(format, args...)
	return r
}

// figure compares a figure with the published one. A bound holds or fails with the whole interval. A figure of other hardware is reproduced
// if ours is near or better; being worse on another machine contradicts nothing. A ratio is reproduced if near, has the same shape if on the
// same side of 1, and contradicts if it is significantly on the other.
func (r ClaimResult) figure(m study.Metric) ClaimResult {
	c, v, iv := r.Claim, *r.Ours, *r.Interval
	switch {
	case c.AtLeast > 0:
		return r.bound(iv.Low >= c.AtLeast, iv.High < c.AtLeast, "at least", c.AtLeast)
	case c.AtMost > 0:
		return r.bound(iv.High <= c.AtMost, iv.Low > c.AtMost, "at most", c.AtMost)
	case math.Abs(v/c.Value-1) <= near || iv.Contains(c.Value):
		r.Agreement, r.Why = Reproduced, fmt.Sprintf("within %.0f %% of it", near*100)
	case c.Against == nil && (v > c.Value) == (m.Better == "higher"):
		r.Agreement, r.Why = Reproduced, "ours is better, on other hardware"
	case c.Against == nil:
		return r.untestable("an absolute figure of other hardware")
	case iv.Low > 1 && c.Value > 1 || iv.High < 1 && c.Value < 1:
		r.Agreement, r.Why = SameShape, "same direction, another size"
	case iv.Low > 1 || iv.High < 1:
		r.Agreement, r.Why = Contradicted, "the other direction"
	default:
		return r.untestable("the ratio's interval contains 1")
	}
	return r
}

func (r ClaimResult) bound(holds, fails bool, word string, bound float64) ClaimResult {
	switch {
	case holds:
		r.Agreement, r.Why = Reproduced, fmt.Sprintf("the whole interval is %s %g", word, bound)
	case fails:
		r.Agreement, r.Why = Contradicted, fmt.Sprintf("no part of the interval is %s %g", word, bound)
	default:
		return r.untestable("the interval contains the bound %g", bound)
	}
	return r
}

// shape: linear growth along a factor.
func (r ClaimResult) shape(p study.Part, m study.Metric, all cells, blocks int, seed uint64) ClaimResult {
	along, ok := p.Factor(r.Claim.Along)
	if !ok {
		return r.untestable("the part has no factor %s", r.Claim.Along)
	}
	x, ok := numbers(along.Levels)
	if !ok {
		return r.untestable("the levels of %s are no numbers", along.Name)
	}
	start := study.Variant{}
	for _, f := range p.Factors {
		level, given := r.Claim.At[f.Name]
		switch {
		case f.Name == along.Name:
			level = f.Levels[0]
		case !given && f.Name == p.Compare:
			level = p.Baseline
		case !given:
			level = f.Levels[0]
		}
		if !slices.Contains(f.Levels, level) {
			return r.untestable("%s=%s is not part of this run", f.Name, level)
		}
		start = append(start, level)
	}
	f, ok := fit(p, m, along, x, start, all, blocks, seed)
	if !ok {
		return r.untestable("fewer than three levels of %s were measured", along.Name)
	}
	r.Unit = m.Unit + " per " + study.One(along.Name)
	r.Ours, r.Interval = &f.B, f.Interval
	text := fmt.Sprintf("the line explains %.1f %% of the medians' spread", f.R2*100)
	gain := f.B * (slices.Max(f.X) - slices.Min(f.X)) / stats.Median(f.Y)
	switch {
	case f.Interval == nil:
		return r.untestable("too few blocks for the slope's interval; %s", text)
	case gain < growth:
		r.Agreement, r.Why = Contradicted, fmt.Sprintf("from the least to the most it gains %.1f %%", gain*100)
	case f.Interval.Low > 0 && f.R2 >= linearR2:
		r.Agreement, r.Why = Reproduced, text
	case f.Interval.Low > 0 && f.R2 >= GrowingR2:
		r.Agreement, r.Why = SameShape, "it grows, but "+text
	case f.Interval.Contains(0):
		return r.untestable("the slope's interval contains 0")
	default:
		r.Agreement, r.Why = Contradicted, text
	}
	return r
}

// seriesAt is a metric by block at the given levels; factors that are not given take their first level, the compared one its baseline.
func seriesAt(p study.Part, metric string, levels map[string]string, all cells, blocks int) (s []float64, why string) {
	v := study.Variant{}
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
	c := all[key(v, false)]
	if c != nil && c.skipped != "" {
		return nil, c.skipped
	}
	return c.series(metric, blocks), ""
}
