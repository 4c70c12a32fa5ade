// Package notify hands events on to other systems: webhooks, Alertmanager, syslog. It is a client of the API like any other and writes down how far each target is,
// so that it tells after a restart, its own or a manager's, what came meanwhile. Delivery is at least once; what is kept in memory and tried is bounded.
package notify

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"maps"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"weir.dev/weir/api"
	"weir.dev/weir/instance"
)

// Bounds.
const (
	maxWaiting = 1_000 // events of one target
	maxTold    = 10_000
	retryFirst = time.Second
	retryMost  = time.Minute
	// again is when an event that goes on is told anew: each time that it comes it is a new record with a count.
	again = 5 * time.Minute
)

// sender hands one event on. An error that is permanent is not tried again.
type sender interface {
	send(ctx context.Context, e api.Event) error
}

// errPermanent says that no further try would help.
var errPermanent = errors.New("refused")

// Options of Run.
type Options struct {
	Client *api.Client
	Config Config
	State  string // file where it writes down how far it is
	Log    *slog.Logger
	Now    func() time.Time // default time.Now
	Retry  time.Duration    // the first wait; default retryFirst
}

// Run hands events on until ctx ends. An error: the manager refuses to tell.
func Run(ctx context.Context, o Options) error {
	if o.Now == nil {
		o.Now = time.Now
	}
	o.Retry = cmp.Or(o.Retry, retryFirst)
	s, err := readState(o.State)
	if err != nil {
		return err
	}
	var wg sync.WaitGroup
	defer wg.Wait()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var targets []*target
	for _, c := range o.Config.Targets {
		to, err := c.sender()
		if err != nil {
			return fmt.Errorf("target %s: %w", c.Name, err)
		}
		t := &target{Options: o, c: c, to: to, s: s, wake: make(chan struct{}, 1), told: map[string]time.Time{}}
		t.cursor, t.known = s.at(c.Name)
		targets = append(targets, t)
		wg.Go(func() { t.run(ctx) })
	}
	for d := range o.Client.Events().Watch(ctx, 0, api.ListOptions{}) {
		var events []api.Event
		switch d.Type {
		case api.DeltaReset:
			events = slices.Clone(d.Items)
			slices.SortFunc(events, func(a, b api.Event) int { return strings.Compare(a.Name, b.Name) })
		case api.DeltaPut:
			events = []api.Event{d.Object}
		case api.DeltaError:
			o.Log.Warn("events", "error", d.Err)
			if errors.Is(d.Err, api.ErrUnauthorized) || errors.Is(d.Err, api.ErrBadRequest) {
				return d.Err
			}
		}
		for _, t := range targets {
			t.add(events, d.Type == api.DeltaReset)
		}
	}
	return nil
}

// target is one that is told.
type target struct {
	Options
	c    Target
	to   sender
	s    *state
	wake chan struct{}

	mu      sync.Mutex
	cursor  string // name of the last event that was told, or left out; names sort by time
	known   bool   // the cursor is; else it begins with what comes from now on
	queued  string // the last name in waiting
	waiting []api.Event
	skipped int
	told    map[string]time.Time // by UID
}

// add takes events that are for this target. whole: they are all there is.
func (t *target) add(events []api.Event, whole bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if !t.known { // the first time: what was before is not news
		t.known = true
		if whole && len(events) > 0 {
			t.cursor = events[len(events)-1].Name
		}
		if err := t.s.note(t.c.Name, t.cursor); err != nil {
			t.Log.Warn("how far it is was not written", "file", t.State, "error", err)
		}
		if whole {
			return
		}
	}
	for _, e := range events {
		if e.Name <= max(t.cursor, t.queued) {
			continue
		}
		t.queued = e.Name
		if !t.c.wants(e) || !t.fresh(e) {
			continue
		}
		t.waiting = append(t.waiting, e)
		if over := len(t.waiting) - maxWaiting; over > 0 {
			t.waiting = t.waiting[over:]
			t.skipped += over
		}
	}
	select {
	case t.wake <- struct{}{}:
	default:
	}
}

// fresh tells whether an event was not told lately.
func (t *target) fresh(e api.Event) bool {
	now := t.Now()
	if at, known := t.told[e.UID]; known && now.Sub(at).Abs() < again {
		return false
	}
	if len(t.told) >= maxTold {
		maps.DeleteFunc(t.told, func(_ string, at time.Time) bool { return now.Sub(at).Abs() >= again })
		if len(t.told) >= maxTold {
			clear(t.told)
		}
	}
	t.told[e.UID] = now
	return true
}

// next event; ok is false when there is none.
func (t *target) next() (e api.Event, skipped int, ok bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if len(t.waiting) == 0 {
		return e, 0, false
	}
	return t.waiting[0], t.skipped, true
}

// done notes that an event was told, or never will be.
func (t *target) done(e api.Event, skipped int) {
	t.mu.Lock()
	if len(t.waiting) > 0 && t.waiting[0].Name == e.Name {
		t.waiting = t.waiting[1:]
	}
	t.skipped -= skipped
	t.cursor = e.Name
	t.mu.Unlock()
	if err := t.s.note(t.c.Name, e.Name); err != nil {
		t.Log.Warn("how far it is was not written: after a restart events may come twice", "file", t.State, "error", err)
	}
}

func (t *target) run(ctx context.Context) {
	wait := t.Retry
	for ctx.Err() == nil {
		e, skipped, ok := t.next()
		if !ok {
			select {
			case <-t.wake:
			case <-ctx.Done():
			}
			continue
		}
		var err error
		if skipped > 0 {
			err = t.to.send(ctx, api.Event{Meta: api.Meta{Name: e.Name + ".skipped", UID: e.UID + ".skipped"}, Time: t.Now().UTC(), Severity: api.Warning, Reason: "EventsSkipped",
				Source: "notify", Message: fmt.Sprintf("%d events were left out: this target did not take them fast enough", skipped)})
		}
		if err == nil {
			err = t.to.send(ctx, e)
		}
		switch {
		case err == nil:
			wait = t.Retry
			t.done(e, skipped)
			continue
		case ctx.Err() != nil:
			return
		case errors.Is(err, errPermanent):
			t.Log.Error("event is left out", "target", t.c.Name, "event", e.Name, "reason", e.Reason, "error", err)
			t.done(e, skipped)
			continue
		}
		t.Log.Warn("event is tried again", "target", t.c.Name, "after", wait, "error", err)
		select {
		case <-time.After(wait):
		case <-ctx.Done():
		}
		wait = min(2*wait, retryMost)
	}
}

// state is how far the targets are, in a file.
type state struct {
	mu   sync.Mutex
	path string
	By   map[string]string `json:"told"` // target -> name of the last event
}

// ErrFile is about the state or the file of a secret: it cannot be read, or what it holds cannot be used.
var ErrFile = errors.New("unusable file")

func readState(path string) (*state, error) {
	s := &state{path: path, By: map[string]string{}}
	text, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return s, nil
	}
	if err == nil {
		err = json.Unmarshal(text, s)
	}
	if err != nil {
		return nil, fmt.Errorf("%w: state %s: %w (without it each target begins with the next event)", ErrFile, path, err)
	}
	if s.By == nil {
		s.By = map[string]string{}
	}
	return s, nil
}

func (s *state) at(name string) (cursor string, known bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	cursor, known = s.By[name]
	return cursor, known
}

func (s *state) note(name, event string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.By[name] = event
	text, err := json.Marshal(s)
	if err != nil {
		return err
	}
	return instance.WriteFile(s.path, text)
}
