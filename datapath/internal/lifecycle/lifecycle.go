// Package lifecycle lets one operation at a time into a switch until the switch is closed, and ends what the switch does in the background.
package lifecycle

import (
	"context"
	"errors"
	"sync"
)

// ErrClosed says that the switch has been closed or destroyed.
var ErrClosed = errors.New("switch is closed")

// Gate is the lock of a switch. The zero value is open.
type Gate struct {
	sync.Mutex
	closed bool
}

// Enter takes the lock for one operation; leave gives it back. ErrClosed: there are no more operations.
func (g *Gate) Enter(ctx context.Context) (leave func(), err error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	g.Lock()
	if g.closed {
		g.Unlock()
		return nil, ErrClosed
	}
	return g.Unlock, nil
}

// Shut lets no operation in any more, when the one under way has ended. False: the gate was shut before.
func (g *Gate) Shut() bool {
	g.Lock()
	defer g.Unlock()
	was := g.closed
	g.closed = true
	return !was
}

// Closed tells, under the lock, that the gate is shut.
func (g *Gate) Closed() bool { return g.closed }

// Work is what a switch does in the background.
type Work struct {
	ctx  context.Context
	stop context.CancelFunc
	done sync.WaitGroup
}

// NewWork has nothing to do yet.
func NewWork() *Work {
	w := &Work{}
	w.ctx, w.stop = context.WithCancel(context.Background())
	return w
}

// Context ends with Stop.
func (w *Work) Context() context.Context { return w.ctx }

// Go begins a piece of work, which returns soon after its ctx ends.
func (w *Work) Go(f func(ctx context.Context)) { w.done.Go(func() { f(w.ctx) }) }

// Stop ends all pieces. Safe to call twice.
func (w *Work) Stop() { w.stop() }

// Wait returns when all pieces have returned.
func (w *Work) Wait() { w.done.Wait() }
