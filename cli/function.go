package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"weir.dev/weir/api"
	"weir.dev/weir/cli/author"
	"weir.dev/weir/cli/command"
)

func (a *app) functionCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:     "function",
		Aliases: []string{"fn", "functions"},
		Short:   "Create, start, stop, restart, delete functions; their logs and settled flows; run a process in one; write and test one",
		Example: `  weir function restart fw
  weir function logs -f mon
  weir function exec -it ids -- sh`,
		Args: cobra.ArbitraryArgs,
		RunE: command.Group,
	}
	cmd.AddCommand(a.functionCreate(), a.functionVerb("start", "Start functions that are created or stopped", (*api.Client).Start),
		a.functionVerb("stop", "Stop functions; their ports stay, on_fail decides what happens to traffic", (*api.Client).Stop),
		a.functionVerb("restart", "Stop functions if they run, and start them", (*api.Client).Restart),
		a.functionDelete(), a.functionLogs(), a.functionFlows(), a.functionExec())
	cmd.AddCommand(author.Commands(a.App, author.Options{Layouts: a.o.Layouts})...)
	return cmd
}

// completeFunctions completes names of functions, the first argument or all of them.
func (a *app) completeFunctions(all bool) cobra.CompletionFunc {
	return func(cmd *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
		if len(args) > 0 && !all {
			return nil, cobra.ShellCompDirectiveDefault
		}
		return a.completeNames(cmd, functions()), cobra.ShellCompDirectiveNoFileComp
	}
}

func (a *app) functionVerb(verb, short string, do func(*api.Client, context.Context, string) (api.Operation, error)) *cobra.Command {
	var wait bool
	var timeout time.Duration
	cmd := &cobra.Command{
		Use:               verb + " NAME...",
		Short:             short,
		Example:           fmt.Sprintf("  weir function %s fw\n  weir function %s fw w1 --wait=false -o json", verb, verb),
		Args:              command.WantArgs(1, -1, "at least one function"),
		ValidArgsFunction: a.completeFunctions(true),
		RunE: a.Speaks(func(ctx context.Context, c *api.Client, args []string) error {
			ctx, cancel := command.Ending(ctx, timeout, verb)
			defer cancel()
			var ops []api.Operation
			var failed []error
			for _, name := range args {
				op, err := do(c, ctx, name)
				if err != nil {
					failed = append(failed, err)
					continue
				}
				ops = append(ops, op)
			}
			if wait {
				failed = append(failed, a.follow(ctx, c, ops))
			}
			return errors.Join(append(failed, a.printOperations(ctx, c, ops, wait))...)
		}),
	}
	cmd.Flags().BoolVar(&wait, "wait", true, "wait until it is done")
	cmd.Flags().DurationVar(&timeout, "timeout", command.WaitDefault, "how long to wait; 0 is for ever")
	return cmd
}

// printOperations shows how the operations stand now.
func (a *app) printOperations(ctx context.Context, c *api.Client, ops []api.Operation, again bool) error {
	var items []any
	for _, op := range ops {
		if now, err := c.Operations().Get(ctx, op.Name); again && err == nil {
			op = now
		}
		if a.Structured() {
			if err := a.EncodeItem(op); err != nil {
				return err
			}
		}
		items = append(items, op)
	}
	if a.Structured() || len(items) == 0 {
		return nil
	}
	return a.printItems(operations(), items)
}

func (a *app) functionCreate() *cobra.Command {
	var spec api.FunctionSpec
	var config, env []string
	var onFail string
	var start, wait bool
	var timeout time.Duration
	cmd := &cobra.Command{
		Use:   "create NAME --image IMAGE [-- COMMAND...]",
		Short: "Create a function: everything is prepared, a start is then fast",
		Example: `  weir function create fw --image firewall --config 'allow=[tcp/80, icmp]'
  weir function create w1 --image wire --on-fail bypass --start
  weir function create vm1 --image firewall --runtime kvm
  weir function create probe --image wire --cpus 0.5 --memory 64M -- /usr/bin/probe -v`,
		Args: command.WantArgs(1, -1, "a name"),
		RunE: a.Speaks(func(ctx context.Context, c *api.Client, args []string) error {
			// Make the spec from the flags.
			if spec.Image == "" {
				return command.Usage("want an image: --image IMAGE; `weir image list` shows them")
			}
			var err error
			if spec.Config, err = command.ConfigOf(config); err != nil {
				return err
			}
			if spec.Env, err = envValues(env); err != nil {
				return err
			}
			spec.OnFail, spec.Command, spec.State = api.OnFail(onFail), args[1:], api.FunctionCreated
			if start {
				spec.State = api.FunctionStarted
			}
			// Create the function, unless it exists.
			ctx, cancel := command.Ending(ctx, timeout, "create")
			defer cancel()
			made, err := c.Functions().Put(ctx, args[0], spec, api.IfAbsent())
			if errors.Is(err, api.ErrPrecondition) {
				return command.WithCode(command.ExitConflict, fmt.Errorf("function %q exists already; change it with `weir apply`, or delete it first", args[0]))
			}
			if err != nil {
				return err
			}
			// Wait until it is prepared, or healthy if it is to start.
			if wait {
				d := api.Document{Functions: map[string]api.FunctionSpec{args[0]: spec}}
				if err := a.waitFor(ctx, c, d, nil); err != nil {
					return err
				}
				if made, err = c.Functions().Get(ctx, args[0]); err != nil {
					return err
				}
			}
			if a.Structured() {
				return a.Encode(made)
			}
			return a.printItems(functions(), []any{made})
		}),
	}
	f := cmd.Flags()
	f.StringVar(&spec.Image, "image", "", "image, for example firewall or firewall:1")
	f.StringArrayVar(&config, "config", nil, "the function's config: a file in YAML or JSON, or KEY=VALUE with VALUE in YAML; may be repeated")
	f.StringArrayVar(&env, "env", nil, "NAME=VALUE in the function's environment; may be repeated")
	f.StringVar(&onFail, "on-fail", "", "what happens to traffic while it is down: drop (default) or bypass")
	f.StringVar(&spec.CPUs, "cpus", "", "cores, for example 0.5")
	f.StringVar(&spec.Runtime, "runtime", "", "what runs it: "+strings.Join(api.Runtimes(), ", ")+"; default what its host says")
	f.Lookup("runtime").Annotations = map[string][]string{command.Once: {"true"}} // the variable is the daemon's, and may name a program
	f.StringVar(&spec.CPUSet, "cpuset", "", "processors that it may run on, for example 0-3,5; default all")
	f.StringVar(&spec.Memory, "memory", "", "memory, for example 64M")
	f.StringVar(&spec.Host, "host", "", "host to run on")
	f.BoolVar(&start, "start", false, "start it as well")
	f.BoolVar(&wait, "wait", true, "wait until it is prepared, or healthy with --start")
	f.DurationVar(&timeout, "timeout", command.WaitDefault, "how long to wait; 0 is for ever")
	return cmd
}

func envValues(pairs []string) (map[string]string, error) {
	if len(pairs) == 0 {
		return nil, nil
	}
	env := map[string]string{}
	for _, p := range pairs {
		name, value, ok := strings.Cut(p, "=")
		if !ok || name == "" {
			return nil, command.Usage("--env %q: want NAME=VALUE", p)
		}
		env[name] = value
	}
	return env, nil
}

func (a *app) functionDelete() *cobra.Command {
	var wait bool
	var timeout time.Duration
	cmd := &cobra.Command{
		Use:               "delete NAME...",
		Short:             "Stop functions and remove all that was made for them",
		Example:           "  weir function delete fw\n  weir function delete w1 w2 w3 --wait=false",
		Args:              command.WantArgs(1, -1, "at least one function"),
		ValidArgsFunction: a.completeFunctions(true),
		RunE: a.Speaks(func(ctx context.Context, c *api.Client, args []string) error {
			ctx, cancel := command.Ending(ctx, timeout, "delete")
			defer cancel()
			return a.deleteBatch(ctx, c, batch{functions(), args}, wait, false)
		}),
	}
	cmd.Flags().BoolVar(&wait, "wait", true, "wait until they are gone")
	cmd.Flags().DurationVar(&timeout, "timeout", command.WaitDefault, "how long to wait; 0 is for ever")
	return cmd
}

func (a *app) functionLogs() *cobra.Command {
	var o api.LogOptions
	cmd := &cobra.Command{
		Use:               "logs NAME",
		Short:             "Show what a function writes to its standard output and error",
		Example:           "  weir function logs fw --tail 20\n  weir function logs -f mon",
		Args:              command.WantArgs(1, 1, "one function"),
		ValidArgsFunction: a.completeFunctions(false),
		RunE: a.Speaks(func(ctx context.Context, c *api.Client, args []string) error {
			if o.Tail < 0 {
				return command.Usage("--tail %d: want 0 (all) or more", o.Tail)
			}
			logs, err := c.Logs(ctx, args[0], o)
			if err != nil {
				return err
			}
			defer logs.Close()
			if _, err := io.Copy(a.Stdout, logs); err != nil {
				return fmt.Errorf("logs of function %s: %w", args[0], err)
			}
			return nil
		}),
	}
	cmd.Flags().BoolVarP(&o.Follow, "follow", "f", false, "go on until Ctrl-C or the function's end")
	cmd.Flags().IntVar(&o.Tail, "tail", 0, "only the last lines; 0 is all")
	return cmd
}
