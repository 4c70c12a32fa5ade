package manager

import (
	"cmp"
	"context"
	"encoding/json"
	"maps"
	"net/http"
	"slices"

	"weir.dev/weir/api"
)

// apply merges a document into what exists, in one transaction or not at all.
func (m *Manager) apply(w http.ResponseWriter, r *http.Request) error {
	var req api.ApplyRequest
	if err := readBody(w, r, &req); err != nil {
		return err
	}
	var result api.ApplyResult
	if req.Plan {
		st, err := m.load(r.Context())
		if err != nil {
			return err
		}
		if result.Changes, err = st.apply(r.Context(), req); err != nil {
			return err
		}
		result.Revision, result.Warnings = st.revision, st.warnings()
		note(r).idle = true
		return answer(w, http.StatusOK, result)
	}
	var last *state
	err := m.edit(r.Context(), func(st *state) (err error) {
		last = st
		result.Changes, err = st.apply(r.Context(), req)
		return err
	})
	if err != nil {
		return err
	}
	result.Revision, result.Warnings = last.revision, last.warnings()
	note(r).applied(result.Changes)
	note(r).idle = len(note(r).objects) == 0
	return answer(w, http.StatusOK, result)
}

// apply changes the state as the request says and tells what that changes.
func (st *state) apply(ctx context.Context, req api.ApplyRequest) ([]api.Change, error) {
	changes, err := st.setSecrets(ctx, req)
	if err != nil {
		return nil, err
	}
	for _, n := range nouns() {
		if !n.declared {
			continue
		}
		specs := documentSpecs(req.Document, n.kind)
		for _, name := range slices.Sorted(maps.Keys(specs)) {
			old := st.get(n.kind, name)
			now, err := st.set(n, name, specs[name])
			if err != nil {
				return nil, err
			}
			c := api.Change{Action: "unchanged", Kind: n.kind, Name: name}
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
	relations := relate(st.objects, st.before)
	for i, c := range changes {
		if c.Action != "unchanged" && c.Kind == api.KindSecret {
			for _, name := range st.users(c.Name) {
				changes[i].Affects = append(changes[i].Affects, string(api.KindFunction)+"/"+name)
			}
		} else if c.Action != "unchanged" {
			changes[i].Affects = relations.affects(ref{c.Kind, c.Name}, st.objects[api.KindEndpoint])
		}
	}
	return changes, nil
}

// prune deletes what a document does not name.
func (st *state) prune(n noun, named map[string]json.RawMessage) []api.Change {
	var changes []api.Change
	for _, name := range slices.Sorted(maps.Keys(st.objects[n.kind])) {
		if _, ok := named[name]; ok || st.get(n.kind, name).Deleting != nil {
			continue
		}
		st.takeOut(n, name)
		changes = append(changes, api.Change{Action: "delete", Kind: n.kind, Name: name})
	}
	slices.SortFunc(changes, func(a, b api.Change) int { return cmp.Compare(a.Name, b.Name) })
	return changes
}

// removeAll deletes many objects, in one transaction or not at all. There is no operation for each: a watch tells when they are gone.
func (m *Manager) removeAll(w http.ResponseWriter, r *http.Request) error {
	var req api.DeleteRequest
	if err := readBody(w, r, &req); err != nil {
		return err
	}
	var result api.DeleteResult
	var last *state
	err := m.edit(r.Context(), func(st *state) (err error) {
		last = st
		result.Changes, err = st.removeAll(r.Context(), req)
		return err
	})
	if err != nil {
		return err
	}
	result.Revision = last.revision
	note(r).applied(result.Changes)
	note(r).idle = len(result.Changes) == 0
	return answer(w, http.StatusOK, result)
}

// removeAll deletes users before what they use. What an object that stays uses is not deleted, and then nothing is.
func (st *state) removeAll(ctx context.Context, req api.DeleteRequest) ([]api.Change, error) {
	changes, removed := []api.Change{}, []ref{}
	for _, k := range []struct {
		kind  api.Kind
		names []string
	}{{api.KindPolicy, req.Policies}, {api.KindChain, req.Chains}, {api.KindFunction, req.Functions}, {api.KindEndpoint, req.Endpoints}} {
		slices.Sort(k.names)
		for _, name := range slices.Compact(k.names) {
			if st.get(k.kind, name) == nil {
				continue
			}
			st.takeOut(nounOf(k.kind), name)
			removed = append(removed, ref{k.kind, name})
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
		out[name] = marshal(&s)
	}
	return out
}
