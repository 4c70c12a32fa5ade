package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"weir.dev/weir/api"
	"weir.dev/weir/cli/command"
)

// live kinds are read from a host's switch and not stored.
var liveKinds = [...]string{"counters", "rules", "ports"}

func (a *app) getCommand() *cobra.Command {
	var watch, everything bool
	cmd := &cobra.Command{
		Use:   "get KIND [NAME...]",
		Short: "List objects, or get some by name",
		Long: fmt.Sprintf(`List objects of a kind, or get some by name. Kinds: %s; "all" is everything but events and
operations. Singular and plural will do, and KIND/NAME. Ports and rules with their counters are read live from the switch of each host:
"get ports", "get rules", "get counters" (both), perhaps of some hosts by name. "get rules" shows the switches of the fabric, too, with
the use of each of their tables ("12 of 2000"); their entries for default forwarding only with --all.`, strings.Join(plurals(), ", ")),
		Example: `  weir get functions
  weir get policy guests -o yaml
  weir get all
  weir get hosts -o wide
  weir get switches
  weir get rules
  weir get rules s1 --all
  weir get functions --watch -o json`,
		Args:              command.WantArgs(1, -1, "a kind and perhaps names"),
		ValidArgsFunction: a.completeObjects(append(plurals(), append(liveKinds[:], "all")...)),
		RunE: a.Speaks(func(ctx context.Context, c *api.Client, args []string) error {
			args, err := split(args)
			if err != nil {
				return err
			}
			word := strings.ToLower(args[0])
			switch {
			case word == "all" || slices.Contains(liveKinds[:], plural(word)):
				if watch {
					return command.Usage("--watch needs one stored kind, not %q", word)
				}
				if word == "all" && len(args) > 1 {
					return command.Usage("get all takes no names")
				}
				if word == "all" {
					return a.getAll(ctx, c)
				}
				if plural(word) == "rules" {
					return a.getRules(ctx, c, args[1:], everything)
				}
				return a.getLive(ctx, c, plural(word), args[1:])
			}
			n, err := nounNamed(word)
			switch {
			case err != nil:
				return err
			case watch:
				return a.watch(ctx, c, n, args[1:])
			case len(args) > 1:
				return a.getNamed(ctx, c, n, args[1:])
			}
			return a.getList(ctx, c, n)
		}),
	}
	cmd.Flags().BoolVarP(&watch, "watch", "w", false, "go on and show changes, until Ctrl-C or the daemon stays away")
	cmd.Flags().BoolVar(&everything, "all", false, "rules: those of the fabric's default forwarding, too")
	return cmd
}

func plural(word string) string { return strings.TrimSuffix(word, "s") + "s" }

func (a *app) getList(ctx context.Context, c *api.Client, n noun) error {
	list, items, err := n.list(ctx, c, api.ListOptions{})
	if err != nil {
		return err
	}
	if a.Structured() {
		return a.Encode(list)
	}
	if len(items) == 0 {
		fmt.Fprintf(a.Stderr, "no %s\n", n.kind().Plural())
		return nil
	}
	if n, err = counted(ctx, c, n); err != nil {
		return err
	}
	return a.printItems(n, items)
}

// getNamed shows one object bare, several as a list.
func (a *app) getNamed(ctx context.Context, c *api.Client, n noun, names []string) error {
	var items []any
	for _, name := range names {
		item, err := n.get(ctx, c, name)
		if err != nil {
			return err
		}
		items = append(items, item)
	}
	switch {
	case a.Structured() && len(items) == 1:
		return a.Encode(items[0])
	case a.Structured():
		return a.Encode(map[string]any{"items": items})
	}
	n, err := counted(ctx, c, n)
	if err != nil {
		return err
	}
	return a.printItems(n, items)
}

func (a *app) printItems(n noun, items []any) error {
	t, row := n.table(a.Wide())
	for _, item := range items {
		t.Add(row(item)...)
	}
	for _, head := range []string{"MESSAGE", "ADDRESS", "UPLINK", "FUNCTIONS", "MISSING", "TUNNELS", "SKEW", "MATCH_BY", "RUNTIMES"} {
		dropEmpty(&t, head)
	}
	if err := a.PrintTable(t); err != nil || !a.Wide() {
		return err
	}
	return a.printMissing(items)
}

// dropEmpty takes a column away that says nothing.
func dropEmpty(t *command.Table, head string) {
	i := slices.Index(t.Head, head)
	if i < 0 || slices.ContainsFunc(t.Rows, func(r []string) bool { return r[i] != "" }) {
		return
	}
	t.Head = slices.Delete(t.Head, i, i+1)
	if i < len(t.Coloured) {
		t.Coloured = slices.Delete(t.Coloured, i, i+1)
	}
	for j, r := range t.Rows {
		t.Rows[j] = slices.Delete(r, i, i+1)
	}
}

func (a *app) getAll(ctx context.Context, c *api.Client) error {
	all := map[string]any{}
	first := true
	for _, n := range nouns() {
		if n.kind() == api.KindEvent || n.kind() == api.KindOperation {
			continue
		}
		list, items, err := n.list(ctx, c, api.ListOptions{})
		if err != nil {
			return err
		}
		all[n.kind().Plural()] = list
		if a.Structured() || len(items) == 0 {
			continue
		}
		if !first {
			fmt.Fprintln(a.Stdout)
		}
		first = false
		fmt.Fprintln(a.Stdout, a.heading(strings.ToUpper(n.kind().Plural())))
		if n, err = counted(ctx, c, n); err != nil {
			return err
		}
		if err := a.printItems(n, items); err != nil {
			return err
		}
	}
	if a.Structured() {
		return a.Encode(all)
	}
	if first {
		fmt.Fprintln(a.Stderr, "nothing yet; see `weir apply --help`")
	}
	return nil
}

func (a *app) heading(s string) string {
	if a.Colours(a.Stdout) {
		return command.Cyan.Paint(s)
	}
	return s
}

// watch follows a kind. Tables grow by a line for each change, with its time.
func (a *app) watch(ctx context.Context, c *api.Client, n noun, names []string) error {
	o := api.ListOptions{}
	if len(names) == 1 {
		o.Name = names[0]
	} else if len(names) > 1 {
		return command.Usage("--watch takes one name at most")
	}
	head, known := true, known{}
	back := a.returns(c, &command.Progress{})
	for step := range n.watch(ctx, c, o) {
		if step.kind == api.DeltaError {
			if err := a.again(ctx, step.err, back); err != nil {
				return err
			}
			continue
		}
		for _, step := range known.news(n, step) {
			if err := a.printChange(n, step, &head); err != nil {
				return err
			}
		}
	}
	return context.Cause(ctx)
}

// known is what a watch has shown, by name: delivery is at least once, and what a watch missed for too long comes as a list of all.
type known map[string]any

// news are the parts of a step that say what was not known.
func (k known) news(n noun, step change) []change {
	fresh := change{kind: step.kind}
	there := map[string]bool{}
	for _, item := range step.items {
		name := n.meta(item).Name
		there[name] = true
		old, ok := k[name]
		switch {
		case step.kind == api.DeltaDelete && ok:
			delete(k, name)
		case step.kind != api.DeltaDelete && (!ok || n.meta(item).Revision != n.meta(old).Revision):
			k[name] = item
		default:
			continue
		}
		fresh.items = append(fresh.items, item)
	}
	if step.kind != api.DeltaReset {
		return []change{fresh}
	}
	gone := change{kind: api.DeltaDelete}
	for _, name := range slices.Sorted(maps.Keys(k)) {
		if !there[name] {
			gone.items = append(gone.items, k[name])
			delete(k, name)
		}
	}
	return []change{gone, fresh}
}

// permanent tells whether a watch ended with this error.
func permanent(err error) bool {
	return errors.Is(err, api.ErrBadRequest) || errors.Is(err, api.ErrUnauthorized) || errors.Is(err, api.ErrNotFound)
}

func (a *app) printChange(n noun, step change, head *bool) error {
	if a.Structured() {
		for _, item := range step.items {
			kind := step.kind
			if kind == api.DeltaReset {
				kind = api.DeltaPut
			}
			if err := a.EncodeItem(map[string]any{"type": kind, "object": item}); err != nil {
				return err
			}
		}
		return nil
	}
	t, row := n.table(a.Wide())
	if !*head {
		t.Head = nil
	}
	for _, item := range step.items {
		cells := row(item)
		if step.kind == api.DeltaDelete {
			cells[1] = "deleted"
		}
		t.Add(cells...)
	}
	if len(t.Rows) == 0 {
		return nil
	}
	*head = false
	return a.PrintTable(padded(t))
}

// padded widens the cells a little, since later lines cannot widen those that are printed.
func padded(t command.Table) command.Table {
	widen := func(cells []string) {
		for i := range cells[:max(len(cells)-1, 0)] {
			cells[i] = fmt.Sprintf("%-14s", cmp.Or(cells[i], "-"))
		}
	}
	if t.Head != nil {
		widen(t.Head)
	}
	for _, r := range t.Rows {
		widen(r)
	}
	t.Coloured = nil
	return t
}

func (a *app) getLive(ctx context.Context, c *api.Client, kind string, hosts []string) error {
	if len(hosts) == 0 {
		l, err := c.Hosts().List(ctx, api.ListOptions{})
		if err != nil {
			return err
		}
		for _, h := range l.Items {
			hosts = append(hosts, h.Name)
		}
	}
	all := []api.Counters{}
	for _, h := range hosts {
		counters, err := c.Counters(ctx, h)
		if err != nil {
			return err
		}
		all = append(all, counters)
	}
	if a.Structured() {
		keep(kind, all)
		if len(all) == 1 {
			return a.Encode(all[0])
		}
		return a.Encode(map[string]any{"items": all})
	}
	for i, counters := range all {
		if len(all) > 1 {
			fmt.Fprintln(a.Stdout, a.heading("HOST "+counters.Host))
		}
		if kind != "rules" {
			if err := a.PrintTable(portTable(counters.Ports, a.Wide())); err != nil {
				return err
			}
		}
		if kind == "counters" {
			fmt.Fprintln(a.Stdout)
		}
		if kind != "ports" {
			if err := a.PrintTable(ruleTable(counters.Rules)); err != nil {
				return err
			}
		}
		if i < len(all)-1 {
			fmt.Fprintln(a.Stdout)
		}
	}
	return nil
}

// keep takes away what was not asked for.
func keep(kind string, all []api.Counters) {
	for i := range all {
		switch kind {
		case "ports":
			all[i].Rules = []api.RuleCounters{}
		case "rules":
			all[i].Ports = []api.PortCounters{}
		}
	}
}

func portTable(ports []api.PortCounters, wide bool) command.Table {
	t := command.Table{Head: []string{"PORT", "NAME", "STATE", "RX PACKETS", "RX BYTES", "TX PACKETS", "TX BYTES", "DROPPED", "REFUSED", "SETTLED"}, Coloured: make([]bool, 11)}
	t.Coloured[2] = true
	if wide {
		t.Head = append(t.Head, "LINK")
	}
	for _, p := range ports {
		row := []string{fmt.Sprint(p.Port), p.Name, string(p.State), fmt.Sprint(p.Rx.Packets), command.Size(int64(p.Rx.Bytes)),
			fmt.Sprint(p.Tx.Packets), command.Size(int64(p.Tx.Bytes)), fmt.Sprint(p.Dropped.Packets), refusedText(p.Refused), settledText(p.Settles, p.Settled)}
		if wide {
			row = append(row, p.Link)
		}
		t.Add(row...)
	}
	dropEmpty(&t, "SETTLED")
	return t
}

// settledText counts the packets that did not enter a function; empty where it settles no flows.
func settledText(settles bool, c api.Counter) string {
	if !settles && c == (api.Counter{}) {
		return ""
	}
	return fmt.Sprint(c.Packets)
}

// refusedText is what port security dropped, by reason.
func refusedText(refused map[string]uint64) string {
	if len(refused) == 0 {
		return ""
	}
	var parts []string
	for _, why := range slices.Sorted(maps.Keys(refused)) {
		parts = append(parts, fmt.Sprintf("%s:%d", why, refused[why]))
	}
	return strings.Join(parts, ",")
}

func ruleTable(rules []api.RuleCounters) command.Table {
	t := command.Table{Head: []string{"COOKIE", "POLICY", "PACKETS", "BYTES", "RULE"}}
	for _, r := range rules {
		t.Add(r.Cookie, r.Policy, fmt.Sprint(r.Hits.Packets), command.Size(int64(r.Hits.Bytes)), r.Note)
	}
	return t
}

// completeObjects completes a kind, then the names that the daemon knows of it.
func (a *app) completeObjects(kinds []string) cobra.CompletionFunc {
	return func(cmd *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
		if len(args) == 0 {
			return kinds, cobra.ShellCompDirectiveNoFileComp
		}
		switch word := plural(strings.ToLower(args[0])); {
		case word == "rules":
			return append(a.completeNames(cmd, hosts(nil)), a.completeNames(cmd, switches())...), cobra.ShellCompDirectiveNoFileComp
		case slices.Contains(liveKinds[:], word):
			return a.completeNames(cmd, hosts(nil)), cobra.ShellCompDirectiveNoFileComp
		}
		n, err := nounNamed(args[0])
		if err != nil {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		return a.completeNames(cmd, n), cobra.ShellCompDirectiveNoFileComp
	}
}

const completionTimeout = 500 * time.Millisecond

func (a *app) completeNames(cmd *cobra.Command, n noun) []string {
	if command.FromEnvironment(cmd) != nil {
		return nil
	}
	c, err := a.Client()
	if err != nil {
		return nil
	}
	defer c.Close()
	ctx, cancel := context.WithTimeout(context.WithoutCancel(contextOf(cmd)), completionTimeout)
	defer cancel()
	_, items, err := n.list(ctx, c, api.ListOptions{})
	if err != nil {
		return nil
	}
	names := make([]string, len(items))
	for i, item := range items {
		names[i] = n.meta(item).Name
	}
	return names
}

func contextOf(cmd *cobra.Command) context.Context {
	if ctx := cmd.Context(); ctx != nil {
		return ctx
	}
	return context.Background()
}
