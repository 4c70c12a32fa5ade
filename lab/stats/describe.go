package stats

import (
	"math"
	"slices"
)

// Quantile of x at q in [0, 1], by linear interpolation between order statistics (type 7 of Hyndman and Fan 1996, numpy's default).
// NaN if x is empty. x stays as it is.
func Quantile(x []float64, q float64) float64 {
	s := slices.Clone(x)
	slices.Sort(s)
	return quantileSorted(s, q)
}

func quantileSorted(s []float64, q float64) float64 {
	if len(s) == 0 || math.IsNaN(q) {
		return math.NaN()
	}
	at := min(max(q, 0), 1) * float64(len(s)-1)
	i := int(at)
	if i+1 >= len(s) {
		return s[len(s)-1]
	}
	f := at - float64(i)
	return s[i] + f*(s[i+1]-s[i])
}

// Median of x; NaN if x is empty.
func Median(x []float64) float64 { return Quantile(x, 0.5) }

// medianSorted is for the inner loops: s is sorted.
func medianSorted(s []float64) float64 {
	n := len(s)
	if n%2 == 1 {
		return s[n/2]
	}
	return (s[n/2-1] + s[n/2]) / 2
}

// Mean of x; NaN if x is empty.
func Mean(x []float64) float64 {
	sum := 0.0
	for _, v := range x {
		sum += v
	}
	return sum / float64(len(x))
}

// CV is the coefficient of variation: the sample's standard deviation by its mean. NaN for fewer than two values.
func CV(x []float64) float64 {
	if len(x) < 2 {
		return math.NaN()
	}
	m, sum := Mean(x), 0.0
	for _, v := range x {
		sum += (v - m) * (v - m)
	}
	return math.Sqrt(sum/float64(len(x)-1)) / math.Abs(m)
}

// MinBeyond is how many samples must lie beyond a percentile for it to be told (LAB: only where enough samples are beyond them).
const MinBeyond = 10

// EnoughBeyond tells whether MinBeyond of n samples are expected beyond q on its thinner side. A tenth is no binary fraction: of 100 samples
// 9.999999999999998 would be beyond p90.
func EnoughBeyond(n int, q float64) bool {
	return float64(n)*min(q, 1-q) > MinBeyond-1e-6
}

// Percentile gives the quantile q only if at least MinBeyond of the n samples are expected beyond it on its thinner side.
func Percentile(x []float64, q float64) (value float64, ok bool) {
	if !EnoughBeyond(len(x), q) {
		return math.NaN(), false
	}
	return Quantile(x, q), true
}

// Jain is the fairness index of Jain, Chiu and Hawe (1984): 1 if all are equal, 1/n if one has everything. NaN if x is empty or all zero.
func Jain(x []float64) float64 {
	sum, squares := 0.0, 0.0
	for _, v := range x {
		sum += v
		squares += v * v
	}
	return sum * sum / (float64(len(x)) * squares)
}

// Line is y = A + B x.
type Line struct {
	A float64 `json:"a"`
	B float64 `json:"b"`
}

// TheilSen fits a line that a third of wrong points does not bend: B is the median of the slopes of all pairs with different x, A the median of
// y - B x (Theil 1950, Sen 1968). NaN if no two x differ.
func TheilSen(x, y []float64) Line {
	var slopes []float64
	for i := range x {
		for j := i + 1; j < len(x); j++ {
			if x[i] != x[j] {
				slopes = append(slopes, (y[j]-y[i])/(x[j]-x[i]))
			}
		}
	}
	b := Median(slopes)
	rest := make([]float64, len(x))
	for i := range x {
		rest[i] = y[i] - b*x[i]
	}
	return Line{A: Median(rest), B: b}
}
