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
// that has to go before it is asked (no rule leads to it) leaves its state in its agent's memory, for a while.

// Bounds of states that move between hosts.
const (
	fetchFor    = 15 * time.Second // from the question until the state is here. It can be waited for in vain so long
	fetchAtOnce = 4
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
	if len(img.Contract.Import) > 0 {
		state, err := f.a.stateOf(ctx, f.name)
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

// moves tells whether the function has come from another host, and its state was not asked for.
func (f *function) moves(want api.Function) bool {
	p := want.Placement
	return p != nil && p.FormerHost != "" && p.FormerHost != f.a.Host && !p.Since.Equal(f.applied.Came)
}

func (f *function) came() {
	if err := f.saveApplied(); err != nil {
		f.a.Log.Warn("note that a function has come from another host", "function", f.name, "error", err)
	}
}

// stateOf fetches the state of a function from its former host.
func (a *Agent) stateOf(ctx context.Context, function string) ([]byte, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, fetchFor, fmt.Errorf("its former host has not given it within %v", fetchFor))
	defer cancel()
	select {
	case a.fetches <- struct{}{}:
		defer func() { <-a.fetches }()
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
	return a.API.FunctionState(ctx, function)
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
	h.state, h.err = f.export(ctx)
	f.handed = f.handed || h.err == nil
	q.answer <- h
}

// leave keeps the state of a function that goes because it was placed elsewhere, if nobody has asked for it yet.
func (f *function) leave(ctx context.Context) {
	if f.handed || !f.a.intent.elsewhere(f.name, f.uid, f.a.Host) {
		return
	}
	var h handed
	h.state, h.err = f.export(ctx)
	f.a.left.put(f.uid, h, time.Now())
	f.handed = true
}

// elsewhere tells whether a function is placed on another host now.
func (i *intent) elsewhere(function, uid, here string) bool {
	i.mu.Lock()
	defer i.mu.Unlock()
	f, ok := i.now.functions[function]
	return ok && f.UID == uid && f.Deleting == nil && f.At() != "" && f.At() != here
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
	if h, ok := a.left.take(uid, time.Now()); ok {
		return h
	}
	return handed{err: api.Refuse(http.StatusConflict, fmt.Sprintf("host %s has nothing of function %s any more", a.Host, function))}
}

// left are the states of functions that are gone and that their new hosts have not asked for, the oldest first.
type left struct {
	mu    sync.Mutex
	all   []leftState
	bytes int
}

type leftState struct {
	handed
	uid string
	at  time.Time
}

// put keeps a state. The oldest go if there is no room.
func (l *left) put(uid string, h handed, now time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.all = append(l.all, leftState{h, uid, now})
	l.bytes += len(h.state)
	for l.bytes > leftBytes || len(l.all) > leftMost {
		l.drop(0)
	}
	time.AfterFunc(leftFor, func() { l.take("", time.Now()) })
}

// take gives a state and forgets it, and all that are too old.
func (l *left) take(uid string, now time.Time) (handed, bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for len(l.all) > 0 && now.Sub(l.all[0].at) >= leftFor {
		l.drop(0)
	}
	i := slices.IndexFunc(l.all, func(s leftState) bool { return s.uid == uid })
	if i < 0 {
		return handed{}, false
	}
	h := l.all[i].handed
	l.drop(i)
	return h, true
}

func (l *left) drop(i int) {
	l.bytes -= len(l.all[i].state)
	l.all = slices.Delete(l.all, i, i+1)
}
