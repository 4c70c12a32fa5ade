package cli

import (
	"context"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"weir.dev/weir/api"
	"weir.dev/weir/cli/command"
)

func (a *app) secretCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:     "secret",
		Aliases: []string{"secrets"},
		Short:   "Secrets: files for functions that nobody can read through the API",
		Long: `Secrets reach functions as files in memory: with "secrets: [db]" in its spec a function finds /run/secrets/db, with "secrets: [db:/run/db/password]" that file, which
its user alone may read. No command shows a value again. A new value makes the functions anew that use it.`,
		Example: `  weir secret set db --from password
  weir secret list`,
		Args: cobra.ArbitraryArgs,
		RunE: command.Group,
	}
	cmd.AddCommand(a.secretSetCommand(), a.secretListCommand(), a.secretDeleteCommand())
	return cmd
}

func (a *app) secretSetCommand() *cobra.Command {
	var from string
	cmd := &cobra.Command{
		Use:     "set NAME",
		Short:   "Make a secret or replace its value, from standard input or a file, byte by byte",
		Example: "  weir secret set db --from password\n  weir secret set tls --from key.pem",
		Args:    command.WantArgs(1, 1, "the name of a secret"),
		RunE: a.Speaks(func(ctx context.Context, c *api.Client, args []string) error {
			in := a.Stdin
			if from != "-" {
				f, err := os.Open(from)
				if err != nil {
					return command.WithCode(command.ExitInvalid, fmt.Errorf("secret: %w", err))
				}
				defer f.Close()
				in = f
			}
			value, err := io.ReadAll(io.LimitReader(in, api.MaxSecret+1))
			if err != nil {
				return command.WithCode(command.ExitInvalid, fmt.Errorf("secret: %w", err))
			}
			if n := len(value); n < 1 || n > api.MaxSecret {
				return command.WithCode(command.ExitInvalid, fmt.Errorf("a secret of %d bytes or more: want 1 to %d", n, api.MaxSecret))
			}
			s, err := c.PutSecret(ctx, args[0], value)
			if err != nil {
				return err
			}
			if a.Structured() {
				return a.EncodeItem(s)
			}
			_, err = fmt.Fprintf(a.Stdout, "secret/%s set\n", s.Name)
			return err
		}),
	}
	cmd.Flags().StringVar(&from, "from", "-", "file with the value; - is standard input")
	return cmd
}

func (a *app) secretListCommand() *cobra.Command {
	return &cobra.Command{
		Use:     "list",
		Short:   "List the secrets, without their values",
		Example: "  weir secret list",
		Args:    command.NoArgs(),
		RunE: a.Speaks(func(ctx context.Context, c *api.Client, _ []string) error {
			list, err := c.Secrets(ctx)
			if err != nil {
				return err
			}
			return command.PrintList(a.App, list, []string{"NAME", "GENERATION", "CHANGED", "USED BY"}, func(s api.Secret) []string {
				return []string{s.Name, fmt.Sprint(s.Generation), s.Updated.Local().Format(time.DateTime), strings.Join(s.UsedBy, ",")}
			})
		}),
	}
}

func (a *app) secretDeleteCommand() *cobra.Command {
	return &cobra.Command{
		Use:     "delete NAME",
		Short:   "Delete a secret that no function uses",
		Example: "  weir secret delete db",
		Args:    command.WantArgs(1, 1, "the name of a secret (see weir secret list)"),
		RunE: a.Speaks(func(ctx context.Context, c *api.Client, args []string) error {
			if err := c.DeleteSecret(ctx, args[0]); err != nil {
				return err
			}
			return a.PrintDone("secret", args[0], "deleted")
		}),
	}
}
