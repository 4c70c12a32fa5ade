package cli

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	"weir.dev/weir/api"
	"weir.dev/weir/cli/command"
)

func (a *app) functionExec() *cobra.Command {
	var o api.ExecOptions
	var interactive bool
	cmd := &cobra.Command{
		Use:   "exec NAME -- COMMAND...",
		Short: "Run a process in a running function",
		Long: `Run a process in a running function, with its limits and in its network namespace. The exit code is the process's;
if it could not run at all, as "weir help exit-codes" says. Put -- before the command, so that its flags are its own.
The program has to be in the function's image.`,
		Example: `  weir function exec ids -- suricatasc -c uptime
  weir function exec -it ids -- sh`,
		Args:              command.WantArgs(2, -1, "a function and a command"),
		ValidArgsFunction: a.completeFunctions(false),
		RunE: a.Speaks(func(ctx context.Context, c *api.Client, args []string) error {
			o.Args, o.Stdout, o.Stderr = args[1:], a.Stdout, a.Stderr
			if interactive {
				o.Stdin = a.Stdin
			}
			ctx, restore, err := a.rawTerminal(ctx, &o)
			if err != nil {
				return err
			}
			code, err := c.Exec(ctx, args[0], o)
			restore()
			switch {
			case err != nil:
				return err
			case code != 0:
				return command.Silent(code)
			}
			return nil
		}),
	}
	cmd.SetFlagErrorFunc(func(_ *cobra.Command, err error) error {
		return command.Usage("%w (put -- before the command, so that its flags are its own)", err)
	})
	f := cmd.Flags()
	f.BoolVarP(&interactive, "interactive", "i", false, "pass standard input on")
	f.BoolVarP(&o.TTY, "tty", "t", false, "give the process a terminal; needs one here when -i is set too")
	f.StringArrayVarP(&o.Env, "env", "e", nil, "NAME=VALUE in the process's environment; may be repeated")
	return cmd
}

// rawTerminal hands keys through unchanged while a terminal's process runs, and tells it the terminal's size. restore
// is safe to call in any case.
func (a *app) rawTerminal(ctx context.Context, o *api.ExecOptions) (_ context.Context, restore func(), err error) {
	if !o.TTY {
		return ctx, func() {}, nil
	}
	stdin, _ := o.Stdin.(*os.File)
	if o.Stdin != nil && (stdin == nil || !term.IsTerminal(int(stdin.Fd()))) {
		return nil, nil, command.Usage("-t with -i needs a terminal on standard input; leave -t out in a script")
	}
	ctx, cancel := context.WithCancel(ctx)
	undo := func() {}
	if stdin != nil {
		fd := int(stdin.Fd())
		before, err := term.MakeRaw(fd)
		if err != nil {
			cancel()
			return nil, nil, fmt.Errorf("terminal: %w", err)
		}
		undo = func() { _ = term.Restore(fd, before) }
	}
	if out, ok := a.Stdout.(*os.File); ok {
		o.Resize = sizes(ctx, out)
	}
	return ctx, func() { cancel(); undo() }, nil
}

// sizes sends the terminal's size, now and with each change.
func sizes(ctx context.Context, out *os.File) <-chan [2]uint16 {
	changed := make(chan os.Signal, 1)
	signal.Notify(changed, syscall.SIGWINCH)
	send := make(chan [2]uint16)
	go func() {
		defer signal.Stop(changed)
		for {
			if columns, rows, err := term.GetSize(int(out.Fd())); err == nil {
				select {
				case send <- [2]uint16{uint16(columns), uint16(rows)}:
				case <-ctx.Done():
					return
				}
			}
			select {
			case <-changed:
			case <-ctx.Done():
				return
			}
		}
	}()
	return send
}
