// Package cli is Weir's command line: one file a command. It speaks only the API; what needs the host itself (up, down, check,
// image) comes in through the hooks of Options.
//
// It owns flags and their environment variables, output, and exit codes. It does not own the declarative file (api/file).
package cli

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"

	"github.com/spf13/cobra"

	"weir.dev/weir/cli/command"
	"weir.dev/weir/cli/images"
	"weir.dev/weir/cli/lab"
	"weir.dev/weir/cli/service"
	"weir.dev/weir/cli/testbed"
	"weir.dev/weir/router"
)

// Options wire the commands to the program. A hook that is nil makes its command fail with a message that says so.
type Options struct {
	Version string

	service.Hooks
	// Layouts are the image layouts that are searched before the instance's own; dir is a further one, as UpOptions.ImagesDir. nil: none.
	Layouts func(dir string) []string

	Stdin          io.Reader // default os.Stdin ...
	Stdout, Stderr io.Writer
}

// app is the commands of one run of the program.
type app struct {
	*command.App
	o Options
}

// Main runs the program and returns its exit code; args are without the program's name. A first SIGINT, SIGTERM or SIGHUP
// ends the command in order, a second one at once; but a terminal that is closed may say so twice, itself and by its shell.
func Main(o Options, args []string) int {
	ctx, cancel := context.WithCancelCause(context.Background())
	defer cancel(nil)
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, syscall.SIGINT, syscall.SIGTERM)
	hangups := make(chan os.Signal, 1)
	if !signal.Ignored(syscall.SIGHUP) { // as with nohup
		signal.Notify(hangups, syscall.SIGHUP)
	}
	defer signal.Stop(signals)
	defer signal.Stop(hangups)
	go func() {
		var s os.Signal
		select {
		case s = <-signals:
		case s = <-hangups:
		case <-ctx.Done():
			return
		}
		cancel(command.SignalError{Signal: s.(syscall.Signal)})
		signal.Stop(signals)
	}()
	cmd := New(o)
	cmd.SetArgs(args)
	ran, err := cmd.ExecuteContextC(ctx)
	if err == nil {
		return command.ExitOK
	}
	code := command.ExitCode(ctx, err)
	if text := command.ErrorText(ctx, err, ran.CommandPath()); text != "" {
		fmt.Fprintln(cmd.ErrOrStderr(), text)
	}
	return code
}

// New builds the command tree.
func New(o Options) *cobra.Command {
	if o.Stdin == nil {
		o.Stdin = os.Stdin
	}
	if o.Stdout == nil {
		o.Stdout = os.Stdout
	}
	if o.Stderr == nil {
		o.Stderr = os.Stderr
	}
	if o.Validate == nil {
		o.Validate = router.Validate
	}
	a := &app{App: &command.App{Stdin: o.Stdin, Stdout: o.Stdout, Stderr: o.Stderr}, o: o}
	root := &cobra.Command{
		Use:   "weir",
		Short: "Steer traffic through chains of network functions, and measure what it costs",
		Long: `Weir runs network functions in containers and steers chosen traffic through chains of them, without changing
a packet. "weir up" starts it on this machine, "weir apply" tells it what you want.`,
		Example: `  weir up --detach
  weir apply -f examples/first-chain.yaml
  weir status
  weir down`,
		Args: cobra.ArbitraryArgs,
		RunE: command.Group,

		SilenceErrors: true, SilenceUsage: true,
		CompletionOptions: cobra.CompletionOptions{DisableDefaultCmd: true},
		PersistentPreRunE: func(cmd *cobra.Command, _ []string) error { return a.Prepare(cmd) },
	}
	root.SetIn(o.Stdin)
	root.SetOut(o.Stdout)
	root.SetErr(o.Stderr)
	root.SetFlagErrorFunc(func(_ *cobra.Command, err error) error { return command.Usage("%w", err) })
	a.GlobalFlags(root)
	root.AddCommand(service.Commands(a.App, o.Hooks)...)
	root.AddCommand(a.uiCommand(), a.exportCommand(), a.topCommand(), a.graphCommand(), a.tokenCommand(), a.switchCommand(), a.applyCommand(), a.getCommand(), a.describeCommand(), a.traceCommand(), a.deleteCommand(),
		a.functionCommand(), a.hostCommand(), a.secretCommand(), a.eventsCommand(), a.captureCommand(), a.notifyCommand(), a.auditCommand(), a.backupCommand(), a.statusCommand(), images.Command(a.App, images.Options{Version: o.Version, Layouts: o.Layouts}), testbed.Command(a.App), lab.Command(a.App, lab.Options{Version: o.Version, Layouts: o.Layouts}), a.schemaCommand(),
		a.versionCommand(), a.completionCommand(), command.ExitCodesTopic(), command.EnvironmentTopic())
	command.DescribeEnvironment(root)
	return root
}
