package ovs

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

	"weir.dev/weir/ovsdb"
	"weir.dev/weir/ovsdb/ovsproc"
)

// Destroy removes all that the switch made: its ports, its bridge, its processes, its files. The ports' links are given back as they
// were. The switch is closed then.
func (s *Switch) Destroy(ctx context.Context) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	s.mu.Lock()
	if s.closed {
		s.mu.Unlock()
		return Destroy(ctx, s.opts)
	}
	s.closed = true
	s.mu.Unlock()
	s.halt()
	s.mu.Lock()
	defer func() {
		s.mu.Unlock()
		s.letGo()
	}()
	if err := s.demolish(ctx); err != nil {
		return fmt.Errorf("destroy ovs switch %s: %w", s.opts.Instance.Name, err)
	}
	return nil
}

// Destroy removes a switch that no process drives, whatever state a crash left it in. Nothing there: nil.
func Destroy(ctx context.Context, o Options) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	s, err := newSwitch(o)
	if err != nil {
		return fmt.Errorf("destroy ovs switch %s: %w", o.Instance.Name, err)
	}
	defer s.letGo()
	err = s.enterHome()
	if err == nil {
		if err := s.loadState(); err != nil {
			s.log.Warn("records of the switch are damaged", "error", err)
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
	dir := filepath.Dir(s.store.Dir)
	where := s.state.OVSDB
	if where == "" { // the record is lost, or there never was one
		where = s.opts.OVSDB
		if where == "" && inInitialNamespace() {
			where = HostDB
		}
	}
	// Ports of private processes are freed with them; in the host's Open vSwitch the bridge is taken away.
	private := ovsproc.At(ovsproc.Options{Dir: dir})
	if _, err := os.Stat(private.Socket()); err == nil || where == Private {
		try(private.Destroy(ctx))
		try(s.removeTaps())
	}
	if where != "" && where != Private {
		s.state.OVSDB, s.procs = where, nil
		try(s.removeBridge(ctx))
	}
	for _, p := range s.ports {
		if p.function != nil {
			continue
		}
		try(s.giveBack(p))
	}
	for _, fn := range s.fns {
		try(s.giveBackFunction(fn))
	}
	if len(errs) > 0 {
		return errors.Join(errs...) // the records stay, for another attempt
	}
	if err := os.RemoveAll(s.store.Dir); err != nil {
		return err
	}
	os.Remove(dir)                 // if nothing else is there
	os.Remove(s.opts.Instance.Run) // the same
	return nil
}

// removeTaps that an ovs-vswitchd of ours left when it was killed. One that a process holds is another Open vSwitch's.
func (s *Switch) removeTaps() error {
	for _, name := range []string{s.opts.Instance.Bridge(), userDatapath} {
		f, err := s.holdTap(name)
		if errors.Is(err, errNoTap) || errors.Is(err, unix.EBUSY) {
			continue
		}
		if err == nil {
			err = errors.Join(unix.IoctlSetInt(int(f.Fd()), unix.TUNSETPERSIST, 0), f.Close()) // it goes with its last holder
		}
		if err != nil {
			return fmt.Errorf("remove %s: %w", name, err)
		}
	}
	return nil
}

// removeBridge from the host's Open vSwitch, if it is this Weir's. One that runs no more has to be started to be rid of it.
func (s *Switch) removeBridge(ctx context.Context) error {
	if path := s.state.OVSDB[len("unix:"):]; s.state.Datapath == "" {
		if _, err := os.Stat(path); err != nil {
			return nil // no record of a bridge, and no Open vSwitch
		}
	}
	ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	have, err := s.row(ctx, "Bridge", s.opts.Instance.Bridge())
	if err != nil || !s.ours(have) {
		return err
	}
	_, err = s.change(ctx, ovsdb.Mutate{Table: "Open_vSwitch", Mutations: []ovsdb.Mutation{{Column: "bridges", Mutator: ovsdb.Take, Value: have.UUIDs("_uuid")}}})
	if err != nil {
		return fmt.Errorf("remove bridge %s: %w", s.opts.Instance.Bridge(), err)
	}
	return nil
}
