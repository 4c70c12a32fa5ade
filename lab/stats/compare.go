package stats

import (
	"maps"
	"math"
	"math/rand/v2"
	"slices"
)

// Alpha is the level of all tests, 1-Alpha that of all intervals.
const Alpha = 0.05

// MinBlocks is from how many complete blocks anything is said about a variant: with fewer no sign-flip test can reach Alpha.
const MinBlocks = 6

// power with which the minimum detectable effect would have been seen.
const power = 0.8

// Verdict of a comparison with the baseline.
type Verdict string

const (
	Higher            Verdict = "higher"
	Lower             Verdict = "lower"
	Indistinguishable Verdict = "indistinguishable"
	TooFew            Verdict = "too few blocks"
)

// Ratio is a variant against the baseline. Ratios are variant by baseline; P is corrected for all variants of the run. With the verdict
// TooFew everything but Blocks is zero.
type Ratio struct {
	Blocks   int      `json:"blocks"`          // in which both were valid
	Ratio    float64  `json:"ratio,omitempty"` // exp of the median log-ratio
	Interval Interval `json:"interval,omitzero"`
	P        float64  `json:"p,omitempty"`
	// Detectable is the smallest ratio above 1 that this run would have called different four times in five.
	Detectable float64 `json:"detectable,omitempty"`
	Verdict    Verdict `json:"verdict"`
}

// Comparison of all variants of a run.
type Comparison struct {
	// Floor is the noise floor as a ratio above 1: the half-width of the duplicate's interval. A difference under its square is not claimed.
	// 0: the duplicate has too few blocks, and nothing is claimed at all.
	Floor float64 `json:"floor,omitempty"`
	// Duplicate is the baseline against itself: anything but "indistinguishable" says that the run is not to be trusted.
	Duplicate Ratio            `json:"duplicate"`
	Variants  map[string]Ratio `json:"variants"`
}

// Compare sets every variant against the baseline, block by block: index i of every slice is block i, NaN where the trial was void or has not
// run. Values are positive (rates, times). The same seed gives the same result.
func Compare(baseline, duplicate []float64, variants map[string][]float64, seed uint64) Comparison {
	rng := rand.New(rand.NewPCG(seed, 0x5eed))
	c := Comparison{Duplicate: estimate(logRatios(duplicate, baseline), rng), Variants: make(map[string]Ratio, len(variants))}
	floor := math.Inf(1)
	if c.Duplicate.Verdict != TooFew {
		floor = c.Duplicate.half()
		c.Floor = math.Exp(floor)
		c.Duplicate = judge(c.Duplicate, floor)
	}
	var names []string // that were tested
	var p []float64
	for _, name := range slices.Sorted(maps.Keys(variants)) {
		r := estimate(logRatios(variants[name], baseline), rng)
		if math.IsInf(floor, 1) {
			r = Ratio{Blocks: r.Blocks, Verdict: TooFew}
		}
		c.Variants[name] = r
		if r.Verdict != TooFew {
			names, p = append(names, name), append(p, r.P)
		}
	}
	for i, corrected := range Holm(p) {
		r := c.Variants[names[i]]
		r.P = corrected
		c.Variants[names[i]] = judge(r, floor)
	}
	return c
}

func (r Ratio) half() float64 { return (math.Log(r.Interval.High) - math.Log(r.Interval.Low)) / 2 }

// logRatios of the blocks in which both are valid.
func logRatios(x, base []float64) []float64 {
	var out []float64
	for i := range min(len(x), len(base)) {
		if x[i] > 0 && base[i] > 0 && !math.IsInf(x[i], 1) && !math.IsInf(base[i], 1) {
			out = append(out, math.Log(x[i]/base[i]))
		}
	}
	return out
}

func estimate(l []float64, rng *rand.Rand) Ratio {
	if len(l) < MinBlocks {
		return Ratio{Blocks: len(l), Verdict: TooFew}
	}
	i := BCa(l, medianOf, 1-Alpha, Resamples, rng)
	return Ratio{
		Blocks: len(l), Ratio: math.Exp(Median(l)), Interval: Interval{math.Exp(i.Low), math.Exp(i.High)},
		P: SignFlip(l, Resamples, rng),
	}
}

// judge gives the verdict: different if the test says so, the interval excludes 1, and the difference is at least twice the noise floor.
func judge(r Ratio, floor float64) Ratio {
	se := r.half() / normalQuantile(1-Alpha/2)
	r.Detectable = math.Exp(max(2*floor, (normalQuantile(1-Alpha/2)+normalQuantile(power))*se))
	difference := math.Log(r.Ratio)
	switch {
	case r.P >= Alpha || r.Interval.Contains(1) || math.Abs(difference) < 2*floor:
		r.Verdict = Indistinguishable
	case difference > 0:
		r.Verdict = Higher
	default:
		r.Verdict = Lower
	}
	return r
}
