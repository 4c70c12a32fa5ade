package ebpf

import (
	"context"
	"errors"
	"fmt"
	"os"

	"weir.dev/weir/datapath/internal/hostlink"
)

// Destroy removes all that the switch made: programs, pins, the bpffs, the bridge, its files. The ports' links are given back as
// they were. The switch is closed then.
func (s *Switch) Destroy(ctx context.Context) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	if !s.gate.Shut() {
		return Destroy(ctx, *s.opts)
	}
	s.halt()
	s.gate.Lock()
	defer s.gate.Unlock()
	defer s.letGo()
	s.tables.close()
	if err := s.demolish(ctx); err != nil {
		return fmt.Errorf("destroy ebpf switch %s: %w", s.home.Instance.Name, err)
	}
	return nil
}

// Destroy removes a switch that no process drives, whatever state a crash left it in. Nothing there: nil.
func Destroy(ctx context.Context, o Options) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	if err := o.defaults(); err != nil {
		return err
	}
	s := newSwitch(&o)
	defer s.letGo()
	err := s.home.Open()
	if err == nil {
		err = s.demolish(ctx)
	}
	if err != nil {
		return fmt.Errorf("destroy ebpf switch %s: %w", o.Instance.Name, err)
	}
	return nil
}

// demolish goes on after errors: what can be removed is.
func (s *Switch) demolish(ctx context.Context) error {
	var errs []error
	try := func(err error) {
		if err != nil {
			errs = append(errs, err)
		}
	}
	// The bridge, if it is ours: links are taken out of no other.
	bridge, err := s.home.NL.LinkByName(s.home.Instance.Bridge())
	if err != nil && !hostlink.Missing(err) {
		try(fmt.Errorf("bridge: %w", err))
	}
	ours := err == nil && bridge.Attrs().Alias == s.home.Instance.Alias("bridge")
	s.bridge.index = -1
	if ours {
		s.bridge.index = bridge.Attrs().Index
	}
	// Ports' links are given back before the pins go, which tell what is attached.
	if len(s.ports.bySlot)+len(s.ports.fns) == 0 {
		try(s.loadLeft())
	}
	for _, p := range s.ports.bySlot {
		if p.kind() == portEndpoint {
			try(s.hooks.releaseLink(p))
		} else {
			try(s.hooks.releasePort(p))
		}
	}
	for _, fn := range s.ports.fns {
		try(s.hooks.releaseInner(fn))
	}
	try(s.tables.unpin())
	try(s.accepting.remove(ctx))
	if ours {
		if err := s.home.NL.LinkDel(bridge); err != nil && !hostlink.Gone(err) {
			try(fmt.Errorf("remove bridge: %w", err))
		}
	}
	if len(errs) > 0 {
		return errors.Join(errs...) // the records stay, for another attempt
	}
	if err := os.RemoveAll(s.home.Store.Dir); err != nil {
		return err
	}
	os.Remove(s.home.Instance.Run) // if nothing else is there
	return nil
}

// loadLeft reads what records there are; one that cannot be read is left out, the pins tell enough.
func (s *Switch) loadLeft() error {
	o := s.opts.Ports
	s.opts.Ports = maxSlots
	defer func() { s.opts.Ports = o }()
	if err := s.ports.load(s.home); err != nil {
		s.home.Log.Warn("records of the switch are damaged", "error", err)
	}
	for name, fn := range s.ports.fns {
		if fn.F.Check() != nil || len(fn.Ports) == 0 {
			delete(s.ports.fns, name)
		}
	}
	return nil
}
