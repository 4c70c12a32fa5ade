package command

import (
	"context"
	"errors"
	"fmt"
	"os/exec"
	"strings"
	"syscall"

	"github.com/spf13/cobra"

	"weir.dev/weir/api"
	"weir.dev/weir/api/file"
)

// Exit codes. They are part of the interface: scripts tell failures apart by them.
const (
	ExitOK          = 0
	ExitFailure     = 1
	ExitUsage       = 2
	ExitInvalid     = 3
	ExitNotFound    = 4
	ExitConflict    = 5
	ExitUnreachable = 6
	ExitForbidden   = 7
	ExitTimeout     = 8
	ExitChanges     = 9
	ExitFull        = 10
	ExitDiffers     = 11
	ExitHangup      = 129
	ExitInterrupted = 130
	ExitTerminated  = 143
)

// ExitCodes is what `weir help exit-codes` and docs/cli.md say.
var ExitCodes = [...]struct {
	Code    int
	Meaning string
}{
	{ExitOK, "done, or nothing was to be done"},
	{ExitFailure, "failed for a reason that has no code of its own; the message says it"},
	{ExitUsage, "wrong command line or environment variable"},
	{ExitInvalid, "what was given is refused: a file that cannot be read, parsed or used, or an object; nothing was changed"},
	{ExitNotFound, "no such object"},
	{ExitConflict, "conflict: it is in use, exists already, was changed by someone else, or another daemon runs"},
	{ExitUnreachable, "the daemon is not reachable; one that goes away while something is waited for or watched has 5 s to come back"},
	{ExitForbidden, "not permitted (root, token), or the kernel lacks a feature"},
	{ExitTimeout, "not done in time; it may still come to be"},
	{ExitChanges, "weir apply --plan --exit-code: applying would change something"},
	{ExitFull, "the state, or a file, cannot be written: no space is left, or its folder is read-only; nothing was changed"},
	{ExitDiffers, "weir function test: the function does not do what is expected"},
	{ExitHangup, "ended because its terminal was closed (SIGHUP; not with nohup)"},
	{ExitInterrupted, "ended by Ctrl-C (SIGINT)"},
	{ExitTerminated, "ended by SIGTERM"},
}

// FilesRule says which codes stand for files.
const FilesRule = `A file that a command is told to read, by an argument, a flag, a variable or standard input, has code 3 if it cannot be used, whatever the reason is: it is missing,
it may not be read, it has another format, or its content is refused. An argument that may be a name or a file, and is neither, has code 4: it is taken for a name. The directory
of a lab's run has code 4 if it has no results, and 5 if its records were changed.
A file that a command is told to write has code 10 if no space is left or its folder is read-only, 7 if that is not permitted, 5 if it is there and is not replaced, and else 1.`

// codeError is an error with its exit code.
type codeError struct {
	code int
	err  error
}

func (e *codeError) Error() string { return e.err.Error() }
func (e *codeError) Unwrap() error { return e.err }

// ExitCode of the program when it ends with this error.
func (e *codeError) ExitCode() int { return e.code }

// WithCode gives an error an exit code; nil stays nil.
func WithCode(code int, err error) error {
	if err == nil {
		return nil
	}
	return &codeError{code, err}
}

// Usage is an error in the command line.
func Usage(format string, args ...any) error {
	return WithCode(ExitUsage, fmt.Errorf(format, args...))
}

// Silent ends with a code and no message: everything was said.
type Silent int

func (s Silent) Error() string { return fmt.Sprintf("exit code %d", int(s)) }
func (s Silent) ExitCode() int { return int(s) }

// SignalError is the cause of a context that a signal ended.
type SignalError struct{ Signal syscall.Signal }

func (e SignalError) Error() string { return "ended by " + e.Signal.String() }

func ExitCode(ctx context.Context, err error) int {
	var coded interface{ ExitCode() int }
	var ended SignalError
	switch {
	case errors.As(context.Cause(ctx), &ended):
		return 128 + int(ended.Signal)
	case errors.As(err, &coded) && !ofProgram(coded):
		return coded.ExitCode()
	case errors.Is(err, api.ErrInvalid), errors.Is(err, api.ErrBadRequest), errors.Is(err, api.ErrTooLarge):
		return ExitInvalid
	case errors.Is(err, api.ErrNotFound):
		return ExitNotFound
	case errors.Is(err, api.ErrConflict), errors.Is(err, api.ErrPrecondition):
		return ExitConflict
	case errors.Is(err, api.ErrUnreachable):
		return ExitUnreachable
	case errors.Is(err, api.ErrUnauthorized), errors.Is(err, syscall.EPERM), errors.Is(err, syscall.EACCES):
		return ExitForbidden
	case errors.Is(err, context.DeadlineExceeded):
		return ExitTimeout
	case errors.Is(err, api.ErrFull), errors.Is(err, syscall.ENOSPC), errors.Is(err, syscall.EROFS):
		return ExitFull
	}
	return ExitFailure
}

// ofProgram tells that a code is that of a program that a command has run, which means something else.
func ofProgram(coded any) bool {
	_, is := coded.(*exec.ExitError)
	return is
}

// ErrorText is what stands on stderr. A file's problems begin with their place, as compilers write them.
func ErrorText(ctx context.Context, err error, command string) string {
	var quiet Silent
	var bad *file.Error
	var ended SignalError
	switch {
	case errors.As(err, &quiet), errors.As(err, &ended):
		return ""
	case errors.As(context.Cause(ctx), &ended) && errors.Is(err, context.Canceled):
		return "" // what the signal cut short; what failed besides is said
	case errors.As(err, &bad):
		return bad.Error()
	case ExitCode(ctx, err) == ExitUsage:
		return fmt.Sprintf("%s\nSee '%s --help'.", Own(err.Error()), command)
	}
	return Own(err.Error())
}

// Own says who speaks, unless the text does.
func Own(text string) string {
	if strings.HasPrefix(text, "weir ") {
		return text
	}
	return "weir: " + text
}

func ExitCodesTopic() *cobra.Command {
	var b strings.Builder
	b.WriteString("Every command ends with one of these codes:\n\n")
	for _, e := range ExitCodes {
		fmt.Fprintf(&b, "  %3d  %s\n", e.Code, e.Meaning)
	}
	b.WriteString("\n" + FilesRule + "\n\n\"weir function exec\" ends with the code of the process that it ran.")
	return &cobra.Command{Use: "exit-codes", Short: "What the exit codes mean", Long: b.String(),
		Example: "  weir apply --plan --exit-code -f weir.yaml; test $? -eq 9 && echo something would change"}
}
