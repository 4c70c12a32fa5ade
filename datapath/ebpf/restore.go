package ebpf

import (
	"context"
	"errors"
	"fmt"

	"golang.org/x/sys/unix"

	"weir.dev/weir/bpf"
	"weir.dev/weir/datapath/internal/record"
	"weir.dev/weir/netns"
)

// restore finds out what is in force and goes on with it.
func (s *Switch) restore(ctx context.Context) error {
	// What the records say; of the maps no more than is needed for it.
	found, err := s.control.load()
	if err != nil {
		return err
	}
	if err := s.ports.load(s.home); err != nil {
		return err
	}
	if err := s.guards.restore(); err != nil {
		return err
	}
	if err := s.settlers.restore(); err != nil {
		return err
	}
	// The copy of the rules in force is the truth. Maps without a version are new.
	if found.Version == 0 {
		err = s.fill()
	} else {
		s.control.version = found.Version
		err = s.rules.readBack()
	}
	if err != nil {
		return err
	}
	if int(found.Owned) != s.control.owned {
		if err := s.control.write(); err != nil {
			return err
		}
	}
	// Programs come after the maps that they read.
	filled := func() error { return s.opts.at("filled") }
	for _, step := range []func() error{
		ctx.Err, filled, s.attachAll, s.stations.restore, s.onlookers.look, s.liveness.watch, s.upgrade.finish, s.sweep,
	} {
		if err := step(); err != nil {
			return err
		}
	}
	return nil
}

// fill makes fresh maps say what the files say, and what the maps said that they replace.
func (s *Switch) fill() error {
	var err error
	if s.control.version, err = s.rules.latest(); err != nil {
		return err
	}
	if err := s.upgrade.begin(); err != nil {
		return err
	}
	if err := s.rules.fill(); err != nil {
		return err
	}
	for _, fn := range s.ports.fns {
		if err := s.liveness.change(fn, func(v *bpf.SteerFunction) { v.OnFail = uint32(fn.F.OnFail) }); err != nil {
			return err
		}
	}
	return s.control.flip(s.control.version)
}

func (s *Switch) sweep() error {
	return s.tables.sweep(func(slot uint16) bool { return s.ports.bySlot[slot] != nil })
}

// attachAll makes sure of every program. What is attached already is looked at only.
func (s *Switch) attachAll() error {
	for _, p := range s.ports.bySlot {
		if !s.ports.there(p) {
			continue // the link is gone
		}
		if p.kind() == portEndpoint {
			if err := s.hooks.attachOuter(p, false); err != nil && !errors.Is(err, unix.ENODEV) { // the link went just now
				return fmt.Errorf("%s: %w", p.Name, err)
			}
		}
	}
	for _, fn := range s.ports.fns {
		if err := s.attachAgain(fn); err != nil {
			return fmt.Errorf("function/%s: %w", fn.F.Name, err)
		}
	}
	return nil
}

func (s *Switch) attachAgain(fn *function) error {
	inside := false
	for _, p := range fn.Ports {
		if !s.ports.there(p) {
			return nil // to be added again
		}
		if fn.F.Forwarder == "" {
			continue
		}
		at := s.hooks.inner(p)
		linked, err := at.linked()
		if err != nil {
			return err
		}
		inside = inside || !linked
	}
	if !inside {
		before := fn.qdiscs()
		for _, p := range fn.Ports {
			if err := s.hooks.attachOuter(p, false); err != nil {
				return err
			}
		}
		if before != fn.qdiscs() {
			return s.home.Store.Write(record.File("function", fn.F.Name), fn)
		}
		return nil
	}
	if !netns.Exists(fn.F.Netns) {
		return nil
	}
	space, err := netns.At(fn.F.Netns)
	if err != nil {
		return err
	}
	defer space.Close()
	return s.hooks.attachFunction(fn, space)
}
