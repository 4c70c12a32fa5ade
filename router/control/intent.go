package control

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"

	"weir.dev/weir/api"
)

// intent is what the API says, as last heard. The loop owns it.
type intent struct {
	endpoints   map[string]api.Endpoint
	functions   map[string]api.Function
	chains      map[string]api.Chain
	policies    map[string]api.Policy
	hosts       map[string]api.Host
	switches    map[string]api.Switch // our own reports, read once at the start
	assignments map[string]api.Assignment
}

func newIntent() *intent {
	return &intent{
		endpoints: map[string]api.Endpoint{}, functions: map[string]api.Function{}, chains: map[string]api.Chain{},
		policies: map[string]api.Policy{}, hosts: map[string]api.Host{}, switches: map[string]api.Switch{},
		assignments: map[string]api.Assignment{},
	}
}

// watchAll follows the nouns until ctx ends, and tells the loop. It returns an error when the API refuses a watch for good: a router that
// hears nothing must not act as if nothing were wanted.
func watchAll(ctx context.Context, c *api.Client, to chan<- event) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var wg sync.WaitGroup
	// Nothing is computed before all nouns have been listed once: what is not known yet would count as not wanted.
	var left atomic.Int32
	left.Store(6)
	listed := func() {
		if left.Add(-1) == 0 {
			post(ctx, to, func(l *loop) { l.listed() })
		}
	}
	run := func(f func() error) {
		wg.Go(func() {
			if err := f(); err != nil {
				cancel(err)
			}
		})
	}
	run(func() error {
		return watchKind(ctx, c.Endpoints().Reader, api.KindEndpoint, to, listed, func(i *intent) map[string]api.Endpoint { return i.endpoints },
			func(a, b api.Endpoint) bool {
				return a.UID == b.UID && a.Generation == b.Generation && (a.Deleting == nil) == (b.Deleting == nil) && placedAt(a.Placement) == placedAt(b.Placement) &&
					a.Status.MAC == b.Status.MAC && a.Status.Host == b.Status.Host && a.Status.State == b.Status.State
			})
	})
	run(func() error {
		return watchKind(ctx, c.Functions().Reader, api.KindFunction, to, listed, func(i *intent) map[string]api.Function { return i.functions },
			func(a, b api.Function) bool {
				return a.UID == b.UID && a.Generation == b.Generation && (a.Deleting == nil) == (b.Deleting == nil) && placedAt(a.Placement) == placedAt(b.Placement) &&
					a.Status.State == b.Status.State && a.Status.Healthy == b.Status.Healthy && a.Status.Host == b.Status.Host &&
					a.Status.Ports == b.Status.Ports && slices.Equal(a.Status.Rewrites, b.Status.Rewrites) && a.Status.ObservedGeneration == b.Status.ObservedGeneration
			})
	})
	run(func() error {
		return watchKind(ctx, c.Chains().Reader, api.KindChain, to, listed, func(i *intent) map[string]api.Chain { return i.chains },
			func(a, b api.Chain) bool { return a.UID == b.UID && a.Generation == b.Generation })
	})
	run(func() error {
		return watchKind(ctx, c.Policies().Reader, api.KindPolicy, to, listed, func(i *intent) map[string]api.Policy { return i.policies },
			func(a, b api.Policy) bool {
				return a.UID == b.UID && a.Generation == b.Generation && (a.Deleting == nil) == (b.Deleting == nil) && a.Placement.Routed() == b.Placement.Routed()
			})
	})
	run(func() error {
		return watchKind(ctx, c.Hosts().Reader, api.KindHost, to, listed, func(i *intent) map[string]api.Host { return i.hosts },
			func(a, b api.Host) bool {
				return a.UID == b.UID && a.Status.State == b.Status.State && a.Status.Address == b.Status.Address && slices.Equal(a.Status.Uplinks, b.Status.Uplinks)
			})
	})
	run(func() error { return watchAssignments(ctx, c, to, listed) })
	wg.Wait()
	if err := context.Cause(ctx); err != nil && !errors.Is(err, context.Canceled) && !errors.Is(err, context.DeadlineExceeded) {
		return err
	}
	return nil
}

func placedAt(p *api.Placement) string {
	if p == nil {
		return ""
	}
	return p.Host
}

func post(ctx context.Context, to chan<- event, e event) {
	select {
	case to <- e:
	case <-ctx.Done():
	}
}

// watchKind follows one noun. A change that leaves everything alike that the router looks at does not make it compute anew.
func watchKind[T interface {
	ID() (name, uid string, generation int64, deleting bool)
}](ctx context.Context, r api.Reader[T], kind api.Kind, to chan<- event, listed func(), in func(*intent) map[string]T, alike func(a, b T) bool,
) error {
	first := sync.OnceFunc(listed)
	var last error
	put := func(l *loop, o T) {
		name, _, _, _ := o.ID()
		m := in(l.intent)
		// Statuses change all the time; only what the compiler reads makes it compute.
		if old, there := m[name]; !there || !alike(old, o) {
			if kind == api.KindPolicy {
				l.edited[name] = true
			}
			l.dirty()
		}
		m[name] = o
	}
	for d := range r.Watch(ctx, 0, api.ListOptions{}) {
		switch d.Type {
		case api.DeltaReset:
			post(ctx, to, func(l *loop) {
				there := map[string]bool{}
				for _, o := range d.Items {
					name, _, _, _ := o.ID()
					there[name] = true
					put(l, o)
				}
				for name := range in(l.intent) {
					if !there[name] {
						delete(in(l.intent), name)
						l.forget(kind, name)
						l.dirty()
					}
				}
			})
			first()
		case api.DeltaPut:
			post(ctx, to, func(l *loop) { put(l, d.Object) })
		case api.DeltaDelete:
			post(ctx, to, func(l *loop) {
				name, _, _, _ := d.Object.ID()
				delete(in(l.intent), name)
				l.forget(kind, name)
				l.dirty()
			})
		case api.DeltaError:
			last = d.Err
			post(ctx, to, func(l *loop) { l.log.Warn("watch", "kind", kind, "error", d.Err) })
		}
	}
	if ctx.Err() == nil {
		return fmt.Errorf("watch %s: ended: %w", kind.Plural(), last)
	}
	return nil
}

// watchAssignments follows what hosts say about their assignments.
func watchAssignments(ctx context.Context, c *api.Client, to chan<- event, listed func()) error {
	first := sync.OnceFunc(listed)
	var last error
	for d := range c.Assignments().Watch(ctx, 0, api.ListOptions{}) {
		switch d.Type {
		case api.DeltaReset:
			post(ctx, to, func(l *loop) {
				for _, a := range d.Items {
					l.assignment(a)
				}
			})
			first()
		case api.DeltaPut:
			post(ctx, to, func(l *loop) { l.assignment(d.Object) })
		case api.DeltaDelete:
			post(ctx, to, func(l *loop) { l.assignmentGone(d.Object.Name) })
		case api.DeltaError:
			last = d.Err
		}
	}
	if ctx.Err() == nil {
		return fmt.Errorf("watch assignments: ended: %w", last)
	}
	return nil
}
