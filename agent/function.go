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
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"weir.dev/weir/api"
	"weir.dev/weir/container"
	"weir.dev/weir/datapath"
	"weir.dev/weir/image"
)

// function is one network function on this host and the goroutine that looks after it.
// It lives as long as one life (UID) of the record; another function of the same name waits for its end.
type function struct {
	a     *Agent
	name  string
	uid   string
	links [3]string // the switch-side links it may have
	wake  chan struct{}
	ended atomic.Bool // the goroutine has taken everything down and is gone

	turn     uint32        // spreads probes over the rounds
	every    atomic.Uint32 // rounds from probe to probe
	probing  atomic.Bool   // up, and a probe can tell
	suspect  atomic.Bool   // the last probe did not come through
	forwards atomic.Bool   // up, should hand frames on, and no probe can tell whether it does
	unsure   atomic.Bool   // a link of it went: what is attached has to be looked at
	rtt      atomic.Int64  // as reported, ns

	mu       sync.Mutex
	want     api.Function
	forgot   bool      // the record is gone, or another host's
	released bool      // no rule names the ports any more
	left     time.Time // since when it is forgotten
	keptTold bool      // that it is forgotten and still here
	seen     view
	adopted  int // PID that ran when this agent started, 0 none

	// Owned by the goroutine.
	have      container.State // "" no container
	applied   applied
	waiting   bool // a goroutine waits for the container's exit
	exits     chan container.Status
	ready     prepared
	attached  attachment
	events    *http.Server // nil: not listening
	alive     bool         // the data plane was told Up
	crashes   int
	early     int       // ends in a row before it was up
	notBefore time.Time // of the next start
	started   time.Time
	died      time.Time // start of the present outage; zero if none
	lost      int       // probes in a row
	probe     time.Time // of the next probe
}

// prepared is what a generation of the spec came to; while its container runs nothing of it is looked at again.
type prepared struct {
	uid        string
	generation int64
	image      image.Image
	spec       container.Spec
	hash       string
}

// view is what the rest of the agent may know of a function.
type view struct {
	status api.FunctionStatus
	ports  datapath.Ports
	placed bool // the ports exist in the switch
	tap    bool
	onFail api.OnFail
	wasUp  bool // it was up since its ports exist
}

// applied is what the running container was made from; it outlives the agent in the function's run directory.
type applied struct {
	Hash     string `json:"hash"`
	Restart  int64  `json:"restart"`
	Restarts int    `json:"restarts"`
	Digest   string `json:"digest"`
}

func newFunction(a *Agent, name, uid string, existing map[string]container.Status) *function {
	f := &function{a: a, name: name, uid: uid, turn: a.turns.Add(1), wake: make(chan struct{}, 1), exits: make(chan container.Status, 1)}
	for i, side := range []string{"in", "out", "tap"} {
		f.links[i] = a.Instance.Link("function/" + name + "/" + side)
	}
	if c, ok := existing[name]; ok {
		f.have = c.State
		f.seen.status.PID = c.PID
		if c.State == container.Running {
			f.adopted = c.PID
		}
		f.started = c.Started
		if b, err := os.ReadFile(f.path("applied.json")); err == nil {
			_ = json.Unmarshal(b, &f.applied) // unreadable: the hash differs and the container is made anew
		}
	}
	return f
}

func (f *function) path(elem ...string) string {
	return filepath.Join(append([]string{f.a.Instance.Run, "functions", f.name}, elem...)...)
}

func (f *function) netns() string { return filepath.Join(f.a.Instance.NetnsDir(), f.name) }

func (f *function) poke() {
	select {
	case f.wake <- struct{}{}:
	default:
	}
}

// set says what is wanted now.
func (f *function) set(w api.Function) {
	f.mu.Lock()
	changed := f.want.Generation != w.Generation || (f.want.Deleting == nil) != (w.Deleting == nil)
	f.want = w
	f.seen.onFail = w.Spec.OnFail
	f.mu.Unlock()
	if changed {
		f.poke()
	}
}

func (f *function) forget() {
	f.mu.Lock()
	changed := !f.forgot
	if changed {
		f.forgot, f.left, f.keptTold = true, time.Now(), false
	}
	f.mu.Unlock()
	if changed {
		f.poke()
	}
}

// remember takes forget back, unless it is too late.
func (f *function) remember() {
	f.mu.Lock()
	changed := f.forgot && !f.released
	if changed {
		f.forgot = false
	}
	f.mu.Unlock()
	if changed {
		f.poke()
	}
}

// away: forgotten for good.
func (f *function) away() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.forgot
}

// suspected has the function probed now, if a probe can tell.
func (f *function) suspected() {
	if f.probing.Load() {
		f.suspect.Store(true)
		f.poke()
	}
}

func (f *function) release() {
	f.mu.Lock()
	changed := !f.released
	f.released = true
	f.mu.Unlock()
	if changed {
		f.poke()
	}
}

func (f *function) view() view {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.seen
}

// update changes what others see, reports it, and asks for new rules if they may differ.
func (f *function) update(change func(v *view)) {
	f.mu.Lock()
	before := f.seen
	change(&f.seen)
	f.seen.status.Host = f.a.Host
	after, uid, forgot := f.seen, f.want.UID, f.forgot
	found := f.adopted != 0 && after.status.PID == f.adopted && (after.status.State == "" || after.status.State == api.FunctionPending) && after.status.Message == ""
	f.mu.Unlock()
	if !forgot && !found { // else it is another host's to tell, or what was said of it before this agent's start still holds
		f.a.report.function(f.name, uid, after.status) // which tells news from old
	}
	if after.placed != before.placed || after.ports != before.ports || after.wasUp != before.wasUp || after.status.Healthy != before.status.Healthy {
		f.a.poke()
	}
}

// run looks after the function until it is gone or ctx ends; then everything stays as it is.
func (f *function) run(ctx context.Context) {
	defer f.stopEvents()
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-f.wake:
		case c := <-f.exits:
			f.exited(ctx, c)
		case <-timer.C:
		}
		if ctx.Err() != nil {
			return
		}
		f.mu.Lock()
		want, forgot, released := f.want, f.forgot, f.released
		f.mu.Unlock()
		if !forgot && want.Deleting == nil {
			wait, err := f.step(ctx, want)
			if ctx.Err() != nil {
				return
			}
			if err != nil {
				f.fail(want, err)
			}
			timer.Reset(wait)
			continue
		}
		if !released { // rules still lead to it
			if f.have == container.Running {
				f.await(ctx)
			}
			timer.Reset(resync)
			continue
		}
		if err := f.remove(ctx); err != nil {
			f.fail(want, err)
			timer.Reset(retryAfter)
			continue
		}
		f.update(func(v *view) {
			v.placed, v.ports = false, datapath.Ports{}
			v.status = api.FunctionStatus{State: api.FunctionDeleted, ObservedGeneration: want.Generation}
		})
		f.stopEvents()
		f.ended.Store(true)
		f.a.poke() // a successor may be waiting
		return
	}
}

func (f *function) fail(want api.Function, err error) {
	f.a.Log.Warn("function", "function", f.name, "error", err)
	idle := f.have == "" || f.have != container.Running && desired(want) == api.FunctionStarted // else it is as it was, the former generation maybe
	f.update(func(v *view) {
		if v.status.State == "" || v.status.State == api.FunctionPending || idle {
			v.status.State = api.FunctionFailed
		}
		v.status.Message = err.Error()
		if idle {
			v.status.ObservedGeneration = want.Generation
		}
	})
}

// desired is the state that is wanted; a spec need not say it.
func desired(want api.Function) api.FunctionState {
	return cmp.Or(want.Spec.State, api.FunctionStarted)
}

// step brings the function to the wanted state, or says why not and when to try again.
func (f *function) step(ctx context.Context, want api.Function) (time.Duration, error) {
	if p := f.ready; f.have != container.Running || p.uid != want.UID || p.generation != want.Generation {
		img, spec, err := f.prepare(ctx, want)
		if err != nil {
			f.ready = prepared{}
			return retryAfter, err
		}
		f.ready = prepared{uid: want.UID, generation: want.Generation, image: img, spec: spec, hash: fingerprint(spec)}
	}
	img, spec, hash := f.ready.image, f.ready.spec, f.ready.hash
	desired := desired(want)
	stale := (f.have == container.Running || f.have == container.Created) && (f.applied.Hash != hash || f.applied.Restart != want.Spec.Restart)
	switch {
	case desired == api.FunctionStopped && f.have != "" && f.have != container.Stopped,
		desired == api.FunctionCreated && f.have == container.Running,
		stale:
		if err := f.halt(ctx, "stopped on request"); err != nil {
			return retryAfter, err
		}
		f.crashes, f.early, f.notBefore = 0, 0, time.Time{}
	}
	switch desired {
	case api.FunctionStopped:
		f.settle(want, img, api.FunctionStopped)
		return resync, nil
	case api.FunctionCreated:
		if f.have != container.Created {
			if err := f.make(ctx, want, spec, hash, f.a.Runtime.Create, container.Created); err != nil {
				return f.backoff(), err
			}
		}
		f.settle(want, img, api.FunctionCreated)
		return resync, nil
	}
	if wait := time.Until(f.notBefore); wait > 0 && f.have != container.Running {
		return wait, nil
	}
	switch f.have {
	case container.Running:
		f.await(ctx)
	case container.Created:
		if err := f.start(ctx); err != nil {
			return f.backoff(), err
		}
	default:
		if err := f.make(ctx, want, spec, hash, f.a.Runtime.Run, container.Running); err != nil {
			return f.backoff(), err
		}
	}
	return f.watchHealth(ctx, want, img)
}

// settle reports a state that needs no watching.
func (f *function) settle(want api.Function, img image.Image, s api.FunctionState) {
	f.update(func(v *view) {
		v.wasUp = true // what follows is decided by on_fail
		v.status.State, v.status.Healthy, v.status.Message = s, false, ""
		v.status.ObservedGeneration, v.status.ObservedRestart = want.Generation, want.Spec.Restart
		v.status.Image = img.Digest
		if s == api.FunctionStopped {
			v.status.PID = 0
		}
	})
}

// make creates (and with runtime.Run starts) the container.
func (f *function) make(ctx context.Context, want api.Function, spec container.Spec, hash string, how func(context.Context, container.Spec) error, then container.State) error {
	if err := f.slot(ctx); err != nil {
		return err
	}
	defer f.free()
	if f.have == container.Running || f.have == container.Created { // one that has ended gives way and leaves its log
		if err := f.a.Runtime.Delete(ctx, f.name); err != nil {
			return err
		}
		f.have = ""
	}
	f.applied.Hash, f.applied.Restart, f.applied.Digest = hash, want.Spec.Restart, f.ready.image.Digest
	if err := f.saveApplied(); err != nil {
		return err
	}
	if err := how(ctx, spec); err != nil {
		return err
	}
	f.have = then
	f.await(ctx)
	if then == container.Running {
		f.started = time.Now()
	}
	return f.readPID(ctx)
}

func (f *function) start(ctx context.Context) error {
	if err := f.slot(ctx); err != nil {
		return err
	}
	defer f.free()
	if err := f.a.Runtime.Start(ctx, f.name); err != nil {
		return err
	}
	f.have, f.started = container.Running, time.Now()
	f.await(ctx)
	return f.readPID(ctx)
}

func (f *function) readPID(ctx context.Context) error {
	c, err := f.a.Runtime.Status(ctx, f.name)
	if err != nil {
		return err
	}
	f.update(func(v *view) { v.status.PID, v.status.Started = c.PID, f.started })
	return nil
}

func (f *function) slot(ctx context.Context) error {
	select {
	case f.a.slots <- struct{}{}:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (f *function) free() { <-f.a.slots }

// await watches for the container's end, once.
func (f *function) await(ctx context.Context) {
	if f.waiting {
		return
	}
	f.waiting = true
	go func() {
		c, err := f.a.Runtime.Wait(ctx, f.name)
		if err != nil && ctx.Err() == nil {
			c = container.Status{ID: f.name, State: container.Stopped, ExitCode: -1}
		}
		if ctx.Err() == nil {
			f.exits <- c
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
	if now.Sub(f.started) > backoffForget {
		f.crashes = 0
	}
	if f.crashes > 0 {
		f.notBefore = now.Add(backoffFor(f.crashes))
	}
	f.crashes++
	f.have = container.Stopped
	f.applied.Restarts++
	if f.died.IsZero() {
		f.died = now
	}
	f.mu.Lock()
	text, words := ending(c, f.want.Spec.Memory), ""
	f.mu.Unlock()
	if c.Signal == 0 { // else what it wrote last has nothing to do with its end
		words = f.lastWords(ctx)
	}
	f.update(func(v *view) {
		v.status.State, v.status.Healthy, v.status.PID = api.FunctionFailed, false, 0
		v.status.LastExit, v.status.Restarts = text, f.applied.Restarts
		v.status.Message = text + words + ", restarting"
		if f.early >= giveUp { // this is what has become of what was wanted, for now
			v.status.ObservedGeneration = max(v.status.ObservedGeneration, f.ready.generation)
		}
	})
	f.event(api.Warning, "FunctionDied", text+"; "+f.consequence(), 0)
}

// ending says how a process ended; memory is its limit, "" none.
func ending(c container.Status, memory string) string {
	switch {
	case c.OOM && memory != "":
		return fmt.Sprintf("process out of memory (limit %s)", memory)
	case c.OOM:
		return "process killed: the host is out of memory"
	case c.Signal > 0:
		return fmt.Sprintf("process killed (signal %d)", c.Signal)
	case c.ExitCode >= 0:
		return fmt.Sprintf("process ended with exit code %d", c.ExitCode)
	}
	return "process ended"
}

// maxWords bounds what a status quotes of a function's log.
const maxWords = 200

// lastWords is the last line that the process wrote, as it says most often why it ended.
func (f *function) lastWords(ctx context.Context) string {
	log, err := f.a.Runtime.Logs(ctx, f.name, container.LogOptions{Tail: 1, Latest: true})
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
	was := f.have
	f.have = container.Stopped // its end is no crash
	if err := f.slot(ctx); err != nil {
		return err
	}
	defer f.free()
	if was == container.Running || was == container.Created {
		if err := f.a.Runtime.Stop(ctx, f.name, stopGrace); err != nil {
			f.have = was
			return err
		}
	}
	f.update(func(v *view) { v.status.PID, v.status.Healthy, v.status.Message = 0, false, why })
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
		return fmt.Errorf("the end of the deleted container %s is not told", f.name)
	}
}

func (f *function) down(ctx context.Context) {
	f.alive = false
	f.probing.Store(false)
	f.forwards.Store(false)
	if err := f.a.Switch.SetState(ctx, f.name, datapath.Down, 0); err != nil && !errors.Is(err, datapath.ErrNotFound) {
		f.a.Log.Error("set function down", "function", f.name, "error", err)
	}
}

// up tells the data plane that the function carries traffic again.
func (f *function) up(ctx context.Context, want api.Function, img image.Image) error {
	pid := f.view().status.PID
	if err := f.a.Switch.SetState(ctx, f.name, datapath.Up, pid); err != nil {
		return err
	}
	first := !f.alive
	f.alive, f.lost = true, 0
	f.suspect.Store(false)
	f.every.Store(1)
	if img.Contract.Forwarder != "" {
		f.every.Store(probeKernelTurns)
	}
	f.probing.Store(probes(img))
	f.update(func(v *view) {
		v.wasUp = true
		v.status.State, v.status.Healthy, v.status.Message = api.FunctionStarted, true, ""
		v.status.ObservedGeneration, v.status.ObservedRestart = want.Generation, want.Spec.Restart
		v.status.Image, v.status.Restarts, v.status.Started = img.Digest, f.applied.Restarts, f.started
		v.status.CheckedBy = checkedBy(img)
	})
	f.forwards.Store(!probes(img) && !img.Contract.Tap)
	if first && !f.died.IsZero() {
		outage := time.Since(f.died)
		f.died = time.Time{}
		_ = f.saveApplied() // only the count of restarts would be lost
		f.event(api.Info, "FunctionRecovered", fmt.Sprintf("running again after %s", outage.Round(time.Millisecond)), outage)
	}
	return nil
}

// watchHealth decides by process and probe whether the function is up, and when to look again.
func (f *function) watchHealth(ctx context.Context, want api.Function, img image.Image) (time.Duration, error) {
	if !probes(img) {
		if young := settleFor - time.Since(f.started); !f.alive && young > 0 { // it may end at once
			return young, nil
		}
		if !f.alive {
			if err := f.up(ctx, want, img); err != nil {
				return retryAfter, err
			}
		}
		f.observe(want, img)
		return resync, nil
	}
	if f.alive && !f.suspect.Load() { // the prober looks after it
		f.observe(want, img)
		return resync, nil
	}
	if wait := time.Until(f.probe); wait > 0 && f.alive {
		return wait, nil
	}
	limited, cancel := context.WithTimeout(ctx, probeWaits(img))
	defer cancel()
	p, err := f.a.Switch.Probe(limited, f.name)
	if err == nil {
		f.lost = 0
		f.suspect.Store(false)
		if !f.alive {
			if err := f.up(ctx, want, img); err != nil {
				return retryAfter, err
			}
		}
		f.slower(p.RTT)
		f.observe(want, img)
		return resync, nil
	}
	f.lost++
	f.probe = time.Now().Add(probeAgain)
	if !f.alive {
		if time.Since(f.started) > unhealthyFor && f.have == container.Running {
			return 0, f.restartUnhealthy(ctx)
		}
		f.hangs(ctx)
		return 10 * time.Millisecond, nil // starting: not up before its first probe
	}
	if f.lost >= probeLimit {
		f.died = time.Now()
		f.down(ctx)
		f.started = time.Now() // the clock of unhealthyFor
		f.update(func(v *view) {
			v.status.Healthy, v.status.Message = false, fmt.Sprintf("no probe frame came through: %v", err)
		})
		f.event(api.Warning, "FunctionUnhealthy", "probe frames do not come through; "+f.consequence(), 0)
		if img.Contract.Forwarder != "" { // its links may be gone: they can be made anew while the container runs on
			f.attached, f.ready = attachment{}, prepared{}
			return 0, nil
		}
	}
	return probeAgain, nil
}

func (f *function) restartUnhealthy(ctx context.Context) error {
	f.event(api.Warning, "FunctionRestarting", fmt.Sprintf("no probe frame came through for %s", unhealthyFor), 0)
	if f.died.IsZero() {
		f.died = time.Now()
	}
	f.attached = attachment{} // look at the links again, too
	err := f.halt(ctx, "restarting: no probe frame came through")
	f.applied.Restarts++
	f.backoff()
	return err
}

// observe acknowledges a generation that changed nothing for the container (on_fail for example).
func (f *function) observe(want api.Function, img image.Image) {
	f.update(func(v *view) {
		v.status.ObservedGeneration, v.status.ObservedRestart = want.Generation, want.Spec.Restart
		v.status.Image = img.Digest
	})
}

func (f *function) saveApplied() error {
	b, err := json.Marshal(f.applied)
	if err != nil {
		return err
	}
	tmp := f.path("applied.json.new")
	if err := os.WriteFile(tmp, b, 0o600); err != nil {
		return err
	}
	return os.Rename(tmp, f.path("applied.json"))
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

// remove takes the function apart, from the container to its directories.
func (f *function) remove(ctx context.Context) error {
	f.down(ctx)
	if f.have == container.Running {
		f.have = container.Stopped
		if err := f.a.Runtime.Stop(ctx, f.name, stopGrace); err != nil {
			return err
		}
	}
	f.have = ""
	if err := f.a.Runtime.Delete(ctx, f.name); err != nil {
		return err
	}
	if err := f.awaited(ctx); err != nil {
		return err
	}
	f.applied = applied{}
	return f.detach(ctx)
}
