package cli

import (
	"context"
	"fmt"
	"net"
	"strconv"
	"time"

	"github.com/spf13/cobra"

	"weir.dev/weir/api"
	"weir.dev/weir/cli/command"
)

func (a *app) functionFlows() *cobra.Command {
	var o api.FlowOptions
	cmd := &cobra.Command{
		Use:   "flows NAME",
		Short: "List the flows that a function has settled: they pass it by, or are dropped before it",
		Long: `List the flows that a function has settled (label weir.settles), read now from the switch of its host. Their packets do not enter the function: they pass it by, as they are or
with the address that REWRITE gives them at one end, or are dropped before it. Each direction is a line, with the port where its packets would enter the function. PACKETS and BYTES are those that did not enter, since the verdict (SINCE);
IDLE is the time since the last one. A verdict ends after 5 minutes, or a minute without a packet, and with the connection: then the function gets the flow's packets, and
settles it again. -o wide adds the generation of the verdicts: when it changes, all former ones have ended.

A function on a host whose switch settles nothing (Open vSwitch) gets every packet: the command says so, and ends with code 5.`,
		Example: `  weir function flows fw
  weir function flows fw --sort newest --limit 10 -o wide
  weir function flows ids -o json`,
		Args:              command.WantArgs(1, 1, "one function"),
		ValidArgsFunction: a.completeFunctions(false),
		RunE: a.Speaks(func(ctx context.Context, c *api.Client, args []string) error {
			if _, err := api.ParseFlows(o.Query()); err != nil || o.Limit == 0 {
				return command.Usage("--limit %d --sort %q: want a limit of 1 to %d, and %s or %s", o.Limit, o.Sort, api.MaxFlows, api.FlowsBiggest, api.FlowsNewest)
			}
			found, err := c.SettledFlows(ctx, args[0], o)
			if err != nil {
				return err
			}
			if a.Structured() {
				return a.Encode(found)
			}
			if err := a.PrintTable(flowTable(found, a.Wide())); err != nil {
				return err
			}
			if more := found.Total - len(found.Flows); more > 0 {
				fmt.Fprintf(a.Stderr, "%d more are settled: --limit shows up to %d\n", more, api.MaxFlows)
			}
			return nil
		}),
	}
	cmd.Flags().IntVar(&o.Limit, "limit", api.DefaultFlows, fmt.Sprintf("how many to show, at most %d", api.MaxFlows))
	cmd.Flags().StringVar(&o.Sort, "sort", api.FlowsBiggest, "which come first: bytes (those with most) or newest")
	return cmd
}

func flowTable(found api.SettledFlows, wide bool) command.Table {
	t := command.Table{Head: []string{"VERDICT", "AT", "PROTOCOL", "SOURCE", "DESTINATION", "VLAN", "REWRITE", "PACKETS", "BYTES", "SINCE", "IDLE"}}
	if wide {
		t.Head = append(t.Head, "GENERATION")
	}
	for _, f := range found.Flows {
		source, destination, protocol := endText(f.Source, f.SourcePort), endText(f.Destination, f.DestPort), f.Protocol
		if f.EchoID != nil {
			source, destination = f.Source, f.Destination
			protocol = fmt.Sprintf("%s echo %d", f.Protocol, *f.EchoID)
			if f.Reply {
				protocol = fmt.Sprintf("%s reply %d", f.Protocol, *f.EchoID)
			}
		}
		vlan := ""
		if f.VLAN != 0 {
			vlan = fmt.Sprint(f.VLAN)
		}
		rewrite := ""
		if w := f.Rewrite; w != nil {
			rewrite = w.End + " " + endText(w.Address, w.Port)
		}
		row := []string{string(f.Verdict), f.At, protocol, source, destination, vlan, rewrite, fmt.Sprint(f.Missed.Packets), command.Size(int64(f.Missed.Bytes)),
			command.Age(f.Since, found.Time), command.Age(found.Time.Add(-time.Duration(f.IdleNs)), found.Time)}
		if wide {
			row = append(row, fmt.Sprint(f.Generation))
		}
		t.Add(row...)
	}
	dropEmpty(&t, "REWRITE")
	return t
}

// endText is an address with its port.
func endText(address string, port uint16) string {
	return net.JoinHostPort(address, strconv.Itoa(int(port)))
}
