package manager

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"time"

	"weir.dev/weir/api"
	"weir.dev/weir/store"
)

// openPrefix is an index of the operations that still can change: open/KIND/OBJECT/OPERATION, with the operation's name as value.
const openPrefix = "open/"

func openKey(op *api.Operation) string {
	return openPrefix + string(op.Kind) + "/" + op.Object + "/" + op.Name
}

// timeName makes a name that sorts by time.
func timeName(t time.Time) string {
	return t.UTC().Format("20060102t150405.000000000") + "-" + newUID()[:6]
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

func operationOps(op *api.Operation) ([]store.Op, error) {
	put, err := store.Put(api.KindOperation, op)
	if err != nil {
		return nil, err
	}
	index := store.Op{Key: openKey(op)}
	if isOpen(op.State) {
		index.Value = marshal(op.Name)
	}
	return []store.Op{put, index}, nil
}

func isOpen(s api.OperationState) bool {
	return s == api.OpStarting || s == api.OpProcessing || s == api.OpFailedTemp
}

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
		st.advance(op, next)
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

// advance moves an operation to where its object has got.
func (st *state) advance(op *api.Operation, o *object) { advance(op, o, st.m.Now().UTC()) }

// advance moves an operation to where its object has got, nil when that is gone, and tells whether it moved.
func advance(op *api.Operation, o *object, now time.Time) bool {
	state, message := outcome(op, o)
	if state == op.State && message == op.Message {
		return false
	}
	op.State, op.Message, op.Updated = state, message, now
	op.Finished = time.Time{}
	if !isOpen(state) {
		op.Finished = now
	}
	return true
}

// outcome is the state that an operation is in, seen from its object.
func outcome(op *api.Operation, o *object) (api.OperationState, string) {
	if op.Verb == "delete" {
		return deleteOutcome(op, o)
	}
	if o == nil {
		return api.OpFailed, "the function was deleted"
	}
	var spec api.FunctionSpec
	var status api.FunctionStatus
	if json.Unmarshal(o.Spec, &spec) != nil || json.Unmarshal(o.Status, &status) != nil {
		return api.OpFailed, "the stored function cannot be read"
	}
	want := api.FunctionStarted
	if op.Verb == "stop" {
		want = api.FunctionStopped
	}
	wanted := spec.State
	if wanted == "" {
		wanted = api.FunctionStarted
	}
	switch {
	case wanted != want || o.Deleting != nil:
		return api.OpFailed, fmt.Sprintf("superseded: the function is now wanted %s (generation %d)", wantedText(o, wanted), o.Generation)
	case status.ObservedGeneration < op.Target:
		return op.State, op.Message
	case status.State == want && (op.Verb != "restart" || status.ObservedRestart >= spec.Restart):
		return api.OpCompleted, ""
	case status.State == api.FunctionFailed:
		return api.OpFailedTemp, status.Message
	}
	return api.OpProcessing, status.Message
}

func wantedText(o *object, s api.FunctionState) string {
	if o.Deleting != nil {
		return "deleted"
	}
	return string(s)
}

func deleteOutcome(op *api.Operation, o *object) (api.OperationState, string) {
	if o == nil {
		return api.OpCompleted, ""
	}
	var status struct{ State, Message string }
	if json.Unmarshal(o.Status, &status) != nil || status.Message == "" {
		return op.State, op.Message
	}
	return api.OpProcessing, status.Message // whether that is about the deletion cannot be told: it may be why it is deleted
}

// openOperations reads the operations that can still change, for the objects in changed.
func (m *Manager) openOperations(ctx context.Context, changed map[ref]*object) ([]*api.Operation, error) {
	items, _, err := m.Store.List(ctx, openPrefix, store.ListOptions{})
	if err != nil {
		return nil, err
	}
	var out []*api.Operation
	for _, i := range items {
		var name string
		if err := json.Unmarshal(i.Value, &name); err != nil {
			return nil, fmt.Errorf("stored %s: %w", i.Key, err)
		}
		if !concerns(i.Key, changed) {
			continue
		}
		op, err := store.Get[api.Operation](ctx, m.Store, api.KindOperation, name)
		if errors.Is(err, store.ErrNotFound) {
			continue // trimmed: trim removes the index as well
		}
		if err != nil {
			return nil, err
		}
		out = append(out, &op)
	}
	return out, nil
}

func concerns(key string, changed map[ref]*object) bool {
	part := strings.Split(key, "/") // open/KIND/OBJECT/OPERATION
	if len(part) != 4 {
		return false
	}
	_, ok := changed[ref{api.Kind(part[1]), part[2]}]
	return ok
}

// trim removes the oldest objects of a kind whose names sort by time. It is no fault of the request if that fails: the next one tries again.
func (m *Manager) trim(ctx context.Context, kind api.Kind, limit int) {
	if err := m.trimTo(ctx, kind, limit); err != nil {
		m.Log.Warn("trim history", "kind", kind, "error", err)
	}
}

func (m *Manager) trimTo(ctx context.Context, kind api.Kind, limit int) error {
	n, err := m.Store.Count(ctx, store.Prefix(kind))
	if err != nil || n <= limit {
		return err
	}
	old, _, err := m.Store.List(ctx, store.Prefix(kind), store.ListOptions{Limit: n - limit})
	if err != nil {
		return err
	}
	var ops []store.Op
	for _, i := range old {
		ops = append(ops, store.Op{Key: i.Key})
		var op api.Operation
		if kind == api.KindOperation && json.Unmarshal(i.Value, &op) == nil {
			ops = append(ops, store.Op{Key: openKey(&op)})
		}
	}
	_, err = m.Store.Txn(ctx, nil, ops)
	return err
}
