package router

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"weir.dev/weir/api"
	"weir.dev/weir/flow"
)

// RefusedAgain is how long nothing more is told of an endpoint and reason that was told.
const RefusedAgain = time.Minute

// Refused tells what port security drops by one event for each endpoint and reason: at once, then, while it goes on, once in RefusedAgain.
// The zero value is ready. It is not safe for concurrent use.
type Refused struct{ seen map[refusedKey]refusedSeen }

type refusedKey struct {
	endpoint string
	why      flow.Refusal
}

// refusedSeen is what was counted when it was told last.
type refusedSeen struct {
	count uint64
	told  time.Time
}

// Counts are how many frames were dropped, by endpoint and reason.
type Counts = map[string][flow.Refusals]uint64

// Start takes counts that nothing is told of: those of an earlier run.
func (r *Refused) Start(counts Counts) {
	r.seen = map[refusedKey]refusedSeen{}
	for name, c := range counts {
		for why, count := range c {
			r.seen[refusedKey{name, flow.Refusal(why)}] = refusedSeen{count: count}
		}
	}
}

// Tell gives the events about what was counted since the last ones. Counts that became smaller began anew; endpoints without counts are forgotten.
func (r *Refused) Tell(counts Counts, now time.Time) []api.Event {
	if r.seen == nil {
		r.Start(nil)
	}
	var out []api.Event
	for _, name := range slices.Sorted(maps.Keys(counts)) {
		for why := flow.RefusedMAC; why < flow.Refusals; why++ {
			k, count := refusedKey{name, why}, counts[name][why]
			was := r.seen[k]
			if count < was.count { // a port made anew
				was.count = 0
			}
			if count == was.count || !was.told.IsZero() && now.Sub(was.told) < RefusedAgain {
				continue
			}
			r.seen[k] = refusedSeen{count, now}
			text := why.String()
			out = append(out, api.Event{Severity: api.Warning, Reason: "Refused" + strings.ToUpper(text[:1]) + text[1:], Kind: api.KindEndpoint, Object: name,
				Message: fmt.Sprintf("port security dropped %d packets (%d in all): %s", count-was.count, count, why.Why())})
		}
	}
	maps.DeleteFunc(r.seen, func(k refusedKey, _ refusedSeen) bool {
		_, here := counts[k.endpoint]
		return !here
	})
	return out
}
