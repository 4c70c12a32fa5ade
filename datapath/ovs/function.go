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
	"weir.dev/weir/datapath/internal/tcfilter"
	"weir.dev/weir/netns"
	"weir.dev/weir/portkind"
)

// Abilities: functions in network namespaces and in virtual machines, and for the first the forwarder of package bpf.
func (s *Switch) Abilities() datapath.Abilities {
	return datapath.Abilities{Ports: []portkind.Kind{portkind.Veth, portkind.Tap}, Forwarders: []string{datapath.Wire}}
}

// AddFunction makes a function's links ports.
func (s *Switch) AddFunction(ctx context.Context, f datapath.Function) (datapath.Ports, error) {
	leave, err := s.enterReady(ctx)
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
	if f.F.Tap != "" {
		return datapath.Ports{Tap: f.Ports[0].Number}
	}
	return datapath.Ports{In: f.Ports[0].Number, Out: f.Ports[1].Number}
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
	old, known := s.fns[f.Name], (*datapath.Function)(nil)
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
	if !moved && old.F == f && !old.joining && s.attached(fn, space) {
		return old, nil, nil
	}
	if !moved {
		fn.State, fn.Pid, fn.Born = old.State, old.Pid, old.Born
	} else {
		s.unwatch(f.Name)
	}
	if err := s.prepare(fn, space, links); err != nil {
		return nil, nil, err
	}
	return fn, s.join(fn), nil
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
	if err := s.store.Write(record.File("function", name), &intent); err != nil {
		return err
	}
	if old := s.fns[name]; old != nil {
		for _, p := range old.Ports {
			s.delist(p)
		}
	}
	s.fns[name], fn.joining = fn, true
	for _, p := range fn.Ports {
		p.function = fn
		s.enlist(p)
	}
	for i, p := range fn.Ports {
		if err := s.hush(p); err != nil {
			return err
		}
		if !p.WasUp {
			if err := s.nl.LinkSetUp(links[i]); err != nil {
				return fmt.Errorf("set %s up: %w", p.Link, err)
			}
		}
		if s.state.Datapath == netdev {
			p.Offload = true
			if err := s.offloads(fn.F.Netns, links[i], false); err != nil {
				return err
			}
		}
	}
	return s.forwarder(fn, space)
}

// findPorts makes ports of the function's links.
func (s *Switch) findPorts(fn *function, space *netns.Space) ([]netlink.Link, error) {
	sides, err := hostlink.Sides(s.nl, s.home, space, &fn.F)
	if err != nil {
		return nil, err
	}
	var links []netlink.Link
	for _, side := range sides {
		attrs := side.Link.Attrs()
		p := &port{Name: side.At.Of(fn.F.Name), Link: attrs.Name, Index: attrs.Index, Inner: side.Inside.Index, Own: side.Inside.MAC,
			WasUp: attrs.Flags&net.FlagUp != 0}
		if err := s.free(p); err != nil {
			return nil, err
		}
		fn.Ports, links = append(fn.Ports, p), append(links, side.Link)
	}
	return links, nil
}

// giveNumbers: the old ones to a function that is known. moved: its links are not those of before.
func (s *Switch) giveNumbers(ctx context.Context, fn, old *function) (moved bool, err error) {
	if old != nil && len(old.Ports) != len(fn.Ports) { // inline before, a tap now
		if err := s.unplug(ctx, old.links()...); err != nil {
			return false, err
		}
		s.unwatch(old.F.Name)
		if _, err := s.forget(old); err != nil {
			return false, err
		}
		old = nil
	}
	if old == nil {
		for i, p := range fn.Ports {
			if p.Number, err = s.newNumber(); err != nil {
				return false, err
			}
			if i == 0 {
				s.ports[p.Number] = p // taken
				defer delete(s.ports, p.Number)
			}
		}
		return true, nil
	}
	for i, p := range fn.Ports {
		was := old.Ports[i]
		p.Number = was.Number
		if was.Index != p.Index || was.Inner != p.Inner || was.Own != p.Own {
			moved = true
			if err := s.unplug(ctx, was.Link); err != nil {
				return false, err
			}
			continue
		}
		p.Clsact, p.InnerCl, p.WasUp, p.Offload = was.Clsact, was.InnerCl, was.WasUp, was.Offload
	}
	return moved || old.F.Netns != fn.F.Netns, nil
}

// attached: filters are as they should be.
func (s *Switch) attached(fn *function, space *netns.Space) bool {
	for _, p := range fn.Ports {
		if ok, err := s.hushed(p); err != nil || !ok {
			return false
		}
	}
	if fn.F.Forwarder == "" {
		return true
	}
	nl, err := hostlink.Handle(space)
	if err != nil {
		return false
	}
	defer nl.Close()
	for _, p := range fn.Ports {
		if ok, err := p.inner().Attached(nl); err != nil || !ok {
			return false
		}
	}
	return true
}

func (p *port) inner() tcfilter.Spot { return tcfilter.Spot{Index: uint32(p.Inner), Made: &p.InnerCl} }
func (p *port) outer() tcfilter.Spot { return tcfilter.Spot{Index: uint32(p.Index), Made: &p.Clsact} }

// forwarder puts the switch's own forwarder inside, or takes it away.
func (s *Switch) forwarder(fn *function, space *netns.Space) error {
	if fn.F.Forwarder == "" && !fn.Ports[0].InnerCl {
		return nil
	}
	nl, err := hostlink.Handle(space)
	if err != nil {
		return err
	}
	defer nl.Close()
	for _, p := range fn.Ports {
		if fn.F.Forwarder == "" {
			err = p.inner().Detach(nl)
		} else {
			err = p.inner().Attach(nl, s.programs.wire)
		}
		if err != nil {
			return fmt.Errorf("in %s: %w", space, err)
		}
	}
	return nil
}

// hush keeps the host's own network stack from what enters at a port of a user-space switch, which reads a copy.
func (s *Switch) hush(p *port) error {
	if s.state.Datapath != netdev {
		return nil
	}
	if ok, err := s.hushed(p); err != nil || ok {
		return err
	}
	return p.outer().Attach(s.nl, s.programs.hush)
}

func (s *Switch) hushed(p *port) (bool, error) {
	if s.state.Datapath != netdev {
		return true, nil
	}
	return p.outer().Attached(s.nl)
}

func (s *Switch) unhush(p *port) error { return p.outer().Detach(s.nl) }

// removeFunction takes the lock by turns: while Open vSwitch lets one function go, it hears of others.
func (s *Switch) removeFunction(ctx context.Context, name string) error {
	leave, err := s.enterReady(ctx)
	if err != nil {
		return err
	}
	fn := s.fns[name]
	if fn == nil {
		defer leave()
		return s.store.Remove(record.File("function", name))
	}
	s.unwatch(name)
	fn.joining = true // not as it should be, from here on
	wait, err := s.beginUnplug(ctx, fn.links()...)
	leave()
	if err != nil {
		return err
	}
	if err := wait(ctx); err != nil {
		return err
	}
	if leave, err = s.enter(ctx); err != nil {
		return err
	}
	change, err := s.forget(fn)
	leave()
	if err != nil {
		return err
	}
	if err := s.apply(ctx, change); err != nil {
		return err
	}
	if leave, err = s.enter(ctx); err != nil {
		return err
	}
	defer leave()
	if s.fns[name] != nil {
		return errRemoved
	}
	s.forgetCounters()
	return s.store.Remove(record.File("function", name))
}

// forget a function whose links are no ports any more. The change that it tells is to be applied.
func (s *Switch) forget(fn *function) (change uint64, err error) {
	if s.fns[fn.F.Name] != fn {
		return 0, errRemoved
	}
	if err := s.giveBackFunction(fn); err != nil {
		return 0, err
	}
	for _, p := range fn.Ports {
		s.delist(p)
	}
	delete(s.fns, fn.F.Name)
	s.deafen(fn.F.Name)
	s.wanted++
	return s.wanted, nil
}

func (f *function) links() []string {
	links := make([]string, 0, len(f.Ports))
	for _, p := range f.Ports {
		links = append(links, p.Link)
	}
	return links
}

// giveBackFunction undoes what was done to the links of a function, at both ends. What is gone needs nothing.
func (s *Switch) giveBackFunction(fn *function) error {
	for _, p := range fn.Ports {
		l, err := hostlink.ByIndex(s.nl, p.Index, p.Link)
		if err != nil {
			return err
		}
		if l == nil {
			continue
		}
		if err := s.unhush(p); err != nil {
			return err
		}
		if p.Offload {
			if err := s.offloads(fn.F.Netns, l, true); err != nil {
				return err
			}
		}
		if !p.WasUp {
			if err := hostlink.SetDown(s.nl, l); err != nil {
				return err
			}
		}
	}
	if fn.F.Forwarder == "" || !netns.Exists(fn.F.Netns) {
		return nil
	}
	return hostlink.In(fn.F.Netns, func(_ *netns.Space, nl *netlink.Handle) error {
		for _, p := range fn.Ports {
			if err := p.inner().Detach(nl); err != nil {
				return err
			}
		}
		return nil
	})
}
