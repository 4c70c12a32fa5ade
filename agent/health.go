package agent

import (
	"context"
	"errors"
	"fmt"
	"time"

	"weir.dev/weir/agent/health"
	"weir.dev/weir/api"
	"weir.dev/weir/container"
	"weir.dev/weir/datapath"
	"weir.dev/weir/image"
)

func probes(img image.Image) bool {
	return !img.Contract.Tap && (img.Contract.Probe || img.Contract.Forwarder != "")
}

// quietSince is since when no probe has come through a function that is not up: its start, or when it hung.
func (f *function) quietSince() time.Time {
	if f.hungAt.After(f.started) {
		return f.hungAt
	}
	return f.started
}

// patience is how long a process that runs may be without a probe that comes through, until it is started anew. It doubles with each failure in a row, up to a
// bound: on a busy machine, or with a configuration that takes long to read, a function would else be ended again and again just before it works.
func (f *function) patience() time.Duration {
	d := f.a.silentFor(f.container())
	return min(d<<min(f.crashes, maxDoubled), max(d, mostPatience))
}

// probeWaits bounds a probe of a function that is not up. It grows: a frame that was sent before the function listened is lost, and a busy one
// takes its time.
func (f *function) probeWaits() time.Duration {
	return min(max(time.Since(f.quietSince())/2, probeFirst), probeLast)
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
		if young := f.a.settlesIn(f.container()) - time.Since(f.started); !f.alive && young > 0 { // it may end at once
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
	if f.alive {
		return f.confirm(ctx, want, img)
	}
	limited, cancel := context.WithTimeout(ctx, f.probeWaits())
	defer cancel()
	p, err := f.a.Switch.Probe(limited, f.inSwitch())
	if err == nil {
		if err := f.up(ctx, want, img); err != nil {
			return retryAfter, err
		}
		f.slower(p.RTT)
		f.observe(want, img)
		return resync, nil
	}
	if time.Since(f.quietSince()) > f.patience() && f.have == container.Running {
		return 0, f.restartUnhealthy(ctx)
	}
	f.hangs(ctx)
	return 10 * time.Millisecond, nil // starting: not up before its first probe
}

// hung takes a function down whose probes do not come through.
func (f *function) hung(ctx context.Context, img image.Image, err error) {
	if f.died.IsZero() {
		f.died = time.Now()
	}
	f.deaths++
	f.down(ctx)
	f.hungAt = time.Now() // its process goes on, since it was started
	f.update(func(v *view) {
		v.status.Healthy = false
		v.status.Say(unhealthy(api.ReasonSilent, fmt.Sprintf("no probe frame came through: %v", err)))
	})
	f.event(api.Warning, "FunctionUnhealthy", "probe frames do not come through; "+f.consequence(), 0)
	if f.attached.forwarder != "" { // its links may be gone: they can be made anew while the container runs on
		f.attached, f.ready = attachment{}, prepared{}
	}
}

// up tells the data plane that the function carries traffic again.
func (f *function) up(ctx context.Context, want api.Function, img image.Image) error {
	f.deliver(ctx, img)
	f.fetch(ctx, want, img)
	pid := f.view().status.PID
	if err := f.a.Switch.SetState(ctx, f.inSwitch(), datapath.Up, pid); err != nil {
		return err
	}
	f.alive, f.windows, f.since = true, health.Windows{}, time.Now()
	f.suspect.Store(false)
	f.kernel.Store(f.attached.forwarder != "")
	f.probing.Store(probes(img))
	f.update(func(v *view) {
		v.wasUp = true
		v.status.State, v.status.Healthy = api.FunctionStarted, true
		v.status.Say()
		if s, _ := f.a.runtimeState(v.status.Runtime); s.about.Missing != "" {
			v.status.Say(*f.a.incapable(s.about))
		}
		if !f.behind {
			v.status.ObservedGeneration, v.status.ObservedRestart, v.status.Image = want.Generation, want.Spec.Restart, img.Digest
		}
		v.status.Restarts, v.status.Started = f.applied.Restarts, f.started
		v.status.CheckedBy = checkedBy(img)
	})
	f.forwards.Store(!probes(img) && !img.Contract.Tap)
	return nil
}

// recovered tells, once a function that had failed has stayed up for a while, that it is back. It returns when to look again.
func (f *function) recovered() time.Duration {
	if !f.alive || f.died.IsZero() {
		return resync
	}
	if left := steadyFor - time.Since(f.since); left > 0 {
		return left
	}
	outage, text := f.since.Sub(f.died), ""
	if f.deaths > 1 {
		text = fmt.Sprintf(", %d failures", f.deaths)
	}
	f.died, f.deaths = time.Time{}, 0
	_ = f.saveApplied() // only the count of restarts would be lost
	f.event(api.Info, "FunctionRecovered", "running again"+text, outage)
	return resync
}

func (f *function) down(ctx context.Context) {
	f.alive = false
	f.probing.Store(false)
	f.forwards.Store(false)
	if err := f.a.Switch.SetState(ctx, f.inSwitch(), datapath.Down, 0); err != nil && !errors.Is(err, datapath.ErrNotFound) {
		f.a.Log.Error("set function down", "function", f.name, "error", err)
	}
}

// observe acknowledges a generation that changed nothing for the container (on_fail for example).
func (f *function) observe(want api.Function, img image.Image) {
	f.arrived(want)
	if f.behind {
		return
	}
	f.update(func(v *view) {
		v.status.ObservedGeneration, v.status.ObservedRestart = want.Generation, want.Spec.Restart
		v.status.Image = img.Digest
	})
}

func (f *function) restartUnhealthy(ctx context.Context) error {
	f.event(api.Warning, "FunctionRestarting", fmt.Sprintf("no probe frame came through for %s", f.patience()), 0)
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

// hangs says of a process that runs what its start waits for, once a start or a hang, with the last line that the process wrote.
func (f *function) hangs(ctx context.Context) {
	since := f.quietSince()
	if time.Since(since) < hangsAfter || f.told.Equal(since) {
		return
	}
	f.told = since
	words := f.lastWords(ctx)
	f.update(func(v *view) {
		v.status.Say(unhealthy(api.ReasonSilent, "its process runs, but no probe frame has come through"+words))
	})
}

// slower takes in a round trip. It is news only when it is the first or much longer: a status is not a time series.
func (f *function) slower(rtt time.Duration) {
	if known := f.rtt.Load(); known == 0 || rtt.Nanoseconds() > 4*known {
		f.rtt.Store(rtt.Nanoseconds())
		f.update(func(v *view) { v.status.RTTns = rtt.Nanoseconds() })
	}
}

func unhealthy(r api.Reason, message string) api.Condition {
	return api.Condition{Type: api.ConditionUnhealthy, Reason: r, Message: message}
}
