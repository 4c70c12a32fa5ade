package service

import (
	"fmt"
	"slices"

	"github.com/spf13/cobra"

	"weir.dev/weir/cli/command"
	"weir.dev/weir/instance"
)

// UnitOptions say which daemon a systemd unit runs.
type UnitOptions struct {
	Instance instance.Instance
	Command  string   // up, manager, agent
	Args     []string // further arguments of the command
}

var unitCommands = []string{"up", "manager", "agent"}

func (a *commands) unitCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "unit {up|manager|agent} [-- FLAGS]",
		Short: "Print a systemd unit that runs Weir with the rights that it needs and no others",
		Long: `Print a systemd unit for "weir up", "weir manager" or "weir agent". The flags after -- become the command's. The unit limits capabilities and
system calls, and has systemd restart a daemon that hangs (watchdog). "systemd-analyze security weir" shows how exposed the service is.`,
		Example: `  weir unit up > /etc/systemd/system/weir.service
  weir unit up -- --agents 10.0.0.1:7412 --underlay vxlan --underlay-address 10.0.0.1
  weir unit agent --name edge -- --manager https://10.0.0.1:7412 --token-file /root/token`,
		Args:      cobra.ArbitraryArgs,
		ValidArgs: unitCommands,
		RunE: func(cmd *cobra.Command, args []string) error {
			if a.Unit == nil {
				return command.MissingHook("a daemon")
			}
			if len(args) == 0 || !slices.Contains(unitCommands, args[0]) {
				return command.Usage("name the command that the unit runs: up, manager or agent")
			}
			if dash := cmd.ArgsLenAtDash(); len(args) > 1 && dash != 1 {
				return command.Usage("%q: put the flags of weir %s after --: weir unit %s -- FLAGS", args[1], args[0], args[0])
			}
			if err := checkUnitArgs(args[0], args[1:]); err != nil {
				return err
			}
			i, err := a.Instance()
			if err != nil {
				return err
			}
			text, err := a.Unit(UnitOptions{Instance: i, Command: args[0], Args: args[1:]})
			if err != nil {
				return err
			}
			if a.Structured() {
				return a.Encode(map[string]string{"unit": text})
			}
			_, err = fmt.Fprint(a.Stdout, text)
			return err
		},
	}
}

// checkUnitArgs refuses flags that the command does not have, before systemd finds out.
func checkUnitArgs(name string, args []string) error {
	root, a := &cobra.Command{}, &command.App{} // new ones: these flags are not the running command's
	a.GlobalFlags(root)
	root.AddCommand(Commands(a, Hooks{})...)
	daemon, _, err := root.Find([]string{name})
	if err != nil {
		return err
	}
	if err := daemon.ParseFlags(args); err != nil {
		return command.Usage("weir %s: %w", name, err)
	}
	if rest := daemon.Flags().Args(); len(rest) > 0 {
		return command.Usage("weir %s: %q is not a flag", name, rest[0])
	}
	for flag, why := range map[string]string{"detach": "systemd runs it in the foreground", "name": "give it before --", "root": "give it before --"} {
		if f := daemon.Flags().Lookup(flag); f != nil && f.Changed {
			return command.Usage("--%s after --: %s", flag, why)
		}
	}
	return nil
}
