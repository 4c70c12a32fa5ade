package object

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	"weir.dev/weir/api"
	"weir.dev/weir/store"
)

// openPrefix is an index of the operations that still can change: open/KIND/OBJECT/OPERATION, with the operation's name as value.
const openPrefix = "open/"

// OpenKey is where the index has an operation.
func OpenKey(op *api.Operation) string {
	return openPrefix + string(op.Kind) + "/" + op.Object + "/" + op.Name
}

// TimeName makes a name that sorts by time.
func TimeName(t time.Time) string {
	return t.UTC().Format("20060102t150405.000000000") + "-" + NewUID()[:6]
}

// OperationOps write an operation and its place in the index.
func OperationOps(op *api.Operation) ([]store.Op, error) {
	put := store.Put(api.KindOperation, op)
	index := store.Op{Key: OpenKey(op)}
	if isOpen(op.State) {
		index.Value = Marshal(op.Name)
	}
	return []store.Op{put, index}, nil
}

func isOpen(s api.OperationState) bool {
	return s == api.OpStarting || s == api.OpProcessing || s == api.OpFailedTemp
}

// Advance moves an operation to where its object has got, nil when that is gone, and tells whether it moved.
func Advance(op *api.Operation, o *Object, now time.Time) bool {
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
func outcome(op *api.Operation, o *Object) (api.OperationState, string) {
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

func wantedText(o *Object, s api.FunctionState) string {
	if o.Deleting != nil {
		return "deleted"
	}
	return string(s)
}

func deleteOutcome(op *api.Operation, o *Object) (api.OperationState, string) {
	if o == nil {
		return api.OpCompleted, ""
	}
	var status struct{ State, Message string }
	if json.Unmarshal(o.Status, &status) != nil || status.Message == "" {
		return op.State, op.Message
	}
	return api.OpProcessing, status.Message // whether that is about the deletion cannot be told: it may be why it is deleted
}

// FollowUp moves the open operations on whose objects are changed; nil: gone.
func FollowUp(ctx context.Context, s store.Store, changed map[Ref]*Object, now time.Time) (conds []store.Cond, ops []store.Op, err error) {
	items, _, err := s.List(ctx, openPrefix, store.ListOptions{})
	if err != nil {
		return nil, nil, err
	}
	for _, i := range items {
		var name string
		if err := json.Unmarshal(i.Value, &name); err != nil {
			return nil, nil, fmt.Errorf("stored %s: %w", i.Key, err)
		}
		part := strings.Split(i.Key, "/") // open/KIND/OBJECT/OPERATION
		if len(part) != 4 {
			continue
		}
		o, concerned := changed[Ref{api.Kind(part[1]), part[2]}]
		if !concerned {
			continue
		}
		op, err := store.Get[api.Operation](ctx, s, api.KindOperation, name)
		if errors.Is(err, store.ErrNotFound) {
			continue // trimmed: trim removes the index as well
		}
		if err != nil {
			return nil, nil, err
		}
		at := op.Revision
		if !Advance(&op, o, now) {
			continue
		}
		moved, err := OperationOps(&op)
		if err != nil {
			return nil, nil, err
		}
		conds, ops = append(conds, store.Cond{Key: store.Key(api.KindOperation, op.Name), Revision: at}), append(ops, moved...)
	}
	return conds, ops, nil
}

// Finder finds an object; nil: there is none.
type Finder func(kind api.Kind, name string) (*Object, error)

// ChainHost is the one host where all functions of a chain are; false if they are on several, or one is nowhere, or there is
// no such chain.
func ChainHost(name string, find Finder) (host string, ok bool, err error) {
	o, err := find(api.KindChain, name)
	if err != nil || o == nil {
		return "", false, err
	}
	var spec api.ChainSpec
	if err := o.Into(&spec, nil); err != nil {
		return "", false, err
	}
	for i, f := range spec.Functions() {
		o, err := find(api.KindFunction, f)
		if err != nil || o == nil || o.At() == "" || i > 0 && o.At() != host {
			return "", false, err
		}
		host = o.At()
	}
	return host, host != "", nil
}

// ChainStatus is how a chain is, as its functions are.
func ChainStatus(chain *Object, members []string, find Finder) (api.ChainStatus, error) {
	s := api.ChainStatus{ObservedGeneration: chain.Generation, State: api.ChainReady}
	var down []string
	for _, name := range members {
		o, err := find(api.KindFunction, name)
		if err != nil {
			return s, err
		}
		var f api.FunctionStatus
		if o != nil {
			if err := o.Into(nil, &f); err != nil {
				return s, err
			}
		}
		if !f.Healthy {
			down = append(down, name)
		}
	}
	if len(down) > 0 {
		s.State = api.ChainDegraded
		s.Say(api.Condition{Type: api.ConditionImpaired, Reason: api.ReasonDown, Message: "down: " + strings.Join(down, ", ")})
	}
	return s, nil
}
