package cli

import (
	"context"
	"errors"
	"fmt"

	"github.com/spf13/cobra"

	"weir.dev/weir/api"
	"weir.dev/weir/cli/command"
)

func (a *app) hostCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:     "host",
		Aliases: []string{"hosts"},
		Short:   "Close, open and drain hosts, and set their capacity",
		Example: `  weir host close h1
  weir host open h1
  weir host drain h1 --dry-run
  weir host set h1 --cpus 8 --memory 16G`,
		Args: cobra.ArbitraryArgs,
		RunE: command.Group,
	}
	cmd.AddCommand(
		a.hostVerb("close", "cordon", "Place nothing new on hosts; what runs there stays", map[string]any{"unschedulable": true}),
		a.hostVerb("open", "uncordon", "Let hosts take new functions again; a drain ends", map[string]any{"unschedulable": nil, "drain": nil}),
		a.hostDrainCommand(),
		a.hostVerb("undrain", "", "End the drain of hosts; what has moved stays where it is now", map[string]any{"drain": nil}),
		a.hostSetCommand())
	return cmd
}

func (a *app) hostSetCommand() *cobra.Command {
	var cpus, memory string
	cmd := &cobra.Command{
		Use:   "set NAME",
		Short: "Set what a host has",
		Long: `Set what a host has. Functions are placed by that, whatever the host's agent claims. Without it counts what the agent claimed first, up to
64 cores and 256 GiB for a host that has joined. An empty value takes the setting back.`,
		Example: `  weir host set h1 --cpus 8 --memory 16G`,
		Args:    command.WantArgs(1, 1, "a host"),
		ValidArgsFunction: func(cmd *cobra.Command, _ []string, _ string) ([]string, cobra.ShellCompDirective) {
			return a.completeNames(cmd, hosts(nil)), cobra.ShellCompDirectiveNoFileComp
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			patch := map[string]any{}
			for name, value := range map[string]string{"cpus": cpus, "memory": memory} {
				if !cmd.Flags().Changed(name) {
					continue
				}
				patch[name] = value
				if value == "" {
					patch[name] = nil
				}
			}
			if len(patch) == 0 {
				return command.Usage("nothing to set: want --cpus or --memory")
			}
			c, err := a.Client()
			if err != nil {
				return err
			}
			defer c.Close()
			h, err := c.Hosts().Patch(cmd.Context(), args[0], patch)
			if err != nil {
				return err
			}
			if a.Structured() {
				return a.EncodeItem(h)
			}
			fmt.Fprintf(a.Stdout, "%s counts %d cores, %s memory\n", h.Name, h.Status.Cores, command.Size(h.Status.Memory))
			return nil
		},
	}
	cmd.Flags().StringVar(&cpus, "cpus", "", "whole cores, for example 8")
	cmd.Flags().StringVar(&memory, "memory", "", "memory, for example 16G")
	return cmd
}

func (a *app) hostVerb(verb, alias, short string, patch map[string]any) *cobra.Command {
	cmd := &cobra.Command{
		Use:     verb + " NAME...",
		Short:   short,
		Example: fmt.Sprintf("  weir host %s h1\n  weir host %s h1 h2 -o json", verb, verb),
		Args:    command.WantArgs(1, -1, "at least one host"),
		ValidArgsFunction: func(cmd *cobra.Command, _ []string, _ string) ([]string, cobra.ShellCompDirective) {
			return a.completeNames(cmd, hosts(nil)), cobra.ShellCompDirectiveNoFileComp
		},
		RunE: a.Speaks(func(ctx context.Context, c *api.Client, args []string) error {
			var failed []error
			for _, name := range args {
				failed = append(failed, a.patchHost(ctx, c, name, patch))
			}
			return errors.Join(failed...)
		}),
	}
	if alias != "" {
		cmd.Aliases = []string{alias}
	}
	return cmd
}

func (a *app) patchHost(ctx context.Context, c *api.Client, name string, patch map[string]any) error {
	h, err := c.Hosts().Patch(ctx, name, patch)
	if err != nil {
		return err
	}
	if a.Structured() {
		return a.EncodeItem(h)
	}
	switch {
	case h.Spec.Drain:
		fmt.Fprintf(a.Stdout, "%s takes no new functions: it is being drained\n", h.Name)
	case h.Spec.Unschedulable:
		fmt.Fprintf(a.Stdout, "%s takes no new functions\n", h.Name)
	default:
		fmt.Fprintf(a.Stdout, "%s takes new functions\n", h.Name)
	}
	return nil
}
