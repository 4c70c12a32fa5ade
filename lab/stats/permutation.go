package stats

import (
	"math"
	"math/bits"
	"math/rand/v2"
	"slices"
)

// exactFlips is up to how many values all sign patterns are enumerated.
const exactFlips = 16

// SignFlip is the two-sided p-value of the hypothesis that x is symmetric around 0, by the permutation of signs with the sum as statistic: exact
// up to 16 values, else from that many random draws (the observed pattern counts as one of them, so p is never 0). No value but zeros: 1.
func SignFlip(x []float64, draws int, rng *rand.Rand) float64 {
	sum, scale := 0.0, 0.0
	for _, v := range x {
		sum += v
		scale += math.Abs(v)
	}
	if scale == 0 {
		return 1
	}
	bound := math.Abs(sum) - 1e-12*scale // equal up to rounding is equal
	if len(x) <= exactFlips {
		return exactSignFlip(x, sum, bound)
	}
	extreme := 1
	for range draws {
		s := 0.0
		var signs uint64
		for i, v := range x {
			if i%64 == 0 {
				signs = rng.Uint64()
			}
			if signs&1 == 1 {
				s += v
			} else {
				s -= v
			}
			signs >>= 1
		}
		if math.Abs(s) >= bound {
			extreme++
		}
	}
	return float64(extreme) / float64(draws+1)
}

// exactSignFlip walks all patterns in Gray code order: one sign changes at a time.
func exactSignFlip(x []float64, sum, bound float64) float64 {
	patterns := uint64(1) << len(x)
	extreme, flipped := 0, uint64(0)
	for g := uint64(0); ; {
		if math.Abs(sum) >= bound {
			extreme++
		}
		if g++; g == patterns {
			return float64(extreme) / float64(patterns)
		}
		i := bits.TrailingZeros64(g)
		if flipped&(1<<i) == 0 {
			sum -= 2 * x[i]
		} else {
			sum += 2 * x[i]
		}
		flipped ^= 1 << i
	}
}

// Holm corrects the p-values of several tests of one run (Holm 1979): rejecting where the result is under alpha keeps the probability of any
// false rejection under alpha. The order is that of p.
func Holm(p []float64) []float64 {
	order := make([]int, len(p))
	for i := range order {
		order[i] = i
	}
	slices.SortStableFunc(order, func(a, b int) int {
		switch {
		case p[a] < p[b]:
			return -1
		case p[a] > p[b]:
			return 1
		}
		return 0
	})
	out := make([]float64, len(p))
	worst := 0.0
	for rank, i := range order {
		worst = max(worst, min(1, float64(len(p)-rank)*p[i]))
		out[i] = worst
	}
	return out
}
