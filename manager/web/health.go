package web

import (
	"encoding/json"
	"net/http"

	"strconv"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"weir.dev/weir/api"
)

type health struct {
	Status string `json:"status"`
}

// routes are the paths of the server itself.
func (a *API) routes() []Route {
	return []Route{
		{Method: "GET", Path: "/v1/openapi.json", ID: "openapi", Needs: api.RoleViewer, Summary: "this document", Answers: map[int]any{200: Text("application/json")},
			Handler: func(w http.ResponseWriter, _ *http.Request) error {
				b, err := a.OpenAPI()
				if err != nil {
					return err
				}
				return Answer(w, http.StatusOK, json.RawMessage(b))
			}},
		{Method: "GET", Path: "/healthz", ID: "health", Needs: Anybody, Summary: "200 when the manager answers and its store works",
			Answers: map[int]any{200: health{}}, Problems: []int{503}, Handler: func(w http.ResponseWriter, r *http.Request) error {
				if err := a.Health(r.Context()); err != nil {
					return err
				}
				return Answer(w, http.StatusOK, health{"ok"})
			}},
		{Method: "GET", Path: "/metrics", ID: "metrics", Needs: api.RoleViewer, Summary: "metrics in the Prometheus format", Answers: map[int]any{200: Text("text/plain")},
			Handler: func(w http.ResponseWriter, r *http.Request) error {
				a.metrics.handler.ServeHTTP(w, r)
				return nil
			}},
	}
}

// metrics of one manager, in a registry of its own.
type metrics struct {
	handler  http.Handler
	requests *prometheus.HistogramVec
}

func newMetrics(watches func() int64, more []prometheus.Collector) *metrics {
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
	r.MustRegister(more...)
	m.handler = promhttp.HandlerFor(r, promhttp.HandlerOpts{})
	return m
}

func (m *metrics) request(method, path string, status int, d time.Duration) {
	if path == "other" {
		method = "other" // clients choose it: bounded here
	}
	m.requests.WithLabelValues(method, path, strconv.Itoa(status)).Observe(d.Seconds())
}
