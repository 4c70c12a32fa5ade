package manager

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"time"

	"weir.dev/weir/api"
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
	if o.into(&spec, &s) != nil || s.State == state {
		return
	}
	st.touch(api.KindHost, name)
	next := *o // Updated stays: when it reported last
	silent := st.m.silence(name, o.Updated)
	s.State = state
	s.Conditions = hostConditions(name, &s).Dated(s.Conditions, st.m.Now().UTC())
	next.Status = marshal(s)
	st.objects[api.KindHost][name] = &next
	if state == api.HostLost {
		st.tell(api.Event{Severity: api.Error, Reason: "HostLost", Kind: api.KindHost, Object: name, Host: name,
			Message: fmt.Sprintf("host %s is lost: its agent has been silent for %v; what it forwards goes on", name, silent.Round(100*time.Millisecond))})
		return
	}
	st.tell(hostBack(name, st.m.Now().Sub(o.Updated)))
}

// hostsTurned writes down which hosts are lost and which are back, and places anew what has to be, if the fence holds.
func (m *Manager) hostsTurned(ctx context.Context, fence store.Cond, lost, back map[string]bool) error {
	return m.edit(ctx, func(st *state) error {
		st.conds = append(st.conds, fence)
		st.unsettle, st.lost = true, lost
		for _, name := range slices.Sorted(maps.Keys(lost)) {
			st.turnHost(name, api.HostLost)
		}
		for _, name := range slices.Sorted(maps.Keys(back)) {
			st.turnHost(name, api.HostReady) // if its agent is starting, it says so by itself
		}
		return nil
	})
}

// resettle looks at all placements anew.
func (m *Manager) resettle(ctx context.Context) error {
	return m.edit(ctx, func(st *state) error {
		st.unsettle = true
		return nil
	})
}

// declareHost gives a host that is known already the capacity that its new join token names.
func (m *Manager) declareHost(ctx context.Context, host string, declared api.HostSpec) error {
	return m.edit(ctx, func(st *state) error {
		cur := st.get(api.KindHost, host)
		if cur == nil {
			return nil
		}
		var spec api.HostSpec
		if err := json.Unmarshal(cur.Spec, &spec); err != nil {
			return fmt.Errorf("stored host %s: %w", host, err)
		}
		spec.CPUs, spec.Memory = declared.CPUs, declared.Memory
		next, err := st.set(nounOf(api.KindHost), host, marshal(spec))
		if err != nil || next == cur {
			return err
		}
		return recount(next, m.Now().UTC())
	})
}
