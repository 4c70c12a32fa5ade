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
	"weir.dev/weir/netns"
)

// AddEndpoint makes a link a port of the bridge.
func (s *Switch) AddEndpoint(ctx context.Context, e datapath.Endpoint) (flow.Port, error) {
	leave, err := s.enterReady(ctx)
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
	l, err := hostlink.ByName(s.nl, s.home, e.Link)
	if err != nil {
		return 0, err
	}
	attrs := l.Attrs()
	p := &port{Name: "endpoint/" + e.Name, Link: e.Link, Index: attrs.Index, WasUp: attrs.Flags&net.FlagUp != 0, E: e}
	if err := s.free(p); err != nil {
		return 0, err
	}
	if old := s.byName[p.Name]; old != nil {
		p.Number = old.Number
		if old.Index == p.Index {
			p.WasUp, p.Clsact, p.Offload, p.MTU, p.Joins = old.WasUp, old.Clsact, old.Offload, old.MTU, old.Joins
			e.Held = e.Held && old.E.Held
			p.E = e
			if old.E.EqualButGuard(e) && attrs.Flags&net.FlagUp != 0 {
				if attached, err := s.hushed(old); err == nil && attached {
					return p.Number, s.changeGuard(ctx, old, e.Guard)
				}
			}
		} else if err := s.release(ctx, old); err != nil { // the name has another link now, or its link was made anew
			return 0, err
		}
	} else if p.Number, err = s.newNumber(); err != nil {
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
	if err := s.store.Write(record.File("endpoint", p.E.Name), &next); err != nil {
		return err
	}
	was := p.E.Guard
	p.E.Guard = g
	if err := s.refresh(ctx); err != nil {
		p.E.Guard = was
		return err
	}
	return nil
}

// holdEndpoint makes a port known, with its entries, and leaves its link alone.
func (s *Switch) holdEndpoint(ctx context.Context, p *port) error {
	if err := s.store.Write(record.File("endpoint", p.E.Name), p); err != nil {
		return err
	}
	s.enlist(p)
	return s.refresh(ctx)
}

func (s *Switch) plugEndpoint(ctx context.Context, p *port, l netlink.Link) error {
	p.Offload = p.Offload || s.wantsOffload(p)
	if p.MTU == 0 && p.E.Fabric && s.state.Datapath == netdev {
		p.MTU = l.Attrs().MTU
	}
	joins := false
	if l.Type() != "veth" && s.state.Datapath == netdev {
		if on, err := s.home.Coalescing(p.Link); err == nil && on { // a link without such features has nothing to switch off
			joins, p.Joins = true, true
		}
	}
	intent := *p
	intent.Clsact = true
	if err := s.store.Write(record.File("endpoint", p.E.Name), &intent); err != nil {
		return err
	}
	if p.MTU > 0 && l.Attrs().MTU == p.MTU {
		if err := s.nl.LinkSetMTU(l, p.MTU+tagLen); err != nil {
			s.log.Warn("full-size frames with a fabric tag will not pass: raise the MTU of this link", "link", p.Link, "mtu", p.MTU, "error", err)
		}
	}
	if joins {
		if err := s.home.SetCoalescing(p.Link, false); err != nil {
			s.log.Warn("received frames that this link joins will be lost: switch GRO and LRO off", "link", p.Link, "error", err)
		}
	}
	s.enlist(p)
	if err := s.hush(p); err != nil {
		return err
	}
	if err := s.nl.LinkSetUp(l); err != nil {
		return fmt.Errorf("set %s up: %w", p.Link, err)
	}
	if err := s.refresh(ctx); err != nil {
		return err
	}
	if err := s.plug(ctx, p); err != nil {
		return err
	}
	if p.Offload {
		if err := s.offloads(p.E.Netns, l, false); err != nil {
			return err
		}
	}
	return s.store.Write(record.File("endpoint", p.E.Name), p)
}

// tagLen is what a fabric tag adds to a frame. A packet socket, by which a user-space switch sends, takes one more than the MTU tells for
// 802.1Q tags only.
const tagLen = 4

// free: no other port has the link.
func (s *Switch) free(p *port) error {
	for _, other := range s.ports {
		if other.Index == p.Index && other.Name != p.Name {
			return fmt.Errorf("interface %s is already the port %s", p.Link, other.Name)
		}
	}
	return nil
}

// checkEndpoint refuses links whose becoming a port would break what they are used for.
func (s *Switch) checkEndpoint(ctx context.Context, l netlink.Link) error {
	bridge := -1
	if b, err := s.nl.LinkByName(s.opts.Instance.Bridge()); err == nil {
		bridge = b.Attrs().Index
	}
	if err := hostlink.Check(s.nl, bridge, l); err != nil {
		return err
	}
	have, err := s.row(ctx, "Interface", l.Attrs().Name)
	if err != nil {
		return err
	}
	if have != nil && !s.ours(have) {
		return fmt.Errorf("interface %s belongs to a bridge of Open vSwitch: take it out there first (ovs-vsctl del-port %s)", l.Attrs().Name, l.Attrs().Name)
	}
	endpoints := 0
	for _, p := range s.ports {
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
	leave, err := s.enter(ctx)
	if err != nil {
		return err
	}
	defer leave()
	l, err := hostlink.ByName(s.nl, s.home, e.Link)
	if err != nil {
		return err
	}
	for _, p := range s.ports {
		if p.Index != l.Attrs().Index {
			continue
		}
		if strings.HasPrefix(l.Attrs().Alias, s.opts.Instance.Alias("")) && p.Name != "endpoint/"+e.Name {
			return fmt.Errorf("interface %s is already the port %s", e.Link, p.Name)
		}
		return nil
	}
	return s.checkEndpoint(ctx, l)
}

// wantsOffload: a user-space switch would see, and pass on, unfinished checksums and segments of any size.
func (s *Switch) wantsOffload(p *port) bool {
	return s.state.Datapath == netdev && p.E.Netns != "" && netns.Exists(netns.Path(p.E.Netns))
}

// offloads switches those of a veth's other end on or off. One that is gone needs nothing.
func (s *Switch) offloads(path string, l netlink.Link, on bool) error {
	if !netns.Exists(netns.Path(path)) {
		return nil
	}
	space, err := netns.At(path)
	if err != nil {
		return err
	}
	defer space.Close()
	inside, err := space.Links("")
	if err != nil {
		return err
	}
	if in, ok := hostlink.Inside(l, inside); ok {
		return space.Offloads(in.Name, on)
	}
	return nil
}

// release gives an endpoint's link back as it was.
func (s *Switch) release(ctx context.Context, p *port) error {
	if err := s.unplug(ctx, p.Link); err != nil {
		return err
	}
	return s.giveBack(p)
}

// giveBack undoes what was done to a link itself. One that is gone needs nothing.
func (s *Switch) giveBack(p *port) error {
	l, err := hostlink.ByIndex(s.nl, p.Index, p.Link)
	if err != nil || l == nil {
		return err
	}
	if err := s.unhush(p); err != nil {
		return err
	}
	if p.Offload {
		if err := s.offloads(p.E.Netns, l, true); err != nil {
			return err
		}
	}
	if p.Joins {
		if err := s.home.SetCoalescing(p.Link, true); err != nil {
			s.log.Warn("GRO and LRO stay off", "link", p.Link, "error", err)
		}
	}
	if p.MTU > 0 && l.Attrs().MTU == p.MTU+tagLen {
		if err := s.nl.LinkSetMTU(l, p.MTU); err != nil && !hostlink.Gone(err) {
			return fmt.Errorf("set MTU of %s back to %d: %w", p.Link, p.MTU, err)
		}
	}
	if !p.WasUp {
		return hostlink.SetDown(s.nl, l)
	}
	return nil
}

// Remove takes an endpoint or a function out of the switch.
func (s *Switch) Remove(ctx context.Context, object string) error {
	kind, name, _ := strings.Cut(object, "/")
	var err error
	switch kind {
	case "endpoint":
		var leave func()
		if leave, err = s.enterReady(ctx); err == nil {
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
	p := s.byName["endpoint/"+name]
	if p == nil {
		return s.store.Remove(record.File("endpoint", name))
	}
	if err := s.release(ctx, p); err != nil {
		return err
	}
	s.delist(p)
	if err := s.refresh(ctx); err != nil {
		s.enlist(p)
		return err
	}
	s.forgetCounters()
	return s.store.Remove(record.File("endpoint", name))
}
