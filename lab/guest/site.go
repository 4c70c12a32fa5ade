package guest

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"weir.dev/weir/container/docker"
	"weir.dev/weir/instance"
	"weir.dev/weir/lab/platform"
)

// Site is where the guests of a run stand. Its methods are called from one goroutine.
type Site struct {
	o        platform.Options
	inst     instance.Instance
	runtimes map[string]*platform.Runtime // by driver; but for Docker's they stay open until Close
	engine   *platform.Engine
	daemon   *platform.Daemon
	guests   map[Spec]*Guest
	made     int  // guests until now
	lacks    bool // services, on this machine
}

const (
	suffix     = "-z"
	patience   = 2 * time.Minute
	weirChain  = 9 // functions of the Weir that a compute host runs
	guestImage = "guest"
)

func instanceOf(run string) (instance.Instance, error) { return instance.New(run+suffix, "") }

// Open makes what all guests of a run have in common.
func Open(ctx context.Context, o platform.Options) (*Site, error) {
	inst, err := instanceOf(o.Name)
	if err != nil {
		return nil, err
	}
	s := &Site{o: o, inst: inst, runtimes: map[string]*platform.Runtime{}, guests: map[Spec]*Guest{}}
	for _, dir := range []string{inst.NetnsDir(), inst.Root} {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return nil, err
		}
	}
	if err := makeRoot(ctx, s.root()); err != nil {
		return nil, errors.Join(err, s.Close())
	}
	return s, nil
}

func (s *Site) root() string { return filepath.Join(s.inst.Root, "root") }

// Corpus gives guests that are made from now on a corpus of so many MiB, and says where they have it.
func (s *Site) Corpus(mebibytes int) (path string, err error) {
	name, err := corpus(s.root(), mebibytes)
	return "/" + name, err
}

// Guest that a Spec describes; it is made once, until Clear.
func (s *Site) Guest(ctx context.Context, spec Spec) (*Guest, error) {
	if spec.Kind == DockerRun && s.engine != nil && !s.engine.Alive() {
		if err := s.dropDocker(ctx); err != nil {
			return nil, err
		}
	}
	if g, ok := s.guests[spec]; ok {
		return g, nil
	}
	g, err := s.Start(ctx, spec)
	if err == nil {
		s.guests[spec] = g
	}
	return g, err
}

// Start makes a guest of its own, which the caller closes.
func (s *Site) Start(ctx context.Context, spec Spec) (*Guest, error) {
	if spec.Kind != BareMetal {
		if err := s.services(ctx); err != nil {
			return nil, fmt.Errorf("services of a compute host: %w", err)
		}
	}
	s.made++
	g := &Guest{Spec: spec, site: s, id: "g" + strconv.Itoa(s.made)}
	if err := g.start(ctx); err != nil {
		clean, cancel := context.WithTimeout(context.WithoutCancel(ctx), patience)
		defer cancel()
		return nil, errors.Join(fmt.Errorf("guest on %s: %w", spec.Kind, err), g.remove(clean))
	}
	return g, nil
}

// services of a compute host: a Weir with a chain, where this machine can have one.
func (s *Site) services(ctx context.Context) error {
	if s.daemon != nil || s.lacks {
		return nil
	}
	if s.lacks = checkServices(s.o) != ""; s.lacks {
		return nil
	}
	d, err := platform.StartDaemon(ctx, s.o, false)
	if err != nil {
		return err
	}
	s.daemon = d
	if err := d.Apply(ctx, platform.Wires(weirChain)); err != nil {
		return err
	}
	return d.Pause(true)
}

// Begin a measurement on a kind. The services of a compute host stand still but for measurements of guests that have them beside them, until end: another
// site of the run may measure the bare host.
func (s *Site) Begin(kind string) (end func() error, err error) {
	if kind == BareMetal || s.daemon == nil {
		return func() error { return nil }, nil
	}
	return func() error { return s.daemon.Pause(true) }, s.daemon.Pause(false)
}

// servicesText says what runs beside guests of a kind.
func (s *Site) servicesText(kind string) string {
	switch {
	case kind == BareMetal:
		return "none"
	case s.daemon == nil:
		return "none: this machine cannot run a Weir"
	}
	return fmt.Sprintf("weir %s with a chain of %d", s.daemon.Version(), weirChain)
}

// runtime of a driver, once.
func (s *Site) runtime(ctx context.Context, name string) (*platform.Runtime, error) {
	if rt, ok := s.runtimes[name]; ok {
		return rt, nil
	}
	rt, err := platform.OpenRuntime(ctx, name, s.inst)
	if err == nil {
		s.runtimes[name] = rt
	}
	return rt, err
}

// closeRuntime of a driver, with the guests that it has.
func (s *Site) closeRuntime(ctx context.Context, name string) error {
	rt, ok := s.runtimes[name]
	if !ok {
		return nil
	}
	delete(s.runtimes, name)
	return rt.Close(ctx)
}

// startEngine gives an engine with the guests' root as an image.
func (s *Site) startEngine(ctx context.Context) (*platform.Engine, error) {
	if s.engine != nil {
		return s.engine, nil
	}
	e, err := platform.EmptyEngine(ctx, s.o)
	if err != nil {
		return nil, err
	}
	if err := e.Import(ctx, s.root(), guestImage, "corpus-*"); err != nil {
		return nil, errors.Join(err, e.Close())
	}
	s.engine = e
	return e, nil
}

// dropDocker ends the engine, and its guests with it; one that has died is forgotten by that.
func (s *Site) dropDocker(ctx context.Context) error {
	var errs []error
	if s.engine != nil {
		errs = append(errs, s.engine.Close())
		s.engine = nil
	}
	for spec, g := range s.guests {
		if spec.Kind == DockerRun {
			errs = append(errs, g.remove(ctx))
			delete(s.guests, spec)
		}
	}
	return errors.Join(errs...)
}

// Clear removes all guests. The services stay: they stand still.
func (s *Site) Clear() error {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	errs := []error{s.dropDocker(ctx)}
	for spec, g := range s.guests {
		errs = append(errs, g.remove(ctx))
		delete(s.guests, spec)
	}
	return errors.Join(append(errs, s.closeRuntime(ctx, docker.Name))...)
}

// Close removes everything.
func (s *Site) Close() error {
	err := s.Clear()
	if s.daemon != nil {
		err = errors.Join(err, s.daemon.Close())
		s.daemon = nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	for name := range s.runtimes {
		err = errors.Join(err, s.closeRuntime(ctx, name))
	}
	if err != nil { // the next run finds what is left
		return fmt.Errorf("remove guests: %w", err)
	}
	return platform.RemoveInstance(s.inst)
}

// Remove takes away what a run that was killed has left; its engine and its daemon are platform.Remove's. Nothing there: nil.
func Remove(ctx context.Context, run string) error {
	inst, err := instanceOf(run)
	if err != nil {
		return err
	}
	for _, dir := range []string{inst.Run, inst.Root} {
		if _, err := os.Lstat(dir); err == nil {
			return errors.Join(platform.RemoveContainers(ctx, inst), platform.RemoveInstance(inst))
		}
	}
	return nil
}
