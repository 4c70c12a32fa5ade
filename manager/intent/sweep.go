package intent

import (
	"context"
	"fmt"
	"maps"
	"net/http"
	"slices"

	"weir.dev/weir/api"
	"weir.dev/weir/manager/members"
	"weir.dev/weir/manager/object"
	"weir.dev/weir/store"
)

// sweep drops what is being deleted and nobody is left to take down: it has no host, or its host is lost. A host that comes back takes
// down by itself what is no longer its.
func (st *state) sweep(hosts []api.Host) error {
	if len(hosts) == 0 {
		return nil // nobody can tell yet
	}
	there := map[string]bool{}
	for _, h := range hosts {
		there[h.Name] = h.Status.State != api.HostLost
	}
	for _, kind := range []api.Kind{api.KindEndpoint, api.KindFunction, api.KindPolicy} {
		for _, name := range slices.Sorted(maps.Keys(st.objects[kind])) {
			o := st.objects[kind][name]
			if router := o.Placement != nil && o.Placement.Router; o.Deleting != nil && !router && !there[o.At()] {
				st.drop(kind, name)
			}
		}
	}
	return nil
}

// follow moves operations on whose objects are gone with this edit.
func (st *state) follow(ctx context.Context) (conds []store.Cond, ops []store.Op, err error) {
	gone := map[object.Ref]*object.Object{}
	for _, r := range st.order {
		if st.objects[r.Kind][r.Name] == nil && object.NounOf(r.Kind).TwoPhase {
			gone[r] = nil
		}
	}
	if len(gone) == 0 {
		return nil, nil, nil
	}
	now := st.e.Now().UTC()
	for _, op := range st.Operations {
		if _, ok := gone[object.Ref{Kind: op.Kind, Name: op.Object}]; ok {
			object.Advance(op, nil, now)
		}
	}
	return object.FollowUp(ctx, st.e.Store, gone, now)
}

// removeHost lets a lost host go for good: what is known of it goes too, and its functions are placed elsewhere.
func (st *state) removeHost(o *object.Object) error {
	h := api.Host{Meta: o.Meta}
	if err := o.Into(&h.Spec, &h.Status); err != nil {
		return err
	}
	if state := st.e.Hosts.State(h); state != api.HostLost {
		return api.Refuse(http.StatusConflict, fmt.Sprintf("host %s is %s: stop its agent first (`weir down` there), then it is lost after a moment and can be deleted; to place nothing new on it: `weir host close`; to empty it first: `weir host drain`", h.Name, state))
	}
	st.Ops = append(st.Ops, store.Delete(api.KindAssignment, h.Name), store.Delete(members.Kind, h.Name))
	s := api.EndpointStatus{State: api.EndpointPending}
	s.Say(st.waiting(api.ReasonMoved, "host "+h.Name+" was removed"))
	for _, name := range slices.Sorted(maps.Keys(st.objects[api.KindEndpoint])) {
		if e := st.objects[api.KindEndpoint][name]; e.At() == h.Name {
			st.place(api.KindEndpoint, name, e.Placement, s)
		}
	}
	st.Tell(api.Event{Severity: api.Info, Reason: "HostRemoved", Kind: api.KindHost, Object: h.Name, Message: "host " + h.Name + " was removed"})
	return nil
}
