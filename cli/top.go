package cli

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	"weir.dev/weir/api"
	"weir.dev/weir/cli/command"
)

// Kinds that weir top shows.
var topKinds = []string{"functions", "ports", "rules", "policies"}

// topTraffic is one that stands alone.
const topTraffic = "traffic"

func (a *app) topCommand() *cobra.Command {
	var once bool
	cmd := &cobra.Command{
		Use:   "top [KIND...]",
		Short: "Show packets and bits a second, of all hosts, as they change",
		Long: `Show packets and bits a second of functions, ports, rules and policies (default functions and ports), the busiest first, each second until Ctrl-C.
They are the differences of the switches' own counters. Without a terminal one table follows another; -o json prints a line each second.

"weir top traffic" shows once what endpoints have sent in the last hour.

A function's IN is what it gets at all of its ports, OUT what it gives, CPU how many processors it
keeps busy; RTT is of the last probe frame through it. A port's RX is what the switch gets there.
Of a policy: what its rules catch at hosts, each frame once, where it enters. What fabric switches catch is not counted.`,
		Example: `  weir top
  weir top rules
  weir top policies
  weir top traffic
  weir top --once -o json`,
		Args:      command.WantArgs(0, len(topKinds), "functions, ports, rules or policies, or traffic alone"),
		ValidArgs: append(slices.Clone(topKinds), topTraffic),
		RunE: a.Speaks(func(ctx context.Context, c *api.Client, args []string) error {
			if slices.Equal(args, []string{topTraffic}) {
				return a.printTraffic(ctx, c)
			}
			kinds := []string{"functions", "ports"}
			if len(args) > 0 {
				kinds = nil
			}
			for _, arg := range args {
				kind := strings.Replace(plural(strings.ToLower(arg)), "policys", "policies", 1)
				if !slices.Contains(topKinds, kind) {
					return command.Usage("weir top %s: want functions, ports, rules or policies, or traffic alone", arg)
				}
				kinds = append(kinds, kind)
			}
			if once {
				r, err := c.Rates(ctx)
				if err != nil {
					return err
				}
				if a.Structured() {
					return a.Encode(r)
				}
				return a.printRates(r, kinds)
			}
			return a.top(ctx, c, kinds)
		}),
	}
	cmd.Flags().BoolVar(&once, "once", false, "show the rates of one second and end")
	return cmd
}

// top shows rates until ctx ends; a manager that is away for a while is waited for.
func (a *app) top(ctx context.Context, c *api.Client, kinds []string) error {
	show := func(r api.Rates) error {
		if a.Structured() {
			return a.EncodeItem(r)
		}
		return a.printRates(r, kinds)
	}
	if screen, ok := a.Stdout.(*os.File); ok && !a.Structured() && term.IsTerminal(int(screen.Fd())) {
		fmt.Fprint(screen, "\x1b[?1049h\x1b[?25l") // a screen of its own, no cursor
		defer fmt.Fprint(screen, "\x1b[?25h\x1b[?1049l")
		show = func(r api.Rates) error { return a.paintRates(screen, r, kinds) }
	}
	back := a.returns(c, &command.Progress{})
	for {
		err := c.WatchRates(ctx, show)
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		if !errors.Is(err, api.ErrUnreachable) {
			return err
		}
		if _, gone := back(ctx); gone != nil {
			return gone
		}
	}
}

// paintRates fills a terminal.
func (a *app) paintRates(screen *os.File, r api.Rates, kinds []string) error {
	columns, rows, err := term.GetSize(int(screen.Fd()))
	if err != nil || columns <= 0 || rows <= 0 {
		columns, rows = 80, 24
	}
	var b bytes.Buffer
	onScreen := &app{App: a.App.With(&b), o: a.o}
	fmt.Fprintf(&b, "%s  %s\n\n", r.Time.Local().Format(time.TimeOnly), "Ctrl-C ends")
	if err := onScreen.printRates(r, kinds); err != nil {
		return err
	}
	lines := strings.Split(strings.TrimRight(b.String(), "\n"), "\n")
	var out strings.Builder
	out.WriteString("\x1b[H")
	for i, line := range lines[:min(len(lines), rows-1)] {
		if runes := []rune(line); len(runes) > columns {
			line = string(runes[:columns]) + "\x1b[39m" // the cut may have taken a colour's end away
		}
		if i > 0 {
			out.WriteString("\r\n")
		}
		out.WriteString(line + "\x1b[K")
	}
	out.WriteString("\x1b[J")
	_, err = screen.WriteString(out.String())
	return err
}

func (a *app) printRates(r api.Rates, kinds []string) error {
	for _, h := range r.Hosts {
		if h.Message != "" {
			fmt.Fprintf(a.Stdout, "host %s: %s\n", h.Host, command.Printable(h.Message))
		}
	}
	for i, kind := range kinds {
		if i > 0 {
			fmt.Fprintln(a.Stdout)
		}
		t := functionRateTable(r.Functions)
		switch kind {
		case "ports":
			t = portRateTable(r.Ports)
		case "rules":
			t = ruleRateTable(r.Rules)
		case "policies":
			t = policyRateTable(r.Policies)
		}
		if len(r.Hosts) == 1 {
			dropColumn(&t, "HOST")
		}
		if err := a.PrintTable(t); err != nil {
			return err
		}
	}
	return nil
}

func dropColumn(t *command.Table, head string) {
	i := slices.Index(t.Head, head)
	if i < 0 {
		return
	}
	t.Head = slices.Delete(t.Head, i, i+1)
	for j, r := range t.Rows {
		t.Rows[j] = slices.Delete(r, i, i+1)
	}
}

func functionRateTable(list []api.FunctionRates) command.Table {
	t := command.Table{Head: []string{"FUNCTION", "STATE", "HOST", "IN PPS", "IN BIT/S", "OUT PPS", "OUT BIT/S", "DROPPED/S", "CPU", "MEMORY", "RTT", "RESTARTS"}, Coloured: []bool{false, true, false, false, false, false, false, false, false, false, false, false}}
	slices.SortStableFunc(list, func(x, y api.FunctionRates) int { return cmp.Compare(y.In.PacketsPerS, x.In.PacketsPerS) })
	for _, f := range list {
		state := string(f.State)
		if f.State == api.FunctionStarted && !f.Healthy {
			state = "down"
		}
		rtt := ""
		if f.RTTns > 0 {
			rtt = time.Duration(f.RTTns).Round(100 * time.Nanosecond).String()
		}
		cpu, memory := "", ""
		if f.MemoryBytes > 0 {
			cpu, memory = fmt.Sprintf("%.2f", f.CPUs), fmt.Sprintf("%.1fM", float64(f.MemoryBytes)/(1<<20))
		}
		t.Add(f.Name, state, f.Host, perSecond(f.In.PacketsPerS), perSecond(f.In.BitsPerS), perSecond(f.Out.PacketsPerS), perSecond(f.Out.BitsPerS), perSecond(f.DroppedPerS), cpu, memory, rtt, fmt.Sprint(f.Restarts))
	}
	return t
}

func portRateTable(list []api.PortRates) command.Table {
	t := command.Table{Head: []string{"PORT", "HOST", "RX PPS", "RX BIT/S", "TX PPS", "TX BIT/S", "DROPPED/S"}}
	busy := func(p api.PortRates) float64 { return p.Rx.PacketsPerS + p.Tx.PacketsPerS }
	slices.SortStableFunc(list, func(x, y api.PortRates) int { return cmp.Compare(busy(y), busy(x)) })
	for _, p := range list {
		t.Add(p.Name, p.Host, perSecond(p.Rx.PacketsPerS), perSecond(p.Rx.BitsPerS), perSecond(p.Tx.PacketsPerS), perSecond(p.Tx.BitsPerS), perSecond(p.DroppedPerS))
	}
	return t
}

func policyRateTable(list []api.PolicyRates) command.Table {
	t := command.Table{Head: []string{"POLICY", "PPS", "BIT/S", "REPLIES PPS", "REPLIES BIT/S"}}
	busy := func(p api.PolicyRates) float64 { return p.Forward.PacketsPerS + p.Reverse.PacketsPerS }
	slices.SortStableFunc(list, func(x, y api.PolicyRates) int { return cmp.Compare(busy(y), busy(x)) })
	for _, p := range list {
		t.Add(p.Name, perSecond(p.Forward.PacketsPerS), perSecond(p.Forward.BitsPerS), perSecond(p.Reverse.PacketsPerS), perSecond(p.Reverse.BitsPerS))
	}
	return t
}

func ruleRateTable(list []api.RuleRates) command.Table {
	t := command.Table{Head: []string{"POLICY", "HOST", "PPS", "BIT/S", "COOKIE", "RULE"}}
	slices.SortStableFunc(list, func(x, y api.RuleRates) int { return cmp.Compare(y.Hits.PacketsPerS, x.Hits.PacketsPerS) })
	for _, r := range list {
		t.Add(r.Policy, r.Host, perSecond(r.Hits.PacketsPerS), perSecond(r.Hits.BitsPerS), r.Cookie, r.Note)
	}
	return t
}

// printTraffic shows what endpoints have sent in the last hour.
func (a *app) printTraffic(ctx context.Context, c *api.Client) error {
	all, err := c.Traffic(ctx)
	if err != nil {
		return err
	}
	if a.Structured() {
		return a.Encode(all)
	}
	if len(all.Points) == 0 {
		fmt.Fprintf(a.Stdout, "no figures yet: the first one comes %s after the manager's start\n", time.Duration(all.EveryNs))
		return nil
	}
	t := command.Table{Head: []string{"TIME", "HOSTS", "PPS", "BIT/S", "DROPPED/S"}}
	for _, p := range all.Points {
		t.Add(p.Time.Local().Format(time.TimeOnly), fmt.Sprint(p.Hosts), perSecond(p.PacketsPerS), perSecond(p.BitsPerS), perSecond(p.DroppedPerS))
	}
	return a.PrintTable(t)
}

// perSecond is a number with a unit of powers of 1000.
func perSecond(f float64) string {
	if f < 10_000 {
		return fmt.Sprintf("%.0f", f)
	}
	units := "kMGTPE"
	i := 0
	for f /= 1000; f >= 10_000 && i < len(units)-1; i++ {
		f /= 1000
	}
	return fmt.Sprintf("%.1f%c", f, units[i])
}
