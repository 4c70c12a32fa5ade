package control

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"time"

	"weir.dev/weir/api"
	"weir.dev/weir/router/fabric"
)

const (
	maxEvents   = 900                    // that wait while the API is away; the oldest go first
	reportChunk = 40                     // objects in one report: one transaction each
	reportEvery = 100 * time.Millisecond // statuses; assignments go at once
	tellEvery   = 100 * time.Millisecond // statuses are computed
)

// reporter writes the router's news to the API, the newest of each object, again until it succeeds.
type reporter struct {
	client   *api.Client
	log      *slog.Logger
	now      func() time.Time
	mu       sync.Mutex
	pending  api.FabricReport
	done     map[string]func(error) // of assignments
	lost     int
	said     map[string]string           // what was last reported of an object, by kind/name
	policies map[string]api.PolicyStatus // and of policies: there are many
	wake     chan struct{}
	hurry    chan struct{}
	interval time.Duration
}

func newReporter(o Options) *reporter {
	return &reporter{
		client: o.API, log: o.Log, now: o.Now, pending: emptyReport(), done: map[string]func(error){}, said: map[string]string{},
		policies: map[string]api.PolicyStatus{},
		wake:     make(chan struct{}, 1), hurry: make(chan struct{}, 1), interval: reportEvery,
	}
}

func emptyReport() api.FabricReport {
	return api.FabricReport{
		Switches: map[string]api.SwitchStatus{}, Assignments: map[string]api.AssignmentSpec{},
		Policies: map[string]api.PolicyStatus{}, Endpoints: map[string]api.EndpointStatus{},
	}
}

func signal(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// differs remembers what is said of an object, and tells whether it is news.
func (r *reporter) differs(what string, v any) bool {
	b, err := json.Marshal(v)
	if err != nil || r.said[what] == string(b) {
		return false
	}
	r.said[what] = string(b)
	return true
}

func (r *reporter) device(name string, s api.SwitchStatus) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.differs("switch/"+name, s) {
		r.pending.Switches[name] = s
		r.pending.Gone = slices.DeleteFunc(r.pending.Gone, func(g string) bool { return g == name })
		signal(r.wake)
	}
}

func (r *reporter) gone(name string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.said, "switch/"+name)
	delete(r.pending.Switches, name)
	r.pending.Gone = append(r.pending.Gone, name)
	signal(r.wake)
}

func (r *reporter) policy(name string, s api.PolicyStatus) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if was, there := r.policies[name]; !there || !samePolicyStatus(was, s) {
		r.policies[name], r.pending.Policies[name] = s, s
		signal(r.wake)
	}
}

func (r *reporter) endpoint(name string, s api.EndpointStatus) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.differs("endpoint/"+name, s) {
		r.pending.Endpoints[name] = s
		signal(r.wake)
	}
}

// forget: an object is gone, or another writes its status now.
func (r *reporter) forget(kind api.Kind, name string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.said, string(kind)+"/"+name)
	switch kind {
	case api.KindPolicy:
		delete(r.policies, name)
		delete(r.pending.Policies, name)
	case api.KindEndpoint:
		delete(r.pending.Endpoints, name)
	}
}

// assign writes an assignment at once, and calls done when it is written or given up.
func (r *reporter) assign(host string, spec api.AssignmentSpec, done func(error)) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.pending.Assignments[host], r.done[host] = spec, done
	signal(r.hurry)
}

func (r *reporter) event(e api.Event) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.pending.Events = append(r.pending.Events, e)
	if over := len(r.pending.Events) - maxEvents; over > 0 {
		r.pending.Events, r.lost = r.pending.Events[over:], r.lost+over
	}
	signal(r.wake)
}

// run sends what is pending until ctx ends; what is pending then gets one more try.
func (r *reporter) run(ctx context.Context) error {
	wait := retryMin
	var earliest time.Time
	for {
		select {
		case <-ctx.Done():
			last, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
			defer cancel()
			_ = r.send(last)
			return nil
		case <-r.hurry:
		case <-r.wake:
			if d := time.Until(earliest); d > 0 { // not more often than that, unless a host waits
				select {
				case <-ctx.Done():
				case <-r.hurry:
				case <-time.After(d):
				}
			}
		}
		if ctx.Err() != nil {
			continue
		}
		err := r.send(ctx)
		earliest = time.Now().Add(r.interval)
		if err == nil {
			wait = retryMin
			continue
		}
		if ctx.Err() == nil {
			r.log.Warn("report", "error", err, "retry", wait)
		}
		select {
		case <-ctx.Done():
		case <-time.After(wait):
		}
		wait = min(2*wait, retryMax/6)
		signal(r.wake)
	}
}

// send writes all that is pending, in parts.
func (r *reporter) send(ctx context.Context) error {
	for {
		part, done := r.take()
		if len(part.Switches)+len(part.Gone)+len(part.Assignments)+len(part.Policies)+len(part.Endpoints)+len(part.Events) == 0 {
			return nil
		}
		err := r.client.Fabric(ctx, part)
		switch {
		case err == nil:
		case errors.Is(err, api.ErrBadRequest), errors.Is(err, api.ErrInvalid), errors.Is(err, api.ErrTooLarge):
			r.log.Error("the API refuses a report", "error", err) // it would refuse it again
		default:
			r.giveBack(part, done)
			return err
		}
		for _, f := range done {
			f(err)
		}
	}
}

// take takes a part out; assignments first.
func (r *reporter) take() (api.FabricReport, map[string]func(error)) {
	r.mu.Lock()
	defer r.mu.Unlock()
	part, room := emptyReport(), reportChunk
	done := map[string]func(error){}
	for name := range move(r.pending.Assignments, part.Assignments, &room) {
		if f := r.done[name]; f != nil {
			done[name] = f
			delete(r.done, name)
		}
	}
	move(r.pending.Policies, part.Policies, &room)
	move(r.pending.Endpoints, part.Endpoints, &room)
	move(r.pending.Switches, part.Switches, &room)
	n := min(room, len(r.pending.Gone))
	part.Gone, r.pending.Gone = r.pending.Gone[:n:n], r.pending.Gone[n:]
	room -= n
	if r.lost > 0 && room > 0 {
		part.Events = append(part.Events, api.Event{
			Time: r.now().UTC(), Severity: api.Warning, Reason: "EventsLost", Message: fmt.Sprintf("%d of the router's events were dropped while the API could not be reached", r.lost),
		})
		r.lost = 0
	}
	n = min(max(room, 0), len(r.pending.Events))
	part.Events = append(part.Events, r.pending.Events[:n]...)
	r.pending.Events = slices.Clone(r.pending.Events[n:])
	return part, done
}

func move[V any](from, to map[string]V, room *int) map[string]V {
	for name, v := range from {
		if *room <= 0 {
			break
		}
		to[name] = v
		delete(from, name)
		*room--
	}
	return to
}

// giveBack returns what was not written; what is newer stays.
func (r *reporter) giveBack(part api.FabricReport, done map[string]func(error)) {
	r.mu.Lock()
	defer r.mu.Unlock()
	restore(r.pending.Switches, part.Switches)
	restore(r.pending.Policies, part.Policies)
	restore(r.pending.Endpoints, part.Endpoints)
	for name, spec := range part.Assignments {
		if _, newer := r.pending.Assignments[name]; !newer {
			r.pending.Assignments[name], r.done[name] = spec, done[name]
		}
	}
	r.pending.Gone = append(part.Gone, r.pending.Gone...)
	r.pending.Events = append(part.Events, r.pending.Events...)
	if over := len(r.pending.Events) - maxEvents; over > 0 {
		r.pending.Events, r.lost = r.pending.Events[over:], r.lost+over
	}
}

func restore[V any](to, from map[string]V) {
	for name, v := range from {
		if _, newer := to[name]; !newer {
			to[name] = v
		}
	}
}

func samePolicyStatus(a, b api.PolicyStatus) bool {
	return a.ObservedGeneration == b.ObservedGeneration && a.State == b.State && a.Message == b.Message && a.Rules == b.Rules && a.InForce == b.InForce && a.Conditions.Equal(b.Conditions) &&
		slices.Equal(a.RenderedPath, b.RenderedPath) && slices.Equal(a.RenderedReverse, b.RenderedReverse)
}

// keepPolicies forgets what was said of other policies: their hosts speak for them now.
func (r *reporter) keepPolicies(ours *fabric.Paths) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for name := range r.policies {
		if ours.Of(name) == nil {
			delete(r.policies, name)
			delete(r.pending.Policies, name)
		}
	}
}
