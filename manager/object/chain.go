package object

import (
	"strings"

	"weir.dev/weir/api"
)

// Places tells which host holds what.
type Places struct {
	Find func(kind api.Kind, name string) (*Object, error) // nil object: there is none
}

// OfChain is the one host where all functions of a chain are; false if they are on several, or one is nowhere, or there is
// no such chain.
func (w *Places) OfChain(name string) (host string, ok bool, err error) {
	o, err := w.Find(api.KindChain, name)
	if err != nil || o == nil {
		return "", false, err
	}
	var spec api.ChainSpec
	if err := o.Into(&spec, nil); err != nil {
		return "", false, err
	}
	for i, f := range spec.Functions() {
		o, err := w.Find(api.KindFunction, f)
		if err != nil || o == nil || o.At() == "" || i > 0 && o.At() != host {
			return "", false, err
		}
		host = o.At()
	}
	return host, host != "", nil
}

// ChainStatus is how a chain is, as its functions are.
func ChainStatus(chain *Object, members []string, find func(function string) (*Object, error)) (api.ChainStatus, error) {
	s := api.ChainStatus{ObservedGeneration: chain.Generation, State: api.ChainReady}
	var down []string
	for _, name := range members {
		o, err := find(name)
		if err != nil {
			return s, err
		}
		var f api.FunctionStatus
		if o != nil {
			if err := o.Into(&api.FunctionSpec{}, &f); err != nil {
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
