package xdp

import (
	"runtime"
	"testing"
	"time"

	"weir.dev/weir/lab/traffic"
	"weir.dev/weir/lab/traffic/stall"
)

// watched makes paced runs, with something done 100 ms behind the begin, until one is as it should be: the machine stalls by itself, too.
func watched(t *testing.T, g *Generator, rate float64, do func(), good func(c traffic.Count, s traffic.Stalls) bool) {
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
	spec := traffic.Spec{Flows: []traffic.Flow{flow(0)}, Sizes: []int{64}, Rate: rate, Duration: 400 * time.Millisecond, CatchUp: traffic.StallCatchUp}
	for range 20 {
		over := make(chan struct{})
		time.AfterFunc(100*time.Millisecond, func() { defer close(over); do() })
		c, s, err := traffic.SendWatched(t.Context(), g, spec, w)
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
	d, err := NewDelay(b.at("in0"), "out0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := d.Close(); err != nil {
			t.Error(err)
		}
	}()
	if err := d.maps.Orders.Put(uint32(0), &delayOrder{Delay: 50_000, To: uint32(d.to)}); err != nil {
		t.Fatal(err)
	}
	watched(t, g, 80_000, func() {}, func(c traffic.Count, s traffic.Stalls) bool {
		_, lost, _ := c.Plain()
		return lost > 16_000 && s.Time() < 40*time.Millisecond && c.Stalled.Due < c.Intended/4
	})
}
