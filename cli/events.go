package cli

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"weir.dev/weir/api"
)

func (a *app) eventsCommand() *cobra.Command {
	var follow bool
	var o api.ListOptions
	var about, severity string
	cmd := &cobra.Command{
		Use:   "events",
		Short: "Show what happened, the newest last",
		Example: `  weir events
  weir events -f --severity warning
  weir events --object function/fw -o json`,
		Args: noArgs(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := eventFilter(&o, about, severity); err != nil {
				return err
			}
			c, err := a.client()
			if err != nil {
				return err
			}
			defer c.Close()
			l, err := c.Events().List(cmd.Context(), o)
			if err != nil {
				return err
			}
			slices.SortStableFunc(l.Items, func(x, y api.Event) int { return x.Time.Compare(y.Time) })
			if a.structured() && !follow {
				return a.encode(l)
			}
			if err := a.printEvents(l.Items); err != nil || !follow {
				return err
			}
			return a.followEvents(cmd.Context(), c, l.Revision, o)
		},
	}
	f := cmd.Flags()
	f.BoolVarP(&follow, "follow", "f", false, "go on with what happens, until Ctrl-C")
	f.IntVar(&o.Limit, "limit", 100, "how many of the newest; 0 is all")
	f.StringVar(&about, "object", "", "only about this object, as KIND/NAME, or about this KIND")
	f.StringVar(&severity, "severity", "", "only this severe or more: info, warning, error")
	return cmd
}

func eventFilter(o *api.ListOptions, about, severity string) error {
	if severity != "" && !slices.Contains([]string{"info", "warning", "error"}, severity) {
		return usage("--severity %q: want info, warning or error", severity)
	}
	if o.Limit < 0 {
		return usage("--limit %d: want 0 (all) or more", o.Limit)
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
		if a.structured() {
			if err := a.encodeItem(e); err != nil {
				return err
			}
			continue
		}
		severity := fmt.Sprintf("%-7s", e.Severity)
		if a.colours(a.Stdout) {
			severity = stateColour(string(e.Severity)).paint(severity)
		}
		if _, err := fmt.Fprintf(a.Stdout, "%s  %s  %-18s  %-18s  %s\n", e.Time.Local().Format("2006-01-02 15:04:05.000"), severity,
			printable(e.Reason), printable(eventObject(e)), printable(eventMessage(e))); err != nil {
			return err
		}
	}
	return nil
}

func (a *app) followEvents(ctx context.Context, c *api.Client, revision int64, o api.ListOptions) error {
	seen := map[string]bool{} // of the present connection's last items: delivery is at least once
	var order []string
	for d := range c.Events().Watch(ctx, revision, o) {
		list := d.Items
		switch d.Type {
		case api.DeltaError:
			if permanent(d.Err) {
				return d.Err
			}
			fmt.Fprintf(a.Stderr, "weir: %v; trying again\n", d.Err)
			continue
		case api.DeltaDelete: // the oldest make room
			continue
		case api.DeltaPut:
			list = []api.Event{d.Object}
		}
		var fresh []api.Event
		for _, e := range list {
			if seen[e.Name] {
				continue
			}
			seen[e.Name] = true
			fresh = append(fresh, e)
			if order = append(order, e.Name); len(order) > maxSeen {
				delete(seen, order[0])
				order = order[1:]
			}
		}
		if err := a.printEvents(fresh); err != nil {
			return err
		}
	}
	return context.Cause(ctx)
}

// maxSeen bounds what is remembered of events that were shown.
const maxSeen = 10000
