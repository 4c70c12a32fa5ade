package ebpf

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"weir.dev/weir/datapath/internal/hostlink"
	"weir.dev/weir/netns"
)

// quietTime is how long ports must be left alone before tcx links replace their filters.
const quietTime = 300 * time.Millisecond

// promoteAll replaces tc filters by tcx links, which are quicker per packet but take the kernel some 10 ms each to attach, with its
// lock on all links held. So it waits until nobody makes or removes ports, and takes one port at a time.
func (s *Switch) promoteAll(ctx context.Context) {
	t := time.NewTimer(0)
	defer t.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-s.wake: // a port was made
		case <-t.C:
		}
		for ctx.Err() == nil && s.promoteNext(false) {
		}
		if s.promotes() { // it is not quiet yet
			t.Reset(quietTime / 2)
		}
	}
}

// promotes reports whether ports are waiting for their tcx links.
func (s *Switch) promotes() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return !s.closed && len(s.todo) > 0
}

// Settle replaces all tc filters by tcx links now, for those who are about to measure.
func (s *Switch) Settle(ctx context.Context) error {
	for s.promoteNext(true) {
		if err := ctx.Err(); err != nil {
			return err
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.state.Hook == HookAuto && len(s.todo) > 0 {
		return fmt.Errorf("%d ports still have tc filters", len(s.todo))
	}
	return nil
}

// promoteNext takes one port. False: nothing to do now.
func (s *Switch) promoteNext(hurry bool) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed || s.state.Hook != HookAuto || !hurry && time.Since(s.touched) < quietTime {
		return false
	}
	for slot := range s.todo {
		delete(s.todo, slot)
		p := s.ports[slot]
		if p == nil {
			continue
		}
		if err := s.promotePort(p); err != nil && !errors.Is(err, unix.ENODEV) {
			s.log.Warn("port keeps its tc filters", "port", p.Name, "error", err)
		}
		return true
	}
	return false
}

// promotePort: the tcx link comes first, so that at no time a frame finds none. What both see, the filter's program leaves alone.
func (s *Switch) promotePort(p *port) error {
	for _, at := range s.outer(p) {
		if err := promote(at, s.home, s.nl); err != nil {
			return err
		}
	}
	fn := s.fns[p.functionName()]
	if fn == nil || fn.F.Forwarder == "" || !netns.Exists(fn.F.Netns) {
		return nil
	}
	return hostlink.In(fn.F.Netns, func(space *netns.Space, nl *netlink.Handle) error { return promote(s.inner(p), space, nl) })
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
