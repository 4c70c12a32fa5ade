package agent

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"weir.dev/weir/api"
	"weir.dev/weir/container"
	"weir.dev/weir/datapath"
	"weir.dev/weir/flow"
)

// A function that was placed elsewhere, or is wanted no more, leaves: it goes on forwarding as long as a rule in force here names its ports,
// those that drain included. The router takes a host's rules away when the new way is in force everywhere, so nothing is broken before
// something else is made, also if the new place never gets ready, or the manager is away. An agent that starts takes what leaves over from
// the one before.

// keepTold is how long a function may take to leave until an event says so.
const keepTold = 30 * time.Second

// portsOf gathers the functions' ports that the switch has, by function.
func portsOf(all []datapath.PortStatus) map[string]datapath.Ports {
	out := map[string]datapath.Ports{}
	for _, p := range all {
		kind, rest, _ := strings.Cut(p.Name, "/")
		name, side, _ := strings.Cut(rest, "/") // with what tells two instances apart
		if kind != "function" {
			continue
		}
		ports := out[name]
		for s := range flow.Sides {
			if s.String() == side {
				*ports.At(s) = p.Port
			}
		}
		out[name] = ports
	}
	return out
}

// adoptLeaving goes on with the functions of an earlier run that are not this host's any more and that rules may lead to: they have a
// container and ports. It takes them out of existing.
func (a *Agent) adoptLeaving(ctx context.Context, wg *sync.WaitGroup, want share, existing map[string]container.Status, ports []datapath.PortStatus) {
	a.mu.Lock()
	defer a.mu.Unlock()
	have := portsOf(ports)
	for _, inSwitch := range slices.Sorted(maps.Keys(have)) {
		name := strings.TrimSuffix(inSwitch, second)
		_, wanted := want.functions[name]
		_, contained := existing[name]
		if wanted || !contained {
			continue
		}
		w := want.all.functions[name] // zero: its record is gone
		f := newFunction(a, name, w.UID, existing)
		if f.inSwitch() != inSwitch {
			continue
		}
		f.want, f.forgot, f.left = w, true, time.Now()
		f.seen.ports, f.seen.placed, f.seen.wasUp = have[inSwitch], true, true
		f.seen.tap, f.seen.onFail = have[inSwitch].Tap != 0, w.Spec.OnFail
		a.functions[name] = f
		delete(existing, name)
		a.Log.Info("a function of an earlier run is not this host's any more: it stays until no rule leads to it", "function", name)
		wg.Go(func() { f.run(ctx) })
	}
}

// has tells whether a function, one that leaves included, is looked after.
func (a *Agent) has(function string) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.functions[function] != nil
}

// letLeave lets functions go that no rule leads to, and tells of those that stay for long.
func (a *Agent) letLeave(want share, used map[flow.Port]bool, now time.Time) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for name, f := range a.functions {
		w, ok := want.functions[name]
		if ok && w.UID == f.uid && w.Deleting == nil {
			continue
		}
		p := f.view().ports
		if !used[p.In] && !used[p.Out] && !used[p.Tap] {
			f.release()
			continue
		}
		if f.overstays(now) {
			where := "nowhere"
			if at := want.all.functions[name].At(); at != "" {
				where = "at " + at
			}
			a.report.Event(api.Event{Severity: api.Warning, Reason: "FunctionKept", Kind: api.KindFunction, Object: name,
				Message: fmt.Sprintf("function %s is placed %s, but rules still lead to it at %s: it goes on here until they lead elsewhere (is it up there?)", name, where, a.Host)})
		}
	}
}

// overstays tells, once, that a function has been leaving for long.
func (f *function) overstays(now time.Time) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	if !f.forgot || f.keptTold || now.Sub(f.left) < keepTold {
		return false
	}
	f.keptTold = true
	return true
}
