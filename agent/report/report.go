// Package report sends the status of a host and of what is on it to the manager, and events: the latest per object, many in one request, again until it
// arrives.
package report

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"reflect"
	"slices"
	"sync"
	"time"

	"weir.dev/weir/api"
)

// maxEvents bounds what waits while the manager is away; the oldest go first.
const maxEvents = 999 // and one that says how many went: the manager takes 1000

// Reporter of one host. Its methods may be called from any goroutine.
type Reporter struct {
	hostName string
	client   *api.Client
	log      *slog.Logger
	now      func() time.Time
	dirty    chan struct{}
	hostTold chan struct{}

	mu       sync.Mutex
	pending  api.StatusReport
	assigned told            // the last answer to the assignment
	last     map[string]told // what was last handed over, per object: equal news are none
	lost     int
}

// told is the last status of one life of an object.
type told struct {
	uid    string
	status any
}

// New makes a reporter; nothing is sent before Run.
func New(host string, client *api.Client, log *slog.Logger, now func() time.Time) *Reporter {
	return &Reporter{hostName: host, client: client, log: log, now: now, dirty: make(chan struct{}, 1), hostTold: make(chan struct{}), last: map[string]told{}, pending: empty(host)}
}

// HostKnown is closed once the manager has the host's status.
func (r *Reporter) HostKnown() <-chan struct{} { return r.hostTold }

func empty(host string) api.StatusReport {
	return api.StatusReport{
		Host: host, Endpoints: map[string]api.EndpointStatus{}, Functions: map[string]api.FunctionStatus{},
		Chains: map[string]api.ChainStatus{}, Policies: map[string]api.PolicyStatus{},
	}
}

// news records a status if it differs from the last one of that object in the life that uid names.
func news[S any](r *Reporter, kind api.Kind, name, uid string, s S, into func(*api.StatusReport) map[string]S) {
	r.mu.Lock()
	defer r.mu.Unlock()
	key := string(kind) + "/" + name
	now := told{uid, s}
	if old, ok := r.last[key]; ok && reflect.DeepEqual(old, now) {
		return
	}
	r.last[key] = now
	into(&r.pending)[name] = s
	r.kick()
}

// Knows reports whether this life of an object has a status already.
func (r *Reporter) Knows(kind api.Kind, name, uid string) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	t, ok := r.last[string(kind)+"/"+name]
	return ok && t.uid == uid
}

func (r *Reporter) kick() {
	select {
	case r.dirty <- struct{}{}:
	default:
	}
}

// Endpoint reports the status of an endpoint, in the life that uid names.
func (r *Reporter) Endpoint(name, uid string, s api.EndpointStatus) {
	news(r, api.KindEndpoint, name, uid, s, func(p *api.StatusReport) map[string]api.EndpointStatus { return p.Endpoints })
}

// Function reports the status of a function.
func (r *Reporter) Function(name, uid string, s api.FunctionStatus) {
	news(r, api.KindFunction, name, uid, s, func(p *api.StatusReport) map[string]api.FunctionStatus { return p.Functions })
}

// Chain reports the status of a chain.
func (r *Reporter) Chain(name, uid string, s api.ChainStatus) {
	news(r, api.KindChain, name, uid, s, func(p *api.StatusReport) map[string]api.ChainStatus { return p.Chains })
}

// Policy reports the status of a policy.
func (r *Reporter) Policy(name, uid string, s api.PolicyStatus) {
	news(r, api.KindPolicy, name, uid, s, func(p *api.StatusReport) map[string]api.PolicyStatus { return p.Policies })
}

// Disown forgets an object that is another host's to tell about.
func (r *Reporter) Disown(kind api.Kind, name string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.last, string(kind)+"/"+name)
	switch kind {
	case api.KindEndpoint:
		delete(r.pending.Endpoints, name)
	case api.KindFunction:
		delete(r.pending.Functions, name)
	case api.KindChain:
		delete(r.pending.Chains, name)
	case api.KindPolicy:
		delete(r.pending.Policies, name)
	}
}

// Assignment answers the router, at once.
func (r *Reporter) Assignment(uid string, s api.AssignmentStatus) {
	r.mu.Lock()
	defer r.mu.Unlock()
	now := told{uid, s}
	if reflect.DeepEqual(r.assigned, now) {
		return
	}
	r.assigned, r.pending.Assigned = now, &s
	r.kick()
}

// Forget drops what is known of an object whose record is gone.
func (r *Reporter) Forget(kind api.Kind, name string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.last, string(kind)+"/"+name)
}

// Host reports the status of the host.
func (r *Reporter) Host(s api.HostStatus) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.pending.HostState = &s
	r.kick()
}

// Event reports an event, in the name of the host.
func (r *Reporter) Event(e api.Event) {
	r.mu.Lock()
	defer r.mu.Unlock()
	e.Host = r.hostName
	if e.Time.IsZero() {
		e.Time = r.now()
	}
	r.pending.Events = append(r.pending.Events, e)
	if over := len(r.pending.Events) - maxEvents; over > 0 {
		r.pending.Events = without(r.pending.Events, over)
		r.lost += over
	}
	r.kick()
}

// Run sends until ctx ends, then once more what is left.
func (r *Reporter) Run(ctx context.Context) {
	wait := time.Duration(0)
	for {
		select {
		case <-ctx.Done():
			last, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
			defer cancel()
			if err := r.send(last); err != nil {
				r.log.Warn("report status at the end", "error", err)
			}
			return
		case <-r.dirty:
		}
		select { // gather what comes together
		case <-time.After(max(wait, 10*time.Millisecond)):
		case <-ctx.Done():
		}
		err := r.send(ctx)
		switch {
		case err == nil:
			wait = 0
		case ctx.Err() == nil:
			if wait == 0 {
				r.log.Warn("report status", "error", err)
			}
			wait = min(max(2*wait, 100*time.Millisecond), 5*time.Second)
		}
	}
}

// send hands over everything that is pending; what does not arrive is pending again, unless the manager can never take it.
func (r *Reporter) send(ctx context.Context) error {
	r.mu.Lock()
	batch, lost := r.pending, r.lost
	r.pending, r.lost = empty(r.hostName), 0
	r.mu.Unlock()
	if batch.HostState == nil && batch.Assigned == nil && len(batch.Endpoints)+len(batch.Functions)+len(batch.Chains)+len(batch.Policies)+len(batch.Events)+lost == 0 {
		return nil
	}
	sent := batch
	if lost > 0 {
		sent.Events = append(slices.Clone(batch.Events), api.Event{
			Time: r.now(), Severity: api.Warning, Reason: "EventsLost", Host: r.hostName,
			Message: fmt.Sprintf("%d events were dropped while the manager could not be reached", lost),
		})
	}
	err := r.client.Report(ctx, sent)
	if err == nil {
		if batch.HostState != nil {
			r.told()
		}
		return nil
	}
	if errors.Is(err, api.ErrBadRequest) || errors.Is(err, api.ErrInvalid) || errors.Is(err, api.ErrTooLarge) {
		lost += len(batch.Events) // an event may be what it refuses; statuses are ours and come again
		batch.Events = nil
	}
	r.giveBack(batch, lost)
	return err
}

// told notes that the manager knows this host. Only run's goroutine sends.
func (r *Reporter) told() {
	select {
	case <-r.hostTold:
	default:
		close(r.hostTold)
	}
}

// without leaves so many events out: the oldest of the function that has most of them, again and again, then the oldest. What functions raise does not drive out what
// the agent does, nor what another function raised.
func without(events []api.Event, over int) []api.Event {
	has, out := map[string]int{}, map[string]int{}
	for _, e := range events {
		if e.Source != "" {
			has[e.Source]++
		}
	}
	for ; over > 0 && len(has) > 0; over-- {
		most := ""
		for source, n := range has {
			if most == "" || n > has[most] || n == has[most] && source < most {
				most = source
			}
		}
		out[most]++
		if has[most]--; has[most] == 0 {
			delete(has, most)
		}
	}
	kept := make([]api.Event, 0, len(events))
	for _, e := range events {
		if out[e.Source] > 0 {
			out[e.Source]--
			continue
		}
		kept = append(kept, e)
	}
	return kept[over:]
}

// giveBack returns an unsent batch; what is newer stays.
func (r *Reporter) giveBack(b api.StatusReport, lost int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	restore(r.pending.Endpoints, b.Endpoints)
	restore(r.pending.Functions, b.Functions)
	restore(r.pending.Chains, b.Chains)
	restore(r.pending.Policies, b.Policies)
	if r.pending.HostState == nil {
		r.pending.HostState = b.HostState
	}
	if r.pending.Assigned == nil {
		r.pending.Assigned = b.Assigned
	}
	events := append(b.Events, r.pending.Events...)
	if over := len(events) - maxEvents; over > 0 {
		events, lost = without(events, over), lost+over
	}
	r.pending.Events = events
	r.lost += lost
	r.kick()
}

func restore[S any](into, from map[string]S) {
	for k, v := range from {
		if _, newer := into[k]; !newer {
			into[k] = v
		}
	}
}
