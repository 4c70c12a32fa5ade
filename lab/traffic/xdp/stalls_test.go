package xdp

import (
	"math/rand/v2"
	"runtime"
	"testing"
	"time"

	"weir.dev/weir/lab/traffic"
	"weir.dev/weir/lab/traffic/stall"
)

// watched makes paced runs of 400 ms, with something done 100 ms behind the begin, until one is as it should be: the machine stalls by itself, too.
func watched(t *testing.T, g *Generator, rate float64, do func(), good func(c traffic.Count, s traffic.Stalls) bool) {
	t.Helper()
	watchedFor(t, g, rate, 400*time.Millisecond, do, nil, good)
}

func watchedFor(t *testing.T, g *Generator, rate float64, length time.Duration, do func(), enough func(traffic.Count) bool, good func(c traffic.Count, s traffic.Stalls) bool) {
	t.Helper()
	w, err := stall.New(0, 1)
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := w.Close(); err != nil {
			t.Error(err)
		}
	}()
	spec := traffic.Spec{Flows: []traffic.Flow{flow(0)}, Sizes: []int{64}, Rate: rate, Duration: length, CatchUp: traffic.StallCatchUp}
	for range 20 {
		over := make(chan struct{})
		time.AfterFunc(100*time.Millisecond, func() { defer close(over); do() })
		c, s, err := traffic.SendWatched(t.Context(), g, spec, w, enough)
		<-over
		if err != nil {
			t.Fatal(err)
		}
		if err := c.Check(); err != nil {
			t.Fatal(err)
		}
		t.Logf("%d intended, %d lost, %d skipped; near stalls %+v; stalled for %s, %d times", c.Intended, c.Lost, c.Skipped, c.Stalled, s.Time().Round(time.Microsecond), len(s.List))
		if good(c, s) {
			return
		}
	}
	t.Error("no run was as it should be")
}

// TestMissingCountsEachFrame by words as a loop over frames does.
func TestMissingCountsEachFrame(t *testing.T) {
	left, arrived := make([]uint64, 4), make([]uint64, 4)
	r := rand.New(rand.NewPCG(1, 2))
	for i := range left {
		left[i] = r.Uint64() | r.Uint64()
		arrived[i] = left[i] & (r.Uint64() | r.Uint64())
	}
	for first := uint64(0); first <= 256; first++ {
		for end := first; end <= 256; end++ {
			var want traffic.Stalled
			for i := first; i < end; i++ {
				bit := uint64(1) << (i % 64)
				want.Due++
				switch {
				case left[i/64]&bit == 0:
					want.Skipped++
				case arrived[i/64]&bit == 0:
					want.Lost++
				}
			}
			if got := missing(first, end, left[first/64:(end+63)/64], arrived[first/64:(end+63)/64]); got != want {
				t.Fatalf("frames %d to %d: %+v, want %+v", first, end, got, want)
			}
		}
	}
}

func twoCPUs(t *testing.T) {
	t.Helper()
	if runtime.NumCPU() < 2 {
		t.Fatal("this test needs two CPUs")
	}
}

// TestStallOfTheSender: the sender's CPU is gone for 30 ms. What was due then is skipped, and counted as due near a stall.
func TestStallOfTheSender(t *testing.T) {
	twoCPUs(t)
	b := newBench(t)
	g := newGenerator(t, Options{In: b.at("in0"), Sink: b.at("in0"), CPU: 0, First: true})
	watched(t, g, 100_000, func() { take(t, 0) }, func(c traffic.Count, s traffic.Stalls) bool {
		_, lost, skipped := c.Plain()
		return c.Skipped > 2500 && skipped == 0 && lost == 0 && c.Stalled.Due < c.Intended/2 && s.Time() > 30*time.Millisecond
	})
}

// take a CPU away for 30 ms.
func take(t *testing.T, cpu int) {
	if _, err := stall.Hold(cpu, 30*time.Millisecond); err != nil {
		t.Error(err)
	}
}

// TestStallOfThePath: the path's CPU is gone for 30 ms, in which more frames come than the queue in front of it takes. They are lost near a stall.
func TestStallOfThePath(t *testing.T) {
	twoCPUs(t)
	b := newBench(t)
	g := newGenerator(t, Options{In: b.at("in0"), Sink: b.at("in0"), CPU: 0, Apart: true, Chain: 1, First: true})
	watched(t, g, 150_000, func() { take(t, 1) }, func(c traffic.Count, s traffic.Stalls) bool {
		_, lost, skipped := c.Plain()
		return c.Lost > 1000 && lost == 0 && skipped == 0 && s.Time() > 30*time.Millisecond
	})
}

// TestOverloadIsNoStall: a path that takes 50 us a frame loses most of what comes faster. That is no stall: the loss is the path's, but for what the
// machine's own stalls cost.
func TestOverloadIsNoStall(t *testing.T) {
	twoCPUs(t)
	b := newBench(t)
	g := newGenerator(t, Options{In: b.at("in0"), Sink: b.at("sink0"), CPU: 0, Apart: true, Chain: 1, First: true})
	slow(t, b)
	watched(t, g, 80_000, func() {}, func(c traffic.Count, s traffic.Stalls) bool {
		_, lost, _ := c.Plain()
		return lost > 16_000 && s.Time() < 40*time.Millisecond && c.Stalled.Due < c.Intended/4
	})
}

// slow makes the path take 50 us a frame.
func slow(t *testing.T, b bench) {
	t.Helper()
	d, err := NewDelay(b.at("in0"), "out0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := d.Close(); err != nil {
			t.Error(err)
		}
	})
	if err := d.maps.Orders.Put(uint32(0), &delayOrder{Delay: 50_000, To: uint32(d.to)}); err != nil {
		t.Fatal(err)
	}
}

// lostAny is what a run without loss is ended for.
func lostAny(c traffic.Count) bool {
	_, lost, _ := c.Plain()
	return lost > 0
}

// TestARunThatLosesEndsEarly: of 3 s it takes some 1 to 2, its books balance, and what it lost is in them. What is missing near stalls ends no run, and
// one that loses nothing goes on to its end.
func TestARunThatLosesEndsEarly(t *testing.T) {
	twoCPUs(t)
	b := newBench(t)
	o := Options{In: b.at("in0"), Sink: b.at("in0"), CPU: 0, Apart: true, Chain: 1, First: true}
	g := newGenerator(t, o)
	const length = 3 * time.Second
	watchedFor(t, g, 150_000, length, func() { take(t, 1) }, lostAny, func(c traffic.Count, s traffic.Stalls) bool {
		return c.Took == length && c.Intended == 450_000 && c.Lost > 1000 && !lostAny(c)
	})
	if err := g.Close(); err != nil {
		t.Fatal(err)
	}
	o.Sink = b.at("sink0")
	g = newGenerator(t, o)
	slow(t, b)
	watchedFor(t, g, 80_000, length, func() {}, lostAny, func(c traffic.Count, s traffic.Stalls) bool {
		_, lost, _ := c.Plain()
		return c.Took < 2*time.Second && lost > uint64(c.Took.Seconds()*30_000) && c.Sent < 160_000 && c.Skipped-c.Stalled.Skipped < c.Intended/100
	})
}
