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
	if e.Name == "" {
		return 0, errors.New("a name is needed")
	}
	l, err := s.linkByName(e.Link)
	if err != nil {
		return 0, err
	}
	attrs := l.Attrs()
	p := &port{Name: "endpoint/" + e.Name, Link: e.Link, Index: uint32(attrs.Index), Veth: peerElsewhere(l), WasUp: attrs.Flags&net.FlagUp != 0, E: e}
	if slot, taken := s.byIndex[p.Index]; taken && s.ports[slot].Name != p.Name {
		return 0, fmt.Errorf("interface %s is already the port %s", e.Link, s.ports[slot].Name)
	}
	if slot, known := s.byName[p.Name]; known {
		old := s.ports[slot]
		p.Slot = slot
		if old.Index == p.Index {
			p.WasUp, p.Clsact = old.WasUp, old.Clsact
			if old.E == e && old.Veth == p.Veth && attrs.MasterIndex == s.bridge && attrs.Flags&net.FlagUp != 0 {
				return flow.Port(p.Index), s.attachOuter(old, !s.own(l))
			}
		} else if err := s.releaseLink(old); err != nil { // the name has another link now
			return 0, err
		}
	} else if p.Slot, err = s.newSlot(); err != nil {
		return 0, err
	}
	if err := s.checkEndpoint(l); err != nil {
		return 0, err
	}
	if err := s.store.write(file("endpoint", e.Name), p); err != nil {
		return 0, err
	}
	if err := s.enlist(p); err != nil {
		return 0, err
	}
	if err := s.attachOuter(p, !s.own(l)); err != nil {
		return 0, err
	}
	if err := s.at("attached"); err != nil {
		return 0, err
	}
	if err := s.nl.LinkSetMasterByIndex(l, s.bridge); err != nil {
		return 0, fmt.Errorf("make %s a port of %s: %w", e.Link, s.opts.Instance.Bridge(), err)
	}
	if err := s.nl.LinkSetUp(l); err != nil {
		return 0, fmt.Errorf("set %s up: %w", e.Link, err)
	}
	return flow.Port(p.Index), nil
}

func (s *Switch) linkByName(name string) (netlink.Link, error) {
	if name == "" || len(name) > unix.IFNAMSIZ-1 {
		return nil, fmt.Errorf("interface name %q: want 1 to %d bytes", name, unix.IFNAMSIZ-1)
	}
	l, err := s.nl.LinkByName(name)
	var missing netlink.LinkNotFoundError
	if errors.As(err, &missing) {
		return nil, fmt.Errorf("interface %s in %s: %w", name, s.home, datapath.ErrNotFound)
	}
	if err != nil {
		return nil, fmt.Errorf("interface %s: %w", name, err)
	}
	return l, nil
}

// peerElsewhere: a veth whose other end is in another namespace, where redirect_peer can put frames.
func peerElsewhere(l netlink.Link) bool { return l.Type() == "veth" && l.Attrs().NetNsID >= 0 }

// checkEndpoint refuses links whose becoming a port of a bridge would break what they are used for.
func (s *Switch) checkEndpoint(l netlink.Link) error {
	attrs := l.Attrs()
	if attrs.Index == s.bridge {
		return fmt.Errorf("interface %s is this switch's bridge", attrs.Name)
	}
	if attrs.Flags&net.FlagLoopback != 0 || l.Type() == "bridge" {
		return fmt.Errorf("interface %s is a %s: want a NIC, a veth or a tap", attrs.Name, l.Type())
	}
	if attrs.MasterIndex != 0 && attrs.MasterIndex != s.bridge {
		master := fmt.Sprint(attrs.MasterIndex)
		if m, err := s.nl.LinkByIndex(attrs.MasterIndex); err == nil {
			master = m.Attrs().Name
		}
		return fmt.Errorf("interface %s belongs to %s: take it out there first (ip link set %s nomaster)", attrs.Name, master, attrs.Name)
	}
	var addresses []netlink.Addr
	err := retry(func() (err error) {
		addresses, err = s.nl.AddrList(l, netlink.FAMILY_ALL)
		return err
	})
	if err != nil {
		return fmt.Errorf("list addresses of %s: %w", attrs.Name, err)
	}
	for _, a := range addresses {
		if !a.IP.IsLinkLocalUnicast() {
			return fmt.Errorf("interface %s has the address %s, which would stop working: remove it first (ip addr del %s dev %s)", attrs.Name, a.IPNet, a.IPNet, attrs.Name)
		}
	}
	var routes []netlink.Route
	err = retry(func() (err error) {
		routes, err = s.nl.RouteListFiltered(netlink.FAMILY_ALL, &netlink.Route{LinkIndex: attrs.Index, Table: unix.RT_TABLE_MAIN}, netlink.RT_FILTER_OIF|netlink.RT_FILTER_TABLE)
		return err
	})
	if err != nil {
		return fmt.Errorf("list routes over %s: %w", attrs.Name, err)
	}
	for _, r := range routes {
		if r.Dst != nil && r.Dst.IP.IsLinkLocalUnicast() || r.Dst != nil && r.Dst.IP.IsMulticast() {
			continue
		}
		return fmt.Errorf("a route leads over interface %s (%s): remove it first", attrs.Name, strings.TrimSpace(r.String()))
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
		return s.store.write(file("endpoint", p.E.Name), p)
	}
	return nil
}

// later: a tcx link may take over from the port's filters when it is quiet.
func (s *Switch) later(slot uint16) {
	s.todo[slot] = true
	s.touched = time.Now()
}

// releaseLink gives an endpoint's link back as it was. A link that is gone needs nothing.
func (s *Switch) releaseLink(p *port) error {
	l, err := s.nl.LinkByIndex(int(p.Index))
	var missing netlink.LinkNotFoundError
	if errors.As(err, &missing) {
		for _, at := range s.outer(p) {
			if err := at.unlink(false); err != nil {
				return err
			}
		}
		return nil
	}
	if err != nil {
		return fmt.Errorf("interface %s: %w", p.Link, err)
	}
	if l.Attrs().MasterIndex == s.bridge {
		if err := s.nl.LinkSetNoMaster(l); err != nil && !gone(err) {
			return fmt.Errorf("take %s out of %s: %w", p.Link, s.opts.Instance.Bridge(), err)
		}
	}
	for _, at := range s.outer(p) {
		if err := at.detach(s.nl, !s.own(l)); err != nil {
			return err
		}
	}
	if !p.WasUp {
		if err := s.nl.LinkSetDown(l); err != nil && !gone(err) {
			return fmt.Errorf("set %s down: %w", p.Link, err)
		}
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
		return s.store.remove(file("endpoint", name))
	}
	p := s.ports[slot]
	if err := s.releaseLink(p); err != nil {
		return err
	}
	if err := s.delist(p); err != nil {
		return err
	}
	return s.store.remove(file("endpoint", name))
}
