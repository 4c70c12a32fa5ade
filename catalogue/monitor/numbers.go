package main

import (
	"context"
	"fmt"
	"time"

	"weir.dev/weir/catalogue/nf"
)

// numbers for the platform's metrics.
func numbers(t *table, log *logger, r *ring, rs *readers) *nf.Numbers {
	var n nf.Numbers
	n.Gauge("monitor_flows", "Flows that are remembered now.", float64(len(t.flows)))
	n.Gauge("monitor_flows_max", "Flows that may be remembered at a time (max_flows).", float64(t.max))
	n.Counter("monitor_flows_total", "Flows that have begun.", float64(t.total))
	for way, direction := range []string{"forward", "reply"} {
		n.Counter("monitor_packets_total", "Packets of flows: forward as a flow's first packet went, reply those back.", float64(t.count[way].packets), "direction", direction)
		n.Counter("monitor_bytes_total", "Bytes of these packets.", float64(t.count[way].bytes), "direction", direction)
	}
	n.Counter("monitor_untracked_packets_total", "Packets of flows beyond max_flows.", float64(t.untracked.packets))
	n.Counter("monitor_untracked_bytes_total", "Bytes of these packets.", float64(t.untracked.bytes))
	n.Counter("monitor_dropped_packets_total", "Packets that the kernel had no room for.", float64(r.dropped()))
	n.Counter("monitor_unlogged_lines_total", "Lines of the log that its rate limit left out.", float64(log.unlogged))
	n.Counter("monitor_displaced_talkers_total", "Addresses that lost their place among those that send most to others.", float64(t.talkers.displaced))
	rs.numbers(&n)
	return &n
}

func (rs *readers) numbers(n *nf.Numbers) {
	rs.mu.Lock()
	defer rs.mu.Unlock()
	for _, d := range []struct {
		to string
		delivery
	}{{"collector", rs.collector}, {"reader", rs.others}} {
		n.Counter("monitor_exported_records_total", "Records of flows that were sent, one for each direction that had packets.", float64(d.sent), "to", d.to)
		n.Counter("monitor_missed_records_total", "Records of flows that were not sent, since the receiver did not read.", float64(d.missed), "to", d.to)
	}
}

// teller tells the platform numbers, beside the loop over packets, which must not wait for it.
type teller struct {
	next    time.Time // when there are others to tell
	waiting chan *nf.Numbers
}

// newTeller tells at the socket, if it exists. say gets what went wrong, once until it goes well again.
func newTeller(socket string, say func(error)) *teller {
	t := &teller{waiting: make(chan *nf.Numbers, 1)}
	go func() {
		failed := false
		for n := range t.waiting {
			err := n.Tell(context.Background(), socket)
			if err != nil && !failed {
				say(fmt.Errorf("tell numbers: %w", err))
			}
			failed = err != nil
		}
	}()
	return t
}

func (t *teller) close() { close(t.waiting) }

// at a time, tell the numbers if they are due. It does not block: while the former ones are still being told, none are.
func (t *teller) at(now time.Time, numbers func() *nf.Numbers) {
	if now.Before(t.next) {
		return
	}
	t.next = now.Add(nf.TellEvery)
	select {
	case t.waiting <- numbers():
	default:
	}
}
