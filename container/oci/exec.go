package oci

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"weir.dev/weir/container"
)

const (
	execGrace = 2 * time.Second // between SIGTERM and SIGKILL when the caller leaves
	execDrain = time.Second     // for output that is still on its way when the process has ended
)

// Exec runs one more process in a running container and returns its exit code, 128+n if signal n ended it. When ctx ends, the
// process does. A Stdin that blocks is abandoned, not waited for: the caller closes it.
func (r *Runtime) Exec(ctx context.Context, id string, x container.ExecSpec) (int, error) {
	code, err := r.execute(ctx, id, x)
	if err != nil {
		return -1, fmt.Errorf("exec in container %s: %w", id, err)
	}
	return code, nil
}

func (r *Runtime) execute(ctx context.Context, id string, x container.ExecSpec) (int, error) {
	if len(x.Args) == 0 || x.Args[0] == "" {
		return -1, errors.New("no command")
	}
	r.mu.Lock()
	state := container.State("")
	if e := r.containers[id]; e.known() {
		state = e.status().State
	}
	r.mu.Unlock()
	switch state {
	case container.Running:
	case "":
		return -1, container.ErrNotFound
	default:
		return -1, fmt.Errorf("%w: it is %s, want running", container.ErrState, state)
	}
	// The call of the runtime; its log and the process's id are read from files.
	dir, err := os.MkdirTemp(r.bundle(id), "exec-")
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
	cmd := r.command(ctx, id, log, append(append(args, id), x.Args...))
	cmd.Cancel = func() error { return cmd.Process.Signal(unix.SIGTERM) } // the runtime passes it on
	stop := context.AfterFunc(ctx, func() { r.killExec(cmd, id, pidFile) })
	defer stop()
	if x.TTY {
		err = runTTY(cmd, x)
	} else {
		err = runPiped(cmd, x)
	}
	// What came of it: the caller has left, the runtime has failed, or the process has ended.
	if ctx.Err() != nil {
		return -1, ctx.Err()
	}
	if text := lastError(log); text != "" {
		failure := &cliError{verb: filepath.Base(r.cli) + " exec", text: text, err: err}
		return -1, explain(failure, container.Spec{Args: x.Args})
	}
	var exit *exec.ExitError
	switch {
	case errors.As(err, &exit):
		if ws, ok := exit.Sys().(syscall.WaitStatus); ok && ws.Signaled() {
			return 128 + int(ws.Signal()), nil
		}
		return exit.ExitCode(), nil
	case err != nil && !errors.Is(err, exec.ErrWaitDelay):
		return -1, err
	}
	return 0, nil
}

// killExec makes sure that a process that ignores SIGTERM ends too.
func (r *Runtime) killExec(cmd *exec.Cmd, id, pidFile string) {
	pid, err := readPID(pidFile)
	if err != nil {
		return
	}
	p, _, err := openProcess(pid, 0)
	if err != nil {
		return
	}
	defer p.close()
	if !r.member(pid, id) {
		return
	}
	deadline, cancel := context.WithTimeout(context.Background(), execGrace)
	defer cancel()
	p.waitOrKill(deadline)
}

func runPiped(cmd *exec.Cmd, x container.ExecSpec) error {
	cmd.Stdout, cmd.Stderr = x.Stdout, x.Stderr
	cmd.WaitDelay = execGrace + execDrain
	if x.Stdin != nil {
		// Not cmd.Stdin: Wait would wait for a reader that blocks for ever.
		in, err := cmd.StdinPipe()
		if err != nil {
			return err
		}
		go func() {
			_, _ = io.Copy(in, x.Stdin)
			in.Close()
		}()
	}
	if err := startSparing(cmd); err != nil {
		return err
	}
	return cmd.Wait()
}

// runTTY gives the runtime a terminal of its own; the runtime joins it with the one that it makes in the container.
func runTTY(cmd *exec.Cmd, x container.ExecSpec) error {
	// The terminal becomes the controlling terminal of the runtime's process.
	master, slave, err := openPTY()
	if err != nil {
		return err
	}
	defer master.Close()
	cmd.Stdin, cmd.Stdout, cmd.Stderr = slave, slave, slave
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true}
	// Its size is set before the start and at each change.
	over := make(chan struct{})
	defer close(over)
	size := func(s [2]uint16) {
		if raw, err := master.SyscallConn(); err == nil {
			_ = raw.Control(func(fd uintptr) {
				_ = unix.IoctlSetWinsize(int(fd), unix.TIOCSWINSZ, &unix.Winsize{Col: s[0], Row: s[1]})
			})
		}
	}
	select { // a size that is there already is set before the program looks
	case s, ok := <-x.Resize:
		if ok {
			size(s)
		}
	default:
	}
	err = startSparing(cmd)
	slave.Close()
	if err != nil {
		return err
	}
	go func() {
		for {
			select {
			case s, ok := <-x.Resize:
				if !ok {
					return
				}
				size(s)
			case <-over:
				return
			}
		}
	}()
	// Input and output are copied beside it.
	if x.Stdin != nil {
		go func() {
			if _, err := io.Copy(master, x.Stdin); err == nil {
				_, _ = master.Write([]byte{4}) // end of input, as a terminal says it
			}
		}()
	}
	drained := make(chan struct{})
	go func() {
		defer close(drained)
		out := x.Stdout
		if out == nil {
			out = io.Discard
		}
		_, _ = io.Copy(out, master) // ends with EIO when the last slave is closed
	}()
	// Output may still be in the terminal when the process has ended.
	err = cmd.Wait()
	select {
	case <-drained:
	case <-time.After(execDrain):
	}
	return err
}

func openPTY() (master, slave *os.File, err error) {
	fd, err := unix.Open("/dev/ptmx", unix.O_RDWR|unix.O_NOCTTY|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, nil, fmt.Errorf("open terminal: %w", err)
	}
	master = os.NewFile(uintptr(fd), "ptmx")
	n, err := unix.IoctlGetInt(fd, unix.TIOCGPTN)
	if err == nil {
		err = unix.IoctlSetPointerInt(fd, unix.TIOCSPTLCK, 0)
	}
	if err == nil {
		slave, err = os.OpenFile("/dev/pts/"+strconv.Itoa(n), os.O_RDWR|unix.O_NOCTTY, 0)
	}
	if err != nil {
		master.Close()
		return nil, nil, fmt.Errorf("open terminal: %w", err)
	}
	return master, slave, nil
}
