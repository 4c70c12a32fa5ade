package agent

import (
	"context"
	"strings"
	"time"

	"weir.dev/weir/api"
	"weir.dev/weir/image"
)

// checkedBy is how a function's health is known.
func checkedBy(img image.Image) api.CheckedBy {
	if probes(img) {
		return api.CheckedByProbe
	}
	return api.CheckedByProcess
}

// hangsAfter is how long a start may take before the status says what it waits for.
const hangsAfter = time.Second

const notReady = "its process runs, but no probe frame has come through"

// hangs says of a process that runs what its start waits for, once a start, with the last line that the process wrote.
func (f *function) hangs(ctx context.Context) {
	if time.Since(f.started) < hangsAfter || strings.HasPrefix(f.view().status.Message, notReady) {
		return
	}
	words := f.lastWords(ctx)
	f.update(func(v *view) { v.status.Message = notReady + words })
}

// slower takes in a round trip. It is news only when it is the first or much longer: a status is not a time series.
func (f *function) slower(rtt time.Duration) {
	if known := f.rtt.Load(); known == 0 || rtt.Nanoseconds() > 4*known {
		f.rtt.Store(rtt.Nanoseconds())
		f.update(func(v *view) { v.status.RTTns = rtt.Nanoseconds() })
	}
}

// probeAll sends a frame through every function that carries traffic, all from one goroutine: a hundred timers would
// wake the machine a hundred times. What does not come through is looked at by the function's own goroutine.
func (a *Agent) probeAll(ctx context.Context) {
	tick := time.NewTicker(probeEvery)
	defer tick.Stop()
	for round := uint32(0); ; round++ {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		a.mu.Lock()
		var all []*function
		for _, f := range a.functions {
			if f.probing.Load() && !f.suspect.Load() && (round+f.turn)%f.every.Load() == 0 {
				all = append(all, f)
			}
		}
		a.mu.Unlock()
		for _, f := range all {
			quick, cancel := context.WithTimeout(ctx, probeQuick)
			p, err := a.Switch.Probe(quick, f.name)
			cancel()
			if ctx.Err() != nil {
				return
			}
			if err != nil {
				f.suspect.Store(true)
				f.poke()
				continue
			}
			f.slower(p.RTT)
		}
	}
}

// probeWaits bounds one probe. Where the kernel forwards nobody has to be woken up.
func probeWaits(img image.Image) time.Duration {
	if img.Contract.Forwarder != "" {
		return probeAgain
	}
	return time.Second
}

func probes(img image.Image) bool {
	return !img.Contract.Tap && (img.Contract.Probe || img.Contract.Forwarder != "")
}
