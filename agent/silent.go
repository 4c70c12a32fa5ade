package agent

import (
	"context"
	"fmt"
	"time"

	"weir.dev/weir/agent/health"
	"weir.dev/weir/api"
)

const (
	silentEvery = time.Second
	silentAgain = 10 * time.Minute // at the earliest
)

// silence of a function, and what was said of it.
type silence struct {
	health.Silence
	told time.Time
}

// watchSilent warns of functions without a probe that take frames and hand none on. While there are none it reads no counters.
func (a *Agent) watchSilent(ctx context.Context) {
	tick := time.NewTicker(silentEvery)
	defer tick.Stop()
	known := map[*function]*silence{}
	for {
		select {
		case <-ctx.Done():
			return
		case now := <-tick.C:
			if err := a.lookSilent(ctx, known, now); err != nil && ctx.Err() == nil {
				a.Log.Warn("read the ports' counters", "error", err)
			}
		}
	}
}

func (a *Agent) lookSilent(ctx context.Context, known map[*function]*silence, now time.Time) error {
	a.mu.Lock()
	byName := map[string]*function{}
	for _, f := range a.functions {
		if f.forwards.Load() {
			byName[f.inSwitch()] = f
		}
	}
	a.mu.Unlock()
	for f := range known {
		if byName[f.inSwitch()] != f {
			delete(known, f)
		}
	}
	if len(byName) == 0 {
		return nil
	}
	ports, err := a.Switch.Ports(ctx)
	if err != nil {
		return err
	}
	in, out := map[string]uint64{}, map[string]uint64{}
	for _, p := range ports { // what leaves the switch goes into the function, by whichever port
		in[p.Function] += p.Tx.Packets
		out[p.Function] += p.Rx.Packets
	}
	for name, f := range byName {
		s := known[f]
		if s == nil {
			s = &silence{}
			known[f] = s
		}
		if frames, silent := s.Look(in[name], out[name], now); silent {
			f.silent(s, frames, now)
		} else if frames == 0 {
			f.answers()
		}
	}
	return nil
}

// silent says that nothing comes back.
func (f *function) silent(s *silence, frames uint64, now time.Time) {
	if f.view().status.Conditions.Get(api.ConditionSilent) != nil {
		return
	}
	text := fmt.Sprintf("%d frames went in within %s, and none came out", frames, now.Sub(s.Since).Round(time.Second))
	f.update(func(v *view) {
		if v.status.Healthy {
			v.status.Note(api.Condition{Type: api.ConditionSilent, Reason: api.ReasonSilent, Message: "nothing comes back: " + text})
		}
	})
	if s.told.IsZero() || now.Sub(s.told) >= silentAgain {
		s.told = now
		f.event(api.Warning, "NothingComesBack", text+": does it hand frames on? (its image declares no probe, so nothing else tells)", 0)
	}
}

// answers takes back that nothing comes back.
func (f *function) answers() {
	if f.view().status.Conditions.Get(api.ConditionSilent) != nil {
		f.update(func(v *view) { v.status.Drop(api.ConditionSilent) })
	}
}
