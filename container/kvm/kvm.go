// Package kvm runs functions in virtual machines, by QEMU: an engine of package kernel whose processes are machines. See DESIGN.md.
//
// It owns, besides what package kernel does, INSTANCE.Root/kvm/system (the kernel and what all machines have in common), INSTANCE.Root/kvm/roots (the file
// systems of images), INSTANCE.Root/kvm/templates (machines that have booted), and the taps that its machines have in the network namespaces of their functions, which go with the machine.
package kvm

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"time"

	"weir.dev/weir/container"
	"weir.dev/weir/container/kernel"
	"weir.dev/weir/container/kvm/channel"
	"weir.dev/weir/instance"
	"weir.dev/weir/netns"
	"weir.dev/weir/portkind"
)

const (
	// Name of the runtime.
	Name = "kvm"
	// QEMU is the program that is run.
	QEMU = "qemu-system-x86_64"
	arch = "amd64" // of hosts and guests

	minMemory     = 96 << 20  // of a machine: below that its kernel does not come up
	defaultMemory = 128 << 20 // of a machine without a limit
	overhead      = 160 << 20 // of QEMU beside its machine's memory: its code, translated code, files
	threads       = 64        // of QEMU at most

	bootsIn   = 60 * time.Second // on a slow host, of the time in which it has a processor
	starvedIn = 5 * time.Minute  // at most, on a busy one
)

// Files of a bundle.
const (
	configFile    = "config"
	consoleFile   = "console"
	exitFile      = "exit"
	wordsFile     = "qemu" // what QEMU says
	idsLink       = "ids"  // the first of the ids that QEMU has, where there is no user namespace
	controlSocket = "control"
	qmpSocket     = "qmp"
)

// Options of a Runtime; the zero value is useful.
type Options struct {
	kernel.Options
	QEMU   string       // name or path; default the constant
	Kernel string       // of the machines: a path or a pattern; default: see kernels
	Remove bool         // only Destroy will be called: it can do without QEMU
	Alone  bool         // machines boot, each by itself: a template would serve none but the first
	Log    *slog.Logger // takes warnings; nil: nobody does
}

// Runtime is container.Runtime by virtual machines.
type Runtime struct {
	*kernel.Runtime
	engine *Engine
}

// Engine is kernel.Machine over QEMU.
type Engine struct {
	home  *kernel.Home
	qemu  string
	log   *slog.Logger
	want  string        // kernel
	boots time.Duration // how long a machine may take to come up
	joins time.Duration // how long a switch may take to serve its shared ports

	booting chan struct{} // full: as many machines come up as there are processors, and more would only make all of them late
	making  chan struct{} // full: what all machines have in common is made, or tried
	system  *system
	shape   *shape
	failed  error     // of the last trial, if no machine came up
	tried   time.Time // when it ended

	copying chan struct{}    // full: a template is made
	finding sync.Mutex       // held while one is looked for or removed
	pauses  map[string]pause // of templates that could not be made, or from which a machine did not come up, by their directories
	alone   bool             // see Options.Alone
	others  string           // where templates are; "": below the instance's own directory

	dialing sync.Mutex // held while a line is made: a machine has one
	mu      sync.Mutex
	lines   map[string]*line
	closed  bool
}

var _ kernel.Machine = (*Engine)(nil)

// New opens the instance's machines; see kernel.New. Whether a machine boots here, and how, the first one tells.
func New(ctx context.Context, inst instance.Instance, o Options) (*Runtime, error) {
	qemu, err := exec.LookPath(cmp.Or(o.QEMU, QEMU))
	if !o.Remove {
		if err := missing(o, err); err != nil {
			return nil, fmt.Errorf("virtual machines: %w", err)
		}
	}
	e := &Engine{qemu: qemu, log: o.Log, want: o.Kernel, boots: bootsIn, joins: joinedIn, making: make(chan struct{}, 1), booting: make(chan struct{}, runtime.NumCPU()), copying: make(chan struct{}, 1), lines: map[string]*line{}, pauses: map[string]pause{}, alone: o.Alone}
	r, err := kernel.New(ctx, inst, Name, o.Options, func(h *kernel.Home) (kernel.Engine, error) {
		e.home = h
		return e, nil
	})
	if err != nil {
		return nil, fmt.Errorf("virtual machines: %w", err)
	}
	if o.Adopt {
		if err := e.endStray(ctx); err != nil {
			r.Close()
			return nil, fmt.Errorf("virtual machines: %w", err)
		}
	}
	return &Runtime{r, e}, nil
}

// PortKinds: machines are joined by veths, as containers are, or share their memory with a switch that takes nothing else. See container.Shared.
func (*Runtime) PortKinds() []portkind.Kind {
	return []portkind.Kind{portkind.Veth, portkind.VhostUser}
}

// missing tells what this host lacks; looked is how the search for QEMU ended.
func missing(o Options, looked error) error {
	switch {
	case runtime.GOARCH != arch:
		return fmt.Errorf("this program makes them on %s, and this host is %s", arch, runtime.GOARCH)
	case looked != nil:
		return fmt.Errorf("%s: %w: install it (apt-get install qemu-system-x86)", cmp.Or(o.QEMU, QEMU), looked)
	}
	if _, err := exec.LookPath("prlimit"); err != nil {
		return fmt.Errorf("%w: install it (apt-get install util-linux)", err)
	}
	if _, err := os.Stat("/dev/net/tun"); err != nil {
		return fmt.Errorf("%w: the kernel has no taps (CONFIG_TUN; try `modprobe tun`)", err)
	}
	_, err := findKernel(o.Kernel)
	return err
}

const versionTimeout = 10 * time.Second

// answers are what QEMU's programs say of themselves.
var answers kernel.PerFile[string]

// About tells what is known of virtual machines here without booting one.
func About(ctx context.Context, o Options) container.About {
	a := container.About{Name: Name, Ports: (*Runtime)(nil).PortKinds(), Userns: true, Machine: true, LeastMemory: minMemory}
	qemu, err := exec.LookPath(cmp.Or(o.QEMU, QEMU))
	if err := missing(o, err); err != nil {
		a.Missing = err.Error()
		return a
	}
	a.Version, _ = answers.Of(qemu, func() (string, error) {
		ctx, cancel := context.WithTimeout(ctx, versionTimeout)
		defer cancel()
		return kernel.FirstLine(exec.CommandContext(ctx, qemu, "--version"))
	})
	a.Note = Emulated + " (tcg): there is no /dev/kvm"
	if _, err := os.Stat("/dev/kvm"); err == nil {
		a.Note = "processor by /dev/kvm, or emulated (tcg) where the trial at the first start shows that no machine boots with it"
	}
	return a
}

// Destroy removes every machine of the instance, and what they had in common.
func (r *Runtime) Destroy(ctx context.Context) error {
	if err := r.Runtime.Destroy(ctx); err != nil {
		return err
	}
	root := r.engine.home.Root()
	if err := r.engine.endStray(ctx); err != nil {
		return err
	}
	done, err := r.engine.turnToMake(ctx)
	if err != nil {
		return err
	}
	defer done()
	r.engine.system = nil
	for _, dir := range []string{r.engine.systemDir(), r.engine.roots().dir, filepath.Join(root, "templates"), r.engine.trialFile()} {
		if err := os.RemoveAll(dir); err != nil {
			return fmt.Errorf("destroy virtual machines: %w", err)
		}
	}
	_ = os.Remove(root) // unless logs are kept
	return nil
}

func (e *Engine) systemDir() string { return filepath.Join(e.home.Root(), "system") }
func (e *Engine) trialFile() string { return filepath.Join(e.home.Root(), "trial.json") }
func (e *Engine) roots() roots      { return roots{filepath.Join(e.home.Root(), "roots")} }

// turnToMake waits until nobody else makes, or tries, what all machines have in common.
func (e *Engine) turnToMake(ctx context.Context) (done func(), err error) {
	select {
	case e.making <- struct{}{}:
		return func() { <-e.making }, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// common makes what all machines have in common, and finds out what a machine is to look like here.
func (e *Engine) common(ctx context.Context) (system, shape, error) {
	done, err := e.turnToMake(ctx)
	if err != nil {
		return system{}, shape{}, err
	}
	defer done()
	if e.system == nil {
		k, err := findKernel(e.want)
		if err != nil {
			return system{}, shape{}, err
		}
		s, err := makeSystem(e.systemDir(), k)
		if err != nil {
			return system{}, shape{}, err
		}
		e.system = &s
	}
	if e.shape == nil && e.failed != nil && time.Since(e.tried) < trialAgain { // it takes minutes where machines hang: who has waited for it does not make another
		return system{}, shape{}, e.failed
	}
	if e.shape == nil {
		s, err := e.tryShapes(ctx, *e.system)
		if err != nil && ctx.Err() == nil {
			e.failed, e.tried = err, time.Now()
		}
		if err != nil {
			return system{}, shape{}, err
		}
		e.shape = &s
	}
	return *e.system, *e.shape, nil
}

// Limits: a container's memory is its machine's, and its processes are in there.
func (e *Engine) Limits(l container.Limits) (inside, outside container.Limits) {
	l.Memory = cmp.Or(l.Memory, defaultMemory) >> 20 << 20
	inside, outside = l, l
	outside.Memory += overhead
	outside.PIDs = threads
	return inside, outside
}

// Prepare makes the file system of the container's image.
func (e *Engine) Prepare(c kernel.Container) error {
	if m := e.home.LimitsOf(c.Spec).Memory; m < minMemory {
		return fmt.Errorf("memory %dM: a virtual machine wants at least %dM, most of it for its kernel", m>>20, minMemory>>20)
	}
	if c.Forwarder != "" && c.Forwarder != channel.Wire {
		return fmt.Errorf("forwarder %q: a virtual machine has %s", c.Forwarder, channel.Wire)
	}
	if err := checkArch(c.Rootfs, c.Args[0]); err != nil {
		return err
	}
	if err := checkShared(c.Shared, e.home.LimitsOf(c.Spec).Memory); err != nil {
		return err
	}
	if err := os.MkdirAll(e.home.Root(), 0o700); err != nil {
		return err
	}
	root, err := e.roots().of(c.Rootfs, c.IDs.First)
	if err != nil {
		return err
	}
	return os.Symlink(root, filepath.Join(c.Bundle, "root"))
}

// Launch boots the machine up to where its program could begin, and lets it if run.
func (e *Engine) Launch(ctx context.Context, c kernel.Container, log *os.File, run bool, made kernel.Made) error {
	sys, shape, err := e.common(ctx)
	if err != nil {
		return err
	}
	var ports []*port
	if c.Netns != "" {
		if ports, err = join(c.Netns); err != nil {
			return err
		}
		defer closeAll(ports)
	}
	limits := e.home.LimitsOf(c.Spec)
	var from *template
	if c.Shared == nil { // the switch would speak to devices of another machine
		if from, err = e.template(ctx, sys, shape, kind{limits.Memory, processors(limits), len(ports)}); err != nil {
			return err
		}
	}
	if from != nil {
		defer from.close()
	}
	booted, err := e.turn(ctx)
	if err != nil {
		return err
	}
	defer booted()
	pid, err := e.comeUp(ctx, start{c, sys, shape, ports, log, run}, from)
	if err != nil {
		return err
	}
	return made(pid, true)
}

// start is all that the start of a machine needs.
type start struct {
	kernel.Container
	system system
	shape  shape
	ports  []*port
	log    *os.File
	run    bool
}

// again makes room for a machine after one that has not come up.
func (s start) again() {
	for _, name := range []string{configFile, consoleFile, exitFile, wordsFile, controlSocket, qmpSocket} {
		_ = os.Remove(filepath.Join(s.Bundle, name))
	}
}

// comeUp has a machine come up, from a template where there is one. A machine that does not boots.
func (e *Engine) comeUp(ctx context.Context, s start, from *template) (pid int, err error) {
	if from != nil {
		pid, err = e.bootFrom(ctx, s, from, try{in: e.boots})
		if err == nil {
			e.resume(from)
		}
		if !errors.Is(err, errNotUp) {
			return pid, err
		}
		defer func(why error) {
			if err == nil {
				e.giveUp(from, why)
			}
		}(err)
	}
	err = e.tries(ctx, s.shape, func(t try) error {
		s.again()
		pid, err = e.bootFrom(ctx, s, nil, t)
		return err
	})
	return pid, err
}

// turn waits until one more machine may come up.
func (e *Engine) turn(ctx context.Context) (done func(), err error) {
	select {
	case e.booting <- struct{}{}:
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	done = func() { <-e.booting }
	if err := ctx.Err(); err != nil {
		done()
		return nil, err
	}
	return done, nil
}

// bootFrom has a machine come up, from a template or, with nil, by itself.
func (e *Engine) bootFrom(ctx context.Context, s start, from *template, t try) (int, error) {
	sockets, err := e.writeConfig(s.Container, from, s.ports)
	if err != nil {
		return 0, err
	}
	cmd, err := e.begin(ctx, s, from, t)
	if err != nil {
		return 0, err
	}
	if from != nil {
		begins, cancel := inTime(ctx, cmd.Process.Pid, t.in)
		if err = from.continues(begins, s.Bundle); err != nil {
			err = e.explain(s.Container, err)
		}
		cancel()
	}
	if err == nil && s.Shared != nil {
		err = e.joined(ctx, s.Container)
	}
	if err == nil {
		err = e.boot(ctx, s, cmd.Process.Pid, sockets, t.in)
	}
	if err != nil {
		_ = cmd.Process.Kill()
		_ = kernel.Wait(cmd)
		e.forget(s.ID)
		if ctx.Err() != nil {
			return 0, ctx.Err()
		}
		return 0, err
	}
	pid := cmd.Process.Pid
	return pid, kernel.Release(cmd) // package kernel waits for it
}

// errNotUp is of a machine that has not answered.
var errNotUp = errors.New("the virtual machine has not come up")

// notUp is an error of such a machine, in its own words.
type notUp struct{ error }

func (notUp) Is(target error) bool { return target == errNotUp }
func (n notUp) Unwrap() error      { return n.error }

// late is such a machine that has not ended either: how long it had to come up.
type late time.Duration

func (l late) Error() string      { return fmt.Sprintf("%v in %v", errNotUp, time.Duration(l)) }
func (late) Is(target error) bool { return target == errNotUp }

// boot waits for the machine.
func (e *Engine) boot(ctx context.Context, s start, pid int, sockets []string, boots time.Duration) error {
	c := s.Container
	ctx, cancel := context.WithTimeout(ctx, starvedIn)
	defer cancel()
	l, err := dial(ctx, c.Bundle, sockets)
	if err != nil {
		return e.explain(c, err)
	}
	if err := e.keep(c.ID, l); err != nil {
		return err
	}
	up, done := inTime(ctx, pid, boots)
	defer done()
	state, err := l.sync(up)
	switch {
	case err != nil && (errors.Is(context.Cause(up), errNotUp) || errors.Is(err, context.DeadlineExceeded)):
		return e.explain(c, late(boots))
	case err != nil && wrongTimer(c.Bundle):
		return e.explain(c, errTimer)
	case err != nil && ownFault(c.Bundle):
		return e.explain(c, err)
	case err != nil:
		return e.explain(c, notUp{err})
	case state.Error != "":
		return errors.New(printable(state.Error))
	case !s.run:
		return nil
	}
	if err := l.start(ctx); err != nil {
		return e.explain(c, err)
	}
	return nil
}

// ownFault tells whether a machine has ended for something of its function's, such as a mount that is too large: from nothing it would end in the same way.
func ownFault(bundle string) bool {
	exit, ok := readExit(bundle)
	return ok && strings.HasPrefix(exit.Error, "mount /") // by its place in the image; the machine's own disks are mounted "erofs at" theirs
}

// inTime ends when a machine has had its time to come up, in which the time does not count that it waited for a processor.
func inTime(ctx context.Context, pid int, boots time.Duration) (context.Context, context.CancelFunc) {
	ctx, stop := context.WithTimeoutCause(ctx, starvedIn, late(boots))
	ctx, end := context.WithCancelCause(ctx)
	begin := time.Now()
	go func() {
		for {
			left := boots + starved(pid) - time.Since(begin)
			if left <= 0 {
				end(late(boots))
				return
			}
			select {
			case <-time.After(left):
			case <-ctx.Done():
				return
			}
		}
	}()
	return ctx, func() { end(nil); stop() }
}

// starved is how long a process's threads have waited for a processor; where the kernel does not tell, no time at all.
func starved(pid int) (sum time.Duration) {
	files, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/schedstat", pid))
	for _, f := range files {
		text, err := os.ReadFile(f)
		if fields := strings.Fields(string(text)); err == nil && len(fields) == 3 {
			ns, _ := strconv.ParseInt(fields[1], 10, 64)
			sum += time.Duration(ns)
		}
	}
	return sum
}

// keep remembers the line to a machine, instead of a former one's.
func (e *Engine) keep(id string, l *line) error {
	e.mu.Lock()
	former, closed := e.lines[id], e.closed
	if !closed {
		e.lines[id] = l
	}
	e.mu.Unlock()
	if closed {
		l.close()
		return os.ErrClosed
	}
	if former != nil {
		former.close()
	}
	return nil
}

func (e *Engine) forget(id string) {
	e.mu.Lock()
	l := e.lines[id]
	delete(e.lines, id)
	e.mu.Unlock()
	if l != nil {
		l.close()
	}
}

// line is the line to a machine that runs; one that a former process of ours had is taken over.
func (e *Engine) line(ctx context.Context, c kernel.Container) (*line, error) {
	l, err := e.connected(ctx, c)
	if err != nil {
		return nil, fmt.Errorf("virtual machine: %w", err)
	}
	ctx, cancel := context.WithTimeout(ctx, answersIn)
	defer cancel()
	if _, err := l.sync(ctx); err != nil {
		return nil, fmt.Errorf("the virtual machine does not answer: %w", err)
	}
	return l, nil
}

func (e *Engine) connected(ctx context.Context, c kernel.Container) (*line, error) {
	e.dialing.Lock()
	defer e.dialing.Unlock()
	e.mu.Lock()
	l := e.lines[c.ID]
	e.mu.Unlock()
	if l != nil && l.alive() {
		return l, nil
	}
	l, err := dial(ctx, c.Bundle, socketsOf(c.Mounts).paths())
	if err != nil {
		return nil, err
	}
	return l, e.keep(c.ID, l)
}

// Close lets go of the lines: another process's turn.
func (e *Engine) Close() {
	e.mu.Lock()
	e.closed = true
	all := e.lines
	e.lines = map[string]*line{}
	e.mu.Unlock()
	for _, l := range all {
		l.close()
	}
}

// Watch takes the line of a machine that was taken over, so that its functions reach our sockets.
func (e *Engine) Watch(c kernel.Container) {
	e.mu.Lock()
	have := e.lines[c.ID] != nil
	e.mu.Unlock()
	if !have {
		go func() { _, _ = e.line(context.Background(), c) }() // else the next call does
	}
}

// Start lets a machine that waits run its program.
func (e *Engine) Start(ctx context.Context, c kernel.Container) error {
	ctx, cancel := context.WithTimeout(ctx, answersIn)
	defer cancel()
	l, err := e.line(ctx, c)
	if err != nil {
		return err
	}
	return l.start(ctx)
}

// Find asks the machine.
func (e *Engine) Find(ctx context.Context, c kernel.Container) (kernel.Found, error) {
	if c.PID == 0 {
		return kernel.Found{}, nil // it was never seen to come up
	}
	if _, err := os.Stat("/proc/" + strconv.Itoa(c.PID)); err != nil {
		return kernel.Found{State: container.Stopped}, nil
	}
	var status struct{ Running bool }
	if err := ask(ctx, c.Bundle, &status, question{Execute: "query-status"}); err != nil || !status.Running {
		return kernel.Found{}, ctx.Err()
	}
	l, err := e.line(ctx, c)
	if err != nil {
		return kernel.Found{}, ctx.Err()
	}
	state, err := l.sync(ctx)
	switch {
	case err != nil:
		return kernel.Found{}, ctx.Err()
	case state.Phase == channel.Running:
		return kernel.Found{State: container.Running, PID: c.PID}, nil
	}
	return kernel.Found{State: container.Created, PID: c.PID}, nil
}

// Exec runs one more process in the machine.
func (e *Engine) Exec(ctx context.Context, c kernel.Container, x container.ExecSpec) (int, error) {
	l, err := e.line(ctx, c)
	if err != nil {
		return -1, err
	}
	if err := l.refresh(ctx, c); err != nil { // the process may have the program read its files again, as kill -HUP does
		return -1, err
	}
	return l.exec(ctx, x)
}

const sigTerm = 15

// Terminate sends SIGTERM to the program.
func (e *Engine) Terminate(ctx context.Context, c kernel.Container) error {
	l, err := e.line(ctx, c)
	if err != nil {
		return err
	}
	return l.signal(sigTerm)
}

// Left: all that there is of a machine is in its bundle.
func (e *Engine) Left() ([]string, error) { return nil, nil }

// Remove lets go of a machine that has ended.
func (e *Engine) Remove(_ context.Context, id string) error {
	e.forget(id)
	bundle := e.home.Bundle(id)
	first, ok := takenIDs(bundle)
	if !ok {
		return nil
	}
	return netns.GiveIDsBack(bundle, netns.OwnIDs(first))
}

// takenIDs is the first of the ids that a machine has; false: it has none of its own.
func takenIDs(bundle string) (uint32, bool) {
	first, err := os.Readlink(filepath.Join(bundle, idsLink))
	if err != nil {
		return 0, false
	}
	n, err := strconv.ParseUint(first, 10, 32)
	return uint32(n), err == nil
}

// Ended is what the machine has said last. One that said nothing and was not killed has failed itself: its console tells, in the log.
func (e *Engine) Ended(c kernel.Container, machine kernel.End) kernel.End {
	exit, ok := readExit(c.Bundle)
	switch {
	case ok && exit.Error == "":
		of := kernel.End{Code: exit.Code, Signal: exit.Signal, OOM: exit.OOM}
		if of.OOM { // what the machine has is its limit
			of.Short = container.ShortLimit
		}
		return of
	case ok:
		e.note(c, exit.Error)
		return kernel.End{Code: exit.Code}
	case machine.Signal != 0:
		return machine
	}
	e.note(c, lastWords(c.Bundle))
	if machine.Code >= 0 {
		machine.Code = failed
	}
	return machine
}

// lastWords are the line of a console that tells why its kernel stopped, or the last one.
func lastWords(bundle string) string {
	lines := strings.Split(tail(bundle, consoleFile, 100), "\n")
	for _, l := range lines {
		if strings.Contains(l, "Kernel panic") {
			return l
		}
	}
	return lines[len(lines)-1]
}

// failed is the exit code of a machine that stopped by itself, as when its kernel panics.
const failed = 255

// note adds a line to a container's log.
func (e *Engine) note(c kernel.Container, text string) {
	f, err := os.OpenFile(e.home.LogFile(cmp.Or(c.Log, c.ID)), os.O_WRONLY|os.O_APPEND, 0)
	if err != nil {
		return
	}
	defer f.Close()
	_, _ = fmt.Fprintf(f, "[weir: the virtual machine has ended: %s]\n", cmp.Or(printable(text), "it does not say why"))
}

// mostWords is where the other files that a machine writes are cut.
const mostWords = 256 << 10

// Bound cuts a machine's console, which its owner can write as much to as he likes. It also has the machine's copies of files follow those outside.
func (e *Engine) Bound(c kernel.Container) error {
	e.mu.Lock()
	l := e.lines[c.ID]
	e.mu.Unlock()
	if l != nil && l.alive() {
		l.refreshSoon(c)
	}
	for _, name := range []string{consoleFile, exitFile, wordsFile} {
		path := filepath.Join(c.Bundle, name)
		if info, err := os.Stat(path); err == nil && info.Size() > mostWords {
			if err := os.Truncate(path, 0); err != nil {
				return fmt.Errorf("%s of %s: %w", name, c.ID, err)
			}
		}
	}
	return nil
}
