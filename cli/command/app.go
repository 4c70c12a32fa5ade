// Package command has what all commands share: the global flags and their environment variables, the API's client, output, progress, and exit
// codes.
package command

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"weir.dev/weir/api"
	"weir.dev/weir/api/file"
	"weir.dev/weir/instance"
)

// WaitDefault is how long commands wait unless told otherwise.
const WaitDefault = time.Minute

// App is one run of the program: its streams and the global flags.
type App struct {
	Stdin          io.Reader
	Stdout, Stderr io.Writer

	root, Name, Socket, URL, TokenFile, output string
	noColor                                    bool
	painted                                    bool // what Stdout gets is shown on a terminal
}

// GlobalFlags gives the root command the flags that all commands have.
func (a *App) GlobalFlags(root *cobra.Command) {
	f := root.PersistentFlags()
	f.StringVar(&a.root, "root", "", "directory of the instance's durable state (default /var/lib/weir/NAME)")
	f.StringVar(&a.Name, "name", instance.DefaultName, "name of the instance, unique on the machine")
	f.StringVar(&a.Socket, "socket", "", "the API's Unix socket (default /run/weir/NAME/api.sock)")
	f.StringVar(&a.URL, "url", "", "the API's address instead of the socket, for example http://127.0.0.1:7411")
	f.StringVar(&a.TokenFile, "token-file", "", "file with the bearer token for --url (default ROOT/token)")
	f.StringVarP(&a.output, "output", "o", "table", "output format: table, wide, json or yaml")
	f.BoolVar(&a.noColor, "no-color", false, "no colours; also off in a pipe, with NO_COLOR set and with TERM=dumb")
	_ = root.RegisterFlagCompletionFunc("output", cobra.FixedCompletions(outputs, cobra.ShellCompDirectiveNoFileComp))
}

// Prepare takes flags from the environment and checks the global ones.
func (a *App) Prepare(cmd *cobra.Command) error {
	if err := FromEnvironment(cmd); err != nil {
		return err
	}
	known := outputs
	if more := cmd.Annotations[MoreOutputs]; more != "" {
		known = slices.Concat(outputs, strings.Split(more, ","))
	}
	if !slices.Contains(known, a.output) {
		return Usage("output format %q: want %s", a.output, strings.Join(known, ", "))
	}
	if a.Socket != "" && a.URL != "" {
		return Usage("--socket and --url exclude each other")
	}
	_, err := a.Instance()
	return err
}

func (a *App) Instance() (instance.Instance, error) {
	i, err := instance.New(a.Name, a.root)
	if err != nil {
		return i, Usage("%w", err)
	}
	return i, nil
}

// Client connects with its first call.
func (a *App) Client() (*api.Client, error) {
	i, err := a.Instance()
	if err != nil {
		return nil, err
	}
	o := api.Options{Socket: a.Socket, URL: a.URL}
	if a.URL != "" {
		path, code := a.TokenFile, ExitInvalid
		if path == "" { // that of the daemon here, which nobody named
			path, code = i.TokenFile(), ExitForbidden
		}
		token, err := os.ReadFile(path)
		if err != nil {
			return nil, WithCode(code, fmt.Errorf("read token for %s: %w (give its file with --token-file)", a.URL, err))
		}
		o.Token = strings.TrimSpace(string(token))
	} else if o.Socket == "" {
		o.Socket = i.Socket()
	}
	c, err := api.Dial(o)
	if err != nil {
		return nil, Usage("%w", err)
	}
	return c, nil
}

// Ending bounds a context; 0 is no bound. The cause says what was waited for.
func Ending(ctx context.Context, after time.Duration, what string) (context.Context, context.CancelFunc) {
	if after <= 0 {
		return context.WithCancel(ctx)
	}
	return context.WithTimeoutCause(ctx, after, WithCode(ExitTimeout, fmt.Errorf("%s: not done after %v", what, after)))
}

// Group is the action of a command that only has subcommands.
func Group(cmd *cobra.Command, args []string) error {
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
	return Usage("unknown command %q for %q (%s)", args[0], cmd.CommandPath(), hint)
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

// WantArgs makes an Args function that says what is wanted.
func WantArgs(least, most int, what string) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		if len(args) >= least && (most < 0 || len(args) <= most) {
			return nil
		}
		if most == 0 {
			hint := ""
			if cmd.Flags().Lookup("file") != nil {
				hint = " (give files with -f)"
			}
			return Usage("%s takes no arguments, got %q%s", cmd.CommandPath(), strings.Join(args, " "), hint)
		}
		got := "nothing"
		if len(args) > 0 {
			got = fmt.Sprintf("%q", strings.Join(args, " "))
		}
		return Usage("%s wants %s, got %s", cmd.CommandPath(), what, got)
	}
}

func NoArgs() cobra.PositionalArgs { return WantArgs(0, 0, "") }

// MissingHook is the error of a command that the program was built without.
func MissingHook(what string) error { return fmt.Errorf("this program was built without %s", what) }

var errNoFile = errors.New("no file: give one with -f FILE, or -f - for standard input")

// Load reads the files of -f.
func (a *App) Load(paths []string) (*file.File, error) {
	if len(paths) == 0 {
		return nil, Usage("%w", errNoFile)
	}
	f, err := file.Load(paths, a.Stdin)
	var pathErr *os.PathError
	if errors.As(err, &pathErr) {
		err = fmt.Errorf("%s: %w", pathErr.Path, pathErr.Err)
	}
	return f, WithCode(ExitInvalid, err)
}

// ImagesFlag is the flag of a further image layout.
func ImagesFlag(f *pflag.FlagSet, dir *string) {
	f.StringVar(dir, "images", "", "OCI image layout to look into first, before those beside the program and in /usr/share/weir/images")
}
