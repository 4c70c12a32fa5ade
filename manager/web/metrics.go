package web

import (
	"net/http"
	"strconv"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"
)

// metrics of one manager, in a registry of its own.
type metrics struct {
	handler  http.Handler
	requests *prometheus.HistogramVec
}

func newMetrics(watches func() int64) *metrics {
	m := &metrics{
		requests: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "weir_api_request_seconds", Help: "Time of API requests by path and status; streams count as long as they last.",
			Buckets: []float64{.001, .01, .1, 1, 10},
		}, []string{"method", "path", "status"}),
	}
	open := prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: "weir_api_watches", Help: "Watches that are open."}, func() float64 { return float64(watches()) })
	r := prometheus.NewRegistry()
	// The process itself, too: go_goroutines, go_memstats_*, process_resident_memory_bytes, process_open_fds.
	r.MustRegister(m.requests, open, collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	m.handler = promhttp.HandlerFor(r, promhttp.HandlerOpts{})
	return m
}

func (m *metrics) request(method, path string, status int, d time.Duration) {
	if path == "other" {
		method = "other" // clients choose it: bounded here
	}
	m.requests.WithLabelValues(method, path, strconv.Itoa(status)).Observe(d.Seconds())
}
