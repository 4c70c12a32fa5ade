// Command load-balancer is a network function: it spreads connections to virtual addresses over targets that are up.
//
// It stands between clients at its port in and targets at its port out, rewrites the target's address and port, and rewrites the answers back. See README.md.
package main

import (
	"context"
	"flag"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"sync"
	"time"

	"weir.dev/weir/catalogue/nf"
	"weir.dev/weir/catalogue/nf/station"
	"weir.dev/weir/catalogue/nf/targets"
)

func main() {
	settle := flag.String("settle", nf.SettleFile, "socket to settle flows at, if it exists")
	nf.Main("load-balancer", 50, func(ctx context.Context, s nf.Start) error {
		l := &function{log: s.Log, settler: nf.NewSettler(*settle, s.Log)}
		defer l.settler.Close()
		l.settler.Reset() // of a former process
		return l.run(ctx, s)
	})
}

// function is what surrounds a balancer.
type function struct {
	log      *slog.Logger
	cfg      config
	balancer *balancer
	frames   *nf.Frames
	settler  *nf.Settler
	front    *station.Station // at in: it has the virtual addresses
	watch    *targets.Watch   // at out; nil: no target is tried or looked for
	late     sync.Mutex       // what is sent when the loop has ended comes from several goroutines
}

func (l *function) run(ctx context.Context, s nf.Start) error {
	told := s.Listen()
	defer told.Stop()
	if err := l.load(s); err != nil {
		return err
	}
	full := &nf.Packed{Events: s.Events, Reason: "ConnectionsExhausted"}
	noted := uint64(0)
	b := l.balancer
	o := s.Options()
	o.Handle = func(d nf.Dir, f nf.Frame) nf.Verdict {
		if l.watch != nil {
			l.watch.Start()
		}
		return b.handle(d, f, l.frames.Now())
	}
	o.Tick = func(now time.Time) {
		b.tick(now)
		if n := b.table.evicted - noted; n > 0 {
			full.Add("", fmt.Sprintf("%d connections were forgotten in a second to make room; there are %d of %d stations, and one has %d", n, len(b.table.all), len(b.table.owners), b.table.most))
			noted = b.table.evicted
		}
	}
	o.Settler = l.settler
	var err error
	if l.frames, err = nf.OpenFrames(o); err != nil {
		return err
	}
	defer l.frames.Close()
	b.send, b.copy, b.settle, b.unsettle = l.frames.Send, l.frames.Copy, l.settler.RewriteAt, l.settler.Reset
	b.table.carried = func() bool { return l.settler.Counters().Settled > 0 }
	ctx, stop := context.WithCancel(ctx)
	var beside sync.WaitGroup
	defer beside.Wait()
	defer stop()
	beside.Go(func() {
		l.front.Run(ctx, func(frame []byte) { l.send(nf.Down, frame) })
		l.front.Close()
	})
	if l.watch != nil {
		beside.Go(func() { l.watch.Run(ctx, func(frame []byte) { l.send(nf.Up, frame) }) })
		beside.Go(func() { l.seek(ctx) })
	}
	all := 0
	for _, v := range b.services {
		all += len(v.members)
	}
	l.log.Info("services in force", "services", len(b.services), "targets", all)
	return l.frames.Serve(ctx, told, nf.Work{
		Look:    func(ctx context.Context) { full.Raise(ctx, l.log) },
		Report:  l.report,
		Numbers: l.numbers,
		Export:  l.export,
		Import:  l.take,
	})
}

// export the connections for another instance.
func (l *function) export() ([]byte, error) {
	return l.balancer.export(l.frames.Do, time.Now()), nil
}

// take the connections of another instance.
func (l *function) take(state []byte) error {
	taken, left, err := l.balancer.restore(l.frames.Do, state, time.Now())
	if err == nil {
		l.log.Info("connections of the former instance", "taken", taken, "left", left)
	}
	return err
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
	for i, name := range []string{s.In, s.Out} {
		port, err := net.InterfaceByName(name)
		if err != nil {
			return fmt.Errorf("port %s: %w (the ports in and out must exist before the function starts)", name, err)
		}
		macs[i] = port.HardwareAddr
	}
	var up func(netip.Addr, *targets.Check) bool
	var changes func() uint64
	if l.cfg.Health != nil {
		if l.watch, err = targets.NewWatch(*l.cfg.Health, l.cfg.checks(), macs[nf.Down], s.Log, s.Events); err != nil {
			return fmt.Errorf("health: %w", err)
		}
		up, changes = l.isUp, l.watch.Changes
	}
	l.balancer = newBalancer(&l.cfg, up, changes, nil)
	var virtual []netip.Prefix
	for a := range l.balancer.virtual {
		virtual = append(virtual, netip.PrefixFrom(a, a.BitLen()))
	}
	if l.front, err = station.Open(macs[nf.Up], virtual, nil); err != nil {
		return fmt.Errorf("virtual addresses: %w", err)
	}
	l.front.Everywhere()
	l.balancer.ours, l.balancer.accept = l.front.Take, l.front.Accept
	if l.watch != nil {
		l.balancer.own = l.watch.Take
	}
	return nil
}

func (l *function) isUp(a netip.Addr, c *targets.Check) bool { return c == nil || l.watch.Up(a, c) }

// seekEvery is how often the stack is asked where targets are.
const seekEvery = time.Second

// seek the MAC addresses of targets.
func (l *function) seek(ctx context.Context) {
	tick := time.NewTicker(seekEvery)
	defer tick.Stop()
	l.watch.Steered(ctx)
	for ctx.Err() == nil {
		for _, v := range l.balancer.services {
			for _, m := range v.members {
				if !m.fixed {
					l.watch.Find(m.at.Addr(), func(mac [6]byte) {
						if was := m.mac.Swap(&mac); was != nil && *was != mac {
							l.settler.Reset() // its connections are settled to where it was
						}
					})
				}
			}
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

// mostTold targets have numbers of their own.
const mostTold = 100

// numbers are of connections, of what became of frames, and which targets are up.
func (l *function) numbers(n *nf.Numbers) {
	var connections, stations int
	var evicted, crowded uint64
	var count counters
	l.frames.Do(func() {
		b := l.balancer
		connections, stations, evicted, crowded, count = len(b.table.all), len(b.table.owners), b.table.evicted, b.table.crowded, b.count
	})
	n.Gauge("load_balancer_connections", "Connections that are known.", float64(connections))
	n.Gauge("load_balancer_stations", "Stations that have connections.", float64(stations))
	n.Counter("load_balancer_forgotten_connections_total", "Connections that were forgotten to make room.", float64(evicted), "were", "open")
	n.Counter("load_balancer_forgotten_connections_total", "Connections that were forgotten to make room.", float64(crowded), "were", "opening")
	const rewritten = "Packets that were rewritten, without those of settled flows."
	n.Counter("load_balancer_rewritten_packets_total", rewritten, float64(count.up), "direction", "up")
	n.Counter("load_balancer_rewritten_packets_total", rewritten, float64(count.down), "direction", "down")
	n.Counter("load_balancer_passed_packets_total", "Packets that passed as they came.", float64(count.passed))
	for _, d := range []struct {
		why string
		n   uint64
	}{{"malformed", count.malformed}, {"beside_the_service", count.direct}, {"target_not_found", count.unplaced}, {"claims_a_virtual_address", count.claims}} {
		n.Counter("load_balancer_dropped_packets_total", "Packets that were dropped.", float64(d.n), "why", d.why)
	}
	n.Counter("load_balancer_direct_answers_total", "Of the packets that passed: answers of targets that answer by themselves. A policy that leads them here costs for nothing.", float64(count.answers))
	n.Counter("load_balancer_settled_total", "Directions of flows that were settled.", float64(l.settler.Counters().Settled))
	if l.watch == nil {
		return
	}
	all := l.watch.State()
	for _, t := range all[:min(len(all), mostTold)] {
		v := 0.0
		if t.Up {
			v = 1
		}
		n.Gauge("load_balancer_target_up", "Whether a target gets connections; before its first trial it does.", v, "target", t.Name)
	}
}

func (l *function) report() {
	l.frames.Do(func() {
		b, c := l.balancer, l.frames.Counters()
		l.log.Info("counter", "connections", len(b.table.all), "stations", len(b.table.owners), "evicted", b.table.evicted, "opening evicted", b.table.crowded, "up", b.count.up, "down", b.count.down,
			"passed", b.count.passed, "malformed", b.count.malformed, "direct", b.count.direct, "target not found", b.count.unplaced, "claims", b.count.claims, "direct answers", b.count.answers, "settled", l.settler.Counters().Settled, "missed", c.Missed[nf.Up]+c.Missed[nf.Down], "refused", c.Refused[nf.Up]+c.Refused[nf.Down])
		for _, v := range b.services {
			n := make([]int, len(v.members))
			for _, c := range b.table.all {
				if c.service == v.index {
					n[c.target]++
				}
			}
			for i, m := range v.members {
				l.log.Info("target", "service", v.name, "address", m.at, "connections", n[i], "found", m.mac.Load() != nil)
			}
		}
	})
}
