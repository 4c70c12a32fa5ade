package news

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"sync"
	"time"

	"weir.dev/weir/api"
	"weir.dev/weir/manager/bounded"
	"weir.dev/weir/manager/history"
)

// Bounds of the events that one host may raise, and of those that its functions may: a report's worth at once, then so many a second. Statuses are never
// bounded so.
const (
	eventBurst  = maxReportEvents
	eventRefill = 50 * time.Millisecond // one more event per
	maxRates    = 8_192
	dropAgain   = time.Minute // what is dropped is told once in this time
	// Each function has a little for itself, whatever the others of its host raise: so many at once, then one each ownRefill.
	ownBurst  = 20
	ownRefill = 10 * time.Second
	ownAsked  = 50 // of one report are looked up, at most: a host chooses the names
)

type rateKey struct {
	host      string
	functions bool // of the host, together
	function  string
}

// eventRates are the rates of hosts and of the functions of hosts.
type eventRates struct {
	bounded.Rates[rateKey]
	own     bounded.Rates[rateKey]
	mu      sync.Mutex
	dropped map[rateKey]drops // at most maxRates
}

// drops are the events that were dropped since that was told.
type drops struct {
	n    int
	told time.Time
}

// admit gives the events that a host's report may have, the first ones, and what is to be told of the others. The agent in this process is not bounded,
// what its functions raise is; mine tells which these are.
func (r *eventRates) admit(host string, remote bool, events []api.Event, mine func(function string) bool, now time.Time) (admitted, told []api.Event) {
	over, asked := map[rateKey]int{}, 0
	for _, e := range events {
		key := rateKey{host: host, functions: e.Source != ""}
		fits := !remote && !key.functions || r.Take(key, now)
		if own := (rateKey{host, true, e.Object}); !fits && key.functions && asked < ownAsked && r.own.Wait(own, now) == 0 {
			asked++
			fits = mine(e.Object) && r.own.Take(own, now)
		}
		if fits {
			admitted = append(admitted, e)
		} else {
			over[key]++
		}
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	for key, n := range over {
		if d, known := r.dropped[key]; known || r.room(now) {
			r.dropped[key] = drops{d.n + n, d.told}
		}
	}
	for _, key := range []rateKey{{host: host}, {host: host, functions: true}} {
		d := r.dropped[key]
		if d.n == 0 || !d.told.IsZero() && now.Sub(d.told).Abs() < dropAgain {
			continue
		}
		who := "host " + host
		if key.functions {
			who = "the functions of host " + host
		}
		told = append(told, api.Event{Severity: api.Warning, Reason: history.EventsDropped, Kind: api.KindHost, Object: host, Host: host, Message: fmt.Sprintf(
			"%d events of %s were dropped: want at most %d at once and %d a second", d.n, who, eventBurst, time.Second/eventRefill)})
		r.dropped[key] = drops{told: now}
	}
	return admitted, told
}

// room makes some for one more in dropped, where that is full of what was told long ago.
func (r *eventRates) room(now time.Time) bool {
	if len(r.dropped) >= maxRates {
		maps.DeleteFunc(r.dropped, func(_ rateKey, d drops) bool { return d.n == 0 && now.Sub(d.told).Abs() >= dropAgain })
	}
	return len(r.dropped) < maxRates
}

// hostEvents adds what a host's agent raised. Who raised it is the host, or a function of its own whose agent says so. An event that names what is not the
// host's own is told of the host instead.
func (n *news) hostEvents(ctx context.Context, host string, remote bool, events []api.Event) error {
	for _, e := range events {
		function := e.Source != ""
		if e.Host, e.Source = cmp.Or(e.Host, host), api.SourceManager; host != "" {
			e.Source = api.SourceOf(api.KindHost, host)
		}
		function = function && e.Kind == api.KindFunction
		if remote {
			mine, err := n.mayName(ctx, host, e.Kind, e.Object)
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
		n.Tell(e)
	}
	return nil
}

// mayName tells whether an event of a host may name an object: the host itself, or what owns says is its own.
func (n *news) mayName(ctx context.Context, host string, kind api.Kind, name string) (bool, error) {
	switch kind {
	case "":
		return name == "", nil
	case api.KindHost:
		return name == host, nil
	case api.KindEndpoint, api.KindFunction, api.KindChain, api.KindPolicy:
		o, err := n.find(ctx, kind, name)
		if err != nil || o == nil {
			return false, err
		}
		return n.owns(ctx, kind, o)
	}
	return false, nil
}
