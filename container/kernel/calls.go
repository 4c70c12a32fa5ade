package kernel

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"weir.dev/weir/container"
)

const (
	ExecGrace = 2 * time.Second // between SIGTERM and SIGKILL when the caller leaves
	ExecDrain = time.Second     // for output that is still on its way when the process has ended
)

// callMark is an environment variable of every process that an engine starts to have something done, see Home.Mark. It does not reach the container.
// A new process of the instance finds by it the calls that a killed one left in flight.
const callMark = "WEIR_RUNTIME_CALL"

// Mark is what the environment of such a process has: the call is VERB of container ID, of these containers.
func (h *Home) Mark(verb, id string) string {
	return callMark + "=" + h.Scope() + "/" + verb + "/" + id
}

// awaited are the children of this process that os/exec, or Process.Collect, is going to collect. Who collects what others have left to us leaves these alone: their
// exit codes would be lost.
var awaited struct {
	starting sync.RWMutex // held for reading while a child is made, and not known yet
	pids     sync.Map     // process id -> *exec.Cmd
}

// Start is cmd.Start for a child that only its Wait collects, or who calls Release, whatever cgroup the child is in.
func Start(cmd *exec.Cmd) error {
	awaited.starting.RLock()
	defer awaited.starting.RUnlock()
	err := cmd.Start()
	if err == nil {
		awaited.pids.Store(cmd.Process.Pid, cmd)
	}
	return err
}

// Wait is cmd.Wait of a command of Start's or StartSparing's.
func Wait(cmd *exec.Cmd) error {
	defer awaited.pids.CompareAndDelete(cmd.Process.Pid, cmd)
	return cmd.Wait()
}

// Release is cmd.Process.Release of a command of Start's or StartSparing's: from now on another collects it.
func Release(cmd *exec.Cmd) error {
	defer awaited.pids.CompareAndDelete(cmd.Process.Pid, cmd)
	return cmd.Process.Release()
}

// StartSparing is Start with SIGXFSZ blocked, for itself and whatever it executes: a full log (maxLog) must end nobody. The mask of blocked signals
// passes through fork, exec and Go's runtime, and so through runc into the container. To ignore the signal would not do: what runc, a Go program, finds
// ignored it handles, and what is handled is the default again for the program that it executes, which is death.
func StartSparing(cmd *exec.Cmd) error {
	runtime.LockOSThread() // the child has the mask of the thread that forks
	defer runtime.UnlockOSThread()
	var set, before unix.Sigset_t
	n := uint(unix.SIGXFSZ) - 1
	bits := uint(unsafe.Sizeof(set.Val[0])) * 8
	set.Val[n/bits] = 1 << (n % bits)
	if err := unix.PthreadSigmask(unix.SIG_BLOCK, &set, &before); err != nil {
		return fmt.Errorf("block SIGXFSZ: %w", err)
	}
	defer func() { _ = unix.PthreadSigmask(unix.SIG_SETMASK, &before, nil) }() // the kernel's own mask: it cannot be wrong
	return Start(cmd)
}

// endStrayCalls waits for runtime calls that a killed process of this instance left in flight: they end by themselves in a moment.
// Those that serve a client that is gone (exec), and those that hang, are killed. Exec's process in the container is ended too,
// by the runtime, which forwards SIGTERM.
func (h *Home) endStrayCalls(ctx context.Context) error {
	procs, err := os.ReadDir("/proc")
	if err != nil {
		return err
	}
	prefix := []byte(callMark + "=" + h.Scope() + "/")
	deadline, cancel := context.WithTimeout(ctx, killTimeout)
	defer cancel()
	for _, d := range procs {
		pid, err := strconv.Atoi(d.Name())
		if err != nil || pid == os.Getpid() {
			continue
		}
		p, _, err := OpenProcess(pid, 0)
		if err != nil {
			continue
		}
		env, _ := os.ReadFile("/proc/" + d.Name() + "/environ")
		verb := ""
		for v := range bytes.SplitSeq(env, []byte{0}) {
			if rest, ok := bytes.CutPrefix(v, prefix); ok {
				verb, _, _ = strings.Cut(string(rest), "/")
			}
		}
		if verb != "" && !inside(pid) {
			if verb == "exec" {
				_ = p.Signal(unix.SIGTERM)
			}
			p.WaitOrKill(deadline)
		}
		p.Close()
	}
	return ctx.Err()
}

// inside tells whether a process is in another PID namespace than ours. A container's first process that waits for its start is no call, and may have the mark:
// that of crun is still crun then.
func inside(pid int) bool {
	own, err := os.Readlink("/proc/self/ns/pid")
	if err != nil {
		return false
	}
	its, err := os.Readlink("/proc/" + strconv.Itoa(pid) + "/ns/pid")
	return err == nil && its != own
}

// ExitCode is how a command has ended: its exit code, or 128 and the signal that killed it.
func ExitCode(err error) (int, error) {
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

// onlyWrite hides all of a writer but Write, where its bounds are: io.Copy would use its ReadFrom. A file stays one, and nil nil.
func onlyWrite(w io.Writer) io.Writer {
	if _, ok := w.(*os.File); ok || w == nil {
		return w
	}
	return struct{ io.Writer }{w}
}

// RunPiped runs a command with the streams of x.
func RunPiped(cmd *exec.Cmd, x container.ExecSpec) error {
	cmd.Stdout, cmd.Stderr = onlyWrite(x.Stdout), onlyWrite(x.Stderr)
	cmd.WaitDelay = ExecGrace + ExecDrain
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
	if err := StartSparing(cmd); err != nil {
		return err
	}
	return Wait(cmd)
}

// RunTTY gives the runtime a terminal of its own; the runtime joins it with the one that it makes in the container.
func RunTTY(cmd *exec.Cmd, x container.ExecSpec) error {
	master, slave, err := openPTY()
	if err != nil {
		return err
	}
	// The terminal becomes the controlling terminal of the runtime's process.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true}
	return RunOn(cmd, master, slave, x)
}

// RunOn runs a command with a terminal's slave as its streams, joins x with the terminal's master, and closes both.
func RunOn(cmd *exec.Cmd, master, slave *os.File, x container.ExecSpec) error {
	defer master.Close()
	cmd.Stdin, cmd.Stdout, cmd.Stderr = slave, slave, slave
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
	err := StartSparing(cmd)
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
	err = Wait(cmd)
	select {
	case <-drained:
	case <-time.After(ExecDrain):
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
