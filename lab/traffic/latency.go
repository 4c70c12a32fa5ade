package traffic

import (
	"math/bits"
	"time"

	"weir.dev/weir/lab/stats"
)

// SubBuckets per octave of a latency histogram: the relative error of a value is at most 1/64, 1.6 %.
const SubBuckets = 64

// MaxBuckets of a histogram: what takes longer than any of them is in the last one.
const MaxBuckets = 2560

// Latency is a histogram of one-way latencies in ns. Bucket i < 128 holds the value i; above, each octave has 64 buckets.
type Latency struct {
	Buckets []uint64      `json:"-"`
	Count   uint64        `json:"count"`
	Sum     time.Duration `json:"sum_ns"`
	Min     time.Duration `json:"min_ns"`
	Max     time.Duration `json:"max_ns"`
}

// Bucket of a value.
func Bucket(ns uint64) int {
	shift := max(bits.Len64(ns>>7), 0)
	return shift*SubBuckets + int(ns>>shift)
}

// bounds are the least and the greatest value of a bucket.
func bounds(i int) (low, high uint64) {
	if i < 2*SubBuckets {
		return uint64(i), uint64(i)
	}
	shift := i/SubBuckets - 1
	low = uint64(i-shift*SubBuckets) << shift
	return low, low + 1<<shift - 1
}

// Quantile is the latency that the share q of the frames did not exceed; the middle of its bucket, but within Min and Max. ok is false if fewer than
// stats.MinBeyond frames are beyond it: then nothing can be said.
func (l Latency) Quantile(q float64) (d time.Duration, ok bool) {
	if !stats.EnoughBeyond(int(l.Count), q) {
		return 0, false
	}
	rank, seen := uint64(q*float64(l.Count)), uint64(0)
	for i, n := range l.Buckets {
		if seen += n; seen > rank {
			low, high := bounds(i)
			return min(max(time.Duration((low+high)/2), l.Min), l.Max), true
		}
	}
	return l.Max, true
}

// Mean latency; 0 without frames.
func (l Latency) Mean() time.Duration {
	if l.Count == 0 {
		return 0
	}
	return l.Sum / time.Duration(l.Count)
}
