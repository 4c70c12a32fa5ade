// Package testbed has the commands of `weir testbed`: emulated networks. What they do is in the package testbed at the root.
package testbed

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"weir.dev/weir/cli/command"
	"weir.dev/weir/testbed"
)

// beds is the commands of one run of the program.
type beds struct{ *command.App }

// Command is the command `weir testbed`.
func Command(app *command.App) *cobra.Command {
	a := &beds{app}
	cmd := &cobra.Command{
		Use:   "testbed",
		Short: "Run emulated hosts and fabrics on this machine, to try and to test",
		Long: `Run emulated networks on this machine, in network namespaces: OpenFlow switches (a private Open vSwitch), stations, hosts
with agents, a manager, and cables between them, as a file describes it ("weir testbed schema" prints its JSON Schema). The manager is
an instance of the testbed's name: "weir --name fig2 get switches". With --name a testbed gets another name than its file says.`,
		Example: `  weir testbed up examples/fig2.yaml
  weir --name fig2 apply -f examples/fig2-policy.yaml
  weir testbed exec vm1 -- ping -c 3 10.0.0.2
  weir testbed down examples/fig2.yaml`,
		Args: cobra.ArbitraryArgs,
		RunE: command.Group,
	}
	cmd.AddCommand(a.testbedUp(), a.testbedDown(), a.testbedList(), a.testbedExec(), a.testbedImpair(), a.testbedPlug("cut"), a.testbedPlug("heal"),
		&cobra.Command{Use: "schema", Short: "Print the JSON Schema of a testbed's file", Example: "  weir testbed schema > testbed.schema.json",
			Args: command.NoArgs(), RunE: func(*cobra.Command, []string) error {
				_, err := a.Stdout.Write(testbed.Schema())
				return err
			}})
	return cmd
}

// testbedFile reads a file; --name gives the testbed another name.
func (a *beds) testbedFile(cmd *cobra.Command, path string) (testbed.File, error) {
	f, err := testbed.Load(path, a.Stdin)
	var pathErr *os.PathError
	if errors.As(err, &pathErr) {
		err = fmt.Errorf("%s: %w", pathErr.Path, pathErr.Err)
	}
	if err == nil && cmd.Flags().Changed("name") {
		f.Spec.Name = a.Name
	}
	return f, command.WithCode(command.ExitInvalid, err)
}

// testbedName is the testbed that an argument means: a file, or the name of one that is up. Without one, --name, or the only
// one that is up.
func (a *beds) testbedName(cmd *cobra.Command, args []string) (string, error) {
	if len(args) == 1 {
		if i, err := os.Stat(args[0]); err == nil && !i.IsDir() || strings.ContainsAny(args[0], "./") {
			f, err := a.testbedFile(cmd, args[0])
			return f.Spec.Name, err
		}
		return args[0], nil
	}
	given := ""
	if cmd.Flags().Changed("name") {
		given = a.Name
	}
	name, err := testbed.Find(given)
	if errors.Is(err, testbed.ErrNotFound) && given != "" && !command.OnCommandLine(cmd, "name") { // the shell speaks to an instance that is no testbed
		name, err = testbed.Find("")
	}
	return name, testbedCode(err)
}

// testbedCode gives errors their exit codes.
func testbedCode(err error) error {
	switch {
	case errors.Is(err, testbed.ErrNotFound):
		return command.WithCode(command.ExitNotFound, err)
	case errors.Is(err, testbed.ErrConflict):
		return command.WithCode(command.ExitConflict, err)
	case errors.Is(err, testbed.ErrForbidden), errors.Is(err, testbed.ErrMissing):
		return command.WithCode(command.ExitForbidden, err)
	case errors.Is(err, testbed.ErrInvalid):
		return command.WithCode(command.ExitInvalid, err)
	}
	return err
}

func (a *beds) testbedOptions(timeout time.Duration) testbed.Options {
	return testbed.Options{Timeout: timeout, Progress: func(format string, args ...any) {
		if !a.Structured() {
			fmt.Fprintf(a.Stderr, format+"\n", args...)
		}
	}}
}

func (a *beds) testbedUp() *cobra.Command {
	var timeout time.Duration
	cmd := &cobra.Command{
		Use:   "up FILE",
		Short: "Build the network that a file describes",
		Long: `Build the network that a file describes and wait until its switches are connected and its agents have joined. When something fails,
nothing of it is left. Run again, it starts what has died meanwhile.`,
		Example: `  weir testbed up examples/fig2.yaml
  weir --name try testbed up examples/leaf-spine.yaml`,
		Args: command.WantArgs(1, 1, "a file"),
		RunE: func(cmd *cobra.Command, args []string) error {
			f, err := a.testbedFile(cmd, args[0])
			if err != nil {
				return err
			}
			begin := time.Now()
			changed, err := testbed.Up(cmd.Context(), f, a.testbedOptions(timeout))
			if err != nil {
				return testbedCode(err)
			}
			if a.Structured() {
				s, err := testbed.List(f.Spec.Name)
				if err != nil {
					return testbedCode(err)
				}
				return a.Encode(s)
			}
			if !changed {
				_, err = fmt.Fprintf(a.Stdout, "testbed %s is up already\n", f.Spec.Name)
				return err
			}
			text := fmt.Sprintf("testbed %s is up after %s", f.Spec.Name, time.Since(begin).Round(100*time.Millisecond))
			if f.Spec.Manager != nil {
				text += fmt.Sprintf("; its manager: export WEIR_NAME=%s", f.Spec.Name)
			}
			_, err = fmt.Fprintln(a.Stdout, text)
			return err
		},
	}
	cmd.Flags().DurationVar(&timeout, "timeout", command.WaitDefault, "how long to wait for the manager, and for switches and agents")
	return cmd
}

func (a *beds) testbedDown() *cobra.Command {
	return &cobra.Command{
		Use:   "down [FILE|NAME]",
		Short: "Remove a testbed and all that was made for it",
		Long:  "Remove a testbed and all that was made for it, whatever has died. Without an argument: the only one that is up.",
		Example: `  weir testbed down examples/fig2.yaml
  weir testbed down fig2`,
		Args: command.WantArgs(0, 1, "a file, or the name of a testbed"),
		RunE: func(cmd *cobra.Command, args []string) error {
			name, err := a.testbedName(cmd, args)
			if err != nil {
				return err
			}
			found, err := testbed.Down(cmd.Context(), name, a.testbedOptions(0))
			if err != nil {
				return testbedCode(err)
			}
			text := "testbed %s is down\n"
			if !found {
				text = "testbed %s was not up\n"
			}
			_, err = fmt.Fprintf(a.Stdout, text, name)
			return err
		},
	}
}

func (a *beds) testbedList() *cobra.Command {
	return &cobra.Command{
		Use:   "list [FILE|NAME]",
		Short: "List testbeds, or one's nodes and cables",
		Example: `  weir testbed list
  weir testbed list fig2
  weir testbed list examples/fig2.yaml -o json`,
		Args: command.WantArgs(0, 1, "a file, or the name of a testbed"),
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) == 0 && !command.OnCommandLine(cmd, "name") {
				return a.testbedListAll()
			}
			name, err := a.testbedName(cmd, args)
			if err != nil {
				return err
			}
			s, err := testbed.List(name)
			if err != nil {
				return testbedCode(err)
			}
			if a.Structured() {
				return a.Encode(s)
			}
			if err := a.PrintTable(nodeTable(s)); err != nil {
				return err
			}
			if len(s.Links) == 0 {
				return nil
			}
			if _, err := fmt.Fprintln(a.Stdout); err != nil {
				return err
			}
			return a.PrintTable(cableTable(s))
		},
	}
}

func (a *beds) testbedListAll() error {
	names, err := testbed.Names()
	if err != nil {
		return err
	}
	all := []testbed.Status{}
	t := command.Table{Head: []string{"TESTBED", "STATE", "NODES", "LINKS", "FILE"}, Coloured: []bool{false, true}}
	for _, n := range names {
		s, err := testbed.List(n)
		if errors.Is(err, testbed.ErrNotFound) { // just going
			continue
		}
		if err != nil {
			return err
		}
		all = append(all, s)
		t.Add(s.Name, s.State, fmt.Sprint(len(s.Nodes)), fmt.Sprint(len(s.Links)), s.File)
	}
	if a.Structured() {
		return a.Encode(map[string]any{"items": all})
	}
	return a.PrintTable(t)
}

func nodeTable(s testbed.Status) command.Table {
	t := command.Table{Head: []string{"NODE", "KIND", "STATE", "PIDS", "ADDRESS", "DETAIL"}, Coloured: []bool{false, false, true}}
	for _, n := range s.Nodes {
		address := n.Address
		if len(n.Addresses) > 0 {
			address = strings.Join(n.Addresses, ",")
		}
		detail := n.MAC
		switch {
		case n.DatapathID != "":
			detail = "dpid " + n.DatapathID
		case n.Instance != "":
			detail = "instance " + n.Instance
		}
		t.Add(n.Name, n.Kind, n.State, strings.Trim(fmt.Sprint(n.PIDs), "[]"), address, detail)
	}
	return t
}

func cableTable(s testbed.Status) command.Table {
	t := command.Table{Head: []string{"CABLE", "STATE", "INTERFACES"}, Coloured: []bool{false, true}}
	for _, l := range s.Links {
		t.Add(l.A+" - "+l.B, l.State, l.InterfaceA+" "+l.InterfaceB)
	}
	return t
}

func (a *beds) testbedExec() *cobra.Command {
	return &cobra.Command{
		Use:   "exec NODE -- COMMAND [ARG...]",
		Short: "Run a command in a node's network namespace",
		Long: `Run a command in a node's network namespace; nothing else changes. Nodes are the file's, "manager", and "ovs" for all switches (ovs-ofctl
finds them by their names). The exit code is the command's.`,
		Example: `  weir testbed exec vm1 -- ping -c 3 10.0.0.2
  weir testbed exec ovs -- ovs-ofctl -O OpenFlow13 dump-flows s1`,
		Args: command.WantArgs(2, -1, "a node, -- and a command"),
		RunE: func(cmd *cobra.Command, args []string) error {
			name, err := a.testbedName(cmd, nil)
			if err != nil {
				return err
			}
			code, err := testbed.Exec(cmd.Context(), name, args[0], args[1:], testbed.Streams{In: a.Stdin, Out: a.Stdout, Err: a.Stderr})
			if err != nil {
				return testbedCode(err)
			}
			if code != 0 {
				return command.Silent(code)
			}
			return nil
		},
	}
}

func (a *beds) testbedImpair() *cobra.Command {
	var i testbed.Impairment
	cmd := &cobra.Command{
		Use:   "impair CABLE",
		Short: "Give a cable a rate, a delay, a loss",
		Long: `Give a cable a rate, a delay and a loss, in both directions, instead of those that it has; without a flag, take them away. A cable is
named by one of its ends: SWITCH:PORT, a station, an agent. Delay and loss need a kernel with netem; the command says so if there is none.`,
		Example: `  weir testbed impair s1:1 --rate 10M
  weir testbed impair vm1 --delay 5ms --loss 1%
  weir testbed impair vm1`,
		Args: command.WantArgs(1, 1, "one end of a cable"),
		RunE: func(cmd *cobra.Command, args []string) error {
			name, err := a.testbedName(cmd, nil)
			if err != nil {
				return err
			}
			return testbedCode(testbed.Impair(name, args[0], i))
		},
	}
	cmd.Flags().StringVar(&i.Rate, "rate", "", "bits per second: 800k, 10M, 1G")
	cmd.Flags().StringVar(&i.Delay, "delay", "", "of each frame, one way: 5ms")
	cmd.Flags().StringVar(&i.Loss, "loss", "", "share of frames that are lost, each way: 1%")
	return cmd
}

func (a *beds) testbedPlug(verb string) *cobra.Command {
	do, short := testbed.Cut, "Pull a cable out"
	if verb == "heal" {
		do, short = testbed.Heal, "Put a cable in again"
	}
	return &cobra.Command{
		Use:   verb + " CABLE",
		Short: short,
		Long: short + `: both ends see it. A cable is named by one of its ends: SWITCH:PORT, a station, an agent. AGENT:mgmt is an agent's
connection to the management network, ovs:mgmt that of all switches.`,
		Example: "  weir testbed " + verb + " s1:1\n  weir testbed " + verb + " nfv1:mgmt",
		Args:    command.WantArgs(1, 1, "one end of a cable"),
		RunE: func(cmd *cobra.Command, args []string) error {
			name, err := a.testbedName(cmd, nil)
			if err != nil {
				return err
			}
			return testbedCode(do(name, args[0]))
		},
	}
}
