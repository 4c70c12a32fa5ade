package main

import (
	"context"
	"encoding/binary"
	"errors"
	"os"
	"os/signal"
	"path"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"weir.dev/weir/container/kernel/launcher"
	"weir.dev/weir/container/kvm/channel"
)

const programGroup = "/cgroup/program"

// limits makes the group in which the program's processes are counted.
func (m *machine) limits() error {
	if m.spec.PIDs == 0 {
		return nil
	}
	err := os.WriteFile("/cgroup/cgroup.subtree_control", []byte("+pids"), 0)
	if err == nil {
		err = os.Mkdir(programGroup, 0o755)
	}
	if err == nil {
		err = os.WriteFile(programGroup+"/pids.max", []byte(strconv.FormatInt(m.spec.PIDs, 10)), 0)
	}
	return wrap("limit of processes", err)
}

// command is what a process is to be: the program, or one more of Exec's.
type command struct {
	channel.Process
	holds bool // it waits for a byte when it is all but the program
}

// Descriptors of a process of the launcher.
const (
	saidFD = launcher.FirstFile + iota // what it says goes there
	goFD                               // a byte from there lets it go on
)

// list is how a process gets the rights that the program is to have and no others, and then is the program. The launcher makes it, since in a machine whose
// processor is emulated a Go program takes a tenth of a second to begin.
func (m *machine) list(c command) *launcher.Program {
	p, spec := launcher.New(saidFD), &m.spec
	prctl(p, "hide the process", launcher.Int(unix.PR_SET_DUMPABLE)) // from others with the same rights, as long as it is not the program
	p.Call("close files at execve", unix.SYS_CLOSE_RANGE, launcher.Int(3), launcher.Int(^uint32(0)), launcher.Int(unix.CLOSE_RANGE_CLOEXEC))
	if spec.PIDs > 0 {
		const what = "enter the group of the program's processes"
		f := p.Call(what, unix.SYS_OPENAT, launcher.Here(), p.String(programGroup+"/cgroup.procs"), launcher.Int(unix.O_WRONLY|unix.O_CLOEXEC), launcher.Int(0))
		p.Call(what, unix.SYS_WRITE, launcher.Result(f), p.String("0"), launcher.Int(1))
	}
	p.Call("enter the root", unix.SYS_CHROOT, p.String(m.root))
	dir := path.Join("/", spec.Dir) // ".." would lead out of the root
	p.Call("enter working directory "+strconv.Quote(dir)+" of the image", unix.SYS_CHDIR, p.String(dir))
	drop(p, spec)
	p.Look(c.Args, c.Env)
	if c.holds {
		p.SayReady()
		told := p.Call("wait for the start", unix.SYS_READ, launcher.Int(goFD), p.Bytes(make([]byte, 8)), launcher.Int(1))
		p.Jump(told, launcher.Positive)
		p.Exit(127) // nobody is left who could tell it
		p.Land(told)
	}
	p.Execute(c.Args, c.Env)
	return p
}

func prctl(p *launcher.Program, what string, args ...launcher.Arg) launcher.Step {
	for len(args) < 5 {
		args = append(args, launcher.Int(0))
	}
	return p.Call(what, unix.SYS_PRCTL, args...)
}

// drop gives up all rights but those that are asked for.
func drop(p *launcher.Program, spec *channel.Machine) {
	limit := func(which int, soft, hard uint64) {
		pair := binary.LittleEndian.AppendUint64(binary.LittleEndian.AppendUint64(nil, soft), hard)
		p.Call("set limits", unix.SYS_PRLIMIT64, launcher.Int(0), launcher.Int(which), p.Bytes(pair), launcher.Int(0))
	}
	limit(unix.RLIMIT_NOFILE, 1024, 524288)
	limit(unix.RLIMIT_CORE, 0, 0)
	if spec.FileBytes > 0 {
		limit(unix.RLIMIT_FSIZE, spec.FileBytes, spec.FileBytes)
	}
	for n := range 64 {
		if spec.Capabilities&(1<<n) == 0 {
			p.Spare(prctl(p, "drop capabilities", launcher.Int(unix.PR_CAPBSET_DROP), launcher.Int(n)), unix.EINVAL) // this kernel does not know it
		}
	}
	prctl(p, "keep capabilities", launcher.Int(unix.PR_SET_KEEPCAPS), launcher.Int(1))
	p.Call("leave all groups", unix.SYS_SETGROUPS, launcher.Int(0), launcher.Int(0))
	p.Call("become the group", unix.SYS_SETRESGID, launcher.Int(spec.GID), launcher.Int(spec.GID), launcher.Int(spec.GID))
	p.Call("become the user", unix.SYS_SETRESUID, launcher.Int(spec.UID), launcher.Int(spec.UID), launcher.Int(spec.UID))
	prctl(p, "hide the process", launcher.Int(unix.PR_SET_DUMPABLE))
	header := []byte{0x22, 0x05, 0x08, 0x20, 0, 0, 0, 0} // _LINUX_CAPABILITY_VERSION_3
	var sets []byte
	for shift := 0; shift < 64; shift += 32 {
		mask := uint32(spec.Capabilities >> shift)
		inheritable := uint32(0)
		if spec.UID != 0 {
			inheritable = mask
		}
		for _, set := range []uint32{mask, mask, inheritable} {
			sets = binary.LittleEndian.AppendUint32(sets, set)
		}
	}
	p.Call("set capabilities", unix.SYS_CAPSET, p.Bytes(header), p.Bytes(sets))
	for n := range 64 {
		if spec.UID != 0 && spec.Capabilities&(1<<n) != 0 { // an ordinary user keeps them across execution only as ambient ones
			prctl(p, "keep a capability over execve", launcher.Int(unix.PR_CAP_AMBIENT), launcher.Int(unix.PR_CAP_AMBIENT_RAISE), launcher.Int(n))
		}
	}
	prctl(p, "gain no privileges", launcher.Int(unix.PR_SET_NO_NEW_PRIVS), launcher.Int(1))
}

// children are our processes, and where their ends are told.
type children struct {
	mu    sync.Mutex
	exits map[int]chan unix.WaitStatus
}

// collect reaps all processes, those that lost their parents included.
func (c *children) collect() {
	ended := make(chan os.Signal, 1)
	signal.Notify(ended, unix.SIGCHLD)
	for range ended {
		for c.one() {
		}
	}
}

func (c *children) one() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	var ws unix.WaitStatus
	pid, err := unix.Wait4(-1, &ws, unix.WNOHANG, nil)
	if errors.Is(err, unix.EINTR) {
		return true
	}
	if err != nil || pid <= 0 {
		return false
	}
	if told := c.exits[pid]; told != nil {
		delete(c.exits, pid)
		told <- ws
	}
	return true
}

// begun is a process that is to be a program.
type begun struct {
	pid     int
	ended   chan unix.WaitStatus
	args    []string
	list    *launcher.Program
	said    *os.File
	release *os.File // for the byte that a process waits for which holds
}

// begin makes a process that is to be a program. await is to follow.
func (m *machine) begin(c command, files [3]*os.File) (*begun, error) {
	said, says, err := os.Pipe()
	if err != nil {
		return nil, wrap("process", err)
	}
	defer says.Close()
	goes, release, err := os.Pipe()
	if err != nil {
		said.Close()
		return nil, wrap("process", err)
	}
	defer goes.Close()
	b := &begun{ended: make(chan unix.WaitStatus, 1), args: c.Args, list: m.list(c), said: said, release: release}
	cmd, done, err := b.list.Command(context.Background(), nil, says, goes)
	if err != nil {
		b.close()
		return nil, err
	}
	defer done()
	attr := syscall.ProcAttr{Sys: &syscall.SysProcAttr{Setsid: true, Setctty: c.TTY}} // the standard input's terminal
	for _, f := range append(files[:], cmd.ExtraFiles...) {
		attr.Files = append(attr.Files, f.Fd())
	}
	m.mu.Lock() // it is collected with all others, and not before it is known
	defer m.mu.Unlock()
	if b.pid, err = syscall.ForkExec(cmd.Path, cmd.Args, &attr); err != nil {
		b.close()
		return nil, wrap("process", err)
	}
	m.exits[b.pid] = b.ended
	return b, nil
}

func (b *begun) close() {
	b.said.Close()
	b.release.Close()
}

// end tells when a process has ended; never, if there is none.
func (b *begun) end() <-chan unix.WaitStatus {
	if b == nil {
		return nil
	}
	return b.ended
}

// becomesIn bounds how long a process takes to be the program: another one of the program's could hold it.
const becomesIn = time.Minute

// await waits until the process is the program or, with ready, all but that. An error says why it will not be; the process has ended then.
func (b *begun) await(ready bool) error {
	_ = b.said.SetReadDeadline(time.Now().Add(becomesIn))
	h, err := b.list.Hear(b.said, func(h launcher.Said) bool { return ready && h.Ready })
	if err == nil && h.Ready == ready { // the pipe ends with the program's execution
		return nil
	}
	if errors.Is(err, os.ErrDeadlineExceeded) {
		_ = unix.Kill(b.pid, unix.SIGKILL)
	}
	ws := <-b.ended
	if err == nil {
		err = endedWith(ws)
	}
	return launcher.Explain(err, b.args)
}

func endedWith(ws unix.WaitStatus) error {
	e := exitOf(ws)
	if e.OOM {
		return errors.New("its process was killed for want of memory")
	}
	return errors.New("its process has ended with " + strconv.Itoa(e.Code))
}

// goOn lets a process that holds be the program.
func (b *begun) goOn() error {
	if _, err := b.release.Write([]byte{1}); err != nil {
		return endedWith(<-b.ended)
	}
	return b.await(false)
}

// spawn makes a process that is a program. An error says why it is not.
func (m *machine) spawn(c command, files [3]*os.File) (*begun, error) {
	b, err := m.begin(c, files)
	if err != nil {
		return nil, err
	}
	defer b.close()
	return b, b.await(false)
}

// exitOf tells an end as the driver has it.
func exitOf(ws unix.WaitStatus) channel.Exit {
	if ws.Signaled() {
		return channel.Exit{Code: 128 + int(ws.Signal()), Signal: int(ws.Signal()), OOM: ws.Signal() == unix.SIGKILL && outOfMemory()}
	}
	return channel.Exit{Code: ws.ExitStatus()}
}

// outOfMemory tells whether the kernel has killed a process for want of memory.
func outOfMemory() bool {
	text, _ := os.ReadFile("/proc/vmstat")
	for line := range strings.Lines(string(text)) {
		if n, ok := strings.CutPrefix(strings.TrimSpace(line), "oom_kill "); ok {
			return n != "0"
		}
	}
	return false
}

const (
	minAge   = 50 * time.Millisecond // after its start a program is not asked to end: it may not even have been executed
	deafness = 5 * time.Second       // a program that does not listen to SIGTERM for so long never will
)

// terminate sends SIGTERM when the program listens to it: one that has only just begun would be ended before it can say how.
func terminate(pid int, started time.Time) {
	for age := time.Since(started); age < deafness; age = time.Since(started) {
		if age >= minAge && hears(pid, unix.SIGTERM) {
			break
		}
		time.Sleep(5 * time.Millisecond)
	}
	if hears(pid, unix.SIGTERM) { // else it is as process 1 of a container: the signal does nothing
		_ = unix.Kill(pid, unix.SIGTERM)
	}
}

// hears tells whether a process catches a signal, or blocks it to wait for it.
func hears(pid int, sig unix.Signal) bool {
	text, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/status")
	if err != nil {
		return true
	}
	for line := range strings.Lines(string(text)) {
		name, value, _ := strings.Cut(line, ":")
		if name == "SigBlk" || name == "SigCgt" {
			if bits, err := strconv.ParseUint(strings.TrimSpace(value), 16, 64); err == nil && bits&(1<<(uint(sig)-1)) != 0 {
				return true
			}
		}
	}
	return false
}

func ioctl[T any](fd int, request uintptr, arg *T) error {
	if _, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), request, uintptr(unsafe.Pointer(arg))); errno != 0 {
		return errno
	}
	return nil
}
