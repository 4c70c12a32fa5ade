package targets

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/net/icmp"
	xipv4 "golang.org/x/net/ipv4"
	xipv6 "golang.org/x/net/ipv6"
	"gvisor.dev/gvisor/pkg/tcpip/adapters/gonet"
	gicmp "gvisor.dev/gvisor/pkg/tcpip/transport/icmp"
	"gvisor.dev/gvisor/pkg/waiter"

	"weir.dev/weir/catalogue/nf"
	"weir.dev/weir/catalogue/nf/station"
)

// Watch tries targets and knows which are up. Its addresses are in a stack of its own at out: the kernel has none.
type Watch struct {
	o      Health
	log    *slog.Logger
	events nf.Events
	*station.Station
	targets map[Probed]*state
	changes atomic.Uint64
	steered chan struct{} // closed when there is traffic: before, no trial could come back
	begin   sync.Once
}

// state of a target. Until it was tried it is up.
type state struct {
	down  atomic.Bool
	check Check
}

// NewWatch has the addresses of h at a port with that MAC address. Run tries the targets.
func NewWatch(h Health, checks map[Probed]Check, mac net.HardwareAddr, log *slog.Logger, events nf.Events) (*Watch, error) {
	w := &Watch{o: h, log: log, events: events, targets: map[Probed]*state{}, steered: make(chan struct{})}
	for p, c := range checks {
		w.targets[p] = &state{check: c}
	}
	var err error
	w.Station, err = station.Open(mac, h.Addresses, h.Gateways)
	return w, err
}

// Up tells whether a target may be in answers.
func (w *Watch) Up(a netip.Addr, c *Check) bool {
	s := w.targets[Of(a, c)]
	return s == nil || !s.down.Load()
}

// Changes counts how often a target went down or up.
func (w *Watch) Changes() uint64 { return w.changes.Load() }

// Learn what another watch knows of targets that are tried in the same way. There is traffic if there was.
func (w *Watch) Learn(from *Watch) {
	for p, s := range w.targets {
		if was := from.targets[p]; was != nil {
			s.down.Store(was.down.Load())
		}
	}
	select {
	case <-from.steered:
		w.Start()
	default:
	}
}

// State says of each target, in the order of their names, whether it is up. Before its first trial it is.
func (w *Watch) State() (all []State) {
	for p, s := range w.targets {
		all = append(all, State{p.Address.String() + " " + p.How, !s.down.Load()})
	}
	slices.SortFunc(all, func(a, b State) int { return strings.Compare(a.Name, b.Name) })
	return all
}

// State of a target.
type State struct {
	Name string // its address, and how it is tried
	Up   bool
}

// Start trying: frames of others come to us.
func (w *Watch) Start() { w.begin.Do(func() { close(w.steered) }) }

// Steered waits until Start, or the end of ctx.
func (w *Watch) Steered(ctx context.Context) {
	select {
	case <-w.steered:
	case <-ctx.Done():
	}
}

// Run tries the targets and sends the stack's frames, until ctx ends.
func (w *Watch) Run(ctx context.Context, send func(frame []byte)) {
	var all sync.WaitGroup
	all.Go(func() { w.Station.Run(ctx, send) })
	w.Steered(ctx)
	spread := time.Duration(w.o.Interval) / time.Duration(len(w.targets)+1)
	next := time.Duration(0)
	for p, s := range w.targets {
		pause := next
		all.Go(func() { w.follow(ctx, p, s, pause) })
		next += spread
	}
	all.Wait()
	w.Close()
}

// follow a target. The first trial comes at once and decides alone; then so many in a row must agree. The second comes after a pause of its own, so
// that not all are tried at the same time.
func (w *Watch) follow(ctx context.Context, p Probed, s *state, pause time.Duration) {
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
		err := w.try(trial, p.Address, s.check)
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
		w.changes.Add(1)
		w.tell(ctx, p, err)
	}
}

func (w *Watch) tell(ctx context.Context, p Probed, err error) {
	if err == nil {
		w.log.Info("target is up", "address", p.Address, "check", p.How)
		w.events.Raise(ctx, w.log, "info", "TargetUp", fmt.Sprintf("%s is up (%s)", p.Address, p.How))
		return
	}
	w.log.Warn("target is down", "address", p.Address, "check", p.How, "error", err)
	w.events.Raise(ctx, w.log, "warning", "TargetDown", fmt.Sprintf("%s is down (%s): %v", p.Address, p.How, err))
}

func (w *Watch) try(ctx context.Context, to netip.Addr, c Check) error {
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

func (w *Watch) dial(ctx context.Context, to netip.AddrPort) (net.Conn, error) {
	return gonet.DialContextTCP(ctx, w.Stack, station.Full(to), station.Protocol(to.Addr()))
}

// Bounds of an answer by HTTP.
const (
	maxHead = 64 << 10
	maxBody = 64 << 10
)

func (w *Watch) get(ctx context.Context, to netip.Addr, c HTTP) error {
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
	req.Header.Set("User-Agent", "weir")
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
func (w *Watch) echo(ctx context.Context, to netip.Addr) error {
	transport, ask, reply := gicmp.ProtocolNumber4, icmp.Type(xipv4.ICMPTypeEcho), icmp.Type(xipv4.ICMPTypeEchoReply)
	if to.Is6() {
		transport, ask, reply = gicmp.ProtocolNumber6, xipv6.ICMPTypeEchoRequest, xipv6.ICMPTypeEchoReply
	}
	var queue waiter.Queue
	ep, failed := w.Stack.NewEndpoint(transport, station.Protocol(to), &queue)
	if failed != nil {
		return errors.New(failed.String())
	}
	conn := gonet.NewUDPConn(&queue, ep)
	defer conn.Close()
	if failed := ep.Connect(station.Full(netip.AddrPortFrom(to, 0))); failed != nil {
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
	b := make([]byte, station.MTU)
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
