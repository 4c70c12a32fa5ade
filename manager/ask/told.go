package ask

import (
	"cmp"
	"context"
	"net/http"
	"slices"
	"strings"
	"sync"

	"github.com/prometheus/client_golang/prometheus"

	"weir.dev/weir/api"
	"weir.dev/weir/manager/object"
	"weir.dev/weir/manager/web"
)

// maxHostMetrics bounds the numbers of all functions of one host, in a scrape.
const maxHostMetrics = 20_000

// functionMetrics answers with what a function has told last of itself.
func (a *Asker) functionMetrics(w http.ResponseWriter, r *http.Request) error {
	name := r.PathValue("name")
	f, err := object.Find[api.Function](r.Context(), a.Store, api.KindFunction, name)
	if err != nil {
		return err
	}
	out := api.FunctionMetrics{Function: name, Host: cmp.Or(f.At(), f.Status.Host), Metrics: []api.Metric{}}
	n, err := a.node(r.Context(), out.Host)
	if err != nil {
		return err
	}
	all, err := n.Metrics(r.Context())
	if err != nil {
		return live(err)
	}
	for _, told := range all {
		if told.Function == name && api.CheckMetrics(told.Metrics) == "" {
			out.Time, out.Metrics = told.Time, told.Metrics
		}
	}
	return web.Answer(w, http.StatusOK, out)
}

// tellers are what functions of hosts tell of themselves. What a host says of a function that is not placed there, or what no function may say, is left out.
func (a *Asker) tellers(ctx context.Context, hosts []api.Host, functions []api.Function) []api.FunctionMetrics {
	ctx, cancel := context.WithTimeout(ctx, ratesTimeout)
	defer cancel()
	placed := map[string]string{}
	for _, f := range functions {
		placed[f.Name] = cmp.Or(f.At(), f.Status.Host)
	}
	var mu sync.Mutex
	var wg sync.WaitGroup
	var out []api.FunctionMetrics
	slots := make(chan struct{}, ratesAtOnce)
	for _, h := range hosts {
		wg.Go(func() {
			slots <- struct{}{}
			defer func() { <-slots }()
			n, err := a.node(ctx, h.Name)
			if err != nil {
				return // weir_host_answered says so
			}
			all, err := n.Metrics(ctx)
			if err != nil {
				return
			}
			left, seen := maxHostMetrics, map[string]bool{}
			for _, told := range all {
				if left -= len(told.Metrics); left < 0 {
					break
				}
				if placed[told.Function] != h.Name || seen[told.Function] || api.CheckMetrics(told.Metrics) != "" {
					continue
				}
				seen[told.Function] = true
				told.Host = h.Name
				mu.Lock()
				out = append(out, told)
				mu.Unlock()
			}
		})
	}
	wg.Wait()
	slices.SortFunc(out, func(x, y api.FunctionMetrics) int { return strings.Compare(x.Function, y.Function) })
	return out
}

// sendTold sends the numbers of functions. A name has one kind, by its form, and here one help: that of the first function that tells it.
func sendTold(out chan<- prometheus.Metric, all []api.FunctionMetrics) {
	helps := map[string]string{}
	for _, told := range all {
		for _, m := range told.Metrics {
			if _, ok := helps[m.Name]; !ok {
				helps[m.Name] = m.Help
			}
			names, values := []string{"function", "host"}, []string{told.Function, told.Host}
			for name, value := range m.Labels {
				names, values = append(names, name), append(values, value)
			}
			kind := prometheus.GaugeValue
			if m.Kind == api.MetricCounter {
				kind = prometheus.CounterValue
			}
			one, err := prometheus.NewConstMetric(prometheus.NewDesc(api.MetricPrefix+m.Name, helps[m.Name], names, nil), kind, m.Value, values...)
			if err != nil {
				continue // no such name passes CheckMetrics
			}
			out <- one
		}
	}
}
