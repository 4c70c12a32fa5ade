package cli

import (
	"cmp"
	"context"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"weir.dev/weir/api"
	"weir.dev/weir/cli/command"
)

func (a *app) auditCommand() *cobra.Command {
	var follow bool
	var o api.ListOptions
	var about string
	cmd := &cobra.Command{
		Use:   "audit",
		Short: "Show who did, or tried to do, what, the newest last",
		Long: `Show who did, or tried to do, what, the newest last: every write, exec, reading of logs, use of a join token, and whoever was refused.
Attempts that are alike are one line, with how many there were at least. The manager's ROOT/audit.log has the same as JSON lines. It is for admins.`,
		Example: `  weir audit
  weir audit -f --who nobody
  weir audit --verb exec --object function/fw -o json`,
		Args: command.NoArgs(),
		RunE: a.Speaks(func(ctx context.Context, c *api.Client, _ []string) error {
			if o.Limit < 0 {
				return command.Usage("--limit %d: want 0 (all) or more", o.Limit)
			}
			kind, name, _ := strings.Cut(about, "/")
			o.Kind, o.Object = api.Kind(kind), name
			l, err := c.Audit().List(ctx, o)
			if err != nil {
				return err
			}
			if a.Structured() && !follow {
				return a.Encode(l)
			}
			if err := a.printAudit(l.Items); err != nil || !follow {
				return err
			}
			return followList(ctx, a, c, c.Audit().Watch(ctx, l.Revision, o), a.printAudit, func(all []api.AuditRecord) []api.AuditRecord { return all })
		}),
	}
	f := cmd.Flags()
	f.BoolVarP(&follow, "follow", "f", false, "go on with what happens, until Ctrl-C or the daemon stays away")
	f.IntVar(&o.Limit, "limit", 100, "how many of the newest; 0 is all")
	f.StringVar(&o.Who, "who", "", "only what this one did, as in \"token ci\", \"user root\", \"host h1\", nobody")
	f.StringVar(&o.Verb, "verb", "", "only this action: put, patch, delete, apply, start, stop, restart, exec, logs, create, rotate, join, authenticate, ...")
	f.StringVar(&about, "object", "", "only about this object, as KIND/NAME, or about this KIND")
	return cmd
}

func (a *app) printAudit(list []api.AuditRecord) error {
	for _, r := range list {
		if a.Structured() {
			if err := a.EncodeItem(r); err != nil {
				return err
			}
			continue
		}
		object := strings.Trim(string(r.Kind)+"/"+r.Object, "/")
		if r.Generation > 0 {
			object += fmt.Sprintf("@%d", r.Generation)
		}
		more := cmp.Or(r.Problem, strings.Join(r.Objects, ", "))
		if r.Count > 1 {
			more = fmt.Sprintf("x%d or more: %s", r.Count, more)
		}
		if _, err := fmt.Fprintf(a.Stdout, "%s  %3d  %-14s  %-12s  %-12s  %-20s  %s\n", r.Time.Local().Format("2006-01-02 15:04:05.000"), r.Status, command.Printable(r.Who),
			command.Printable(r.From), command.Printable(r.Verb), command.Printable(object), command.Printable(more)); err != nil {
			return err
		}
	}
	return nil
}
