package agent

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"weir.dev/weir/agent/report"
	"weir.dev/weir/api"
)

// state is the intent as last heard; the maps of a snapshot are never written.
type state struct {
	endpoints map[string]api.Endpoint
	functions map[string]api.Function
	chains    map[string]api.Chain
	policies  map[string]api.Policy

	assignments map[string]api.Assignment // this host's alone
	assignment  *api.Assignment           // in snapshots
}

// intent follows the specs at the manager and keeps the last known ones while it is away.
type intent struct {
	host     string
	mu       sync.Mutex
	changes  int // counts them
	now      state
	poke     func()
	complete chan struct{} // closed once all kinds have been listed

	assignment *api.Assignment // in snapshots
	decided    int64           // the last decision about a policy's owner that was heard
	ahead      time.Time       // since when the newest assignment waits for a decision; zero: it does not
	quiet      time.Time       // since when it has waited without hearing of another one
	deaf       bool            // the watch of policies is broken, or has told of nothing since it was
	wake       *time.Timer
}

// An assignment waits for the decisions that it follows. The watches of assignments and policies are apart, usually by less than a millisecond.
// The policy of the last decision may be gone, so the wait is bounded.
const (
	aheadMost = 250 * time.Millisecond // after the last decision that was heard
	deafMost  = 10 * time.Second       // while the watch of policies comes back, and at all
)

func newIntent(host string, poke func()) *intent {
	return &intent{host: host, poke: poke, complete: make(chan struct{}), now: state{
		endpoints: map[string]api.Endpoint{}, functions: map[string]api.Function{},
		chains: map[string]api.Chain{}, policies: map[string]api.Policy{}, assignments: map[string]api.Assignment{},
	}}
}

func (i *intent) snapshot(now time.Time) state {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.settle(now)
	return state{
		endpoints: maps.Clone(i.now.endpoints), functions: maps.Clone(i.now.functions),
		chains: maps.Clone(i.now.chains), policies: maps.Clone(i.now.policies), assignment: i.assignment,
	}
}

// settle takes the newest assignment when the decisions that it follows have been heard: one that is without a policy which the router gave back
// would let this policy's frames pass until this host hears that the policy is its own.
func (i *intent) settle(now time.Time) {
	newest, there := i.now.assignments[i.host]
	known := newest.Spec.Known
	if i.wake != nil {
		i.wake.Stop()
	}
	if there && i.decided < known {
		before := i.decided
		for _, p := range i.now.policies {
			if p.Placement != nil {
				i.decided = max(i.decided, p.Placement.Decision)
			}
		}
		if i.decided > before || i.ahead.IsZero() {
			i.quiet = now
		}
		if i.ahead.IsZero() {
			i.ahead = now
		}
	}
	end := i.ahead.Add(deafMost)
	if quiet := i.quiet.Add(aheadMost); !i.deaf && quiet.Before(end) {
		end = quiet
	}
	switch {
	case !there:
		i.assignment, i.ahead = nil, time.Time{}
	case i.assignment == nil || known <= i.decided || !now.Before(end):
		i.assignment, i.ahead, i.decided = &newest, time.Time{}, max(i.decided, known)
	default:
		i.wake = time.AfterFunc(end.Sub(now), i.poke)
	}
}

// follow keeps the intent current until ctx ends. A watch that the manager refuses for good is an error: an agent that
// hears nothing must not act as if nothing were wanted.
func (i *intent) follow(ctx context.Context, c *api.Client, report *report.Reporter, log *slog.Logger) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var wg sync.WaitGroup
	errs := make([]error, 5)
	var left atomic.Int32
	left.Store(int32(len(errs)))
	listed := func() {
		if left.Add(-1) == 0 {
			close(i.complete)
		}
	}
	run := func(n int, f func() error) {
		wg.Go(func() {
			if errs[n] = f(); errs[n] != nil {
				cancel()
			}
		})
	}
	run(0, func() error {
		return follow(ctx, i, c.Endpoints().Reader, api.ListOptions{}, api.KindEndpoint, func(s *state) map[string]api.Endpoint { return s.endpoints }, listed, report, log)
	})
	run(1, func() error {
		return follow(ctx, i, c.Functions().Reader, api.ListOptions{}, api.KindFunction, func(s *state) map[string]api.Function { return s.functions }, listed, report, log)
	})
	run(2, func() error {
		return follow(ctx, i, c.Chains().Reader, api.ListOptions{}, api.KindChain, func(s *state) map[string]api.Chain { return s.chains }, listed, report, log)
	})
	run(3, func() error {
		return follow(ctx, i, c.Policies().Reader, api.ListOptions{}, api.KindPolicy, func(s *state) map[string]api.Policy { return s.policies }, listed, report, log)
	})
	run(4, func() error {
		return follow(ctx, i, c.Assignments(), api.ListOptions{Name: i.host}, api.KindAssignment, func(s *state) map[string]api.Assignment { return s.assignments }, listed, report, log)
	})
	wg.Wait()
	return errors.Join(errs...)
}

// turned tells whether a function is on another host now, or is well or not where that matters to this host.
func (i *intent) turned(old, now any) bool {
	f, ok := now.(api.Function)
	if !ok {
		return false
	}
	was := old.(api.Function)
	return was.At() != f.At() || was.Status.Healthy != f.Status.Healthy && i.concerns(f.Name)
}

// concerns tells whether a function is in a chain with one of this host's, or in that of a policy that this host steers: whether it is well is said there.
func (i *intent) concerns(function string) bool {
	here := func(p *api.Placement) bool { return p != nil && p.Host == i.host }
	for name, c := range i.now.chains {
		if !strings.Contains(c.Spec.Path, function) {
			continue
		}
		members := c.Spec.Functions()
		if !slices.Contains(members, function) {
			continue
		}
		if slices.ContainsFunc(members, func(f string) bool { return here(i.now.functions[f].Placement) }) {
			return true
		}
		for _, p := range i.now.policies {
			if p.Spec.Chain == name && here(p.Placement) {
				return true
			}
		}
	}
	return false
}

// named is what every noun has.
type named interface {
	ID() (name, uid string, generation int64, deleting bool)
}

func follow[T named](ctx context.Context, i *intent, r api.Reader[T], o api.ListOptions, kind api.Kind, in func(*state) map[string]T, listed func(), report *report.Reporter, log *slog.Logger) error {
	first := sync.OnceFunc(listed)
	var last error
	for d := range r.Watch(ctx, 0, o) {
		i.mu.Lock()
		m, changed := in(&i.now), false
		if kind == api.KindPolicy {
			i.deaf = d.Type == api.DeltaError
		}
		put := func(o T) {
			name, uid, gen, del := o.ID()
			if old, ok := m[name]; ok {
				_, u, g, dl := old.ID()
				changed = changed || u != uid || g != gen || dl != del || i.turned(old, o)
			} else {
				changed = true
			}
			m[name] = o
		}
		gone := func(name string) {
			delete(m, name)
			report.Forget(kind, name)
			changed = true
		}
		switch d.Type {
		case api.DeltaReset:
			there := map[string]bool{}
			for _, o := range d.Items {
				name, _, _, _ := o.ID()
				there[name] = true
				put(o)
			}
			for name := range m {
				if !there[name] {
					gone(name)
				}
			}
		case api.DeltaPut:
			put(d.Object)
		case api.DeltaDelete:
			name, _, _, _ := d.Object.ID()
			gone(name)
		case api.DeltaError:
			last = d.Err
			log.Warn("watch", "kind", kind, "error", d.Err)
		}
		if changed {
			i.changes++
		}
		i.mu.Unlock()
		if d.Type == api.DeltaReset {
			first()
		}
		if changed { // our own status coming back changes nothing
			i.poke()
		}
	}
	if ctx.Err() == nil {
		return fmt.Errorf("watch %s: ended: %w", kind.Plural(), last)
	}
	return nil
}
