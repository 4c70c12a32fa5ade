package stats

import "math"

// Position of a trial among those that it was in random order with: At is 1 for the first, Of is their number.
type Position struct{ At, Of int }

// exactPlaces bounds the exact computation of PositionsP.
const exactPlaces = 2000

// PositionsP is the two-sided p-value of the sum of positions: the probability that trials in random order come as early, or as late, as these on the
// whole. It is exact (every position is as likely as the others, and the distribution of the sum is their convolution) up to exactPlaces places
// altogether; for more of them the sum is taken as normal. 1 without positions.
func PositionsP(positions []Position) float64 {
	off, variance, places := 0, 0.0, 0 // off is twice the distance of the sum from its mean
	for _, p := range positions {
		off += 2*p.At - (p.Of + 1)
		variance += float64(p.Of*p.Of-1) / 12
		places += p.Of
	}
	off = max(off, -off)
	switch {
	case off == 0:
		return 1
	case places > exactPlaces:
		return math.Erfc(float64(off) / 2 / math.Sqrt(2*variance))
	}
	sums := []float64{1} // the probability of each sum, the least one first
	for _, p := range positions {
		next := make([]float64, len(sums)+p.Of-1)
		for sum, share := range sums {
			for at := range p.Of {
				next[sum+at] += share / float64(p.Of)
			}
		}
		sums = next
	}
	tails := 0.0
	for sum, share := range sums {
		if distance := 2*sum - (len(sums) - 1); max(distance, -distance) >= off {
			tails += share
		}
	}
	return min(1, tails)
}
