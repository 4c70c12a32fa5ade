package traffic

import (
	"testing"
	"time"

	"pgregory.net/rapid"
)

func TestBucketsErrByLessThanTwoPercent(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		v := rapid.Uint64Range(0, 1<<40).Draw(t, "ns")
		low, high := bounds(Bucket(v))
		if v < low || v > high {
			t.Fatalf("%d is in bucket %d, which is %d to %d", v, Bucket(v), low, high)
		}
		if float64(high-low) > float64(v)/SubBuckets {
			t.Fatalf("bucket of %d is %d wide", v, high-low)
		}
		if next, _ := bounds(Bucket(v) + 1); next != high+1 {
			t.Fatalf("a gap between %d and %d", high, next)
		}
	})
}

func TestQuantileNeedsFramesBeyond(t *testing.T) {
	l := Latency{Buckets: make([]uint64, 2560), Min: 1000, Max: 1999}
	for i := range uint64(1000) {
		l.Buckets[Bucket(1000+i)]++
		l.Count++
	}
	if d, ok := l.Quantile(0.5); !ok || d < 1475 || d > 1525 {
		t.Errorf("median %d, %v: want about 1500", d, ok)
	}
	if _, ok := l.Quantile(0.999); ok {
		t.Error("p99.9 of 1,000 frames was told")
	}
}

// A quantile is the middle of a bucket, which frames fill in part only: no frame took 99.8 us if the least took 100.
// A tenth is no binary fraction.
func TestQuantileOfJustEnoughFrames(t *testing.T) {
	for count, q := range map[uint64]float64{100: 0.9, 20: 0.5, 10_000: 0.999} {
		for n, want := range map[uint64]bool{count: true, count - 1: false} {
			l := Latency{Buckets: make([]uint64, 10), Count: n, Min: 5, Max: 5}
			l.Buckets[5] = n
			if _, ok := l.Quantile(q); ok != want {
				t.Errorf("quantile %v of %d frames: %v", q, n, ok)
			}
		}
	}
}

func TestQuantileIsWithinMinAndMax(t *testing.T) {
	for _, ns := range []uint64{100_010, 100_340} {
		l := Latency{Buckets: make([]uint64, MaxBuckets), Count: 100, Min: time.Duration(ns), Max: time.Duration(ns)}
		l.Buckets[Bucket(ns)] = 100
		if d, ok := l.Quantile(0.5); !ok || d != time.Duration(ns) {
			t.Errorf("the median of frames that all took %d ns is %d, %v", ns, d, ok)
		}
	}
}

func TestIMIX(t *testing.T) {
	n := map[int]int{}
	for _, size := range IMIX() {
		n[size]++
	}
	if n[64] != 7 || n[594] != 4 || n[1518] != 1 {
		t.Errorf("%v: want 7:4:1", n)
	}
}
