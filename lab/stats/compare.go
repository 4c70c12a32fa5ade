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

// power with which the minimum detectable effect would have been seen, were noise normal and the interval exact. With a few blocks and noise that
// is neither, that is 0.8 in truth (TestDetectableIsDetected).
const power = 0.9

// Verdict of a comparison with the baseline.
type Verdict string

const (
	Higher            Verdict = "higher"
	Lower             Verdict = "lower"
	Indistinguishable Verdict = "indistinguishable"
	// Undecided is what too few blocks leave open: no difference could pass the test among so many variants, or interval and noise floor would
	// allow to claim one and the test does not.
	Undecided Verdict = "undecided"
	TooFew    Verdict = "too few blocks"
	// NoRatio is said of values that are 0 in half of the blocks or more, on one side only.
	NoRatio Verdict = "no ratio"
)

// Ratio is a variant against the baseline. Ratios are variant by baseline; P is corrected for all variants of the comparison. With the verdicts
// TooFew and NoRatio everything but Blocks and Zeros is zero.
type Ratio struct {
	Blocks   int      `json:"blocks"`          // in which both were valid
	Zeros    int      `json:"zeros,omitempty"` // of them, those in which one of both was 0 and the other was not
	Ratio    float64  `json:"ratio,omitempty"` // exp of the median log-ratio
	Interval Interval `json:"interval,omitzero"`
	P        float64  `json:"p,omitempty"`
	// Detectable is the smallest ratio above 1 that this run would have called different four times in five. 0: none, however great.
	Detectable float64 `json:"detectable,omitempty"`
	Verdict    Verdict `json:"verdict"`
}

// Decided tells whether there is a ratio at all.
func (r Ratio) Decided() bool { return r.Verdict != TooFew && r.Verdict != NoRatio }

// Equal tells whether the variant was just as the baseline in most blocks or all, as counts of what was lost often are: then there is no noise by
// which to say how little would have shown.
func (r Ratio) Equal() bool { return r.Detectable == 1 && r.Interval == Interval{1, 1} }

// Claimed tells whether a difference is claimed.
func (r Ratio) Claimed() bool { return r.Verdict == Higher || r.Verdict == Lower }

// Comparison of all variants with one baseline.
type Comparison struct {
	// Floor is the noise floor as a ratio above 1: the half-width of the duplicate's interval. A difference under its square is not claimed.
	// 0: the duplicate has too few blocks, and nothing is claimed at all.
	Floor float64 `json:"floor,omitempty"`
	// Duplicate is the baseline against itself: anything but "indistinguishable" says that the run is not to be trusted.
	Duplicate Ratio            `json:"duplicate"`
	Variants  map[string]Ratio `json:"variants"`
}

// Compare sets every variant against the baseline, block by block: index i of every slice is block i, NaN where the trial was void or has not
// run. Values are rates, times, counts: 0 or more. The same seed gives the same result.
func Compare(baseline, duplicate []float64, variants map[string][]float64, seed uint64) Comparison {
	rng := rand.New(rand.NewPCG(seed, 0x5eed))
	c := Comparison{Duplicate: estimate(duplicate, baseline, rng), Variants: make(map[string]Ratio, len(variants))}
	floor := math.Inf(1)
	if c.Duplicate.Decided() {
		floor = c.Duplicate.half()
		c.Floor = math.Exp(floor)
		c.Duplicate = judge(c.Duplicate, floor, 1)
	}
	var names []string // that were tested
	var p []float64
	for _, name := range slices.Sorted(maps.Keys(variants)) {
		r := estimate(variants[name], baseline, rng)
		if math.IsInf(floor, 1) && r.Decided() {
			r = Ratio{Blocks: r.Blocks, Zeros: r.Zeros, Verdict: c.Duplicate.Verdict}
		}
		c.Variants[name] = r
		if r.Decided() {
			names, p = append(names, name), append(p, r.P)
		}
	}
	for i, corrected := range Holm(p) {
		r := c.Variants[names[i]]
		r.P = corrected
		c.Variants[names[i]] = judge(r, floor, len(p))
	}
	return c
}

func (r Ratio) half() float64 { return (math.Log(r.Interval.High) - math.Log(r.Interval.Low)) / 2 }

// logRatios of the blocks in which both are valid. Two zeros are equal. Beside a zero anything is infinitely much: no block is left out for what
// was measured in it.
func logRatios(x, base []float64) (out []float64, zeros int) {
	bad := func(v float64) bool { return math.IsNaN(v) || math.IsInf(v, 0) || v < 0 }
	for i := range min(len(x), len(base)) {
		switch {
		case bad(x[i]) || bad(base[i]):
		case x[i] == 0 && base[i] == 0:
			out = append(out, 0)
		default:
			l := math.Log(x[i]) - math.Log(base[i])
			if math.IsInf(l, 0) {
				zeros++
			}
			out = append(out, l)
		}
	}
	return out, zeros
}

// leastExtreme is how far off a ratio beside a zero is taken to be at least, as a logarithm.
const leastExtreme = math.Ln2

// tamed log-ratios: what is infinite becomes as far off as the farthest finite one. Neither the median nor its rank moves as long as that is less
// than half of them, and signs, which the test is about, stay.
func tamed(l []float64) []float64 {
	most := leastExtreme
	for _, v := range l {
		if a := math.Abs(v); !math.IsInf(a, 1) {
			most = max(most, a)
		}
	}
	for i, v := range l {
		l[i] = min(max(v, -most), most)
	}
	return l
}

func estimate(x, base []float64, rng *rand.Rand) Ratio {
	l, zeros := logRatios(x, base)
	r := Ratio{Blocks: len(l), Zeros: zeros}
	switch {
	case len(l) < MinBlocks:
		r.Verdict = TooFew
		return r
	case 2*zeros >= len(l):
		r.Verdict = NoRatio
		return r
	}
	l = tamed(l)
	i := BCa(l, medianOf, 1-Alpha, Resamples, rng)
	r.Ratio, r.Interval, r.P = math.Exp(Median(l)), Interval{math.Exp(i.Low), math.Exp(i.High)}, SignFlip(l, Resamples, rng)
	return r
}

// leastP of a variant with so many blocks among so many that are tested: all signs are the same, and no other variant differs as much.
func leastP(blocks, tested int) float64 {
	p := math.Pow(2, float64(1-blocks))
	if blocks > exactFlips {
		p = max(p, 1/float64(Resamples+1))
	}
	return p * float64(tested)
}

// judge gives the verdict: different if the test says so, the interval excludes 1, and the difference is at least twice the noise floor.
func judge(r Ratio, floor float64, tested int) Ratio {
	blind := leastP(r.Blocks, tested) >= Alpha
	if !blind {
		// What is estimated has to be beyond twice the floor and beyond what the test allows, and is less than the truth half of the time.
		se := r.half() / normalQuantile(1-Alpha/2)
		r.Detectable = math.Exp(max(2*floor, normalQuantile(1-Alpha/2/float64(tested))*se) + normalQuantile(power)*se)
	}
	difference := math.Log(r.Ratio)
	seen := !r.Interval.Contains(1) && math.Abs(difference) >= 2*floor
	switch {
	case seen && r.P < Alpha && difference > 0:
		r.Verdict = Higher
	case seen && r.P < Alpha:
		r.Verdict = Lower
	case seen || blind:
		r.Verdict = Undecided
	default:
		r.Verdict = Indistinguishable
	}
	return r
}
