package cli

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"weir.dev/weir/api"
	"weir.dev/weir/cli/command"
)

func (a *app) traceCommand() *cobra.Command {
	var q api.TraceQuery
	cmd := &cobra.Command{
		Use:   "trace FROM TO [PACKET]",
		Short: "Say what becomes of a packet between two endpoints: which policy decides, where it goes, whether it arrives",
		Long: `Say what becomes of a packet from one endpoint to another, and of the reply to it: which policy decides and why not another, which ports
the packet and its copies meet, whether it arrives. PACKET is tcp, udp or sctp with a port, as in tcp/80, or icmp (the default) or arp.

Nothing is sent. The policies are carried out as they are declared, with the present health of functions, which are taken to hand on what
they get: what a firewall lets through is not evaluated. A function that settles flows (label weir.settles) is passed by the packets of
a settled flow: the column SETTLED counts them. Copies are indented; "resumed" is handed to ordinary switching as if it came from
that port. The counters are the ports' own, read live.`,
		Example: `  weir trace alice bob tcp/80
  weir trace alice uplink udp/53 --destination 9.9.9.9
  weir trace alice bob icmp --vlan 7 -o json`,
		Args: command.WantArgs(2, 3, "two endpoints, perhaps a packet such as tcp/80"),
		ValidArgsFunction: func(cmd *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
			if len(args) < 2 {
				return a.completeNames(cmd, endpoints()), cobra.ShellCompDirectiveNoFileComp
			}
			return []string{"icmp", "arp", "tcp/80", "udp/53"}, cobra.ShellCompDirectiveNoFileComp
		},
		RunE: a.Speaks(func(ctx context.Context, c *api.Client, args []string) error {
			q.From, q.To = args[0], args[1]
			if len(args) > 2 {
				q.Match = args[2]
			}
			t, err := c.Trace(ctx, q)
			if err != nil {
				return err
			}
			if a.Structured() {
				return a.Encode(t)
			}
			if err := a.printTrace("packet", t.To, t.Request); err != nil {
				return err
			}
			fmt.Fprintln(a.Stdout)
			return a.printTrace("reply", t.From, t.Reply)
		}),
	}
	f := cmd.Flags()
	f.StringVar(&q.Source, "source", "", "the packet's source address, if it is not FROM's first one")
	f.StringVar(&q.Destination, "destination", "", "its destination address, if it is not TO's first one")
	f.IntVar(&q.SourcePort, "source-port", 0, "its source port (default 49152)")
	f.IntVar(&q.VLAN, "vlan", 0, "the VLAN id of its tag (default untagged)")
	return cmd
}

func (a *app) printTrace(what, to string, w api.TraceWay) error {
	fmt.Fprintf(a.Stdout, "%s %s\n", a.heading(what), command.Printable(w.Packet))
	for _, line := range verdicts(w) {
		fmt.Fprintf(a.Stdout, "  %s\n", command.Printable(line))
	}
	t := command.Table{Head: []string{"PORT", "EVENT", "HOST", "STATE", "RX PACKETS", "TX PACKETS", "DROPPED", "SETTLED"}, Coloured: []bool{false, false, false, true}}
	several := map[string]bool{}
	for i, s := range w.Steps {
		if i > 0 && s.Event == "steered" && w.Steps[i-1].Event == "copied" && w.Steps[i-1].Port == s.Port {
			continue // the copy's arrival
		}
		several[s.Host] = true
		name := s.Port
		if s.Branch > 0 {
			name = "  " + name
		}
		if !s.Live {
			t.Add(name, s.Event, s.Host, "", "", "", "", "")
			continue
		}
		t.Add(name, s.Event, s.Host, string(s.State), fmt.Sprint(s.Rx.Packets), fmt.Sprint(s.Tx.Packets), fmt.Sprint(s.Dropped.Packets), settledText(s.Settles, s.Settled))
	}
	dropEmpty(&t, "SETTLED")
	if delete(several, ""); len(several) < 2 {
		for i := range t.Rows {
			t.Rows[i][2] = ""
		}
		dropEmpty(&t, "HOST")
	}
	if err := a.PrintTable(t); err != nil {
		return err
	}
	if slices.ContainsFunc(w.Steps, func(s api.TraceStep) bool { return s.Settles }) {
		fmt.Fprintln(a.Stdout, "a function with a number under SETTLED may settle flows: further packets of such a flow pass it by, or are dropped before it")
	}
	fmt.Fprintln(a.Stdout, command.Printable(outcome(to, w)))
	return nil
}

// verdicts say in a line each what policies mean for a packet.
func verdicts(w api.TraceWay) []string {
	var lines []string
	decided := false
	for _, p := range w.Policies {
		switch p.Verdict {
		case api.TraceDecides:
			decided = true
			text := fmt.Sprintf("policy %s decides: chain %s, %s, priority %d", p.Policy, p.Chain, p.Mode, p.Priority)
			if p.Reply {
				text += ", on the way back"
			}
			if p.State != api.PolicyActive {
				text += "; not in force as shown here, it is " + string(p.State)
				if p.Message != "" {
					text += ": " + p.Message
				}
			}
			lines = append(lines, text)
		case api.TraceOutranked:
			lines = append(lines, fmt.Sprintf("policy %s selects it, too, and is outranked: priority %d", p.Policy, p.Priority))
		case api.TraceOthers:
			lines = append(lines, fmt.Sprintf("policy %s selects other packets between these ends: %s", p.Policy, strings.Join(p.Match, ", ")))
		}
	}
	if !decided {
		lines = slices.Insert(lines, 0, "no policy selects it: ordinary switching")
	}
	return lines
}

// outcome is how it ends for the packet itself.
func outcome(to string, w api.TraceWay) string {
	if w.Delivered {
		return "arrives at " + to
	}
	for _, s := range slices.Backward(w.Steps) {
		if s.Branch == 0 && s.Event == "dropped" {
			return fmt.Sprintf("does not arrive at %s: dropped at %s: %s", to, s.Port, s.Why)
		}
	}
	return fmt.Sprintf("does not arrive at %s", to)
}
