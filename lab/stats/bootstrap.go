package stats

import (
	"math"
	"math/rand/v2"
	"slices"
)

// Interval is [Low, High].
type Interval struct {
	Low  float64 `json:"low"`
	High float64 `json:"high"`
}

// Contains reports whether v lies in the interval, its ends included.
func (i Interval) Contains(v float64) bool { return i.Low <= v && v <= i.High }

// Resamples of the bootstrap and draws of the permutation test.
const Resamples = 4000

// BCa is the bias-corrected and accelerated bootstrap interval of a statistic of x (Efron 1987; Efron and Tibshirani 1993, chapter 14) at a
// level such as 0.95. statistic gets a slice that it may reorder but not keep. Fewer than two values: an infinite interval. All values
// equal: the interval is that value.
func BCa(x []float64, statistic func([]float64) float64, level float64, resamples int, rng *rand.Rand) Interval {
	n := len(x)
	if n < 2 {
		return Interval{math.Inf(-1), math.Inf(1)}
	}
	draw := make([]float64, n)
	boot := make([]float64, resamples)
	for b := range boot {
		for i := range draw {
			draw[i] = x[rng.IntN(n)]
		}
		boot[b] = statistic(draw)
	}
	slices.Sort(boot)
	copy(draw, x)
	observed := statistic(draw)
	z0 := bias(boot, observed)
	a := acceleration(x, statistic)
	at := func(p float64) float64 {
		z := z0 + normalQuantile(p)
		return quantileSorted(boot, normalCDF(z0+z/(1-a*z)))
	}
	return Interval{at((1 - level) / 2), at((1 + level) / 2)}
}

// bias is z0: how far the bootstrap distribution's middle is from what was observed; ties count half.
func bias(sorted []float64, observed float64) float64 {
	below, _ := slices.BinarySearch(sorted, observed)
	above := below
	for above < len(sorted) && sorted[above] == observed {
		above++
	}
	n := float64(len(sorted))
	p := (float64(below) + float64(above)) / 2 / n
	return normalQuantile(min(max(p, 0.5/n), 1-0.5/n))
}

// acceleration from the jackknife.
func acceleration(x []float64, statistic func([]float64) float64) float64 {
	n := len(x)
	jack := make([]float64, n)
	rest := make([]float64, n-1)
	for i := range x {
		copy(rest, x[:i])
		copy(rest[i:], x[i+1:])
		jack[i] = statistic(rest)
	}
	m := Mean(jack)
	var cubes, squares float64
	for _, v := range jack {
		d := m - v
		squares += d * d
		cubes += d * d * d
	}
	if squares == 0 {
		return 0
	}
	return cubes / (6 * math.Pow(squares, 1.5))
}

// medianOf may reorder x.
func medianOf(x []float64) float64 {
	slices.Sort(x)
	return medianSorted(x)
}

func normalCDF(z float64) float64 { return math.Erfc(-z/math.Sqrt2) / 2 }

func normalQuantile(p float64) float64 { return -math.Sqrt2 * math.Erfcinv(2*p) }
