package cli

import (
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"weir.dev/weir/api"
)

func (a *app) tokenCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "token",
		Short: "Join tokens: each lets one agent join",
		Long: `Join tokens let agents of other hosts join this manager (weir agent). Each works once and expires. It also names the
manager's authority, so that the agent knows that it speaks with the right manager. Keep it as a secret until it is used.`,
		Example: `  weir token create > token
  weir token list`,
		Args: cobra.ArbitraryArgs,
		RunE: group,
	}
	cmd.AddCommand(a.tokenCreateCommand(), a.tokenListCommand(), a.tokenDeleteCommand())
	return cmd
}

func (a *app) tokenCreateCommand() *cobra.Command {
	var host string
	var ttl time.Duration
	var replace bool
	var cpus, memory string
	cmd := &cobra.Command{
		Use:   "create",
		Short: "Print a new join token",
		Example: `  weir token create > token
  weir token create --host h2 --ttl 10m
  weir token create --host h2 --cpus 8 --memory 16G
  weir token create --host h2 --replace`,
		Args: noArgs(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			c, err := a.client()
			if err != nil {
				return err
			}
			defer c.Close()
			t, err := c.NewToken(cmd.Context(), api.TokenRequest{TTL: ttl.String(), Host: host, Replace: replace, CPUs: cpus, Memory: memory})
			if err != nil {
				return err
			}
			if a.structured() {
				return a.encode(t)
			}
			_, err = fmt.Fprintln(a.Stdout, t.Token)
			return err
		},
	}
	cmd.Flags().DurationVar(&ttl, "ttl", time.Hour, "how long it can be used")
	cmd.Flags().StringVar(&host, "host", "", "the only host that may join with it (default any that is new)")
	cmd.Flags().StringVar(&cpus, "cpus", "", "whole cores that the host has, with --host (default what its agent claims, up to 64)")
	cmd.Flags().StringVar(&memory, "memory", "", "memory that the host has, with --host (default what its agent claims, up to 256G)")
	cmd.Flags().BoolVar(&replace, "replace", false, "let the host join though it has joined already; its former agent is shut out")
	return cmd
}

func (a *app) tokenListCommand() *cobra.Command {
	return &cobra.Command{
		Use:     "list",
		Short:   "List the join tokens, without their secrets",
		Example: "  weir token list",
		Args:    noArgs(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			c, err := a.client()
			if err != nil {
				return err
			}
			defer c.Close()
			list, err := c.Tokens(cmd.Context())
			if err != nil {
				return err
			}
			if a.structured() {
				return a.encode(map[string]any{"items": list})
			}
			t := table{head: []string{"ID", "HOST", "STATE", "EXPIRES", "USED BY"}}
			now := time.Now()
			for _, x := range list {
				state := "ready"
				switch {
				case !x.Used.IsZero():
					state = "used"
				case now.After(x.Expires):
					state = "expired"
				}
				host := x.Host
				if x.Replace {
					host += " (replace)"
				}
				t.add(x.ID, host, state, x.Expires.Local().Format(time.DateTime), x.UsedBy)
			}
			return a.printTable(t)
		},
	}
}

func (a *app) tokenDeleteCommand() *cobra.Command {
	return &cobra.Command{
		Use:     "delete ID",
		Short:   "Make a join token worthless; who joined with it stays",
		Example: "  weir token delete 1f2e3d4c",
		Args:    wantArgs(1, 1, "the ID of a token (see weir token list)"),
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := a.client()
			if err != nil {
				return err
			}
			defer c.Close()
			if err := c.DeleteToken(cmd.Context(), args[0]); err != nil {
				return err
			}
			if a.structured() {
				return nil
			}
			_, err = fmt.Fprintf(a.Stdout, "token/%s deleted\n", args[0])
			return err
		},
	}
}
