// Package choice is a container.Runtime over several: each container is run by the runtime that its Spec names, or by the host's default.
//
// It owns DIR, one file for each container, which says whose it is. A file is written before a container is made, or moved, and removed after the
// container. Runtimes are opened when they are first wanted; the default one, and those that may have left containers, at once. Each takes over what
// runs when it is opened. If one cannot be opened then, its containers are taken to run until it can: nobody makes them a second time.
//
// Calls that make, move or remove one container take turns, as they do in each runtime. Nothing else waits for a runtime at work.
package choice

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"weir.dev/weir/container"
	"weir.dev/weir/portkind"
)

// openFor bounds opening a runtime. It takes over what runs.
const openFor = 2 * time.Minute

// aboutFor bounds what a runtime takes to tell about itself: some try whether they work.
const aboutFor = time.Minute

// Driver is one of the runtimes.
type Driver struct {
	Open  func(ctx context.Context) (container.Runtime, error) // may be an io.Closer
	About func(ctx context.Context) container.About
	// Left tells, without Open, whether there may be containers of the instance. nil: there may.
	Left func() bool
}

// Options of a Runtime.
type Options struct {
	Dir     string // where it writes down whose containers are; it is made. What is in it need not outlive a reboot
	Default string // the runtime of a Spec that names none
	Drivers map[string]Driver
	Again   time.Duration // after which a runtime that could not be opened is tried again; 0: at once
	Log     *slog.Logger  // takes warnings; nil: nobody does
}

// Runtime is a container.Runtime over several; see Open.
type Runtime struct {
	o     Options
	slots map[string]*slot

	mu  sync.Mutex
	ids map[string]*entry
}

var _ container.Runtime = (*Runtime)(nil)

// slot is one of the runtimes. The fields below Driver are guarded by Runtime.mu.
type slot struct {
	name string
	Driver
	rt      container.Runtime // nil: not open
	err     error             // why the last attempt to open it failed
	failed  time.Time         // when
	attempt chan struct{}     // closed when the attempt under way has ended; nil: there is none
	opened  chan struct{}     // closed when it is open
	answer  *answer           // to a question that is under way; nil: there is none
}

type answer struct {
	about container.About
	done  chan struct{}
}

// Open opens the default runtime, and those that may have containers of the instance. Of these only the default has to work.
func Open(ctx context.Context, o Options) (*Runtime, error) {
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	r := &Runtime{o: o, slots: map[string]*slot{}, ids: map[string]*entry{}}
	for name, d := range o.Drivers {
		r.slots[name] = &slot{name: name, Driver: d, opened: make(chan struct{})}
	}
	if r.slots[o.Default] == nil {
		return nil, r.unknown(o.Default)
	}
	if err := r.readRecords(); err != nil {
		return nil, err
	}
	if _, err := r.open(ctx, o.Default); err != nil {
		return nil, errors.Join(err, r.Close())
	}
	for _, name := range r.Names() {
		s := r.slots[name]
		if name == o.Default || !r.owes(name) && s.Left != nil && !s.Left() {
			continue
		}
		if _, err := r.open(ctx, name); err != nil {
			o.Log.Warn("container runtime that may have left containers", "runtime", name, "error", err)
		}
	}
	return r, nil
}

// Names of the runtimes, sorted.
func (r *Runtime) Names() []string { return slices.Sorted(maps.Keys(r.slots)) }

// Default is the runtime of a Spec that names none.
func (r *Runtime) Default() string { return r.o.Default }

func (r *Runtime) unknown(name string) error {
	return fmt.Errorf("container runtime %q: %w: this program has %s", name, container.ErrMissing, strings.Join(r.Names(), ", "))
}

// About tells what this host has of a runtime. An error says that it did not tell until ctx ended. Questions at the same time are one.
func (r *Runtime) About(ctx context.Context, name string) (container.About, error) {
	s := r.slots[name]
	if s == nil {
		return container.About{Name: name, Missing: "this version of Weir has no such runtime"}, nil
	}
	r.mu.Lock()
	a := s.answer
	if a == nil {
		a = &answer{done: make(chan struct{})}
		s.answer = a
		go func() {
			ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), aboutFor)
			defer cancel()
			about := s.About(ctx)
			about.Name = name
			r.mu.Lock()
			a.about, s.answer = about, nil
			r.mu.Unlock()
			close(a.done)
		}()
	}
	r.mu.Unlock()
	select {
	case <-a.done:
		return a.about, nil
	case <-ctx.Done():
		return container.About{Name: name}, fmt.Errorf("container runtime %s does not tell about itself: %w", name, context.Cause(ctx))
	}
}

// Note is what a runtime that is open has found out; see container.Noted.
func (r *Runtime) Note(name string) string {
	if r.slots[name] == nil {
		return ""
	}
	if rt, ok := r.ifOpen(name).(container.Noted); ok {
		return rt.Note()
	}
	return ""
}

// PortKinds are those of the default runtime; About has each one's.
func (r *Runtime) PortKinds() []portkind.Kind {
	if rt := r.ifOpen(r.o.Default); rt != nil {
		return rt.PortKinds()
	}
	return nil
}

func (r *Runtime) ifOpen(name string) container.Runtime {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.slots[name].rt
}

// open gives a runtime, opened if need be. Callers at the same time wait for one attempt.
func (r *Runtime) open(ctx context.Context, name string) (container.Runtime, error) {
	s := r.slots[name]
	if s == nil {
		return nil, r.unknown(name)
	}
	r.mu.Lock()
	if s.rt != nil {
		defer r.mu.Unlock()
		return s.rt, nil
	}
	attempt := s.attempt
	if attempt == nil && s.err != nil && time.Since(s.failed) < r.o.Again {
		defer r.mu.Unlock()
		return nil, s.err
	}
	if attempt == nil {
		attempt = make(chan struct{})
		s.attempt = attempt
		go r.try(context.WithoutCancel(ctx), s)
	}
	r.mu.Unlock()
	select {
	case <-attempt:
	case <-ctx.Done():
		return nil, fmt.Errorf("open container runtime %s: %w", name, context.Cause(ctx))
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if s.rt == nil {
		return nil, s.err
	}
	return s.rt, nil
}

// try is one attempt to open a runtime, with what it has taken over.
func (r *Runtime) try(ctx context.Context, s *slot) {
	ctx, cancel := context.WithTimeout(ctx, openFor)
	defer cancel()
	rt, err := s.Open(ctx)
	if err == nil {
		if err = r.takeOver(ctx, s, rt); err != nil {
			err = errors.Join(err, closed(rt))
		}
	} else if s.name != r.o.Default { // which is opened once, and speaks for itself
		err = r.explain(ctx, s.name, err)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	s.err, s.failed = err, time.Now()
	if err == nil {
		s.rt = rt
		close(s.opened)
	}
	close(s.attempt)
	s.attempt = nil
}

// explain names a runtime that cannot be opened and, if it knows, why.
func (r *Runtime) explain(ctx context.Context, name string, err error) error {
	if about, aerr := r.About(ctx, name); aerr == nil && about.Missing != "" {
		return fmt.Errorf("container runtime %s: %w: %s", name, container.ErrMissing, about.Missing)
	}
	return fmt.Errorf("container runtime %s: %w: %w", name, container.ErrMissing, err)
}

// takeOver makes out whose the containers are that a runtime has, and which of those that are written down as its own are gone. Of a container that
// two runtimes have, the one that is written down stays.
func (r *Runtime) takeOver(ctx context.Context, s *slot, rt container.Runtime) error {
	list, err := rt.List(ctx)
	if err != nil && list == nil {
		return fmt.Errorf("container runtime %s: %w", s.name, err)
	}
	has := map[string]bool{}
	for _, c := range list {
		has[c.ID] = true
		if err := r.inTurn(ctx, c.ID, func(e *entry) error { return r.adopt(ctx, e, c.ID, s.name, rt) }); err != nil {
			return err
		}
	}
	for _, id := range r.idsOf(s.name) {
		if has[id] {
			continue
		}
		if err := r.inTurn(ctx, id, func(e *entry) error { return r.lose(ctx, e, id, s.name) }); err != nil {
			return err
		}
	}
	return nil
}

// adopt takes a container in that a runtime has. Of a second one of the same id only what is written down stays.
func (r *Runtime) adopt(ctx context.Context, e *entry, id, name string, rt container.Runtime) error {
	owner := r.owner(e)
	if owner == "" {
		return r.note(e, id, name)
	}
	if owner == name {
		other, err := r.alsoIn(ctx, id, name)
		if err != nil || other == "" {
			return err
		}
		return r.remove(ctx, id, other, r.ifOpen(other), name)
	}
	other := r.ifOpen(owner)
	if other == nil { // nobody knows whether it has it; when it is opened, that is looked at again
		return nil
	}
	switch _, err := other.Status(ctx, id); {
	case errors.Is(err, container.ErrNotFound):
		return r.note(e, id, name)
	case err != nil:
		return err
	}
	return r.remove(ctx, id, name, rt, owner)
}

func (r *Runtime) remove(ctx context.Context, id, name string, rt container.Runtime, stays string) error {
	r.o.Log.Warn("container that two runtimes have", "container", id, "stays", stays, "removed", name)
	return rt.Delete(ctx, id)
}

// alsoIn finds another open runtime that has a container; "" none.
func (r *Runtime) alsoIn(ctx context.Context, id, not string) (string, error) {
	for _, other := range r.Names() {
		rt := r.ifOpen(other)
		if other == not || rt == nil {
			continue
		}
		if _, err := rt.Status(ctx, id); !errors.Is(err, container.ErrNotFound) {
			return other, err
		}
	}
	return "", nil
}

// lose forgets a container that a runtime has not. If another has it, it is that one's.
func (r *Runtime) lose(ctx context.Context, e *entry, id, name string) error {
	owner := r.owner(e)
	if owner != name {
		return nil
	}
	other, err := r.alsoIn(ctx, id, name)
	switch {
	case err != nil:
		return err
	case other != "":
		return r.note(e, id, other)
	}
	return r.forget(e, id)
}

// Close lets go of every container and leaves it as it is.
func (r *Runtime) Close() error {
	var errs []error
	for _, name := range r.Names() {
		errs = append(errs, closed(r.ifOpen(name)))
	}
	return errors.Join(errs...)
}

func closed(rt container.Runtime) error {
	if x, ok := rt.(io.Closer); ok {
		return x.Close()
	}
	return nil
}

// Destroy removes every container of every runtime that has some, or may have.
func (r *Runtime) Destroy(ctx context.Context) error {
	var errs []error
	for _, name := range r.Names() {
		s := r.slots[name]
		if r.ifOpen(name) == nil && !r.owes(name) && s.Left != nil && !s.Left() {
			continue
		}
		rt, err := r.open(ctx, name)
		if err == nil {
			err = rt.Destroy(ctx)
		}
		errs = append(errs, err)
	}
	if err := errors.Join(errs...); err != nil {
		return err
	}
	r.mu.Lock()
	for _, e := range r.ids {
		e.runtime = ""
	}
	r.mu.Unlock()
	if err := os.RemoveAll(r.o.Dir); err != nil {
		return fmt.Errorf("destroy containers: %w", err)
	}
	return nil
}

// List reports the containers of all runtimes. Those of a runtime that cannot be opened now, or does not answer, are taken to run.
func (r *Runtime) List(ctx context.Context) ([]container.Status, error) {
	var mu sync.Mutex
	var all []container.Status
	var failed error // of the default runtime
	var wg sync.WaitGroup
	for _, name := range r.Names() {
		rt := r.ifOpen(name)
		if rt == nil && !r.owes(name) {
			continue
		}
		if rt == nil { // another attempt, for which nobody waits
			go func() { _, _ = r.open(context.WithoutCancel(ctx), name) }()
		}
		wg.Go(func() {
			list, err := r.listOf(ctx, name, rt)
			mu.Lock()
			defer mu.Unlock()
			all = append(all, list...)
			if err != nil && name == r.o.Default {
				failed = err
			}
		})
	}
	wg.Wait()
	slices.SortFunc(all, func(a, b container.Status) int { return strings.Compare(a.ID, b.ID) })
	return all, failed
}

func (r *Runtime) listOf(ctx context.Context, name string, rt container.Runtime) ([]container.Status, error) {
	var list []container.Status
	var err error
	if rt != nil {
		if list, err = rt.List(ctx); err != nil {
			r.o.Log.Warn("list containers", "runtime", name, "error", err)
		}
	}
	list = slices.DeleteFunc(slices.Clone(list), func(c container.Status) bool { return cmp.Or(r.Of(c.ID), name) != name })
	if rt != nil && err == nil {
		return list, nil
	}
	for _, id := range r.idsOf(name) {
		if !slices.ContainsFunc(list, func(c container.Status) bool { return c.ID == id }) {
			list = append(list, container.Status{ID: id, State: container.Running, ExitCode: -1})
		}
	}
	return list, err
}
