package lab

import (
	"strconv"

	"github.com/spf13/cobra"

	"weir.dev/weir/cli/command"
	"weir.dev/weir/lab/controllers"
)

// labSink is what the experiment install starts, not its users.
func (a *labs) labSink() *cobra.Command {
	return &cobra.Command{
		Use: controllers.SinkCommand[1] + " ADDRESS SWITCHES", Short: "Stand for switches that cost nothing", Hidden: true, Example: "  weir lab sink 127.0.0.1:6653 10", Args: command.WantArgs(2, 2, "an address and a number of switches"),
		RunE: func(cmd *cobra.Command, args []string) error {
			n, err := strconv.Atoi(args[1])
			if err != nil {
				return command.Usage("SWITCHES %q: want a number", args[1])
			}
			return controllers.Sink(cmd.Context(), args[0], n, a.Stdout)
		},
	}
}
