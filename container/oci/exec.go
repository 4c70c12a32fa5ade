package oci

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"

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
	log, pidFile := filepath.Join(dir, "log"), filepath.Join(dir, "pid")
	args := []string{"exec", "--pid-file", pidFile}
	if x.TTY {
		args = append(args, "--tty", "--env", "TERM=xterm-256color")
	}
	for _, env := range x.Env {
		args = append(args, "--env", env)
	}
	cmd := e.command(ctx, id, log, append(append(args, e.handle(id).ID), x.Args...))
	cmd.Cancel = func() error { return cmd.Process.Signal(unix.SIGTERM) } // the runtime passes it on
	stop := context.AfterFunc(ctx, func() { e.killExec(cmd, id, pidFile) })
	defer stop()
	if x.TTY {
		err = kernel.RunTTY(cmd, x)
	} else {
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
