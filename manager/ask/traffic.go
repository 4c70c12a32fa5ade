package ask

import (
	"context"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"weir.dev/weir/api"
	"weir.dev/weir/manager/web"
)

// Traffic of the last hour.
const (
	trafficEvery = 20 * time.Second
	trafficKept  = time.Hour
)

// hour remembers what endpoints have sent. It begins anew with the manager.
type hour struct {
	every time.Duration
	mu    sync.Mutex
	past  []api.TrafficPoint // the oldest first
}

// RememberTraffic reads the counters of all hosts now and then, until ctx ends.
func (a *Asker) RememberTraffic(ctx context.Context) {
	tick := time.NewTicker(a.hour.every)
	defer tick.Stop()
	before := a.readAll(ctx)
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		now := a.readAll(ctx)
		if ctx.Err() != nil {
			return
		}
		a.hour.add(pointOf(ratesOf(before, now)))
		before = now
	}
}

// pointOf rates: what enters at endpoints' ports, and what is dropped at any port.
func pointOf(r api.Rates) api.TrafficPoint {
	p := api.TrafficPoint{Time: time.Now().UTC()}
	for _, h := range r.Hosts {
		if h.PeriodNs > 0 {
			p.Hosts++
		}
	}
	for _, x := range r.Ports {
		p.DroppedPerS += x.DroppedPerS
		if strings.HasPrefix(x.Name, string(api.KindEndpoint)+"/") {
			p.PacketsPerS += x.Rx.PacketsPerS
			p.BitsPerS += x.Rx.BitsPerS
		}
	}
	return p
}

func (h *hour) add(p api.TrafficPoint) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.past = append(h.past, p)
	h.past = slices.DeleteFunc(h.past, func(x api.TrafficPoint) bool { return p.Time.Sub(x.Time) > trafficKept })
}

// traffic answers with the last hour.
func (a *Asker) traffic(w http.ResponseWriter, _ *http.Request) error {
	a.hour.mu.Lock()
	out := api.Traffic{EveryNs: a.hour.every.Nanoseconds(), Points: slices.Clone(a.hour.past)}
	a.hour.mu.Unlock()
	if out.Points == nil {
		out.Points = []api.TrafficPoint{}
	}
	return web.Answer(w, http.StatusOK, out)
}
