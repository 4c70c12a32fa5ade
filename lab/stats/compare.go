package stats

import (
	"maps"
	"math"
	"math/rand/v2"
	"slices"
)

// Alpha is the level of all tests, 1-Alpha that of all intervals.
const Alpha = 0.05

// MinBlocks is from how many complete blocks anything is said about a variant: with fewer no test by ranks can reach Alpha.
const MinBlocks = 6

// Margin within which a variant is equivalent to the baseline where a study sets none: 5 %.
const Margin = 1.05

// simulatedRuns from which the smallest detectable difference is told.
const simulatedRuns = 2000

// Power with which the smallest detectable difference would have been seen.
const Power = 0.8

// Verdict of a comparison with the baseline.
type Verdict string

const (
	Higher Verdict = "higher"
	Lower  Verdict = "lower"
	// Equivalent says that the ratio lies within the margin: two one-sided tests at Alpha (TOST, Schuirmann 1987).
	Equivalent Verdict = "equivalent"
	// Inconclusive is neither: the run shows no difference, and does not show that there is none.
	Inconclusive Verdict = "inconclusive"
	TooFew       Verdict = "too few blocks"
	// NotClaimed is said where the trials were not made as they have to be for a verdict. The figures are told all the same.
	NotClaimed Verdict = "not claimed"
	// NoRatio is said of values that are 0 in half of the blocks or more, on one side only, and of values that are bounds in so many blocks that the
	// ratio may be anything.
	NoRatio Verdict = "no ratio"
)

// Ratio is a variant against the baseline. Ratios are variant by baseline. P is that of the test which belongs to the interval, corrected for all variants
// of the comparison; Interval is not corrected. With the verdicts TooFew and NoRatio everything but Blocks, Zeros and Bounds is zero.
type Ratio struct {
	Blocks   int      `json:"blocks"`           // in which both were valid
	Zeros    int      `json:"zeros,omitempty"`  // of them, those in which one of both was 0 and the other was not
	Bounds   int      `json:"bounds,omitempty"` // of them, those in which one of both was a bound
	Ratio    float64  `json:"ratio,omitempty"`  // exp of the median log-ratio, or the end of it that Open names
	Open     Open     `json:"open,omitempty"`
	Interval Interval `json:"interval,omitzero"`
	P        float64  `json:"p,omitempty"`
	// Detectable is the smallest ratio above 1 that a run with this noise calls higher with probability Power. 0: none, however great, or it is not
	// known since there are Bounds.
	Detectable float64 `json:"detectable,omitempty"`
	Margin     float64 `json:"margin,omitempty"` // of equivalence, a ratio above 1
	Verdict    Verdict `json:"verdict"`
}

// Decided tells whether there is a ratio at all.
func (r Ratio) Decided() bool { return r.Verdict != TooFew && r.Verdict != NoRatio }

// Claimed tells whether a difference is claimed.
func (r Ratio) Claimed() bool { return r.Verdict == Higher || r.Verdict == Lower }

// Apart tells whether the test tells both apart at Alpha, also where the difference lies within the margin: chance alone makes this in a share Alpha of
// comparisons of a thing with itself.
func (r Ratio) Apart() bool { return r.Decided() && r.P < Alpha }

// Comparison of all variants with one baseline.
type Comparison struct {
	// Duplicate is the baseline against itself. One run of twenty calls it higher or lower by chance: more say that the runs are not to be trusted.
	Duplicate Ratio            `json:"duplicate"`
	Variants  map[string]Ratio `json:"variants"`
}

// Compare sets every variant against the baseline, block by block: index i of every slice is block i, NaN where the trial was void or has not
// run. Values are rates, times, counts: 0 or more. margin is that of equivalence, a ratio above 1. The same seed gives the same result.
func Compare(baseline, duplicate []float64, variants map[string][]float64, margin float64, seed uint64) Comparison {
	return compareExact(baseline, duplicate, variants, margin, simulatedRuns, rand.New(rand.NewPCG(seed, 0x5eed)))
}

// CompareRanges is Compare for values of which some are bounds: each block has the range in which its value lies. A ratio of such values lies in a range, too.
// Everything that is said holds wherever in their ranges the values are: the interval has the lowest and the highest end, the test its least sure outcome.
func CompareRanges(baseline, duplicate []Interval, variants map[string][]Interval, margin float64, seed uint64) Comparison {
	return compare(baseline, duplicate, variants, margin, simulatedRuns, rand.New(rand.NewPCG(seed, 0x5eed)))
}

func compareExact(baseline, duplicate []float64, variants map[string][]float64, margin float64, runs int, rng *rand.Rand) Comparison {
	ranges := make(map[string][]Interval, len(variants))
	for name, values := range variants {
		ranges[name] = Exact(values)
	}
	return compare(Exact(baseline), Exact(duplicate), ranges, margin, runs, rng)
}

func compare(baseline, duplicate []Interval, variants map[string][]Interval, margin float64, runs int, rng *rand.Rand) Comparison {
	again, l := estimate(duplicate, baseline, margin)
	c := Comparison{Duplicate: again.judged(l, 1, runs, rng), Variants: make(map[string]Ratio, len(variants))}
	var names []string // that were tested
	var p []float64
	unknown := 0 // variants that bounds leave without a ratio
	noise := map[string]quotients{}
	for _, name := range slices.Sorted(maps.Keys(variants)) {
		r, l := estimate(variants[name], baseline, margin)
		c.Variants[name] = r
		switch {
		case r.Decided():
			names, p, noise[name] = append(names, name), append(p, r.P), l
		case r.anything():
			unknown++
		}
	}
	for i, corrected := range holmBeside(p, unknown) {
		r := c.Variants[names[i]]
		r.P = corrected
		c.Variants[names[i]] = r.judged(noise[names[i]], len(p)+unknown, runs, rng)
	}
	return c
}

// anything tells whether bounds are the reason for which there is no ratio. With the values themselves there would be one, and a test.
func (r Ratio) anything() bool { return r.Verdict == NoRatio && r.Bounds > 0 && 2*r.Zeros < r.Blocks }

// holmBeside corrects p as if there were more tests, each with the outcome 1: so a bound never makes the correction of the others weaker.
func holmBeside(p []float64, more int) []float64 {
	all := slices.Clone(p)
	for range more {
		all = append(all, 1)
	}
	return Holm(all)[:len(p)]
}

// Disown takes verdicts back that cannot rest on how the trials were made: those of some variants, or all where none is named.
func (c *Comparison) Disown(variants ...string) {
	disowned := func(r Ratio) Ratio {
		if r.Decided() {
			r.Verdict = NotClaimed
		}
		return r
	}
	if len(variants) == 0 {
		c.Duplicate = disowned(c.Duplicate)
	}
	for name, r := range c.Variants {
		if len(variants) == 0 || slices.Contains(variants, name) {
			c.Variants[name] = disowned(r)
		}
	}
}

// quotients are the log-ratios of the blocks in which both are valid: the lowest and the highest that each can be, sorted. Without bounds both are the same.
type quotients struct {
	low, high []float64
	zeros     int // blocks in which one of both was 0
	bounds    int // blocks in which one of both was no point
}

// logRatios of the blocks in which both are valid. Two zeros are equal. Beside a zero anything is infinitely much: no block is left out for what
// was measured in it.
func logRatios(x, base []Interval) (l quotients) {
	for i := range min(len(x), len(base)) {
		a, b := x[i], base[i]
		exact := a.Point() && b.Point()
		switch {
		case a.missing() || b.missing() || a.Low < 0 || b.Low < 0: // below 0 nothing has a logarithm
			continue
		case exact && (math.IsInf(a.High, 1) || math.IsInf(b.High, 1)):
			continue
		case exact && a.Low == 0 && b.Low == 0:
			l.low, l.high = append(l.low, 0), append(l.high, 0)
			continue
		}
		low, high := math.Log(a.Low)-math.Log(b.High), math.Log(a.High)-math.Log(b.Low)
		switch {
		case !exact:
			l.bounds++
			if math.IsNaN(low) { // two that are both nothing, or both without an end, may be anything beside each other
				low = math.Inf(-1)
			}
			if math.IsNaN(high) {
				high = math.Inf(1)
			}
		case math.IsInf(low, 0):
			l.zeros++
		}
		l.low, l.high = append(l.low, low), append(l.high, high)
	}
	slices.Sort(l.low)
	slices.Sort(l.high)
	return l
}

// leastExtreme is how far off a ratio beside a zero is taken to be at least, as a logarithm.
const leastExtreme = math.Ln2

// tamed sorted log-ratios: what is infinite becomes as far off as the farthest finite one. Neither the median nor its rank moves as long as that is less
// than half of them, and signs, which the test is about, stay.
func tamed(l []float64) []float64 {
	most := leastExtreme
	for _, v := range l {
		if a := math.Abs(v); !math.IsInf(a, 1) {
			most = max(most, a)
		}
	}
	out := make([]float64, len(l))
	for i, v := range l {
		out[i] = min(max(v, -most), most)
	}
	return out
}

// estimate gives the ratio without its verdict, unless there is none, and its log-ratios.
func estimate(x, base []Interval, margin float64) (Ratio, quotients) {
	l := logRatios(x, base)
	r := Ratio{Blocks: len(l.low), Zeros: l.zeros, Bounds: l.bounds}
	switch {
	case len(l.low) < MinBlocks:
		r.Verdict = TooFew
		return r, l
	case 2*l.zeros >= len(l.low):
		r.Verdict = NoRatio
		return r, l
	}
	if l.bounds == 0 { // an end that nobody knows stays infinite
		l.low, l.high = tamed(l.low), tamed(l.high)
	}
	m, open, ok := middleLog(l)
	if !ok {
		r.Verdict = NoRatio
		return r, l
	}
	r.Ratio, r.Open, r.Interval, r.P, r.Margin = math.Exp(m), open, exp(outer(l.low, l.high, 1-Alpha)), l.p(), margin
	return r, l
}

// middleLog is the median log-ratio, or the end of it that is known. If both ends are known and below 0, it is the upper one; otherwise the lower one.
func middleLog(l quotients) (m float64, open Open, ok bool) {
	if most := medianSorted(l.high); most < 0 && medianSorted(l.low) < most {
		return most, AtMost, true
	}
	return middle(l.low, l.high, math.Inf(-1))
}

// p is the greatest that values in these ranges can have: that of the ends nearest to 0. It is 1 if the median may lie on either side of 0.
func (l quotients) p() float64 {
	switch {
	case l.bounds == 0, medianSorted(l.low) > 0:
		return medianP(l.low)
	case medianSorted(l.high) < 0:
		return medianP(l.high)
	}
	return 1
}

func exp(i Interval) Interval { return Interval{math.Exp(i.Low), math.Exp(i.High)} }

// judged gives the verdict. Equivalence comes first: a difference within the margin is none that matters, however surely it is there.
func (r Ratio) judged(l quotients, tested, runs int, rng *rand.Rand) Ratio {
	if !r.Decided() {
		return r
	}
	if l.bounds == 0 {
		r.Detectable = detectable(l.low, Alpha/float64(tested), runs, rng)
	}
	within := exp(outer(l.low, l.high, 1-2*Alpha))
	switch {
	case within.Low > 1/r.Margin && within.High < r.Margin:
		r.Verdict = Equivalent
	case r.P < Alpha && r.Ratio > 1:
		r.Verdict = Higher
	case r.P < Alpha:
		r.Verdict = Lower
	default:
		r.Verdict = Inconclusive
	}
	return r
}

// detectable is the ratio that Power of the runs with this noise would see.
func detectable(sorted []float64, alpha float64, runs int, rng *rand.Rand) float64 {
	reach := reaches(sorted, alpha, runs, rng)
	if math.IsInf(reach[len(reach)-1], 1) { // no interval of so few blocks is finite at this level
		return 0
	}
	return math.Exp(max(0, quantileSorted(reach, Power)))
}

// reaches simulates runs with the noise that these log-ratios have around their median, and returns, sorted, how far each one's interval reaches below 0: a shift
// by more is seen. Few blocks seldom show the noise's ends: what they show is drawn wider by
// n/(n-1), with which the simulations of TestTruthIsFound find as often as foretold.
func reaches(sorted []float64, alpha float64, runs int, rng *rand.Rand) []float64 {
	n := len(sorted)
	middle, wider := medianSorted(sorted), float64(n)/float64(n-1)
	draw, reach := make([]float64, n), make([]float64, runs)
	for i := range reach {
		for j := range draw {
			draw[j] = (sorted[rng.IntN(n)] - middle) * wider
		}
		slices.Sort(draw)
		reach[i] = -medianInterval(draw, 1-alpha).Low
	}
	slices.Sort(reach)
	return reach
}
