package cli

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"weir.dev/weir/api"
	"weir.dev/weir/api/file"
	"weir.dev/weir/cli/command"
)

func (a *app) applyCommand() *cobra.Command {
	var files []string
	var plan, prune, wait, coded bool
	var timeout time.Duration
	cmd := &cobra.Command{
		Use:   "apply -f FILE...",
		Short: "Apply configuration",
		Long: `Apply configuration: objects are created or changed, in one step or, if anything is wrong, not at all.
What is equal already is left alone. With --prune, objects that the files do not name are deleted; secrets only where the files have a section
of them. FILE may be a directory, or - for standard input; several files are merged. The format: docs/file.md, or "weir schema".`,
		Example: `  weir apply -f examples/first-chain.yaml
  weir apply -f net.yaml --plan
  weir apply -f endpoints.yaml -f policies/ --prune
  generate | weir apply -f - --wait=false`,
		Args: command.NoArgs(),
		RunE: a.Speaks(func(ctx context.Context, c *api.Client, _ []string) error {
			if coded && !plan {
				return command.Usage("--exit-code needs --plan")
			}
			// Read the files.
			f, err := a.Load(files)
			if err != nil {
				return err
			}
			secrets, err := f.Values()
			if err != nil {
				return err
			}
			// Apply in one request; again while objects of these names are still being deleted.
			ctx, cancel := command.Ending(ctx, timeout, "apply")
			defer cancel()
			request := api.ApplyRequest{Document: f.Document, Plan: plan, Prune: prune, Secrets: secrets}
			result, err := c.Apply(ctx, request)
			for wait && errors.Is(err, api.ErrDeleting) && pause(ctx, deletingPoll) {
				result, err = c.Apply(ctx, request)
			}
			if err != nil {
				return inFile(f, err)
			}
			// Print what it changes, or would change.
			if err := a.printChanges(result, plan); err != nil {
				return err
			}
			for _, text := range result.Warnings {
				fmt.Fprintf(a.Stderr, "weir: warning: %s\n", command.Printable(text))
			}
			if plan {
				if coded && slices.ContainsFunc(result.Changes, changes) {
					return command.Silent(command.ExitChanges)
				}
				return nil
			}
			// Wait until the change is seen, or in force.
			if !wait {
				a.waitSeen(ctx, c, result.Changes)
				return nil
			}
			return a.waitReady(ctx, c, f.Document, result.Changes)
		}),
	}
	flags := cmd.Flags()
	flags.StringArrayVarP(&files, "file", "f", nil, "file or directory to apply, - for standard input; may be repeated")
	flags.BoolVar(&plan, "plan", false, "only say what would change, affected peers included")
	flags.BoolVar(&coded, "exit-code", false, "with --plan: exit code 9 if something would change")
	flags.BoolVar(&prune, "prune", false, "delete objects that the files do not name")
	flags.BoolVar(&wait, "wait", true, "wait until functions are healthy and policies active")
	flags.DurationVar(&timeout, "timeout", command.WaitDefault, "how long to wait; 0 is for ever")
	return cmd
}

// How long apply waits, also with --wait=false, until new policies are closed at their hosts and switches, and how often it looks at first.
const (
	seenMost = 2 * time.Second // for a status
	openMost = 5 * time.Second // for all switches to have what catches the policy's frames
	seenPoll = 10 * time.Millisecond
)

// waitSeen waits until every new policy has a status which does not say that it is open: from then on none of its frames passes before its
// chain works. Hosts and switches that do not answer are not waited for.
func (a *app) waitSeen(ctx context.Context, c *api.Client, changes []api.Change) {
	fresh := map[string]bool{}
	for _, x := range changes {
		if x.Kind == api.KindPolicy && x.Action == "create" {
			fresh[x.Name] = true
		}
	}
	ctx, cancel := context.WithTimeout(ctx, openMost)
	defer cancel()
	begin := time.Now()
	for wait := seenPoll; len(fresh) > 0 && pause(ctx, wait); wait *= 2 {
		list, err := c.Policies().List(ctx, api.ListOptions{})
		if err != nil {
			return
		}
		unseen, open := false, false
		for _, p := range list.Items {
			unseen = unseen || fresh[p.Name] && p.Status.ObservedGeneration < p.Generation
			open = open || fresh[p.Name] && p.Status.Conditions.Get(api.ConditionOpen) != nil
		}
		if !open && (!unseen || time.Since(begin) > seenMost) {
			return
		}
	}
}

// deletingPoll is how often apply tries again while an object of the same name is being deleted.
const deletingPoll = 50 * time.Millisecond

// pause waits, or reports false if ctx ends first.
func pause(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-ctx.Done():
		return false
	}
}

// inFile puts the server's problems in their places in the file.
func inFile(f *file.File, err error) error {
	var refused *api.ProblemError
	if errors.As(err, &refused) && errors.Is(err, api.ErrInvalid) && len(refused.Problems) > 0 {
		return f.Explain(refused.Problems)
	}
	return err
}

func changes(c api.Change) bool { return c.Action != "unchanged" }

// marks of a plan's lines.
func mark(action string) string {
	switch action {
	case "create":
		return "+"
	case "update":
		return "~"
	case "delete":
		return "-"
	}
	return " "
}

// printChanges writes a line a change: what, which fields, and whom it affects.
func (a *app) printChanges(r api.ApplyResult, plan bool) error {
	if a.Structured() {
		return a.Encode(r)
	}
	count := map[string]int{}
	t := command.Table{Coloured: []bool{true}}
	for _, c := range r.Changes {
		count[c.Action]++
		if !changes(c) && !a.Wide() {
			continue
		}
		detail := strings.Join(c.Fields, "; ")
		if len(c.Affects) > 0 {
			detail = strings.TrimPrefix(detail+"; ", "; ") + "affects " + strings.Join(c.Affects, ", ")
		}
		t.Rows = append(t.Rows, []string{mark(c.Action), string(c.Kind) + "/" + c.Name, detail})
	}
	if err := a.printPlan(t); err != nil {
		return err
	}
	_, err := fmt.Fprintln(a.Stdout, summary(count, plan))
	return err
}

// printPlan is printTable without the dashes for empty cells: a dash means deletion here.
func (a *app) printPlan(t command.Table) error {
	width := 0
	for _, r := range t.Rows {
		width = max(width, len(r[1]))
	}
	for _, r := range t.Rows {
		sign := r[0]
		if a.Colours(a.Stdout) {
			sign = command.StateColour(sign).Paint(sign)
		}
		line := fmt.Sprintf("%s %-*s  %s", sign, width, command.Printable(r[1]), command.Printable(r[2]))
		if _, err := fmt.Fprintln(a.Stdout, strings.TrimRight(line, " ")); err != nil {
			return err
		}
	}
	return nil
}

func summary(count map[string]int, plan bool) string {
	form := [...]struct{ action, done, would string }{
		{"create", "created", "to create"}, {"update", "changed", "to change"}, {"delete", "deleted", "to delete"},
		{"unchanged", "unchanged", "unchanged"},
	}
	var parts []string
	for _, f := range form {
		word := f.done
		if plan {
			word = f.would
		}
		if n := count[f.action]; n > 0 {
			parts = append(parts, fmt.Sprintf("%d %s", n, word))
		}
	}
	head := "applied: "
	if plan {
		head = "plan: "
	}
	if len(parts) == 0 {
		return head + "nothing to do"
	}
	return head + strings.Join(parts, ", ")
}

// waitReady waits and says how long it took, on stderr: stdout has the result.
func (a *app) waitReady(ctx context.Context, c *api.Client, d api.Document, changed []api.Change) error {
	begun := time.Now()
	if err := a.waitFor(ctx, c, d, changed); err != nil {
		return err
	}
	if !a.Structured() {
		fmt.Fprintf(a.Stderr, "ready after %v\n", time.Since(begun).Round(time.Millisecond))
	}
	return nil
}
