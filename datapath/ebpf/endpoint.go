package ebpf

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strings"

	"github.com/vishvananda/netlink"

	"weir.dev/weir/datapath"
	"weir.dev/weir/datapath/internal/hostlink"
	"weir.dev/weir/datapath/internal/record"
	"weir.dev/weir/flow"
)

// AddEndpoint makes a link a port of the bridge, with the programs at both its sides.
func (s *Switch) AddEndpoint(ctx context.Context, e datapath.Endpoint) (flow.Port, error) {
	leave, err := s.gate.Enter(ctx)
	if err != nil {
		return 0, err
	}
	defer leave()
	p, err := s.addEndpoint(e)
	if err != nil {
		return 0, fmt.Errorf("add endpoint %s: %w", e.Name, err)
	}
	return p, nil
}

// addition is what adding an endpoint changes beside the port.
type addition struct {
	kind    bool     // the port is of another kind now: isolated, or no more
	station bool     // came just now
	was     flow.MAC // of the port's former station
}

func (s *Switch) addEndpoint(e datapath.Endpoint) (flow.Port, error) {
	if err := e.Check(); err != nil {
		return 0, err
	}
	// The link, which must not be another port already.
	l, err := hostlink.ByName(s.home.NL, s.home.Space, e.Link)
	if err != nil {
		return 0, err
	}
	attrs := l.Attrs()
	p := &port{Name: "endpoint/" + e.Name, Link: e.Link, Index: uint32(attrs.Index), Veth: hostlink.PeerElsewhere(l), WasUp: attrs.Flags&net.FlagUp != 0, E: e}
	if err := s.ports.free(p); err != nil {
		return 0, err
	}
	// An endpoint that is known keeps its slot and number. If nothing but its guard differs, that alone is changed.
	adds := addition{station: true}
	if old := s.ports.named(p.Name); old != nil {
		adds = addition{kind: old.E.Isolated != e.Isolated, station: old.Index != p.Index || old.E.Peer != e.Peer || old.E.Held, was: old.E.Peer}
		p.Slot = old.Slot
		if old.Index == p.Index {
			p.WasUp, p.Clsact, p.Number = old.WasUp, old.Clsact, old.Number
			p.E.Held = e.Held && attrs.MasterIndex != s.bridge.index
			if old.E.EqualButGuard(p.E) && old.Veth == p.Veth && attrs.MasterIndex == s.bridge.index && attrs.Flags&net.FlagUp != 0 {
				return p.number(), s.keepEndpoint(old, p.E, l)
			}
		}
		if err := s.leaveEndpoint(old, p); err != nil {
			return 0, err
		}
	} else if p.Slot, err = s.ports.newSlot(s.rules.targets()); err != nil {
		return 0, err
	}
	if err := s.makeEndpoint(p, l); err != nil {
		return 0, err
	}
	if p.E.Held {
		return p.number(), s.stations.place(adds.was, false)
	}
	return p.number(), s.plugEndpoint(p, l, adds)
}

// keepEndpoint is for one that is a port already, as it should be, its guard apart.
func (s *Switch) keepEndpoint(p *port, e datapath.Endpoint, l netlink.Link) error {
	if !p.E.Guard.Equal(e.Guard) {
		if err := s.changeGuard(p, e.Guard); err != nil {
			return err
		}
		p = s.ports.bySlot[p.Slot]
	}
	return errors.Join(s.hooks.attachOuter(p, !s.home.Made(l)), s.stations.place(e.Peer, false))
}

// leaveEndpoint before next takes its place: with the same link, or another.
func (s *Switch) leaveEndpoint(old, next *port) error {
	if err := s.stations.drop(old.E.Peer); err != nil {
		return err
	}
	if old.Index == next.Index {
		return nil
	}
	return s.hooks.releaseLink(old)
}

// makeEndpoint makes a link a port of the switch that is none of the bridge yet, or no more than it was.
func (s *Switch) makeEndpoint(p *port, l netlink.Link) error {
	if err := hostlink.Check(s.home.NL, s.bridge.index, l); err != nil {
		return err
	}
	if p.Number == 0 {
		p.Number = s.ports.newNumber(p)
	}
	// What is about to be done is on record before it is done.
	if err := s.home.Store.Write(record.File("endpoint", p.E.Name), p); err != nil {
		return err
	}
	if err := s.enlist(p); err != nil {
		return err
	}
	// The programs come before the bridge: they see the first frame that it gets.
	if err := s.hooks.attachOuter(p, !s.home.Made(l)); err != nil {
		return err
	}
	return s.opts.at("attached")
}

// plugEndpoint makes the link a port of the bridge.
func (s *Switch) plugEndpoint(p *port, l netlink.Link, adds addition) error {
	if err := s.bridge.plug(l); err != nil {
		return fmt.Errorf("make %s a port of %s: %w", p.Link, s.home.Instance.Bridge(), err)
	}
	if err := s.bridge.isolate(l, p.E.Isolated, adds.kind); err != nil {
		return err
	}
	if err := s.home.NL.LinkSetUp(l); err != nil {
		return fmt.Errorf("set %s up: %w", p.Link, err)
	}
	err := s.stations.place(p.E.Peer, adds.station)
	if adds.was != p.E.Peer { // it may be another port's alone now
		err = errors.Join(err, s.stations.place(adds.was, false))
	}
	return err
}

// changeGuard exchanges the guard of a port and nothing else.
func (s *Switch) changeGuard(p *port, g flow.Guard) error {
	next := *p
	next.E.Guard = g
	if err := s.home.Store.Write(record.File("endpoint", p.E.Name), &next); err != nil {
		return err
	}
	return s.enlist(&next)
}

// enlist makes a port known to the programs; its record is on disk already.
func (s *Switch) enlist(p *port) error {
	if err := s.ports.note(p); err != nil {
		return err
	}
	st, fresh := s.rules.give(p)
	if fresh {
		if err := s.counters.clear(p.Slot); err != nil {
			return err
		}
	}
	if err := s.guards.put(p); err != nil {
		return err
	}
	if err := s.rules.writeSlot(p.Slot, st, st); err != nil {
		return err
	}
	if p.kind() == portEndpoint && !p.E.Guard.On {
		if err := s.guards.drop(p.Slot); err != nil {
			return err
		}
	}
	return s.ports.setIndex(p.Index, p.Slot)
}

// delist is the reverse.
func (s *Switch) delist(p *port) error {
	if err := s.ports.forget(p); err != nil {
		return err
	}
	delete(s.hooks.waiting.slots, p.Slot)
	if err := s.rules.take(p.Slot); err != nil {
		return err
	}
	if err := s.guards.drop(p.Slot); err != nil {
		return err
	}
	if err := s.rules.stopDrains(p.Slot); err != nil {
		return err
	}
	if err := s.counters.forget(p.Name); err != nil {
		return err
	}
	return s.tables.maps.unlearn(p.Slot)
}

// Remove takes an endpoint or a function out of the switch.
func (s *Switch) Remove(ctx context.Context, object string) error {
	leave, err := s.gate.Enter(ctx)
	if err != nil {
		return err
	}
	defer leave()
	s.hooks.waiting.touch()
	kind, name, _ := strings.Cut(object, "/")
	switch kind {
	case "endpoint":
		err = s.removeEndpoint(name)
	case "function":
		err = s.removeFunction(name)
	default:
		err = fmt.Errorf("want endpoint/NAME or function/NAME")
	}
	if err != nil {
		return fmt.Errorf("remove %s: %w", object, err)
	}
	return nil
}

func (s *Switch) removeEndpoint(name string) error {
	p := s.ports.named("endpoint/" + name)
	if p == nil {
		return s.home.Store.Remove(record.File("endpoint", name))
	}
	if err := s.stations.drop(p.E.Peer); err != nil {
		return err
	}
	if err := s.hooks.releaseLink(p); err != nil {
		return err
	}
	if err := s.delist(p); err != nil {
		return err
	}
	if err := s.stations.place(p.E.Peer, false); err != nil {
		return err
	}
	return s.home.Store.Remove(record.File("endpoint", name))
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
	if slot, taken := s.ports.byIndex[uint32(l.Attrs().Index)]; taken {
		if p := s.ports.bySlot[slot]; s.home.Made(l) && p.Name != "endpoint/"+e.Name {
			return fmt.Errorf("interface %s is already the port %s", e.Link, p.Name)
		}
		return nil
	}
	return hostlink.Check(s.home.NL, s.bridge.index, l)
}
