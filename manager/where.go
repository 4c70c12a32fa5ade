package manager

import (
	"strings"

	"weir.dev/weir/api"
)

// whereabouts tells which host holds what.
type whereabouts struct {
	find func(kind api.Kind, name string) (*object, error) // nil object: there is none
}

// ofChain is the one host where all functions of a chain are; false if they are on several, or one is nowhere. known is false if there
// is no such chain.
func (w *whereabouts) ofChain(name string) (host string, ok, known bool, err error) {
	o, err := w.find(api.KindChain, name)
	if err != nil || o == nil {
		return "", false, false, err
	}
	var spec api.ChainSpec
	if err := o.into(&spec, nil); err != nil {
		return "", false, true, err
	}
	for i, f := range spec.Functions() {
		o, err := w.find(api.KindFunction, f)
		if err != nil || o == nil || o.at() == "" || i > 0 && o.at() != host {
			return "", false, true, err
		}
		host = o.at()
	}
	return host, host != "", true, nil
}

// chainStatus is how a chain is, as its functions are.
func chainStatus(chain *object, members []string, find func(function string) (*object, error)) (api.ChainStatus, error) {
	s := api.ChainStatus{ObservedGeneration: chain.Generation, State: api.ChainReady}
	var down []string
	for _, name := range members {
		o, err := find(name)
		if err != nil {
			return s, err
		}
		var f api.FunctionStatus
		if o != nil {
			if err := o.into(&api.FunctionSpec{}, &f); err != nil {
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
