package agent

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"

	"weir.dev/weir/agent/sandbox"
	"weir.dev/weir/agent/settle"
	"weir.dev/weir/datapath"
)

// hear lets the instance that the switch knows by this name settle flows, or not. Both instances of a function that is being replaced have one socket:
// the network namespace of the process says which one it speaks for. A socket that cannot be made is logged, since a function works without.
func (f *function) hear(name string, b sandbox.Box, settles bool) error {
	f.mu.Lock()
	delete(f.spaces, name) // of a former one, which is not heard any more
	f.mu.Unlock()
	to, can := f.a.Switch.(datapath.Settler)
	if !settles || !can {
		return nil
	}
	space, err := settle.SpaceAt(b.Net())
	if err != nil {
		return fmt.Errorf("network namespace of function %s: %w", f.name, err)
	}
	f.mu.Lock()
	if f.spaces == nil {
		f.spaces = map[string]settle.Space{}
	}
	f.spaces[name] = space
	f.mu.Unlock()
	if f.settler == nil {
		if f.settler, err = settle.Serve(f.path("settle.new"), f.path("run", "settle.sock"), to, f.speaker); err != nil {
			f.a.Log.Warn("socket for settled flows", "function", f.name, "error", err)
		}
	}
	return nil
}

// speaker is the switch's name of the instance in a network namespace.
func (f *function) speaker(s settle.Space) (string, bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for name, space := range f.spaces {
		if space == s {
			return name, true
		}
	}
	return "", false
}

// instances that may settle flows, by the switch's name.
func (f *function) instances() []string {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.Sorted(maps.Keys(f.spaces))
}

// unsettle takes back what the instance in force has said of flows: it gets all frames again.
func (f *function) unsettle(ctx context.Context) error {
	to, can := f.a.Switch.(datapath.Settler)
	if !can {
		return nil
	}
	for _, name := range f.instances() {
		if err := to.UnsettleFlows(ctx, name); err != nil && !errors.Is(err, datapath.ErrNotFound) && !errors.Is(err, datapath.ErrSettlesNothing) && !errors.Is(err, datapath.ErrFull) {
			return err
		}
	}
	return nil
}
