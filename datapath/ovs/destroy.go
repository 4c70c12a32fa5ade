package ovs

import (
	"context"
	"errors"
	"fmt"
	"os"

	"weir.dev/weir/ovsdb/ovsproc"
)

// Destroy removes all that the switch made: its ports, its bridge, its processes, its files. The ports' links are given back as they
// were. The switch is closed then.
func (s *Switch) Destroy(ctx context.Context) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	if !s.gate.Shut() {
		return Destroy(ctx, *s.opts)
	}
	s.halt()
	s.gate.Lock()
	defer func() {
		s.gate.Unlock()
		s.letGo()
	}()
	if err := s.demolish(ctx); err != nil {
		return fmt.Errorf("destroy ovs switch %s: %w", s.home.Instance.Name, err)
	}
	return nil
}

// Destroy removes a switch that no process drives, whatever state a crash left it in. Nothing there: nil.
func Destroy(ctx context.Context, o Options) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	if err := o.defaults(); err != nil {
		return fmt.Errorf("destroy ovs switch %s: %w", o.Instance.Name, err)
	}
	s := newSwitch(&o)
	defer s.letGo()
	err := s.home.Open()
	if err == nil {
		if err := s.load(); err != nil {
			s.home.Log.Warn("records of the switch are damaged", "error", err)
		}
		err = s.demolish(ctx)
	}
	if err != nil {
		return fmt.Errorf("destroy ovs switch %s: %w", o.Instance.Name, err)
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
	where := s.state.OVSDB
	if where == "" { // the record is lost, or there never was one
		where = s.opts.OVSDB
		if where == "" && inInitialNamespace() {
			where = HostDB
		}
	}
	// Ports of private processes are freed with them; in the host's Open vSwitch the bridge is taken away.
	dir := s.processes.dir()
	private := ovsproc.At(ovsproc.Options{Dir: dir})
	if _, err := os.Stat(private.Socket()); err == nil || where == Private {
		try(private.Destroy(ctx))
		try(s.processes.removeTaps())
	}
	if where != "" && where != Private {
		s.state.OVSDB, s.processes.own = where, nil
		try(s.bridge.remove(ctx))
	}
	// Links are given back when they are no ports any more.
	for _, p := range s.ports.all {
		if p.function != nil {
			continue
		}
		try(s.hooks.giveBack(p))
	}
	for _, fn := range s.ports.fns {
		try(s.hooks.giveBackFunction(fn))
	}
	if len(errs) > 0 {
		return errors.Join(errs...) // the records stay, for another attempt
	}
	if err := os.RemoveAll(s.home.Store.Dir); err != nil {
		return err
	}
	os.Remove(dir)                 // if nothing else is there
	os.Remove(s.home.Instance.Run) // the same
	return nil
}
