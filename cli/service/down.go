package service

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"time"

	"github.com/spf13/cobra"

	"weir.dev/weir/api"
	"weir.dev/weir/cli/command"
	"weir.dev/weir/instance"
)

// DownOptions say what is removed.
type DownOptions struct {
	Instance  instance.Instance
	KeepState bool // leave the intent, the images and the logs: the next up brings all back
	Timeout   time.Duration
	Out       io.Writer // a line for each thing that was removed
	// Progress hears what is being removed, and how much of it is gone where it is many things; else all is 0.
	Progress func(what string, done, all int)
}

func (a *commands) downCommand() *cobra.Command {
	o := DownOptions{}
	var yes bool
	cmd := &cobra.Command{
		Use:   "down",
		Short: "Stop Weir on this machine and remove all that it made, nothing else",
		Long: `Stop the daemon if it runs and remove all that the instance made: links, namespaces, rules, containers, mounts, and its
state, with the backups that Weir made by itself. With --keep-state the intent, the images and all logs stay, and the next "up" brings everything back.

Where there is something to lose, the command says what, and asks. Without a terminal it needs --yes then.`,
		Example: `  weir down
  weir down --yes
  weir down --keep-state
  weir down --name lab --root /tmp/lab`,
		Args: command.NoArgs(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if a.Down == nil {
				return command.MissingHook("a daemon")
			}
			var err error
			if o.Instance, err = a.Instance(); err != nil {
				return err
			}
			o.Out = a.Stdout
			if a.Structured() {
				o.Out = io.Discard
			}
			if !o.KeepState && !yes {
				if err := a.agreeToErase(cmd.Context(), o.Instance); err != nil {
					return err
				}
			}
			ctx, cancel := command.Ending(cmd.Context(), o.Timeout, "down")
			defer cancel()
			there := exists(o.Instance.Run) || exists(o.Instance.Root)
			var end func()
			o.Progress, end = a.removing()
			err = a.Down(ctx, o)
			end()
			if err != nil {
				return err
			}
			switch {
			case !there:
				fmt.Fprintf(o.Out, "nothing of the instance %s was there\n", o.Instance.Name)
			case o.KeepState:
				fmt.Fprintf(o.Out, "weir is down; its intent is kept in %s\n", o.Instance.Root)
			default:
				fmt.Fprintln(o.Out, "weir is down")
			}
			return nil
		},
	}
	cmd.Flags().BoolVar(&o.KeepState, "keep-state", false, "keep the intent, the images and the logs, those of functions too")
	cmd.Flags().BoolVarP(&yes, "yes", "y", false, "erase the state without a question")
	cmd.Flags().DurationVar(&o.Timeout, "timeout", command.WaitDefault, "how long to wait; 0 is for ever")
	return cmd
}

// showAfter is when work counts as long, so that it is shown.
const showAfter = 2 * time.Second

// removing shows what is being removed, if that takes long, until end.
func (a *commands) removing() (tell func(what string, done, all int), end func()) {
	var now atomic.Pointer[string]
	p, over, ended := a.Progress(), make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		defer p.Clear()
		wait := showAfter
		for {
			select {
			case <-over:
				return
			case <-time.After(wait):
			}
			wait = command.ShowEvery
			if text := now.Load(); text != nil {
				p.Show("removing %s", *text)
			}
		}
	}()
	tell = func(what string, done, all int) {
		if all > 0 {
			what += fmt.Sprintf(": %d of %d", done, all)
		}
		now.Store(&what)
	}
	return tell, func() { close(over); <-ended }
}

// countTimeout bounds how long a daemon may take to say what it has.
const countTimeout = 5 * time.Second

// agreeToErase says what down erases, and asks. Nothing that anybody declared: there is nothing to ask.
func (a *commands) agreeToErase(ctx context.Context, i instance.Instance) error {
	lost := toLose(ctx, i)
	if lost == "" {
		return nil
	}
	text := fmt.Sprintf("weir down erases %s.\nTo keep it: weir down --keep-state. To save it first: weir export, weir backup FILE.", lost)
	_, out := command.Terminal(a.Stderr)
	_, in := command.Terminal(a.Stdin)
	if !in || !out {
		return command.Usage("%s\nThis is no terminal, so nobody can be asked: add --yes", text)
	}
	fmt.Fprintf(a.Stderr, "%s\nErase it? [y/N] ", text)
	answer := make(chan string, 1)
	go func() { // a read of a terminal cannot be ended
		line, _ := bufio.NewReader(a.Stdin).ReadString('\n')
		answer <- strings.ToLower(strings.TrimSpace(line))
	}()
	select {
	case <-ctx.Done():
		fmt.Fprintln(a.Stderr)
		return context.Cause(ctx)
	case line := <-answer:
		if line == "y" || line == "yes" {
			return nil
		}
	}
	return errors.New("nothing was stopped or removed")
}

// toLose is what is erased with the state of an instance, in words; "" nothing that anybody declared.
func toLose(ctx context.Context, i instance.Instance) string {
	where := "the state in " + i.Root
	if list, _ := filepath.Glob(filepath.Join(i.Root, "snapshots", "*")); len(list) > 0 {
		where += ", its own " + number(len(list), "backup") + " included"
	}
	runs, _ := filepath.Glob(filepath.Join(i.Root, "lab", "*", "results.jsonl*"))
	if len(runs) > 0 {
		where += ", the results of " + number(len(runs), "run") + " of the lab included"
	}
	counted, known := declared(ctx, i)
	switch {
	case known && counted == "" && len(runs) == 0:
		return ""
	case known && counted == "":
		return where
	case known:
		return counted + ": " + where
	case !hasState(i):
		return ""
	}
	return where + " (the daemon does not answer, so it is not known what is in it)"
}

// hasState tells whether a daemon that does not run has left more than its log.
func hasState(i instance.Instance) bool {
	entries, _ := os.ReadDir(i.Root) // where it cannot be read, it cannot be removed either, and that is said
	for _, e := range entries {
		if e.IsDir() || !strings.HasPrefix(e.Name(), filepath.Base(logPath(i))) {
			return true
		}
	}
	return false
}

// declared is what a manager that answers has of its users, in words.
func declared(ctx context.Context, i instance.Instance) (text string, known bool) {
	c, err := api.Dial(api.Options{Socket: i.Socket()})
	if err != nil {
		return "", false
	}
	defer c.Close()
	ctx, cancel := context.WithTimeout(ctx, countTimeout)
	defer cancel()
	e, err := c.Export(ctx)
	if err != nil {
		return "", false
	}
	secrets, err := c.Secrets(ctx)
	if err != nil {
		return "", false
	}
	hosts, err := c.Hosts().List(ctx, api.ListOptions{})
	if err != nil {
		return "", false
	}
	tokens, err := c.Tokens(ctx)
	if err != nil {
		return "", false
	}
	var parts []string
	for _, x := range []struct {
		n    int
		what string
	}{
		{len(e.Document.Endpoints), "endpoint"}, {len(e.Document.Functions), "function"}, {len(e.Document.Chains), "chain"}, {len(e.Document.Policies), "policy"},
		{len(secrets), "secret"}, {len(tokens) - fileTokens(tokens), "token"}, {len(hosts.Items) - 1, "further host"},
	} {
		if x.n > 0 {
			parts = append(parts, number(x.n, x.what))
		}
	}
	return strings.Join(parts, ", "), true
}

// fileTokens is how many tokens are the manager's own.
func fileTokens(list []api.Token) (n int) {
	for _, t := range list {
		if t.ID == "file" {
			n++
		}
	}
	return n
}

func number(n int, what string) string {
	if n == 1 {
		return "1 " + what
	}
	if y, ok := strings.CutSuffix(what, "y"); ok {
		what = y + "ie"
	}
	return fmt.Sprintf("%d %ss", n, what)
}
