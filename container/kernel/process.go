package kernel

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Process is a container's first process, held by a pidfd: its number cannot be reused under us.
type Process struct {
	pid    int
	ticks  uint64
	file   *os.File
	done   chan struct{} // closed when it has ended and code is set
	closed chan struct{}
	once   sync.Once
	end    end
}

// end is how a process ended. 128+n: killed by signal n. -1: unknown.
type end struct{ code, signal int }

// OpenProcess opens a process and tells its start time. If ticks is given and differs, the number was reused: ESRCH.
func OpenProcess(pid int, ticks uint64) (*Process, uint64, error) {
	if pid <= 0 {
		return nil, 0, unix.ESRCH
	}
	fd, err := unix.PidfdOpen(pid, unix.PIDFD_NONBLOCK)
	if err != nil {
		return nil, 0, fmt.Errorf("open process %d: %w", pid, err)
	}
	st, err := readStat(pid)
	if err != nil || ticks != 0 && st.ticks != ticks {
		unix.Close(fd)
		return nil, 0, fmt.Errorf("process %d is another one now: %w", pid, unix.ESRCH)
	}
	p := &Process{pid: pid, ticks: st.ticks, file: os.NewFile(uintptr(fd), "pidfd"), done: make(chan struct{}), closed: make(chan struct{}), end: end{code: -1}}
	return p, st.ticks, nil
}

// PID is the process's id.
func (p *Process) PID() int { return p.pid }

func (p *Process) Close() {
	p.once.Do(func() {
		close(p.closed)
		p.file.Close()
	})
}

func (p *Process) ended() bool {
	select {
	case <-p.done:
		return true
	default:
		return false
	}
}

// endsWithin waits for the end, up to a time or ctx.
func (p *Process) endsWithin(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-p.done:
		return true
	case <-ctx.Done():
	case <-timer.C:
	}
	return p.ended()
}

// wait parks in the runtime's poller (no thread) until the process ends, and sets end. False: closed before. The caller closes done.
func (p *Process) wait() bool {
	raw, err := p.file.SyscallConn()
	if err != nil {
		return false
	}
	err = raw.Read(func(fd uintptr) bool {
		if !readable(int(fd)) {
			return false
		}
		p.end = p.ending(int(fd))
		return true
	})
	return err == nil
}

// Collect waits for the end of a process that nobody else waits for, without a thread, and collects it if it is our child. Then it closes done, and p.
func (p *Process) Collect(done chan<- struct{}) {
	p.wait()
	close(done)
	p.Close()
}

func readable(fd int) bool {
	fds := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
	for {
		n, err := unix.Poll(fds, 0)
		if !errors.Is(err, unix.EINTR) {
			return err == nil && n == 1
		}
	}
}

// Signal is nil for a process that has ended.
func (p *Process) Signal(sig unix.Signal) error {
	raw, err := p.file.SyscallConn()
	if err != nil {
		return nil
	}
	var serr error
	err = raw.Control(func(fd uintptr) { serr = unix.PidfdSendSignal(int(fd), sig, nil, 0) })
	if err != nil || errors.Is(serr, unix.ESRCH) {
		return nil
	}
	return serr
}

// hears tells whether the process catches a signal, or blocks it to wait for it.
func (p *Process) hears(sig unix.Signal) bool {
	raw, err := os.ReadFile("/proc/" + strconv.Itoa(p.pid) + "/status")
	if err != nil {
		return true // ended, or hidden: the signal may tell
	}
	var mask uint64
	for line := range strings.Lines(string(raw)) {
		name, value, _ := strings.Cut(line, ":")
		if name == "SigBlk" || name == "SigCgt" {
			bits, err := strconv.ParseUint(strings.TrimSpace(value), 16, 64)
			if err != nil {
				return true
			}
			mask |= bits
		}
	}
	return mask&(1<<(uint(sig)-1)) != 0
}

// ending of an ended process: as its parent where we are that, else from the zombie, else what the pidfd keeps of it after its
// parent reaped it (Linux 6.15).
func (p *Process) ending(fd int) end {
	for range 40 {
		if e, ok := reap(fd); ok {
			return e
		}
		if st, err := readStat(p.pid); err == nil && st.ticks == p.ticks && st.state == 'Z' {
			return fromStatus(unix.WaitStatus(st.exit))
		}
		status, ok, err := pidfdExit(fd)
		if ok {
			return fromStatus(status)
		}
		if err != nil {
			break
		}
		time.Sleep(5 * time.Millisecond) // between zombie and reaped there is a moment when neither tells
	}
	return end{code: -1}
}

// reap collects an ended child of ours; false for another's child.
func reap(fd int) (end, bool) {
	var info siginfoChild
	for {
		_, _, errno := unix.Syscall6(unix.SYS_WAITID, unix.P_PIDFD, uintptr(fd), uintptr(unsafe.Pointer(&info)), unix.WEXITED|unix.WNOHANG, 0, 0)
		if errno == unix.EINTR {
			continue
		}
		if errno != 0 || info.pid == 0 {
			return end{}, false
		}
		break
	}
	if info.code == cldExited {
		return end{code: int(info.status)}, true
	}
	return killed(int(info.status)), true
}

func killed(signal int) end { return end{code: signalled + signal, signal: signal} }

// anyEnded tells whether a child of ours has ended and is not collected yet.
func anyEnded() bool {
	var info siginfoChild
	_, _, errno := unix.Syscall6(unix.SYS_WAITID, unix.P_ALL, 0, uintptr(unsafe.Pointer(&info)), unix.WEXITED|unix.WNOHANG|unix.WNOWAIT, 0, 0)
	return errno == 0 && info.pid != 0
}

// WaitOrKill waits for the end, and kills when ctx ends. It polls, as it is rare and short.
func (p *Process) WaitOrKill(ctx context.Context) {
	tick := time.NewTicker(2 * time.Millisecond)
	defer tick.Stop()
	over := func() (yes bool) {
		raw, err := p.file.SyscallConn()
		if err != nil {
			return true
		}
		if err := raw.Control(func(fd uintptr) { yes = readable(int(fd)) }); err != nil {
			return true
		}
		return yes
	}
	for !over() {
		select {
		case <-ctx.Done():
			_ = p.Signal(unix.SIGKILL)
			return
		case <-tick.C:
		}
	}
}

// reapTries bounds how often reap looks for a moment without a child in the making, and reapEvery is how long it waits between.
const reapTries, reapEvery = 50, time.Millisecond

// reap collects the process if it is our child, has ended, and is nobody's to collect, see awaited. It does not wait long for children in the making, which may
// be held up in a container's frozen cgroup: what it leaves the next one finds.
func (p *Process) reap() {
	for try := 1; !awaited.starting.TryLock(); try++ {
		if try == reapTries {
			return
		}
		time.Sleep(reapEvery)
	}
	defer awaited.starting.Unlock()
	if _, ok := awaited.pids.Load(p.pid); ok {
		return
	}
	if raw, err := p.file.SyscallConn(); err == nil {
		_ = raw.Control(func(fd uintptr) { reap(int(fd)) })
	}
}

// reapOrphans collects ended children of ours that belonged to a group below one of version 2, if one of the names there is wanted, and that nothing else waits
// for: what a killed call left was handed to us. In version 1 an ended process is in no group any more.
func reapOrphans(above string, wanted func(name string, pid int) bool) {
	lists, err := filepath.Glob("/proc/self/task/*/children")
	if err != nil {
		return
	}
	for _, list := range lists {
		raw, err := os.ReadFile(list)
		if err != nil {
			continue
		}
		for f := range bytes.FieldsSeq(raw) {
			pid, err := strconv.Atoi(string(f))
			if err != nil {
				continue
			}
			st, err := readStat(pid)
			if err != nil || st.state != 'Z' {
				continue
			}
			groups, err := os.ReadFile("/proc/" + string(f) + "/cgroup")
			if err != nil {
				continue
			}
			if name, ok := nameBelow(string(groups), above); !ok || !wanted(name, pid) {
				continue
			}
			if p, _, err := OpenProcess(pid, st.ticks); err == nil {
				p.reap()
				p.Close()
			}
		}
	}
}

// nameBelow is the name of the group directly below one, which a process's cgroup file in /proc says that the process is in, or below: a container's id, or that of
// the container whose monitor began there. Of a group that was removed the kernel says so behind its path.
func nameBelow(groups, above string) (name string, ok bool) {
	for line := range strings.Lines(groups) { // ID:CONTROLLERS:PATH
		f := strings.SplitN(strings.TrimSpace(line), ":", 3)
		if len(f) != 3 {
			continue
		}
		if rest, ok := strings.CutPrefix(strings.TrimSuffix(f[2], " (deleted)"), above+"/"); ok {
			name, _, _ = strings.Cut(rest, "/")
			return strings.TrimPrefix(name, monitorMark), true
		}
	}
	return "", false
}

// siginfoChild is siginfo_t as waitid fills it (128 bytes; 64-bit layout).
type siginfoChild struct {
	signo, errno, code int32
	_                  int32
	pid                int32
	uid                uint32
	status             int32
	_                  [100]byte
}

const cldExited = 1

func fromStatus(s unix.WaitStatus) end {
	if s.Signaled() {
		return killed(int(s.Signal()))
	}
	return end{code: s.ExitStatus()}
}

// pidfdInfo is struct pidfd_info of <linux/pidfd.h>, first version (64 bytes).
type pidfdInfo struct {
	mask, cgroup uint64
	ids          [11]uint32
	exit         int32
}

const (
	pidfdInfoExit = 1 << 3
	pidfdGetInfo  = 0xc040ff0b // _IOWR(0xff, 11, 64 bytes)
)

// pidfdExit asks for the exit status of a process that its parent has reaped. An error: this kernel cannot tell.
func pidfdExit(fd int) (unix.WaitStatus, bool, error) {
	info := pidfdInfo{mask: pidfdInfoExit}
	_, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), pidfdGetInfo, uintptr(unsafe.Pointer(&info)))
	if errno == unix.ESRCH {
		return 0, false, nil
	}
	if errno != 0 {
		return 0, false, errno
	}
	return unix.WaitStatus(info.exit), info.mask&pidfdInfoExit != 0, nil
}

type stat struct {
	state byte
	ticks uint64
	exit  uint32
}

// readStat reads the fields 3, 22 and 52 of /proc/PID/stat, see proc_pid_stat(5). Package procfs does not tell the last one.
func readStat(pid int) (stat, error) {
	raw, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	if err != nil {
		return stat{}, err
	}
	i := bytes.LastIndexByte(raw, ')')
	if i < 0 {
		return stat{}, fmt.Errorf("/proc/%d/stat: %q", pid, raw)
	}
	f := bytes.Fields(raw[i+1:]) // f[0] is field 3
	if len(f) < 50 {
		return stat{}, fmt.Errorf("/proc/%d/stat: %d fields", pid, len(f))
	}
	ticks, err := strconv.ParseUint(string(f[19]), 10, 64)
	if err != nil {
		return stat{}, fmt.Errorf("/proc/%d/stat: start time: %w", pid, err)
	}
	exit, err := strconv.ParseUint(string(f[49]), 10, 32)
	if err != nil {
		exit = 0 // hidden from us
	}
	return stat{state: f[0][0], ticks: ticks, exit: uint32(exit)}, nil
}
