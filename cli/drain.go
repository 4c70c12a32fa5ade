package cli

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"weir.dev/weir/api"
	"weir.dev/weir/cli/command"
)

func (a *app) hostDrainCommand() *cobra.Command {
	var dry, wait bool
	var timeout time.Duration
	cmd := &cobra.Command{
		Use:   "drain NAME...",
		Short: "Move the functions of hosts to other hosts, and place nothing new there",
		Long: `Move the functions of hosts to other hosts, and place nothing new there until "weir host undrain". A function moves where its image, its
runtime and enough room are. It goes on at its former host until it is up at the new one and frames are steered there. A function that is pinned, or that
no other host can have, stays; its placement says why, and it moves as soon as it can. Endpoints are ports of their host and stay.`,
		Example: `  weir host drain h1 --dry-run
  weir host drain h1
  weir host drain h1 h2 --wait=false -o json`,
		Args: command.WantArgs(1, -1, "at least one host"),
		ValidArgsFunction: func(cmd *cobra.Command, _ []string, _ string) ([]string, cobra.ShellCompDirective) {
			return a.completeNames(cmd, hosts(nil)), cobra.ShellCompDirectiveNoFileComp
		},
		RunE: a.Speaks(func(ctx context.Context, c *api.Client, args []string) error {
			ctx, cancel := command.Ending(ctx, timeout, "drain")
			defer cancel()
			var failed []error
			var begun []string
			for _, name := range args {
				result, err := c.Drain(ctx, name, api.DrainRequest{Plan: dry})
				if err == nil {
					err = a.printDrain(result, dry)
					begun = append(begun, name)
				}
				failed = append(failed, err)
			}
			for _, name := range begun {
				if wait && !dry {
					failed = append(failed, a.waitDrained(ctx, c, name))
				}
			}
			return errors.Join(failed...)
		}),
	}
	cmd.Flags().BoolVar(&dry, "dry-run", false, "only say which functions would move where, and which would stay")
	cmd.Flags().BoolVar(&wait, "wait", true, "wait until all functions that can move have left the host; if some stay, the command fails")
	cmd.Flags().DurationVar(&timeout, "timeout", command.WaitDefault, "how long to wait; 0 is for ever")
	return cmd
}

// printDrain shows who moves and who stays.
func (a *app) printDrain(r api.DrainResult, dry bool) error {
	if a.Structured() {
		return a.EncodeItem(r)
	}
	moves := "moves"
	if dry {
		moves = "would move"
	}
	for _, m := range r.Moves {
		chain := ""
		if m.Chain != "" {
			chain = " (chain " + m.Chain + ")"
		}
		fmt.Fprintf(a.Stdout, "function/%s%s %s from %s to %s: %s\n", m.Function, chain, moves, r.Host, m.To, command.Printable(m.Reason))
	}
	for _, s := range r.Stays {
		fmt.Fprintf(a.Stdout, "%s/%s stays: %s\n", s.Kind, s.Name, command.Printable(s.Reason))
	}
	if len(r.Policies) > 0 {
		fmt.Fprintf(a.Stdout, "policies concerned: %s\n", strings.Join(r.Policies, ", "))
	}
	if len(r.Moves)+len(r.Stays) == 0 {
		fmt.Fprintf(a.Stdout, "nothing is placed on %s\n", r.Host)
	}
	return nil
}

// waitDrained watches a host until no function is about to leave it.
func (a *app) waitDrained(ctx context.Context, c *api.Client, name string) error {
	p := a.Progress()
	defer p.Clear()
	back := a.returns(c, p)
	for ctx.Err() == nil {
		done, err := a.watchDrain(ctx, c, name, p)
		if done || permanent(err) {
			return err
		}
		if _, err := back(ctx); err != nil {
			return err
		}
	}
	return fmt.Errorf("host/%s: %w; what has not left yet: `weir get functions -o wide`, `weir events`", name, context.Cause(ctx))
}

// watchDrain follows a host's drain until it has come as far as it can, or the watch breaks.
func (a *app) watchDrain(ctx context.Context, c *api.Client, name string, p *command.Progress) (done bool, err error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	for d := range c.Hosts().Watch(ctx, 0, api.ListOptions{Name: name}) {
		if d.Type == api.DeltaError {
			return false, d.Err
		}
		hosts := d.Items
		if d.Type == api.DeltaPut {
			hosts = []api.Host{d.Object}
		}
		if d.Type == api.DeltaDelete || d.Type == api.DeltaReset && len(hosts) == 0 {
			return true, fmt.Errorf("host %s was deleted meanwhile", name)
		}
		for _, h := range hosts {
			switch now := h.Status.Drain; {
			case now == nil:
				return true, fmt.Errorf("the drain of host %s was taken back meanwhile", name)
			case now.Leaving > 0:
				p.Show("host/%s: functions that are leaving: %d; that stay: %d", name, now.Leaving, now.Stays)
			case now.Stays > 0:
				return true, fmt.Errorf("host %s is not empty: functions that no other host can have: %d; `weir host drain %s --dry-run` says why", name, now.Stays, name)
			default:
				p.Clear()
				if !a.Structured() {
					fmt.Fprintf(a.Stdout, "%s is drained\n", name)
				}
				return true, nil
			}
		}
	}
	return false, nil
}
