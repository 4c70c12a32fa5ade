package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"

	"github.com/spf13/cobra"

	"weir.dev/weir/api"
	"weir.dev/weir/cli/command"
	"weir.dev/weir/notify"
)

func (a *app) notifyCommand() *cobra.Command {
	var state string
	var check bool
	cmd := &cobra.Command{
		Use:   "notify FILE",
		Short: "Hand events on to webhooks, Alertmanager and syslog",
		Long: `Hand events on to the targets of a file until it is interrupted: webhooks with signed requests, an Alertmanager, syslog. What a target does not take is tried again,
after 1 s, 2 s, and so on up to a minute. How far each target is stands in --state, so that a restart loses nothing that the manager still has (10,000 events). What comes
again and again is told every 5 minutes. It needs the role viewer; run it beside a manager, as a service of its own. docs/operate.md has the file.`,
		Example: `  weir notify examples/events/notify.yaml
  weir notify --check examples/events/notify.yaml
  weir notify --url http://127.0.0.1:7411 --token-file viewer.token notify.yaml`,
		Args: command.WantArgs(1, 1, "a file of targets"),
		RunE: a.Speaks(func(ctx context.Context, c *api.Client, args []string) error {
			config, err := notify.Load(args[0])
			if err != nil {
				return command.WithCode(command.ExitInvalid, err)
			}
			if check {
				_, err := fmt.Fprintf(a.Stdout, "%s is fine: %d targets\n", args[0], len(config.Targets))
				return err
			}
			if state == "" {
				state = args[0] + ".state"
			}
			err = notify.Run(ctx, notify.Options{Client: c, Config: config, State: state, Log: notifyLog(a.Stderr)})
			if errors.Is(err, notify.ErrFile) {
				return command.WithCode(command.ExitInvalid, err)
			}
			return err
		}),
	}
	cmd.Flags().StringVar(&state, "state", "", "file where it writes down how far it is (default FILE.state)")
	cmd.Flags().BoolVar(&check, "check", false, "only check the file")
	return cmd
}

func notifyLog(w io.Writer) *slog.Logger { return slog.New(slog.NewTextHandler(w, nil)) }
