package command

import (
	"context"
	"fmt"

	"github.com/spf13/cobra"

	"weir.dev/weir/api"
)

// Speaks is a command that needs the API: f gets a client, which is closed afterwards.
func (a *App) Speaks(f func(ctx context.Context, c *api.Client, args []string) error) func(*cobra.Command, []string) error {
	return func(cmd *cobra.Command, args []string) error {
		c, err := a.Client()
		if err != nil {
			return err
		}
		defer c.Close()
		return f(cmd.Context(), c, args)
	}
}

// PrintList shows what a list command has asked for.
func PrintList[T any](a *App, list []T, head []string, row func(T) []string) error {
	if a.Structured() {
		return a.Encode(map[string]any{"items": list})
	}
	t := Table{Head: head}
	for _, x := range list {
		t.Add(row(x)...)
	}
	return a.PrintTable(t)
}

// PrintDone says what has become of an object, in a table's output only.
func (a *App) PrintDone(kind, name, done string) error {
	if a.Structured() {
		return nil
	}
	_, err := fmt.Fprintf(a.Stdout, "%s/%s %s\n", kind, name, done)
	return err
}
