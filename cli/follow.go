package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"weir.dev/weir/api"
	"weir.dev/weir/cli/command"
)

// again tells whether a watch that met an error goes on (nil): the daemon is there, or comes back in time.
func (a *app) again(ctx context.Context, err error, back func(context.Context) (bool, error)) error {
	if permanent(err) {
		return err
	}
	waited, gone := back(ctx)
	if gone != nil {
		return gone
	}
	if !waited && !errors.Is(err, api.ErrUnreachable) && ctx.Err() == nil {
		fmt.Fprintf(a.Stderr, "weir: %v; trying again\n", err)
	}
	return nil
}

// returns waits for a daemon that broke a connection, and says so, once for each time. The error: it stays away.
func (a *app) returns(c *api.Client, p *command.Progress) func(context.Context) (waited bool, err error) {
	return func(ctx context.Context) (bool, error) {
		err := c.Health(ctx)
		if !errors.Is(err, api.ErrUnreachable) {
			return false, nil
		}
		p.Clear()
		fmt.Fprintf(a.Stderr, "%s; waiting for it\n", command.Own(err.Error()))
		if err := c.Returns(ctx); err != nil {
			return true, err
		}
		if ctx.Err() == nil {
			fmt.Fprintln(a.Stderr, "weir: it is back")
		}
		return true, nil
	}
}

// follow waits for operations; each that fails is said, the first decides the exit code.
func (a *app) follow(ctx context.Context, c *api.Client, ops []api.Operation) error {
	p := a.Progress()
	defer p.Clear()
	var failed []error
	var forgotten []api.Change
	for i, op := range ops {
		p.Show("%d of %d done; waiting for %s of %s/%s", i, len(ops), op.Verb, op.Kind, op.Object)
		said := explain(ctx, c, p, op)
		done, err := c.Wait(ctx, op.Name)
		said()
		switch {
		case errors.Is(err, api.ErrNotFound) && op.Verb == "delete": // the manager keeps the newest operations only: the object itself tells
			forgotten = append(forgotten, api.Change{Action: "delete", Kind: op.Kind, Name: op.Object})
		case err != nil:
			failed = append(failed, fmt.Errorf("%s %s/%s: %w%s", op.Verb, op.Kind, op.Object, err, stuck(ctx, c, op)))
		case done.State == api.OpFailedTemp:
			failed = append(failed, fmt.Errorf("%s %s/%s: %s; it may still come to be%s", op.Verb, op.Kind, op.Object, done.Message, logsHint(op)))
		case done.State != api.OpCompleted:
			failed = append(failed, fmt.Errorf("%s %s/%s: %s: %s", op.Verb, op.Kind, op.Object, done.State, done.Message))
		}
		if ctx.Err() != nil || errors.Is(err, api.ErrUnreachable) {
			break
		}
	}
	if len(forgotten) > 0 && ctx.Err() == nil {
		failed = append(failed, a.waitFor(ctx, c, api.Document{}, forgotten))
	}
	return errors.Join(failed...)
}

// explain shows what holds up a function's start, as its status says it, until the returned function is called.
func explain(ctx context.Context, c *api.Client, p *command.Progress, op api.Operation) (end func()) {
	if op.Kind != api.KindFunction || op.Verb != "start" && op.Verb != "restart" {
		return func() {}
	}
	ctx, cancel := context.WithCancel(ctx)
	var wg sync.WaitGroup
	wg.Go(func() {
		tick := time.NewTicker(command.ShowEvery)
		defer tick.Stop()
		steps := c.Functions().Watch(ctx, 0, api.ListOptions{Name: op.Object})
		var now api.Function
		for {
			select {
			case <-tick.C:
				if what := "function/" + op.Object; now.Status.Message != "" && !now.Status.Healthy {
					p.Show("waiting for %s of %s: %s", op.Verb, what, now.Status.Message)
					p.Tell(what, now.Status.Message)
				}
			case d, ok := <-steps:
				if !ok {
					return
				}
				if d.Type == api.DeltaPut {
					now = d.Object
				} else if len(d.Items) > 0 {
					now = d.Items[0]
				}
			}
		}
	})
	return func() {
		cancel()
		wg.Wait()
	}
}

// stuck says what a function still is that was waited for in vain.
func stuck(ctx context.Context, c *api.Client, op api.Operation) string {
	if op.Kind != api.KindFunction || ctx.Err() == nil {
		return ""
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
	defer cancel()
	f, err := c.Functions().Get(ctx, op.Object)
	if err != nil {
		return ""
	}
	return fmt.Sprintf("\n  function/%s: %s%s", op.Object, api.Readiness{State: cmp.Or(string(f.Status.State), "pending"), Message: f.Status.Message}, logsHint(op))
}

func logsHint(op api.Operation) string {
	if op.Kind != api.KindFunction {
		return ""
	}
	return "\nlook at " + functionHint(op.Object)
}

// functionHint is where the reason may be why a function does not come up.
func functionHint(name string) string {
	return fmt.Sprintf("`weir function logs %s`, or run a program in it: `weir function exec %s -- PROGRAM`", name, name)
}

// followList shows what a watch tells from now on. Items of a reset go through it first, if there is something to choose.
func followList[T any](ctx context.Context, a *app, c *api.Client, watch <-chan api.Delta[T], show func([]T) error, reset func([]T) []T) error {
	back := a.returns(c, &command.Progress{})
	for d := range watch {
		list := d.Items
		switch d.Type {
		case api.DeltaError:
			if err := a.again(ctx, d.Err, back); err != nil {
				return err
			}
			continue
		case api.DeltaDelete: // the oldest make room
			continue
		case api.DeltaPut:
			list = []T{d.Object}
		case api.DeltaReset:
			list = reset(list)
		}
		if err := show(list); err != nil {
			return err
		}
	}
	return context.Cause(ctx)
}
