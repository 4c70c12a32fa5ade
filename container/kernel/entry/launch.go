package entry

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"weir.dev/weir/container"
	"weir.dev/weir/container/kernel"
	compiled "weir.dev/weir/container/kernel/filter"
)

const (
	launchTimeout = time.Minute
	gateFile      = "gate"  // a byte into it lets the container's process go on
	replyFile     = "reply" // what the process says
	saysFile      = "says"  // what the engine's program says
	listFile      = "list"
	programName   = "weir-entry"
)

// The descriptors of a launch.
const (
	fdOuter = iota + 3
	fdInner
	fdGate
	fdReply
	fdProgram
)

// Supported tells whether this processor and this kernel can do what the steps need.
func Supported() error {
	if len(program) == 0 {
		return errors.New("no program for this processor: want amd64 or arm64")
	}
	if err := unix.MountSetattr(-1, "", 0, &unix.MountAttr{}); errors.Is(err, unix.ENOSYS) {
		return errors.New("this kernel has no mount_setattr(2): want Linux 5.12 or newer")
	}
	return nil
}

// Tool is what engines have in common whose containers are made by a program that executes package entry's as the container's first process. The
// program says what the container's namespaces, root and devices are; the rest of what kernel.Config asks for is done in the container, by the steps of
// become, and the same way for each further process. It has the methods Start, Find and Exec of kernel.Engine.
type Tool struct {
	Home    *kernel.Home
	Program string // its name
	filters compiled.Cache
}

// Launch is one call of an engine's program.
type Launch struct {
	List  // what is done before the program is executed
	Files Files
	Cover []string // directories in the container that show nothing
	Made  []string // mounts of kernel.Config that the program makes as that wants them, besides /proc, /sys and /dev
	// Enters are the files by which the container's first process enters its cgroups, if the program does not put it there.
	Enters []string
	Args   []string // of the program; [0] is its path
	Env    []string
	// Numbered is a variable, such as LISTEN_PID=, that has the process's id.
	Numbered string
	// Apart is for a program that hands no descriptors on, and makes the container's mounts and cgroups itself.
	Apart Apart
}

// Apart says where the container's first process finds what else it would get as descriptors. The zero value: it gets descriptors.
type Apart struct {
	Inside string // where Dir is in the container
	Log    string // where the log is in the container
}

// Dir is the directory of a container that has what its first process needs.
func Dir(c kernel.Container) string { return filepath.Join(c.Bundle, "entry") }

// Entry is the command by which the engine's program executes package entry's.
func Entry() []string {
	return []string{"/proc/self/fd/" + strconv.Itoa(fdProgram), strconv.Itoa(fdInner)}
}

// Command is the same of a program that hands no descriptors on.
func (a Apart) Command() []string {
	return []string{filepath.Join(a.Inside, programName), filepath.Join(a.Inside, listFile)}
}

// Descriptors is how many descriptors the container's first process wants, from 3 on.
func (x *Launch) Descriptors() int { return len(x.Files.all) }

// Stepwise: see kernel.Stepwise.
func (t *Tool) Stepwise() {}

// Launch is kernel.Engine's, without run. plan says how the engine's program is called.
func (t *Tool) Launch(ctx context.Context, c kernel.Container, log *os.File, plan func(*Launch) error) (pid int, err error) {
	x := &Launch{}
	defer func() { x.Files.Close() }()
	if err := os.Mkdir(Dir(c), 0o755); err != nil && !errors.Is(err, fs.ErrExist) {
		return 0, err
	}
	r, err := newReply(Dir(c))
	if err != nil {
		return 0, err
	}
	defer r.Close()
	var inner List
	if err := t.prepare(x, &inner, r, c, plan); err != nil {
		return 0, err
	}
	says, err := os.OpenFile(filepath.Join(c.Bundle, saysFile), os.O_CREATE|os.O_WRONLY|os.O_TRUNC|os.O_APPEND, 0o600)
	if err != nil {
		return 0, err
	}
	defer says.Close()
	monitor, over, err := start(x, log, says)
	if err != nil {
		return 0, fmt.Errorf("%s: %w", t.Program, err)
	}
	ctx, cancel := context.WithTimeout(ctx, launchTimeout)
	defer cancel()
	if err := r.await(ctx, over, c.Args[0], &x.List, &inner); err != nil {
		_ = monitor.Signal(unix.SIGKILL)
		if ctx.Err() != nil {
			return 0, ctx.Err()
		}
		if errors.Is(err, io.EOF) {
			err = errors.New(cmp.Or(lastLines(says.Name()), "it ended without a word"))
		}
		return 0, fmt.Errorf("%s: %w", t.Program, err)
	}
	return t.first(monitor.PID(), c, x.Apart != Apart{})
}

// prepare makes the two lists, and their files in the order of their numbers.
func (t *Tool) prepare(x *Launch, inner *List, r *replies, c kernel.Container, plan func(*Launch) error) error {
	for range fdProgram - fdOuter + 1 { // the lists come last, when all is in them
		x.Files.all = append(x.Files.all, nil)
	}
	if err := plan(x); err != nil {
		return err
	}
	config, err := t.Home.Config(c)
	if err != nil {
		return err
	}
	filter, err := t.filters.Of(config.Linux.Seccomp)
	if err != nil {
		return err
	}
	if err := x.inside(inner, config); err != nil {
		return err
	}
	if err := become(inner, config.Process, c.Args, nil, filter); err != nil {
		return err
	}
	inner.Pass(fdGate)
	inner.Execute("")
	if x.Numbered != "" {
		x.Env = append(x.Env, "LISTEN_FDS="+strconv.Itoa(x.Descriptors()))
	}
	x.Words(x.Args, x.Env, x.Numbered)
	x.Execute(x.Args[0])
	return x.fill(inner, r, Dir(c))
}

// fill opens the files with the first numbers.
func (x *Launch) fill(inner *List, r *replies, dir string) (err error) {
	inner.first = uint32(len(x.steps))
	for i, make := range []func() (*os.File, error){
		x.file,
		inner.file,
		func() (*os.File, error) { return blocking(filepath.Join(dir, gateFile)) },
		func() (*os.File, error) { return openFIFO(r.path, unix.O_RDONLY) },
		func() (*os.File, error) { return memory(programName, program) },
	} {
		if x.Files.all[i], err = make(); err != nil {
			return err
		}
	}
	if x.Apart == (Apart{}) {
		return nil
	}
	list, err := inner.bytes()
	if err == nil {
		err = os.WriteFile(filepath.Join(dir, listFile), list, 0o644)
	}
	if err == nil {
		err = os.WriteFile(filepath.Join(dir, programName), program, 0o755)
	}
	return err
}

// inside is what the container's first process does before it becomes what it is to be.
func (x *Launch) inside(inner *List, config *specs.Spec) error {
	inner.Outlive() // of the program: it does not end the container by its own end
	if a := x.Apart; a != (Apart{}) {
		inner.Open(filepath.Join(a.Inside, replyFile), unix.O_WRONLY, fdReply)
		inner.Reply(fdReply, false)
		inner.Open(filepath.Join(a.Inside, gateFile), unix.O_RDWR, fdGate)
		inner.Session()
		inner.Open(a.Log, unix.O_WRONLY|unix.O_APPEND, fdProgram)
		inner.Dup(fdProgram, 1)
		inner.Dup(fdProgram, 2)
		return nil
	}
	inner.Reply(fdReply, true)
	inner.Session()
	for _, entrance := range x.Enters {
		file, err := os.OpenFile(entrance, os.O_WRONLY, 0)
		if err != nil {
			return fmt.Errorf("join cgroup: %w", err)
		}
		inner.JoinOpen(entrance, x.Files.Add(file))
	}
	if len(x.Enters) > 0 { // where it is now shall be its root
		inner.Unshare(unix.CLONE_NEWCGROUP)
	}
	for _, dir := range x.Cover {
		inner.MountIfThere("tmpfs", dir, "tmpfs", unix.MS_RDONLY|unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, "size=0k,mode=755")
	}
	if err := mounts(inner, &x.Files, config, x.Made); err != nil {
		return err
	}
	inner.Dup(1, 2) // the program's own words go elsewhere
	null(inner, fdOuter, 0)
	return nil
}

// start starts the program. It ends with this process until it has joined a cgroup by which it is found.
func start(x *Launch, log, says *os.File) (*kernel.Process, <-chan struct{}, error) {
	cmd := exec.Command("/proc/self/fd/"+strconv.Itoa(fdProgram), strconv.Itoa(fdOuter))
	cmd.ExtraFiles = x.Files.all
	cmd.Stdout, cmd.Stderr = log, says
	cmd.Env = []string{}
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Pdeathsig: syscall.SIGKILL}
	if err := cmd.Start(); err != nil {
		return nil, nil, err
	}
	defer func() { _ = cmd.Process.Release() }()
	p, _, err := kernel.OpenProcess(cmd.Process.Pid, 0)
	if err != nil { // it is our child, and not collected
		_ = cmd.Process.Kill()
		_, werr := cmd.Process.Wait()
		return nil, nil, errors.Join(err, werr)
	}
	over := make(chan struct{})
	go p.Collect(over)
	return p, over, nil
}

// mostProcesses bounds how many processes of an engine's program are looked at.
const mostProcesses = 64

// first finds the container's first process: that below the program's which executes ours. With move it is put into the container's cgroups.
func (t *Tool) first(monitor int, c kernel.Container, move bool) (int, error) {
	for queue := []int{monitor}; len(queue) > 0 && len(queue) < mostProcesses; queue = queue[1:] {
		if waits(queue[0]) {
			return queue[0], t.own(queue[0], c.ID, move)
		}
		lists, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/children", queue[0]))
		if err != nil {
			return 0, err
		}
		for _, list := range lists {
			raw, _ := os.ReadFile(list) // it may have ended
			for f := range bytes.FieldsSeq(raw) {
				if pid, err := strconv.Atoi(string(f)); err == nil {
					queue = append(queue, pid)
				}
			}
		}
	}
	return 0, fmt.Errorf("%s: the container's process has ended", t.Program)
}

// own makes sure that a process is in its container's cgroups.
func (t *Tool) own(pid int, id string, move bool) error {
	for _, entrance := range t.Home.Entrances(id) {
		if !move {
			break
		}
		if err := os.WriteFile(entrance, []byte(strconv.Itoa(pid)), 0o644); err != nil {
			return fmt.Errorf("%s: join cgroup: %w", t.Program, err)
		}
	}
	if !t.Home.Member(pid, id) {
		return fmt.Errorf("%s: process %d is not in cgroup %s", t.Program, pid, t.Home.CgroupPath(id))
	}
	return nil
}

// Start lets a container that waits run. One that runs already, by a Start that nobody saw the end of, it leaves alone.
func (t *Tool) Start(ctx context.Context, c kernel.Container) error {
	reply, err := openFIFO(filepath.Join(Dir(c), replyFile), unix.O_RDONLY)
	if err != nil {
		return err
	}
	defer reply.Close()
	switch {
	case waits(c.PID):
	case t.Home.Member(c.PID, c.ID):
		return nil
	default:
		return errors.New("its process has ended before the start")
	}
	gate, err := openFIFO(filepath.Join(Dir(c), gateFile), unix.O_WRONLY)
	if err != nil {
		return err
	}
	defer gate.Close()
	stop := context.AfterFunc(ctx, func() { _ = reply.SetReadDeadline(time.Unix(1, 0)) })
	defer stop()
	if _, err := gate.Write([]byte{1}); err != nil {
		return fmt.Errorf("start: %w", err)
	}
	err = readReply(reply, c.Args[0])
	if errors.Is(err, io.EOF) {
		return nil
	}
	if ctx.Err() != nil {
		return ctx.Err()
	}
	return err
}

// Find is kernel.Engine's: of a launch that was interrupted nothing is used. A start that was is completed, as nobody can tell whether its byte is on the way.
func (t *Tool) Find(ctx context.Context, c kernel.Container) (kernel.Found, error) {
	if c.PID == 0 {
		return kernel.Found{}, nil
	}
	if err := t.Start(ctx, c); err != nil || !t.Home.Member(c.PID, c.ID) {
		return kernel.Found{State: container.Stopped}, ctx.Err()
	}
	return kernel.Found{State: container.Running, PID: c.PID, Started: time.Now()}, nil
}

// waits tells whether a process still executes package entry's program, from memory or a file.
func waits(pid int) bool {
	exe, err := os.Readlink("/proc/" + strconv.Itoa(pid) + "/exe")
	exe = strings.TrimSuffix(exe, " (deleted)")
	return err == nil && (exe == "/memfd:"+programName || path.Base(exe) == programName)
}
