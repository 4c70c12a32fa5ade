// Command dns-lb is a network function: it answers DNS queries for configured names in place of the servers behind it, and hands on everything else.
//
// It stands between clients at its port in and servers at its port out and has no address of its own there. See README.md.
package main

import (
	"context"
	"flag"
	"fmt"
	"log/slog"
	"net"
	"sync"
	"sync/atomic"

	"weir.dev/weir/catalogue/names"
	"weir.dev/weir/catalogue/nf"
	"weir.dev/weir/catalogue/nf/targets"
)

func main() {
	settle := flag.String("settle", nf.SettleFile, "socket to settle flows at, if it exists")
	nf.Main("dns-lb", 50, func(ctx context.Context, s nf.Start) error {
		settler := nf.NewSettler(*settle, s.Log)
		defer settler.Close()
		settler.Reset() // of a former process
		return (&balancer{log: s.Log, settle: settler.PassAt, anew: settler.Reset, settler: settler}).run(ctx, s)
	})
}

// maxTold bounds the targets that numbers name.
const maxTold = 100

// balancer is the function.
type balancer struct {
	log     *slog.Logger
	zone    atomic.Pointer[zone]
	proxy   *proxy
	watch   *targets.Watch // nil: no target is tried. It belongs to the loop over frames
	frames  *nf.Frames
	answer  func(nf.Dir, nf.Frame) // sends a frame from within the loop
	settle  func(nf.Dir, []byte)   // the flow of a frame need not be given to us any more; nil: it goes on
	anew    func()                 // takes all that back
	settler *nf.Settler
	count   counters
	late    sync.Mutex // what is sent when the loop has ended comes from several goroutines

	out    string
	events nf.Events
	beside sync.WaitGroup
	follow func(*targets.Watch) // begins to try targets
	end    context.CancelFunc   // of the watch in force
}

func (b *balancer) run(ctx context.Context, s nf.Start) error {
	told := s.Listen()
	defer told.Stop()
	b.out, b.events = s.Out, s.Events
	raw, err := nf.ReadConfig(s.Config)
	if err != nil {
		return err
	}
	z, w, err := b.prepare(raw)
	if err != nil {
		return err
	}
	b.zone.Store(z)
	b.watch = w
	if b.proxy, err = newProxy(&b.zone, &b.count, b.send); err != nil {
		return err
	}
	o := s.Options()
	o.Handle, o.Settler = b.handle, b.settler
	if b.frames, err = nf.OpenFrames(o); err != nil {
		return err
	}
	defer b.frames.Close()
	b.answer = b.frames.Send
	ctx, stop := context.WithCancel(ctx)
	defer b.beside.Wait()
	defer stop()
	b.beside.Go(func() { b.proxy.run(ctx) })
	b.end = func() {}
	b.follow = func(w *targets.Watch) {
		if b.end(); w == nil {
			b.end = func() {}
			return
		}
		var trying context.Context
		trying, b.end = context.WithCancel(ctx)
		b.beside.Go(func() { w.Run(trying, func(frame []byte) { b.send(nf.Up, frame) }) })
	}
	b.follow(w)
	defer func() { b.end() }()
	b.log.Info("names in force", "names", len(z.names))
	return b.frames.Serve(ctx, told, nf.Work{Load: b.load, Report: b.report, Numbers: b.numbers})
}

// prepare what a configuration asks for; nothing of it is in force yet.
func (b *balancer) prepare(raw []byte) (*zone, *targets.Watch, error) {
	cfg, err := parseConfig(raw)
	if err != nil {
		return nil, nil, fmt.Errorf("configuration: %w", err)
	}
	z := newZone(cfg, nil)
	if len(cfg.checks()) == 0 {
		return z, nil, nil
	}
	port, err := net.InterfaceByName(b.out)
	if err != nil {
		return nil, nil, fmt.Errorf("port %s: %w (the ports in and out must exist before the function starts)", b.out, err)
	}
	w, err := targets.NewWatch(*cfg.Health, cfg.checks(), port.HardwareAddr, b.log, b.events)
	if err != nil {
		return nil, nil, fmt.Errorf("health: %w", err)
	}
	z.up = w.Up
	return z, w, nil
}

// load puts a configuration in force between two frames. Connections go on, and of targets that are tried in both what was known stays known.
func (b *balancer) load(_ context.Context, raw []byte) error {
	z, w, err := b.prepare(raw)
	if err != nil {
		return err
	}
	b.frames.Do(func() {
		if w != nil && b.watch != nil {
			w.Learn(b.watch)
		}
		b.watch = w
		b.zone.Store(z)
		b.anew() // other addresses may be ours
	})
	b.follow(w)
	b.log.Info("names in force", "names", len(z.names))
	return nil
}

// numbers are what was decided, and which targets are up.
func (b *balancer) numbers(n *nf.Numbers) {
	c := &b.count
	n.Counter("dns_lb_answers_total", "Queries that were answered here.", float64(c.answered.Load()))
	n.Counter("dns_lb_unanswered_queries_total", "Queries for names of the configuration for which no answer could be made.", float64(c.unanswered.Load()))
	n.Counter("dns_lb_foreign_answers_dropped_total", "Answers of servers for names of the configuration, or that clients may take for such.", float64(c.foreign.Load()))
	n.Counter("dns_lb_malformed_dropped_total", "Datagrams in which another may read a name.", float64(c.malformed.Load()))
	n.Counter("dns_lb_tcp_connections_total", "TCP connections to port 53.", float64(c.tcpConns.Load()))
	n.Counter("dns_lb_tcp_refused_total", "TCP connections that were one too many.", float64(c.tcpRefused.Load()))
	var w *targets.Watch
	b.frames.Do(func() { w = b.watch })
	if w == nil {
		return
	}
	up, all := 0, w.State()
	for _, t := range all {
		if t.Up {
			up++
		}
	}
	n.Gauge("dns_lb_targets", "Targets that are tried.", float64(len(all)))
	n.Gauge("dns_lb_targets_up", "Targets that may be in answers; before its first trial a target may.", float64(up))
	for _, t := range all[:min(len(all), maxTold)] {
		v := 0.0
		if t.Up {
			v = 1
		}
		n.Gauge("dns_lb_target_up", "Whether a target may be in answers.", v, "target", t.Name)
	}
}

// send a frame from beside the loop.
func (b *balancer) send(d nf.Dir, frame []byte) {
	f := nf.NewFrame(frame)
	b.frames.Do(func() {
		b.late.Lock()
		defer b.late.Unlock()
		b.frames.Send(d, f)
	})
}

// handle decides about a frame.
func (b *balancer) handle(d nf.Dir, f nf.Frame) nf.Verdict {
	if b.watch != nil {
		b.watch.Start()
		if d == nf.Down && b.watch.Take(f.Data, f.ChecksumMissing()) {
			return nf.Drop
		}
	}
	p := nf.Decode(f.Data)
	if d == nf.Down && hides(&p) {
		b.count.malformed.Add(1)
		return nf.Drop
	}
	if p.Transport == 0 || d == nf.Up && p.DstPort != port || d == nf.Down && p.SrcPort != port {
		// So does every frame of that flow in this direction, unless it is for us.
		if b.settle != nil && p.Transport != 0 && (b.watch == nil || !b.watch.Has(p.Dst)) {
			b.settle(d, f.Data)
		}
		return nf.Pass
	}
	switch {
	case p.Proto == nf.TCP:
		if !b.proxy.take(d, &p, f.Data, f.ChecksumMissing()) {
			return nf.Pass
		}
		return nf.Drop
	case p.Proto != nf.UDP:
	case p.Bad != "" || d == nf.Down && p.Part == nf.First && len(p.Data(f.Data)) < names.MaxQuestion: // others may read a name there that we do not
		b.count.malformed.Add(1)
		return nf.Drop
	case d == nf.Up:
		return b.query(&p, f)
	case b.foreign(&p, f):
		b.count.foreign.Add(1)
		return nf.Drop
	}
	return nf.Pass
}

const udpHeader = 8

// hides tells whether a frame from a server may have a part of an answer in it that is not read here: a first fragment that has no ports, a later one that begins
// where the question is, which some receivers prefer to what was read in the first one, or an upper layer deeper in the frame than it is looked for.
func hides(p *nf.Packet) bool {
	switch p.Part {
	case nf.First:
		return p.Bad != ""
	case nf.Later:
		return p.Proto == nf.UDP && p.Offset < udpHeader+names.MaxQuestion
	}
	return p.Deeper()
}

// foreign tells whether one of the datagrams of a frame is an answer for a name of ours.
func (b *balancer) foreign(p *nf.Packet, f nf.Frame) bool {
	z := b.zone.Load()
	for data := range f.Datagrams(p.Data(f.Data)) {
		if z.foreign(data) {
			return true
		}
	}
	return false
}

// query decides about a datagram to port 53. What is not plainly a whole query from one station to another passes: the server will know.
func (b *balancer) query(p *nf.Packet, f nf.Frame) nf.Verdict {
	if p.Bad != "" || p.Part != nf.Whole || f.Segmented() || !single(p, f.Data) || !f.ChecksumMissing() && !p.Intact(f.Data) {
		return nf.Pass
	}
	reply, fate := b.zone.Load().query(p.Data(f.Data), p.Src, 0)
	if fate == passes {
		return nf.Pass
	}
	b.count.decided(fate)
	if fate == answered {
		b.answer(nf.Down, p.MakeUDP(f.Data, reply))
	}
	return nf.Drop
}

func (b *balancer) report() {
	var c nf.Counters
	b.frames.Do(func() { c = b.frames.Counters() })
	b.log.Info("counter", "answered", b.count.answered.Load(), "unanswered", b.count.unanswered.Load(), "foreign answers dropped", b.count.foreign.Load(),
		"malformed datagrams dropped", b.count.malformed.Load(), "TCP connections", b.count.tcpConns.Load(), "TCP connections refused", b.count.tcpRefused.Load(), "TCP frames dropped", b.count.tcpDropped.Load())
	b.log.Info("frames", "received up", c.Received[nf.Up], "received down", c.Received[nf.Down], "sent up", c.Sent[nf.Up], "sent down", c.Sent[nf.Down],
		"missed", c.Missed[nf.Up]+c.Missed[nf.Down], "refused", c.Refused[nf.Up]+c.Refused[nf.Down])
}
