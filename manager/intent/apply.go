package intent

import (
	"context"
	"encoding/json"
	"maps"
	"net/http"
	"slices"

	"weir.dev/weir/api"
	"weir.dev/weir/manager/object"
	"weir.dev/weir/manager/web"
)

// apply merges a document into what exists, in one transaction or not at all.
func (e *Editor) apply(w http.ResponseWriter, r *http.Request) error {
	var req api.ApplyRequest
	if err := web.ReadBody(w, r, &req); err != nil {
		return err
	}
	var result api.ApplyResult
	if req.Plan {
		st, err := e.load(r.Context())
		if err != nil {
			return err
		}
		if result.Changes, err = st.apply(r.Context(), req); err != nil {
			return err
		}
		result.Revision, result.Warnings = st.revision, st.warnings()
		web.Note(r).Idle = true
		return web.Answer(w, http.StatusOK, result)
	}
	last, err := e.edit(r.Context(), func(st *state) (err error) {
		result.Changes, err = st.apply(r.Context(), req)
		return err
	})
	if err != nil {
		return err
	}
	result.Revision, result.Warnings = last.revision, last.warnings()
	web.Note(r).Applied(result.Changes)
	web.Note(r).Idle = len(web.Note(r).Objects) == 0
	return web.Answer(w, http.StatusOK, result)
}

// apply changes the state as the request says and tells what that changes.
func (st *state) apply(ctx context.Context, req api.ApplyRequest) ([]api.Change, error) {
	changes, err := st.setSecrets(ctx, req)
	if err != nil {
		return nil, err
	}
	// In the order of the nouns: users come after what they use.
	for _, n := range object.Nouns() {
		if !n.Declared {
			continue
		}
		specs := documentSpecs(req.Document, n.Kind)
		for _, name := range slices.Sorted(maps.Keys(specs)) {
			old := st.get(n.Kind, name)
			now, err := st.set(n, name, specs[name])
			if err != nil {
				return nil, err
			}
			c := api.Change{Action: "unchanged", Kind: n.Kind, Name: name}
			switch {
			case old == nil:
				c.Action = "create"
			case old != now:
				c.Action, c.Fields = "update", differences(old.Spec, now.Spec)
			}
			changes = append(changes, c)
		}
		if req.Prune {
			changes = append(changes, st.prune(n, specs)...)
		}
	}
	// A request without secrets says nothing about them, so none is pruned.
	if req.Prune && req.Secrets != nil {
		for _, name := range slices.Sorted(maps.Keys(st.secrets)) {
			if _, named := req.Secrets[name]; named {
				continue
			}
			if err := st.dropSecret(name); err != nil {
				return nil, err
			}
			changes = append(changes, api.Change{Action: "delete", Kind: api.KindSecret, Name: name})
		}
	}
	if err := st.check(ctx); err != nil {
		return nil, err
	}
	// What else a change concerns, for people who look at a plan.
	relations := relate(st.objects, st.before)
	for i, c := range changes {
		if c.Action != "unchanged" && c.Kind == api.KindSecret {
			for _, name := range st.users(c.Name) {
				changes[i].Affects = append(changes[i].Affects, string(api.KindFunction)+"/"+name)
			}
		} else if c.Action != "unchanged" {
			changes[i].Affects = relations.affects(object.Ref{Kind: c.Kind, Name: c.Name}, st.objects[api.KindEndpoint])
		}
	}
	return changes, nil
}

// prune deletes what a document does not name.
func (st *state) prune(n object.Noun, named map[string]json.RawMessage) []api.Change {
	var changes []api.Change
	for _, name := range slices.Sorted(maps.Keys(st.objects[n.Kind])) {
		if _, ok := named[name]; ok || st.get(n.Kind, name).Deleting != nil {
			continue
		}
		st.takeOut(n, name)
		changes = append(changes, api.Change{Action: "delete", Kind: n.Kind, Name: name})
	}
	return changes
}

// removeAll deletes many objects, in one transaction or not at all. There is no operation for each: a watch tells when they are gone.
func (e *Editor) removeAll(w http.ResponseWriter, r *http.Request) error {
	var req api.DeleteRequest
	if err := web.ReadBody(w, r, &req); err != nil {
		return err
	}
	var result api.DeleteResult
	last, err := e.edit(r.Context(), func(st *state) (err error) {
		result.Changes, err = st.removeAll(r.Context(), req)
		return err
	})
	if err != nil {
		return err
	}
	result.Revision = last.revision
	web.Note(r).Applied(result.Changes)
	web.Note(r).Idle = len(result.Changes) == 0
	return web.Answer(w, http.StatusOK, result)
}

// removeAll deletes users before what they use. What an object that stays uses is not deleted, and then nothing is.
func (st *state) removeAll(ctx context.Context, req api.DeleteRequest) ([]api.Change, error) {
	changes, removed := []api.Change{}, []object.Ref{}
	for _, k := range []struct {
		kind  api.Kind
		names []string
	}{{api.KindPolicy, req.Policies}, {api.KindChain, req.Chains}, {api.KindFunction, req.Functions}, {api.KindEndpoint, req.Endpoints}} {
		slices.Sort(k.names)
		for _, name := range slices.Compact(k.names) {
			if st.get(k.kind, name) == nil {
				continue
			}
			st.takeOut(object.NounOf(k.kind), name)
			removed = append(removed, object.Ref{Kind: k.kind, Name: name})
			changes = append(changes, api.Change{Action: "delete", Kind: k.kind, Name: name})
		}
	}
	if len(req.Secrets) > 0 {
		if err := st.readSecrets(ctx); err != nil {
			return nil, err
		}
	}
	slices.Sort(req.Secrets)
	for _, name := range slices.Compact(req.Secrets) {
		if _, known := st.secrets[name]; !known {
			continue
		}
		if err := st.dropSecret(name); err != nil {
			return nil, err
		}
		changes = append(changes, api.Change{Action: "delete", Kind: api.KindSecret, Name: name})
	}
	return changes, st.inUse(removed...)
}

func documentSpecs(d api.Document, kind api.Kind) map[string]json.RawMessage {
	switch kind {
	case api.KindEndpoint:
		return rawSpecs(d.Endpoints)
	case api.KindFunction:
		return rawSpecs(d.Functions)
	case api.KindChain:
		return rawSpecs(d.Chains)
	case api.KindPolicy:
		return rawSpecs(d.Policies)
	}
	return nil
}

func rawSpecs[S any](m map[string]S) map[string]json.RawMessage {
	out := make(map[string]json.RawMessage, len(m))
	for name, s := range m {
		out[name] = object.Marshal(&s)
	}
	return out
}
