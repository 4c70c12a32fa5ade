package agent

import (
	"context"
	"strings"
	"time"

	"weir.dev/weir/datapath"
	"weir.dev/weir/flow"
	"weir.dev/weir/router"
)

// refusedEvery is how often the counters of port security are looked at.
const refusedEvery = 5 * time.Second

// watchRefused tells of frames that port security drops.
func (a *Agent) watchRefused(ctx context.Context) {
	tick := time.NewTicker(refusedEvery)
	defer tick.Stop()
	var seen router.Refused
	first := true
	for now := time.Now(); ; { // the first look is at once: what is dropped after it is told
		if ports, err := a.Switch.Ports(ctx); err == nil { // else whoever needs the counters says so
			counts := refusals(ports)
			if first {
				seen.Start(counts)
				first = false
			}
			for _, e := range seen.Tell(counts, now) {
				a.report.Event(e)
			}
		}
		select {
		case <-ctx.Done():
			return
		case now = <-tick.C:
		}
	}
}

// refusals are the counters of endpoints' ports.
func refusals(ports []datapath.PortStatus) router.Counts {
	out := router.Counts{}
	for _, p := range ports {
		if name, ok := strings.CutPrefix(p.Name, "endpoint/"); ok && p.Refused != ([flow.Refusals]uint64{}) {
			out[name] = p.Refused
		}
	}
	return out
}
