package launcher

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"syscall"

	"golang.org/x/sys/unix"
)

// Descriptors in the launcher's process: FirstFile is that of the first of Command's files.
const (
	exeFile   = 3
	FirstFile = 5
)

// Descriptor is the path by which a process opens anew, or executes, what it has open.
func Descriptor(fd int) string { return "/proc/self/fd/" + strconv.Itoa(fd) }

// Again is the command by which a program that Command's launcher became executes the launcher once more, with the list that it has open as fd.
func Again(fd int) []string { return []string{Descriptor(exeFile), Descriptor(fd)} }

// Command prepares a process of the launcher that runs p, with files open from FirstFile on, in a cgroup of version 2 if one is given. When the thread that
// starts it ends, it is killed.
func (p *Program) Command(ctx context.Context, cgroup *os.File, files ...*os.File) (*exec.Cmd, func(), error) {
	exe, err := p.exe()
	if err != nil {
		return nil, nil, err
	}
	list, err := p.File()
	if err != nil {
		return nil, nil, errors.Join(err, exe.Close())
	}
	cmd := exec.CommandContext(ctx, Descriptor(exeFile))
	cmd.Args, cmd.Env = []string{Name}, []string{}
	cmd.ExtraFiles = append([]*os.File{exe, list}, files...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL, Setpgid: true}
	if cgroup != nil {
		cmd.SysProcAttr.UseCgroupFD, cmd.SysProcAttr.CgroupFD = true, int(cgroup.Fd())
	}
	return cmd, func() { exe.Close(); list.Close() }, nil
}

const listName = "list"

// Saved is the command by which a process without descriptors executes the launcher, with the list that Save has put there.
func Saved(dir string) []string {
	return []string{filepath.Join(dir, Name), filepath.Join(dir, listName)}
}

// Save puts the launcher and p into a directory.
func (p *Program) Save(dir string) error {
	raw, err := p.encode()
	if err == nil {
		err = os.WriteFile(filepath.Join(dir, listName), raw, 0o644)
	}
	if err == nil {
		err = os.WriteFile(filepath.Join(dir, Name), code, 0o755)
	}
	return err
}

// What a program says: words of 8 bytes, two at a time.
const (
	sayPID   = 1
	sayReady = 2
	sayFails = 3
	sayHere  = 4
	saidSize = 16
)

// SayPID adds steps that say the process id that Fork left behind.
func (p *Program) SayPID(fork Fork) {
	p.Call("say the process id", unix.SYS_WRITE, Int(p.said), fork.said, Int(saidSize))
}

// SayHere adds a step that says that the process is where it is to be.
func (p *Program) SayHere() {
	p.Call("say that it is here", unix.SYS_WRITE, Int(p.said), p.Bytes(said(sayHere, 0)), Int(saidSize))
}

// SayReady adds a step that says that all before it is done.
func (p *Program) SayReady() {
	p.Call("say that it is ready", unix.SYS_WRITE, Int(p.said), p.Bytes(said(sayReady, 0)), Int(saidSize))
}

func said(word, v uint64) []byte {
	return binary.LittleEndian.AppendUint64(binary.LittleEndian.AppendUint64(nil, word), v)
}

// Fork is a step after which there are two processes.
type Fork struct {
	Step
	said Arg
}

// Fork adds a clone with flags: the child goes on at the next step, the parent where Land says.
func (p *Program) Fork(what string, flags uintptr) Fork {
	say := p.Bytes(said(sayPID, 0))
	s := p.Call(what, unix.SYS_CLONE, Int(flags|unix.CLONE_PARENT_SETTID|uintptr(unix.SIGCHLD)), Int(0), say.Plus(8), Int(0), Int(0))
	return Fork{p.Jump(s, Positive), say}
}

// Error is a system call of a program that failed.
type Error struct {
	What  string
	Errno unix.Errno
	Step  int // see Purposes
}

func (e *Error) Error() string { return e.What + ": " + e.Errno.Error() }
func (e *Error) Unwrap() error { return e.Errno }

// Said is what was heard of a program.
type Said struct {
	PID         int // of the fork's child; 0: not said
	Here, Ready bool
}

// Hear reads what a program says up to its end, or until enough is heard.
func (p *Program) Hear(r io.Reader, enough func(Said) bool) (Said, error) {
	var h Said
	for {
		var b [saidSize]byte
		if _, err := io.ReadFull(r, b[:]); err != nil {
			if errors.Is(err, io.EOF) {
				err = nil
			}
			return h, err
		}
		v := binary.LittleEndian.Uint64(b[8:])
		switch word := binary.LittleEndian.Uint64(b[:]); word {
		case sayPID:
			h.PID = int(v)
		case sayHere:
			h.Here = true
		case sayReady:
			h.Ready = true
		case sayFails:
			return h, p.failure(int(v>>32), unix.Errno(uint32(v)))
		default:
			return h, fmt.Errorf("launcher: it says %d, which means nothing", word)
		}
		if enough(h) {
			return h, nil
		}
	}
}

func (p *Program) failure(step int, e unix.Errno) error {
	if step < 0 || step >= len(p.steps) {
		return &Error{fmt.Sprintf("step %d", step), e, step}
	}
	return &Error{p.steps[step].what, e, step}
}
