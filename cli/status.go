package cli

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"weir.dev/weir/api"
	"weir.dev/weir/cli/command"
)

// overview is what `weir status -o json` gives.
type overview struct {
	Healthy   bool           `json:"healthy"`
	Hosts     []api.Host     `json:"hosts"`
	Switches  []api.Switch   `json:"switches"`
	Endpoints []api.Endpoint `json:"endpoints"`
	Functions []api.Function `json:"functions"`
	Chains    []api.Chain    `json:"chains"`
	Policies  []api.Policy   `json:"policies"`
	Events    []api.Event    `json:"events"` // the latest warnings and errors
}

const (
	statusRows   = 12 // of each kind on the screen
	statusEvents = 5
	oneByOne     = 1 // so many hosts are described in full, more are a table

	startingFor   = 2 * time.Second // how long status waits for a host that is starting
	startingAgain = 50 * time.Millisecond
)

func (a *app) statusCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "status",
		Short: "Show on one screen how things are",
		Long:  "Show on one screen how things are: daemon, hosts, the fabric's switches, functions, chains, policies, what was wrong lately. What is not well comes first.",
		Example: `  weir status
  weir status -o json`,
		Args: command.NoArgs(),
		RunE: a.Speaks(func(ctx context.Context, c *api.Client, _ []string) error {
			if err := c.Health(ctx); err != nil {
				return err
			}
			look := settle
			if a.Structured() { // a program decides by itself how long it waits
				look = survey
			}
			s, err := look(ctx, c)
			if err != nil {
				return err
			}
			if a.Structured() {
				return a.Encode(s)
			}
			return a.printStatus(s)
		}),
	}
}

func survey(ctx context.Context, c *api.Client) (overview, error) {
	s := overview{Healthy: true}
	var errs [7]error
	fetch(ctx, c.Hosts().Reader, api.ListOptions{}, &s.Hosts, &errs[0])
	fetch(ctx, c.Endpoints().Reader, api.ListOptions{}, &s.Endpoints, &errs[1])
	fetch(ctx, c.Functions().Reader, api.ListOptions{}, &s.Functions, &errs[2])
	fetch(ctx, c.Chains().Reader, api.ListOptions{}, &s.Chains, &errs[3])
	fetch(ctx, c.Policies().Reader, api.ListOptions{}, &s.Policies, &errs[4])
	fetch(ctx, c.Events(), api.ListOptions{Limit: statusEvents, Severity: api.Warning}, &s.Events, &errs[5])
	fetch(ctx, c.Switches(), api.ListOptions{}, &s.Switches, &errs[6])
	for _, err := range errs {
		if err != nil {
			return s, err
		}
	}
	slices.SortStableFunc(s.Events, func(x, y api.Event) int { return x.Time.Compare(y.Time) })
	degrade(s)
	s.Healthy = len(s.Hosts) > 0 && well(s.Endpoints) && well(s.Functions) && well(s.Chains) && well(s.Policies) && well(s.Switches) &&
		!slices.ContainsFunc(s.Hosts, func(h api.Host) bool { return h.Status.State != api.HostReady })
	return s, nil
}

// degrade takes no chain for well whose functions are not: its own status comes a moment after theirs.
func degrade(s overview) {
	down := map[string]bool{}
	for _, f := range s.Functions {
		down[f.Name] = !f.Status.Healthy
	}
	for i, c := range s.Chains {
		if c.Status.State != api.ChainReady {
			continue
		}
		names := slices.DeleteFunc(c.Spec.Functions(), func(f string) bool { return !down[f] })
		if len(names) > 0 {
			s.Chains[i].Status.State, s.Chains[i].Status.Message = api.ChainDegraded, "down: "+strings.Join(names, ", ")
		}
	}
}

// settle takes the survey again for a moment while a host is starting: most are through with it at once.
func settle(ctx context.Context, c *api.Client) (overview, error) {
	for deadline := time.Now().Add(startingFor); ; {
		s, err := survey(ctx, c)
		if err != nil || !s.starting() || time.Now().After(deadline) {
			return s, err
		}
		select {
		case <-ctx.Done():
			return s, ctx.Err()
		case <-time.After(startingAgain):
		}
	}
}

// starting tells that what is known may be from before the daemon's start.
func (s overview) starting() bool {
	return len(s.Hosts) == 0 || slices.ContainsFunc(s.Hosts, func(h api.Host) bool { return h.Status.State == api.HostStarting || h.Status.State == "" })
}

func fetch[T any](ctx context.Context, r api.Reader[T], o api.ListOptions, into *[]T, failed *error) {
	l, err := r.List(ctx, o)
	*into, *failed = l.Items, err
	if l.Items == nil {
		*into = []T{}
	}
}

func well[T any](items []T) bool {
	return !slices.ContainsFunc(items, func(item T) bool { return ready(item) != "" })
}

func (a *app) printStatus(s overview) error {
	word := command.Green.Paint("all well")
	switch {
	case len(s.Hosts) == 0:
		word = command.Yellow.Paint("no host has joined yet; a host's agent joins with a token (weir token create)")
	case s.starting():
		word = command.Yellow.Paint("starting: what follows may be from before the start")
	case !s.Healthy:
		word = command.Yellow.Paint("not all well")
	}
	if !a.Colours(a.Stdout) {
		word = strings.NewReplacer("\x1b[32m", "", "\x1b[33m", "", "\x1b[39m", "").Replace(word)
	}
	fmt.Fprintf(a.Stdout, "weir is up: %s\n", word)
	if len(s.Hosts) <= oneByOne {
		for _, h := range s.Hosts {
			a.printHost(h)
		}
	}
	if len(s.Hosts) > 1 {
		if err := printSection(a, "HOSTS", hosts(placed(s.Functions)), s.Hosts); err != nil {
			return err
		}
	}
	if err := printSection(a, "SWITCHES", switches(), s.Switches); err != nil {
		return err
	}
	if err := printSection(a, "ENDPOINTS", endpoints(), s.Endpoints); err != nil {
		return err
	}
	if err := printSection(a, "FUNCTIONS", functions(), s.Functions); err != nil {
		return err
	}
	if err := printSection(a, "CHAINS", chains(), s.Chains); err != nil {
		return err
	}
	if err := printSection(a, "POLICIES", policies(), s.Policies); err != nil {
		return err
	}
	if len(s.Events) == 0 {
		return nil
	}
	fmt.Fprintf(a.Stdout, "\n%s\n", a.heading("LATEST WARNINGS"))
	return a.printEvents(s.Events)
}

func (a *app) printHost(h api.Host) {
	st := h.Status
	parts := []string{state(h.Meta, st.State)}
	for _, p := range []struct{ label, value string }{{"weir", st.Version}, {"kernel", st.Kernel}, {"switch", st.Switch}, {"runtime", st.Runtime},
		{"bridge", st.Bridge}} {
		if p.value != "" {
			parts = append(parts, p.label+" "+p.value)
		}
	}
	if st.Cores > 0 {
		parts = append(parts, fmt.Sprintf("%d cores", st.Cores), command.Size(st.Memory)+" memory")
	}
	if st.State == api.HostLost {
		parts = append(parts, "silent for "+command.Age(st.Heartbeat, time.Now()))
	}
	fmt.Fprintf(a.Stdout, "host %s: %s\n", command.Printable(h.Name), command.Printable(strings.Join(parts, ", ")))
	if there, missing := runtimesOf(st); len(missing) > 0 {
		fmt.Fprintf(a.Stdout, "  runtimes: %s; without %s (why: weir describe host %s)\n", command.Printable(strings.Join(there, ", ")),
			command.Printable(strings.Join(missing, ", ")), command.Printable(h.Name))
	}
	for _, f := range st.Features {
		if !f.OK {
			fmt.Fprintf(a.Stdout, "  without %s: %s\n", command.Printable(f.Name), shortened(command.Printable(f.Detail)))
		}
	}
}

// printSection shows a kind's objects, those that are not well first, as many as a screen can take.
func printSection[T any](a *app, head string, n noun, items []T) error {
	if len(items) == 0 {
		return nil
	}
	show := slices.Clone(items)
	slices.SortStableFunc(show, func(x, y T) int { return cmp.Compare(wellFirst(y), wellFirst(x)) })
	more := max(0, len(show)-statusRows)
	fmt.Fprintf(a.Stdout, "\n%s\n", a.heading(head))
	if err := a.printItems(n, anys(show[:len(show)-more])); err != nil {
		return err
	}
	if more > 0 {
		fmt.Fprintf(a.Stdout, "and %d more; see `weir get %s`\n", more, n.kind().Plural())
	}
	return nil
}

func wellFirst(item any) int {
	if ready(item) == "" {
		return 0
	}
	return 1
}

// maxDetail is how much of a feature's explanation the screen has room for.
const maxDetail = 120

// shortened leaves out clauses at the end, or else cuts.
func shortened(s string) string {
	r := []rune(s)
	if len(r) <= maxDetail {
		return s
	}
	cut := string(r[:maxDetail])
	if i := strings.LastIndex(cut, "; "); i > 0 {
		return cut[:i] + " (more: weir check)"
	}
	return cut + "... (all of it: weir check)"
}
