package author

import (
	"fmt"
	"net/netip"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"weir.dev/weir/cli/command"
	"weir.dev/weir/solo"
)

func (a *author) run() *cobra.Command {
	var f flags
	var client, server []string
	var serve string
	var logs bool
	var timeout time.Duration
	cmd := &cobra.Command{
		Use:   "run IMAGE [-- COMMAND [ARG...]]",
		Short: "Put a function between two ends of its own and run a command at one of them",
		Long: `Put a function between a client, at its port in, and a server, at its port out, and run a command at the client: without a daemon, in network namespaces of
their own. A tap hears what the two say to each other. Without a command it is a shell. --serve runs a command at the server meanwhile. Commands find the
namespaces in $WEIR_CLIENT and $WEIR_SERVER: nsenter --net=$WEIR_SERVER COMMAND. Nothing reaches the network of this machine.

IMAGE is an image's name, a folder with an OCI layout, or a folder with an image.yaml, which is built first. The exit code is the command's. All is removed
at its end.`,
		Example: `  weir function run firewall --config 'allow=[icmp]' -- ping -c 3 10.0.0.2
  weir function run examples/blocker --config port=80 --serve ./server.sh -- curl http://10.0.0.2:8080/
  weir function run my-function --runtime kvm
  weir function run monitor --logs -- ping -c 3 10.0.0.2`,
		Args: command.WantArgs(1, -1, "an image, -- and a command"),
		RunE: func(cmd *cobra.Command, args []string) error {
			run := args[1:]
			if len(run) == 0 {
				if _, tty := command.Terminal(a.Stdin); !tty {
					return command.Usage("want a command: -- COMMAND [ARG...]; a shell wants a terminal")
				}
				run = []string{"/bin/sh"}
				if shell := os.Getenv("SHELL"); shell != "" {
					run = []string{shell}
				}
			}
			var s solo.Stations
			var err error
			if s.Client, err = prefixes("--client", client); err != nil {
				return err
			}
			if s.Server, err = prefixes("--server", server); err != nil {
				return err
			}
			s.Timeout = timeout
			o, end, err := a.prepare(cmd.Context(), f, args[0])
			if err != nil {
				return err
			}
			defer end()
			return a.between(cmd, o, s, args[0], run, serve, logs)
		},
	}
	cmd.SetFlagErrorFunc(func(_ *cobra.Command, err error) error {
		return command.Usage("%w (put -- before the command, so that its flags are its own)", err)
	})
	s := cmd.Flags()
	s.StringArrayVar(&client, "client", []string{"10.0.0.1/24", "fd00:10::1/64"}, "address of the client, with its length; may be repeated")
	s.StringArrayVar(&server, "server", []string{"10.0.0.2/24", "fd00:10::2/64"}, "address of the server, with its length; may be repeated")
	s.StringVar(&serve, "serve", "", "shell command that runs at the server until the end")
	s.BoolVar(&logs, "logs", false, "show at the end what the function has printed, on standard error")
	s.DurationVar(&timeout, "timeout", solo.DefaultTimeout, "how long the function may take to start")
	for _, name := range []string{"client", "server"} { // commands find namespaces in variables of these names, and may be another weir function run
		s.Lookup(name).Annotations = map[string][]string{command.Once: {"true"}}
	}
	f.add(cmd)
	return cmd
}

func (a *author) between(cmd *cobra.Command, o solo.Options, s solo.Stations, what string, run []string, serve string, logs bool) (err error) {
	f, ends, err := solo.Between(cmd.Context(), o, s)
	if err != nil {
		return coded(err)
	}
	defer func() {
		if cerr := f.Close(); err == nil {
			err = cerr
		} else if cerr != nil {
			fmt.Fprintln(a.Stderr, "weir:", cerr)
		}
	}()
	if _, tty := command.Terminal(a.Stderr); tty {
		fmt.Fprintf(a.Stderr, "%s runs (%s) between client %s and server %s (nsenter --net=%s COMMAND)\n", what, f.Runtime, s.Client[0].Addr(), s.Server[0].Addr(), ends.Server)
	}
	env := []string{"WEIR_CLIENT=" + ends.Client, "WEIR_SERVER=" + ends.Server}
	if serve != "" {
		stop, err := solo.Serve(ends.Server, serve, env, a.Stderr)
		if err != nil {
			return err
		}
		defer stop()
	}
	code, err := solo.Command(cmd.Context(), ends.Client, run, env, solo.Streams{In: a.Stdin, Out: a.Stdout, Err: a.Stderr})
	if err != nil {
		return err
	}
	ended := f.Ended()
	f.Stop()
	for i, e := range f.Events() {
		if i == shownEvents {
			fmt.Fprintf(a.Stderr, "... and %d more events\n", len(f.Events())-i)
			break
		}
		fmt.Fprintf(a.Stderr, "event %s %s: %s\n", e.Severity, command.Printable(e.Reason), command.Printable(e.Message))
	}
	if logs || ended != nil {
		for line := range strings.Lines(f.Log()) {
			fmt.Fprintln(a.Stderr, "log:", command.Printable(strings.TrimRight(line, "\n")))
		}
	}
	if ended != nil {
		return ended
	}
	if code != 0 {
		return command.Silent(code)
	}
	return nil
}

func prefixes(flag string, texts []string) (out []netip.Prefix, err error) {
	for _, t := range texts {
		p, err := netip.ParsePrefix(t)
		if err != nil {
			return nil, command.Usage("%s %q: want an address with its length, such as 10.0.0.1/24", flag, t)
		}
		out = append(out, p)
	}
	if len(out) == 0 {
		return nil, command.Usage("%s: want at least one address", flag)
	}
	return out, nil
}
