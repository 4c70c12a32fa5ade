package news

import (
	"cmp"
	"fmt"
	"sync"
	"time"

	"weir.dev/weir/api"
	"weir.dev/weir/manager/history"
)

// Bounds of the events that one host may raise, and of those that its functions may: a report's worth at once, then so many a second. Statuses are never
// bounded so.
const (
	eventBurst  = maxReportEvents
	eventRefill = 50 * time.Millisecond // one more event per
	maxRates    = 8_192
	dropAgain   = time.Minute // what is dropped is told once in this time
)

// eventRate is a bucket of tokens.
type eventRate struct {
	spent   float64 // tokens
	at      time.Time
	dropped int // since it was told
	told    time.Time
}

func (b eventRate) now(now time.Time) float64 {
	return max(0, b.spent-float64(max(0, now.Sub(b.at)))/float64(eventRefill)) // a clock may be set back
}

// eventRates are the rates of hosts and of the functions of hosts.
type eventRates struct {
	mu sync.Mutex
	by map[rateKey]eventRate
}

type rateKey struct {
	host      string
	functions bool // of the host, together
}

// admit gives the events that a host's report may have, the first ones, and what is to be told of the others. The agent in this process is not bounded,
// what its functions raise is.
func (r *eventRates) admit(host string, remote bool, events []api.Event, now time.Time) (admitted, told []api.Event) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, e := range events {
		key := rateKey{host, e.Source != ""}
		if !remote && !key.functions || r.take(key, now) {
			admitted = append(admitted, e)
		}
	}
	for _, key := range []rateKey{{host, false}, {host, true}} {
		b := r.by[key]
		if b.dropped == 0 || !b.told.IsZero() && now.Sub(b.told).Abs() < dropAgain {
			continue
		}
		who := "host " + host
		if key.functions {
			who = "the functions of host " + host
		}
		told = append(told, api.Event{Severity: api.Warning, Reason: history.EventsDropped, Kind: api.KindHost, Object: host, Host: host, Message: fmt.Sprintf(
			"%d events of %s were dropped: want at most %d at once and %d a second", b.dropped, who, eventBurst, time.Second/eventRefill)})
		b.dropped, b.told = 0, now
		r.by[key] = b
	}
	return admitted, told
}

func (r *eventRates) take(key rateKey, now time.Time) bool {
	b, known := r.by[key]
	if !known && len(r.by) >= maxRates {
		for k, b := range r.by {
			if b.now(now) == 0 && b.dropped == 0 {
				delete(r.by, k)
			}
		}
		if len(r.by) >= maxRates {
			return false
		}
	}
	if r.by == nil {
		r.by = map[rateKey]eventRate{}
	}
	b.spent, b.at = b.now(now), now
	ok := b.spent <= eventBurst-1
	if ok {
		b.spent++
	} else {
		b.dropped++
	}
	r.by[key] = b
	return ok
}

// hostEvents adds what a host's agent raised. Who raised it is the host, or a function of its own whose agent says so. An event that names what is not the
// host's own is told of the host instead.
func (n *news) hostEvents(host string, remote bool, events []api.Event) error {
	for _, e := range events {
		function := e.Source != ""
		e.Host, e.Source = cmp.Or(e.Host, host), cmp.Or(hostSource(host), api.SourceManager)
		if function && e.Kind != api.KindFunction {
			function = false
		}
		if remote {
			mine, err := n.mayName(host, e.Kind, e.Object)
			if err != nil {
				return err
			}
			if !mine {
				e.Message = fmt.Sprintf("says of %s/%s, which is not its own: %s", e.Kind, e.Object, e.Message)
				e.Kind, e.Object, function = api.KindHost, host, false
			}
		}
		if function {
			e.Source = api.SourceOf(api.KindFunction, e.Object)
			if wrong := api.CheckReason(e.Reason); wrong != "" {
				e = api.Event{Severity: api.Warning, Reason: "EventRefused", Kind: e.Kind, Object: e.Object, Host: e.Host, Source: e.Source,
					Message: "an event that the function raised is left out: reason: " + wrong}
			}
		}
		n.told = append(n.told, e)
	}
	return nil
}

func hostSource(host string) string {
	if host == "" {
		return ""
	}
	return api.SourceOf(api.KindHost, host)
}

// mayName tells whether an event of a host may name an object: the host itself, or what owns says is its own.
func (n *news) mayName(host string, kind api.Kind, name string) (bool, error) {
	switch kind {
	case "":
		return name == "", nil
	case api.KindHost:
		return name == host, nil
	case api.KindEndpoint, api.KindFunction, api.KindChain, api.KindPolicy:
		o, err := n.where.Find(kind, name)
		if err != nil || o == nil {
			return false, err
		}
		return n.owns(kind, o)
	}
	return false, nil
}
