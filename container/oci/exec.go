package oci

import (
	"context"
	"encoding/json"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"

	"golang.org/x/sys/unix"

	"weir.dev/weir/container"
	"weir.dev/weir/container/kernel"
)

// Exec is container.Runtime's, for a container that runs.
func (e *Engine) Exec(ctx context.Context, c kernel.Container, x container.ExecSpec) (int, error) {
	id := c.ID
	// The call of the runtime; its log and the process's id are read from files.
	dir, err := os.MkdirTemp(c.Bundle, "exec-")
	if err != nil {
		return -1, err
	}
	defer os.RemoveAll(dir)
	log, pidFile, process := filepath.Join(dir, "log"), filepath.Join(dir, "pid"), filepath.Join(dir, "process.json")
	if err := e.writeProcess(process, c, x); err != nil {
		return -1, err
	}
	cmd := e.command(ctx, id, log, []string{"exec", "--pid-file", pidFile, "--process", process, e.handle(id).ID})
	cmd.Cancel = func() error { return cmd.Process.Signal(unix.SIGTERM) } // the runtime passes it on
	stop := context.AfterFunc(ctx, func() { e.killExec(cmd, id, pidFile) })
	defer stop()
	if x.TTY {
		err = kernel.RunTTY(cmd, x)
	} else {
		if e.crun {
			x = streams(x)
		}
		err = kernel.RunPiped(cmd, x)
	}
	// What came of it: the caller has left, the runtime has failed, or the process has ended.
	if ctx.Err() != nil {
		return -1, ctx.Err()
	}
	if text := lastError(log); text != "" {
		failure := &cliError{verb: filepath.Base(e.cli) + " exec", text: text, err: err}
		return -1, explain(failure, container.Spec{Args: x.Args})
	}
	return kernel.ExitCode(err)
}

// streams gives each stream that is not there a pipe: see nothing.
func streams(x container.ExecSpec) container.ExecSpec {
	if x.Stdin == nil {
		x.Stdin = nothing()
	}
	for _, w := range []*io.Writer{&x.Stdout, &x.Stderr} {
		if *w == nil {
			*w = io.Discard
		}
	}
	return x
}

// writeProcess describes the process to the runtime in full: the container's first one with other arguments. Of a command line alone runc makes the same, but
// crun leaves out the user, the working directory, the limits and no_new_privs.
func (e *Engine) writeProcess(file string, c kernel.Container, x container.ExecSpec) error {
	config, err := e.home.Config(c)
	if err != nil {
		return err
	}
	p := config.Process
	if _, err := os.Stat(filepath.Join(c.Bundle, limitsFile)); err == nil { // the runtime's program has them: see inherit
		p.Rlimits = nil
	}
	p.Args, p.Terminal = x.Args, x.TTY
	var term []string
	if x.TTY {
		term = []string{"TERM=xterm-256color"}
	}
	p.Env = slices.Concat(p.Env, term, x.Env) // a new array: the Spec's is every caller's
	raw, err := json.Marshal(p)
	if err != nil {
		return err
	}
	return os.WriteFile(file, raw, 0o600)
}

// killExec makes sure that a process that ignores SIGTERM ends too.
func (e *Engine) killExec(cmd *exec.Cmd, id, pidFile string) {
	pid, err := readPID(pidFile)
	if err != nil {
		return
	}
	p, _, err := kernel.OpenProcess(pid, 0)
	if err != nil {
		return
	}
	defer p.Close()
	if !e.home.Member(pid, id) {
		return
	}
	deadline, cancel := context.WithTimeout(context.Background(), kernel.ExecGrace)
	defer cancel()
	p.WaitOrKill(deadline)
}
