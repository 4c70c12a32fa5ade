package cli

import (
	"context"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"weir.dev/weir/api"
	"weir.dev/weir/cli/command"
)

func (a *app) tokenCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "token",
		Short: "Tokens for the API, and tokens with which agents join",
		Long: `With a name and a role a token lets its bearer use the API at the manager's TCP address (--url, --token-file): a viewer reads, an operator also
applies, runs commands in functions and reads their logs, an admin may everything. Such a token expires, can be rotated and revoked, and the list says when and from
where it was used last. "file" is the token file of the manager, an admin's; rotate it, too.

Without a name it is a join token: it lets an agent of another host join this manager (weir agent). Each works once and expires. It also names the
manager's authority, so that the agent knows that it speaks with the right manager. Keep it as a secret until it is used.

A manager keeps only hashes of tokens, and shows each once.`,
		Example: `  weir token create ci --role operator --ttl 24h > ci.token
  weir token create > join.token
  weir token list`,
		Args: cobra.ArbitraryArgs,
		RunE: command.Group,
	}
	cmd.AddCommand(a.tokenCreateCommand(), a.tokenListCommand(), a.tokenRotateCommand(), a.tokenDeleteCommand())
	return cmd
}

func (a *app) tokenCreateCommand() *cobra.Command {
	var r api.TokenRequest
	var role string
	var ttl time.Duration
	cmd := &cobra.Command{
		Use:   "create [NAME --role ROLE]",
		Short: "Print a new token: with a name and a role for the API, else to join with",
		Example: `  weir token create ci --role operator --ttl 24h > ci.token
  weir token create > token
  weir token create --host h2 --ttl 10m
  weir token create --host h2 --cpus 8 --memory 16G
  weir token create --host h2 --replace`,
		Args: command.WantArgs(0, 1, "at most one name"),
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) == 1 {
				r.Name = args[0]
			}
			if (r.Name == "") != (role == "") {
				return command.Usage("a token for the API needs a name and a --role (viewer, operator or admin); one to join with has neither")
			}
			r.Role = api.Role(role)
			if cmd.Flags().Changed("ttl") {
				r.TTL = ttl.String()
			}
			c, err := a.Client()
			if err != nil {
				return err
			}
			defer c.Close()
			t, err := c.NewToken(cmd.Context(), r)
			if err != nil {
				return err
			}
			return a.printToken(t)
		},
	}
	cmd.Flags().StringVar(&role, "role", "", "viewer, operator or admin: what the bearer of a named token may do")
	cmd.Flags().DurationVar(&ttl, "ttl", 0, "how long it can be used (default 720h with a name, else 1h)")
	cmd.Flags().StringVar(&r.Host, "host", "", "the only host that may join with it (default any that is new)")
	cmd.Flags().StringVar(&r.CPUs, "cpus", "", "whole cores that the host has, with --host (default what its agent claims, up to 64)")
	cmd.Flags().StringVar(&r.Memory, "memory", "", "memory that the host has, with --host (default what its agent claims, up to 256G)")
	cmd.Flags().BoolVar(&r.Replace, "replace", false, "let the host join though it has joined already; its former agent is shut out")
	return cmd
}

// printToken shows a token this once.
func (a *app) printToken(t api.Token) error {
	if a.Structured() {
		return a.Encode(t)
	}
	_, err := fmt.Fprintln(a.Stdout, t.Token)
	return err
}

func (a *app) tokenRotateCommand() *cobra.Command {
	return &cobra.Command{
		Use:     "rotate NAME",
		Short:   "Give a token for the API a new secret and its whole life again, and print it; the former one is refused from now on",
		Example: "  weir token rotate ci > ci.token\n  weir token rotate file > /dev/null",
		Args:    command.WantArgs(1, 1, "the name of a token (see weir token list)"),
		RunE: a.Speaks(func(ctx context.Context, c *api.Client, args []string) error {
			t, err := c.RotateToken(ctx, args[0])
			if err != nil {
				return err
			}
			return a.printToken(t)
		}),
	}
}

func (a *app) tokenListCommand() *cobra.Command {
	return &cobra.Command{
		Use:     "list",
		Short:   "List the tokens, without their secrets",
		Example: "  weir token list\n  weir token list -o json",
		Args:    command.NoArgs(),
		RunE: a.Speaks(func(ctx context.Context, c *api.Client, _ []string) error {
			list, err := c.Tokens(ctx)
			if err != nil {
				return err
			}
			return command.PrintList(a.App, list, []string{"NAME", "ROLE", "HOST", "STATE", "EXPIRES", "LAST USED", "BY"},
				func(x api.Token) []string { return tokenRow(x, time.Now()) })
		}),
	}
}

func tokenRow(x api.Token, now time.Time) []string {
	when := func(t time.Time) string {
		if t.IsZero() {
			return "never"
		}
		return t.Local().Format(time.DateTime)
	}
	state := "ready"
	switch {
	case x.Role == api.RoleAgent && !x.Used.IsZero():
		state = "used"
	case !x.Expires.IsZero() && now.After(x.Expires):
		state = "expired"
	}
	host := x.Host
	if x.Replace {
		host += " (replace)"
	}
	by := x.UsedBy
	if by == "" {
		by = x.UsedFrom
	}
	return []string{x.ID, string(x.Role), host, state, when(x.Expires), when(x.Used), by}
}

func (a *app) tokenDeleteCommand() *cobra.Command {
	return &cobra.Command{
		Use:     "delete NAME",
		Short:   "Revoke a token; who joined with it stays",
		Example: "  weir token delete ci\n  weir token delete 1f2e3d4c",
		Args:    command.WantArgs(1, 1, "the name of a token (see weir token list)"),
		RunE: a.Speaks(func(ctx context.Context, c *api.Client, args []string) error {
			if err := c.DeleteToken(ctx, args[0]); err != nil {
				return err
			}
			return a.PrintDone("token", args[0], "deleted")
		}),
	}
}
