package control

import (
	"context"
	"time"

	"weir.dev/weir/flow"
	"weir.dev/weir/openflow"
	"weir.dev/weir/router"
	"weir.dev/weir/router/discovery"
	"weir.dev/weir/router/rollout"
)

// droppedEvery is how often a switch is asked what its entries of port security have dropped.
const droppedEvery = 10 * time.Second

// dropped is what port security has dropped at the ports of switches.
type dropped struct {
	counts router.Counts // by endpoint, since this router started
	told   router.Refused
}

// countDropped asks a switch with port security for its counters, and tells what is new.
func (l *loop) countDropped(d *device, now time.Time) {
	if len(d.guarded) == 0 || d.counting || now.Sub(d.counted) < droppedEvery {
		return
	}
	d.counting, d.counted = true, now
	s := d.session
	l.wg.Go(func() {
		entries, err := s.readSecurity(l.ctx)
		post(l.ctx, l.events, func(l *loop) {
			d.counting = false
			if err != nil || d.session != s {
				return // it is asked again
			}
			l.addDropped(d, entries)
			for _, e := range l.dropped.told.Tell(l.dropped.counts, l.o.Now()) {
				l.event(e.Severity, e.Reason, e.Kind, e.Object, e.Message+"; name who else is behind that port in its port_security, or set mode: off", 0)
			}
		})
	})
}

// addDropped adds what entries have dropped since the last look.
func (l *loop) addDropped(d *device, entries []openflow.FlowStats) {
	hits := packetsOf(entries)
	for port, have := range d.guarded {
		want, there := l.guards[discovery.Seat{ID: d.ID, Port: port}]
		if !there {
			continue
		}
		counts := l.dropped.counts[want.endpoint]
		for _, r := range have.rules {
			if n := hits[r.Key]; r.Refusal != flow.Accepted {
				if n < d.hits[r.Key] { // made anew
					d.hits[r.Key] = 0
				}
				counts[r.Refusal] += n - d.hits[r.Key]
			}
		}
		l.dropped.counts[want.endpoint] = counts
	}
	d.hits = hits
	for name := range l.dropped.counts {
		if _, there := l.intent.endpoints[name]; !there {
			delete(l.dropped.counts, name)
		}
	}
}

// packetsOf are the counters of port security's entries.
func packetsOf(entries []openflow.FlowStats) map[rollout.Key]uint64 {
	out := map[rollout.Key]uint64{}
	for _, e := range entries {
		if e.Table >= checkMAC && e.Table <= checkTarget && len(e.Instructions) == 0 {
			out[rollout.KeyOf(&e)] = e.Packets
		}
	}
	return out
}

// readSecurity reads the entries of port security.
func (s *session) readSecurity(ctx context.Context) ([]openflow.FlowStats, error) {
	ctx, cancel := context.WithTimeout(ctx, readTimeout)
	defer cancel()
	var all []openflow.FlowStats
	for table := checkMAC; table <= checkTarget; table++ {
		entries, err := s.conn.Flows(ctx, openflow.FlowStatsRequest{Table: table, Cookie: rollout.CookieMark, CookieMask: rollout.CookieMask})
		if err != nil {
			return nil, err
		}
		all = append(all, entries...)
	}
	return all, nil
}
