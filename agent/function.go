package agent

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"weir.dev/weir/agent/events"
	"weir.dev/weir/agent/health"
	"weir.dev/weir/agent/ipfix"
	"weir.dev/weir/agent/metrics"
	"weir.dev/weir/agent/sandbox"
	"weir.dev/weir/agent/settle"
	"weir.dev/weir/agent/socket"
	"weir.dev/weir/agent/xdp"
	"weir.dev/weir/api"
	"weir.dev/weir/container"
	"weir.dev/weir/datapath"
	"weir.dev/weir/flow"
	"weir.dev/weir/image"
)

// function is one network function on this host and the goroutine that looks after it.
// It lives as long as one life (UID) of the record; another function of the same name waits for its end.
type function struct {
	a     *Agent
	name  string
	uid   string
	wake  chan struct{}
	ended atomic.Bool   // the goroutine has taken everything down and is gone
	asked chan question // for the state
	over  chan struct{} // closed when the goroutine is gone, for whatever reason

	turn     uint32       // spreads probes over the rounds
	kernel   atomic.Bool  // the switch's own program forwards for it
	steered  atomic.Bool  // rules in force lead to it
	probing  atomic.Bool  // up, and a probe can tell
	suspect  atomic.Bool  // the last probe did not come through
	forwards atomic.Bool  // up, should hand frames on, and no probe can tell whether it does
	unsure   atomic.Bool  // a link of it went: what is attached has to be looked at
	rtt      atomic.Int64 // as reported, ns

	mu       sync.Mutex
	want     api.Function
	forgot   bool      // the record is gone, or another host's
	released bool      // no rule names the ports any more
	left     time.Time // since when it is forgotten
	keptTold bool      // that it is forgotten and still here
	seen     view
	adopted  int                // PID that ran when this agent started, 0 none
	links    [flow.Sides]string // the switch-side links it may have
	cid      string             // id of its container, "" none
	homes    map[string]home    // of instances that may settle flows or hand over AF_XDP sockets, by the switch's name
	metrics  *metrics.Server    // nil: not listening
	starting *starting          // nil: no container is being made
	place    string             // what the switch's name of it has behind its own: "" or second

	// Owned by the goroutine.
	have      container.State // "" no container
	applied   applied
	waiting   bool // a goroutine waits for the container's exit
	exits     chan container.Status
	ready     prepared
	attached  attachment
	box       sandbox.Box    // where it runs, or will
	last      int            // number of the last sandbox
	litter    bool           // there may be other sandboxes
	former    []string       // containers that the present one has replaced
	mtu       int            // of its ports
	events    *socket.HTTP   // nil: not listening
	settler   *settle.Server // nil: not listening
	xdp       *xdp.Server    // the same
	exports   *ipfix.Relay   // nil: not listening
	alive     bool           // the data plane was told Up
	crashes   int
	early     int       // ends in a row before it was up
	notBefore time.Time // of the next start
	started   time.Time // its process
	hungAt    time.Time // when it hung last
	told      time.Time // the start, or the hang, of which the status says what it waits for
	died      time.Time // start of the present outage; zero if none
	deaths    int       // in it
	since     time.Time // it is up
	windows   health.Windows
	failed    attempt // what crashes counts the failures of
	behind    bool    // it runs as it was before the change that is wanted now
	lone      bool    // the switch has no other instance of it
	order     *order  // a config that it was told to take and has not answered; nil: none
	unheard   string  // the hash of one that it gave no answer to
	carried   []byte  // state for the next instance; nil: none
	handed    bool    // its new host has its state, or it is kept for that
	lacks     bool    // it has come from another host, and its state has not
}

// prepared is what a generation of the spec came to; while its container runs nothing of it is looked at again.
type prepared struct {
	uid        string
	generation int64
	image      image.Image
	spec       container.Spec
	hash       string
	basis      string // hash without the config
}

// view is what the rest of the agent may know of a function.
type view struct {
	status api.FunctionStatus
	ports  datapath.Ports
	placed bool // the ports exist in the switch
	tap    bool
	onFail api.OnFail
	wasUp  bool           // it was up since its ports exist
	former datapath.Ports // of the instance before: frames may be in it still
	// Whether the instance is a virtual machine, and whether the one before was.
	machine, wasMachine bool
	moving              int64 // the generation that is reported until rules lead to the instance in force; 0: they do
}

func newFunction(a *Agent, name, uid string, existing map[string]container.Status) *function {
	f := &function{a: a, name: name, uid: uid, turn: a.turns.Add(1), wake: make(chan struct{}, 1), exits: make(chan container.Status, 1), asked: make(chan question), over: make(chan struct{})}
	boxes, err := a.boxes.Find(name)
	if err != nil {
		a.Log.Warn("find sandboxes", "function", name, "error", err)
	}
	f.last = a.lateOf(name)
	if len(boxes) > 0 {
		f.last, f.litter = max(f.last, boxes[len(boxes)-1].N), true
	}
	if c, ok := existing[name]; ok {
		f.cid = c.ID
		_, n := sandbox.Of(c.ID)
		f.last = max(f.last, n)
		if i := slices.IndexFunc(boxes, func(b sandbox.Box) bool { return b.N == n }); i >= 0 {
			f.enterBox(boxes[i])
		}
		f.have = c.State
		f.seen.status.PID, f.seen.status.Limits = c.PID, limitsOf(c)
		a.ranBy(&f.seen, c.ID)
		if c.State == container.Running {
			f.adopted = c.PID
		}
		f.started = c.Started
		if b, err := os.ReadFile(f.path("applied.json")); err == nil {
			_ = json.Unmarshal(b, &f.applied) // unreadable: the hash differs and the container is made anew
			if f.applied.Second {
				f.place = second
			}
		}
	}
	return f
}

func (f *function) path(elem ...string) string {
	return filepath.Join(append([]string{f.a.Instance.Run, "functions", f.name}, elem...)...)
}

// netns is where users find the network namespace: a symbolic link to the sandbox's.
func (f *function) netns() string { return filepath.Join(f.a.Instance.NetnsDir(), f.name) }

// container is the id of the function's container; without one the function's name, which no container has.
func (f *function) container() string {
	f.mu.Lock()
	defer f.mu.Unlock()
	return cmp.Or(f.cid, f.name)
}

func (f *function) setContainer(id string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.cid = id
}

// has tells whether a switch-side link is the function's.
func (f *function) hasLink(name string) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.Contains(f.links[:], name)
}

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
	f.cancelUnwanted()
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
		f.cancelUnwanted()
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
	told := after.status
	if after.moving != 0 {
		told.ObservedGeneration = after.moving
	}
	if !forgot && !found { // else it is another host's to tell, or what was said of it before this agent's start still holds
		f.a.report.Function(f.name, uid, told) // which tells news from old
	}
	if after.placed != before.placed || after.ports != before.ports || after.wasUp != before.wasUp || after.status.Healthy != before.status.Healthy {
		f.a.poke()
	}
}

// run looks after the function until it is gone or ctx ends; then everything stays as it is.
func (f *function) run(ctx context.Context) {
	defer close(f.over)
	defer f.stopSockets()
	timer := time.NewTimer(0)
	defer timer.Stop()
	f.mu.Lock()
	f.lacks = !f.forgot && f.moves(f.want)
	f.mu.Unlock()
	for {
		select {
		case <-ctx.Done():
			return
		case <-f.wake:
		case c := <-f.exits:
			f.exited(ctx, c)
		case q := <-f.asked:
			f.answer(ctx, q)
			continue
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
			f.lacks = !f.alive && f.moves(want)
			if errors.Is(err, errNotWanted) {
				timer.Reset(0)
				continue
			}
			if err == nil && (f.alive || f.have != container.Running) { // not while a start is under way: traffic waits for that
				err = f.collect(ctx)
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
		f.leave(ctx)
		if err := f.remove(ctx); err != nil {
			f.fail(want, err)
			timer.Reset(retryAfter)
			continue
		}
		f.update(func(v *view) {
			v.placed, v.ports = false, datapath.Ports{}
			v.status = api.FunctionStatus{State: api.FunctionDeleted, ObservedGeneration: want.Generation}
		})
		f.stopSockets()
		f.ended.Store(true)
		f.a.poke() // a successor may be waiting
		return
	}
}

func (f *function) fail(want api.Function, err error) {
	pulling := errors.Is(err, image.ErrPulling)
	if !pulling {
		f.a.Log.Warn("function", "function", f.name, "error", err)
	}
	idle := f.have == "" || f.have != container.Running && desired(want) == api.FunctionStarted // else it is as it was, the former generation maybe
	f.update(func(v *view) {
		if v.status.State == "" || v.status.State == api.FunctionPending || idle {
			v.status.State = api.FunctionFailed
			if pulling {
				v.status.State = api.FunctionPending
			}
		}
		now := api.Condition{Type: api.ConditionOutdated, Reason: api.ReasonError, Message: err.Error()}
		if errors.Is(err, container.ErrMissing) {
			now.Reason = api.ReasonRuntime
		}
		switch {
		case v.status.State == api.FunctionFailed:
			now.Type = api.ConditionFailed
		case pulling && idle:
			now.Type, now.Reason = api.ConditionWaiting, api.ReasonWaiting
		}
		v.status.Say(now)
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
	// The image and the container's spec are prepared anew only if the function has changed.
	anew := f.have != container.Running || f.ready.uid != want.UID || f.ready.generation != want.Generation
	if anew {
		img, spec, err := f.prepare(ctx, want)
		if err != nil {
			f.ready = prepared{}
			return retryAfter, err
		}
		f.ready = prepared{uid: want.UID, generation: want.Generation, image: img, spec: spec, hash: fingerprint(spec), basis: basis(spec)}
	}
	if err := f.resize(); err != nil {
		return retryAfter, err
	}
	// An instance that no longer fits: a new one is made beside it, or it ends first.
	img, spec := f.ready.image, f.ready.spec
	desired := desired(want)
	stale := (f.have == container.Running || f.have == container.Created) &&
		(f.applied.Hash != f.ready.hash || f.applied.Restart != want.Spec.Restart || !f.a.boxes.Whole(f.box))
	if f.behind && !stale { // what did not come up is not wanted any more
		f.behind = false
		f.update(func(v *view) { v.status.Say() })
	}
	if desired == api.FunctionStarted && (stale || f.order != nil) {
		if taken, wait, err := f.reload(ctx, want); taken {
			return wait, err
		}
	}
	if stale && desired == api.FunctionStarted && f.overlaps(img) {
		if wait, err := f.change(ctx, want); f.behind || err != nil {
			return wait, err
		}
		stale, anew = false, false
	}
	switch {
	case desired == api.FunctionStopped && f.have != "" && f.have != container.Stopped,
		desired == api.FunctionCreated && f.have == container.Running,
		stale:
		if stale && desired == api.FunctionStarted {
			f.carry(ctx)
		}
		if err := f.halt(ctx, "stopped on request"); err != nil {
			return retryAfter, err
		}
		f.crashes, f.early, f.notBefore = 0, 0, time.Time{}
		anew = true
	}
	if anew { // after the former container's end: the switch does nothing for the new one in the former one's sandbox
		if err := f.attach(ctx, want, img); err != nil {
			f.ready = prepared{}
			return retryAfter, err
		}
	}
	// A function that is stopped or only created is done here.
	switch desired {
	case api.FunctionStopped:
		f.settle(want, img, api.FunctionStopped)
		return resync, nil
	case api.FunctionCreated:
		if f.have != container.Created {
			if err := f.make(ctx, want, spec, f.a.Runtime.Create, container.Created); err != nil {
				return min(f.backoff(), retryAfter), err
			}
		}
		f.settle(want, img, api.FunctionCreated)
		return resync, nil
	}
	// A function that is to run waits for its backoff, then is started, or its start is followed.
	f.afresh(attempt{want.UID, want.Generation, img.Digest})
	if wait := time.Until(f.notBefore); wait > 0 && f.have != container.Running {
		return min(wait, retryAfter), nil // the image may be replaced meanwhile
	}
	switch f.have {
	case container.Running:
		f.await(ctx)
	case container.Created:
		if err := f.start(ctx); err != nil {
			return min(f.backoff(), retryAfter), err
		}
	default:
		if err := f.make(ctx, want, spec, f.a.Runtime.Run, container.Running); err != nil {
			return min(f.backoff(), retryAfter), err
		}
	}
	// Its health says when to look again.
	wait, err := f.watchHealth(ctx, want, img)
	return min(wait, f.recovered()), err
}

// attempt is what a start tries.
type attempt struct {
	uid        string
	generation int64
	image      string // its digest
}

// afresh starts what has changed since it failed without delay: whoever mended it does not wait out the failures of before.
func (f *function) afresh(now attempt) {
	if f.failed != now {
		f.failed = now
		f.crashes, f.early, f.notBefore = 0, 0, time.Time{}
	}
}

// settle reports a state that needs no watching.
func (f *function) settle(want api.Function, img image.Image, s api.FunctionState) {
	f.update(func(v *view) {
		v.wasUp = true // what follows is decided by on_fail
		v.status.State, v.status.Healthy = s, false
		v.status.Say()
		v.status.ObservedGeneration, v.status.ObservedRestart = want.Generation, want.Spec.Restart
		v.status.Image = img.Digest
		if s == api.FunctionStopped {
			v.status.PID = 0
		}
	})
}

// remove takes the function apart, from the container to its directories.
func (f *function) remove(ctx context.Context) error {
	f.down(ctx)
	if f.have == container.Running {
		f.have = container.Stopped
		if err := f.a.Runtime.Stop(ctx, f.container(), stopGrace); err != nil {
			return err
		}
	}
	f.have = ""
	for _, id := range append(f.former, f.container()) {
		if err := f.a.Runtime.Delete(ctx, id); err != nil {
			return err
		}
	}
	f.former = nil
	f.setContainer("")
	if err := f.awaited(ctx); err != nil {
		return err
	}
	f.applied = applied{}
	if err := f.a.secrets.Remove(f.name); err != nil {
		return err
	}
	return f.detach(ctx)
}

// event raises an event of the agent about the function.
func (f *function) event(s api.Severity, reason, message string, outage time.Duration) {
	f.a.report.Event(api.Event{Severity: s, Reason: reason, Kind: api.KindFunction, Object: f.name, Message: message, OutageNs: outage.Nanoseconds()})
}

// serve listens where the container finds /run/weir/events.sock and metrics.sock. Listening already: nothing to do. A socket that cannot be made is logged, since a
// function works without.
func (f *function) serve() {
	var err error
	if f.events == nil {
		if f.events, err = events.Serve(f.path("events.new"), f.path("run", "events.sock"), f.name, f.a.report.Event); err != nil {
			f.a.Log.Warn("event socket", "function", f.name, "error", err)
		}
	}
	if f.numbers() != nil {
		return
	}
	m, err := metrics.Serve(f.path("metrics.new"), f.path("run", "metrics.sock"))
	if err != nil {
		f.a.Log.Warn("socket for metrics", "function", f.name, "error", err)
		return
	}
	f.setNumbers(m)
}

// sendFlows listens where the container finds /run/weir/ipfix.sock, or does not. A socket that cannot be made is logged, since a function works without.
func (f *function) sendFlows(does bool) {
	if !does {
		f.exports.Close()
		f.exports = nil
		return
	}
	if f.exports != nil {
		return
	}
	var err error
	if f.exports, err = ipfix.Serve(f.path("ipfix.new"), f.path("run", "ipfix.sock"), f.a.Collector, f.a.Log.With("function", f.name)); err != nil {
		f.a.Log.Warn("socket for flow records", "function", f.name, "error", err)
	}
}

// numbers is where the function tells its numbers; nil: nowhere.
func (f *function) numbers() *metrics.Server {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.metrics
}

func (f *function) setNumbers(m *metrics.Server) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.metrics = m
}

// stopSockets ends what the function may say.
func (f *function) stopSockets() {
	f.events.Close()
	f.settler.Close()
	f.xdp.Close()
	f.exports.Close()
	f.numbers().Close()
	f.events, f.settler, f.xdp, f.exports = nil, nil, nil, nil
	f.setNumbers(nil)
}
