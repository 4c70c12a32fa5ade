package control

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
	"time"

	"weir.dev/weir/api"
	"weir.dev/weir/openflow"
)

// helloEPerm is OFPHFC_EPERM (OpenFlow 1.3.5, 7.4.4.1).
const helloEPerm openflow.ErrorCode = 0<<16 | 1

// listen accepts switches. Whatever a peer says concerns its own connection only.
func (l *loop) listen(ctx context.Context) error {
	stop := context.AfterFunc(ctx, func() { l.o.Listener.Close() })
	defer stop()
	var wg sync.WaitGroup
	defer wg.Wait()
	room := make(chan struct{}, l.o.MaxSwitches)
	wait := 5 * time.Millisecond
	for {
		nc, err := l.o.Listener.Accept()
		if ctx.Err() != nil {
			if err == nil {
				nc.Close()
			}
			return nil
		}
		if err != nil { // out of file descriptors, for example: it may get better
			var timeout net.Error
			if errors.Is(err, net.ErrClosed) {
				return err
			}
			if !errors.As(err, &timeout) {
				l.log.Warn("accept", "error", err)
			}
			select {
			case <-ctx.Done():
			case <-time.After(wait):
			}
			wait = min(2*wait, time.Second)
			continue
		}
		wait = 5 * time.Millisecond
		select {
		case room <- struct{}{}:
		default:
			nc.Close()
			post(ctx, l.events, func(l *loop) {
				if l.damp("full") {
					l.event(api.Error, "SwitchRefused", "", "", fmt.Sprintf("%d switches are connected, no more are taken", l.o.MaxSwitches), 0)
				}
			})
			continue
		}
		wg.Go(func() {
			defer func() { <-room }()
			l.attend(ctx, nc)
		})
	}
}

// attend serves one connection from its first to its last byte.
func (l *loop) attend(ctx context.Context, nc net.Conn) {
	s, err := open(ctx, nc, l.generation, l.log)
	if err != nil {
		if ctx.Err() == nil {
			post(ctx, l.events, func(l *loop) { l.refusedPeer(nc.RemoteAddr(), err) })
		}
		return
	}
	stop := context.AfterFunc(ctx, func() { s.conn.Close() })
	defer stop()
	defer s.conn.Close()
	for {
		verdict := make(chan *session, 1)
		post(ctx, l.events, func(l *loop) { verdict <- l.admit(s) })
		select {
		case <-ctx.Done():
			return
		case other := <-verdict:
			if other == nil {
				s.serve(ctx, l.events, l.o.Now)
				return
			}
			if l.alive(ctx, other) {
				post(ctx, l.events, func(l *loop) { l.duplicate(s, other) })
				_ = s.conn.Send(ctx, &openflow.Error{Code: helloEPerm, Data: []byte("duplicate datapath id")})
				return
			}
			other.conn.Close()
			<-other.conn.Done()
			post(ctx, l.events, func(l *loop) { l.disconnected(other) })
		}
	}
}

// alive asks a switch whether it is still there.
func (l *loop) alive(ctx context.Context, s *session) bool {
	ctx, cancel := context.WithTimeout(ctx, aliveTimeout)
	defer cancel()
	return s.conn.Barrier(ctx) == nil
}

// refusedPeer tells of a peer that did not become a switch.
func (l *loop) refusedPeer(peer net.Addr, err error) {
	address, _, _ := net.SplitHostPort(peer.String())
	reason, message := "SwitchRefused", fmt.Sprintf("what connected from %s is no switch that can be controlled: %v", address, err)
	var version *openflow.VersionError
	if errors.As(err, &version) {
		message = fmt.Sprintf("the switch at %s does not speak OpenFlow 1.3: %v; enable it there (Open vSwitch: protocols=OpenFlow13)", address, err)
	}
	if l.damp("peer " + address) {
		l.event(api.Warning, reason, "", "", message, 0)
	}
}

func (l *loop) duplicate(s, first *session) {
	d := l.switches[s.dpid]
	if d == nil || !l.damp(fmt.Sprintf("duplicate %016x %s", s.dpid, host(s.address))) {
		return
	}
	l.event(api.Error, "SwitchRefused", api.KindSwitch, d.name, fmt.Sprintf("a switch at %s has the datapath id %016x of %s at %s, which is connected: give it another one",
		s.address, s.dpid, d.name, first.address), 0)
}

func host(address string) string {
	h, _, err := net.SplitHostPort(address)
	if err != nil {
		return address
	}
	return h
}
