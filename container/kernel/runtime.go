// Package kernel runs containers that are processes of this kernel: what they have in common whichever engine makes their processes. An Engine is a
// program such as runc (container/oci), or a launcher of our own (container/native).
//
// It owns INSTANCE.Run/ENGINE (records, bundles), logs and writable layers in INSTANCE.Root, and the cgroups weir/INSTANCE@ENGINE/ID; see Home. It does
// not own images, network namespaces or links.
//
// Containers belong to nobody but the kernel: their output goes to files, no process of ours stands between. The one process that opened the instance
// keeps a pidfd per container, so that a tick over 100 containers forks nothing. Every step is recorded before it is taken; what a crash leaves
// half-made is found by that record and removed.
package kernel

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"regexp"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"weir.dev/weir/container"
	"weir.dev/weir/instance"
	"weir.dev/weir/portkind"
)

const (
	defaultCLI      = "runc"
	defaultLogBytes = 8 << 20
	cliTimeout      = time.Minute      // of one runtime call
	killTimeout     = 10 * time.Second // for processes to be gone after SIGKILL
)

var idPattern = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9_.-]{0,63}$`)

// Options of a Runtime; the zero value is useful.
type Options struct {
	KeepLogs bool // Destroy leaves what containers have printed
	// Limits of a container whose Spec has none, where the kernel can; 0 none. DiskBytes is for a second, for reading and for writing each.
	Memory, DiskBytes int64
	CPUs              float64
	Rings             int64 // bytes that the rings and queues of a container's sockets may take together; 0 no limit
	LogBytes          int64 // a container's log is cut at this size, one older file is kept; default 8 MiB, at most 16 MiB
	OOMScore          *int  // of this process; nil: as the kernel has it
	// Adopt makes this process the reaper of the containers that it starts (PR_SET_CHILD_SUBREAPER), so that exit codes are known on
	// every kernel, of the shortest run too. Without it they are known from Linux 6.15 on.
	Adopt bool
}

// Runtime is container.Runtime over an engine. See New.
type Runtime struct {
	*Home
	engine   Engine
	foreign  Foreign // engine, if it is one; else nil
	logBytes int64
	keepLogs bool
	adopts   bool

	mu         sync.Mutex
	containers map[string]*entry
	closed     bool
}

var _ container.Runtime = (*Runtime)(nil)

// PortKinds: containers have network namespaces.
func (*Runtime) PortKinds() []portkind.Kind { return []portkind.Kind{portkind.Veth} }

// entry is one container. turn is held through each lifecycle call; the other fields are guarded by Runtime.mu.
type entry struct {
	turn chan struct{} // a lock that ctx can leave
	rec  record
	proc *Process // nil: no process known
	gone bool     // deleted: whoever waited for turn looks again

	reaping atomic.Bool // reapLater runs
}

// New opens an engine's containers of an instance: it takes over those that run and removes what a crash left half-made. Errors say what is wrong, not
// which engine it is.
func New(ctx context.Context, inst instance.Instance, name string, o Options, engine func(*Home) (Engine, error)) (*Runtime, error) {
	if os.Geteuid() != 0 {
		return nil, errors.New("not root: run weir as root")
	}
	if o.LogBytes <= 0 {
		o.LogBytes = defaultLogBytes
	}
	o.LogBytes = min(o.LogBytes, maxLog/2) // a log has to reach it to be cut
	cgroups, err := findHierarchies()
	if err != nil {
		return nil, err
	}
	h := &Home{inst: inst, engine: name, cgroups: cgroups, rings: ringBound{most: o.Rings}}
	h.setDefaults(o)
	if h.score, err = scoreOf(o.OOMScore); err != nil {
		return nil, err
	}
	r := &Runtime{Home: h, logBytes: o.LogBytes, keepLogs: o.KeepLogs, adopts: o.Adopt, containers: map[string]*entry{}}
	if r.engine, err = engine(h); err != nil {
		return nil, err
	}
	r.foreign, _ = r.engine.(Foreign)
	h.machine, _ = r.engine.(Machine)
	if err := r.makeDirs(); err != nil {
		return nil, err
	}
	if o.Adopt {
		if err := unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0); err != nil {
			return nil, fmt.Errorf("become reaper: %w", err)
		}
	}
	if err := r.adoptRings(); err != nil {
		return nil, err
	}
	if err := r.recover(ctx); err != nil {
		r.Close()
		return nil, fmt.Errorf("recover: %w", err)
	}
	r.reapOrphans("")
	return r, nil
}

// Close lets go of every container and leaves it as it is. A pending Wait returns an error.
func (r *Runtime) Close() error {
	if r.machine != nil {
		defer r.machine.Close()
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.closed = true
	r.rings.mu.Lock()
	r.rings.close()
	r.rings.mu.Unlock()
	for _, e := range r.containers {
		if e.proc != nil {
			e.proc.Close()
		}
	}
	return nil
}

// take gets a container's turn, until release. With anew, an unknown container gets an entry.
func (r *Runtime) take(ctx context.Context, id string, anew bool) (*entry, error) {
	for {
		r.mu.Lock()
		if r.closed {
			r.mu.Unlock()
			return nil, os.ErrClosed
		}
		e := r.containers[id]
		if e == nil {
			if !anew {
				r.mu.Unlock()
				return nil, container.ErrNotFound
			}
			e = &entry{turn: make(chan struct{}, 1)}
			r.containers[id] = e
		}
		r.mu.Unlock()
		select {
		case e.turn <- struct{}{}:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
		r.mu.Lock()
		gone := e.gone
		r.mu.Unlock()
		if !gone {
			return e, nil
		}
		<-e.turn
	}
}

// inTurn runs f with a container's turn; see take. An error says which container it is about.
func (r *Runtime) inTurn(ctx context.Context, id string, anew bool, f func(*entry) error) error {
	if !idPattern.MatchString(id) {
		return fmt.Errorf("container id %q: want 1 to 64 letters, digits, . _ or -, a letter or digit first", id)
	}
	e, err := r.take(ctx, id, anew)
	if err == nil {
		defer r.release(id, e)
		err = f(e)
	}
	if err != nil {
		return fmt.Errorf("container %s: %w", id, err)
	}
	return nil
}

// release ends a turn; an entry that holds no container goes.
func (r *Runtime) release(id string, e *entry) {
	r.mu.Lock()
	if e.rec.Phase == "" && !e.gone {
		e.gone = true
		delete(r.containers, id)
	}
	r.mu.Unlock()
	<-e.turn
}

// status is called with r.mu held.
func (e *entry) status() container.Status {
	s := container.Status{ID: e.rec.Spec.ID, State: container.Stopped, Started: e.rec.Started, ExitCode: e.rec.ExitCode, Signal: e.rec.Signal, OOM: e.rec.OOM, Short: e.rec.Short, Limits: e.rec.Limits}
	if e.proc == nil || e.proc.ended() {
		return s
	}
	s.PID, s.ExitCode = e.proc.pid, -1
	s.State = container.Running
	if e.rec.Phase == phaseCreated {
		s.State = container.Created
	}
	return s
}

func (r *Runtime) stateOf(e *entry) container.State {
	r.mu.Lock()
	defer r.mu.Unlock()
	if e.rec.Phase == "" {
		return ""
	}
	return e.status().State
}

// Create prepares a container: its process waits before the first instruction.
func (r *Runtime) Create(ctx context.Context, s container.Spec) error {
	return r.inTurn(ctx, s.ID, true, func(e *entry) error { return r.provide(ctx, e, s, false) })
}

// Run is Create and Start in one call of the runtime.
func (r *Runtime) Run(ctx context.Context, s container.Spec) error {
	return r.inTurn(ctx, s.ID, true, func(e *entry) error { return r.provide(ctx, e, s, true) })
}

func (r *Runtime) provide(ctx context.Context, e *entry, s container.Spec, run bool) error {
	switch state := r.stateOf(e); state {
	case container.Created, container.Running:
		if !equal(e.rec.Spec, s) {
			return fmt.Errorf("%w: it is %s with another spec; delete it first", container.ErrState, state)
		}
		if run && state == container.Created {
			return r.start(ctx, e)
		}
		return nil
	}
	return r.make(ctx, e, s, run)
}

// make builds a container from nothing. What an earlier attempt left under the id goes first.
func (r *Runtime) make(ctx context.Context, e *entry, s container.Spec, run bool) (err error) {
	if err := check(s); err != nil {
		return err
	}
	if s.Forwarder != "" && r.machine == nil {
		return fmt.Errorf("forwarder %q: only a virtual machine forwards by itself", s.Forwarder)
	}
	if s.Shared != nil && r.machine == nil {
		return fmt.Errorf("ports of kind %s: the runtime %s has none: only a virtual machine shares its memory with a switch", portkind.VhostUser, r.Home.engine)
	}
	if err := r.checkLimits(s); err != nil {
		return err
	}
	for range maxMakeTries {
		if err = r.tryMake(ctx, e, s, run); err == nil || ctx.Err() != nil || !r.lostGroup(err) {
			break
		}
	}
	return err
}

// maxMakeTries bounds how often a container is made anew because another instance has removed the group of all instances meanwhile; see lostGroup.
const maxMakeTries = 5

func (r *Runtime) tryMake(ctx context.Context, e *entry, s container.Spec, run bool) (err error) {
	if r.leftover(s.ID) {
		if err := r.purge(ctx, e, s.ID, keepLog); err != nil {
			return err
		}
	}
	if err := r.makeDirs(); err != nil { // Destroy removes them
		return err
	}
	r.mu.Lock()
	e.rec, e.proc = record{Spec: s, Phase: phaseCreating, ExitCode: -1}, nil
	r.mu.Unlock()
	defer func() {
		if err == nil {
			return
		}
		// Half-made is worse than absent. The caller's ctx may have ended: the cleaning has its own.
		clean, cancel := context.WithTimeout(context.WithoutCancel(ctx), killTimeout)
		defer cancel()
		if perr := r.purge(clean, e, s.ID, keepLog); perr != nil {
			err = fmt.Errorf("%w; %w: %w", err, container.ErrLeft, perr)
		}
		r.reapOrphans("")
		err = full(err)
	}()
	r.boundRings()
	if err := r.prepare(e.rec); err != nil {
		return err
	}
	switch _, stepwise := r.engine.(Stepwise); {
	case !run:
		return r.launch(ctx, e, s, phaseCreating, phaseCreated)
	case !stepwise:
		return r.launch(ctx, e, s, phaseStarting, phaseRunning)
	}
	if err := r.launch(ctx, e, s, phaseCreating, phaseStarting); err != nil {
		return err
	}
	return r.begin(ctx, e)
}

// full says what to do when the disk has no space, as the kernel or a program says that.
func full(err error) error {
	const said = "no space left on device" // of ENOSPC, in programs' words too
	if text := strings.ToLower(err.Error()); !strings.Contains(text, said) || strings.Contains(text, "disk full: ") {
		return err
	}
	return fmt.Errorf("disk full: free some space under the instance's directories: %w", err)
}

// prepare makes the bundle with the record and what the engine wants in it, and mounts the writable layer if there is one.
func (r *Runtime) prepare(rec record) error {
	bundle := r.Bundle(rec.Spec.ID)
	if err := os.Mkdir(bundle, 0o700); err != nil {
		return fmt.Errorf("make bundle: %w", err)
	}
	if err := rec.write(bundle); err != nil {
		return err
	}
	if !rec.Spec.ReadOnly && r.machine == nil {
		if err := r.mountWritable(rec.Spec); err != nil {
			return err
		}
	}
	return r.engine.Prepare(r.container(rec.Spec, 0))
}

// launch has the engine make the container's process, with its output in the log, and start it if it is to be running. The last phase is what is recorded then,
// the first is that of a process that is there before.
func (r *Runtime) launch(ctx context.Context, e *entry, s container.Spec, first, last phase) error {
	log, err := startLog(r.LogFile(logOf(s)))
	if err != nil {
		return fmt.Errorf("open log: %w", err)
	}
	defer log.Close()
	if s.Userns != "" { // programs that open /dev/stdout have to be allowed to
		if err := log.Chown(int(s.IDs.First), int(s.IDs.First)); err != nil {
			return fmt.Errorf("log: %w", err)
		}
	}
	if fi, err := log.Stat(); err == nil {
		e.rec.LogStart = fi.Size()
	}
	err = r.engine.Launch(ctx, r.container(s, 0), log, last == phaseRunning, func(pid int, done bool) error {
		r.yieldCPU()
		if done {
			return r.settle(e, pid, last)
		}
		return r.settle(e, pid, first)
	})
	if err != nil || e.rec.Phase == last {
		return err
	}
	return r.setPhase(e, last)
}

// settle takes over the process that the engine made, and records it.
func (r *Runtime) settle(e *entry, pid int, phase phase) error {
	proc, ticks, err := OpenProcess(pid, 0)
	if err != nil && !errors.Is(err, unix.ESRCH) {
		return err
	}
	rec := e.rec
	rec.PID, rec.Ticks = pid, ticks
	rec.reach(phase)
	r.setHostDefaults(rec.Spec)
	rec.Limits, err = r.readLimits(rec.Spec)
	if err != nil && proc != nil && !proc.ended() {
		proc.Close()
		return err
	}
	r.ringsOf(&rec.Limits, pid)
	return r.keep(e, rec, proc)
}

// keep records what a container is now, and watches its process, nil if it has none. One that is not created to the end is not recorded: without the process's
// number recovery removes it.
func (r *Runtime) keep(e *entry, rec record, proc *Process) (err error) {
	r.mu.Lock()
	e.rec, e.proc = rec, proc
	if rec.Phase != phaseCreating {
		err = rec.write(r.Bundle(rec.Spec.ID))
	}
	r.mu.Unlock()
	if proc == nil {
		return err
	}
	if r.machine != nil && err == nil {
		r.machine.Watch(r.container(rec.Spec, rec.PID))
	}
	go r.watch(e, proc) // also one that could not be recorded: who removes it waits for its end
	return err
}

// watch waits for the end of a container's process and records it.
func (r *Runtime) watch(e *entry, p *Process) {
	ok := p.wait()
	if ok && p.end.code == -1 && r.foreign != nil {
		r.askEnd(e, p)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if !ok { // closed
		return
	}
	if e.proc == p && !e.gone {
		// A shell, or an init, ends with the code of a child that was killed.
		if p.end.code == killed(int(unix.SIGKILL)).code {
			e.rec.OOM, e.rec.Short = r.outOfMemory(e.rec.Spec.ID, e.rec.Limits.Memory)
		}
		if r.machine != nil {
			p.end = r.programsEnd(&e.rec, p.end)
		}
		e.rec.ExitCode, e.rec.Signal = p.end.code, p.end.signal
		if e.rec.Phase != "" && e.rec.Phase != phaseCreating { // see keep
			// Losing this costs an exit code after a restart of the daemon, no more.
			_ = e.rec.write(r.Bundle(e.rec.Spec.ID))
		}
	}
	close(p.done)
	p.Close()
}

// askEnd asks the engine for an exit code that the kernel did not tell.
func (r *Runtime) askEnd(e *entry, p *Process) {
	r.mu.Lock()
	id, current := e.rec.Spec.ID, e.proc == p && !e.gone
	r.mu.Unlock()
	ctx, cancel := context.WithTimeout(context.Background(), killTimeout)
	defer cancel()
	if !current {
		return
	}
	if code, ok := r.foreign.ExitCode(ctx, id); ok {
		p.end = end{code: code}
		if code > 128 { // the engine does not tell a signal from such a code
			p.end.signal = code - 128
		}
	}
}

// Start lets a created container run; a stopped one is made anew from its Spec.
func (r *Runtime) Start(ctx context.Context, id string) error {
	return r.inTurn(ctx, id, false, func(e *entry) error {
		switch r.stateOf(e) {
		case container.Running:
			return nil
		case container.Created:
			return r.start(ctx, e)
		case container.Stopped:
			return r.make(ctx, e, e.rec.Spec, true)
		}
		return container.ErrNotFound
	})
}

func (r *Runtime) start(ctx context.Context, e *entry) error {
	if err := r.setPhase(e, phaseStarting); err != nil {
		return err
	}
	return r.begin(ctx, e)
}

// begin has the engine start the process of a container that is recorded as starting.
func (r *Runtime) begin(ctx context.Context, e *entry) error {
	if err := r.engine.Start(ctx, r.container(e.rec.Spec, e.rec.PID)); err != nil {
		return errors.Join(err, r.setPhase(e, phaseCreated))
	}
	return r.setPhase(e, phaseRunning)
}

func (r *Runtime) setPhase(e *entry, p phase) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	e.rec.reach(p)
	return e.rec.write(r.Bundle(e.rec.Spec.ID))
}

// Stop sends SIGTERM, then SIGKILL after grace.
func (r *Runtime) Stop(ctx context.Context, id string, grace time.Duration) error {
	err := r.inTurn(ctx, id, false, func(e *entry) error { return r.stop(ctx, e, grace) })
	if errors.Is(err, container.ErrNotFound) {
		return nil
	}
	return err
}

func (r *Runtime) stop(ctx context.Context, e *entry, grace time.Duration) error {
	state := r.stateOf(e)
	if state != container.Created && state != container.Running {
		return nil
	}
	r.mu.Lock()
	proc := e.proc
	r.mu.Unlock()
	if state == container.Running && grace > 0 {
		ended, err := r.terminate(ctx, e, proc, grace)
		if err != nil {
			return fmt.Errorf("SIGTERM: %w", err)
		}
		if ended {
			return nil
		}
	}
	return r.kill(context.WithoutCancel(ctx), e.rec.Spec.ID, proc)
}

const (
	minAge   = 50 * time.Millisecond // after its start a program is not asked to end: it may not even have been executed
	deafness = time.Second           // a program that does not listen to SIGTERM for so long never will
)

// terminate asks the process to end and waits; false: it must be killed. The kernel does not give a namespace's process 1 a signal
// that it does not listen to: to one that has just started SIGTERM would be lost, and for one that never listens there is nothing
// to wait for. (One that sleeps in sigwait does not seem to listen, but takes the signal.)
func (r *Runtime) terminate(ctx context.Context, e *entry, proc *Process, grace time.Duration) (bool, error) {
	ctx, cancel := context.WithTimeout(ctx, grace) // a caller that leaves is in a hurry: kill
	defer cancel()
	if r.machine != nil {
		if err := r.machine.Terminate(ctx, r.container(e.rec.Spec, e.rec.PID)); err != nil {
			return false, nil // it cannot be asked: it is killed
		}
		return proc.endsWithin(ctx, grace), nil
	}
	r.mu.Lock()
	started := e.rec.Started
	r.mu.Unlock()
	for age := time.Since(started); age < deafness; age = time.Since(started) {
		if age >= minAge && proc.hears(unix.SIGTERM) {
			break
		}
		if proc.endsWithin(ctx, 5*time.Millisecond) {
			return true, nil
		}
		if ctx.Err() != nil {
			return false, nil
		}
	}
	if err := proc.Signal(unix.SIGTERM); err != nil {
		return false, err
	}
	if r.endsWithin(ctx, e.rec.Spec.ID, proc, deafness) {
		return true, nil
	}
	return proc.hears(unix.SIGTERM) && r.endsWithin(ctx, e.rec.Spec.ID, proc, grace), nil
}

// endsWithin waits for the end of a first process that has been asked to end, up to a time or ctx; see buried.
func (r *Runtime) endsWithin(ctx context.Context, id string, proc *Process, d time.Duration) bool {
	ctx, cancel := context.WithTimeout(ctx, d)
	defer cancel()
	return r.buried(ctx, id, proc) == nil
}

// kill ends a container's first process and everything else in its cgroups.
func (r *Runtime) kill(ctx context.Context, id string, proc *Process) error {
	ctx, cancel := context.WithTimeout(ctx, killTimeout)
	defer cancel()
	if proc != nil {
		if err := proc.Signal(unix.SIGKILL); err != nil {
			return fmt.Errorf("SIGKILL: %w", err)
		}
		if err := r.buried(ctx, id, proc); err != nil {
			return err
		}
	}
	return r.killCgroup(ctx, id)
}

// buried waits for the end of a first process that is killed, or has been asked to end. The kernel lets it end when all others of its namespace are reaped, and
// some may have been left to us: what Exec ran, when the engine's process between was killed, or has ended before it.
func (r *Runtime) buried(ctx context.Context, id string, proc *Process) error {
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for {
		select {
		case <-proc.done:
			return nil
		case <-tick.C:
			r.reapOrphans(id)
		case <-ctx.Done():
			return fmt.Errorf("process %d does not end after SIGKILL: %w", proc.pid, ctx.Err())
		}
	}
}

// Delete removes the container and all that belongs to it, its log too.
func (r *Runtime) Delete(ctx context.Context, id string) error { return r.remove(ctx, id, dropLog) }

func (r *Runtime) remove(ctx context.Context, id string, fate logFate) error {
	return r.inTurn(ctx, id, true, func(e *entry) error { return r.purge(ctx, e, id, fate) })
}

// Status reports one container.
func (r *Runtime) Status(_ context.Context, id string) (container.Status, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if e := r.containers[id]; e.known() {
		s := e.status()
		s.RingsRefused = r.ringsRefused(id)
		return s, nil
	}
	return container.Status{}, fmt.Errorf("container %s: %w", id, container.ErrNotFound)
}

// known is called with r.mu held.
func (e *entry) known() bool { return e != nil && e.rec.Phase != "" && e.rec.Phase != phaseCreating }

// List reports every container of this instance, in order of their ids. It also keeps their logs within bounds, and collects what others have left to this process.
func (r *Runtime) List(context.Context) ([]container.Status, error) {
	r.mu.Lock()
	out := make([]container.Status, 0, len(r.containers))
	var machines []Container
	for _, e := range r.containers {
		if e.known() {
			s := e.status()
			s.RingsRefused = r.ringsRefused(s.ID)
			out = append(out, s)
			machines = append(machines, r.container(e.rec.Spec, e.rec.PID))
		}
	}
	r.mu.Unlock()
	if anyEnded() {
		r.reapOrphans("")
	}
	slices.SortFunc(out, func(a, b container.Status) int { return strings.Compare(a.ID, b.ID) })
	var errs []error
	for _, c := range machines {
		if r.machine != nil {
			errs = append(errs, r.machine.Bound(c))
		}
	}
	for log := range r.logs() {
		if err := r.bound(log); err != nil {
			errs = append(errs, err)
		}
	}
	return out, errors.Join(errs...)
}

// Wait blocks until the container's first process has ended.
func (r *Runtime) Wait(ctx context.Context, id string) (container.Status, error) {
	r.mu.Lock()
	e := r.containers[id]
	if !e.known() {
		r.mu.Unlock()
		return container.Status{}, fmt.Errorf("container %s: %w", id, container.ErrNotFound)
	}
	proc, status := e.proc, e.status()
	r.mu.Unlock()
	if status.State == container.Stopped {
		return status, nil
	}
	select {
	case <-proc.done:
	case <-proc.closed:
		select {
		case <-proc.done: // both, and this one came first
		default:
			return status, fmt.Errorf("wait for container %s: %w", id, os.ErrClosed)
		}
	case <-ctx.Done():
		return status, fmt.Errorf("wait for container %s: %w", id, ctx.Err())
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	status.State, status.PID, status.ExitCode, status.Signal = container.Stopped, 0, proc.end.code, proc.end.signal
	if e.proc == proc {
		status.OOM, status.Short = e.rec.OOM, e.rec.Short
	}
	return status, nil
}

// Exec runs one more process in a running container and returns its exit code, 128+n if signal n ended it. When ctx ends, the
// process does. A Stdin that blocks is abandoned, not waited for: the caller closes it.
func (r *Runtime) Exec(ctx context.Context, id string, x container.ExecSpec) (int, error) {
	code, err := r.execute(ctx, id, x)
	if err != nil {
		return -1, fmt.Errorf("exec in container %s: %w", id, err)
	}
	return code, nil
}

func (r *Runtime) execute(ctx context.Context, id string, x container.ExecSpec) (int, error) {
	if len(x.Args) == 0 || x.Args[0] == "" {
		return -1, errors.New("no command")
	}
	r.mu.Lock()
	e := r.containers[id]
	if !e.known() {
		r.mu.Unlock()
		return -1, container.ErrNotFound
	}
	state, c, proc := e.status().State, r.container(e.rec.Spec, e.rec.PID), e.proc
	if e.rec.Phase == phaseStarting { // its process may still prepare itself: nothing of the image runs beside that
		state = container.Created
	}
	r.mu.Unlock()
	if state != container.Running {
		return -1, fmt.Errorf("%w: it is %s, want running", container.ErrState, state)
	}
	code, err := r.engine.Exec(ctx, c, x)
	if err != nil || code > signalled { // who was killed may be the program's parent
		r.reapOrphans(id)
		if e.reaping.CompareAndSwap(false, true) {
			go func() {
				defer e.reaping.Store(false)
				r.reapLater(id, proc)
			}()
		}
	}
	return code, err
}

// signalled is added to a signal to be an exit code.
const signalled = 128

// reapLater collects what an exec that failed or was killed has left, which may end only now: crun does not wait for what it could not execute. With that in its
// namespace the container could not end.
func (r *Runtime) reapLater(id string, proc *Process) {
	for wait := 5 * time.Millisecond; wait < 2*time.Second && r.adopts; wait *= 2 {
		select {
		case <-proc.done:
			return
		case <-proc.closed:
			return
		case <-time.After(wait):
			r.reapOrphans(id)
		}
	}
}

// Destroy removes every container of this instance, also those that only a crash left.
func (r *Runtime) Destroy(ctx context.Context) error {
	ids, err := r.everyID()
	if err != nil {
		return err
	}
	dirs, fate := []string{r.Dir(), r.writableDir(), r.logsDir()}, dropLog
	if r.keepLogs {
		dirs, fate = dirs[:2], keepLog
	}
	var errs []error
	for _, id := range ids {
		errs = append(errs, r.remove(ctx, id, fate))
	}
	if err := errors.Join(errs...); err != nil {
		return err
	}
	r.reapOrphans("")
	if err := r.unboundRings(); err != nil {
		return err
	}
	if err := r.removeCgroupRoots(); err != nil {
		return err
	}
	if r.foreign != nil {
		if err := r.foreign.Destroy(ctx); err != nil {
			return err
		}
	}
	for _, dir := range dirs {
		if err := os.RemoveAll(dir); err != nil {
			return fmt.Errorf("destroy containers: %w", err)
		}
	}
	if r.root() != r.inst.Root {
		_ = os.Remove(r.root()) // if nothing is kept in it
	}
	return nil
}

// reapOrphans is of use to a process that adopts; see Options. They are of one container, which may run on, or "" of any. A container's first process is not among
// them: it is held, or is going to be.
func (r *Runtime) reapOrphans(id string) {
	if r.adopts {
		reapOrphans(r.CgroupPath(""), func(name string, pid int) bool { return (id == "" || name == id) && !r.holds(name, pid) })
	}
}

// holds tells whether an ended process may be a container's first one, for whose end somebody waits.
func (r *Runtime) holds(id string, pid int) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	e := r.containers[id]
	switch {
	case e == nil:
		return false
	case e.proc == nil:
		return e.rec.Phase == phaseCreating
	}
	return e.proc.pid == pid
}

// logOf is the name of a container's log.
func logOf(s container.Spec) string { return cmp.Or(s.Log, s.ID) }

// logs are the names of all containers' logs, and how many containers have each.
func (r *Runtime) logs() map[string]int {
	r.mu.Lock()
	defer r.mu.Unlock()
	all := map[string]int{}
	for _, e := range r.containers {
		if e.rec.Phase != "" {
			all[logOf(e.rec.Spec)]++
		}
	}
	return all
}

func equal(a, b container.Spec) bool {
	ja, errA := json.Marshal(a)
	jb, errB := json.Marshal(b)
	return errA == nil && errB == nil && string(ja) == string(jb)
}
