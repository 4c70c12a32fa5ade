package lead

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"weir.dev/weir/api"
	"weir.dev/weir/manager/intent"
	"weir.dev/weir/manager/members"
	"weir.dev/weir/store"
)

const (
	leaderName  = "manager"
	leadAgain   = time.Second            // after a campaign that failed
	hostsTick   = 250 * time.Millisecond // how often the leader looks for silent hosts
	resignAfter = 2 * time.Second        // what letting go may take
)

// Leader makes this manager the leader of all that share a store, or waits for that.
type Leader struct {
	Store  store.Store
	Log    *slog.Logger
	Where  string // tells people of other managers where this one is
	Hosts  *members.Hosts
	Intent *intent.Editor

	leading atomic.Bool
}

// Lead waits until this manager is the leader of all that share its store, then does what only one may do, until ctx ends or the lease
// is lost; then all over again. The leader tells which hosts are lost, and places their functions anew. While it leads it runs f too,
// if that is not nil, with a context that ends with the leadership; f must return then.
func (l *Leader) Lead(ctx context.Context, f func(ctx context.Context)) error {
	for ctx.Err() == nil {
		err := l.Hosts.ExpectBeats(ctx)
		var lease store.Lease
		if err == nil {
			lease, err = l.Store.Lead(ctx, leaderName, l.Where)
		}
		if err == nil {
			l.term(ctx, lease, f)
			continue
		}
		if ctx.Err() != nil || errors.Is(err, store.ErrStopped) {
			break
		}
		l.Log.Warn("become the leader", "error", err)
		select {
		case <-ctx.Done():
		case <-time.After(leadAgain):
		}
	}
	return nil
}

// Leads tells whether this manager is the leader.
func (l *Leader) Leads() bool { return l.leading.Load() }

// Leader tells where the leader is, in words; "" if there is none, or nobody can tell.
func (l *Leader) Leader(ctx context.Context) string {
	candidates, _, err := l.Store.List(ctx, store.LeasePrefix+leaderName, store.ListOptions{})
	if err != nil || len(candidates) == 0 {
		return ""
	}
	first := slices.MinFunc(candidates, func(a, b store.Item) int { return cmp.Compare(a.Revision, b.Revision) })
	return string(first.Value)
}

// term is one leadership from its beginning to its end.
func (l *Leader) term(ctx context.Context, lease store.Lease, f func(context.Context)) {
	term, end := context.WithCancel(ctx)
	defer end()
	l.leading.Store(true)
	l.Log.Info("this manager leads")
	var wg sync.WaitGroup
	wg.Go(func() { l.keepHosts(term, lease) })
	if f != nil {
		wg.Go(func() { f(term) })
	}
	select {
	case <-ctx.Done():
	case <-lease.Lost:
		l.Log.Warn("this manager leads no more: its lease is lost")
	}
	l.leading.Store(false)
	end()
	wg.Wait()
	letGo, cancel := context.WithTimeout(context.WithoutCancel(ctx), resignAfter)
	defer cancel()
	if err := lease.Resign(letGo); err != nil {
		l.Log.Warn("resign", "error", err)
	}
}

// hostsView is what the leader knows of hosts and functions between two looks.
type hostsView struct {
	hosts map[string]api.Host
	dirty bool // something may have become placeable
}

// keepHosts follows hosts and functions until ctx ends.
func (l *Leader) keepHosts(ctx context.Context, lease store.Lease) {
	for ctx.Err() == nil {
		if err := l.followHosts(ctx, lease); err != nil && ctx.Err() == nil {
			l.Log.Warn("follow the hosts", "error", err)
		}
		select {
		case <-ctx.Done():
		case <-time.After(hostsTick):
		}
	}
}

// followHosts keeps a view by watches, and looks at it again and again.
func (l *Leader) followHosts(ctx context.Context, lease store.Lease) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	list, rev, err := store.List[api.Host](ctx, l.Store, api.KindHost)
	if err != nil {
		return err
	}
	v := &hostsView{hosts: map[string]api.Host{}, dirty: true}
	for _, h := range list {
		v.hosts[h.Name] = h
	}
	hosts, err := l.Store.Watch(ctx, store.Prefix(api.KindHost), rev)
	if err != nil {
		return err
	}
	functions, err := l.Store.Watch(ctx, store.Prefix(api.KindFunction), rev)
	if err != nil {
		return err
	}
	tick := time.NewTicker(hostsTick)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case b, ok := <-hosts.C:
			if !ok {
				return hosts.Err()
			}
			v.note(b)
		case b, ok := <-functions.C:
			if !ok {
				return functions.Err()
			}
			for _, e := range b.Events {
				v.dirty = v.dirty || e.Value == nil // room has become free
			}
		case <-tick.C:
			l.Hosts.ExcuseSilence()
			if err := l.lookAtHosts(ctx, v, lease); err != nil && !errors.Is(err, context.Canceled) {
				l.Log.Warn("look at the hosts", "error", err)
			}
		}
	}
}

func (v *hostsView) note(b store.Batch) {
	for _, e := range b.Events {
		h, err := store.Decode[api.Host](store.Item{Key: e.Key, Value: e.Value, Revision: b.Revision})
		if e.Value == nil || err != nil {
			delete(v.hosts, store.NameOf(e.Key))
			v.dirty = true
			continue
		}
		old, known := v.hosts[h.Name]
		v.hosts[h.Name] = h
		v.dirty = v.dirty || !known || offers(old) != offers(h)
	}
}

// offers is what of a host decides whether a function that fits nowhere now fits.
func offers(h api.Host) string {
	var runtimes []any
	for _, r := range h.Status.Runtimes {
		runtimes = append(runtimes, r.Name, r.Available, r.Default, r.Ports)
	}
	return fmt.Sprint(h.Spec.Unschedulable, h.Spec.Drain, h.Status.State, h.Status.Cores, h.Status.Memory, h.Status.Images, h.Status.RuntimePorts, h.Status.SwitchPorts, runtimes)
}

// lookAtHosts writes down which hosts are lost and which are back, and places anew what has to be, all in one step.
func (l *Leader) lookAtHosts(ctx context.Context, v *hostsView, lease store.Lease) error {
	lost, back := map[string]bool{}, map[string]bool{}
	for name, h := range v.hosts {
		switch now := l.Hosts.State(h); {
		case now == api.HostLost && h.Status.State != api.HostLost:
			lost[name] = true
		case h.Status.State == api.HostLost && l.Hosts.BeatsAgain(name):
			back[name] = true
		}
	}
	if len(lost)+len(back) == 0 && !v.dirty {
		return nil
	}
	if err := l.Intent.HostsTurned(ctx, lease.Fence, lost, back); err != nil {
		return err // the next look tries again
	}
	v.dirty = false
	return nil
}
