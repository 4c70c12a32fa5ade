package manager

import (
	"encoding/json"
	"fmt"
	"net/http"

	"weir.dev/weir/api"
)

// verb changes what a function is to do, and answers with an operation.
func (m *Manager) verb(w http.ResponseWriter, r *http.Request, verb string) error {
	name := r.PathValue("name")
	var op *api.Operation
	err := m.edit(r.Context(), func(st *state) error {
		cur := st.get(api.KindFunction, name)
		if cur == nil {
			return notFound(api.KindFunction, name)
		}
		if cur.Deleting != nil {
			return api.Refuse(http.StatusConflict, fmt.Sprintf("function %s is being deleted", name))
		}
		var spec api.FunctionSpec
		if err := json.Unmarshal(cur.Spec, &spec); err != nil {
			return fmt.Errorf("stored function %s: %w", name, err)
		}
		spec.State = api.FunctionStarted
		switch verb {
		case "stop":
			spec.State = api.FunctionStopped
		case "restart":
			spec.Restart++
		}
		next, err := st.set(nounOf(api.KindFunction), name, marshal(spec))
		if err != nil {
			return err
		}
		op = st.operation(verb, ref{api.KindFunction, name}, next.Generation)
		advance(op, next, st.m.Now().UTC())
		return st.awaitHost(op, next)
	})
	if err != nil {
		return err
	}
	note(r).generation = op.Target
	return accepted(w, op)
}

// awaitHost says of an operation that it has to wait for a lost host to come back.
func (st *state) awaitHost(op *api.Operation, o *object) error {
	on := st.get(api.KindHost, o.at())
	if on == nil || op.State != api.OpStarting && op.State != api.OpProcessing {
		return nil
	}
	h := api.Host{Meta: on.Meta}
	if err := on.into(&h.Spec, &h.Status); err != nil {
		return err
	}
	if why := st.m.lost(h); why != "" {
		op.State, op.Message = api.OpFailedTemp, why
	}
	return nil
}

func accepted(w http.ResponseWriter, op *api.Operation) error {
	w.Header().Set("Location", "/v1/operations/"+op.Name)
	return answer(w, http.StatusAccepted, op)
}

// operation adds a new operation to the transaction.
func (st *state) operation(verb string, r ref, target int64) *api.Operation {
	now := st.m.Now().UTC()
	op := &api.Operation{
		Meta: api.Meta{Name: timeName(now), UID: newUID(), Created: now, Updated: now},
		Verb: verb, Kind: r.kind, Object: r.name, State: api.OpStarting, Started: now, Target: target,
	}
	st.made = append(st.made, op)
	return op
}
