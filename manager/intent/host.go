package intent

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"weir.dev/weir/api"
	"weir.dev/weir/manager/members"
	"weir.dev/weir/manager/object"
	"weir.dev/weir/store"
)

// turnHost writes a host's state down, for all who watch, with an event.
func (st *state) turnHost(name string, state api.HostState) {
	o := st.get(api.KindHost, name)
	if o == nil {
		return // removed meanwhile
	}
	var spec api.HostSpec
	var s api.HostStatus
	if o.Into(&spec, &s) != nil || s.State == state {
		return
	}
	silent := st.e.Hosts.Silence(name, o.Updated)
	s.State = state
	s.Conditions = members.Conditions(name, &s).Dated(s.Conditions, st.e.Now().UTC())
	st.revise(api.KindHost, name).Status = object.Marshal(s) // Updated stays: when it reported last
	if state == api.HostLost {
		st.Tell(api.Event{Severity: api.Error, Reason: "HostLost", Kind: api.KindHost, Object: name, Host: name,
			Message: fmt.Sprintf("host %s is lost: its agent has been silent for %v; what it forwards goes on", name, silent.Round(100*time.Millisecond))})
		return
	}
	st.Tell(members.HostBack(name, st.e.Now().Sub(o.Updated)))
}

// HostsTurned writes down which hosts are lost and which are back, and places anew what has to be, if the fence holds.
func (e *Editor) HostsTurned(ctx context.Context, fence store.Cond, lost, back map[string]bool) error {
	_, err := e.edit(ctx, func(st *state) error {
		st.Conds = append(st.Conds, fence)
		st.placeAll, st.lost = true, lost
		for _, name := range slices.Sorted(maps.Keys(lost)) {
			st.turnHost(name, api.HostLost)
		}
		for _, name := range slices.Sorted(maps.Keys(back)) {
			st.turnHost(name, api.HostReady) // if its agent is starting, it says so by itself
		}
		return nil
	})
	return err
}

// looks are what several callers of Resettle have in common: many hosts may come back at once.
type looks struct {
	turn sync.Mutex // one at a time
	mu   sync.Mutex
	next *look // has not begun yet
}

type look struct {
	done chan struct{}
	err  error
}

// resettleMost bounds a look that its callers wait for together.
const resettleMost = 30 * time.Second

// Resettle looks at all placements anew. Callers that come while one look goes on share the next.
func (e *Editor) Resettle(ctx context.Context) error {
	e.looks.mu.Lock()
	l := e.looks.next
	if l == nil {
		l = &look{done: make(chan struct{})}
		e.looks.next = l
		go e.look(context.WithoutCancel(ctx), l)
	}
	e.looks.mu.Unlock()
	select {
	case <-l.done:
		return l.err
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (e *Editor) look(ctx context.Context, l *look) {
	defer close(l.done)
	e.looks.turn.Lock()
	defer e.looks.turn.Unlock()
	e.looks.mu.Lock()
	e.looks.next = nil // who comes from here on may have news that this look does not see
	e.looks.mu.Unlock()
	ctx, cancel := context.WithTimeout(ctx, resettleMost)
	defer cancel()
	_, l.err = e.edit(ctx, func(st *state) error {
		st.placeAll = true
		return nil
	})
}

// DeclareHost gives a host that is known already the capacity that its new join token names.
func (e *Editor) DeclareHost(ctx context.Context, host string, declared api.HostSpec) error {
	_, err := e.edit(ctx, func(st *state) error {
		cur := st.get(api.KindHost, host)
		if cur == nil {
			return nil
		}
		var spec api.HostSpec
		if err := json.Unmarshal(cur.Spec, &spec); err != nil {
			return fmt.Errorf("stored host %s: %w", host, err)
		}
		spec.CPUs, spec.Memory = declared.CPUs, declared.Memory
		next, err := st.set(object.NounOf(api.KindHost), host, object.Marshal(spec))
		if err != nil || next == cur {
			return err
		}
		return members.Recount(next, e.Now().UTC())
	})
	return err
}

// crossing tells of changed chains whose functions are on several hosts and up already: no agent will, and nothing else may change.
func (st *state) crossing() error {
	find := func(kind api.Kind, name string) (*object.Object, error) { return st.get(kind, name), nil }
	for _, r := range slices.Clone(st.order) {
		o := st.get(r.Kind, r.Name)
		if r.Kind != api.KindChain || o == nil || o.Deleting != nil {
			continue
		}
		if _, local, err := object.ChainHost(r.Name, find); err != nil || local {
			if err != nil {
				return err
			}
			continue
		}
		var spec api.ChainSpec
		if err := o.Into(&spec, nil); err != nil {
			return err
		}
		s, err := object.ChainStatus(o, spec.Functions(), find)
		if err != nil {
			return err
		}
		if s.State == api.ChainReady {
			st.revise(r.Kind, r.Name).Status = object.Marshal(s)
		}
	}
	return nil
}
