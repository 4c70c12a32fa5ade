package cli

import (
	"context"
	"errors"
	"fmt"

	"github.com/spf13/cobra"

	"weir.dev/weir/api"
)

func (a *app) hostCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:     "host",
		Aliases: []string{"hosts"},
		Short:   "Say whether hosts take new functions",
		Example: `  weir host close h1
  weir host open h1`,
		Args: cobra.ArbitraryArgs,
		RunE: group,
	}
	cmd.AddCommand(
		a.hostVerb("close", "Place nothing new on hosts; what runs there stays", map[string]any{"unschedulable": true}),
		a.hostVerb("open", "Let hosts take new functions again", map[string]any{"unschedulable": nil}))
	return cmd
}

func (a *app) hostVerb(verb, short string, patch map[string]any) *cobra.Command {
	return &cobra.Command{
		Use:     verb + " NAME...",
		Short:   short,
		Example: fmt.Sprintf("  weir host %s h1\n  weir host %s h1 h2 -o json", verb, verb),
		Args:    wantArgs(1, -1, "at least one host"),
		ValidArgsFunction: func(cmd *cobra.Command, _ []string, _ string) ([]string, cobra.ShellCompDirective) {
			return a.completeNames(cmd, hosts(nil)), cobra.ShellCompDirectiveNoFileComp
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := a.client()
			if err != nil {
				return err
			}
			defer c.Close()
			var failed []error
			for _, name := range args {
				failed = append(failed, a.patchHost(cmd.Context(), c, name, patch))
			}
			return errors.Join(failed...)
		},
	}
}

func (a *app) patchHost(ctx context.Context, c *api.Client, name string, patch map[string]any) error {
	h, err := c.Hosts().Patch(ctx, name, patch)
	if err != nil {
		return err
	}
	if a.structured() {
		return a.encodeItem(h)
	}
	if h.Spec.Unschedulable {
		fmt.Fprintf(a.Stdout, "%s takes no new functions\n", h.Name)
	} else {
		fmt.Fprintf(a.Stdout, "%s takes new functions\n", h.Name)
	}
	return nil
}
