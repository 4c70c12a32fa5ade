// Package native makes containers by a launcher of our own, as an engine of package kernel: the same container that runc makes of the same description
// (kernel.Home.Config), in a tenth of the time. See DESIGN.md for the steps, and for what is not done that runc does.
package native

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"

	"golang.org/x/sys/unix"

	"weir.dev/weir/container"
	"weir.dev/weir/container/kernel"
	"weir.dev/weir/container/kernel/filter"
	"weir.dev/weir/container/native/launcher"
	"weir.dev/weir/instance"
	"weir.dev/weir/portkind"
)

// Names of the runtimes: Bare has no namespaces but those of the network and of mounts, and no filter of system calls; it is what containers are measured
// against.
const (
	Name = "native"
	Bare = "bare"
)

// Engine is kernel.Engine over package launcher.
type Engine struct {
	home    *kernel.Home
	bare    bool
	filters filter.Cache
}

var _ kernel.Engine = (*Engine)(nil)

// New opens the instance's containers; see kernel.New.
func New(ctx context.Context, inst instance.Instance, o kernel.Options) (*kernel.Runtime, error) {
	return open(ctx, inst, Name, o)
}

// NewBare opens the instance's processes that are nearly on the bare host.
func NewBare(ctx context.Context, inst instance.Instance, o kernel.Options) (*kernel.Runtime, error) {
	return open(ctx, inst, Bare, o)
}

func open(ctx context.Context, inst instance.Instance, name string, o kernel.Options) (*kernel.Runtime, error) {
	r, err := kernel.New(ctx, inst, name, o, func(h *kernel.Home) (kernel.Engine, error) { return &Engine{home: h, bare: name == Bare}, nil })
	if err != nil {
		return nil, fmt.Errorf("container runtime %s: %w", name, err)
	}
	return r, nil
}

// About tells whether containers can be launched here.
func About(context.Context) container.About { return about(Name) }

// AboutBare is the same of NewBare.
func AboutBare(context.Context) container.About {
	a := about(Bare)
	a.Userns, a.Note = false, "its functions are processes of the host's root: for images that you trust as you trust your own programs"
	return a
}

func about(name string) container.About {
	a := container.About{Name: name, Ports: []portkind.Kind{portkind.Veth}, Userns: true}
	if err := launcher.Ready(); err != nil {
		a.Missing = fmt.Sprintf("%v (%s): take runtime oci", err, runtime.GOARCH)
	}
	return a
}

// Files of a container's bundle: a waiting process reads one byte from the first, and the second tells what becomes of it.
func goFile(c kernel.Container) string   { return filepath.Join(c.Bundle, "go") }
func saidFile(c kernel.Container) string { return filepath.Join(c.Bundle, "said") }

// Prepare makes the bundle's two pipes.
func (e *Engine) Prepare(c kernel.Container) error {
	for _, path := range []string{goFile(c), saidFile(c)} {
		if err := unix.Mkfifo(path, 0o600); err != nil {
			return fmt.Errorf("make %s: %w", path, err)
		}
	}
	if e.bare && c.Userns != "" {
		return errors.New("runtime bare has no user namespaces")
	}
	if c.Userns == "" && slices.Contains(c.Capabilities, "CAP_MKNOD") {
		return errors.New("CAP_MKNOD without a user namespace would make devices of the host: take runtime oci")
	}
	return checkRoot(c)
}

// Launch runs the launcher. It is killed if we are; what it has made by then is in the container's cgroups, where recovery finds it.
func (e *Engine) Launch(ctx context.Context, c kernel.Container, log *os.File, run bool) (int, error) {
	if err := ctx.Err(); err != nil {
		return 0, err
	}
	groups, err := e.home.Groups(c)
	if err != nil {
		return 0, err
	}
	defer groups.Close()
	b, err := e.creation(c, groups, run)
	if err != nil {
		return 0, err
	}
	defer b.close()
	said, err := e.launch(ctx, c, b, groups, log, run)
	if err != nil {
		return 0, explain(err, c.Args)
	}
	return said.PID, nil
}

func (e *Engine) launch(ctx context.Context, c kernel.Container, b *build, groups kernel.Groups, log *os.File, run bool) (launcher.Said, error) {
	r, w, err := openSaid(c)
	if err != nil {
		return launcher.Said{}, err
	}
	defer r.Close()
	start, err := os.OpenFile(goFile(c), os.O_RDWR, 0)
	if err != nil {
		w.Close()
		return launcher.Said{}, err
	}
	defer start.Close()
	cmd, done, err := b.program.Command(ctx, groups.Unified, append([]*os.File{w, start}, b.files...)...)
	if err != nil {
		w.Close()
		return launcher.Said{}, err
	}
	defer done()
	null, err := openNull()
	if err != nil {
		w.Close()
		return launcher.Said{}, err
	}
	defer null.Close()
	cmd.Stdin, cmd.Stdout, cmd.Stderr = null, log, log
	runtime.LockOSThread() // the launcher dies with the thread that starts it
	defer runtime.UnlockOSThread()
	err = kernel.StartSparing(cmd)
	w.Close()
	if err != nil {
		return launcher.Said{}, fmt.Errorf("launcher: %w", err)
	}
	stop := context.AfterFunc(ctx, func() { r.Close() }) // the first process is not cmd's, and may be held up
	defer stop()
	heard, err := b.program.Hear(r, func(h launcher.Said) bool { return !run && h.PID != 0 && h.Ready })
	werr := cmd.Wait()
	switch {
	case ctx.Err() != nil:
		return heard, ctx.Err()
	case err != nil:
		return heard, err
	case heard.PID == 0:
		return heard, fmt.Errorf("launcher: it ended before there was a process: %w", errors.Join(werr, unix.ESRCH))
	}
	return heard, nil
}

// openSaid opens the pipe's end that we hear, and the one for the launcher.
func openSaid(c kernel.Container) (r, w *os.File, err error) {
	if r, err = os.OpenFile(saidFile(c), os.O_RDONLY|unix.O_NONBLOCK, 0); err != nil {
		return nil, nil, err
	}
	if w, err = os.OpenFile(saidFile(c), os.O_WRONLY, 0); err != nil {
		r.Close()
		return nil, nil, err
	}
	return r, w, nil
}

// Start lets the launcher that waits go on, and waits until it is the container's program.
func (e *Engine) Start(ctx context.Context, c kernel.Container) error {
	r, err := os.OpenFile(saidFile(c), os.O_RDONLY|unix.O_NONBLOCK, 0)
	if err != nil {
		return err
	}
	defer r.Close()
	start, err := os.OpenFile(goFile(c), os.O_WRONLY|unix.O_NONBLOCK, 0)
	if errors.Is(err, unix.ENXIO) {
		return nil // nobody waits: it was killed, as will be seen
	}
	if err != nil {
		return err
	}
	_, err = start.Write([]byte{1})
	start.Close()
	if err != nil {
		return err
	}
	stop := context.AfterFunc(ctx, func() { r.Close() })
	defer stop()
	var failed *launcher.Error
	_, err = launcher.New(saidFD).Hear(r, func(launcher.Said) bool { return false })
	if errors.As(err, &failed) {
		failed.What = execute // the only step that is left
	}
	if err != nil {
		return explain(errors.Join(err, ctx.Err()), c.Args)
	}
	return nil
}

// Find looks at the container's process. It still waits if somebody reads the pipe that no program of an image has open, and nothing is in it to be read.
// What /proc says that it executes would be no proof: a program may give itself the launcher's name.
func (e *Engine) Find(_ context.Context, c kernel.Container) (kernel.Found, error) {
	if c.PID == 0 { // launched, and perhaps not to the end
		return kernel.Found{}, nil
	}
	if _, err := os.Stat(fmt.Sprintf("/proc/%d", c.PID)); err != nil {
		return kernel.Found{State: container.Stopped}, nil
	}
	start, err := os.OpenFile(goFile(c), os.O_WRONLY|unix.O_NONBLOCK, 0)
	if err != nil { // nobody reads it
		return kernel.Found{State: container.Running, PID: c.PID}, nil
	}
	defer start.Close()
	if n, err := unix.IoctlGetInt(int(start.Fd()), unix.TIOCINQ); err == nil && n > 0 { // told to go on already
		return kernel.Found{State: container.Running, PID: c.PID}, nil
	}
	return kernel.Found{State: container.Created, PID: c.PID}, nil
}

// Left: all is in the bundle.
func (*Engine) Left() ([]string, error) { return nil, nil }

// Remove has nothing to do.
func (*Engine) Remove(context.Context, string) error { return nil }

// explain turns what the launcher says into what a user can act on.
func explain(err error, args []string) error {
	var failed *launcher.Error
	if !errors.As(err, &failed) || failed.What != execute {
		return err
	}
	switch failed.Errno {
	case unix.ENOENT, unix.ENOTDIR:
		return fmt.Errorf("command %q not found in the image: name one that it has (%w)", args[0], err)
	case unix.EACCES, unix.EPERM, unix.EISDIR:
		return fmt.Errorf("command %q is not executable in the image: %w", args[0], err)
	case unix.ENOEXEC:
		return fmt.Errorf("command %q is no program for this kind of processor (%s): %w", args[0], runtime.GOARCH, err)
	}
	return err
}
