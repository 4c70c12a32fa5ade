package oci

import (
	"context"
	"encoding/json"
	"fmt"
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
			var done func()
			x, done = streams(cmd, x)
			defer done()
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

// streams gives each stream that is not there a null device that nobody else has, see nothing. Where none can be made it is a pipe: what keeps that open in the end
// is waited for, as if somebody read it.
func streams(cmd *exec.Cmd, x container.ExecSpec) (all container.ExecSpec, done func()) {
	null, err := ownNull()
	if err != nil {
		if x.Stdin == nil {
			x.Stdin = nothing()
		}
		for _, w := range []*io.Writer{&x.Stdout, &x.Stderr} {
			if *w == nil {
				*w = io.Discard
			}
		}
		return x, func() {}
	}
	if x.Stdin == nil {
		cmd.Stdin = null
	}
	for _, w := range []*io.Writer{&x.Stdout, &x.Stderr} {
		if *w == nil {
			*w = null
		}
	}
	return x, func() { null.Close() }
}

// ownNull makes a null device in a file system of its own, which goes when the last process has closed it.
func ownNull() (*os.File, error) {
	fail := func(err error) (*os.File, error) { return nil, fmt.Errorf("make a null device: %w", err) }
	fs, err := unix.Fsopen("tmpfs", unix.FSOPEN_CLOEXEC)
	if err != nil {
		return fail(err)
	}
	defer unix.Close(fs)
	err = unix.FsconfigSetString(fs, "size", "4k") // nothing is written there
	if err == nil {
		err = unix.FsconfigCreate(fs)
	}
	if err != nil {
		return fail(err)
	}
	dir, err := unix.Fsmount(fs, unix.FSMOUNT_CLOEXEC, unix.MOUNT_ATTR_NOSUID|unix.MOUNT_ATTR_NOEXEC)
	if err != nil {
		return fail(err)
	}
	defer unix.Close(dir)
	const name = "null"
	err = unix.Mknodat(dir, name, unix.S_IFCHR|0o666, int(unix.Mkdev(1, 3)))
	if err == nil {
		err = unix.Fchmodat(dir, name, 0o666, 0) // whatever the umask is
	}
	if err != nil {
		return fail(err)
	}
	fd, err := unix.Openat(dir, name, unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		return fail(err)
	}
	return os.NewFile(uintptr(fd), name), nil
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
