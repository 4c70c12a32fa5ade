package intent

import (
	"encoding/json"
	"fmt"
	"net/http"

	"weir.dev/weir/api"
	"weir.dev/weir/manager/object"
	"weir.dev/weir/manager/web"
)

// verb changes what a function is to do, and answers with an operation.
func (e *Editor) verb(w http.ResponseWriter, r *http.Request, verb string) error {
	name := r.PathValue("name")
	var op *api.Operation
	_, err := e.edit(r.Context(), func(st *state) error {
		cur := st.get(api.KindFunction, name)
		if cur == nil {
			return object.NotFound(api.KindFunction, name)
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
		next, err := st.set(object.NounOf(api.KindFunction), name, object.Marshal(spec))
		if err != nil {
			return err
		}
		op = st.operation(verb, object.Ref{Kind: api.KindFunction, Name: name}, next.Generation)
		object.Advance(op, next, st.e.Now().UTC())
		return st.awaitHost(op, next)
	})
	if err != nil {
		return err
	}
	web.Note(r).Generation = op.Target
	return accepted(w, op)
}

// awaitHost says of an operation that it has to wait for a lost host to come back.
func (st *state) awaitHost(op *api.Operation, o *object.Object) error {
	on := st.get(api.KindHost, o.At())
	if on == nil || op.State != api.OpStarting && op.State != api.OpProcessing {
		return nil
	}
	h := api.Host{Meta: on.Meta}
	if err := on.Into(&h.Spec, &h.Status); err != nil {
		return err
	}
	if why := st.e.Hosts.Lost(h); why != "" {
		op.State, op.Message = api.OpFailedTemp, why
	}
	return nil
}

func accepted(w http.ResponseWriter, op *api.Operation) error {
	w.Header().Set("Location", "/v1/operations/"+op.Name)
	return web.Answer(w, http.StatusAccepted, op)
}

// operation adds a new operation to the transaction.
func (st *state) operation(verb string, r object.Ref, target int64) *api.Operation {
	now := st.e.Now().UTC()
	op := &api.Operation{
		Meta: api.Meta{Name: object.TimeName(now), UID: object.NewUID(), Created: now, Updated: now},
		Verb: verb, Kind: r.Kind, Object: r.Name, State: api.OpStarting, Started: now, Target: target,
	}
	st.Operations = append(st.Operations, op)
	return op
}
