package entry

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"weir.dev/weir/container/kernel"
	"weir.dev/weir/container/kernel/launcher"
	"weir.dev/weir/container/kernel/steps"
)

const (
	launchTimeout = time.Minute
	ownDir        = "entry" // in a container's bundle, with what its first process needs
)

// innerFD is the list of the container's first process.
const innerFD = steps.MoreFD

// Supported tells whether this processor and this kernel can do what the steps need.
func Supported() error {
	if err := launcher.Ready(); err != nil {
		return fmt.Errorf("%w: want amd64 or arm64", err)
	}
	if err := unix.MountSetattr(-1, "", 0, &unix.MountAttr{}); errors.Is(err, unix.ENOSYS) {
		return errors.New("this kernel has no mount_setattr(2): want Linux 5.12 or newer")
	}
	return nil
}

// Tool is what engines have in common whose containers are made by a program that executes the launcher as the container's first process. The program says
// what the container's namespaces, root and devices are; the rest of what kernel.Config asks for is done in the container, by steps, and the same way for
// each further process. It has the methods Start, Find and Exec of kernel.Engine.
type Tool struct {
	steps.Maker
	Program string // its name
}

// Launch is one call of an engine's program.
type Launch struct {
	*steps.List          // what is done before the program is executed
	Cover       []string // directories in the container that show nothing
	Made        []string // mounts of kernel.Config that the program makes as that wants them, besides /proc, /sys and /dev
	Args        []string // of the program; [0] is its path
	Env         []string
	// Numbered is a variable, such as LISTEN_PID=, that has the process's id.
	Numbered string
	// Apart is for a program that hands no descriptors on, and makes the container's mounts and cgroups itself.
	Apart Apart

	// Still says that the program moves no process into a cgroup.
	Still bool

	begun     func() (unified *os.File, err error) // waits for what makes the groups of the program
	gate      int                                  // socket by which the first process gets the entrances of its container's cgroups
	entrances int                                  // how many they are
	quick     bool                                 // nobody will wait for a grace period in order to enter a cgroup
	groups    func() error                         // waits for what makes them
	says      *os.File                             // what the program says, in memory
}

// Begin makes the groups by which the program is found, beside what else is prepared, and enters them. The launcher ends with the daemon until then.
func (x *Launch) Begin(h *kernel.Home, c kernel.Container, owner uint32) {
	for _, f := range h.MonitorEntrances(c.ID) {
		x.Join(f)
	}
	x.Outlive()
	var unified *os.File
	var err error
	made := make(chan struct{})
	go func() {
		defer close(made)
		unified, err = h.MakeMonitor(c.ID, owner)
	}()
	x.begun = func() (*os.File, error) {
		<-made
		return unified, err
	}
}

// EnterGroups makes the container's cgroups, behind those of Begin, and lets the first process enter them, as the program does not put it there. They are made while
// the program works: the process waits for them. Below a program that is Still the process may stay in the program's group of version 2.
func (x *Launch) EnterGroups(h *kernel.Home, c kernel.Container) {
	entrances := h.Entrances(c.ID)
	if x.Still {
		entrances, x.quick = h.QuickEntrances(c.ID)
	}
	ends, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		x.Fail(fmt.Errorf("make a socket for cgroups: %w", err))
		return
	}
	x.gate, x.entrances = x.Add(os.NewFile(uintptr(ends[0]), "cgroups")), len(entrances)
	done := make(chan error, 1)
	go func() {
		defer unix.Close(ends[1]) // who waits there then ends, if nothing was sent
		_, err := x.begun()       // one lock is for all groups: the program's are wanted first
		if err == nil {
			err = h.MakeGroups(c.Spec)
		}
		if err == nil {
			err = sendEntrances(ends[1], entrances)
		}
		done <- err
	}()
	x.groups = sync.OnceValue(func() error { return <-done })
}

// sendEntrances opens files by which a process enters cgroups, and sends them to it.
func sendEntrances(socket int, paths []string) error {
	var all []int
	defer func() {
		for _, fd := range all {
			unix.Close(fd)
		}
	}()
	for _, path := range paths {
		fd, err := unix.Open(path, unix.O_WRONLY|unix.O_CLOEXEC, 0)
		if err != nil {
			return fmt.Errorf("join cgroup %s: %w", path, err)
		}
		all = append(all, fd)
	}
	if err := unix.Sendmsg(socket, []byte{1}, unix.UnixRights(all...), nil, unix.MSG_NOSIGNAL); err != nil && !errors.Is(err, unix.EPIPE) { // who has ended says why
		return fmt.Errorf("hand cgroups on: %w", err)
	}
	return nil
}

// Close lets all go that is open here for the program. Safe to call twice.
func (x *Launch) Close() {
	if x.groups != nil {
		_ = x.groups() // what it has opened is closed, too
	}
	if x.begun != nil {
		if unified, err := x.begun(); err == nil && unified != nil {
			unified.Close()
		}
	}
	x.List.Close()
}

// Apart says where the container's first process finds what else it would get as descriptors. The zero value: it gets descriptors.
type Apart struct {
	Inside string // where Dir is in the container
	Log    string // where the log is in the container
}

// Dir is the directory of a container that has what its first process needs.
func Dir(c kernel.Container) string { return filepath.Join(c.Bundle, ownDir) }

// Entry is the command by which the engine's program executes the launcher.
func Entry() []string { return launcher.Again(innerFD) }

// Command is the same of a program that hands no descriptors on.
func (a Apart) Command() []string { return launcher.Saved(a.Inside) }

// Launch is kernel.Engine's. plan says how the engine's program is called.
func (t *Tool) Launch(ctx context.Context, c kernel.Container, log *os.File, run bool, made kernel.Made, plan func(*Launch) error) error {
	says, err := words()
	if err != nil {
		return err
	}
	defer says.Close()
	x := &Launch{List: steps.New(), says: says}
	defer x.Close()
	if err := os.Mkdir(Dir(c), 0o755); err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	perm := os.FileMode(0o600)
	if c.Userns != "" { // its root opens them anew
		perm = 0o666
	}
	if err := t.MakePipes(c, perm); err != nil {
		return err
	}
	inner, err := t.prepare(x, c, plan)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, launchTimeout)
	defer cancel()
	err = t.run(ctx, x, inner, c, log, run, made)
	switch {
	case err == nil:
		return nil
	case ctx.Err() != nil:
		return ctx.Err()
	case errors.Is(err, io.EOF):
		err = errors.New(cmp.Or(lastLines(x.says), "it ended without a word"))
	}
	return fmt.Errorf("%s: %w", t.Program, launcher.Explain(err, c.Args))
}

// run has the engine's program make the container, up to its first process, which waits or executes the command.
func (t *Tool) run(ctx context.Context, x *Launch, inner *steps.List, c kernel.Container, log *os.File, run bool, made kernel.Made) error {
	said, hold, err := t.OpenSaid(c)
	if err != nil {
		return err
	}
	defer said.Close()
	defer hold.Close()
	monitor, over, err := t.start(ctx, x, c, log)
	if err == nil && !x.quick {
		if x.groups != nil {
			err = x.groups()
		}
		defer t.Home.Rouse()() // not before: who waits for the grace period holds the lock of all cgroups
	}
	if err == nil {
		defer attend(ctx, said, hold, over)()
		if err = t.KeepSteps(c, inner); err == nil { // meanwhile the program works
			err = hears(inner, said, func(h launcher.Said) bool { return h.Here })
		}
	}
	if err == nil {
		held := t.holdOf(monitor.PID(), x, c, run, made)
		hold.Close() // the process itself has said open, up to its command
		err = hears(inner, said, func(h launcher.Said) bool { return h.Ready && (!run || held != nil) })
		if held != nil && (err == nil || errors.Is(err, io.EOF)) { // else the process says why it has ended
			err = held
		}
	}
	if err != nil && monitor != nil {
		_ = monitor.Signal(unix.SIGKILL)
	}
	if err != nil && x.groups != nil {
		err = cmp.Or(x.groups(), err) // without them the process has ended without a word
	}
	return err
}

// holdOf takes hold of the container's first process while that prepares itself, and lets it execute the command then, if run.
func (t *Tool) holdOf(monitor int, x *Launch, c kernel.Container, run bool, made kernel.Made) error {
	pid, err := t.first(monitor, c, x.Apart != Apart{})
	if err == nil {
		err = made(pid, false)
	}
	if err != nil || !run {
		return err
	}
	if err = t.LetGo(c); errors.Is(err, unix.ENXIO) {
		return nil // it has ended, and said why
	}
	return err
}

// hears hears what the container's first process says, until it is enough, or it executes the command.
func hears(inner *steps.List, said io.Reader, enough func(launcher.Said) bool) error {
	heard, err := inner.Hear(said, enough)
	if err == nil && !enough(heard) && !heard.Ready {
		return io.EOF
	}
	return err
}

// prepare makes the two lists, and their files in the order of their numbers.
func (t *Tool) prepare(x *Launch, c kernel.Container, plan func(*Launch) error) (inner *steps.List, err error) {
	x.Add(nil) // innerFD: it is made when all is in it
	x.Program.Anyone = true
	if err := plan(x); err != nil {
		return nil, err
	}
	if inner, err = t.inner(x, c); err != nil {
		return nil, err
	}
	list, err := inner.File()
	if err != nil {
		return nil, err
	}
	x.Put(innerFD, list)
	if x.Apart != (Apart{}) {
		err = inner.Save(Dir(c))
	}
	return inner, errors.Join(err, x.Err())
}

// callProgram executes the engine's program. How many descriptors it hands on is told to it, if it wants its number. What fails until then is said to write.
func (x *Launch) callProgram(write *os.File) {
	env := x.Env
	var more []launcher.Arg
	if x.Numbered != "" {
		env = append(env, "LISTEN_FDS="+strconv.Itoa(steps.MoreFD-3+len(x.All())))
		const room = 11 // for a number, and the end
		own := x.String(x.Numbered + strings.Repeat("\x00", room))
		x.Call("number the process", unix.SYS_READLINKAT, launcher.Here(), x.String("/proc/self"), own.Plus(len(x.Numbered)), launcher.Int(room-1))
		more = append(more, own)
	}
	said := x.Add(write)
	x.Say(said)
	x.Call("close what it says at execve", unix.SYS_CLOSE_RANGE, launcher.Int(said), launcher.Int(said), launcher.Int(unix.CLOSE_RANGE_CLOEXEC))
	x.Call("execute "+x.Args[0], unix.SYS_EXECVE, x.String(x.Args[0]), x.Strings(x.Args), x.Strings(env, more...))
}

// start starts the program, and waits until it is executed. It ends with this process until it has joined a cgroup by which it is found.
func (t *Tool) start(ctx context.Context, x *Launch, c kernel.Container, log *os.File) (*kernel.Process, <-chan struct{}, error) {
	read, write, err := os.Pipe()
	if err != nil {
		return nil, nil, err
	}
	defer read.Close()
	x.callProgram(write)
	pipes, err := t.pipes(c)
	if err != nil {
		return nil, nil, err
	}
	defer closeAll(pipes)
	var unified *os.File
	if x.begun != nil {
		if unified, err = x.begun(); err != nil {
			return nil, nil, err
		}
	}
	cmd, done, err := x.Command(context.Background(), unified, append(pipes, x.All()...)...) // it stays when ctx ends
	if err != nil {
		return nil, nil, err
	}
	defer done()
	cmd.Stdout, cmd.Stderr = log, x.says
	cmd.SysProcAttr.Setpgid, cmd.SysProcAttr.Setsid = false, true
	runtime.LockOSThread() // the launcher dies with the thread that starts it
	defer runtime.UnlockOSThread()
	p, over, err := held(cmd)
	x.List.Close() // with write, so that read ends
	if err != nil {
		return nil, nil, err
	}
	stop := context.AfterFunc(ctx, func() { read.Close() })
	defer stop()
	_, err = x.Hear(read, func(launcher.Said) bool { return false })
	return p, over, err
}

// held starts a command that nobody waits for. over is closed when it has ended, and is collected.
func held(cmd *exec.Cmd) (*kernel.Process, <-chan struct{}, error) {
	if err := kernel.Start(cmd); err != nil {
		return nil, nil, err
	}
	p, _, err := kernel.OpenProcess(cmd.Process.Pid, 0)
	if err != nil { // it is our child, and not collected
		_ = cmd.Process.Kill()
		return nil, nil, errors.Join(err, kernel.Wait(cmd))
	}
	over := make(chan struct{})
	go func() {
		p.Collect(over)
		_ = kernel.Release(cmd)
	}()
	return p, over, nil
}

// pipes are the container's, as places that the first process can open, and nobody else has open.
func (t *Tool) pipes(c kernel.Container) (all []*os.File, err error) {
	for _, name := range []string{steps.SaidFile, steps.GoFile} {
		path := t.Path(c, name)
		fd, err := unix.Open(path, unix.O_PATH|unix.O_CLOEXEC, 0)
		if err != nil {
			closeAll(all)
			return nil, fmt.Errorf("open pipe %s: %w", path, err)
		}
		all = append(all, os.NewFile(uintptr(fd), path))
	}
	return all, nil
}

func closeAll(files []*os.File) {
	for _, f := range files {
		f.Close()
	}
}

// attend ends said with ctx, and what holds said open with the engine's program, at whose end over is closed. hold is there so that said does not end before the
// container's first process has come. The function that is returned ends this.
func attend(ctx context.Context, said, hold *os.File, over <-chan struct{}) func() {
	done := make(chan struct{})
	watched := make(chan struct{})
	go func() {
		defer close(watched)
		select {
		case <-ctx.Done():
			said.Close()
		case <-over: // nobody is left to say more, unless the container's process goes on without it
			hold.Close()
		case <-done:
		}
	}()
	return func() {
		close(done)
		<-watched
	}
}

// words makes a file in memory for what a program says by its standard error, or by what it opens in that place.
func words() (*os.File, error) {
	fd, err := unix.MemfdCreate("says", unix.MFD_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("make a file for what the program says: %w", err)
	}
	if _, err := unix.FcntlInt(uintptr(fd), unix.F_SETFL, unix.O_APPEND); err != nil {
		unix.Close(fd)
		return nil, fmt.Errorf("make a file for what the program says: %w", err)
	}
	return os.NewFile(uintptr(fd), "says"), nil
}

// mostSaid bounds how much of a program's words is read.
const mostSaid = 64 << 10

// lastLines is the end of a text that a program left, in one line.
func lastLines(says *os.File) string {
	fi, err := says.Stat()
	if err != nil {
		return ""
	}
	from := max(0, fi.Size()-mostSaid)
	raw, err := io.ReadAll(io.NewSectionReader(says, from, mostSaid))
	if err != nil {
		return ""
	}
	lines := strings.Split(strings.TrimSpace(string(raw)), "\n")
	if n := len(lines); n > 4 {
		lines = lines[n-4:]
	}
	for i := range lines {
		lines[i] = strings.TrimSpace(lines[i])
	}
	return strings.Join(lines, "; ")
}
