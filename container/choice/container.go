package choice

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"weir.dev/weir/container"
)

// Create prepares a container in the runtime that its Spec names.
func (r *Runtime) Create(ctx context.Context, s container.Spec) error {
	return r.provide(ctx, s, container.Runtime.Create)
}

// Run is Create and Start in one.
func (r *Runtime) Run(ctx context.Context, s container.Spec) error {
	return r.provide(ctx, s, container.Runtime.Run)
}

type maker = func(rt container.Runtime, ctx context.Context, s container.Spec) error

// plan is how a container comes to be.
type plan struct {
	name   string // of the runtime
	rt     container.Runtime
	former string            // whose it is now; "" nobody's
	had    container.Runtime // the former one, if it has to remove it
}

// provide opens what it takes before the container's turn, since a runtime that is opened takes turns itself; if meanwhile the container has become
// another's, all over again.
func (r *Runtime) provide(ctx context.Context, s container.Spec, how maker) error {
	for {
		p, err := r.plan(ctx, s)
		if err != nil {
			return err
		}
		again := false
		err = r.inTurn(ctx, s.ID, func(e *entry) error {
			if r.owner(e) != p.former {
				again = true
				return nil
			}
			return r.makeIn(ctx, e, s, p, how)
		})
		if !again {
			return err
		}
	}
}

func (r *Runtime) plan(ctx context.Context, s container.Spec) (p plan, err error) {
	p = plan{name: cmp.Or(s.Runtime, r.o.Default), former: r.Of(s.ID)}
	if r.slots[p.name] == nil {
		return p, fmt.Errorf("container %s: %w", s.ID, r.unknown(p.name))
	}
	if p.former != "" && p.former != p.name {
		if p.had, err = r.open(ctx, p.former); err != nil {
			return p, fmt.Errorf("container %s may still be there: %w", s.ID, err)
		}
		alive, err := lives(ctx, p.had, s.ID)
		switch {
		case err != nil:
			return p, err
		case alive && s.Runtime == "": // it was made when another runtime was the default: it is left as it is
			p.name, p.had = p.former, nil
		case alive:
			return p, fmt.Errorf("container %s: %w: it runs in the runtime %s; delete it first", s.ID, container.ErrState, p.former)
		}
	}
	if p.rt, err = r.open(ctx, p.name); err != nil {
		return p, fmt.Errorf("container %s: %w", s.ID, err)
	}
	return p, nil
}

func lives(ctx context.Context, rt container.Runtime, id string) (bool, error) {
	c, err := rt.Status(ctx, id)
	if errors.Is(err, container.ErrNotFound) {
		return false, nil
	}
	return c.State == container.Created || c.State == container.Running, err
}

// makeIn makes a container in a runtime. Another one's, had, which has ended, is removed first: names of what a container has are the same in all
// runtimes. In the record it is the new runtime's before; if a crash comes between, it is taken for the former one's again, as that still has it.
func (r *Runtime) makeIn(ctx context.Context, e *entry, s container.Spec, p plan, how maker) error {
	if err := r.note(e, s.ID, p.name); err != nil {
		return err
	}
	if p.had != nil {
		if err := p.had.Delete(ctx, s.ID); err != nil {
			return errors.Join(err, r.note(e, s.ID, p.former))
		}
	}
	err := how(p.rt, ctx, s)
	if err == nil {
		return nil
	}
	if _, serr := p.rt.Status(context.WithoutCancel(ctx), s.ID); errors.Is(serr, container.ErrNotFound) {
		return errors.Join(err, r.forget(e, s.ID))
	}
	return err
}

// of gives the runtime that has a container, opened.
func (r *Runtime) of(ctx context.Context, id string) (container.Runtime, error) {
	name := r.Of(id)
	if name == "" {
		return nil, fmt.Errorf("container %s: %w", id, container.ErrNotFound)
	}
	rt, err := r.open(ctx, name)
	if err != nil {
		return nil, fmt.Errorf("container %s: %w", id, err)
	}
	return rt, nil
}

// Start lets a created container run; a stopped one is made anew, in the runtime that has it.
func (r *Runtime) Start(ctx context.Context, id string) error {
	rt, err := r.of(ctx, id)
	if err != nil {
		return err
	}
	return rt.Start(ctx, id)
}

// Stop sends SIGTERM, then SIGKILL after grace.
func (r *Runtime) Stop(ctx context.Context, id string, grace time.Duration) error {
	rt, err := r.of(ctx, id)
	if errors.Is(err, container.ErrNotFound) {
		return nil
	}
	if err != nil {
		return err
	}
	return rt.Stop(ctx, id, grace)
}

// Delete removes a container, wherever it is. Of one that nobody knows, each runtime that is open removes what a crash may have left.
func (r *Runtime) Delete(ctx context.Context, id string) error {
	for {
		name := r.Of(id)
		rts, err := r.holders(ctx, name)
		if err != nil {
			return fmt.Errorf("container %s: %w", id, err)
		}
		again := false
		err = r.inTurn(ctx, id, func(e *entry) error {
			if r.owner(e) != name {
				again = true
				return nil
			}
			var errs []error
			for _, rt := range rts {
				errs = append(errs, rt.Delete(ctx, id))
			}
			if err := errors.Join(errs...); err != nil {
				return err
			}
			return r.forget(e, id)
		})
		if !again {
			return err
		}
	}
}

// holders are a runtime, or if it has no name all that are open.
func (r *Runtime) holders(ctx context.Context, name string) (rts []container.Runtime, err error) {
	if name != "" {
		rt, err := r.open(ctx, name)
		return []container.Runtime{rt}, err
	}
	for _, other := range r.Names() {
		if rt := r.ifOpen(other); rt != nil {
			rts = append(rts, rt)
		}
	}
	return rts, nil
}

// Status reports one container.
func (r *Runtime) Status(ctx context.Context, id string) (container.Status, error) {
	rt, err := r.of(ctx, id)
	if err != nil {
		return container.Status{}, err
	}
	return rt.Status(ctx, id)
}

// Wait blocks until the container's first process has ended. If its runtime cannot be opened, nobody can tell before it can.
func (r *Runtime) Wait(ctx context.Context, id string) (container.Status, error) {
	name := r.Of(id)
	if name == "" {
		return container.Status{}, fmt.Errorf("container %s: %w", id, container.ErrNotFound)
	}
	select {
	case <-r.slots[name].opened:
	case <-ctx.Done():
		return container.Status{ID: id}, fmt.Errorf("wait for container %s: %w", id, ctx.Err())
	}
	return r.ifOpen(name).Wait(ctx, id)
}

// Exec runs one more process in a container.
func (r *Runtime) Exec(ctx context.Context, id string, e container.ExecSpec) (int, error) {
	rt, err := r.of(ctx, id)
	if err != nil {
		return -1, err
	}
	return rt.Exec(ctx, id, e)
}

// Logs streams a container's output.
func (r *Runtime) Logs(ctx context.Context, id string, o container.LogOptions) (io.ReadCloser, error) {
	rt, err := r.of(ctx, id)
	if err != nil {
		return nil, err
	}
	return rt.Logs(ctx, id, o)
}
