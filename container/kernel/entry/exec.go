package entry

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strconv"
	"syscall"

	"golang.org/x/sys/unix"

	"weir.dev/weir/container"
	"weir.dev/weir/container/kernel"
)

// The descriptors of Exec.
const (
	fdExecList = iota + 3
	fdExecReply
	fdExecProgram
)

// Exec is kernel.Engine's: a process enters the namespaces and cgroups of the container's first one, and one that it starts there becomes what that one
// is. It does not take the engine's program, whose own ways in would give the process other rights than the first one has.
func (t *Tool) Exec(ctx context.Context, c kernel.Container, x container.ExecSpec) (int, error) {
	read, write, err := os.Pipe()
	if err != nil {
		return -1, err
	}
	defer read.Close()
	f := &Files{all: []*os.File{nil, write, nil}}
	defer func() { f.Close() }()
	list, err := t.execList(f, c, x)
	if err != nil {
		return -1, err
	}
	if f.all[0], err = list.file(); err != nil {
		return -1, err
	}
	if f.all[2], err = memory(programName, program); err != nil {
		return -1, err
	}
	cmd := exec.CommandContext(ctx, "/proc/self/fd/"+strconv.Itoa(fdExecProgram), strconv.Itoa(fdExecList))
	cmd.ExtraFiles = f.all
	cmd.Env = []string{t.Home.Mark("exec", c.ID)}
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return cmd.Process.Signal(unix.SIGTERM) } // it hands it on
	cmd.WaitDelay = kernel.ExecGrace + kernel.ExecDrain                   // killed, it takes its process with it
	if x.TTY {
		err = kernel.RunTTY(cmd, x)
	} else {
		err = kernel.RunPiped(cmd, x)
	}
	if ctx.Err() != nil {
		return -1, ctx.Err()
	}
	f.Close() // of the pipe, so that it ends
	if rerr := readReply(read, x.Args[0], list); !errors.Is(rerr, io.EOF) {
		return -1, rerr
	}
	return kernel.ExitCode(err)
}

// execList is what a further process of a container does. Which groups it joins is read from the first one: a program may have put it below the container's.
func (t *Tool) execList(f *Files, c kernel.Container, x container.ExecSpec) (*List, error) {
	config, err := t.Home.Config(c)
	if err != nil {
		return nil, err
	}
	filter, err := t.filters.Of(config.Linux.Seccomp)
	if err != nil {
		return nil, err
	}
	l := &List{}
	l.Reply(fdExecReply, false)
	l.Private()
	if err := t.into(l, f, c); err != nil {
		return nil, err
	}
	l.Part(x.TTY)
	null(l, fdExecList, absent(x)...)
	var extra []string
	if x.TTY {
		extra = append(extra, "TERM=xterm-256color")
	}
	if err := become(l, config.Process, x.Args, append(extra, x.Env...), filter); err != nil {
		return nil, err
	}
	l.Follow()
	l.Execute("")
	return l, nil
}

// absent are the streams that the caller does not have.
func absent(x container.ExecSpec) (out []int) {
	if x.TTY {
		return nil
	}
	for fd, absent := range []bool{x.Stdin == nil, x.Stdout == nil, x.Stderr == nil} {
		if absent {
			out = append(out, fd)
		}
	}
	return out
}

// into enters the cgroups, namespaces and root of a container's first process.
func (t *Tool) into(l *List, f *Files, c kernel.Container) error {
	fd, err := unix.PidfdOpen(c.PID, 0)
	if err != nil {
		return fmt.Errorf("open the container's process: %w", err)
	}
	process := f.Add(os.NewFile(uintptr(fd), "container"))
	if fd, err = unix.Open(fmt.Sprintf("/proc/%d/root", c.PID), unix.O_PATH|unix.O_CLOEXEC, 0); err != nil {
		return fmt.Errorf("open the container's root: %w", err)
	}
	top := f.Add(os.NewFile(uintptr(fd), "root"))
	groups, err := t.Home.EntrancesOf(c.PID)
	if err != nil {
		return err
	}
	for _, g := range groups {
		l.Join(g)
	}
	kinds := unix.CLONE_NEWNS | unix.CLONE_NEWNET | unix.CLONE_NEWPID | unix.CLONE_NEWIPC | unix.CLONE_NEWUTS | unix.CLONE_NEWCGROUP
	if c.Userns != "" {
		kinds |= unix.CLONE_NEWUSER
	}
	l.Enter("namespaces of the container", process, kinds)
	l.Root()
	l.Reroot(top)
	return nil
}
