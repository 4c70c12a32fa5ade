package ebpf

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
	"time"

	"github.com/vishvananda/netlink"

	"weir.dev/weir/bpf"
	"weir.dev/weir/datapath"
	"weir.dev/weir/datapath/internal/hostlink"
	"weir.dev/weir/datapath/internal/probing"
	"weir.dev/weir/datapath/internal/record"
	"weir.dev/weir/netns"
	"weir.dev/weir/portkind"
)

// Abilities: functions in network namespaces and in virtual machines, and for the first the forwarder of package bpf.
func (s *Switch) Abilities() datapath.Abilities {
	return datapath.Abilities{Ports: []portkind.Kind{portkind.Veth, portkind.Tap}, Forwarders: []string{datapath.Wire}}
}

// AddFunction makes a function's links ports.
func (s *Switch) AddFunction(ctx context.Context, f datapath.Function) (datapath.Ports, error) {
	leave, err := s.enter(ctx)
	if err != nil {
		return datapath.Ports{}, err
	}
	defer leave()
	fn, err := s.addFunction(f)
	if err != nil {
		return datapath.Ports{}, fmt.Errorf("add function %s: %w", f.Name, err)
	}
	return fn.numbers(), nil
}

func (f *function) numbers() datapath.Ports {
	if f.F.Tap != "" {
		return datapath.Ports{Tap: f.Ports[0].number()}
	}
	return datapath.Ports{In: f.Ports[0].number(), Out: f.Ports[1].number()}
}

func (s *Switch) addFunction(f datapath.Function) (*function, error) {
	if err := s.Abilities().Check(f); err != nil {
		return nil, err
	}
	space, err := netns.At(f.Netns)
	if err != nil {
		return nil, err
	}
	defer space.Close()
	old := s.fns[f.Name]
	fn, known := &function{turn: &sync.Mutex{}}, (*datapath.Function)(nil)
	if old != nil {
		fn.turn, known = old.turn, &old.F
	}
	if err := probing.Draw(&f, known); err != nil {
		return nil, err
	}
	fn.F = f
	if fn.Ports, err = s.findPorts(&f, space); err != nil {
		return nil, err
	}
	moved, err := s.giveSlots(fn, old)
	if err != nil {
		return nil, err
	}
	if err := s.writeIntent(fn, moved); err != nil {
		return nil, err
	}
	if moved { // Down until SetState
		v := bpf.SteerFunction{OnFail: uint32(f.OnFail), Used: 1}
		if err := s.maps.Functions.Put(uint32(fn.Slot), v); err != nil {
			return nil, fmt.Errorf("write function: %w", err)
		}
	} else if old.F.OnFail != f.OnFail {
		if err := s.changeFunction(fn, func(v *bpf.SteerFunction) { v.OnFail = uint32(f.OnFail) }); err != nil {
			return nil, err
		}
	}
	s.fns[f.Name] = fn
	if moved || old.F != f {
		for _, p := range fn.Ports {
			if err := s.enlist(p); err != nil {
				return nil, err
			}
		}
	}
	if err := s.at("enlisted"); err != nil {
		return nil, err
	}
	return fn, s.attachFunction(fn, space)
}

// findPorts makes ports of the function's links, and sets these up.
func (s *Switch) findPorts(f *datapath.Function, space *netns.Space) ([]*port, error) {
	sides, err := hostlink.Sides(s.nl, s.home, space, f)
	if err != nil {
		return nil, err
	}
	var ports []*port
	for _, side := range sides {
		attrs := side.Link.Attrs()
		p := &port{Name: side.At.Of(f.Name), Link: attrs.Name, Index: uint32(attrs.Index), Veth: f.Kind != portkind.Tap,
			Inner: uint32(side.Inside.Index), Own: side.Inside.MAC, WasUp: attrs.Flags&net.FlagUp != 0}
		if slot, taken := s.byIndex[p.Index]; taken && s.ports[slot].Name != p.Name {
			return nil, fmt.Errorf("interface %s is already the port %s", p.Link, s.ports[slot].Name)
		}
		ports = append(ports, p)
		if !p.WasUp {
			if err := s.nl.LinkSetUp(side.Link); err != nil {
				return nil, fmt.Errorf("set %s up: %w", p.Link, err)
			}
		}
	}
	return ports, nil
}

// giveSlots: the old ones to a function that is known. moved: its links are not those of before.
func (s *Switch) giveSlots(fn, old *function) (moved bool, err error) {
	if old != nil && len(old.Ports) != len(fn.Ports) { // inline before, a tap now
		if err := s.removeFunction(fn.F.Name); err != nil {
			return false, err
		}
		old = nil
	}
	if old == nil {
		if fn.Slot, err = s.newFunctionSlot(); err != nil {
			return false, err
		}
		for i, p := range fn.Ports {
			if p.Slot, err = s.newSlot(); err != nil {
				return false, err
			}
			if i > 0 && p.Slot == fn.Ports[0].Slot {
				return false, errors.New("no two ports are left")
			}
			p.Number = s.newNumber(p)
		}
		return true, nil
	}
	fn.Slot = old.Slot
	for i, p := range fn.Ports {
		was := old.Ports[i]
		p.Slot, p.Number = was.Slot, uint32(was.number())
		if was.Index != p.Index || was.Inner != p.Inner || was.Own != p.Own || old.F.Netns != fn.F.Netns {
			moved = true
			if err := s.leaveLinks(was); err != nil {
				return false, err
			}
			continue
		}
		p.Clsact, p.InnerCl, p.WasUp = was.Clsact, was.InnerCl, was.WasUp
	}
	return moved, nil
}

// leaveLinks lets go of the tcx links of a port that moves: an interface of the same index may be in its new namespace.
func (s *Switch) leaveLinks(p *port) error {
	for _, at := range append(s.outer(p), s.inner(p)) {
		if err := at.unlink(false); err != nil {
			return err
		}
	}
	return nil
}

func (s *Switch) newFunctionSlot() (uint16, error) {
	used := map[uint16]bool{0: true}
	for _, f := range s.fns {
		used[f.Slot] = true
	}
	for slot := uint16(1); int(slot) < s.opts.Ports; slot++ {
		if !used[slot] {
			return slot, nil
		}
	}
	return 0, fmt.Errorf("%w: the switch has %d functions: raise its Ports", datapath.ErrFull, s.opts.Ports-1)
}

// attachFunction puts the programs at a function's ports: outside, and inside for a forwarder of ours.
func (s *Switch) attachFunction(fn *function, space *netns.Space) error {
	before := fn.written
	for _, p := range fn.Ports {
		if err := s.attachOuter(p, false); err != nil {
			return err
		}
	}
	if err := s.attachInner(fn, space); err != nil {
		return err
	}
	if before != fn.qdiscs() {
		fn.written = fn.qdiscs()
		return s.store.Write(record.File("function", fn.F.Name), fn)
	}
	return nil
}

// writeIntent writes a function's file before anything is made. It names the qdiscs that are about to be made, too, so that one write
// is enough.
func (s *Switch) writeIntent(fn *function, fresh bool) error {
	intent := *fn
	if fresh && s.state.Hook != HookTCX {
		intent.Ports = nil
		for _, p := range fn.Ports {
			q := *p
			q.Clsact, q.InnerCl = true, fn.F.Forwarder != ""
			intent.Ports = append(intent.Ports, &q)
		}
	}
	fn.written = intent.qdiscs()
	return s.store.Write(record.File("function", fn.F.Name), &intent)
}

// qdiscs that are ours, as the file is to tell.
func (f *function) qdiscs() (made [4]bool) {
	for i, p := range f.Ports {
		made[2*i], made[2*i+1] = p.Clsact, p.InnerCl
	}
	return made
}

func (s *Switch) attachInner(fn *function, space *netns.Space) error {
	var nl *netlink.Handle
	for _, p := range fn.Ports {
		at := s.inner(p)
		if fn.F.Forwarder == "" {
			if err := at.unlink(false); err != nil { // it had one before
				return err
			}
			if !p.InnerCl {
				continue
			}
		}
		if nl == nil {
			var err error
			if nl, err = hostlink.Handle(space); err != nil {
				return err
			}
			defer nl.Close()
		}
		if fn.F.Forwarder == "" {
			if err := at.side().Detach(nl); err != nil {
				return err
			}
			continue
		}
		later, err := s.attach(space, nl, at, false)
		if err != nil {
			return fmt.Errorf("in %s: %w", space, err)
		}
		if later {
			s.later(p.Slot)
		}
	}
	return nil
}

func (s *Switch) removeFunction(name string) error {
	fn := s.fns[name]
	if fn == nil {
		return s.store.Remove(record.File("function", name))
	}
	s.touched = time.Now()
	if err := s.forgetProcess(fn); err != nil {
		return err
	}
	if err := s.maps.Functions.Put(uint32(fn.Slot), bpf.SteerFunction{}); err != nil {
		return fmt.Errorf("clear function: %w", err)
	}
	for _, p := range fn.Ports {
		if err := s.releasePort(p); err != nil {
			return err
		}
	}
	if err := s.releaseInner(fn); err != nil {
		return err
	}
	for _, p := range fn.Ports {
		if err := s.delist(p); err != nil {
			return err
		}
	}
	delete(s.fns, name)
	return s.store.Remove(record.File("function", name))
}

// releasePort takes the program off the switch's side of a function's port.
func (s *Switch) releasePort(p *port) error {
	for _, at := range s.outer(p) {
		if err := at.unlink(false); err != nil {
			return err
		}
	}
	l, err := hostlink.ByIndex(s.nl, int(p.Index), p.Link)
	if err != nil || l == nil {
		return err
	}
	for _, at := range s.outer(p) {
		if err := at.side().Detach(s.nl); err != nil {
			return err
		}
	}
	if !p.WasUp {
		return hostlink.SetDown(s.nl, l)
	}
	return nil
}

// releaseInner takes the forwarder away. A namespace that is gone took it along.
func (s *Switch) releaseInner(fn *function) error {
	left := false
	for _, p := range fn.Ports {
		at := s.inner(p)
		if err := at.unlink(false); err != nil {
			return err
		}
		left = left || p.InnerCl
	}
	if !left || !netns.Exists(fn.F.Netns) {
		return nil
	}
	return hostlink.In(fn.F.Netns, func(_ *netns.Space, nl *netlink.Handle) error {
		for _, p := range fn.Ports {
			at := s.inner(p)
			if err := at.side().Detach(nl); err != nil {
				return err
			}
		}
		return nil
	})
}
