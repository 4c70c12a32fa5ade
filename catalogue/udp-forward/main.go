// Command udp-forward is a network function: it sends the payload of each datagram that it receives on in a new one, as the processors of studies do.
//
// It has addresses of its own, at both ports. Frames that are not for these pass. See README.md.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"weir.dev/weir/catalogue/nf"
	"weir.dev/weir/catalogue/nf/station"
)

func main() {
	socat := flag.String("socat", "", "program that is to send the payloads on: socat. Empty: this process does")
	nf.Main("udp-forward", 50, func(ctx context.Context, s nf.Start) error { return (&function{log: s.Log, socat: *socat}).run(ctx, s) })
}

// function is what surrounds a forwarder.
type function struct {
	log      *slog.Logger
	socat    string // program; "": none
	cfg      config
	stations [2]*station.Station // by the direction in which what comes to its port goes: at in, at out
	forward  *forwarder
	frames   *nf.Frames
	late     sync.Mutex // what is sent when the loop has ended comes from several goroutines
}

func (l *function) run(ctx context.Context, s nf.Start) error {
	told := s.Listen()
	defer told.Stop()
	if err := l.load(s); err != nil {
		return err
	}
	o := s.Options()
	o.Handle = l.forward.handle
	ctx, end := context.WithCancelCause(ctx)
	defer end(nil)
	if l.socat != "" {
		stop, err := l.startSocat(ctx, end, o.In, o.Out)
		if err != nil {
			return err
		}
		defer stop()
		o.Side = loopLink
	}
	var err error
	if l.frames, err = nf.OpenFrames(o); err != nil {
		return err
	}
	defer l.frames.Close()
	l.forward.send = l.frames.Send
	running, stop := context.WithCancel(ctx)
	var beside sync.WaitGroup
	defer beside.Wait()
	defer stop()
	for d, at := range l.stations {
		beside.Go(func() {
			at.Run(running, func(frame []byte) { l.send(nf.Dir(d).Back(), frame) })
			at.Close()
		})
	}
	beside.Go(func() { l.seek(running) })
	l.log.Info("relays in force", "relays", len(l.cfg.Relays))
	err = l.frames.Serve(ctx, told, nf.Work{Report: l.report, Numbers: l.numbers})
	if cause := context.Cause(ctx); err == nil && !errors.Is(cause, context.Canceled) {
		err = cause
	}
	return err
}

// startSocat has socat send the payloads on. When one of its processes has ended, so does the function: end.
func (l *function) startSocat(ctx context.Context, end context.CancelCauseFunc, ports ...string) (stop func(), err error) {
	s, err := openStack(ports...)
	if err != nil {
		return nil, err
	}
	for _, r := range l.cfg.Relays {
		s.relays = append(s.relays, l.forward.relays[netip.AddrPortFrom(l.cfg.own(r.To.Addr()), r.Port)])
	}
	for i, to := range s.relays {
		to.number = i
	}
	l.forward.stack = s
	runtime.LockOSThread() // socat dies with the thread that starts it
	all, ended, err := startSocat(ctx, l.socat, len(s.relays), l.log)
	if err != nil {
		return nil, err
	}
	over := make(chan struct{})
	var watching sync.WaitGroup
	watching.Go(func() {
		select {
		case err := <-ended:
			end(err)
		case <-over:
		}
	})
	return func() { close(over); watching.Wait(); stopAll(all) }, nil
}

func (l *function) load(s nf.Start) error {
	raw, err := nf.ReadConfig(s.Config)
	if err != nil {
		return err
	}
	if l.cfg, err = parseConfig(raw); err != nil {
		return fmt.Errorf("configuration %s: %w", s.Config, err)
	}
	var macs [2]net.HardwareAddr
	for d, name := range []string{s.In, s.Out} {
		port, err := net.InterfaceByName(name)
		if err != nil {
			return fmt.Errorf("port %s: %w (the ports in and out must exist before the function starts)", name, err)
		}
		macs[d] = port.HardwareAddr
		var gateways []netip.Addr
		if nf.Dir(d) == nf.Down {
			gateways = l.cfg.Gateways
		}
		if l.stations[d], err = station.Open(port.HardwareAddr, l.cfg.Addresses, gateways); err != nil {
			return fmt.Errorf("port %s: %w", name, err)
		}
	}
	l.stations[nf.Up].Everywhere()
	l.forward = newForwarder(l.cfg, [6]byte(macs[nf.Down]))
	for d, at := range l.stations {
		l.forward.own[d] = at.Take
	}
	return nil
}

// seekEvery is how often the stack is asked where the next hops are.
const seekEvery = time.Second

func (l *function) seek(ctx context.Context) {
	tick := time.NewTicker(seekEvery)
	defer tick.Stop()
	for ctx.Err() == nil {
		for _, to := range l.forward.relays {
			l.stations[nf.Down].Find(to.to.Addr(), func(mac [6]byte) { to.mac.Store(&mac) })
		}
		select {
		case <-ctx.Done():
		case <-tick.C:
		}
	}
}

// send a frame from beside the loop.
func (l *function) send(d nf.Dir, frame []byte) {
	f := nf.NewFrame(frame)
	l.frames.Do(func() {
		l.late.Lock()
		defer l.late.Unlock()
		l.frames.Send(d, f)
	})
}

// numbers are of what became of frames.
func (l *function) numbers(n *nf.Numbers) {
	var count counters
	l.frames.Do(func() { count = l.forward.count })
	n.Counter("udp_forward_forwarded_total", "Datagrams that were sent on.", float64(count.forwarded))
	n.Counter("udp_forward_passed_packets_total", "Packets that passed as they came.", float64(count.passed))
	for _, d := range []struct {
		why string
		n   uint64
	}{{"fragment", count.fragments}, {"malformed", count.malformed}, {"next_hop_not_found", count.unplaced}} {
		n.Counter("udp_forward_dropped_packets_total", "Packets to a relay that were dropped.", float64(d.n), "why", d.why)
	}
}

func (l *function) report() {
	l.frames.Do(func() {
		c, n := l.frames.Counters(), l.forward.count
		l.log.Info("counter", "forwarded", n.forwarded, "fragments dropped", n.fragments, "malformed", n.malformed, "next hop not found", n.unplaced, "passed", n.passed,
			"missed", c.Missed[nf.Up]+c.Missed[nf.Down], "refused", c.Refused[nf.Up]+c.Refused[nf.Down])
	})
}

// forwarder decides about frames. It is used by one goroutine, but for MAC addresses.
type forwarder struct {
	relays    map[netip.AddrPort]*next // by where datagrams come to
	addresses map[netip.Addr]bool
	mac       [6]byte // of out
	stack     *stack  // sends payloads on; nil: the forwarder does
	own       [2]func(frame []byte, incomplete bool) (mine bool)
	send      func(nf.Dir, nf.Frame)
	count     counters
}

type counters struct{ forwarded, fragments, malformed, unplaced, passed uint64 }

// next is where a payload goes.
type next struct {
	from, to netip.AddrPort
	mac      atomic.Pointer[[6]byte] // of the next hop; nil: not known yet
	number   int                     // of the relay, where a stack has them
}

const hops = 64

func newForwarder(cfg config, mac [6]byte) *forwarder {
	l := &forwarder{relays: map[netip.AddrPort]*next{}, addresses: map[netip.Addr]bool{}, mac: mac}
	for _, p := range cfg.Addresses {
		l.addresses[p.Addr()] = true
	}
	for _, r := range cfg.Relays {
		at := netip.AddrPortFrom(cfg.own(r.To.Addr()), r.Port)
		l.relays[at] = &next{from: at, to: r.To}
	}
	return l
}

func (l *forwarder) handle(d nf.Dir, f nf.Frame) nf.Verdict {
	if d == nf.Side {
		l.sendOn(f)
		return nf.Drop
	}
	p := nf.Decode(f.Data)
	if d == nf.Up && p.TagCount == 0 && p.Proto == nf.UDP && l.addresses[p.Dst] && p.Transport > 0 {
		if to := l.relays[netip.AddrPortFrom(p.Dst, p.DstPort)]; to != nil {
			l.relay(&p, f, to)
			return nf.Drop
		}
	}
	if own := l.own[d]; p.TagCount == 0 && own != nil && own(f.Data, f.ChecksumMissing()) || l.addresses[p.Dst] {
		return nf.Drop
	}
	l.count.passed++
	return nf.Pass
}

// relay a datagram: its payload leaves in a new one, from the function's own address, with a new lifetime.
func (l *forwarder) relay(p *nf.Packet, f nf.Frame, to *next) {
	mac := to.mac.Load()
	plain := map[bool]int{true: 20, false: 40}[p.Dst.Is4()]
	switch {
	case p.Part == nf.Whole && p.Transport-p.Network != plain: // options are not handed on, and nobody sends some
		l.count.malformed++
	case p.Bad != "" || f.Data[0]&1 != 0 || !station.Single(p.Src) || p.Part == nf.Whole && !f.ChecksumMissing() && !p.Intact(f.Data):
		l.count.malformed++
	case p.Part != nf.Whole:
		l.count.fragments++
	case mac == nil:
		l.count.unplaced++
	case l.stack != nil:
		l.stack.give(to.number, f.Datagrams(p.Data(f.Data)), l.send)
	default:
		c := f.Clone()
		p.Rewrite(c.Data, nf.Target, to.to, f.ChecksumMissingAt(p.Transport))
		p.Rewrite(c.Data, nf.Source, to.from, f.ChecksumMissingAt(p.Transport))
		p.RewriteHops(c.Data, hops)
		copy(c.Data, mac[:])
		copy(c.Data[6:], l.mac[:])
		l.count.forwarded++
		l.send(nf.Up, c)
	}
}

// sendOn what a stack sends.
func (l *forwarder) sendOn(f nf.Frame) {
	to, data := l.stack.sent(f)
	if to == nil {
		return // the kernel says something for itself
	}
	if mac := to.mac.Load(); mac != nil {
		l.count.forwarded++
		l.send(nf.Up, to.datagram(*mac, l.mac, data))
		return
	}
	l.count.unplaced++
}
