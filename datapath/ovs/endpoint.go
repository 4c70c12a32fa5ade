package ovs

import (
	"context"
	"fmt"
	"net"
	"strings"

	"github.com/vishvananda/netlink"

	"weir.dev/weir/datapath"
	"weir.dev/weir/datapath/internal/hostlink"
	"weir.dev/weir/datapath/internal/record"
	"weir.dev/weir/flow"
)

// AddEndpoint makes a link a port of the bridge.
func (s *Switch) AddEndpoint(ctx context.Context, e datapath.Endpoint) (flow.Port, error) {
	leave, err := s.connection.enter(ctx)
	if err != nil {
		return 0, fmt.Errorf("add endpoint %s: %w", e.Name, err)
	}
	defer leave()
	p, err := s.addEndpoint(ctx, e)
	if err != nil {
		return 0, fmt.Errorf("add endpoint %s: %w", e.Name, err)
	}
	return p, nil
}

func (s *Switch) addEndpoint(ctx context.Context, e datapath.Endpoint) (flow.Port, error) {
	if err := e.Check(); err != nil {
		return 0, err
	}
	l, err := hostlink.ByName(s.home.NL, s.home.Space, e.Link)
	if err != nil {
		return 0, err
	}
	attrs := l.Attrs()
	p := &port{Name: "endpoint/" + e.Name, Link: e.Link, Index: attrs.Index, WasUp: attrs.Flags&net.FlagUp != 0, E: e}
	if err := s.ports.free(p); err != nil {
		return 0, err
	}
	if old := s.ports.byName[p.Name]; old != nil {
		p.Number = old.Number
		if old.Index == p.Index {
			p.WasUp, p.Clsact, p.Offload, p.MTU, p.Joins = old.WasUp, old.Clsact, old.Offload, old.MTU, old.Joins
			e.Held = e.Held && old.E.Held
			p.E = e
			if old.E.EqualButGuard(e) && attrs.Flags&net.FlagUp != 0 {
				if attached, err := s.hooks.hushed(old); err == nil && attached {
					return p.Number, s.changeGuard(ctx, old, e.Guard)
				}
			}
		} else if err := s.release(ctx, old); err != nil { // the name has another link now, or its link was made anew
			return 0, err
		}
	} else if p.Number, err = s.ports.newNumber(); err != nil {
		return 0, err
	}
	if err := s.checkEndpoint(ctx, l); err != nil {
		return 0, err
	}
	if p.E.Held {
		return p.Number, s.holdEndpoint(ctx, p)
	}
	return p.Number, s.plugEndpoint(ctx, p, l)
}

// changeGuard exchanges the port's security and nothing else.
func (s *Switch) changeGuard(ctx context.Context, p *port, g flow.Guard) error {
	if p.E.Guard.Equal(g) {
		return nil
	}
	next := *p
	next.E.Guard = g
	if err := s.home.Store.Write(record.File("endpoint", p.E.Name), &next); err != nil {
		return err
	}
	was := p.E.Guard
	p.E.Guard = g
	if err := s.rules.refresh(ctx); err != nil {
		p.E.Guard = was
		return err
	}
	return nil
}

// holdEndpoint makes a port known, with its entries, and leaves its link alone.
func (s *Switch) holdEndpoint(ctx context.Context, p *port) error {
	if err := s.home.Store.Write(record.File("endpoint", p.E.Name), p); err != nil {
		return err
	}
	s.ports.add(p)
	return s.rules.refresh(ctx)
}

// plugEndpoint makes a link a port of the bridge.
func (s *Switch) plugEndpoint(ctx context.Context, p *port, l netlink.Link) error {
	// What is about to be done to the link is on record before it is done.
	p.Offload = p.Offload || s.hooks.wantsOffload(p)
	if p.MTU == 0 && p.E.Fabric && s.state.Datapath == netdev {
		p.MTU = l.Attrs().MTU
	}
	joins := false
	if l.Type() != "veth" && s.state.Datapath == netdev {
		if on, err := s.home.Space.Coalescing(p.Link); err == nil && on { // a link without such features has nothing to switch off
			joins, p.Joins = true, true
		}
	}
	intent := *p
	intent.Clsact = true
	if err := s.home.Store.Write(record.File("endpoint", p.E.Name), &intent); err != nil {
		return err
	}
	s.hooks.adapt(p, l, joins)
	s.ports.add(p)
	if err := s.hooks.hush(p); err != nil {
		return err
	}
	if err := s.home.NL.LinkSetUp(l); err != nil {
		return fmt.Errorf("set %s up: %w", p.Link, err)
	}
	// The entries come before the port: no frame of a port without.
	if err := s.rules.refresh(ctx); err != nil {
		return err
	}
	if err := s.bridge.plug(ctx, p); err != nil {
		return err
	}
	if p.Offload {
		if err := s.hooks.offloads(p.E.Netns, l, false); err != nil {
			return err
		}
	}
	return s.home.Store.Write(record.File("endpoint", p.E.Name), p)
}

// checkEndpoint refuses links whose becoming a port would break what they are used for.
func (s *Switch) checkEndpoint(ctx context.Context, l netlink.Link) error {
	bridge := -1
	if b, err := s.home.NL.LinkByName(s.home.Instance.Bridge()); err == nil {
		bridge = b.Attrs().Index
	}
	if err := hostlink.Check(s.home.NL, bridge, l); err != nil {
		return err
	}
	have, err := s.config.row(ctx, "Interface", l.Attrs().Name)
	if err != nil {
		return err
	}
	if have != nil && !s.config.ours(have) {
		return fmt.Errorf("interface %s belongs to a bridge of Open vSwitch: take it out there first (ovs-vsctl del-port %s)", l.Attrs().Name, l.Attrs().Name)
	}
	endpoints := 0
	for _, p := range s.ports.all {
		if p.function == nil {
			endpoints++
		}
	}
	if endpoints >= maxEndpoints {
		return fmt.Errorf("%w: it has %d endpoints", datapath.ErrFull, endpoints)
	}
	return nil
}

// CheckEndpoint tells whether AddEndpoint would take the link. A link that another endpoint took is no obstacle: that one may be
// about to give it up.
func (s *Switch) CheckEndpoint(ctx context.Context, e datapath.Endpoint) error {
	leave, err := s.gate.Enter(ctx)
	if err != nil {
		return err
	}
	defer leave()
	l, err := hostlink.ByName(s.home.NL, s.home.Space, e.Link)
	if err != nil {
		return err
	}
	for _, p := range s.ports.all {
		if p.Index != l.Attrs().Index {
			continue
		}
		if s.home.Made(l) && p.Name != "endpoint/"+e.Name {
			return fmt.Errorf("interface %s is already the port %s", e.Link, p.Name)
		}
		return nil
	}
	return s.checkEndpoint(ctx, l)
}

// release gives an endpoint's link back as it was.
func (s *Switch) release(ctx context.Context, p *port) error {
	if err := s.bridge.unplug(ctx, p.Link); err != nil {
		return err
	}
	return s.hooks.giveBack(p)
}

// Remove takes an endpoint or a function out of the switch.
func (s *Switch) Remove(ctx context.Context, object string) error {
	kind, name, _ := strings.Cut(object, "/")
	var err error
	switch kind {
	case "endpoint":
		var leave func()
		if leave, err = s.connection.enter(ctx); err == nil {
			err = s.removeEndpoint(ctx, name)
			leave()
		}
	case "function":
		err = s.removeFunction(ctx, name)
	default:
		err = fmt.Errorf("want endpoint/NAME or function/NAME")
	}
	if err != nil {
		return fmt.Errorf("remove %s: %w", object, err)
	}
	return nil
}

func (s *Switch) removeEndpoint(ctx context.Context, name string) error {
	p := s.ports.byName["endpoint/"+name]
	if p == nil {
		return s.home.Store.Remove(record.File("endpoint", name))
	}
	if err := s.release(ctx, p); err != nil {
		return err
	}
	s.ports.drop(p)
	if err := s.rules.refresh(ctx); err != nil {
		s.ports.add(p)
		return err
	}
	s.counters.forget(s.rules.set.Rules)
	return s.home.Store.Remove(record.File("endpoint", name))
}
