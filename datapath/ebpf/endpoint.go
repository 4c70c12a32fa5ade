package ebpf

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"weir.dev/weir/datapath"
	"weir.dev/weir/datapath/internal/hostlink"
	"weir.dev/weir/datapath/internal/record"
	"weir.dev/weir/flow"
)

// AddEndpoint makes a link a port of the bridge, with the programs at both its sides.
func (s *Switch) AddEndpoint(ctx context.Context, e datapath.Endpoint) (flow.Port, error) {
	leave, err := s.enter(ctx)
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

func (s *Switch) addEndpoint(e datapath.Endpoint) (flow.Port, error) {
	if err := e.Check(); err != nil {
		return 0, err
	}
	// The link, which must not be another port already.
	l, err := hostlink.ByName(s.nl, s.home, e.Link)
	if err != nil {
		return 0, err
	}
	attrs := l.Attrs()
	p := &port{Name: "endpoint/" + e.Name, Link: e.Link, Index: uint32(attrs.Index), Veth: hostlink.PeerElsewhere(l), WasUp: attrs.Flags&net.FlagUp != 0, E: e}
	if slot, taken := s.byIndex[p.Index]; taken && s.ports[slot].Name != p.Name {
		return 0, fmt.Errorf("interface %s is already the port %s", e.Link, s.ports[slot].Name)
	}
	// An endpoint that is known keeps its slot and number. If nothing but its guard differs, that alone is changed.
	changed := false // into a port of another kind
	came := true     // the station
	var was flow.MAC
	if slot, known := s.byName[p.Name]; known {
		old := s.ports[slot]
		was = old.E.Peer
		changed = old.E.Isolated != e.Isolated
		came = old.Index != p.Index || was != e.Peer || old.E.Held
		p.Slot = slot
		if old.Index == p.Index {
			p.WasUp, p.Clsact, p.Number = old.WasUp, old.Clsact, old.Number
			e.Held = e.Held && attrs.MasterIndex != s.bridge
			p.E = e
			if old.E.EqualButGuard(e) && old.Veth == p.Veth && attrs.MasterIndex == s.bridge && attrs.Flags&net.FlagUp != 0 {
				if !old.E.Guard.Equal(e.Guard) {
					if err := s.changeGuard(old, e.Guard); err != nil {
						return 0, err
					}
					old = s.ports[old.Slot]
				}
				return p.number(), errors.Join(s.attachOuter(old, !s.own(l)), s.placeStation(e.Peer, false))
			}
		}
		if err := s.dropStation(was); err != nil {
			return 0, err
		}
		if old.Index != p.Index { // the name has another link now
			if err := s.releaseLink(old); err != nil {
				return 0, err
			}
		}
	} else if p.Slot, err = s.newSlot(); err != nil {
		return 0, err
	}
	// What is about to be done is on record before it is done.
	if err := hostlink.Check(s.nl, s.bridge, l); err != nil {
		return 0, err
	}
	if p.Number == 0 {
		p.Number = s.newNumber(p)
	}
	if err := s.store.Write(record.File("endpoint", e.Name), p); err != nil {
		return 0, err
	}
	if err := s.enlist(p); err != nil {
		return 0, err
	}
	// The programs come before the bridge: they see the first frame that it gets.
	if err := s.attachOuter(p, !s.own(l)); err != nil {
		return 0, err
	}
	if err := s.at("attached"); err != nil {
		return 0, err
	}
	if e.Held {
		return p.number(), s.placeStation(was, false)
	}
	if err := s.plug(l); err != nil {
		return 0, fmt.Errorf("make %s a port of %s: %w", e.Link, s.opts.Instance.Bridge(), err)
	}
	if err := s.isolate(l, e.Isolated, changed); err != nil {
		return 0, err
	}
	if err := s.nl.LinkSetUp(l); err != nil {
		return 0, fmt.Errorf("set %s up: %w", e.Link, err)
	}
	err = s.placeStation(e.Peer, came)
	if was != e.Peer { // it may be another port's alone now
		err = errors.Join(err, s.placeStation(was, false))
	}
	return p.number(), err
}

// plug makes a link a port of the bridge, and the bridge anew if someone has deleted it.
func (s *Switch) plug(l netlink.Link) error {
	err := s.nl.LinkSetMasterByIndex(l, s.bridge)
	if !errors.Is(err, unix.EINVAL) {
		return err
	}
	if _, gone := s.nl.LinkByIndex(s.bridge); !hostlink.Missing(gone) {
		return err
	}
	if err := s.openBridge(); err != nil {
		return err
	}
	return s.nl.LinkSetMasterByIndex(l, s.bridge)
}

// isolate sets or clears the flag of a bridge port (Linux 4.18).
func (s *Switch) isolate(l netlink.Link, on, changed bool) error {
	if !on && !changed { // a port begins without
		return nil
	}
	if err := s.nl.LinkSetIsolated(l, on); err != nil {
		if errors.Is(err, unix.EOPNOTSUPP) || errors.Is(err, unix.EINVAL) {
			err = unsupported("isolated bridge ports", "tunnels to several hosts", "Linux 4.18")
		}
		return fmt.Errorf("isolate %s from other isolated ports: %w", l.Attrs().Name, err)
	}
	return nil
}

// attachOuter puts the programs at the switch's side of a port.
func (s *Switch) attachOuter(p *port, busy bool) error {
	made := p.Clsact
	for _, at := range s.outer(p) {
		later, err := s.attach(s.home, s.nl, at, busy)
		if err != nil {
			return err
		}
		if later {
			s.later(p.Slot)
		}
	}
	if made != p.Clsact && p.kind() == portEndpoint {
		return s.store.Write(record.File("endpoint", p.E.Name), p)
	}
	return nil
}

// later: a tcx link may take over from the port's filters when it is quiet.
func (s *Switch) later(slot uint16) {
	s.todo[slot] = true
	s.touched = time.Now()
	select {
	case s.wake <- struct{}{}:
	default:
	}
}

// releaseLink gives an endpoint's link back as it was. A link that is gone needs nothing.
func (s *Switch) releaseLink(p *port) error {
	l, err := hostlink.ByIndex(s.nl, int(p.Index), p.Link)
	if err != nil {
		return err
	}
	if l == nil {
		for _, at := range s.outer(p) {
			if err := at.unlink(false); err != nil {
				return err
			}
		}
		return nil
	}
	if l.Attrs().MasterIndex == s.bridge {
		if err := s.nl.LinkSetNoMaster(l); err != nil && !hostlink.Gone(err) {
			return fmt.Errorf("take %s out of %s: %w", p.Link, s.opts.Instance.Bridge(), err)
		}
	}
	for _, at := range s.outer(p) {
		if err := at.detach(s.nl, !s.own(l)); err != nil {
			return err
		}
	}
	if !p.WasUp {
		return hostlink.SetDown(s.nl, l)
	}
	return nil
}

// Remove takes an endpoint or a function out of the switch.
func (s *Switch) Remove(ctx context.Context, object string) error {
	leave, err := s.enter(ctx)
	if err != nil {
		return err
	}
	defer leave()
	s.touched = time.Now()
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
	slot, known := s.byName["endpoint/"+name]
	if !known {
		return s.store.Remove(record.File("endpoint", name))
	}
	p := s.ports[slot]
	if err := s.dropStation(p.E.Peer); err != nil {
		return err
	}
	if err := s.releaseLink(p); err != nil {
		return err
	}
	if err := s.delist(p); err != nil {
		return err
	}
	if err := s.placeStation(p.E.Peer, false); err != nil {
		return err
	}
	return s.store.Remove(record.File("endpoint", name))
}
