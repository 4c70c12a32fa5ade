package cli

import (
	"context"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"weir.dev/weir/api"
	"weir.dev/weir/cli/command"
	"weir.dev/weir/cli/graph"
)

func (a *app) graphCommand() *cobra.Command {
	var o api.GraphOptions
	cmd := &cobra.Command{
		Use:   "graph",
		Short: "Draw which traffic is steered through which functions, and what these run on",
		Long: `Draw which traffic is steered through which functions, and the hosts, switches, links and tunnels that these run on. -o says how: svg is a
picture for browsers, mermaid goes into Markdown pages, dot is for Graphviz, json and yaml have the nodes and edges, and the default is a table of edges.`,
		Example: `  weir graph
  weir graph -o svg > weir.svg
  weir graph --underlay -o mermaid`,
		Args:        command.NoArgs(),
		Annotations: map[string]string{command.MoreOutputs: "svg,mermaid,dot"},
		RunE: a.Speaks(func(ctx context.Context, c *api.Client, _ []string) error {
			g, err := c.Graph(ctx, o)
			if err != nil {
				return err
			}
			if a.Structured() {
				return a.Encode(g)
			}
			switch a.Output() {
			case "svg":
				_, err = fmt.Fprint(a.Stdout, graph.SVG(g))
			case "mermaid":
				_, err = fmt.Fprint(a.Stdout, graph.Mermaid(g))
			case "dot":
				_, err = fmt.Fprint(a.Stdout, graph.Dot(g))
			default:
				err = a.printEdges(g)
			}
			return err
		}),
	}
	cmd.Flags().BoolVar(&o.Underlay, "underlay", false, "only hosts and switches, and the cables and tunnels between them")
	return cmd
}

func (a *app) printEdges(g api.Graph) error {
	if len(g.Edges) == 0 {
		fmt.Fprintln(a.Stderr, "nothing is steered, and there is no link; see `weir get all`")
		return nil
	}
	t := command.Table{Head: []string{"FROM", "KIND", "TO", "POLICIES", "CHAIN", "READY", "DETAIL"}, Coloured: []bool{false, false, false, false, false, true, false}}
	for _, e := range g.Edges {
		ready := "yes"
		if !e.Ready {
			ready = "no"
		}
		kind := string(e.Kind)
		if e.Both {
			kind += ", both ways"
		}
		t.Add(e.From, kind, e.To, strings.Join(e.Policies, ","), e.Chain, ready, e.Detail)
	}
	dropEmpty(&t, "DETAIL")
	return a.PrintTable(t)
}
