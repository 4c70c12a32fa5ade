package policy

import (
	"fmt"

	"weir.dev/weir/api"
)

// Chain is a chain as it can be used now.
type Chain struct {
	Name    string
	Hops    []api.PathHop // that are there and fit, in order
	Blocked error         // why nothing can pass
	Notes   []error       // what is left out
	Guarded bool          // some function that frames pass does not say bypass
}

// Kind is what ports a function has.
type Kind uint8

// Kinds of functions.
const (
	UnknownKind Kind = iota
	Inline           // in and out
	Tap
)

// Function is what there is of a function.
type Function struct {
	Kind   Kind
	Ready  bool // frames can be sent to it
	OnFail api.OnFail
}

// ReadChain reads a chain. It leaves out what is not ready and may be left out.
func ReadChain(name string, spec api.ChainSpec, function func(name string) Function) Chain {
	hops, err := api.ParsePath(spec.Path)
	if err != nil {
		return Closed(name, fmt.Errorf("chain %s: %w", name, err))
	}
	c := Chain{Name: name, Hops: make([]api.PathHop, 0, len(hops))}
	for _, h := range hops {
		f := function(h.Function)
		c.Guarded = c.Guarded || !h.Tap && f.OnFail != api.OnFailBypass
		switch {
		case !h.Tap && f.Kind == Tap:
			c.block(fmt.Errorf("function %s has only a tap port: write \"tap:%s\"", h.Function, h.Function))
		case h.Tap && f.Kind == Inline:
			c.Notes = append(c.Notes, fmt.Errorf("function %s has the ports in and out and is no tap: write %q, not %q", h.Function, h.Function, h))
		case f.Ready:
			c.Hops = append(c.Hops, h)
		case h.Tap || f.OnFail == api.OnFailBypass:
			c.Notes = append(c.Notes, missing(h))
		default:
			c.block(missing(h))
		}
	}
	return c
}

// block keeps the first reason.
func (c *Chain) block(err error) {
	if c.Blocked == nil {
		c.Blocked = err
	}
}

func missing(h api.PathHop) error { return fmt.Errorf("function %s: %w", h.Function, ErrNotReady) }

// Closed is a chain that nothing can pass.
func Closed(name string, why error) Chain { return Chain{Name: name, Blocked: why, Guarded: true} }

// UnknownChain is a chain that a policy names and that does not exist.
func UnknownChain(name string) Chain { return Closed(name, fmt.Errorf("chain %q: unknown", name)) }
