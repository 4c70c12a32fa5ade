package ebpf

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"weir.dev/weir/datapath/internal/home"
	"weir.dev/weir/datapath/internal/hostlink"
	"weir.dev/weir/datapath/internal/lifecycle"
	"weir.dev/weir/netns"
)

// quietTime is how long ports must be left alone before tcx links replace their filters.
const quietTime = 300 * time.Millisecond

// waiting are ports whose filters tcx links may replace when it is quiet.
type waiting struct {
	slots   map[uint16]bool
	touched time.Time     // last change of ports
	wake    chan struct{} // a port has come
}

func newWaiting() *waiting {
	return &waiting{slots: map[uint16]bool{}, wake: make(chan struct{}, 1)}
}

// add a port that was made just now.
func (w *waiting) add(slot uint16) {
	w.slots[slot] = true
	w.touch()
	select {
	case w.wake <- struct{}{}:
	default:
	}
}

// touch: ports change just now.
func (w *waiting) touch() { w.touched = time.Now() }

func (w *waiting) quiet() bool { return time.Since(w.touched) >= quietTime }

// promoter replaces tc filters by tcx links, which are quicker per packet but take the kernel some 10 ms each to attach, with its
// lock on all links held. So it waits until nobody makes or removes ports, and takes one port at a time.
type promoter struct {
	gate    *lifecycle.Gate
	home    *home.Home
	ports   *ports
	hooks   *hooks
	waiting *waiting
}

// run until ctx ends.
func (r *promoter) run(ctx context.Context) {
	t := time.NewTimer(0)
	defer t.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-r.waiting.wake:
		case <-t.C:
		}
		for ctx.Err() == nil && r.next(false) {
		}
		if r.left() > 0 { // it is not quiet yet
			t.Reset(quietTime / 2)
		}
	}
}

// left are the ports that still have filters.
func (r *promoter) left() int {
	r.gate.Lock()
	defer r.gate.Unlock()
	if r.gate.Closed() || r.hooks.tables.state.Hook != HookAuto {
		return 0
	}
	return len(r.waiting.slots)
}

// Settle replaces all tc filters by tcx links now, for those who are about to measure.
func (s *Switch) Settle(ctx context.Context) error {
	for s.promoter.next(true) {
		if err := ctx.Err(); err != nil {
			return err
		}
	}
	if n := s.promoter.left(); n > 0 {
		return fmt.Errorf("%d ports still have tc filters", n)
	}
	return nil
}

// next takes one port. False: nothing to do now.
func (r *promoter) next(hurry bool) bool {
	r.gate.Lock()
	defer r.gate.Unlock()
	if r.gate.Closed() || r.hooks.tables.state.Hook != HookAuto || !hurry && !r.waiting.quiet() {
		return false
	}
	for slot := range r.waiting.slots {
		delete(r.waiting.slots, slot)
		p := r.ports.bySlot[slot]
		if p == nil {
			continue
		}
		if err := r.port(p); err != nil && !errors.Is(err, unix.ENODEV) {
			r.home.Log.Warn("port keeps its tc filters", "port", p.Name, "error", err)
		}
		return true
	}
	return false
}

// port: the tcx link comes first, so that at no time a frame finds none. What both see, the filter's program leaves alone.
func (r *promoter) port(p *port) error {
	for _, at := range r.hooks.outer(p) {
		if err := promote(at, r.home.Space, r.home.NL); err != nil {
			return err
		}
	}
	fn := r.ports.fns[p.functionName()]
	if fn == nil || fn.F.Forwarder == "" || !netns.Exists(fn.F.Netns) {
		return nil
	}
	return hostlink.In(fn.F.Netns, func(space *netns.Space, nl *netlink.Handle) error { return promote(r.hooks.inner(p), space, nl) })
}

func promote(at spot, space *netns.Space, nl *netlink.Handle) error {
	linked, err := at.linked()
	if err == nil && !linked {
		err = space.Do(at.attachTCX)
	}
	if err == nil {
		err = at.side().Drop(nl) // the qdisc stays: removing it would drop frames
	}
	return err
}
