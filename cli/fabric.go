package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"weir.dev/weir/api"
	"weir.dev/weir/cli/command"
)

func switches() noun {
	return nounOf[api.Switch]{
		k: api.KindSwitch, other: []string{"sw"},
		reader: func(c *api.Client) api.Reader[api.Switch] { return c.Switches() },
		columns: []column[api.Switch]{
			{head: "NAME", cell: func(s api.Switch) string { return s.Name }},
			{head: "STATE", state: true, cell: func(s api.Switch) string { return state(s.Meta, s.Status.State) }},
			{head: "DATAPATH", cell: func(s api.Switch) string { return s.Status.DatapathID }},
			{head: "ADDRESS", cell: func(s api.Switch) string { return s.Status.Address }},
			{head: "PORTS", cell: func(s api.Switch) string { return portKinds(s.Status.Ports) }},
			{head: "RULES", cell: func(s api.Switch) string { return tableUse(s.Status.Tables, s.Status.Rules) }},
			{head: "VERSION", wide: true, cell: func(s api.Switch) string { return s.Status.Version }},
			{head: "BUNDLES", wide: true, cell: func(s api.Switch) string { return yesNo(s.Status.Bundles) }},
			{head: "PRODUCT", wide: true, cell: func(s api.Switch) string { return s.Status.Product }},
			{head: "CERTIFICATE", wide: true, cell: func(s api.Switch) string {
				switch {
				case s.Status.State != api.SwitchConnected:
					return ""
				case s.Status.Certificate == "":
					return "none: plain TCP"
				}
				return fmt.Sprintf("%s until %s", s.Status.Certificate, s.Status.CertificateExpires.Local().Format(time.DateOnly))
			}},
			{head: "SINCE", cell: func(s api.Switch) string { return since(s.Status.Since) }},
			{head: "MESSAGE", cell: func(s api.Switch) string { return s.Status.Message }},
		},
	}
}

// portKinds counts ports by what stands behind them: "3 edge, 2 link, 1 host, 1 unknown, 1 down".
func portKinds(ports []api.SwitchPort) string {
	n := map[string]int{}
	for _, p := range ports {
		if p.State != api.LinkUp {
			n["down"]++
			continue
		}
		n[p.Kind]++
	}
	var parts []string
	for _, kind := range []string{"edge", "link", "host", "unknown", "down"} {
		if n[kind] > 0 {
			parts = append(parts, fmt.Sprintf("%d %s", n[kind], kind))
		}
	}
	return strings.Join(parts, ", ")
}

// use is Weir's part of a table: "12 of 2000", "80 of 100 (needs 140)".
func use(t api.SwitchTable) string {
	switch {
	case t.Size == 0:
		return fmt.Sprint(t.Rules)
	case t.Needs > 0:
		return fmt.Sprintf("%d of %d (needs %d)", t.Rules, t.Size, t.Needs)
	}
	return fmt.Sprintf("%d of %d", t.Rules, t.Size)
}

// tableUse is the use of each table that Weir has rules in, by table where there are several.
func tableUse(tables []api.SwitchTable, all int) string {
	var parts []string
	for _, t := range tables {
		if t.Rules > 0 {
			parts = append(parts, fmt.Sprintf("%d: %s", t.ID, use(t)))
		}
	}
	switch {
	case len(parts) > 1:
		return strings.Join(parts, ", ")
	case len(parts) == 1:
		_, only, _ := strings.Cut(parts[0], ": ")
		return only
	}
	return fmt.Sprint(all)
}

func assignments() noun {
	return nounOf[api.Assignment]{
		k: api.KindAssignment, other: []string{"as"},
		reader: func(c *api.Client) api.Reader[api.Assignment] { return c.Assignments() },
		columns: []column[api.Assignment]{
			{head: "NAME", cell: func(x api.Assignment) string { return x.Name }},
			{head: "STATE", state: true, cell: func(x api.Assignment) string { return state(x.Meta, x.Status.State) }},
			{head: "GENERATION", cell: func(x api.Assignment) string {
				if x.Status.ObservedGeneration == x.Generation {
					return fmt.Sprint(x.Generation)
				}
				return fmt.Sprintf("%d, installed %d", x.Generation, x.Status.ObservedGeneration)
			}},
			{head: "RULES", cell: func(x api.Assignment) string { return fmt.Sprint(len(x.Spec.Rules)) }},
			{head: "MISSING", cell: func(x api.Assignment) string { return number(int64(len(x.Status.Missing))) }},
			{head: "TUNNELS", cell: func(x api.Assignment) string {
				var to []string
				for _, t := range x.Spec.Tunnels {
					to = append(to, t.Host)
				}
				return strings.Join(to, ",")
			}},
			{head: "POLICIES", cell: func(x api.Assignment) string { return strings.Join(x.Spec.Policies(), ",") }},
			{head: "AGE", cell: func(x api.Assignment) string { return since(x.Created) }},
			{head: "MESSAGE", cell: func(x api.Assignment) string { return x.Status.Message }},
		},
	}
}

// hosts are the hosts; placed tells how many functions are on each, nil if nobody has counted.
func hosts(placed map[string]int) noun {
	return stored(nounOf[api.Host]{
		k: api.KindHost,
		columns: []column[api.Host]{
			{head: "NAME", cell: func(h api.Host) string { return h.Name }},
			{head: "STATE", state: true, cell: func(h api.Host) string { return state(h.Meta, h.Status.State) }},
			{head: "ADDRESS", cell: func(h api.Host) string { return h.Status.Address }},
			{head: "TUNNELS", wide: true, cell: func(h api.Host) string {
				switch {
				case h.Status.Address == "":
					return ""
				case h.Status.TunnelKey != "":
					return "wireguard"
				}
				return "plain only"
			}},
			{head: "SWITCH", cell: func(h api.Host) string { return h.Status.Switch }},
			{head: "UPLINK", cell: func(h api.Host) string { return uplinks(h.Status.Uplinks) }},
			{head: "LOAD", cell: func(h api.Host) string {
				if h.Status.Cores == 0 {
					return ""
				}
				return fmt.Sprintf("%.2f of %d", h.Status.Load, h.Status.Cores)
			}},
			{head: "FREE", cell: func(h api.Host) string {
				if h.Status.Memory == 0 || h.Status.Free == 0 {
					return ""
				}
				return command.Size(h.Status.Free) + " of " + command.Size(h.Status.Memory)
			}},
			{head: "FUNCTIONS", cell: func(h api.Host) string {
				if placed == nil {
					return ""
				}
				return fmt.Sprint(placed[h.Name])
			}},
			{head: "SCHEDULABLE", cell: func(h api.Host) string {
				if h.Spec.Drain {
					return drainText(h.Status.Drain)
				}
				return yesNo(h.Spec.Takes())
			}},
			{head: "HEARTBEAT", cell: func(h api.Host) string { return since(h.Status.Heartbeat) }},
			{head: "VERSION", cell: func(h api.Host) string { return h.Status.Version }},
			{head: "KERNEL", wide: true, cell: func(h api.Host) string { return h.Status.Kernel }},
			{head: "RUNTIME", wide: true, cell: func(h api.Host) string { return h.Status.Runtime }},
			{head: "RUNTIMES", wide: true, cell: func(h api.Host) string {
				there, _ := runtimesOf(h.Status)
				return strings.Join(there, ",")
			}},
			{head: "BRIDGE", wide: true, cell: func(h api.Host) string { return h.Status.Bridge }},
			{head: "SKEW", wide: true, cell: func(h api.Host) string {
				if h.Status.Skew == 0 {
					return ""
				}
				return time.Duration(h.Status.Skew).Round(time.Millisecond).String()
			}},
			{head: "IMAGES", wide: true, cell: func(h api.Host) string { return strings.Join(eachOnce(h.Status.Images), ",") }},
		},
	}, (*api.Client).Hosts)
}

// drainText says how far a host's drain is.
func drainText(d *api.HostDrain) string {
	switch {
	case d == nil:
		return "draining"
	case d.Leaving > 0:
		return fmt.Sprintf("draining, %d left", d.Leaving+d.Stays)
	case d.Stays > 0:
		return fmt.Sprintf("draining, %d stay", d.Stays)
	}
	return "drained"
}

// eachOnce leaves out names without a tag of images that are there with one: a host reports both, since users may leave the tag out.
func eachOnce(images []string) (once []string) {
	for _, name := range images {
		if !slices.ContainsFunc(images, func(ref string) bool {
			tag, ok := strings.CutPrefix(ref, name)
			return ok && (strings.HasPrefix(tag, "@") || strings.HasPrefix(tag, ":") && !strings.Contains(tag, "/")) // a colon before a slash is that of a port
		}) {
			once = append(once, name)
		}
	}
	return once
}

// runtimesOf are the names of the runtimes that a host has, and of those that it has not. Those that have not told yet are neither.
func runtimesOf(s api.HostStatus) (there, missing []string) {
	for _, r := range s.Runtimes {
		switch {
		case r.Available:
			there = append(there, r.Name)
		case r.Why != api.RuntimeNotKnown:
			missing = append(missing, r.Name)
		}
	}
	return there, missing
}

const (
	mostReasons = 20 // why hosts lack runtimes; what is beyond is in their descriptions
	mostHosts   = 5  // named beside a reason
)

// printMissing says why hosts lack runtimes, once for all hosts with the same reason.
func (a *app) printMissing(items []any) error {
	type reason struct{ runtime, why string }
	var reasons []reason
	where := map[reason][]string{}
	for _, item := range items {
		h, isHost := item.(api.Host)
		if !isHost {
			return nil
		}
		for _, r := range h.Status.Runtimes {
			if r.Available {
				continue
			}
			why := reason{r.Name, r.Why}
			if where[why] == nil {
				reasons = append(reasons, why)
			}
			where[why] = append(where[why], h.Name)
		}
	}
	slices.SortFunc(reasons, func(x, y reason) int { return cmp.Or(cmp.Compare(x.runtime, y.runtime), cmp.Compare(x.why, y.why)) })
	for i, r := range reasons {
		if i == mostReasons {
			_, err := fmt.Fprintf(a.Stdout, "and %d more reasons: weir describe host NAME\n", len(reasons)-i)
			return err
		}
		hosts := where[r]
		text := strings.Join(hosts[:min(len(hosts), mostHosts)], ", ")
		if n := len(hosts) - mostHosts; n > 0 {
			text += fmt.Sprintf(" and %d others", n)
		}
		if _, err := fmt.Fprintf(a.Stdout, "no runtime %s at %s: %s\n", command.Printable(r.runtime), command.Printable(text), command.Printable(r.why)); err != nil {
			return err
		}
	}
	return nil
}

func uplinks(list []api.Uplink) string {
	var parts []string
	for _, u := range list {
		text := u.Interface
		if u.State != api.LinkUp {
			text += " (" + cmp.Or(string(u.State), "not known") + ")"
		}
		parts = append(parts, text)
	}
	return strings.Join(parts, ",")
}

// counted is a kind whose table needs another kind's objects: that of hosts tells how many functions are on each.
func counted(ctx context.Context, c *api.Client, n noun) (noun, error) {
	if n.kind() != api.KindHost {
		return n, nil
	}
	l, err := c.Functions().List(ctx, api.ListOptions{})
	if err != nil {
		return nil, err
	}
	return hosts(placed(l.Items)), nil
}

// placed counts functions by host.
func placed(functions []api.Function) map[string]int {
	n := map[string]int{}
	for _, f := range functions {
		n[f.At()]++
	}
	return n
}

// where is the place of an endpoint: a host, or a switch and its port.
func where(e api.Endpoint) string {
	switch {
	case e.Spec.Switch != "":
		return e.Spec.Switch + ":" + e.Spec.SwitchPort
	case !e.Spec.OfHost():
		return e.Status.Link
	}
	return e.At()
}

// ruleSet is the rules of one host or one switch.
type ruleSet struct {
	host     *api.Counters
	fabric   *api.SwitchRules
	defaults int // entries of default forwarding that were left out
}

func (r ruleSet) value() any {
	if r.host != nil {
		return r.host
	}
	return r.fabric
}

// getRules shows the rules of hosts and fabric switches, read live: those that are named, else of all that can be asked.
func (a *app) getRules(ctx context.Context, c *api.Client, names []string, all bool) error {
	sets, err := a.ruleSets(ctx, c, names)
	if err != nil {
		return err
	}
	for i := range sets {
		if sets[i].fabric != nil && !all {
			sets[i].hideDefaults()
		}
	}
	if a.Structured() {
		values := make([]any, len(sets))
		for i, s := range sets {
			if s.host != nil {
				s.host.Ports = []api.PortCounters{}
			}
			values[i] = s.value()
		}
		if len(values) == 1 {
			return a.Encode(values[0])
		}
		return a.Encode(map[string]any{"items": values})
	}
	for i, s := range sets {
		if i > 0 {
			fmt.Fprintln(a.Stdout)
		}
		if err := a.printRules(s, len(sets) > 1); err != nil {
			return err
		}
	}
	return nil
}

// hideDefaults leaves out what belongs to no policy.
func (r *ruleSet) hideDefaults() {
	all := r.fabric.Rules
	r.fabric.Rules = slices.DeleteFunc(slices.Clone(all), func(x api.SwitchRule) bool { return x.Policy == "" })
	r.defaults = len(all) - len(r.fabric.Rules)
}

// ruleSets asks hosts and switches. Of those that nobody named, one that is lost is only said to be.
func (a *app) ruleSets(ctx context.Context, c *api.Client, names []string) ([]ruleSet, error) {
	h, err := c.Hosts().List(ctx, api.ListOptions{})
	if err != nil {
		return nil, err
	}
	s, err := c.Switches().List(ctx, api.ListOptions{})
	if err != nil {
		return nil, err
	}
	for _, name := range names {
		if !slices.ContainsFunc(h.Items, func(x api.Host) bool { return x.Name == name }) && !slices.ContainsFunc(s.Items, func(x api.Switch) bool { return x.Name == name }) {
			return nil, api.Refuse(404, fmt.Sprintf("no host or switch is called %q", name))
		}
	}
	wanted := func(name string) bool { return len(names) == 0 || slices.Contains(names, name) }
	sets := []ruleSet{}
	skip := func(what, name string, lost bool, err error) bool {
		if len(names) > 0 || !lost && !errors.Is(err, api.ErrBusy) {
			return false
		}
		fmt.Fprintf(a.Stderr, "%s %s cannot be asked: %s\n", what, name, cmp.Or(firstLine(err), "it is lost"))
		return true
	}
	for _, x := range h.Items {
		if !wanted(x.Name) || len(h.Items)+len(s.Items) > 1 && skip("host", x.Name, x.Status.State == api.HostLost, nil) {
			continue
		}
		counters, err := c.Counters(ctx, x.Name)
		if err != nil && len(h.Items)+len(s.Items) > 1 && skip("host", x.Name, false, err) {
			continue
		}
		if err != nil {
			return nil, err
		}
		sets = append(sets, ruleSet{host: &counters})
	}
	for _, x := range s.Items {
		if !wanted(x.Name) || skip("switch", x.Name, x.Status.State == api.SwitchLost, nil) {
			continue
		}
		rules, err := c.SwitchRules(ctx, x.Name)
		if err != nil && skip("switch", x.Name, false, err) {
			continue
		}
		if err != nil {
			return nil, err
		}
		sets = append(sets, ruleSet{fabric: &rules})
	}
	return sets, nil
}

func firstLine(err error) string {
	if err == nil {
		return ""
	}
	text, _, _ := strings.Cut(err.Error(), "\n")
	return text
}

func (a *app) printRules(s ruleSet, heading bool) error {
	if s.host != nil {
		if heading {
			fmt.Fprintln(a.Stdout, a.heading(fmt.Sprintf("HOST %s: %d rules", command.Printable(s.host.Host), len(s.host.Rules))))
		}
		return a.PrintTable(ruleTable(s.host.Rules))
	}
	f := s.fabric
	var tables []string
	for _, t := range f.Tables {
		if t.Rules == 0 {
			continue
		}
		name := fmt.Sprint(t.ID)
		if t.Name != "" {
			name += " (" + t.Name + ")"
		}
		tables = append(tables, "table "+name+" "+use(t))
	}
	fmt.Fprintln(a.Stdout, a.heading(command.Printable("SWITCH "+f.Switch+": "+cmp.Or(strings.Join(tables, ", "), "no rules"))))
	if f.Message != "" {
		fmt.Fprintln(a.Stdout, command.Printable(f.Message))
	}
	t := command.Table{Head: []string{"TABLE", "PRIORITY", "MATCH", "ACTIONS", "PACKETS", "BYTES", "POLICY", "RULE"}}
	for _, r := range f.Rules {
		t.Add(fmt.Sprint(r.Table), fmt.Sprint(r.Priority), r.Match, r.Actions, fmt.Sprint(r.Hits.Packets), command.Size(int64(r.Hits.Bytes)), r.Policy, r.Note)
	}
	if len(f.Rules) > 0 {
		if err := a.PrintTable(t); err != nil {
			return err
		}
	}
	if s.defaults > 0 {
		fmt.Fprintf(a.Stdout, "and %d of default forwarding; see --all\n", s.defaults)
	}
	return nil
}
