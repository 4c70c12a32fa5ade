package news

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"slices"

	"weir.dev/weir/api"
	"weir.dev/weir/manager/object"
	"weir.dev/weir/manager/tx"
	"weir.dev/weir/manager/web"
	"weir.dev/weir/store"
)

// fabric takes the router's news. Only what differs is written, in one transaction.
func (in *Intake) fabric(w http.ResponseWriter, r *http.Request) error {
	var req api.FabricReport
	if err := web.ReadBody(w, r, &req); err != nil {
		return err
	}
	for _, name := range append(slices.Sorted(maps.Keys(req.Switches)), req.Gone...) {
		if err := object.CheckName(api.KindSwitch, name); err != nil {
			return err
		}
	}
	for _, name := range slices.Sorted(maps.Keys(req.Assignments)) {
		if err := object.CheckName(api.KindHost, name); err != nil { // it bears the host's name
			return err
		}
	}
	ctx := r.Context()
	err := in.tell(ctx, len(req.Events), func(n *news) error {
		n.router = true
		for _, e := range req.Events {
			e.Source = api.SourceRouter
			n.Tell(e)
		}
		return errors.Join(
			n.switches(ctx, req.Switches),
			n.gone(ctx, req.Gone, req.Switches),
			n.assignments(ctx, req.Assignments),
			statuses(ctx, n, api.KindPolicy, req.Policies, policyGone),
			statuses(ctx, n, api.KindEndpoint, req.Endpoints, endpointGone),
		)
	})
	if err != nil {
		return err
	}
	w.WriteHeader(http.StatusNoContent)
	return nil
}

// switches adds the switches' statuses; a switch appears with its first.
func (n *news) switches(ctx context.Context, in map[string]api.SwitchStatus) error {
	for _, name := range slices.Sorted(maps.Keys(in)) {
		s, err := store.Get[api.Switch](ctx, n.in.Store, api.KindSwitch, name)
		switch {
		case errors.Is(err, store.ErrNotFound):
			s.Meta, n.placeAll = object.NewMeta(name, n.in.Now()), true
		case err != nil:
			return err
		case object.Same(s.Status, in[name]):
			continue
		}
		s.Status, s.Updated = in[name], n.in.Now().UTC()
		tx.Add(&n.Change, api.KindSwitch, &s, s.Revision)
	}
	return nil
}

// gone removes switches that nobody needs to know any more.
func (n *news) gone(ctx context.Context, names []string, there map[string]api.SwitchStatus) error {
	slices.Sort(names)
	for _, name := range slices.Compact(names) {
		if _, ok := there[name]; ok {
			return api.Refuse(http.StatusUnprocessableEntity, fmt.Sprintf("switch %s is both in switches and in gone", name))
		}
		i, err := n.in.Store.Get(ctx, store.Key(api.KindSwitch, name))
		if errors.Is(err, store.ErrNotFound) {
			continue
		}
		if err != nil {
			return err
		}
		n.placeAll = true
		n.Remove(api.KindSwitch, name, i.Revision)
	}
	return nil
}

// assignments adds what hosts' switches shall do; the generation grows with each change.
func (n *news) assignments(ctx context.Context, in map[string]api.AssignmentSpec) error {
	for _, name := range slices.Sorted(maps.Keys(in)) {
		a, err := store.Get[api.Assignment](ctx, n.in.Store, api.KindAssignment, name)
		switch {
		case errors.Is(err, store.ErrNotFound):
			a.Meta = object.NewMeta(name, n.in.Now())
		case err != nil:
			return err
		case object.Same(a.Spec, in[name]):
			continue
		default:
			a.Generation++
		}
		a.Spec, a.Updated = in[name], n.in.Now().UTC()
		tx.Add(&n.Change, api.KindAssignment, &a, a.Revision)
	}
	return nil
}

// assigned adds a host's answer to its assignment, if there is one.
func (n *news) assigned(ctx context.Context, host string, s *api.AssignmentStatus) error {
	if s == nil {
		return nil
	}
	a, err := store.Get[api.Assignment](ctx, n.in.Store, api.KindAssignment, host)
	if errors.Is(err, store.ErrNotFound) || err == nil && object.Same(a.Status, *s) {
		return nil
	}
	if err != nil {
		return err
	}
	a.Status, a.Updated = *s, n.in.Now().UTC()
	tx.Add(&n.Change, api.KindAssignment, &a, a.Revision)
	return nil
}
