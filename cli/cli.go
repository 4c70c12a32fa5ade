// Package cli is Weir's command line: one file a command. It speaks only the API; what needs the host itself (up, down, check,
// image) comes in through the hooks of Options.
//
// It owns flags and their environment variables, output, and exit codes. It does not own the declarative file (api/file).
package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"weir.dev/weir/api"
	"weir.dev/weir/api/file"
	"weir.dev/weir/instance"
	"weir.dev/weir/router"
)

// Options wire the commands to the program. Hooks that are nil make their command fail with a message that says so.
type Options struct {
	Version string

	// Up runs the daemon until ctx ends, then returns nil: everything that it made goes on forwarding.
	Up func(ctx context.Context, o UpOptions) error
	// CheckRoot refuses a root directory that is not this instance's to write in, before --detach writes its log there; nil: none.
	CheckRoot func(i instance.Instance) error
	// Agent runs this machine as a host of a manager elsewhere until ctx ends, then returns nil.
	Agent func(ctx context.Context, o AgentOptions) error
	// Unit is the text of a systemd unit.
	Unit func(o UnitOptions) (string, error)
	// Placements are the names that --placement takes; none: all.
	Placements []string
	// Switches are the drivers that --switch takes; none: all.
	Switches []string
	// Down stops a daemon that runs and removes all that the instance made. Nothing there: nil.
	Down func(ctx context.Context, o DownOptions) error
	// Features tells what the host has; the error is about something that Weir cannot do without.
	Features func(ctx context.Context, i instance.Instance) ([]api.Feature, error)
	// Validate is the server's validation of a whole document, offline; default router.Validate.
	Validate func(d api.Document) []api.Problem
	// Images lists what the instance's image store has; dir is a further layout, as UpOptions.ImagesDir.
	Images func(ctx context.Context, i instance.Instance, dir string) ([]Image, error)
	// Layouts are the image layouts that the lab searches; dir as above.
	Layouts func(dir string) []string

	Stdin          io.Reader // default os.Stdin ...
	Stdout, Stderr io.Writer
}

// Image is one line of `weir image list`.
type Image struct {
	Ref         string   `json:"ref"`
	Digest      string   `json:"digest"`
	Ports       []string `json:"ports"`
	Bytes       int64    `json:"size_bytes"`
	Description string   `json:"description,omitempty"`
}

// app is one run of the program: the options and the global flags.
type app struct {
	Options
	root, name, socket, url, tokenFile, output string
	noColor                                    bool
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
		cancel(signalError{s.(syscall.Signal)})
		signal.Stop(signals)
	}()
	cmd := New(o)
	cmd.SetArgs(args)
	ran, err := cmd.ExecuteContextC(ctx)
	if err == nil {
		return ExitOK
	}
	code := exitCode(ctx, err)
	if text := errorText(ctx, err, ran.CommandPath()); text != "" {
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
	a := &app{Options: o}
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
		RunE: group,

		SilenceErrors: true, SilenceUsage: true,
		CompletionOptions: cobra.CompletionOptions{DisableDefaultCmd: true},
		PersistentPreRunE: func(cmd *cobra.Command, _ []string) error { return a.prepare(cmd) },
	}
	root.SetIn(o.Stdin)
	root.SetOut(o.Stdout)
	root.SetErr(o.Stderr)
	root.SetFlagErrorFunc(func(_ *cobra.Command, err error) error { return usage("%w", err) })
	f := root.PersistentFlags()
	f.StringVar(&a.root, "root", "", "directory of the instance's durable state (default /var/lib/weir/NAME)")
	f.StringVar(&a.name, "name", instance.DefaultName, "name of the instance, unique on the machine")
	f.StringVar(&a.socket, "socket", "", "the API's Unix socket (default /run/weir/NAME/api.sock)")
	f.StringVar(&a.url, "url", "", "the API's address instead of the socket, for example http://127.0.0.1:7411")
	f.StringVar(&a.tokenFile, "token-file", "", "file with the bearer token for --url (default ROOT/token)")
	f.StringVarP(&a.output, "output", "o", "table", "output format: table, wide, json or yaml")
	f.BoolVar(&a.noColor, "no-color", false, "no colours; also off in a pipe, with NO_COLOR set and with TERM=dumb")
	_ = root.RegisterFlagCompletionFunc("output", cobra.FixedCompletions(outputs, cobra.ShellCompDirectiveNoFileComp))
	root.AddCommand(a.upCommand(), a.downCommand(), a.managerCommand(), a.agentCommand(), a.tokenCommand(), a.switchCommand(), a.applyCommand(), a.getCommand(), a.describeCommand(), a.traceCommand(), a.deleteCommand(),
		a.functionCommand(), a.hostCommand(), a.secretCommand(), a.eventsCommand(), a.auditCommand(), a.backupCommand(), a.statusCommand(), a.checkCommand(), a.imageCommand(), a.testbedCommand(), a.labCommand(), a.schemaCommand(), a.unitCommand(),
		a.versionCommand(), a.completionCommand(), exitCodesTopic(), environmentTopic())
	describeEnvironment(root)
	return root
}

// group is the action of a command that only has subcommands.
func group(cmd *cobra.Command, args []string) error {
	if len(args) == 0 {
		return cmd.Help()
	}
	var names []string
	for _, c := range cmd.Commands() {
		if c.IsAvailableCommand() {
			names = append(names, c.Name())
		}
	}
	hint := file.Suggest(args[0], names)
	if in := deeper(cmd, args[0]); hint == "" && in != "" {
		hint = fmt.Sprintf("did you mean %q?", in)
	}
	if hint == "" {
		hint = "want one of " + strings.Join(names, ", ")
	}
	return usage("unknown command %q for %q (%s)", args[0], cmd.CommandPath(), hint)
}

// deeper finds a command of that name one level down: "weir logs" is "weir function logs".
func deeper(cmd *cobra.Command, name string) string {
	for _, c := range cmd.Commands() {
		for _, sub := range c.Commands() {
			if sub.Name() == name && sub.IsAvailableCommand() {
				return sub.CommandPath()
			}
		}
	}
	return ""
}

// prepare takes flags from the environment and checks the global ones.
func (a *app) prepare(cmd *cobra.Command) error {
	if err := fromEnvironment(cmd); err != nil {
		return err
	}
	if !slices.Contains(outputs, a.output) {
		return usage("output format %q: want %s", a.output, strings.Join(outputs, ", "))
	}
	if a.socket != "" && a.url != "" {
		return usage("--socket and --url exclude each other")
	}
	_, err := a.instance()
	return err
}

func (a *app) instance() (instance.Instance, error) {
	i, err := instance.New(a.name, a.root)
	if err != nil {
		return i, usage("%w", err)
	}
	return i, nil
}

// client connects with its first call.
func (a *app) client() (*api.Client, error) {
	i, err := a.instance()
	if err != nil {
		return nil, err
	}
	o := api.Options{Socket: a.socket, URL: a.url}
	if a.url != "" {
		path := a.tokenFile
		if path == "" {
			path = i.TokenFile()
		}
		token, err := os.ReadFile(path)
		if err != nil {
			return nil, withCode(ExitForbidden, fmt.Errorf("read token for %s: %w (give its file with --token-file)", a.url, err))
		}
		o.Token = strings.TrimSpace(string(token))
	} else if o.Socket == "" {
		o.Socket = i.Socket()
	}
	c, err := api.Dial(o)
	if err != nil {
		return nil, usage("%w", err)
	}
	return c, nil
}

// ending bounds a context; 0 is no bound. The cause says what was waited for.
func ending(ctx context.Context, after time.Duration, what string) (context.Context, context.CancelFunc) {
	if after <= 0 {
		return context.WithCancel(ctx)
	}
	return context.WithTimeoutCause(ctx, after, withCode(ExitTimeout, fmt.Errorf("%s: not done after %v", what, after)))
}

// names makes an Args function that says what is wanted.
func wantArgs(least, most int, what string) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		if len(args) >= least && (most < 0 || len(args) <= most) {
			return nil
		}
		if most == 0 {
			hint := ""
			if cmd.Flags().Lookup("file") != nil {
				hint = " (give files with -f)"
			}
			return usage("%s takes no arguments, got %q%s", cmd.CommandPath(), strings.Join(args, " "), hint)
		}
		got := "nothing"
		if len(args) > 0 {
			got = fmt.Sprintf("%q", strings.Join(args, " "))
		}
		return usage("%s wants %s, got %s", cmd.CommandPath(), what, got)
	}
}

func noArgs() cobra.PositionalArgs { return wantArgs(0, 0, "") }

// missingHook is the error of a command that the program was built without.
func missingHook(what string) error { return fmt.Errorf("this program was built without %s", what) }

var errNoFile = errors.New("no file: give one with -f FILE, or -f - for standard input")

// load reads the files of -f.
func (a *app) load(paths []string) (*file.File, error) {
	if len(paths) == 0 {
		return nil, usage("%w", errNoFile)
	}
	f, err := file.Load(paths, a.Stdin)
	var pathErr *os.PathError
	if errors.As(err, &pathErr) {
		return nil, withCode(ExitInvalid, fmt.Errorf("%s: %w", pathErr.Path, pathErr.Err))
	}
	return f, err
}
