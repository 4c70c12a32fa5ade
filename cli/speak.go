package cli

import (
	"context"
	"fmt"

	"github.com/spf13/cobra"

	"weir.dev/weir/api"
)

// speaks is a command that needs the API: f gets a client, which is closed afterwards.
func (a *app) speaks(f func(ctx context.Context, c *api.Client, args []string) error) func(*cobra.Command, []string) error {
	return func(cmd *cobra.Command, args []string) error {
		c, err := a.client()
		if err != nil {
			return err
		}
		defer c.Close()
		return f(cmd.Context(), c, args)
	}
}

// printList shows what a list command has asked for.
func printList[T any](a *app, list []T, head []string, row func(T) []string) error {
	if a.structured() {
		return a.encode(map[string]any{"items": list})
	}
	t := table{head: head}
	for _, x := range list {
		t.add(row(x)...)
	}
	return a.printTable(t)
}

// printDone says what has become of an object, in a table's output only.
func (a *app) printDone(kind, name, done string) error {
	if a.structured() {
		return nil
	}
	_, err := fmt.Fprintf(a.Stdout, "%s/%s %s\n", kind, name, done)
	return err
}

// followList shows what a watch tells from now on. Items of a reset go through it first, if there is something to choose.
func followList[T any](ctx context.Context, a *app, c *api.Client, watch <-chan api.Delta[T], show func([]T) error, reset func([]T) []T) error {
	back := a.returns(c, &progress{})
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
