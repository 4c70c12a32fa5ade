// Package oci drives containers through the command line of any OCI runtime (runc, crun, runsc, kata).
//
// It owns INSTANCE.Run/oci (records, bundles, the runtime's own state), INSTANCE.Root/logs, INSTANCE.Root/containers (writable
// layers) and the cgroups weir/INSTANCE/ID. It does not own images, network namespaces or links.
//
// Containers belong to nobody but the kernel: their output goes to files, no process of ours stands between. The one
// process that opened the instance keeps a pidfd per container, so that a tick over 100 containers forks nothing.
// Every step is recorded before it is taken; what a crash leaves half-made is found by that record and removed.
//
// What Run costs is the runtime. With runc 1.1 on two cores a start alone takes some 25 ms of processor time, nearly all of it in
// processes that are not ours (profile of 60 starts): runc itself 47 %, its init until it executes the program 34 %, its two helpers
// between them 8 %, Weir 9 %, the program 2 %. Seven tenths are spent in the kernel (page faults, executing, cgroups, mounts), a fifth
// in runc's Go code, a twentieth on the filter of system calls. Of waiting beside that there was one piece: see rouse.
package oci

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
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
	CLI      string // name or path of the runtime, default runc
	Remove   bool   // only Destroy will be called: it can do without the runtime's program
	KeepLogs bool   // Destroy leaves what containers have printed
	// Limits of a container whose Spec has none, where the kernel can; 0 none. DiskBytes is for a second, for reading and for writing each.
	Memory, DiskBytes int64
	CPUs              float64
	LogBytes          int64 // a container's log is cut at this size, one older file is kept; default 8 MiB, at most 16 MiB
	// Adopt makes this process the reaper of the containers that it starts (PR_SET_CHILD_SUBREAPER), so that exit codes are known on
	// every kernel, of the shortest run too. Without it they are known from Linux 6.15 on.
	Adopt bool
	// Vulnerable accepts a runtime with known escapes.
	Vulnerable bool
	Log        *slog.Logger // takes warnings; nil: nobody does
}

// Runtime is container.Runtime over an OCI runtime's command line. See New.
type Runtime struct {
	inst     instance.Instance
	cli      string
	logBytes int64
	keepLogs bool
	defaults container.Limits // where a Spec has none
	disk     disk             // that defaults bound
	cgroups  []hierarchy
	seccomp  profiles
	rousing  sync.Mutex // held while rouse is at it
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
	proc *process // nil: no process known
	gone bool     // deleted: whoever waited for turn looks again
}

// New opens the instance's containers: it takes over those that run and removes what a crash left half-made.
func New(ctx context.Context, inst instance.Instance, o Options) (*Runtime, error) {
	if os.Geteuid() != 0 {
		return nil, errors.New("container runtime: not root: run weir as root")
	}
	if o.CLI == "" {
		o.CLI = defaultCLI
	}
	if o.LogBytes <= 0 {
		o.LogBytes = defaultLogBytes
	}
	o.LogBytes = min(o.LogBytes, maxLog/2) // a log has to reach it to be cut
	cli, err := exec.LookPath(o.CLI)
	if o.Remove && err != nil {
		cli, err = o.CLI, nil
	}
	if err != nil {
		return nil, fmt.Errorf("container runtime %s: %w: install it (apt-get install runc) or name another with --runtime", o.CLI, err)
	}
	cgroups, err := findHierarchies()
	if err != nil {
		return nil, fmt.Errorf("container runtime: %w", err)
	}
	r := &Runtime{inst: inst, cli: cli, logBytes: o.LogBytes, keepLogs: o.KeepLogs, cgroups: cgroups, adopts: o.Adopt, containers: map[string]*entry{}}
	r.setDefaults(o)
	if !o.Remove {
		warning, err := r.checkVersion(ctx)
		switch {
		case errors.Is(err, ErrVulnerable) && !o.Vulnerable:
			return nil, fmt.Errorf("container runtime %s: %w (or start with --allow-vulnerable-runtime, and trust every image)", cli, err)
		case errors.Is(err, ErrVulnerable):
			warning = err.Error()
		case err != nil:
			return nil, fmt.Errorf("container runtime: %w", err)
		}
		if warning != "" && o.Log != nil {
			o.Log.Warn("container runtime", "program", cli, "warning", warning)
		}
	}
	if err := r.makeDirs(); err != nil {
		return nil, fmt.Errorf("container runtime: %w", err)
	}
	if o.Adopt {
		if err := unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0); err != nil {
			return nil, fmt.Errorf("container runtime: become reaper: %w", err)
		}
	}
	if err := r.recover(ctx); err != nil {
		r.Close()
		return nil, fmt.Errorf("container runtime: recover: %w", err)
	}
	r.reapOrphans()
	return r, nil
}

// Close lets go of every container and leaves it as it is. A pending Wait returns an error.
func (r *Runtime) Close() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.closed = true
	for _, e := range r.containers {
		if e.proc != nil {
			e.proc.close()
		}
	}
	return nil
}

func (r *Runtime) dir() string                 { return filepath.Join(r.inst.Run, "oci") }
func (r *Runtime) stateDir() string            { return filepath.Join(r.dir(), "state") }
func (r *Runtime) bundlesDir() string          { return filepath.Join(r.dir(), "bundles") }
func (r *Runtime) bundle(id string) string     { return filepath.Join(r.bundlesDir(), id) }
func (r *Runtime) logsDir() string             { return filepath.Join(r.inst.Root, "logs") }
func (r *Runtime) logFile(log string) string   { return filepath.Join(r.logsDir(), log+".log") }
func (r *Runtime) writableDir() string         { return filepath.Join(r.inst.Root, "containers") }
func (r *Runtime) writable(id string) string   { return filepath.Join(r.writableDir(), id) }
func (r *Runtime) cgroupPath(id string) string { return filepath.Join("/weir", r.inst.Name, id) }

func (r *Runtime) makeDirs() error {
	for _, dir := range []string{r.stateDir(), r.bundlesDir(), r.logsDir()} {
		if err := os.MkdirAll(dir, 0o700); err != nil {
			return err
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
	s := container.Status{ID: e.rec.Spec.ID, State: container.Stopped, Started: e.rec.Started, ExitCode: e.rec.ExitCode, Signal: e.rec.Signal, OOM: e.rec.OOM, Limits: e.rec.Limits}
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
	if err := r.checkLimits(s); err != nil {
		return err
	}
	if r.leftover(s.ID) {
		if err := r.purge(ctx, e, s.ID, keepLog); err != nil {
			return err
		}
	}
	defer r.rouse()()
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
			err = errors.Join(err, perr)
		}
		r.reapOrphans()
	}()
	if err := r.writeBundle(e.rec); err != nil {
		return err
	}
	return r.launch(ctx, e, s, run)
}

// launch has the runtime make the container of a bundle, and start it if run, with its output in the log.
func (r *Runtime) launch(ctx context.Context, e *entry, s container.Spec, run bool) error {
	log, err := os.OpenFile(r.logFile(logOf(s)), os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
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
	verb, phase := []string{"create"}, phaseCreated
	if run {
		verb, phase = []string{"run", "--detach"}, phaseRunning
	}
	bundle := r.bundle(s.ID)
	args := append(verb, "--bundle", bundle, "--pid-file", filepath.Join(bundle, "pid"), s.ID)
	if err := r.call(ctx, s.ID, log, args...); err != nil {
		return explain(err, s)
	}
	r.yieldCPU()
	return r.settle(e, phase)
}

// settle takes over the process that the runtime made, and records it.
func (r *Runtime) settle(e *entry, phase phase) error {
	pid, err := readPID(filepath.Join(r.bundle(e.rec.Spec.ID), "pid"))
	if err != nil {
		return err
	}
	proc, ticks, err := openProcess(pid, 0)
	if err != nil && !errors.Is(err, unix.ESRCH) {
		return err
	}
	rec := e.rec
	rec.Phase, rec.PID, rec.Ticks = phase, pid, ticks
	if phase == phaseRunning {
		rec.Started = time.Now()
	}
	r.setHostDefaults(rec.Spec)
	rec.Limits, err = r.readLimits(rec.Spec)
	if err != nil && proc != nil && !proc.ended() {
		proc.close()
		return err
	}
	return r.keep(e, rec, proc)
}

// keep records what a container is now, and watches its process, nil if it has none.
func (r *Runtime) keep(e *entry, rec record, proc *process) error {
	r.mu.Lock()
	e.rec, e.proc = rec, proc
	err := rec.write(r.bundle(rec.Spec.ID))
	r.mu.Unlock()
	if err != nil {
		return err
	}
	if proc != nil {
		go r.watch(e, proc)
	}
	return nil
}

// watch waits for the end of a container's process and records it.
func (r *Runtime) watch(e *entry, p *process) {
	ok := p.wait()
	r.mu.Lock()
	defer r.mu.Unlock()
	if !ok { // closed
		return
	}
	if e.proc == p && !e.gone {
		e.rec.ExitCode, e.rec.Signal = p.end.code, p.end.signal
		e.rec.OOM = p.end.signal == int(unix.SIGKILL) && r.outOfMemory(e.rec.Spec.ID)
		if e.rec.Phase != "" {
			// Losing this costs an exit code after a restart of the daemon, no more.
			_ = e.rec.write(r.bundle(e.rec.Spec.ID))
		}
	}
	close(p.done)
	p.close()
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
	id := e.rec.Spec.ID
	if err := r.setPhase(e, phaseStarting); err != nil {
		return err
	}
	if err := r.call(ctx, id, nil, "start", id); err != nil {
		return errors.Join(explain(err, e.rec.Spec), r.setPhase(e, phaseCreated))
	}
	r.mu.Lock()
	e.rec.Started = time.Now()
	r.mu.Unlock()
	return r.setPhase(e, phaseRunning)
}

func (r *Runtime) setPhase(e *entry, p phase) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	e.rec.Phase = p
	return e.rec.write(r.bundle(e.rec.Spec.ID))
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
func (r *Runtime) terminate(ctx context.Context, e *entry, proc *process, grace time.Duration) (bool, error) {
	ctx, cancel := context.WithTimeout(ctx, grace) // a caller that leaves is in a hurry: kill
	defer cancel()
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
	if err := proc.signal(unix.SIGTERM); err != nil {
		return false, err
	}
	if proc.endsWithin(ctx, deafness) {
		return true, nil
	}
	return proc.hears(unix.SIGTERM) && proc.endsWithin(ctx, grace), nil
}

// kill ends a container's first process and everything else in its cgroups.
func (r *Runtime) kill(ctx context.Context, id string, proc *process) error {
	ctx, cancel := context.WithTimeout(ctx, killTimeout)
	defer cancel()
	if proc != nil {
		if err := proc.signal(unix.SIGKILL); err != nil {
			return fmt.Errorf("SIGKILL: %w", err)
		}
		select {
		case <-proc.done:
		case <-ctx.Done():
			return fmt.Errorf("process %d does not end after SIGKILL: %w", proc.pid, ctx.Err())
		}
	}
	return r.killCgroup(ctx, id)
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
		return e.status(), nil
	}
	return container.Status{}, fmt.Errorf("container %s: %w", id, container.ErrNotFound)
}

// known is called with r.mu held.
func (e *entry) known() bool { return e != nil && e.rec.Phase != "" && e.rec.Phase != phaseCreating }

// List reports every container of this instance, in order of their ids. It also keeps their logs within bounds.
func (r *Runtime) List(context.Context) ([]container.Status, error) {
	r.mu.Lock()
	out := make([]container.Status, 0, len(r.containers))
	for _, e := range r.containers {
		if e.known() {
			out = append(out, e.status())
		}
	}
	r.mu.Unlock()
	slices.SortFunc(out, func(a, b container.Status) int { return strings.Compare(a.ID, b.ID) })
	var errs []error
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
		return status, fmt.Errorf("wait for container %s: %w", id, os.ErrClosed)
	case <-ctx.Done():
		return status, fmt.Errorf("wait for container %s: %w", id, ctx.Err())
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	status.State, status.PID, status.ExitCode, status.Signal = container.Stopped, 0, proc.end.code, proc.end.signal
	if e.proc == proc {
		status.OOM = e.rec.OOM
	}
	return status, nil
}

// Destroy removes every container of this instance, also those that only a crash left.
func (r *Runtime) Destroy(ctx context.Context) error {
	ids, err := r.everyID()
	if err != nil {
		return err
	}
	dirs, fate := []string{r.dir(), r.writableDir(), r.logsDir()}, dropLog
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
	r.reapOrphans()
	if err := r.removeCgroupRoots(); err != nil {
		return err
	}
	for _, dir := range dirs {
		if err := os.RemoveAll(dir); err != nil {
			return fmt.Errorf("destroy containers: %w", err)
		}
	}
	return nil
}

// reapOrphans is of use to a process that adopts; see Options.
func (r *Runtime) reapOrphans() {
	if !r.adopts {
		return
	}
	r.mu.Lock()
	held := map[int]bool{}
	for _, e := range r.containers {
		if e.proc != nil {
			held[e.proc.pid] = true
		}
	}
	r.mu.Unlock()
	reapOrphans(r.cgroupPath(""), func(pid int) bool { return held[pid] })
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
