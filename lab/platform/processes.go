package platform

import (
	"context"
	"errors"
	"fmt"
	"os/exec"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"

	"weir.dev/weir/image"
	"weir.dev/weir/instance"
	"weir.dev/weir/lab/tied"
)

// processes is the runtime of functions that are network namespaces: their programs, where they have any, are processes of the lab, which end with it.
type processes struct {
	images []string
	inst   instance.Instance
	group  string // at the top, which has the weight of all functions in containers; empty: they are where the lab is
	mu     sync.Mutex
	roots  map[string]string // where images are mounted
	all    []*process
}

// process of a function.
type process struct {
	name  string
	cmd   *exec.Cmd
	out   tied.Output
	ended chan struct{}
}

func openBare(_ context.Context, o Options, i instance.Instance, _ function) (runtime, error) {
	return newProcesses(o, i, processGroup(i)), nil
}

func newProcesses(o Options, i instance.Instance, group string) *processes {
	return &processes{images: o.Images, inst: i, group: group, roots: map[string]string{}}
}

func (r *processes) run(ctx context.Context, w work) (pid int, err error) {
	if w.program == nil {
		return 0, nil
	}
	root, err := r.root(ctx, w.program.image)
	if err != nil {
		return 0, err
	}
	path, err := w.program.host(root)
	if err != nil {
		return 0, err
	}
	return r.start(w.name, w.space, exec.Command(path, w.program.argumentsFor(w.ports)...))
}

// start a program of a function in a network namespace.
func (r *processes) start(name, space string, cmd *exec.Cmd) (pid int, err error) {
	p := &process{name: name, cmd: cmd, ended: make(chan struct{})}
	if err := r.enters(cmd); err != nil {
		return 0, err
	}
	cmd.Stdout, cmd.Stderr = &p.out, &p.out
	cmd.Env = append(cmd.Environ(), "RUNTIME_DIRECTORY="+r.inst.Run, "LC_ALL=C")
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := tied.Start(space, cmd); err != nil {
		return 0, fmt.Errorf("%s: %w", cmd.Path, err)
	}
	go func() { _ = p.cmd.Wait(); close(p.ended) }() // how it ended is in its output
	r.mu.Lock()
	defer r.mu.Unlock()
	r.all = append(r.all, p)
	return p.cmd.Process.Pid, nil
}

// enters has a program join the group before its first instruction: what it starts is in there, too.
func (r *processes) enters(cmd *exec.Cmd) error {
	if r.group == "" || cmd.Err != nil {
		return cmd.Err
	}
	entrance, err := weighedAs(r.group)
	if err != nil || entrance == "" {
		return err
	}
	shell, err := exec.LookPath("sh")
	if err != nil {
		return err
	}
	cmd.Path, cmd.Args = shell, append([]string{"sh", "-c", `echo 0 >"$0" && exec "$@"`, entrance, cmd.Path}, cmd.Args[1:]...)
	return nil
}

// root of an image, mounted once.
func (r *processes) root(ctx context.Context, name string) (string, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if root, ok := r.roots[name]; ok {
		return root, nil
	}
	root, err := image.Open(r.inst, r.images...).Mount(ctx, name)
	if err == nil {
		r.roots[name] = root
	}
	return root, err
}

func (r *processes) conditions() map[string]string { return nil }

// ill says which programs have ended, and their last words; nil: none has.
func (r *processes) ill(context.Context) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	var errs []error
	for _, p := range r.all {
		select {
		case <-p.ended:
			errs = append(errs, fmt.Errorf("function %s: its program has ended: %s", p.name, p.out.Tail()))
		default:
		}
	}
	return errors.Join(errs...)
}

func (r *processes) close(ctx context.Context) error {
	var errs []error
	for _, p := range r.all {
		if err := unix.Kill(-p.cmd.Process.Pid, unix.SIGKILL); err != nil && !errors.Is(err, unix.ESRCH) {
			errs = append(errs, err)
		}
		<-p.ended
	}
	r.all = nil
	if r.group != "" {
		errs = append(errs, RemoveCgroups(ctx, r.group))
	}
	if len(r.roots) > 0 {
		errs = append(errs, image.Open(r.inst).Destroy(ctx))
	}
	return errors.Join(errs...)
}
