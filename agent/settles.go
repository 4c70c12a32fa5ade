package agent

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"weir.dev/weir/agent/sandbox"
	"weir.dev/weir/agent/settle"
	"weir.dev/weir/agent/socket"
	"weir.dev/weir/agent/xdp"
	"weir.dev/weir/datapath"
)

// home is where an instance is, and what its processes may say.
type home struct {
	space   socket.Space
	net     string // path of the same
	settles bool
	xdp     bool
}

// hear lets the instance that the switch knows by this name settle flows and hand over AF_XDP sockets, or not. Both instances of a function that is being replaced
// have one socket for each: the network namespace of the process says which one it speaks for. A socket that cannot be made is logged, since a function works without
// the first, and says itself that it lacks the second.
func (f *function) hear(name string, b sandbox.Box, settles, byXDP bool) error {
	f.mu.Lock()
	delete(f.homes, name) // of a former one, which is not heard any more
	f.mu.Unlock()
	to, can := f.a.Switch.(datapath.Settler)
	settles = settles && can
	if !settles && !byXDP {
		return nil
	}
	space, err := socket.SpaceAt(b.Net())
	if err != nil {
		return fmt.Errorf("network namespace of function %s: %w", f.name, err)
	}
	f.mu.Lock()
	if f.homes == nil {
		f.homes = map[string]home{}
	}
	f.homes[name] = home{space, b.Net(), settles, byXDP}
	f.mu.Unlock()
	if settles && f.settler == nil {
		if f.settler, err = settle.Serve(f.path("settle.new"), f.path("run", "settle.sock"), to, f.speaker); err != nil {
			f.a.Log.Warn("socket for settled flows", "function", f.name, "error", err)
		}
	}
	if byXDP && f.xdp == nil {
		if f.xdp, err = xdp.Serve(f.path("xdp.new"), f.path("run", "xdp.sock"), f.leads); err != nil {
			f.a.Log.Warn("socket for AF_XDP sockets", "function", f.name, "error", err)
		}
	}
	return nil
}

// speaker is the switch's name of the instance in a network namespace that may settle flows.
func (f *function) speaker(s socket.Space) (string, bool) {
	name, h, there := f.homeOf(s)
	return name, there && h.settles
}

// leads is the path of the network namespace of the instance that is there, if frames of its ports may be led into AF_XDP sockets.
func (f *function) leads(s socket.Space) (string, bool) {
	_, h, there := f.homeOf(s)
	return h.net, there && h.xdp
}

func (f *function) homeOf(s socket.Space) (name string, h home, there bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for name, h := range f.homes {
		if h.space == s {
			return name, h, true
		}
	}
	return "", home{}, false
}

// instances that may settle flows, by the switch's name.
func (f *function) instances() (names []string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for name, h := range f.homes {
		if h.settles {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names
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
