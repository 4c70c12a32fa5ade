package agent

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"weir.dev/weir/agent/sandbox"
	"weir.dev/weir/api"
	"weir.dev/weir/container"
	"weir.dev/weir/instance"
)

// applied is what the running container was made from; it outlives the agent in the function's run directory.
type applied struct {
	Hash      string   `json:"hash"`
	Basis     string   `json:"basis,omitempty"`  // Hash without its config
	Export    []string `json:"export,omitempty"` // command of its image
	Restart   int64    `json:"restart"`
	Restarts  int      `json:"restarts"`
	Digest    string   `json:"digest"`
	Container string   `json:"container,omitempty"` // its id
	Second    bool     `json:"second,omitempty"`    // the switch knows it as the function's second instance

	Came time.Time `json:"came,omitzero"` // the placement (Since) with which it moved here, and its state was asked for
}

// made notes what an instance is made from.
func (a *applied) made(p prepared, want api.Function) {
	a.Hash, a.Basis, a.Export, a.Restart, a.Digest = p.hash, p.basis, p.image.Contract.Export, want.Spec.Restart, p.image.Digest
}

// make creates (and with runtime.Run starts) the container.
func (f *function) make(ctx context.Context, want api.Function, spec container.Spec, how func(context.Context, container.Spec) error, then container.State) error {
	err := f.whileWanted(ctx, spec.Runtime, func(ctx context.Context) (err error) {
		f.applied.made(f.ready, want)
		f.applied.Container = f.box.ID()
		if err := f.saveApplied(); err != nil {
			return err
		}
		spec, err = f.enter(ctx, &f.box, want, spec, how)
		return err
	})
	if err != nil {
		return err
	}
	f.behind = false
	f.mu.Lock()
	if f.cid != "" {
		f.former, f.litter = append(f.former, f.cid), true // its sandbox could not go before
	}
	f.cid = spec.ID
	f.mu.Unlock()
	f.have = then
	f.await(ctx)
	if then == container.Running {
		f.started = time.Now()
	}
	return f.readPID(ctx)
}

// errNotWanted is of the start of a function that is not wanted any more, or not in that runtime.
var errNotWanted = errors.New("it is not wanted any more")

// whileWanted has a container made, which takes a slot of its runtime. It may take long, as where machines boot or an engine hangs: the status says what is waited for, and
// its context ends when the function is not wanted any more.
func (f *function) whileWanted(ctx context.Context, runtime string, start func(context.Context) error) error {
	runtime = cmp.Or(runtime, f.a.RuntimeName)
	wanted, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	this := &starting{runtime: runtime, cancel: cancel}
	f.mu.Lock()
	f.starting = this
	f.cancelUnwanted()
	f.mu.Unlock()
	slow := time.AfterFunc(slowAfter, func() {
		f.update(func(v *view) {
			if f.starting == this && len(v.status.Conditions) == 0 && v.status.State != api.FunctionStarted { // else it says why the last one failed
				v.status.Say(api.Condition{Type: api.ConditionWaiting, Reason: api.ReasonWaiting, Message: "its start in the runtime " + runtime + " is under way"})
			}
		})
	})
	defer slow.Stop()
	free, err := f.a.slots.take(wanted, runtime)
	if err == nil {
		err = start(wanted)
		free()
	}
	f.mu.Lock()
	f.starting = nil
	f.mu.Unlock()
	if err != nil && ctx.Err() == nil && errors.Is(context.Cause(wanted), errNotWanted) {
		return fmt.Errorf("start of function %s: %w", f.name, errNotWanted)
	}
	return err
}

// enter makes a container in a sandbox. What a call that fails leaves, if anything, is removed later.
func (f *function) enter(ctx context.Context, box *sandbox.Box, want api.Function, spec container.Spec, how func(context.Context, container.Spec) error) (container.Spec, error) {
	spec, err := f.a.boxes.Enter(ctx, box, want.Spec.Image, spec)
	if err == nil {
		spec, err = f.a.secrets.Own(f.name, spec)
	}
	if err != nil {
		return spec, err
	}
	if err = how(ctx, spec); errors.Is(err, container.ErrLeft) {
		f.a.later(spec.ID)
	}
	return spec, err
}

// starting is a start that is under way.
type starting struct {
	runtime string
	cancel  context.CancelCauseFunc
}

// cancelUnwanted ends a start that is of no use. f.mu is held.
func (f *function) cancelUnwanted() {
	if s := f.starting; s != nil && (f.forgot || f.want.Deleting != nil || desired(f.want) == api.FunctionStopped || cmp.Or(f.want.Spec.Runtime, f.a.RuntimeName) != s.runtime) {
		s.cancel(errNotWanted)
	}
}

func (f *function) start(ctx context.Context) error {
	free, err := f.a.slots.take(ctx, f.a.runtimeOf(f.container()))
	if err != nil {
		return err
	}
	defer free()
	if err := f.a.Runtime.Start(ctx, f.container()); err != nil {
		return err
	}
	f.have, f.started = container.Running, time.Now()
	f.await(ctx)
	return f.readPID(ctx)
}

func (f *function) readPID(ctx context.Context) error {
	c, err := f.a.Runtime.Status(ctx, f.container())
	if err != nil {
		return err
	}
	f.update(func(v *view) {
		v.status.PID, v.status.Started, v.status.Limits = c.PID, f.started, limitsOf(c)
		f.a.ranBy(v, c.ID)
	})
	return nil
}

// limitsOf a container, as a function's status has them.
func limitsOf(c container.Status) api.Limits {
	l := c.Limits
	return api.Limits{CPUs: l.CPUs, CPUSet: l.CPUSet, MemoryBytes: l.Memory, Processes: l.PIDs, DiskBytesPerS: l.DiskBytes, DiskOpsPerS: l.DiskOps, RingBytes: l.Rings, Missing: l.Missing}
}

// await watches for the container's end, once.
func (f *function) await(ctx context.Context) {
	if f.waiting {
		return
	}
	f.waiting = true
	id, exits := f.container(), f.exits
	go func() {
		c, err := f.a.Runtime.Wait(ctx, id)
		if err != nil && ctx.Err() == nil {
			c = container.Status{ID: id, State: container.Stopped, ExitCode: -1}
		}
		if ctx.Err() == nil {
			exits <- c
		}
	}()
}

// exited handles the container's end, wanted or not.
func (f *function) exited(ctx context.Context, c container.Status) {
	f.waiting = false
	if f.have == "" || f.have == container.Stopped { // we stopped it
		return
	}
	now := time.Now()
	f.early++
	if f.alive {
		f.early = 0
	}
	f.down(ctx)
	f.numbers().Forget()
	if now.Sub(f.started) > backoffForget {
		f.crashes = 0
	}
	if f.crashes > 0 {
		f.notBefore = now.Add(backoffFor(f.crashes))
	}
	f.crashes++
	f.deaths++
	f.have = container.Stopped
	f.applied.Restarts++
	if f.died.IsZero() {
		f.died = now
	}
	text, words := ending(c), ""
	reason := api.ReasonExited
	if c.OOM {
		reason = api.ReasonMemory
	}
	if c.Signal == 0 { // else what it wrote last has nothing to do with its end
		words = f.lastWords(ctx)
	}
	f.update(func(v *view) {
		v.status.State, v.status.Healthy, v.status.PID = api.FunctionFailed, false, 0
		v.status.LastExit, v.status.Restarts = text, f.applied.Restarts
		v.status.Say(unhealthy(reason, text+words+", restarting"))
		if f.early >= giveUp { // this is what has become of what was wanted, for now
			v.status.ObservedGeneration = max(v.status.ObservedGeneration, f.ready.generation)
		}
	})
	f.event(api.Warning, "FunctionDied", text+"; "+f.consequence(), 0)
}

// ending says how a process ended.
func ending(c container.Status) string {
	switch {
	case c.OOM && (c.Short == container.ShortHost || c.Limits.Memory == 0):
		return "process killed: the host is out of memory"
	case c.OOM && c.Short == container.ShortUnknown:
		return fmt.Sprintf("process out of memory (limit %s), or the host is", size(c.Limits.Memory))
	case c.OOM: // the limit is of its spec, or of the host for all that name none
		return fmt.Sprintf("process out of memory (limit %s)", size(c.Limits.Memory))
	case c.Signal > 0:
		return fmt.Sprintf("process killed (signal %d)", c.Signal)
	case c.ExitCode >= 0:
		return fmt.Sprintf("process ended with exit code %d", c.ExitCode)
	}
	return "process ended"
}

// size is a number of bytes as specs have it.
func size(bytes int64) string {
	if bytes%(1<<20) != 0 {
		return fmt.Sprintf("%dK", bytes>>10)
	}
	return fmt.Sprintf("%dM", bytes>>20)
}

// maxWords bounds what a status quotes of a function's log.
const maxWords = 200

// lastWords is the last line that the process wrote, as it says most often why it ended.
func (f *function) lastWords(ctx context.Context) string { return f.lastWordsOf(ctx, f.container()) }

// lastWordsOf an instance. All instances of a function have one log: another one may have written a line since.
func (f *function) lastWordsOf(ctx context.Context, id string) string {
	log, err := f.a.Runtime.Logs(ctx, id, container.LogOptions{Tail: 1, Latest: true})
	if err != nil {
		return ""
	}
	defer log.Close()
	b, _ := io.ReadAll(io.LimitReader(log, maxWords))
	if words := strings.TrimSpace(strings.ToValidUTF8(string(b), "?")); words != "" {
		return ": " + words
	}
	return ""
}

func (f *function) consequence() string {
	if f.view().tap {
		return "copies to it are not sent"
	}
	if f.view().onFail == api.OnFailBypass {
		return "traffic bypasses it (on_fail: bypass)"
	}
	return "traffic through it is dropped (on_fail: drop)"
}

func (f *function) backoff() time.Duration {
	f.crashes++
	wait := backoffFor(f.crashes)
	f.notBefore = time.Now().Add(wait)
	return wait
}

// backoffFor doubles the wait with each failure in a row, up to a bound.
func backoffFor(crashes int) time.Duration {
	return min(backoffFirst<<min(max(crashes-1, 0), 10), backoffMax)
}

// halt ends the container; the ports stay, and so does its log.
func (f *function) halt(ctx context.Context, why string) error {
	f.down(ctx)
	f.numbers().Forget()
	was := f.have
	f.have = container.Stopped // its end is no crash
	free, err := f.a.slots.take(ctx, f.a.runtimeOf(f.container()))
	if err != nil {
		return err
	}
	defer free()
	if was == container.Running || was == container.Created {
		if err := f.a.Runtime.Stop(ctx, f.container(), stopGrace); err != nil {
			f.have = was
			return err
		}
	}
	f.update(func(v *view) {
		v.status.PID, v.status.Healthy = 0, false
		v.status.Say(unhealthy(api.ReasonRestart, why))
	})
	return f.awaited(ctx)
}

// awaited takes in the exit of a container that we ended, so that it is not taken for the next one's.
func (f *function) awaited(ctx context.Context) error {
	if !f.waiting {
		return nil
	}
	select {
	case <-f.exits:
		f.waiting = false
		return nil
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(stopGrace):
		return fmt.Errorf("the end of the deleted container of function %s is not told", f.name)
	}
}

func (f *function) saveApplied() error {
	b, err := json.Marshal(f.applied)
	if err != nil {
		return err
	}
	return instance.Replace(f.path("applied.json"), b, 0o600)
}

// fingerprint identifies what a container is made from.
func fingerprint(s container.Spec) string {
	b, err := json.Marshal(s)
	if err != nil {
		panic(err) // plain data
	}
	sum := sha256.Sum256(b)
	return hex.EncodeToString(sum[:16])
}
