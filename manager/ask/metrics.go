package ask

import (
	"cmp"
	"context"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"weir.dev/weir/api"
	"weir.dev/weir/manager/strict"
	"weir.dev/weir/store"
)

// Bounds of a scrape.
const (
	scrapeFresh = time.Second // so old may readings be that several scrapes share
	maxLabel    = 128         // bytes: hosts choose the names of their ports
)

// Metrics are what hosts and functions do, for Prometheus. The counters are the switches' own, read with each scrape.
func (a *Asker) Metrics(events func() map[api.Severity]uint64) prometheus.Collector {
	desc := func(name, help string, labels ...string) *prometheus.Desc {
		return prometheus.NewDesc("weir_"+name, help, labels, nil)
	}
	return &meters{
		a: a, events: events,
		hostReady:    desc("host_ready", "Whether the host's agent is there and knows how everything is.", "host"),
		hostAnswered: desc("host_answered", "Whether the host's counters could be read in this scrape.", "host"),
		rxPackets:    desc("port_received_packets_total", "Packets that the switch received at the port.", "host", "port"),
		rxBytes:      desc("port_received_bytes_total", "Bytes that the switch received at the port.", "host", "port"),
		txPackets:    desc("port_sent_packets_total", "Packets that the switch sent at the port.", "host", "port"),
		txBytes:      desc("port_sent_bytes_total", "Bytes that the switch sent at the port.", "host", "port"),
		dropped:      desc("port_dropped_packets_total", "Packets that were dropped at the port.", "host", "port"),
		refused:      desc("port_refused_packets_total", "Packets that port security dropped, by reason. They are among the dropped ones.", "host", "port", "reason"),
		settled:      desc("port_settled_packets_total", "Packets that did not enter the function at the port, since it had settled their flow.", "host", "port"),
		settledBytes: desc("port_settled_bytes_total", "Bytes of these packets.", "host", "port"),
		healthy:      desc("function_healthy", "Whether the function is started and forwards.", "function", "host"),
		restarts:     desc("function_restarts_total", "How often the function was started again.", "function", "host"),
		probe:        desc("function_probe_rtt_seconds", "Time of the last probe frame through the function.", "function", "host"),
		policyReady:  desc("policy_ready", "Whether the policy is in force as it is declared.", "policy"),
		eventsTold:   desc("events_total", "Events that this manager has written since it began, by severity.", "severity"),
	}
}

// meters collects for Prometheus.
type meters struct {
	a      *Asker
	events func() map[api.Severity]uint64

	hostReady, hostAnswered                                  *prometheus.Desc
	rxPackets, rxBytes, txPackets, txBytes, dropped, refused *prometheus.Desc
	settled, settledBytes                                    *prometheus.Desc // of ports whose function settles flows
	healthy, restarts, probe                                 *prometheus.Desc
	policyReady, eventsTold                                  *prometheus.Desc

	mu    sync.Mutex
	at    time.Time
	hosts map[string]reading
	told  []api.FunctionMetrics
	since time.Time
}

// tellers are what functions tell, read with a scrape unless that was done just now.
func (m *meters) tellers(ctx context.Context, hosts []api.Host, functions []api.Function) []api.FunctionMetrics {
	m.mu.Lock()
	defer m.mu.Unlock()
	if time.Since(m.since) > scrapeFresh {
		m.told, m.since = m.a.tellers(ctx, hosts, functions), time.Now()
	}
	return m.told
}

// Describe implements prometheus.Collector.
func (m *meters) Describe(out chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{
		m.hostReady, m.hostAnswered, m.rxPackets, m.rxBytes, m.txPackets, m.txBytes, m.dropped, m.refused, m.settled, m.settledBytes, m.healthy, m.restarts, m.probe, m.policyReady, m.eventsTold,
	} {
		out <- d
	}
}

// read reads all hosts' counters, unless that was done just now.
func (m *meters) read(ctx context.Context) map[string]reading {
	m.mu.Lock()
	defer m.mu.Unlock()
	if time.Since(m.at) > scrapeFresh {
		m.hosts, m.at = m.a.readAll(ctx), time.Now()
	}
	return m.hosts
}

// Collect implements prometheus.Collector. What cannot be read is left out; weir_host_answered says of which host.
func (m *meters) Collect(out chan<- prometheus.Metric) {
	ctx, cancel := context.WithTimeout(context.Background(), portsTimeout)
	defer cancel()
	send := func(d *prometheus.Desc, kind prometheus.ValueType, v float64, labels ...string) {
		out <- prometheus.MustNewConstMetric(d, kind, v, labels...)
	}
	truth := func(b bool) float64 {
		if b {
			return 1
		}
		return 0
	}
	for severity, n := range m.events() {
		send(m.eventsTold, prometheus.CounterValue, float64(n), string(severity))
	}
	hosts, _, err := store.List[api.Host](ctx, m.a.Store, api.KindHost)
	readings := m.read(ctx)
	for _, h := range hosts {
		r, asked := readings[h.Name]
		send(m.hostReady, prometheus.GaugeValue, truth(h.Ready().Ready() && m.a.Hosts.Lost(h) == ""), h.Name)
		send(m.hostAnswered, prometheus.GaugeValue, truth(asked && r.err == nil), h.Name)
		if !asked || r.err != nil {
			continue
		}
		seen := map[string]bool{}
		for _, p := range r.counters.Ports {
			name := label(p.Name)
			if seen[name] { // a hostile host must not spoil the scrape of all
				continue
			}
			seen[name] = true
			send(m.rxPackets, prometheus.CounterValue, float64(p.Rx.Packets), h.Name, name)
			send(m.rxBytes, prometheus.CounterValue, float64(p.Rx.Bytes), h.Name, name)
			send(m.txPackets, prometheus.CounterValue, float64(p.Tx.Packets), h.Name, name)
			send(m.txBytes, prometheus.CounterValue, float64(p.Tx.Bytes), h.Name, name)
			send(m.dropped, prometheus.CounterValue, float64(p.Dropped.Packets), h.Name, name)
			if p.Settles || p.Settled != (api.Counter{}) {
				send(m.settled, prometheus.CounterValue, float64(p.Settled.Packets), h.Name, name)
				send(m.settledBytes, prometheus.CounterValue, float64(p.Settled.Bytes), h.Name, name)
			}
			reasons := map[string]bool{}
			for reason, n := range p.Refused {
				if reason = label(reason); !reasons[reason] && len(reasons) < 32 {
					reasons[reason] = true
					send(m.refused, prometheus.CounterValue, float64(n), h.Name, name, reason)
				}
			}
		}
	}
	functions, _, err2 := store.List[api.Function](ctx, m.a.Store, api.KindFunction)
	for _, f := range functions {
		host := label(cmp.Or(f.At(), f.Status.Host))
		send(m.healthy, prometheus.GaugeValue, truth(f.Status.State == api.FunctionStarted && f.Status.Healthy), f.Name, host)
		send(m.restarts, prometheus.CounterValue, float64(f.Status.Restarts), f.Name, host)
		if f.Status.RTTns > 0 {
			send(m.probe, prometheus.GaugeValue, float64(f.Status.RTTns)/1e9, f.Name, host)
		}
	}
	sendTold(out, m.tellers(ctx, hosts, functions))
	policies, _, err3 := store.List[api.Policy](ctx, m.a.Store, api.KindPolicy)
	for _, p := range policies {
		send(m.policyReady, prometheus.GaugeValue, truth(p.Ready().Ready()), p.Name)
	}
	if err = cmp.Or(err, err2, err3); err != nil {
		m.a.Log.Warn("metrics: read the store", "error", err)
	}
}

// label is text that Prometheus takes.
func label(s string) string { return strings.ToValidUTF8(strict.Clip(s, maxLabel), "?") }
