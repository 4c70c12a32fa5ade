package main

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/net/icmp"
	xipv4 "golang.org/x/net/ipv4"
	xipv6 "golang.org/x/net/ipv6"
	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/tcpip/adapters/gonet"
	"gvisor.dev/gvisor/pkg/tcpip/header"
	"gvisor.dev/gvisor/pkg/tcpip/link/channel"
	"gvisor.dev/gvisor/pkg/tcpip/link/ethernet"
	"gvisor.dev/gvisor/pkg/tcpip/stack"
	gicmp "gvisor.dev/gvisor/pkg/tcpip/transport/icmp"
	"gvisor.dev/gvisor/pkg/waiter"

	"weir.dev/weir/catalogue/nf"
)

// watch tries targets and knows which are up. Its addresses are in a stack of its own at out: the kernel has none.
type watch struct {
	o       health
	log     *slog.Logger
	events  nf.Events
	stack   *stack.Stack
	link    *channel.Endpoint
	mac     net.HardwareAddr
	targets map[probed]*state
	steered chan struct{} // closed when there is traffic: before, no trial could come back
	begin   sync.Once
}

// state of a target. Until it was tried it is up.
type state struct {
	down  atomic.Bool
	check checking
}

func newWatch(cfg config, mac net.HardwareAddr, log *slog.Logger, events nf.Events) (*watch, error) {
	w := &watch{o: *cfg.Health, log: log, events: events, mac: mac, targets: map[probed]*state{}, steered: make(chan struct{})}
	for p, c := range cfg.checks() {
		w.targets[p] = &state{check: c}
	}
	w.link = channel.New(queued, stackMTU, tcpip.LinkAddress(mac))
	var err error
	if w.stack, err = newStack(ethernet.New(w.link), true); err != nil {
		return nil, err
	}
	var routes []tcpip.Route
	for _, p := range w.o.Addresses {
		a := tcpip.ProtocolAddress{Protocol: protocolOf(p.Addr()), AddressWithPrefix: tcpip.AddressWithPrefix{Address: address(p.Addr()), PrefixLen: p.Bits()}}
		if err := w.stack.AddProtocolAddress(nic, a, stack.AddressProperties{}); err != nil {
			return nil, fmt.Errorf("address %s: %s", p, err)
		}
		routes = append(routes, tcpip.Route{Destination: a.AddressWithPrefix.Subnet(), NIC: nic})
	}
	for _, g := range w.o.Gateways {
		everywhere := header.IPv4EmptySubnet
		if g.Is6() {
			everywhere = header.IPv6EmptySubnet
		}
		routes = append(routes, tcpip.Route{Destination: everywhere, Gateway: address(g), NIC: nic})
	}
	w.stack.SetRouteTable(routes)
	return w, nil
}

// up tells whether a target may be in answers.
func (w *watch) up(a netip.Addr, c *checking) bool {
	s := w.targets[probed{a, c.String()}]
	return s == nil || !s.down.Load()
}

// learn what another watch knows of targets that are tried in the same way. There is traffic if there was.
func (w *watch) learn(from *watch) {
	for p, s := range w.targets {
		if was := from.targets[p]; was != nil {
			s.down.Store(was.down.Load())
		}
	}
	select {
	case <-from.steered:
		w.start()
	default:
	}
}

// start trying: frames of others come to us.
func (w *watch) start() { w.begin.Do(func() { close(w.steered) }) }

// take a frame that came to out. It does not block. mine: it is for this function alone; otherwise it goes on.
func (w *watch) take(frame []byte, incomplete bool) (mine bool) {
	if len(frame) < etherLength {
		return false
	}
	mine = bytes.Equal(frame[:6], w.mac)
	kind := binary.BigEndian.Uint16(frame[macs:])
	switch {
	case mine && (kind == nf.EtherIPv4 || kind == nf.EtherIPv6 || kind == etherARP):
	case kind == etherARP && frame[0] == 0xff, kind == nf.EtherIPv6 && w.solicits(frame):
	default:
		return mine
	}
	b := bytes.Clone(frame)
	if p := nf.Decode(b); incomplete && p.Bad == "" && p.Payload > 0 {
		p.Complete(b)
	}
	inject(w.link, 0, b)
	return mine
}

// solicits tells whether a frame goes to the group of an address of ours (RFC 4291, 2.7.1).
func (w *watch) solicits(frame []byte) bool {
	for _, p := range w.o.Addresses {
		if a := p.Addr(); a.Is6() {
			b := a.As16()
			if bytes.Equal(frame[:6], []byte{0x33, 0x33, 0xff, b[13], b[14], b[15]}) {
				return true
			}
		}
	}
	return false
}

// run tries the targets and sends the stack's frames, until ctx ends.
func (w *watch) run(ctx context.Context, send func(frame []byte)) {
	var all sync.WaitGroup
	all.Go(func() { pump(ctx, w.link, send) })
	select {
	case <-w.steered:
	case <-ctx.Done():
	}
	spread := time.Duration(w.o.Interval) / time.Duration(len(w.targets)+1)
	next := time.Duration(0)
	for p, s := range w.targets {
		pause := next
		all.Go(func() { w.follow(ctx, p, s, pause) })
		next += spread
	}
	all.Wait()
	w.link.Close()
	w.stack.Close()
}

// follow a target. The first trial comes at once and decides alone; then so many in a row must agree. The second comes after a pause of its own, so
// that not all are tried at the same time.
func (w *watch) follow(ctx context.Context, p probed, s *state, pause time.Duration) {
	next := time.NewTimer(0)
	defer next.Stop()
	tried, against := false, 0
	for {
		select {
		case <-ctx.Done():
			return
		case <-next.C:
		}
		next.Reset(time.Duration(w.o.Interval) + pause)
		pause = 0
		trial, cancel := context.WithTimeout(ctx, time.Duration(w.o.Timeout))
		err := w.try(trial, p.addr, s.check)
		cancel()
		if ctx.Err() != nil {
			return
		}
		down := s.down.Load()
		if (err != nil) == down {
			tried, against = true, 0
			continue
		}
		against++
		if need := map[bool]int{true: w.o.Rise, false: w.o.Fall}[down]; tried && against < need {
			continue
		}
		tried, against = true, 0
		s.down.Store(!down)
		w.tell(ctx, p, err)
	}
}

func (w *watch) tell(ctx context.Context, p probed, err error) {
	if err == nil {
		w.log.Info("target is up", "address", p.addr, "check", p.how)
		w.events.Raise(ctx, w.log, "info", "TargetUp", fmt.Sprintf("%s is up (%s)", p.addr, p.how))
		return
	}
	w.log.Warn("target is down", "address", p.addr, "check", p.how, "error", err)
	w.events.Raise(ctx, w.log, "warning", "TargetDown", fmt.Sprintf("%s is down (%s): %v", p.addr, p.how, err))
}

func (w *watch) try(ctx context.Context, to netip.Addr, c checking) error {
	switch {
	case c.HTTP != nil:
		return w.get(ctx, to, *c.HTTP)
	case c.TCP != 0:
		conn, err := w.dial(ctx, netip.AddrPortFrom(to, c.TCP))
		if err != nil {
			return err
		}
		return conn.Close()
	}
	return w.echo(ctx, to)
}

func (w *watch) dial(ctx context.Context, to netip.AddrPort) (net.Conn, error) {
	return gonet.DialContextTCP(ctx, w.stack, full(to), protocolOf(to.Addr()))
}

// Bounds of an answer by HTTP.
const (
	maxHead = 64 << 10
	maxBody = 64 << 10
)

func (w *watch) get(ctx context.Context, to netip.Addr, c httpCheck) error {
	transport := &http.Transport{DisableKeepAlives: true, MaxResponseHeaderBytes: maxHead, DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return w.dial(ctx, netip.AddrPortFrom(to, c.Port))
	}}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+net.JoinHostPort(to.String(), strconv.Itoa(int(c.Port)))+c.Path, nil)
	if err != nil {
		return err
	}
	if c.Host != "" {
		req.Host = c.Host
	}
	req.Header.Set("User-Agent", "weir-dns-lb")
	resp, err := transport.RoundTrip(req) // no redirect is followed: it is an answer
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	_, _ = io.CopyN(io.Discard, resp.Body, maxBody)
	if resp.StatusCode < 200 || resp.StatusCode > 399 {
		return fmt.Errorf("answer %s", resp.Status)
	}
	return nil
}

// echo sends one echo request and waits for its answer.
func (w *watch) echo(ctx context.Context, to netip.Addr) error {
	transport, ask, reply := gicmp.ProtocolNumber4, icmp.Type(xipv4.ICMPTypeEcho), icmp.Type(xipv4.ICMPTypeEchoReply)
	if to.Is6() {
		transport, ask, reply = gicmp.ProtocolNumber6, xipv6.ICMPTypeEchoRequest, xipv6.ICMPTypeEchoReply
	}
	var queue waiter.Queue
	ep, failed := w.stack.NewEndpoint(transport, protocolOf(to), &queue)
	if failed != nil {
		return errors.New(failed.String())
	}
	conn := gonet.NewUDPConn(&queue, ep)
	defer conn.Close()
	if failed := ep.Connect(full(netip.AddrPortFrom(to, 0))); failed != nil {
		return errors.New(failed.String())
	}
	request, err := (&icmp.Message{Type: ask, Body: &icmp.Echo{Seq: 1, Data: []byte("weir")}}).Marshal(nil) // the stack gives it an identifier
	if err != nil {
		return err
	}
	if deadline, ok := ctx.Deadline(); ok {
		_ = conn.SetDeadline(deadline)
	}
	if _, err := conn.Write(request); err != nil {
		return err
	}
	b := make([]byte, stackMTU)
	for {
		n, err := conn.Read(b)
		if err != nil {
			return err
		}
		if m, err := icmp.ParseMessage(int(transport), b[:n]); err == nil && m.Type == reply {
			return nil
		}
	}
}
