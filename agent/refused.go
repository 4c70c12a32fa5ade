package agent

import (
	"context"
	"fmt"
	"strings"
	"time"

	"weir.dev/weir/api"
	"weir.dev/weir/datapath"
	"weir.dev/weir/flow"
)

// What port security drops is told by one event for each endpoint and reason: at once, then, while it goes on, from time to time.
const (
	refusedEvery = 5 * time.Second
	refusedAgain = time.Minute
)

// refusedKey is an endpoint's port and why frames were dropped there.
type refusedKey struct {
	name string
	why  flow.Refusal
}

// refusedSeen is what was counted when it was told last.
type refusedSeen struct {
	count uint64
	told  time.Time
}

// watchRefused tells of frames that port security drops.
func (a *Agent) watchRefused(ctx context.Context) {
	tick := time.NewTicker(refusedEvery)
	defer tick.Stop()
	seen, first := map[refusedKey]refusedSeen{}, true
	for now := time.Now(); ; { // the first look is at once: what is dropped after it is told
		if ports, err := a.Switch.Ports(ctx); err == nil { // else whoever needs the counters says so
			for _, e := range refusals(seen, ports, now, first) {
				a.report.event(e)
			}
			first = false
		}
		select {
		case <-ctx.Done():
			return
		case now = <-tick.C:
		}
	}
}

// refusals are the events about what was counted since the last ones. The first time counters are those of an earlier run.
func refusals(seen map[refusedKey]refusedSeen, ports []datapath.PortStatus, now time.Time, first bool) []api.Event {
	var out []api.Event
	here := map[refusedKey]bool{}
	for _, p := range ports {
		name, ok := strings.CutPrefix(p.Name, "endpoint/")
		if !ok || p.Refused == ([flow.Refusals]uint64{}) {
			continue
		}
		for why := flow.RefusedMAC; why < flow.Refusals; why++ {
			k, count := refusedKey{name, why}, p.Refused[why]
			was := seen[k]
			here[k] = true
			if count < was.count || first { // a port made anew
				was.count = 0
			}
			if first {
				seen[k] = refusedSeen{count: count}
				continue
			}
			if count == was.count || !was.told.IsZero() && now.Sub(was.told) < refusedAgain {
				continue
			}
			seen[k] = refusedSeen{count, now}
			out = append(out, api.Event{Severity: api.Warning, Reason: "Refused" + strings.ToUpper(why.String()[:1]) + why.String()[1:], Kind: api.KindEndpoint, Object: name,
				Message: fmt.Sprintf("port security dropped %d packets (%d in all): %s", count-was.count, count, why.Why())})
		}
	}
	for k := range seen {
		if !here[k] {
			delete(seen, k)
		}
	}
	return out
}
