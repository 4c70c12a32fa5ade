package agent

import (
	"context"
	"errors"
	"fmt"
	"time"

	"weir.dev/weir/api"
	"weir.dev/weir/container"
	"weir.dev/weir/datapath"
	"weir.dev/weir/image"
)

func probes(img image.Image) bool {
	return !img.Contract.Tap && (img.Contract.Probe || img.Contract.Forwarder != "")
}

// probeWaits bounds one probe. Where the kernel forwards nobody has to be woken up.
func probeWaits(img image.Image) time.Duration {
	if img.Contract.Forwarder != "" {
		return probeAgain
	}
	return time.Second
}

// checkedBy is how a function's health is known.
func checkedBy(img image.Image) api.CheckedBy {
	if probes(img) {
		return api.CheckedByProbe
	}
	return api.CheckedByProcess
}

// watchHealth decides by process and probe whether the function is up, and when to look again.
func (f *function) watchHealth(ctx context.Context, want api.Function, img image.Image) (time.Duration, error) {
	if !probes(img) {
		if young := settleFor - time.Since(f.started); !f.alive && young > 0 { // it may end at once
			return young, nil
		}
		if !f.alive {
			if err := f.up(ctx, want, img); err != nil {
				return retryAfter, err
			}
		}
		f.observe(want, img)
		return resync, nil
	}
	if f.alive && !f.suspect.Load() { // the prober looks after it
		f.observe(want, img)
		return resync, nil
	}
	if wait := time.Until(f.probe); wait > 0 && f.alive {
		return wait, nil
	}
	limited, cancel := context.WithTimeout(ctx, probeWaits(img))
	defer cancel()
	p, err := f.a.Switch.Probe(limited, f.name)
	if err == nil {
		f.lost = 0
		f.suspect.Store(false)
		if !f.alive {
			if err := f.up(ctx, want, img); err != nil {
				return retryAfter, err
			}
		}
		f.slower(p.RTT)
		f.observe(want, img)
		return resync, nil
	}
	f.lost++
	f.probe = time.Now().Add(probeAgain)
	if !f.alive {
		if time.Since(f.started) > unhealthyFor && f.have == container.Running {
			return 0, f.restartUnhealthy(ctx)
		}
		f.hangs(ctx)
		return 10 * time.Millisecond, nil // starting: not up before its first probe
	}
	if f.lost >= probeLimit {
		f.died = time.Now()
		f.down(ctx)
		f.started = time.Now() // the clock of unhealthyFor
		f.update(func(v *view) {
			v.status.Healthy, v.status.Message = false, fmt.Sprintf("no probe frame came through: %v", err)
		})
		f.event(api.Warning, "FunctionUnhealthy", "probe frames do not come through; "+f.consequence(), 0)
		if img.Contract.Forwarder != "" { // its links may be gone: they can be made anew while the container runs on
			f.attached, f.ready = attachment{}, prepared{}
			return 0, nil
		}
	}
	return probeAgain, nil
}

// up tells the data plane that the function carries traffic again.
func (f *function) up(ctx context.Context, want api.Function, img image.Image) error {
	pid := f.view().status.PID
	if err := f.a.Switch.SetState(ctx, f.name, datapath.Up, pid); err != nil {
		return err
	}
	first := !f.alive
	f.alive, f.lost = true, 0
	f.suspect.Store(false)
	f.every.Store(1)
	if img.Contract.Forwarder != "" {
		f.every.Store(probeKernelTurns)
	}
	f.probing.Store(probes(img))
	f.update(func(v *view) {
		v.wasUp = true
		v.status.State, v.status.Healthy, v.status.Message = api.FunctionStarted, true, ""
		v.status.ObservedGeneration, v.status.ObservedRestart = want.Generation, want.Spec.Restart
		v.status.Image, v.status.Restarts, v.status.Started = img.Digest, f.applied.Restarts, f.started
		v.status.CheckedBy = checkedBy(img)
	})
	f.forwards.Store(!probes(img) && !img.Contract.Tap)
	if first && !f.died.IsZero() {
		outage := time.Since(f.died)
		f.died = time.Time{}
		_ = f.saveApplied() // only the count of restarts would be lost
		f.event(api.Info, "FunctionRecovered", fmt.Sprintf("running again after %s", outage.Round(time.Millisecond)), outage)
	}
	return nil
}

func (f *function) down(ctx context.Context) {
	f.alive = false
	f.probing.Store(false)
	f.forwards.Store(false)
	if err := f.a.Switch.SetState(ctx, f.name, datapath.Down, 0); err != nil && !errors.Is(err, datapath.ErrNotFound) {
		f.a.Log.Error("set function down", "function", f.name, "error", err)
	}
}

// observe acknowledges a generation that changed nothing for the container (on_fail for example).
func (f *function) observe(want api.Function, img image.Image) {
	f.update(func(v *view) {
		v.status.ObservedGeneration, v.status.ObservedRestart = want.Generation, want.Spec.Restart
		v.status.Image = img.Digest
	})
}

func (f *function) restartUnhealthy(ctx context.Context) error {
	f.event(api.Warning, "FunctionRestarting", fmt.Sprintf("no probe frame came through for %s", unhealthyFor), 0)
	if f.died.IsZero() {
		f.died = time.Now()
	}
	f.attached = attachment{} // look at the links again, too
	err := f.halt(ctx, "restarting: no probe frame came through")
	f.applied.Restarts++
	f.backoff()
	return err
}

// hangsAfter is how long a start may take before the status says what it waits for.
const hangsAfter = time.Second

// hangs says of a process that runs what its start waits for, once a start, with the last line that the process wrote.
func (f *function) hangs(ctx context.Context) {
	if time.Since(f.started) < hangsAfter || f.hung.Equal(f.started) {
		return
	}
	f.hung = f.started
	words := f.lastWords(ctx)
	f.update(func(v *view) { v.status.Message = "its process runs, but no probe frame has come through" + words })
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
