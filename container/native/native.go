// Package native makes containers by a launcher of our own, as an engine of package kernel: the same container that runc makes of the same description
// (kernel.Home.Config), in a tenth of the time. See DESIGN.md for the steps, and for what is not done that runc does.
package native

import (
	"context"
	"errors"
	"fmt"
	"os"
	"runtime"
	"slices"

	"golang.org/x/sys/unix"

	"weir.dev/weir/container"
	"weir.dev/weir/container/kernel"
	"weir.dev/weir/container/kernel/launcher"
	"weir.dev/weir/container/kernel/steps"
	"weir.dev/weir/instance"
	"weir.dev/weir/portkind"
)

// Names of the runtimes: Bare has no namespaces but those of the network and of mounts, and no filter of system calls; it is what containers are measured
// against.
const (
	Name = "native"
	Bare = "bare"
)

// Engine is kernel.Engine over packages launcher and steps.
type Engine struct{ steps.Maker }

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
	r, err := kernel.New(ctx, inst, name, o, func(h *kernel.Home) (kernel.Engine, error) {
		return &Engine{steps.Maker{Home: h, Bare: name == Bare}}, nil
	})
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

// Prepare makes the bundle's two pipes.
func (e *Engine) Prepare(c kernel.Container) error {
	if err := e.MakePipes(c, 0o600); err != nil {
		return err
	}
	if e.Bare && c.Userns != "" {
		return errors.New("runtime bare has no user namespaces")
	}
	if c.Userns == "" && slices.Contains(c.Capabilities, "CAP_MKNOD") {
		return errors.New("CAP_MKNOD without a user namespace would make devices of the host: take runtime oci")
	}
	return checkRoot(c)
}

// Launch runs the launcher. It is killed if we are; what it has made by then is in the container's cgroups, where recovery finds it.
func (e *Engine) Launch(ctx context.Context, c kernel.Container, log *os.File, run bool, made kernel.Made) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	groups, err := e.Home.Groups(c)
	if err != nil {
		return err
	}
	defer groups.Close()
	l, err := e.creation(c, groups, run)
	if err != nil {
		return err
	}
	defer l.Close()
	said, err := e.launch(ctx, c, l, groups, log, run)
	if err != nil {
		return launcher.Explain(err, c.Args)
	}
	return made(said.PID, true)
}

func (e *Engine) launch(ctx context.Context, c kernel.Container, l *steps.List, groups kernel.Groups, log *os.File, run bool) (launcher.Said, error) {
	r, w, err := e.OpenSaid(c)
	if err != nil {
		return launcher.Said{}, err
	}
	defer r.Close()
	start, err := os.OpenFile(e.Path(c, steps.GoFile), os.O_RDWR, 0)
	if err != nil {
		w.Close()
		return launcher.Said{}, err
	}
	defer start.Close()
	cmd, done, err := l.Command(ctx, groups.Unified, append([]*os.File{w, start}, l.All()...)...)
	if err != nil {
		w.Close()
		return launcher.Said{}, err
	}
	defer done()
	null, err := steps.OpenNull()
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
	heard, err := l.Hear(r, func(h launcher.Said) bool { return !run && h.PID != 0 && h.Ready })
	werr := kernel.Wait(cmd)
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

// Left: all is in the bundle.
func (*Engine) Left() ([]string, error) { return nil, nil }

// Remove has nothing to do.
func (*Engine) Remove(context.Context, string) error { return nil }
