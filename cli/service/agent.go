package service

import (
	"github.com/spf13/cobra"

	"weir.dev/weir/cli/command"
)

// AgentOptions say how an agent of a manager elsewhere runs.
type AgentOptions struct {
	DaemonOptions
	Managers  []string // https://HOST:PORT
	TokenFile string
}

func (a *commands) agentCommand() *cobra.Command {
	o := AgentOptions{}
	cmd := &cobra.Command{
		Use:   "agent",
		Short: "Run this machine as a host of a manager elsewhere",
		Long: `Run this machine as a host of a manager elsewhere until Ctrl-C or SIGTERM. The first time it joins: --token-file holds what
"weir token create" printed at the manager. From then on it has a certificate, which it renews by itself, and the token is
not needed any more; but a host that was deleted or replaced joins again with a new one. What it made goes on forwarding when it ends,
and while no manager can be reached; "weir down" removes it. With several managers of one state (--etcd) give --manager for each.`,
		Example: `  weir agent --manager https://10.0.0.1:7412 --token-file token
  weir agent --manager https://10.0.0.1:7412 --detach
  weir agent --manager https://10.0.0.1:7412 --runtime lxc
  weir agent --manager https://10.0.0.1:7412 --manager https://10.0.0.2:7412 --host h2 --uplink eth1 --switch ovs`,
		Args: command.NoArgs(),
	}
	f := cmd.Flags()
	a.daemonFlags(cmd, &o.DaemonOptions, func(cmd *cobra.Command) error {
		return a.Agent(cmd.Context(), o)
	}, func() bool { return a.Agent != nil })
	f.StringArrayVar(&o.Managers, "manager", nil, "https://ADDRESS:PORT of a manager's --agents; may be repeated")
	f.StringVar(&o.TokenFile, "token-file", "", "file with the join token, for the first time; - is standard input")
	hostFlags(f, &o.DaemonOptions, "")
	return cmd
}
