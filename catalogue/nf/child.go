package nf

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os/exec"
	"strings"
	"syscall"
	"time"
)

const (
	childEndsIn = 1500 * time.Millisecond
	maxLine     = 4 << 10
	maxProblems = 5 // that an error repeats
)

// Child is a program that does the function's work: ordinary software, which knows nothing of the platform.
type Child struct {
	Name    string   // in errors and in the log
	Args    []string // program first
	Problem func(line string) (text string, found bool)
	Ready   func(line string) bool // whether a line says that it works; nil: it works at once
	Within  time.Duration          // in which it must be ready
	Log     *slog.Logger
}

// Running is a child that runs.
type Running struct {
	Ended    chan struct{} // closed when it has ended
	child    Child
	cmd      *exec.Cmd
	problems []string
	err      error
}

// Start the program and wait until it is ready. Its lines are logged. It dies with the thread that starts it: the caller has locked the main one.
func (c Child) Start(ctx context.Context) (*Running, error) {
	r := &Running{Ended: make(chan struct{}), child: c, cmd: exec.Command(c.Args[0], c.Args[1:]...)}
	r.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL, Setpgid: true}
	said, err := r.cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	r.cmd.Stderr = r.cmd.Stdout
	if err := r.cmd.Start(); err != nil {
		return nil, fmt.Errorf("%s: %w", c.Name, err)
	}
	ready, followed := make(chan struct{}), make(chan struct{})
	go func() { r.follow(said, ready); close(followed) }()
	go r.wait(said, followed)
	if c.Ready == nil {
		return r, nil
	}
	late := time.NewTimer(c.Within)
	defer late.Stop()
	select {
	case <-ready:
		return r, nil
	case <-r.Ended:
		return nil, fmt.Errorf("%s does not start: %w", c.Name, r.Err())
	case <-late.C:
		err = fmt.Errorf("%s does not start within %s", c.Name, c.Within)
	case <-ctx.Done():
		err = ctx.Err()
	}
	r.Stop()
	return nil, err
}

// follow what it prints until it ends.
func (r *Running) follow(said io.Reader, ready chan struct{}) {
	waiting := r.child.Ready != nil
	for line := range Lines(said) {
		if waiting && r.child.Ready(line) {
			waiting = false
			close(ready)
		}
		level := slog.LevelInfo
		if text, found := r.child.Problem(line); found {
			level = slog.LevelWarn
			if text != "" && len(r.problems) < maxProblems {
				r.problems = append(r.problems, text)
			}
		}
		r.child.Log.Log(context.Background(), level, r.child.Name, "says", line)
	}
}

// wait for its end; what it has started ends with it.
func (r *Running) wait(said io.Closer, followed <-chan struct{}) {
	state, err := r.cmd.Process.Wait()
	r.kill()
	<-followed
	said.Close()
	if r.err = err; err == nil && !state.Success() {
		r.err = &exec.ExitError{ProcessState: state}
	}
	close(r.Ended)
}

// kill it and what it has started: its group.
func (r *Running) kill() { _ = syscall.Kill(-r.cmd.Process.Pid, syscall.SIGKILL) }

// Err says why it has ended, by the first problems that it told; it is never nil. Only after Ended.
func (r *Running) Err() error {
	if r.err == nil {
		return Problems(r.problems, errors.New("exit code 0"))
	}
	return Problems(r.problems, r.err)
}

// Problems that a program told say more than its exit code.
func Problems(told []string, err error) error {
	if len(told) == 0 {
		return err
	}
	return errors.New(strings.Join(told, "; "))
}

// Stop ends it.
func (r *Running) Stop() {
	_ = r.cmd.Process.Signal(syscall.SIGTERM)
	select {
	case <-r.Ended:
	case <-time.After(childEndsIn):
		r.kill()
		<-r.Ended
	}
}

// Lines of a reader; what is longer than 4 KiB is cut.
func Lines(r io.Reader) func(yield func(string) bool) {
	return func(yield func(string) bool) {
		b := bufio.NewReaderSize(r, maxLine)
		for cut := false; ; {
			line, err := b.ReadSlice('\n')
			if len(line) > 0 && !cut && !yield(strings.TrimRight(string(line), "\n")) {
				return
			}
			cut = errors.Is(err, bufio.ErrBufferFull)
			if err != nil && !cut {
				return
			}
		}
	}
}
