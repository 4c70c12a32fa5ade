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

func (a *app) eventsCommand() *cobra.Command {
	var follow bool
	var o api.ListOptions
	var about, from, severity string
	cmd := &cobra.Command{
		Use:   "events",
		Short: "Show what happened, the newest last",
		Long: `Show what happened, the newest last. What happens again and again is one line, with how often and for how long by then:
"x5 over 90s".`,
		Example: `  weir events
  weir events -f --severity warning
  weir events -f --from ids --severity error
  weir events --object function/fw -o json`,
		Args: command.NoArgs(),
		RunE: a.Speaks(func(ctx context.Context, c *api.Client, _ []string) error {
			if err := eventFilter(&o, about, from, severity); err != nil {
				return err
			}
			l, err := c.Events().List(ctx, o)
			if err != nil {
				return err
			}
			slices.SortStableFunc(l.Items, func(x, y api.Event) int { return x.Time.Compare(y.Time) })
			if a.Structured() && !follow {
				return a.Encode(l)
			}
			if err := a.printEvents(l.Items); err != nil || !follow {
				return err
			}
			return a.followEvents(ctx, c, l, o)
		}),
	}
	f := cmd.Flags()
	f.BoolVarP(&follow, "follow", "f", false, "go on with what happens, until Ctrl-C or the daemon stays away")
	f.IntVar(&o.Limit, "limit", 100, "how many of the newest; 0 is all")
	f.StringVar(&about, "object", "", "only about this object, as KIND/NAME, or about this KIND")
	f.StringVar(&from, "from", "", "only what this one raised: a function, function/NAME, host/NAME, manager or router")
	f.StringVar(&severity, "severity", "", "only this severe or more: info, warning, error")
	return cmd
}

func eventFilter(o *api.ListOptions, about, from, severity string) error {
	switch kind, _, qualified := strings.Cut(from, "/"); {
	case from == "", from == api.SourceManager, from == api.SourceRouter, qualified && (kind == string(api.KindHost) || kind == string(api.KindFunction)):
		o.Source = from
	case qualified:
		return command.Usage("--from %q: want a function, function/NAME, host/NAME, manager or router", from)
	default:
		o.Source = api.SourceOf(api.KindFunction, from)
	}
	if severity != "" && !slices.Contains([]string{"info", "warning", "error"}, severity) {
		return command.Usage("--severity %q: want info, warning or error", severity)
	}
	if o.Limit < 0 {
		return command.Usage("--limit %d: want 0 (all) or more", o.Limit)
	}
	o.Severity = api.Severity(severity)
	if about == "" {
		return nil
	}
	kind, name, _ := strings.Cut(about, "/")
	n, err := nounNamed(kind)
	if err != nil {
		return err
	}
	o.Kind, o.Object = n.kind(), name
	return nil
}

func (a *app) printEvents(list []api.Event) error {
	for _, e := range list {
		if a.Structured() {
			if err := a.EncodeItem(e); err != nil {
				return err
			}
			continue
		}
		severity := fmt.Sprintf("%-7s", e.Severity)
		if a.Colours(a.Stdout) {
			severity = command.StateColour(string(e.Severity)).Paint(severity)
		}
		if _, err := fmt.Fprintf(a.Stdout, "%s  %s  %-18s  %-18s  %s\n", e.Time.Local().Format("2006-01-02 15:04:05.000"), severity,
			command.Printable(e.Reason), command.Printable(eventObject(e)), command.Printable(eventMessage(e))); err != nil {
			return err
		}
	}
	return nil
}

// followEvents goes on after what was listed.
func (a *app) followEvents(ctx context.Context, c *api.Client, listed api.List[api.Event], o api.ListOptions) error {
	s, first := seen{names: map[string]bool{}}, "" // names sort by time: of all events, those before were not asked for
	s.fresh(listed.Items)
	if o.Limit > 0 && len(listed.Items) == o.Limit {
		first = slices.MinFunc(listed.Items, func(x, y api.Event) int { return strings.Compare(x.Name, y.Name) }).Name
	}
	show := func(list []api.Event) error { return a.printEvents(s.fresh(list)) }
	return followList(ctx, a, c, c.Events().Watch(ctx, listed.Revision, o), show, func(all []api.Event) []api.Event {
		all = slices.DeleteFunc(all, func(e api.Event) bool { return e.Name < first })
		slices.SortStableFunc(all, func(x, y api.Event) int { return x.Time.Compare(y.Time) })
		return all
	})
}

// maxSeen bounds what is remembered of events that were shown; it is more than are kept.
const maxSeen = 12_000

// seen are the events that were shown: delivery is at least once, and after a long time without a connection all come again.
type seen struct {
	names map[string]bool
	order []string
}

// fresh are those that were not shown yet.
func (s *seen) fresh(list []api.Event) []api.Event {
	var fresh []api.Event
	for _, e := range list {
		if s.names[e.Name] {
			continue
		}
		s.names[e.Name] = true
		fresh = append(fresh, e)
		if s.order = append(s.order, e.Name); len(s.order) > maxSeen {
			delete(s.names, s.order[0])
			s.order = s.order[1:]
		}
	}
	return fresh
}
