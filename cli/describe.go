package cli

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/goccy/go-yaml"
	"github.com/spf13/cobra"

	"weir.dev/weir/api"
	"weir.dev/weir/cli/command"
)

func (a *app) describeCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "describe KIND NAME...",
		Short: "Show all about objects: spec, status, what they belong to, their latest events",
		Example: `  weir describe policy guests
  weir describe function fw
  weir describe switch s1`,
		Args:              command.WantArgs(1, -1, "a kind and at least one name"),
		ValidArgsFunction: a.completeObjects(plurals()),
		RunE: func(cmd *cobra.Command, args []string) error {
			args, err := split(args)
			if err != nil {
				return err
			}
			n, err := nounNamed(args[0])
			if err != nil {
				return err
			}
			if len(args) < 2 {
				return command.Usage("%s wants a kind and at least one name, got %q", cmd.CommandPath(), args[0])
			}
			c, err := a.Client()
			if err != nil {
				return err
			}
			defer c.Close()
			if a.Structured() {
				return a.getNamed(cmd.Context(), c, n, args[1:])
			}
			for i, name := range args[1:] {
				item, err := n.get(cmd.Context(), c, name)
				if err != nil {
					return err
				}
				if i > 0 {
					fmt.Fprintln(a.Stdout)
				}
				if err := a.describe(cmd.Context(), c, n, item); err != nil {
					return err
				}
			}
			return nil
		},
	}
}

func (a *app) describe(ctx context.Context, c *api.Client, n noun, item any) error {
	body, err := sections(item)
	if err != nil {
		return err
	}
	fmt.Fprintf(a.Stdout, "%s\n%s", a.heading(fmt.Sprintf("%s/%s", n.kind(), command.Printable(n.meta(item).Name))), body)
	related, err := relations(ctx, c, item)
	if err != nil {
		return err
	}
	for _, r := range related {
		fmt.Fprintf(a.Stdout, "%s: %s\n", r.label, command.Printable(r.text))
	}
	if p, ok := item.(api.Policy); ok {
		if err := a.printPath(ctx, c, p.Name); err != nil {
			return err
		}
	}
	if f, ok := item.(api.Function); ok {
		if err := a.printMetrics(ctx, c, f.Name); err != nil {
			return err
		}
	}
	if s, ok := item.(api.Switch); ok {
		if err := a.printSwitchPorts(ctx, c, s); err != nil {
			return err
		}
	}
	if n.kind() == api.KindEvent || n.kind() == api.KindOperation {
		return nil
	}
	l, err := c.Events().List(ctx, api.ListOptions{Kind: n.kind(), Object: n.meta(item).Name, Limit: 10})
	if err != nil || len(l.Items) == 0 {
		return err
	}
	slices.SortStableFunc(l.Items, func(x, y api.Event) int { return x.Time.Compare(y.Time) })
	fmt.Fprintf(a.Stdout, "%s\n", a.heading("events"))
	return a.printEvents(l.Items)
}

// printMetrics prints what a function tells of itself, if its host can be asked and it tells anything.
func (a *app) printMetrics(ctx context.Context, c *api.Client, name string) error {
	told, err := c.FunctionMetrics(ctx, name)
	if err != nil || len(told.Metrics) == 0 {
		return nil //nolint:nilerr // the rest of the description is as good without
	}
	fmt.Fprintf(a.Stdout, "%s\n", a.heading("metrics"))
	t := command.Table{Head: []string{"NAME", "VALUE", "WHAT"}}
	for _, m := range told.Metrics {
		t.Add(command.Printable(m.ID()), strconv.FormatFloat(m.Value, 'f', -1, 64), command.Printable(m.Help))
	}
	return a.PrintTable(t)
}

// printSwitchPorts prints the counters of a fabric switch's ports, if it can be asked.
func (a *app) printSwitchPorts(ctx context.Context, c *api.Client, s api.Switch) error {
	counters, err := c.SwitchCounters(ctx, s.Name)
	if err != nil || len(counters.Ports) == 0 {
		return nil //nolint:nilerr // the rest of the description is as good without
	}
	known := map[uint32]api.SwitchPort{}
	for _, p := range s.Status.Ports {
		known[p.Number] = p
	}
	fmt.Fprintf(a.Stdout, "%s\n", a.heading("ports"))
	t := command.Table{Head: []string{"PORT", "NAME", "PEER", "RX PACKETS", "RX BYTES", "TX PACKETS", "TX BYTES", "DROPPED", "ERRORS"}}
	for _, p := range counters.Ports {
		k := known[p.Number]
		t.Add(fmt.Sprint(p.Number), command.Printable(k.Name), command.Printable(k.Peer), fmt.Sprint(p.Rx.Packets), fmt.Sprint(p.Rx.Bytes), fmt.Sprint(p.Tx.Packets), fmt.Sprint(p.Tx.Bytes),
			fmt.Sprint(p.Dropped), fmt.Sprint(p.Errors))
	}
	return a.PrintTable(t)
}

// sections writes an object as YAML with its keys in the order of the API, safe for a terminal.
func sections(item any) (string, error) {
	b, err := command.Marshal(item, "")
	if err != nil {
		return "", fmt.Errorf("describe: %w", err)
	}
	if b, err = yaml.JSONToYAML(b); err != nil {
		return "", fmt.Errorf("describe: %w", err)
	}
	lines := strings.SplitAfter(string(b), "\n")
	for i, l := range lines {
		text, end, _ := strings.Cut(l, "\n")
		lines[i] = command.Printable(text) + strings.Repeat("\n", min(1, len(l)-len(text)-len(end)))
	}
	return strings.Join(lines, ""), nil
}

type relation struct{ label, text string }

// relations tell what an object works with.
func relations(ctx context.Context, c *api.Client, item any) ([]relation, error) {
	switch o := item.(type) {
	case api.Function:
		return functionRelations(ctx, c, o)
	case api.Chain:
		return chainRelations(ctx, c, o)
	case api.Endpoint:
		users, err := policiesWith(ctx, c, func(s api.PolicySpec) bool { return s.From == o.Name || s.To == o.Name })
		return named("policies", users), err
	case api.Policy:
		return policyRelations(ctx, c, o)
	case api.Host:
		return hostRelations(ctx, c, o)
	case api.Switch:
		return switchRelations(o), nil
	}
	return nil, nil
}

func named(label string, names []string) []relation {
	if len(names) == 0 {
		return nil
	}
	return []relation{{label, strings.Join(names, ", ")}}
}

func policiesWith(ctx context.Context, c *api.Client, uses func(api.PolicySpec) bool) ([]string, error) {
	l, err := c.Policies().List(ctx, api.ListOptions{})
	if err != nil {
		return nil, err
	}
	var names []string
	for _, p := range l.Items {
		if uses(p.Spec) {
			names = append(names, p.Name)
		}
	}
	return names, nil
}

func functionRelations(ctx context.Context, c *api.Client, f api.Function) ([]relation, error) {
	out := []relation{{"placed", "nowhere yet"}}
	if p := f.Placement; p != nil {
		out[0].text = fmt.Sprintf("on %s for %s: %s", p.Host, cmp.Or(since(p.Since), "0s"), cmp.Or(p.Reason, "no reason is known"))
	}
	out = append(out, healthBy(f.Status)...)
	l, err := c.Chains().List(ctx, api.ListOptions{})
	if err != nil {
		return nil, err
	}
	for _, chain := range l.Items {
		if !slices.Contains(chain.Spec.Functions(), f.Name) {
			continue
		}
		users, err := policiesWith(ctx, c, func(s api.PolicySpec) bool { return s.Chain == chain.Name })
		return append(append(out, relation{"chain", chain.Name + ": " + chain.Spec.Path}), named("policies", users)...), err
	}
	return out, nil
}

// healthBy tells how the health of a function is known.
func healthBy(s api.FunctionStatus) []relation {
	switch {
	case s.CheckedBy == api.CheckedByProbe:
		return []relation{{"health", "by probe: a frame goes through its ports each second, or each 10 s where the switch's own program forwards"}}
	case s.CheckedBy == api.CheckedByProcess && s.Ports.Tap != 0:
		return []relation{{"health", "process only: a tap hands nothing on"}}
	case s.CheckedBy == api.CheckedByProcess:
		return []relation{{"health", "process only: its image declares no probe (weir.probe), so nobody looks whether it hands frames on"}}
	}
	return nil
}

// hostRelations are what is on a host.
func hostRelations(ctx context.Context, c *api.Client, h api.Host) ([]relation, error) {
	f, err := c.Functions().List(ctx, api.ListOptions{})
	if err != nil {
		return nil, err
	}
	e, err := c.Endpoints().List(ctx, api.ListOptions{})
	if err != nil {
		return nil, err
	}
	var functions, endpoints []string
	for _, x := range f.Items {
		if x.At() == h.Name {
			functions = append(functions, x.Name)
		}
	}
	for _, x := range e.Items {
		if x.At() == h.Name {
			endpoints = append(endpoints, x.Name)
		}
	}
	return append(named("functions", functions), named("endpoints", endpoints)...), nil
}

// switchRelations tell what a switch is joined to, and the use of its tables.
func switchRelations(s api.Switch) []relation {
	var peers []string
	for _, p := range s.Status.Ports {
		if p.Peer != "" {
			peers = append(peers, fmt.Sprintf("%d to %s", p.Number, p.Peer))
		}
	}
	var tables []string
	for _, t := range s.Status.Tables {
		if t.Rules > 0 {
			tables = append(tables, fmt.Sprintf("table %d %s", t.ID, use(t)))
		}
	}
	return append(named("links", peers), named("rules", tables)...)
}

func chainRelations(ctx context.Context, c *api.Client, chain api.Chain) ([]relation, error) {
	l, err := c.Functions().List(ctx, api.ListOptions{})
	if err != nil {
		return nil, err
	}
	why := map[string]string{}
	for _, f := range l.Items {
		why[f.Name] = cmp.Or(ready(f), "healthy")
	}
	var parts []string
	for _, name := range chain.Spec.Functions() {
		parts = append(parts, fmt.Sprintf("%s (%s)", name, cmp.Or(why[name], "missing")))
	}
	users, err := policiesWith(ctx, c, func(s api.PolicySpec) bool { return s.Chain == chain.Name })
	return append(named("functions", parts), named("policies", users)...), err
}

func policyRelations(ctx context.Context, c *api.Client, p api.Policy) ([]relation, error) {
	chain, err := c.Chains().Get(ctx, p.Spec.Chain)
	if err != nil {
		return nil, err
	}
	return []relation{{"steered", steeredBy(p.Placement)}, {"chain", chain.Name + ": " + chain.Spec.Path}}, nil
}

func steeredBy(p *api.Placement) string {
	switch {
	case p == nil:
		return "by nobody yet: no host has joined"
	case p.Router:
		return "by the router: " + p.Reason
	}
	return "by host " + p.Host + ": " + p.Reason
}

// printPath shows the ports that the policy's packets meet, with what went through them.
func (a *app) printPath(ctx context.Context, c *api.Client, policy string) error {
	path, err := c.Path(ctx, policy)
	if err != nil {
		return err
	}
	for _, way := range []struct {
		head string
		hops []api.Hop
	}{{"forward path", path.Forward}, {"reverse path", path.Reverse}} {
		if len(way.hops) == 0 {
			continue
		}
		t := command.Table{Head: []string{"PORT", "HOST", "STATE", "RX PACKETS", "TX PACKETS", "DROPPED", "SETTLED"}, Coloured: []bool{false, false, true}}
		for _, h := range way.hops {
			if !h.Live { // an address or any, a switch of the fabric, or a port that is not there now
				t.Add(h.Port, h.Host, "", "", "", "", "")
				continue
			}
			t.Add(h.Port, h.Host, string(h.State), fmt.Sprint(h.Rx.Packets), fmt.Sprint(h.Tx.Packets), fmt.Sprint(h.Dropped.Packets), settledText(h.Settles, h.Settled))
		}
		dropEmpty(&t, "SETTLED")
		if !severalHosts(path) {
			for i := range t.Rows {
				t.Rows[i][1] = ""
			}
			dropEmpty(&t, "HOST")
		}
		fmt.Fprintln(a.Stdout, a.heading(way.head))
		if err := a.PrintTable(t); err != nil {
			return err
		}
	}
	return nil
}

func severalHosts(p api.PolicyPath) bool {
	seen := map[string]bool{}
	for _, h := range slices.Concat(p.Forward, p.Reverse) {
		seen[h.Host] = seen[h.Host] || h.Host != ""
	}
	delete(seen, "")
	return len(seen) > 1
}
