package agent

import (
	"context"
	"time"

	"weir.dev/weir/agent/health"
	"weir.dev/weir/api"
	"weir.dev/weir/flow"
	"weir.dev/weir/image"
)

// A function that hangs is Down in the data plane within a second: a round of probes comes after probeEvery at the latest, then as many
// windows of probeTries probes each as health.Windows says have to bring nothing back.
const (
	probeEvery = 400 * time.Millisecond // rounds, through functions that traffic is steered to
	probeIdle  = 3                      // rounds from probe to probe of other functions
	// A function whose forwarding is the switch's own program cannot hang: the kernel tells when its process ends and when a link goes.
	// What is left to find is a program that somebody took away.
	probeKernel = 25
	probeGroup  = 5                     // these are probed in groups, this many rounds apart: a few at a time would wake the machine in every round
	probeQuick  = 50 * time.Millisecond // for all probes of a round
	probeTry    = 30 * time.Millisecond
	probeTries  = 4 // in a window: under load single frames are lost
)

// probeAll sends a frame through every function that carries traffic, all of a round at once: a hundred timers would wake the machine a hundred
// times, and a hundred waits would each cost more than the probe. What does not come through is looked at by the function's own goroutine.
func (a *Agent) probeAll(ctx context.Context) {
	tick := time.NewTicker(probeEvery)
	defer tick.Stop()
	for round := uint32(0); ; round++ {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		all := a.dueForProbe(round)
		if len(all) == 0 {
			continue
		}
		names := make([]string, 0, len(all))
		for name := range all {
			names = append(names, name)
		}
		quick, cancel := context.WithTimeout(ctx, probeQuick)
		passed, err := a.Switch.ProbeAll(quick, names)
		cancel()
		if ctx.Err() != nil {
			return
		}
		if err != nil {
			a.Log.Warn("probe functions", "error", err)
		}
		for name, f := range all {
			if p, ok := passed[name]; ok {
				f.slower(p.RTT)
			} else {
				f.suspected()
			}
		}
	}
}

// dueForProbe are the functions to be probed in a round.
func (a *Agent) dueForProbe(round uint32) map[string]*function {
	a.mu.Lock()
	defer a.mu.Unlock()
	all := map[string]*function{}
	for _, f := range a.functions {
		every, turn := uint32(probeIdle), f.turn
		switch {
		case f.kernel.Load():
			every, turn = probeKernel, f.turn*probeGroup
		case f.steered.Load():
			every = 1
		}
		if f.probing.Load() && !f.suspect.Load() && (round+turn)%every == 0 {
			all[f.inSwitch()] = f
		}
	}
	return all
}

// noteSteered notes to which functions rules in force lead: if one of them hangs, frames are lost.
func (a *Agent) noteSteered(rules []flow.Rule) {
	to := map[flow.Port]bool{}
	for i := range rules {
		to[rules[i].Action.Port] = true
	}
	used := portsIn(rules)
	a.inUse.Store(&used)
	a.commits.Add(1)
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, f := range a.functions {
		p := f.view().ports
		f.steered.Store(p.In != 0 && to[p.In] || p.Out != 0 && to[p.Out])
	}
}

// probe tries several times within one window.
func (f *function) probeWindow(ctx context.Context) (rtt time.Duration, err error) {
	for range probeTries {
		try, cancel := context.WithTimeout(ctx, probeTry)
		p, failed := f.a.Switch.Probe(try, f.inSwitch())
		cancel()
		if failed == nil {
			return p.RTT, nil
		}
		if err = failed; ctx.Err() != nil {
			break
		}
	}
	return 0, err
}

// confirm looks closely at a function that is up and whose last probe did not come through.
func (f *function) confirm(ctx context.Context, want api.Function, img image.Image) (time.Duration, error) {
	before, begin := f.passage(ctx, img), time.Now()
	rtt, err := f.probeWindow(ctx)
	late := time.Since(begin) - probeTries*probeTry
	after := f.passage(ctx, img)
	if err != nil && ctx.Err() != nil {
		return resync, nil
	}
	switch f.windows.Look(err == nil || after.out > before.out, max(after.in, before.in)-before.in, late) {
	case health.Unknown:
		return 0, nil
	case health.Hung:
		f.hung(ctx, img, err)
		return 0, nil
	}
	f.suspect.Store(false) // frames come out: it is slow, maybe, but does not hang
	if err == nil {
		f.slower(rtt)
	}
	f.observe(want, img)
	return resync, nil
}

// passage is what went into a function at its port in, and what came out at its port out.
type passage struct{ in, out uint64 }

// passage is zero where the kernel forwards: that never hangs. What comes out is asked of the link: the switch may count late.
func (f *function) passage(ctx context.Context, img image.Image) (p passage) {
	if f.kernel.Load() {
		return p
	}
	p.out, _ = f.a.Kernel.Received(f.links[flow.Out]) // of a link that is gone nothing comes
	ports, err := f.a.Switch.Ports(ctx)
	if err != nil {
		return p
	}
	for _, port := range ports {
		if port.Name == flow.In.Of(f.inSwitch()) {
			p.in = port.Tx.Packets
		}
	}
	return p
}
