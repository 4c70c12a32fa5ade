package main

import (
	"math"
	"slices"
	"testing"
	"time"

	"weir.dev/weir/catalogue/nf"
	"weir.dev/weir/catalogue/rig"
)

// BenchmarkDelay sends single frames through a delay, and beside it over the same line without: how much later than it should the function hands a frame on.
func BenchmarkDelay(b *testing.B) {
	for _, delay := range []time.Duration{0, time.Millisecond, 20 * time.Millisecond} {
		b.Run(delay.String(), func(b *testing.B) {
			r, _ := start(b, `{"up": {"delay": "`+delay.String()+`"}}`)
			late := make([]float64, 0, b.N)
			for b.Loop() {
				begin := time.Now()
				r.Client.Send(numbered(1, 60).Data)
				if r.Server.Receive(rig.Patience) == nil {
					b.Fatal("lost")
				}
				late = append(late, float64((time.Since(begin)-delay).Nanoseconds())/1e3)
			}
			slices.Sort(late)
			for name, q := range map[string]float64{"p50": 0.5, "p99": 0.99} {
				b.ReportMetric(late[int(math.Ceil(q*float64(len(late))))-1], "late-us-"+name)
			}
		})
	}
}

// BenchmarkTake decides about a frame and sends it, without sockets.
func BenchmarkTake(b *testing.B) {
	m, f, now := newImpairer(parsed(b, `{"up": {"delay": "1ms", "jitter": "500us", "loss": "1%", "reorder": "1%"}}`)), numbered(1, 1400), time.Now()
	b.ReportAllocs()
	for b.Loop() {
		now = now.Add(time.Microsecond)
		m.handle(nf.Up, f, now)
		m.due(now, func(nf.Dir, nf.Frame) {})
	}
}
