package stats

import (
	"cmp"
	"slices"
)

// Holm corrects the p-values of several tests of one run (Holm 1979): rejecting where the result is under alpha keeps the probability of any
// false rejection under alpha. The order is that of p.
func Holm(p []float64) []float64 {
	order := make([]int, len(p))
	for i := range order {
		order[i] = i
	}
	slices.SortStableFunc(order, func(a, b int) int { return cmp.Compare(p[a], p[b]) })
	out := make([]float64, len(p))
	worst := 0.0
	for rank, i := range order {
		worst = max(worst, min(1, float64(len(p)-rank)*p[i]))
		out[i] = worst
	}
	return out
}

// LeastBlocks from which a difference can be found in any of so many comparisons, if it is as clear as can be: values of fewer blocks give no p below
// Alpha when that is corrected.
func LeastBlocks(comparisons int) int {
	for n := MinBlocks; ; n++ {
		apart := make([]float64, n) // log-ratios that all lie on one side
		for i := range apart {
			apart[i] = 1
		}
		if medianP(apart)*float64(comparisons) < Alpha {
			return n
		}
	}
}
