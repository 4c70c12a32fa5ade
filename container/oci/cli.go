package oci

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"

	"weir.dev/weir/container"
	"weir.dev/weir/container/kernel"
)

// cliError is what a failed runtime call said.
type cliError struct {
	verb string
	text string
	err  error
}

func (e *cliError) Error() string {
	if e.text == "" {
		return fmt.Sprintf("%s: %v", e.verb, e.err)
	}
	return e.verb + ": " + e.text
}

func (e *cliError) Unwrap() error { return e.err }

// command prepares a runtime call. Its process group is its own, so that a terminal's ^C to the daemon does not reach it, and its
// standard streams are files, so that it ends well when the daemon is killed.
func (e *Engine) command(ctx context.Context, id, log string, args []string) *exec.Cmd {
	verb := args[0]
	argv := append([]string{e.cli, "--root", e.handle(id).Root, "--log", log, "--log-format", "json"}, args...)
	var err error
	if verb == "create" || verb == "run" || verb == "exec" {
		if argv, err = limited(e.home.Bundle(id), argv); e.crun {
			argv = e.scored(argv)
		}
	}
	if err != nil { // never without limits
		return &exec.Cmd{Err: err}
	}
	cmd := exec.CommandContext(ctx, argv[0], argv[1:]...)
	cmd.Env = append(os.Environ(), e.home.Mark(verb, id))
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	return cmd
}

func (e *Engine) callLog(id string) string { return filepath.Join(e.home.Dir(), "call-"+id+".log") }

// nothing is an input that has ended. crun gives the standard streams of a program, but terminals, to the container's root: with os.DevNull the host's null device.
func nothing() io.Reader { return strings.NewReader("") }

// call runs one runtime command. out, if any, becomes the container's standard output and error.
func (e *Engine) call(ctx context.Context, id string, out *os.File, args ...string) error {
	ctx, cancel := context.WithTimeout(ctx, cliTimeout)
	defer cancel()
	log := e.callLog(id)
	defer os.Remove(log)
	cmd := e.command(ctx, id, log, args)
	if e.crun {
		cmd.Stdin = nothing()
	}
	if out != nil { // a nil *os.File is no nil io.Writer
		cmd.Stdout, cmd.Stderr = out, out
	}
	err := e.start(args[0], cmd)
	if err == nil {
		err = kernel.Wait(cmd)
	}
	if err != nil {
		return e.failed(ctx, args[0], log, err)
	}
	return nil
}

// output runs a runtime command that makes nothing, for what it prints.
func (e *Engine) output(ctx context.Context, id string, args ...string) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, cliTimeout)
	defer cancel()
	log := e.callLog(id)
	defer os.Remove(log)
	var out bytes.Buffer
	cmd := e.command(ctx, id, log, args)
	cmd.Stdout = &out
	if err := cmd.Run(); err != nil {
		return nil, e.failed(ctx, args[0], log, err)
	}
	return out.Bytes(), nil
}

func (e *Engine) failed(ctx context.Context, verb, log string, err error) error {
	if ctx.Err() != nil {
		err = ctx.Err()
	}
	return &cliError{verb: filepath.Base(e.cli) + " " + verb, text: lastError(log), err: err}
}

// lastError is the last error in a runtime's JSON log.
func lastError(log string) string {
	raw, err := os.ReadFile(log)
	if err != nil {
		return ""
	}
	text := ""
	for line := range bytes.Lines(raw) {
		var entry struct{ Level, Msg string }
		if json.Unmarshal(line, &entry) == nil && (entry.Level == "error" || entry.Level == "fatal") {
			text = entry.Msg
		}
	}
	return condense(text)
}

var (
	noise     = regexp.MustCompile(`(runc (create|run|exec|start) failed: |container_linux\.go:\d+: |unable to start container process: |starting container process caused: |error during container init: )`)
	noCommand = regexp.MustCompile(`exec: \\?"([^"\\]*)\\?": (?:executable file not found in \$PATH|stat [^:]*: no such file or directory)` +
		"|executable file `([^`]*)` not found in \\$PATH") // crun
	noMountDir = regexp.MustCompile(`error mounting \\?"([^"\\]*)\\?" to rootfs at \\?"([^"\\]*)\\?".*(read-only file system|no such file or directory)`)
)

// condense takes the layers off a runtime's message, so that the cause stands first.
func condense(text string) string {
	return strings.TrimSpace(noise.ReplaceAllString(text, ""))
}

// explain turns a runtime's message into one that says what to do.
func explain(err error, s container.Spec) error {
	var cli *cliError
	if !errors.As(err, &cli) {
		return err
	}
	switch {
	case noCommand.MatchString(cli.text):
		m := noCommand.FindStringSubmatch(cli.text)
		return fmt.Errorf("command %q not found in the image: name one that it has: %w", cmp.Or(m[1], m[2]), err)
	case noMountDir.MatchString(cli.text):
		m := noMountDir.FindStringSubmatch(cli.text)
		return fmt.Errorf("mount %s: the image has no %s and its root is read-only: %w", m[1], m[2], err)
	case strings.Contains(cli.text, "permission denied") && strings.Contains(cli.text, "exec"), strings.HasPrefix(cli.text, "open executable: "): // crun
		return fmt.Errorf("command %q is not executable in the image: %w", s.Args[0], err)
	}
	return err
}

// Explain turns the message of a daemon that has had a runtime's program make a container into one that says what to do.
func Explain(daemon string, err error, s container.Spec) error {
	return explain(&cliError{verb: daemon, text: condense(err.Error()), err: err}, s)
}
