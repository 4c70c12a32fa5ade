package agent

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
	"slices"
	"sync"
	"time"

	"weir.dev/weir/api"
	"weir.dev/weir/image"
)

// A function that is placed on another host takes its state there. When the new instance is up, and before frames go there, its agent asks the manager for the state, which
// asks the agent of the former host. That one exports then, from the instance that goes on forwarding: so the state is new, and the manager keeps nothing of it. A function
// that has to go before it is asked (no rule leads to it) leaves its state in its agent's memory, for a while. So does one that was asked: its function may come back before the
// manager has heard that it was up elsewhere. Then its former host is the host itself, and the state is taken from that memory.

// Bounds of states that move between hosts.
const (
	fetchFor    = 15 * time.Second // from the question until the state is here. It can be waited for in vain so long
	fetchAtOnce = 4
	fetchOfOne  = 2 // former host: one that hangs leaves the others' functions their places
	giveAtOnce  = 8
	leftFor     = 3 * time.Minute  // that a function's state is kept when it is gone
	leftBytes   = 2 * api.MaxState // of all functions that are gone
	leftMost    = 1000             // functions
)

// fetch gives an instance the state of the one on the function's former host, once after a move.
func (f *function) fetch(ctx context.Context, want api.Function, img image.Image) {
	if !f.moves(want) {
		return
	}
	f.applied.Came = want.Placement.Since // also if the instance dies of it: not again
	own, kept := f.a.left.take(f.uid, time.Now())
	if len(img.Contract.Import) > 0 {
		state, err := own.state, own.err
		switch former := want.Placement.FormerHost; {
		case former != f.a.Host:
			state, err = f.a.stateOf(ctx, f.name, former)
		case !kept:
			err = f.a.nothing(f.name)
		}
		if err == nil && state != nil {
			err = f.bring(ctx, f.container(), img, state)
		}
		if ctx.Err() != nil {
			return // the next agent does it
		}
		f.lost(err)
	}
	f.came()
}

// arrived notes a move that changed nothing: the function was to go, and has come back before it went.
func (f *function) arrived(want api.Function) {
	if f.moves(want) {
		f.applied.Came = want.Placement.Since
		f.came()
	}
}

// moves tells whether the function has come from another host, or back from one where it was not up, and its state was not asked for.
func (f *function) moves(want api.Function) bool {
	p := want.Placement
	return p != nil && p.FormerHost != "" && !p.Since.Equal(f.applied.Came)
}

func (f *function) came() {
	if err := f.saveApplied(); err != nil {
		f.a.Log.Warn("note that a function has come from another host", "function", f.name, "error", err)
	}
}

// stateOf fetches the state of a function from its former host.
func (a *Agent) stateOf(ctx context.Context, function, former string) ([]byte, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, fetchFor, fmt.Errorf("its former host has not given it within %v", fetchFor))
	defer cancel()
	leave, err := a.fetches.enter(ctx, former)
	if err != nil {
		return nil, err
	}
	defer leave()
	return a.API.FunctionState(ctx, function)
}

// fetches bounds the states that are fetched at a time: fetchAtOnce, and fetchOfOne of one former host.
type fetches struct {
	all chan struct{}

	mu sync.Mutex
	by map[string]*fetchesOf
}

// fetchesOf are those of one former host.
type fetchesOf struct {
	places chan struct{}
	users  int // that have a place, or wait for one
}

func newFetches() *fetches {
	return &fetches{all: make(chan struct{}, fetchAtOnce), by: map[string]*fetchesOf{}}
}

// enter waits for a place of a former host, then for one of all; leave ends it.
func (f *fetches) enter(ctx context.Context, former string) (leave func(), err error) {
	f.mu.Lock()
	of := f.by[former]
	if of == nil {
		of = &fetchesOf{places: make(chan struct{}, fetchOfOne)}
		f.by[former] = of
	}
	of.users++
	f.mu.Unlock()
	gone := func() {
		f.mu.Lock()
		defer f.mu.Unlock()
		if of.users--; of.users == 0 {
			delete(f.by, former)
		}
	}
	select {
	case of.places <- struct{}{}:
	case <-ctx.Done():
		gone()
		return nil, context.Cause(ctx)
	}
	select {
	case f.all <- struct{}{}:
	case <-ctx.Done():
		<-of.places
		gone()
		return nil, context.Cause(ctx)
	}
	return func() { <-f.all; <-of.places; gone() }, nil
}

// question asks a function's goroutine for the state of its instance.
type question struct {
	ctx    context.Context
	answer chan handed // with room for it
}

// handed is a state, nil if there is none, or why it is not known.
type handed struct {
	state []byte
	err   error
}

// answer who asks for the state.
func (f *function) answer(ctx context.Context, q question) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(q.ctx, cancel)()
	var h handed
	if f.lacks { // then that of the instance before it, if this host has it
		var kept bool
		if h, kept = f.a.left.give(f.uid, time.Now()); !kept {
			h.err = f.a.nothing(f.name)
		}
		q.answer <- h
		return
	}
	h.state, h.err = f.export(ctx)
	if h.err == nil {
		f.handed = true
		f.a.left.put(f.uid, h, true, time.Now()) // the function may come back
	}
	q.answer <- h
}

// leave keeps the state of a function that goes because it was placed elsewhere, if nobody has asked for it yet. It may be placed here again by now.
func (f *function) leave(ctx context.Context) {
	if f.handed || f.lacks || !f.a.intent.placed(f.name, f.uid) {
		return
	}
	var h handed
	h.state, h.err = f.export(ctx)
	f.a.left.put(f.uid, h, false, time.Now())
	f.handed = true
}

// placed tells whether a function is placed on a host now.
func (i *intent) placed(function, uid string) bool {
	i.mu.Lock()
	defer i.mu.Unlock()
	f, ok := i.now.functions[function]
	return ok && f.UID == uid && f.Deleting == nil && f.At() != ""
}

// State is that of a function with a UID that moves to another host, and its length; nil: it has none. The caller closes it.
func (a *Agent) State(ctx context.Context, function, uid string) (io.ReadCloser, int64, error) {
	select {
	case a.gives <- struct{}{}:
	case <-ctx.Done():
		return nil, 0, ctx.Err()
	}
	given := sync.OnceFunc(func() { <-a.gives })
	h := a.state(ctx, function, uid)
	if h.err != nil || h.state == nil {
		given()
		return nil, 0, h.err
	}
	return stateReader{bytes.NewReader(h.state), given}, int64(len(h.state)), nil
}

// stateReader holds a place until it is closed.
type stateReader struct {
	*bytes.Reader
	given func()
}

func (r stateReader) Close() error { r.given(); return nil }

func (a *Agent) state(ctx context.Context, function, uid string) handed {
	a.mu.Lock()
	f := a.functions[function]
	a.mu.Unlock()
	if f != nil && f.uid == uid {
		q := question{ctx, make(chan handed, 1)}
		select {
		case f.asked <- q:
			return <-q.answer // which comes within ctx
		case <-f.over:
		case <-ctx.Done():
			return handed{err: ctx.Err()}
		}
	}
	if h, ok := a.left.give(uid, time.Now()); ok {
		return h
	}
	return handed{err: a.nothing(function)}
}

// nothing is the answer of a host that has no state of a function.
func (a *Agent) nothing(function string) error {
	return api.Refuse(http.StatusConflict, fmt.Sprintf("host %s has nothing of function %s any more", a.Host, function))
}

// left are the states of functions that are gone, and of those that gave theirs to another host, the oldest first.
type left struct {
	mu    sync.Mutex
	all   []leftState
	bytes int
}

type leftState struct {
	handed
	uid   string
	given bool // another host has it
	at    time.Time
}

// put keeps a state in place of an earlier one. If there is no room, those go first that another host has, then the oldest.
func (l *left) put(uid string, h handed, given bool, now time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if i := l.find(uid, now); i >= 0 {
		l.drop(i)
	}
	l.all = append(l.all, leftState{h, uid, given, now})
	l.bytes += len(h.state)
	for l.bytes > leftBytes || len(l.all) > leftMost {
		l.drop(max(slices.IndexFunc(l.all, func(s leftState) bool { return s.given }), 0))
	}
	time.AfterFunc(leftFor, func() { l.take("", time.Now()) })
}

// take gives a state and forgets it, and all that are too old.
func (l *left) take(uid string, now time.Time) (handed, bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	i := l.find(uid, now)
	if i < 0 {
		return handed{}, false
	}
	h := l.all[i].handed
	l.drop(i)
	return h, true
}

// give gives a state to another host. It stays until it is too old: the function may come back.
func (l *left) give(uid string, now time.Time) (handed, bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	i := l.find(uid, now)
	if i < 0 {
		return handed{}, false
	}
	l.all[i].given = true
	return l.all[i].handed, true
}

// find is where a state is, -1: nowhere. What is too old goes first.
func (l *left) find(uid string, now time.Time) int {
	for len(l.all) > 0 && now.Sub(l.all[0].at) >= leftFor {
		l.drop(0)
	}
	return slices.IndexFunc(l.all, func(s leftState) bool { return s.uid == uid })
}

func (l *left) drop(i int) {
	l.bytes -= len(l.all[i].state)
	l.all = slices.Delete(l.all, i, i+1)
}
