package kvm

import (
	"sync"
	"time"
)

// ticks reads the processor's time stamp counter, which an emulated processor shows to its guest as it is.
func ticks() uint64

// clockRate measures how many thousand ticks there are in a second, once. What /proc/cpuinfo says is the processor's frequency now, which is another one.
var clockRate = sync.OnceValue(func() int64 {
	t0, c0 := stamp()
	time.Sleep(20 * time.Millisecond)
	t1, c1 := stamp()
	return int64(float64(c1-c0) / t1.Sub(t0).Seconds() / 1000)
})

// stamp reads both clocks, of several times the one at which the least came between.
func stamp() (best time.Time, count uint64) {
	least := time.Hour
	for range 32 {
		before := time.Now()
		c := ticks()
		if took := time.Since(before); took < least {
			least, best, count = took, before.Add(took/2), c
		}
	}
	return best, count
}
