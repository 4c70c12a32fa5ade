package agent

import (
	"context"
	"fmt"
	"maps"
	"strings"
	"time"

	"weir.dev/weir/agent/sandbox"
	"weir.dev/weir/api"
	"weir.dev/weir/container"
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

// refusedRings is how often containers were refused rings of sockets, or sockets, as far as was told.
type refusedRings map[string]uint64

// tell of those that were refused some since.
func (seen refusedRings) tell(list []container.Status, event func(api.Event)) {
	there := map[string]bool{}
	for _, c := range list {
		there[c.ID] = true
		if c.RingsRefused <= seen[c.ID] {
			continue
		}
		n := c.RingsRefused - seen[c.ID]
		seen[c.ID] = c.RingsRefused
		name, _ := sandbox.Of(c.ID)
		event(api.Event{Severity: api.Warning, Reason: "RingsRefused", Kind: api.KindFunction, Object: name, Message: fmt.Sprintf(
			"it asked %d times for rings of sockets, for netlink, packet, raw or UDP sockets, or for what the kernel keeps for sockets, beyond its limit of %s: it was told that there is no memory (ENOMEM), or a packet with a timestamp was dropped (EPERM)", n, size(c.Limits.Rings))})
	}
	maps.DeleteFunc(seen, func(id string, _ uint64) bool { return !there[id] })
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
