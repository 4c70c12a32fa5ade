package ebpf

import (
	"context"
	"errors"
	"fmt"
	"net"

	"weir.dev/weir/bpf"
	"weir.dev/weir/datapath"
	"weir.dev/weir/datapath/internal/hostlink"
	"weir.dev/weir/datapath/internal/probing"
	"weir.dev/weir/datapath/internal/record"
	"weir.dev/weir/flow"
	"weir.dev/weir/netns"
	"weir.dev/weir/portkind"
)

// Abilities are those of package hostlink, and to settle flows where the kernel can.
func (s *Switch) Abilities() datapath.Abilities {
	a := hostlink.Abilities()
	a.Settles = s.kernel.settles
	return a
}

// AddFunction makes a function's links ports.
func (s *Switch) AddFunction(ctx context.Context, f datapath.Function) (datapath.Ports, error) {
	leave, err := s.gate.Enter(ctx)
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
	var all []flow.Port
	for _, p := range f.Ports {
		all = append(all, p.number())
	}
	return f.F.Numbered(all...)
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
	// One that is known keeps the secret of its probes, and its slots and numbers.
	old := s.ports.fns[f.Name]
	fn, known := &function{turn: &probing.Turn{}}, (*datapath.Function)(nil)
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
	// The record comes before the ports, the function's state before them, and the programs, which read both, after them.
	if err := s.writeIntent(fn, moved); err != nil {
		return nil, err
	}
	if moved {
		err = s.liveness.add(fn)
	} else if old.F.OnFail != f.OnFail {
		err = s.liveness.change(fn, func(v *bpf.SteerFunction) { v.OnFail = uint32(f.OnFail) })
	}
	if err == nil {
		err = s.settlers.place(fn, old, moved)
	}
	if err != nil {
		return nil, err
	}
	s.ports.fns[f.Name] = fn
	if moved || old.F != f || old.settles != fn.settles {
		for _, p := range fn.Ports {
			if err := s.enlist(p); err != nil {
				return nil, err
			}
		}
	}
	if err := s.opts.at("enlisted"); err != nil {
		return nil, err
	}
	return fn, s.hooks.attachFunction(fn, space)
}

// findPorts makes ports of the function's links, and sets these up.
func (s *Switch) findPorts(f *datapath.Function, space *netns.Space) ([]*port, error) {
	sides, err := hostlink.Sides(s.home.NL, s.home.Space, space, f)
	if err != nil {
		return nil, err
	}
	var ports []*port
	for _, side := range sides {
		attrs := side.Link.Attrs()
		p := &port{Name: side.At.Of(f.Name), Link: attrs.Name, Index: uint32(attrs.Index), Veth: f.Kind != portkind.Tap,
			Inner: uint32(side.Inside.Index), Own: side.Inside.MAC, WasUp: attrs.Flags&net.FlagUp != 0}
		if err := s.ports.free(p); err != nil {
			return nil, err
		}
		ports = append(ports, p)
		if !p.WasUp {
			if err := s.home.NL.LinkSetUp(side.Link); err != nil {
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
		if fn.Slot, err = s.ports.newFunctionSlot(); err != nil {
			return false, err
		}
		used := s.rules.targets()
		for i, p := range fn.Ports {
			if p.Slot, err = s.ports.newSlot(used); err != nil {
				return false, err
			}
			if i > 0 && p.Slot == fn.Ports[0].Slot {
				return false, errors.New("no two ports are left")
			}
			p.Number = s.ports.newNumber(p)
		}
		return true, nil
	}
	fn.Slot = old.Slot
	for i, p := range fn.Ports {
		was := old.Ports[i]
		p.Slot, p.Number = was.Slot, uint32(was.number())
		if was.Index != p.Index || was.Inner != p.Inner || was.Own != p.Own || old.F.Netns != fn.F.Netns {
			moved = true
			if err := s.hooks.leaveLinks(was); err != nil {
				return false, err
			}
			continue
		}
		p.Clsact, p.InnerCl, p.WasUp = was.Clsact, was.InnerCl, was.WasUp
	}
	return moved, nil
}

// writeIntent writes a function's file before anything is made. It names the qdiscs that are about to be made, too, so that one write
// is enough.
func (s *Switch) writeIntent(fn *function, fresh bool) error {
	intent := *fn
	if fresh && s.tables.state.Hook != HookTCX {
		intent.Ports = nil
		for _, p := range fn.Ports {
			q := *p
			q.Clsact, q.InnerCl = true, fn.F.Forwarder != ""
			intent.Ports = append(intent.Ports, &q)
		}
	}
	fn.written = intent.qdiscs()
	return s.home.Store.Write(record.File("function", fn.F.Name), &intent)
}

// qdiscs that are ours, as the file is to tell.
func (f *function) qdiscs() (made [4]bool) {
	for i, p := range f.Ports {
		made[2*i], made[2*i+1] = p.Clsact, p.InnerCl
	}
	return made
}

func (s *Switch) removeFunction(name string) error {
	fn := s.ports.fns[name]
	if fn == nil {
		return s.home.Store.Remove(record.File("function", name))
	}
	s.hooks.waiting.touch()
	if err := s.liveness.remove(fn); err != nil {
		return err
	}
	if err := s.settlers.remove(fn); err != nil {
		return err
	}
	for _, p := range fn.Ports {
		if err := s.hooks.releasePort(p); err != nil {
			return err
		}
	}
	if err := s.hooks.releaseInner(fn); err != nil {
		return err
	}
	for _, p := range fn.Ports {
		if err := s.delist(p); err != nil {
			return err
		}
	}
	delete(s.ports.fns, name)
	return s.home.Store.Remove(record.File("function", name))
}
