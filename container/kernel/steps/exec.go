package steps

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"runtime"
	"slices"

	"golang.org/x/sys/unix"

	"weir.dev/weir/container"
	"weir.dev/weir/container/kernel"
	"weir.dev/weir/container/kernel/launcher"
)

// Exec is container.Runtime's, for a container that runs. The launcher stays as the parent of the program, which ends with it.
func (m *Maker) Exec(ctx context.Context, c kernel.Container, x container.ExecSpec) (int, error) {
	if err := ctx.Err(); err != nil {
		return -1, err
	}
	groups, err := m.Home.GroupsOf(c.PID)
	if err != nil {
		return -1, err
	}
	defer groups.Close()
	l, err := m.Further(c, groups, x)
	if err != nil {
		return -1, err
	}
	defer l.Close()
	r, w, err := os.Pipe()
	if err != nil {
		return -1, err
	}
	defer r.Close()
	// The end of ctx ends the program first, and the launcher, which tells how it ended, then: who traces the program can keep its end from the launcher.
	running, kill := context.WithCancel(context.WithoutCancel(ctx))
	defer kill()
	cmd, done, err := l.Command(running, groups.Unified, append([]*os.File{w, w}, l.All()...)...)
	if err != nil {
		w.Close()
		return -1, err
	}
	defer done()
	cmd.Env = []string{m.Home.Mark("exec", c.ID)}
	null, err := OpenNull()
	if err != nil {
		w.Close()
		return -1, err
	}
	defer null.Close()
	runtime.LockOSThread() // the launcher dies with the thread that starts it, and takes the program along
	defer runtime.UnlockOSThread()
	heard, stop := m.hear(ctx, l, r, c, kill)
	if x.TTY {
		err = m.runTTY(cmd, c, x, w)
	} else {
		err = kernel.RunPiped(cmd, piped(cmd, x, null))
	}
	w.Close()
	failed := <-heard
	stop() // the number may be another's soon
	return outcome(ctx, err, failed, x)
}

// hear hears what a list says up to its end. When ctx ends before, the program is ended, then kill called. stop is to be called behind heard.
func (m *Maker) hear(ctx context.Context, l *List, r io.Reader, c kernel.Container, kill func()) (heard <-chan error, stop func()) {
	end, undo := make(chan error, 1), func() bool { return true }
	go func() {
		_, err := l.Hear(r, func(h launcher.Said) bool {
			if h.PID != 0 {
				undo = context.AfterFunc(ctx, func() {
					m.end(c, h.PID)
					kill()
				})
			}
			return false
		})
		end <- err
	}()
	return end, func() { undo() }
}

// piped gives every stream a pipe of ours, see own, or null.
func piped(cmd *exec.Cmd, x container.ExecSpec, null *os.File) container.ExecSpec {
	if x.Stdin == nil {
		cmd.Stdin = null
	}
	for _, w := range []*io.Writer{&x.Stdout, &x.Stderr} {
		if *w == nil {
			*w = null
		} else {
			*w = struct{ io.Writer }{*w}
		}
	}
	return x
}

// outcome is what came of it: the caller has left, the launcher has failed, or the program has ended.
func outcome(ctx context.Context, err, failed error, x container.ExecSpec) (int, error) {
	switch {
	case ctx.Err() != nil:
		return -1, ctx.Err()
	case failed != nil:
		return -1, launcher.Explain(failed, x.Args)
	}
	return kernel.ExitCode(err)
}

// end asks a program of Exec to end, and kills it in the end.
func (m *Maker) end(c kernel.Container, pid int) {
	p, _, err := kernel.OpenProcess(pid, 0)
	if err != nil {
		return
	}
	defer p.Close()
	if !m.Home.Member(pid, c.ID) {
		return
	}
	_ = p.Signal(unix.SIGTERM)
	deadline, cancel := context.WithTimeout(context.Background(), kernel.ExecGrace)
	defer cancel()
	p.WaitOrKill(deadline)
}

// Further is the list by which one more process enters a container that runs, and becomes what its first one is.
func (m *Maker) Further(c kernel.Container, groups kernel.Groups, x container.ExecSpec) (*List, error) {
	config, err := m.Home.Config(c)
	if err != nil {
		return nil, err
	}
	config.Process.Args, config.Process.Env = x.Args, append(slices.Clone(config.Process.Env), x.Env...)
	if x.TTY {
		config.Process.Env = append(config.Process.Env, "TERM=xterm-256color")
	}
	fd, err := unix.PidfdOpen(c.PID, 0)
	if err != nil {
		return nil, fmt.Errorf("open process %d: %w", c.PID, err)
	}
	l := New()
	pid := launcher.Int(l.Add(os.NewFile(uintptr(fd), "pidfd")))
	if !m.Home.Member(c.PID, c.ID) {
		l.Close()
		return nil, fmt.Errorf("process %d of the container has ended: %w", c.PID, container.ErrState)
	}
	l.Hide()
	self := l.Call("tell the launcher's number", unix.SYS_GETPID)
	parent := l.Call("open the launcher", unix.SYS_PIDFD_OPEN, launcher.Result(self), null)
	l.Call("keep the launcher open", unix.SYS_DUP3, launcher.Result(parent), launcher.Int(GoFD), launcher.Int(unix.O_CLOEXEC))
	l.Call("enter the process namespace", unix.SYS_SETNS, pid, launcher.Int(unix.CLONE_NEWPID))
	fork := l.Fork("make a process", 0)
	l.follow()
	l.Score(config.Process)
	l.JoinAll(groups)
	l.own(c, x)
	m.into(l, c, pid)
	l.session(x.TTY)
	l.Shed()
	l.LeaveKeyring()
	m.confine(l, config, true)
	l.Execute(config.Process.Args, config.Process.Env)
	l.Land(fork.Step)
	l.SayPID(fork)
	l.Call("close what it says", unix.SYS_CLOSE, launcher.Int(SaidFD))
	l.Call("close what it says", unix.SYS_CLOSE, launcher.Int(GoFD))
	l.ExitAs(fork.Step)
	return l.Done()
}

// session begins one, on the terminal that is the process's input if it has one.
func (l *List) session(terminal bool) {
	l.Call("begin a session", unix.SYS_SETSID)
	if terminal {
		l.Call("take the terminal", unix.SYS_IOCTL, null, launcher.Int(unix.TIOCSCTTY), null)
	}
}

// into enters the namespaces of a container's first process, and its root.
func (m *Maker) into(l *List, c kernel.Container, pid launcher.Arg) {
	flags := unix.CLONE_NEWNS | unix.CLONE_NEWNET | unix.CLONE_NEWIPC | unix.CLONE_NEWUTS | unix.CLONE_NEWCGROUP
	if c.Userns != "" {
		flags |= unix.CLONE_NEWUSER
	}
	root := -1
	if m.Rooted {
		root = l.Open(fmt.Sprintf("/proc/%d/root", c.PID))
	}
	l.Call("enter the namespaces", unix.SYS_SETNS, pid, launcher.Int(flags))
	l.become(0, 0)
	if m.Rooted {
		l.Call("go to the root", unix.SYS_FCHDIR, launcher.Int(root))
		l.Call("change the root", unix.SYS_CHROOT, l.String("."))
	}
}

// own gives the pipes of a program's streams to its user, who else could not open /dev/stdout.
func (l *List) own(c kernel.Container, x container.ExecSpec) {
	if x.TTY || c.Userns == "" && c.UID == 0 {
		return
	}
	for fd, there := range map[int]bool{0: x.Stdin != nil, 1: x.Stdout != nil, 2: x.Stderr != nil} {
		if there {
			l.Call("give a stream away", unix.SYS_FCHOWN, launcher.Int(fd), launcher.Int(c.IDs.First+c.UID), launcher.Int(c.IDs.First+c.GID))
		}
	}
}

// runTTY runs a command on a terminal of the container's.
func (m *Maker) runTTY(cmd *exec.Cmd, c kernel.Container, x container.ExecSpec, said io.Closer) error {
	master, slave, err := openPTY(c)
	if err != nil {
		said.Close()
		return err
	}
	return kernel.RunOn(cmd, master, slave, x)
}

// openPTY makes a terminal in the container's own /dev/pts, whatever its processes have done with the path.
func openPTY(c kernel.Container) (master, slave *os.File, err error) {
	root, err := unix.Open(fmt.Sprintf("/proc/%d/root", c.PID), unix.O_PATH|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, nil, fmt.Errorf("open terminal: %w", err)
	}
	defer unix.Close(root)
	how := unix.OpenHow{Flags: unix.O_RDWR | unix.O_NOCTTY | unix.O_CLOEXEC | unix.O_NONBLOCK, Resolve: unix.RESOLVE_IN_ROOT | unix.RESOLVE_NO_MAGICLINKS | unix.RESOLVE_NO_SYMLINKS}
	fd, err := unix.Openat2(root, "dev/pts/ptmx", &how)
	if err != nil {
		return nil, nil, fmt.Errorf("open terminal: /dev/pts/ptmx of the container: %w", err)
	}
	master = os.NewFile(uintptr(fd), "ptmx")
	var fs unix.Statfs_t
	if err := unix.Fstatfs(fd, &fs); err != nil || fs.Type != unix.DEVPTS_SUPER_MAGIC {
		master.Close()
		return nil, nil, errors.New("open terminal: /dev/pts/ptmx of the container is no terminal")
	}
	if err := unix.IoctlSetPointerInt(fd, unix.TIOCSPTLCK, 0); err != nil {
		master.Close()
		return nil, nil, fmt.Errorf("open terminal: %w", err)
	}
	n, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), tiocgptpeer, unix.O_RDWR|unix.O_NOCTTY|unix.O_CLOEXEC)
	if errno != 0 {
		master.Close()
		return nil, nil, fmt.Errorf("open terminal: %w", errno)
	}
	slave = os.NewFile(n, "pts")
	if err := slave.Chown(int(c.IDs.First+c.UID), int(c.IDs.First)+ttyGroup); err != nil {
		return nil, nil, errors.Join(fmt.Errorf("open terminal: %w", err), master.Close(), slave.Close())
	}
	return master, slave, nil
}

const (
	tiocgptpeer = 0x5441
	ttyGroup    = 5 // as the mount of /dev/pts has it
)
