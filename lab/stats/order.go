package stats

import (
	"math"
	"slices"
)

// MedianInterval is the interval of the median from the order statistics of x, without a word on the distribution's shape: interpolated between the two
// that enclose the level (Hettmansperger and Sheather 1986, "Confidence intervals based on interpolated order statistics"). level is one such as 0.95. With
// so few values that not even their whole range has that level the interval is infinite.
func MedianInterval(x []float64, level float64) Interval {
	s := slices.Sorted(slices.Values(x))
	return medianInterval(s, level)
}

// medianInterval is of sorted values.
func medianInterval(s []float64, level float64) Interval {
	n := len(s)
	outer, inner := 1.0, 1.0 // levels of the ranges from the k-th value from below to the k-th from above
	tail, term := 0.0, math.Pow(2, -float64(n))
	for k := 1; 2*k <= n+1; k++ {
		tail += term // less than k of n are below the median
		outer, inner = inner, 1-2*tail
		if inner < level {
			if k == 1 {
				break
			}
			return between(s, k-1, (outer-level)/(outer-inner))
		}
		term *= float64(n-k+1) / float64(k)
	}
	if n == 0 || inner < level {
		return Interval{math.Inf(-1), math.Inf(1)}
	}
	return Interval{s[(n-1)/2], s[n/2]} // a level below that of the innermost two
}

// between the k-th values from both ends and the next ones: part is how much of the level between theirs is not wanted.
func between(s []float64, k int, part float64) Interval {
	n := len(s)
	w := float64(n-k) * part / (float64(k) + float64(n-2*k)*part)
	return Interval{inwards(s[k-1], s[k], w), inwards(s[n-k], s[n-k-1], w)}
}

// inwards goes a share w of the way. Beside an infinite end it stays where it is, so that the interval is too wide rather than too narrow.
func inwards(from, to, w float64) float64 {
	if math.IsInf(from, 0) || math.IsInf(to, 0) {
		return from
	}
	return from + w*(to-from)
}

// medianP is the p-value that belongs to MedianInterval: the interval of every level below 1-p excludes 0, and none above does.
func medianP(s []float64) float64 {
	low, high := 0.0, 1.0
	for range 50 {
		mid := (low + high) / 2
		if medianInterval(s, 1-mid).Contains(0) {
			low = mid
		} else {
			high = mid
		}
	}
	return high
}
