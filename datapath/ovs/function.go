package ovs

import (
	"context"
	"fmt"
	"net"

	"github.com/vishvananda/netlink"

	"weir.dev/weir/datapath"
	"weir.dev/weir/datapath/internal/hostlink"
	"weir.dev/weir/datapath/internal/probing"
	"weir.dev/weir/datapath/internal/record"
	"weir.dev/weir/flow"
	"weir.dev/weir/netns"
)

// Abilities are those of package hostlink.
func (s *Switch) Abilities() datapath.Abilities { return hostlink.Abilities() }

// AddFunction makes a function's links ports.
func (s *Switch) AddFunction(ctx context.Context, f datapath.Function) (datapath.Ports, error) {
	leave, err := s.connection.enter(ctx)
	if err != nil {
		return datapath.Ports{}, fmt.Errorf("add function %s: %w", f.Name, err)
	}
	fn, joined, err := s.addFunction(ctx, f)
	leave()
	if err == nil && joined != nil {
		select {
		case err = <-joined:
		case <-ctx.Done():
			err = ctx.Err()
		}
	}
	if err != nil {
		return datapath.Ports{}, fmt.Errorf("add function %s: %w", f.Name, err)
	}
	return fn.numbers(), nil
}

func (f *function) numbers() datapath.Ports {
	var all []flow.Port
	for _, p := range f.Ports {
		all = append(all, p.Number)
	}
	return f.F.Numbered(all...)
}

// addFunction makes a function's links ready and has them become ports: joined tells what became of that, nil if they are.
func (s *Switch) addFunction(ctx context.Context, f datapath.Function) (fn *function, joined <-chan error, err error) {
	if err := s.Abilities().Check(f); err != nil {
		return nil, nil, err
	}
	space, err := netns.At(f.Netns)
	if err != nil {
		return nil, nil, err
	}
	defer space.Close()
	old, known := s.ports.fns[f.Name], (*datapath.Function)(nil)
	if old != nil {
		known = &old.F
	}
	if err := probing.Draw(&f, known); err != nil {
		return nil, nil, err
	}
	fn = &function{F: f}
	links, err := s.findPorts(fn, space)
	if err != nil {
		return nil, nil, err
	}
	moved, err := s.giveNumbers(ctx, fn, old)
	if err != nil {
		return nil, nil, err
	}
	if !moved && old.F == f && !old.joining && s.hooks.attached(fn, space) {
		return old, nil, nil
	}
	if !moved {
		fn.State, fn.Pid, fn.Born = old.State, old.Pid, old.Born
	} else {
		s.liveness.unwatch(f.Name)
	}
	if err := s.prepare(fn, space, links); err != nil {
		return nil, nil, err
	}
	return fn, s.joining.add(fn), nil
}

// prepare a function's links for becoming ports.
func (s *Switch) prepare(fn *function, space *netns.Space, links []netlink.Link) error {
	name := fn.F.Name
	intent := *fn
	intent.Ports = nil
	for _, p := range fn.Ports {
		q := *p
		q.Clsact, q.InnerCl, q.Offload = true, fn.F.Forwarder != "", s.state.Datapath == netdev // about to be made: one that was not costs nothing to look for
		intent.Ports = append(intent.Ports, &q)
	}
	if err := s.home.Store.Write(record.File("function", name), &intent); err != nil {
		return err
	}
	if old := s.ports.fns[name]; old != nil {
		for _, p := range old.Ports {
			s.ports.drop(p)
		}
	}
	s.ports.fns[name], fn.joining = fn, true
	for _, p := range fn.Ports {
		p.function = fn
		s.ports.add(p)
	}
	for i, p := range fn.Ports {
		if err := s.hooks.hush(p); err != nil {
			return err
		}
		if !p.WasUp {
			if err := s.home.NL.LinkSetUp(links[i]); err != nil {
				return fmt.Errorf("set %s up: %w", p.Link, err)
			}
		}
		if s.state.Datapath == netdev {
			p.Offload = true
			if err := s.hooks.offloads(fn.F.Netns, links[i], false); err != nil {
				return err
			}
		}
	}
	return s.hooks.forwarder(fn, space)
}

// findPorts makes ports of the function's links.
func (s *Switch) findPorts(fn *function, space *netns.Space) ([]netlink.Link, error) {
	sides, err := hostlink.Sides(s.home.NL, s.home.Space, space, &fn.F)
	if err != nil {
		return nil, err
	}
	var links []netlink.Link
	for _, side := range sides {
		attrs := side.Link.Attrs()
		p := &port{Name: side.At.Of(fn.F.Name), Link: attrs.Name, Index: attrs.Index, Inner: side.Inside.Index, Own: side.Inside.MAC,
			WasUp: attrs.Flags&net.FlagUp != 0}
		if err := s.ports.free(p); err != nil {
			return nil, err
		}
		fn.Ports, links = append(fn.Ports, p), append(links, side.Link)
	}
	return links, nil
}

// giveNumbers: the old ones to a function that is known. moved: its links are not those of before.
func (s *Switch) giveNumbers(ctx context.Context, fn, old *function) (moved bool, err error) {
	if old != nil && len(old.Ports) != len(fn.Ports) { // inline before, a tap now
		if err := s.bridge.unplug(ctx, old.links()...); err != nil {
			return false, err
		}
		s.liveness.unwatch(old.F.Name)
		if _, err := s.forget(old); err != nil {
			return false, err
		}
		old = nil
	}
	if old == nil {
		for i, p := range fn.Ports {
			if p.Number, err = s.ports.newNumber(); err != nil {
				return false, err
			}
			if i == 0 {
				s.ports.all[p.Number] = p // taken
				defer delete(s.ports.all, p.Number)
			}
		}
		return true, nil
	}
	for i, p := range fn.Ports {
		was := old.Ports[i]
		p.Number = was.Number
		if was.Index != p.Index || was.Inner != p.Inner || was.Own != p.Own {
			moved = true
			if err := s.bridge.unplug(ctx, was.Link); err != nil {
				return false, err
			}
			continue
		}
		p.Clsact, p.InnerCl, p.WasUp, p.Offload = was.Clsact, was.InnerCl, was.WasUp, was.Offload
	}
	return moved || old.F.Netns != fn.F.Netns, nil
}

// removeFunction takes the lock by turns: while Open vSwitch lets one function go, it hears of others.
func (s *Switch) removeFunction(ctx context.Context, name string) error {
	fn, wait, err := s.beginRemove(ctx, name)
	if err != nil || fn == nil {
		return err
	}
	if err := wait(ctx); err != nil {
		return err
	}
	// Its links are no ports any more: they are given back, and its entries go, together with those of others.
	leave, err := s.gate.Enter(ctx)
	if err != nil {
		return err
	}
	change, err := s.forget(fn)
	leave()
	if err != nil {
		return err
	}
	if err := s.rules.apply(ctx, change); err != nil {
		return err
	}
	// The record goes last, unless the function was added again meanwhile.
	if leave, err = s.gate.Enter(ctx); err != nil {
		return err
	}
	defer leave()
	if s.ports.fns[name] != nil {
		return errRemoved
	}
	s.counters.forget(s.rules.set.Rules)
	return s.home.Store.Remove(record.File("function", name))
}

// beginRemove has a function's links taken out of the bridge; wait returns when they are. No function: there was none.
func (s *Switch) beginRemove(ctx context.Context, name string) (fn *function, wait func(context.Context) error, err error) {
	leave, err := s.connection.enter(ctx)
	if err != nil {
		return nil, nil, err
	}
	defer leave()
	if fn = s.ports.fns[name]; fn == nil {
		return nil, nil, s.home.Store.Remove(record.File("function", name))
	}
	s.liveness.unwatch(name)
	fn.joining = true // not as it should be, from here on
	wait, err = s.bridge.beginUnplug(ctx, fn.links()...)
	return fn, wait, err
}

// forget a function whose links are no ports any more. The change that it tells is to be applied.
func (s *Switch) forget(fn *function) (change uint64, err error) {
	if s.ports.fns[fn.F.Name] != fn {
		return 0, errRemoved
	}
	if err := s.hooks.giveBackFunction(fn); err != nil {
		return 0, err
	}
	for _, p := range fn.Ports {
		s.ports.drop(p)
	}
	delete(s.ports.fns, fn.F.Name)
	s.prober.deafen(fn.F.Name)
	return s.rules.change(), nil
}

func (f *function) links() []string {
	links := make([]string, 0, len(f.Ports))
	for _, p := range f.Ports {
		links = append(links, p.Link)
	}
	return links
}
