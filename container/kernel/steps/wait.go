package steps

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"weir.dev/weir/container"
	"weir.dev/weir/container/kernel"
	"weir.dev/weir/container/kernel/filter"
	"weir.dev/weir/container/kernel/launcher"
)

// Maker is what engines have in common whose containers' first process is the launcher's until it is the container's program. It has the methods Start, Find
// and Exec of kernel.Engine.
type Maker struct {
	Home *kernel.Home
	Bare bool   // without a filter of system calls
	Dir  string // in a container's bundle, for its pipes
	// Rooted: the first process has a root of its own, chroot(2), in its mount namespace.
	Rooted  bool
	filters filter.Cache
}

// Files of a container: a waiting process reads one byte from the first, and the second tells what becomes of it.
const (
	GoFile   = "go"
	SaidFile = "said"
)

// stepsFile of a bundle has what the steps of the container's first process are for.
const stepsFile = "steps"

// KeepSteps records what the steps of a container's first process are for: one that is taken hold of before it waits may be started by the next daemon, which has
// not made the list.
func (m *Maker) KeepSteps(c kernel.Container, l *List) error {
	return os.WriteFile(filepath.Join(c.Bundle, stepsFile), []byte(strings.Join(l.Purposes(), "\x00")), 0o600)
}

// failedAt is what a step of a first process is for that has failed at its start. Where nothing is recorded, it was taken hold of when it waited already.
func failedAt(c kernel.Container, step int) string {
	raw, err := os.ReadFile(filepath.Join(c.Bundle, stepsFile))
	if all := strings.Split(string(raw), "\x00"); err == nil && step >= 0 && step < len(all) {
		return all[step]
	}
	return launcher.Executing
}

// Path of one of these files.
func (m *Maker) Path(c kernel.Container, file string) string {
	return filepath.Join(c.Bundle, m.Dir, file)
}

// MakePipes makes them. perm is for who opens them anew in the container, by a descriptor: nobody there gets to them by their paths.
func (m *Maker) MakePipes(c kernel.Container, perm os.FileMode) error {
	for _, name := range []string{GoFile, SaidFile} {
		path := m.Path(c, name)
		err := unix.Mkfifo(path, 0o600)
		if err == nil {
			err = os.Chmod(path, perm)
		}
		if err != nil {
			return fmt.Errorf("make pipe %s: %w", path, err)
		}
	}
	return nil
}

// OpenSaid opens the pipe's end that we hear, and the one for who says something.
func (m *Maker) OpenSaid(c kernel.Container) (r, w *os.File, err error) {
	if r, err = os.OpenFile(m.Path(c, SaidFile), os.O_RDONLY|unix.O_NONBLOCK, 0); err != nil {
		return nil, nil, err
	}
	if w, err = os.OpenFile(m.Path(c, SaidFile), os.O_WRONLY, 0); err != nil {
		r.Close()
		return nil, nil, err
	}
	return r, w, nil
}

// Confine lets a list's process become what a configuration's is, up to its program.
func (m *Maker) Confine(l *List, config *specs.Spec) { m.confine(l, config, false) }

func (m *Maker) confine(l *List, config *specs.Spec, followed bool) {
	var code []byte
	if !m.Bare {
		var err error
		if code, err = m.filters.Of(config.Linux.Seccomp); err != nil {
			l.Fail(err)
		}
	}
	l.confine(config.Process, code, followed)
}

// Start lets the process that waits go on, and waits until it is the container's program.
func (m *Maker) Start(ctx context.Context, c kernel.Container) error {
	r, err := os.OpenFile(m.Path(c, SaidFile), os.O_RDONLY|unix.O_NONBLOCK, 0)
	if err != nil {
		return err
	}
	defer r.Close()
	err = m.LetGo(c)
	if errors.Is(err, unix.ENXIO) {
		return nil // nobody waits: it was killed, as will be seen
	}
	if err != nil {
		return err
	}
	stop := context.AfterFunc(ctx, func() { r.Close() })
	defer stop()
	var failed *launcher.Error
	_, err = launcher.New(SaidFD).Hear(r, func(launcher.Said) bool { return false })
	if errors.As(err, &failed) {
		failed.What = failedAt(c, failed.Step)
	}
	if err != nil {
		return launcher.Explain(errors.Join(err, ctx.Err()), c.Args)
	}
	return nil
}

// LetGo lets the process that waits, or will, go on. ENXIO: there is none.
func (m *Maker) LetGo(c kernel.Container) error {
	start, err := os.OpenFile(m.Path(c, GoFile), os.O_WRONLY|unix.O_NONBLOCK, 0)
	if err != nil {
		return err
	}
	_, err = start.Write([]byte{1})
	return errors.Join(err, start.Close())
}

// Find looks at the container's process. It still waits if somebody reads the pipe that no program of an image has open, and nothing is in it to be read.
// What /proc says that it executes would be no proof: a program may give itself the launcher's name.
func (m *Maker) Find(ctx context.Context, c kernel.Container) (kernel.Found, error) {
	if c.PID == 0 { // launched, and perhaps not to the end
		return kernel.Found{}, nil
	}
	if _, err := os.Stat(fmt.Sprintf("/proc/%d", c.PID)); err != nil {
		return kernel.Found{State: container.Stopped}, nil
	}
	start, err := os.OpenFile(m.Path(c, GoFile), os.O_WRONLY|unix.O_NONBLOCK, 0)
	if err != nil { // nobody reads it
		return kernel.Found{State: container.Running, PID: c.PID}, nil
	}
	defer start.Close()
	if n, err := unix.IoctlGetInt(int(start.Fd()), unix.TIOCINQ); err != nil || n == 0 {
		return kernel.Found{State: container.Created, PID: c.PID}, nil
	}
	// It is told to go on already, but may still prepare itself. Nothing of the image runs beside that.
	for deadline := time.Now().Add(preparesIn); hasReader(start) && ctx.Err() == nil && time.Now().Before(deadline); {
	}
	if _, err := os.Stat(fmt.Sprintf("/proc/%d", c.PID)); err != nil {
		return kernel.Found{State: container.Stopped}, ctx.Err()
	}
	return kernel.Found{State: container.Running, PID: c.PID}, ctx.Err()
}

// preparesIn is more than a first process takes to prepare itself.
const preparesIn = 5 * time.Second

// hasReader tells whether somebody reads a pipe, by its other end. It waits some milliseconds for the last one to leave.
func hasReader(w *os.File) bool {
	n, err := unix.Poll([]unix.PollFd{{Fd: int32(w.Fd())}}, 10)
	return n == 0 || err != nil
}
