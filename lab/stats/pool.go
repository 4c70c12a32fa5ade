package stats

import (
	"maps"
	"math"
	"slices"
)

// MinRuns from which runs are pooled. With two the interval is about three times as wide as with three.
const MinRuns = 2

// TooFewRuns is the verdict where fewer than MinRuns have a ratio.
const TooFewRuns Verdict = "too few runs"

// Pooled is one comparison over several runs of the same study. With the verdicts TooFewRuns and NoRatio everything but Runs is zero.
type Pooled struct {
	Runs     []float64 `json:"runs"` // the ratio of each
	Ratio    float64   `json:"ratio,omitempty"`
	Interval Interval  `json:"interval,omitzero"` // 95 %; that of a further run's true ratio is wider
	P        float64   `json:"p,omitempty"`       // corrected for all variants of the comparison
	// Between is the standard deviation of the true ratio from run to run, a ratio of 1 or more: 1.03 is 3 %. Where the noise has long tails it is too
	// low, since the variance within runs comes from their intervals. The pooled interval of runs of equal length does not depend on it.
	Between float64 `json:"between,omitempty"`
	Share   float64 `json:"share"`            // of the variance of a run's ratio, that which lies between runs (as I²)
	Margin  float64 `json:"margin,omitempty"` // of equivalence, a ratio above 1
	Verdict Verdict `json:"verdict"`
}

// Decided tells whether there is a ratio.
func (p Pooled) Decided() bool { return p.Verdict != TooFewRuns && p.Verdict != NoRatio }

// PooledComparison of all variants with one baseline, over several runs.
type PooledComparison struct {
	Duplicate Pooled            `json:"duplicate"`
	Variants  map[string]Pooled `json:"variants"`
}

// Pool puts the comparisons of several runs together. A run whose ratio was not decided, since too few of its blocks were valid, is left out; one of which
// nothing is claimed, too. One in which a variant has no ratio, since it or the baseline was 0, or only a bound of it, leaves the variant without one in all.
func Pool(runs []Comparison) PooledComparison {
	of := func(get func(Comparison) (Ratio, bool)) (out []Ratio) {
		for _, c := range runs {
			if r, ok := get(c); ok {
				out = append(out, r)
			}
		}
		return out
	}
	out := PooledComparison{Variants: map[string]Pooled{}}
	again := pool(of(func(c Comparison) (Ratio, bool) { return c.Duplicate, true }))
	out.Duplicate = again.Pooled.judged(again.within)
	every := map[string]bool{}
	for _, c := range runs {
		for name := range c.Variants {
			every[name] = true
		}
	}
	var names []string // that were tested
	var p []float64
	unknown := 0 // variants that bounds leave without a ratio
	within := map[string]Interval{}
	for _, name := range slices.Sorted(maps.Keys(every)) {
		x := pool(of(func(c Comparison) (Ratio, bool) { r, ok := c.Variants[name]; return r, ok }))
		out.Variants[name], within[name] = x.Pooled, x.within
		switch {
		case x.Decided():
			names, p = append(names, name), append(p, x.P)
		case x.bounds:
			unknown++
		}
	}
	for i, corrected := range holmBeside(p, unknown) {
		x := out.Variants[names[i]]
		x.P = corrected
		out.Variants[names[i]] = x.judged(within[names[i]])
	}
	return out
}

// judged gives the verdict, as Ratio's. within is the 90 % interval.
func (p Pooled) judged(within Interval) Pooled {
	switch {
	case !p.Decided():
	case within.Low > 1/p.Margin && within.High < p.Margin:
		p.Verdict = Equivalent
	case p.P < Alpha && p.Ratio > 1:
		p.Verdict = Higher
	case p.P < Alpha:
		p.Verdict = Lower
	default:
		p.Verdict = Inconclusive
	}
	return p
}

// pooled is a comparison without its verdict, and its 90 % interval.
type pooled struct {
	Pooled
	within Interval
	bounds bool // are the reason for which there is no ratio
}

func pool(ratios []Ratio) pooled {
	out := pooled{Pooled: Pooled{Runs: []float64{}}}
	var y, blocks []float64
	spread := 0.0 // of one block, as a variance, summed over runs
	for _, r := range ratios {
		switch {
		case r.Bounds > 0: // the ratio may be a point all the same, but an end of its interval is no measure of its noise
			out.Verdict, out.bounds = NoRatio, true
			continue
		case r.Verdict == NoRatio:
			out.Verdict = NoRatio
			continue
		case !r.Decided() || r.Verdict == NotClaimed:
			continue
		}
		out.Runs, out.Margin = append(out.Runs, r.Ratio), r.Margin
		y, blocks = append(y, math.Log(r.Ratio)), append(blocks, float64(r.Blocks))
		spread += float64(r.Blocks) * r.variance()
	}
	switch {
	case out.Verdict == NoRatio:
		return pooled{Pooled: Pooled{Runs: []float64{}, Verdict: NoRatio}, bounds: out.bounds}
	case len(y) < MinRuns:
		return pooled{Pooled: Pooled{Runs: out.Runs, Verdict: TooFewRuns}}
	}
	v := make([]float64, len(y))
	for i := range v {
		v[i] = spread / float64(len(y)) / blocks[i]
	}
	e := randomEffects(y, v)
	out.Ratio, out.Between, out.Share, out.P = math.Exp(e.mean), math.Exp(math.Sqrt(e.between)), e.share, e.p()
	out.Interval, out.within = exp(e.interval(1-Alpha)), exp(e.interval(1-2*Alpha))
	return out
}

// variance of the median log-ratio within its run, from the width of its interval (McKean and Schrader 1984, "A comparison of methods for studentizing the
// sample median", with Student's t, since the runs have few blocks).
func (r Ratio) variance() float64 {
	half := math.Log(r.Interval.High/r.Interval.Low) / 2
	se := half / studentQuantile(Alpha, float64(r.Blocks-1))
	return se * se
}

// effects are a mean of estimates whose true values differ, too.
type effects struct {
	mean    float64
	se      float64 // of the mean
	df      float64
	between float64 // variance of the true values
	share   float64 // of it in the variance of an estimate
}

// randomEffects of estimates y with variances v: the variance between them by Paule and Mandel (1982), the mean weighted by the inverse of both variances,
// and its standard error by Hartung and Knapp (2001) and Sidik and Jonkman (2002, "A simple confidence interval for meta-analysis"), to be used with
// Student's t of n-1 degrees of freedom. Where all variances are equal that is the t interval of the mean. Two or more estimates; their variances are all
// positive, or all 0.
func randomEffects(y, v []float64) effects {
	n := float64(len(y))
	at := func(between float64) (mean, q, weights float64) {
		for i := range y {
			w := 1 / (v[i] + between)
			mean, weights = mean+w*y[i], weights+w
		}
		mean /= weights
		for i := range y {
			q += (y[i] - mean) * (y[i] - mean) / (v[i] + between)
		}
		return mean, q, weights
	}
	spread, typical := 0.0, Mean(v)
	m := Mean(y)
	for _, x := range y {
		spread += (x - m) * (x - m) / (n - 1)
	}
	if typical == 0 { // all blocks of a run are alike
		e := effects{mean: m, se: math.Sqrt(spread / n), df: n - 1, between: spread}
		if spread > 0 {
			e.share = 1
		}
		return e
	}
	low, high := 0.0, 0.0
	if _, q, _ := at(0); q > n-1 {
		for high = spread; ; high *= 2 {
			if _, q, _ := at(high); q <= n-1 {
				break
			}
		}
		for range 100 {
			if mid := (low + high) / 2; mid == low || mid == high {
				break
			} else if _, q, _ := at(mid); q > n-1 {
				low = mid
			} else {
				high = mid
			}
		}
	}
	mean, q, weights := at(high)
	return effects{mean: mean, se: math.Sqrt(q / (n - 1) / weights), df: n - 1, between: high, share: high / (high + typical)}
}

func (e effects) interval(level float64) Interval {
	half := studentQuantile(1-level, e.df) * e.se
	return Interval{e.mean - half, e.mean + half}
}

// p of the mean's being 0.
func (e effects) p() float64 {
	switch {
	case e.mean == 0:
		return 1
	case e.se == 0:
		return 0
	}
	return studentTail(e.mean/e.se, e.df)
}
