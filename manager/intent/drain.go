package intent

import (
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"slices"

	"weir.dev/weir/api"
	"weir.dev/weir/manager/members"
	"weir.dev/weir/manager/object"
	"weir.dev/weir/manager/web"
)

// settleDrains says of hosts that are being drained how far that is, and of the functions that stay there why.
func (st *state) settleDrains(hosts []api.Host) error {
	draining := map[string]bool{}
	for i := range hosts {
		draining[hosts[i].Name] = hosts[i].Spec.Drain
	}
	placed := map[string]int{}
	for _, name := range slices.Sorted(maps.Keys(st.objects[api.KindFunction])) {
		o := st.objects[api.KindFunction][name]
		if o.Placement == nil {
			continue
		}
		placed[o.At()]++
		stays := ""
		if draining[o.At()] && o.Deleting == nil {
			stays = st.stays[name]
		}
		if o.Placement.Stays != stays {
			next := *o.Placement
			next.Stays = stays
			st.revise(api.KindFunction, name).Placement = &next
		}
	}
	left := st.leave()
	for i := range hosts {
		h := &hosts[i]
		if !h.Spec.Drain && h.Status.Drain == nil {
			continue
		}
		o := st.get(api.KindHost, h.Name)
		var s api.HostStatus // as stored: the state in hosts is as it is now
		if err := o.Into(nil, &s); err != nil {
			return err
		}
		begins := s.Drain == nil
		if n := left[h.Name]; n > 0 {
			s.Functions = max(s.Functions, placed[h.Name]+n)
		}
		done := members.Drained(h.Name, h.Spec, placed[h.Name], &s)
		s.Conditions = members.Conditions(h.Name, &s).Dated(s.Conditions, st.e.Now().UTC())
		status := object.Marshal(s)
		if string(o.Status) == string(status) {
			continue
		}
		st.revise(api.KindHost, h.Name).Status = status // Updated stays: when its agent reported last
		if begins {
			st.Tell(api.Event{Severity: api.Info, Reason: "HostDraining", Kind: api.KindHost, Object: h.Name, Host: h.Name,
				Message: fmt.Sprintf("host %s is being drained: functions that are leaving: %d; that no other host can have: %d", h.Name, s.Drain.Leaving, s.Drain.Stays)})
		}
		if done != nil {
			st.Tell(*done)
		}
	}
	return nil
}

// leave counts the functions that this edit moves away from a host whose agent has spoken of them. The number of functions that an agent reports is up to a
// second older than that: a drain would be done before it has begun.
func (st *state) leave() map[string]int {
	left := map[string]int{}
	for name, old := range st.before[api.KindFunction] {
		now := st.objects[api.KindFunction][name]
		if old == nil || now == nil || old.At() == "" || old.At() == now.At() {
			continue
		}
		var s api.FunctionStatus
		if json.Unmarshal(old.Status, &s) == nil && s.Host == old.At() {
			left[old.At()]++
		}
	}
	return left
}

// drain moves the functions of a host to others, or with plan says which would move.
func (e *Editor) drain(w http.ResponseWriter, r *http.Request) error {
	name := r.PathValue("name")
	var req api.DrainRequest
	if err := web.ReadBody(w, r, &req); err != nil {
		return err
	}
	begin := func(st *state) error {
		cur := st.get(api.KindHost, name)
		if cur == nil {
			return object.NotFound(api.KindHost, name)
		}
		var spec api.HostSpec
		if err := json.Unmarshal(cur.Spec, &spec); err != nil {
			return fmt.Errorf("stored host %s: %w", name, err)
		}
		spec.Drain = true
		now, err := st.set(object.NounOf(api.KindHost), name, object.Marshal(spec))
		if err != nil {
			return err
		}
		web.Note(r).Idle = req.Plan || now == cur
		return nil
	}
	var last *state
	var err error
	if req.Plan {
		if last, err = e.load(r.Context()); err != nil {
			return err
		}
		if err = begin(last); err == nil {
			err = last.settle(r.Context())
		}
	} else {
		last, err = e.edit(r.Context(), begin)
	}
	if err != nil {
		return err
	}
	result, err := last.drained(name)
	if err != nil {
		return err
	}
	if now := last.get(api.KindHost, name); !req.Plan {
		web.Note(r).Generation = now.Generation
	}
	return web.Answer(w, http.StatusOK, result)
}

// drained says what an edit has moved off a host and what stays there.
func (st *state) drained(host string) (api.DrainResult, error) {
	out := api.DrainResult{Host: host}
	relations := relate(st.objects)
	policies := map[string]bool{}
	for _, name := range slices.Sorted(maps.Keys(st.objects[api.KindFunction])) {
		o := st.objects[api.KindFunction][name]
		before := o
		if old, changed := st.before[api.KindFunction][name]; changed && old != nil {
			before = old
		}
		chains := relations.chainsOf[name]
		switch {
		case before.At() != host || o.Deleting != nil:
		case o.At() == host:
			out.Stays = append(out.Stays, api.DrainStay{Kind: api.KindFunction, Name: name, Reason: o.Placement.Stays})
		default:
			m := api.DrainMove{Function: name, To: o.At(), Reason: o.Placement.Reason}
			if len(chains) > 0 {
				m.Chain = chains[0]
			}
			out.Moves = append(out.Moves, m)
			for _, chain := range chains {
				for _, p := range relations.policies[chain] {
					policies[p] = true
				}
			}
		}
	}
	for _, name := range slices.Sorted(maps.Keys(st.objects[api.KindEndpoint])) {
		if o := st.objects[api.KindEndpoint][name]; o.At() == host && o.Deleting == nil {
			out.Stays = append(out.Stays, api.DrainStay{Kind: api.KindEndpoint, Name: name, Reason: "an endpoint is a port of this host: its traffic enters here"})
		}
	}
	out.Policies = slices.Sorted(maps.Keys(policies))
	return out, nil
}
