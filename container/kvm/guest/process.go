package main

import (
	"encoding/json"
	"errors"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

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

// task is what a process of ours is to become. It finds that in file 4, and says in file 3 why it cannot.
type task struct {
	Root  string
	Check bool // only whether the program is there
	TTY   bool
	channel.Process
	channel.Machine
}

// become turns this process into a program, with the rights that it is to have and no others.
func become() {
	report := os.NewFile(3, "report")
	unix.CloseOnExec(3)
	err := execute()
	if err != nil {
		_, _ = report.WriteString(err.Error())
		os.Exit(127)
	}
	os.Exit(0)
}

func execute() error {
	var t task
	if err := json.NewDecoder(os.NewFile(4, "task")).Decode(&t); err != nil {
		return wrap("task", err)
	}
	unix.CloseOnExec(4)
	if t.PIDs > 0 {
		if err := os.WriteFile(programGroup+"/cgroup.procs", []byte("0"), 0); err != nil {
			return wrap("limit of processes", err)
		}
	}
	if err := unix.Chroot(t.Root); err != nil {
		return wrap("root", err)
	}
	if t.Dir == "" {
		t.Dir = "/"
	}
	if err := os.Chdir(t.Dir); err != nil {
		return wrap("working directory", err)
	}
	path, err := lookup(t.Process.Args[0], t.Process.Env)
	if err != nil || t.Check {
		return err
	}
	if err := drop(t); err != nil {
		return err
	}
	return wrap("execute "+t.Process.Args[0], syscall.Exec(path, t.Process.Args, t.Process.Env))
}

// lookup finds a command as execvp does.
func lookup(name string, env []string) (string, error) {
	candidates := []string{name}
	if !strings.Contains(name, "/") {
		candidates = nil
		for _, e := range env {
			if list, ok := strings.CutPrefix(e, "PATH="); ok {
				candidates = nil
				for _, dir := range filepath.SplitList(list) {
					candidates = append(candidates, filepath.Join(dir, name))
				}
			}
		}
	}
	there := false
	for _, c := range candidates {
		info, err := os.Stat(c)
		if err != nil {
			continue
		}
		if there = true; !info.IsDir() && info.Mode()&0o111 != 0 {
			return c, nil
		}
	}
	if there {
		return "", errors.New("command " + strconv.Quote(name) + " is not executable in the image")
	}
	return "", errors.New("command " + strconv.Quote(name) + " not found in the image: name one that it has")
}

// drop gives up all rights but those of the task. The calls are for this thread alone, which is the one that executes.
func drop(t task) error {
	rlimits := map[int]unix.Rlimit{unix.RLIMIT_NOFILE: {Cur: 1024, Max: 524288}, unix.RLIMIT_CORE: {}}
	if t.FileBytes > 0 {
		rlimits[unix.RLIMIT_FSIZE] = unix.Rlimit{Cur: t.FileBytes, Max: t.FileBytes}
	}
	for which, l := range rlimits {
		if err := unix.Prlimit(0, which, &l, nil); err != nil {
			return wrap("limits", err)
		}
	}
	for c := range 64 {
		if t.Capabilities&(1<<c) == 0 {
			if err := unix.Prctl(unix.PR_CAPBSET_DROP, uintptr(c), 0, 0, 0); err != nil && !errors.Is(err, unix.EINVAL) {
				return wrap("capabilities", err)
			}
		}
	}
	if err := unix.Prctl(unix.PR_SET_KEEPCAPS, 1, 0, 0, 0); err != nil {
		return wrap("capabilities", err)
	}
	for _, call := range [][4]uintptr{
		{unix.SYS_SETGROUPS, 0, 0, 0},
		{unix.SYS_SETRESGID, uintptr(t.GID), uintptr(t.GID), uintptr(t.GID)},
		{unix.SYS_SETRESUID, uintptr(t.UID), uintptr(t.UID), uintptr(t.UID)},
	} {
		if _, _, errno := unix.RawSyscall(call[0], call[1], call[2], call[3]); errno != 0 {
			return wrap("user", errno)
		}
	}
	var data [2]unix.CapUserData
	for i := range data {
		mask := uint32(t.Capabilities >> (32 * i))
		data[i] = unix.CapUserData{Effective: mask, Permitted: mask}
		if t.UID != 0 {
			data[i].Inheritable = mask
		}
	}
	if err := unix.Capset(&unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}, &data[0]); err != nil {
		return wrap("capabilities", err)
	}
	for c := range 64 {
		if t.UID != 0 && t.Capabilities&(1<<c) != 0 { // an ordinary user keeps them across execution only as ambient ones
			if err := unix.Prctl(unix.PR_CAP_AMBIENT, unix.PR_CAP_AMBIENT_RAISE, uintptr(c), 0, 0); err != nil {
				return wrap("capabilities", err)
			}
		}
	}
	return wrap("no_new_privs", unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0))
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

// spawn has a process of ours become a program. An error says why it did not.
func (c *children) spawn(t task, files [3]*os.File) (pid int, ended chan unix.WaitStatus, err error) {
	text, err := json.Marshal(t)
	if err != nil {
		return 0, nil, err
	}
	memory, err := unix.MemfdCreate("task", unix.MFD_CLOEXEC)
	if err != nil {
		return 0, nil, wrap("task", err)
	}
	file := os.NewFile(uintptr(memory), "task")
	defer file.Close()
	if _, err = file.Write(text); err == nil {
		_, err = file.Seek(0, io.SeekStart)
	}
	if err != nil {
		return 0, nil, wrap("task", err)
	}
	problem, report, err := os.Pipe()
	if err != nil {
		return 0, nil, wrap("task", err)
	}
	defer problem.Close()
	attr := syscall.ProcAttr{Files: []uintptr{files[0].Fd(), files[1].Fd(), files[2].Fd(), report.Fd(), file.Fd()}, Sys: &syscall.SysProcAttr{Setsid: true, Setctty: t.TTY}}
	ended = make(chan unix.WaitStatus, 1)
	c.mu.Lock()
	pid, err = syscall.ForkExec("/proc/self/exe", []string{"weir", "become"}, &attr)
	if err == nil {
		c.exits[pid] = ended
	}
	c.mu.Unlock()
	report.Close()
	if err != nil {
		return 0, nil, wrap("process", err)
	}
	why, _ := io.ReadAll(io.LimitReader(problem, 4096)) // to the end: the program is executed, or the process has ended
	if len(why) > 0 || t.Check {
		ws := <-ended
		if len(why) == 0 && ws.ExitStatus() != 0 {
			why = []byte("process ended with " + strconv.Itoa(ws.ExitStatus()))
		}
		if len(why) > 0 {
			return 0, nil, errors.New(string(why))
		}
	}
	return pid, ended, nil
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
