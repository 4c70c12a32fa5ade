// Command dns-lb is a network function: it answers DNS queries for configured names in place of the servers behind it, and hands on everything else.
//
// It stands between clients at its port in and servers at its port out and has no address of its own there. See README.md.
package main

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"sync"

	"weir.dev/weir/catalogue/nf"
)

func main() {
	nf.Main("dns-lb", 50, func(ctx context.Context, s nf.Start) error { return (&balancer{log: s.Log}).run(ctx, s) })
}

// balancer is the function.
type balancer struct {
	log    *slog.Logger
	zone   *zone
	proxy  *proxy
	watch  *watch // nil: no target is tried
	frames *nf.Frames
	answer func(nf.Dir, nf.Frame) // sends a frame from within the loop
	count  counters
	late   sync.Mutex // what is sent when the loop has ended comes from several goroutines
}

func (b *balancer) run(ctx context.Context, s nf.Start) error {
	told := nf.Listen()
	defer told.Stop()
	if err := b.load(s.Config, s.Out, s.Events); err != nil {
		return err
	}
	var err error
	if b.proxy, err = newProxy(b.zone, &b.count, b.send); err != nil {
		return err
	}
	o := s.Options()
	o.Handle = b.handle
	if b.frames, err = nf.OpenFrames(o); err != nil {
		return err
	}
	defer b.frames.Close()
	b.answer = b.frames.Send
	ctx, stop := context.WithCancel(ctx)
	var beside sync.WaitGroup
	defer beside.Wait()
	defer stop()
	beside.Go(func() { b.proxy.run(ctx) })
	if b.watch != nil {
		beside.Go(func() { b.watch.run(ctx, func(frame []byte) { b.send(nf.Up, frame) }) })
	}
	b.log.Info("names in force", "names", len(b.zone.names))
	return b.frames.Serve(ctx, told, nf.Work{
		Changed: func() bool { return false }, // a changed configuration starts a new instance
		Reload:  func(context.Context) { b.log.Info("the configuration is read at the start only") },
		Report:  b.report,
	})
}

func (b *balancer) load(path, out string, events nf.Events) error {
	raw, err := nf.ReadConfig(path)
	if err != nil {
		return err
	}
	cfg, err := parseConfig(raw)
	if err != nil {
		return fmt.Errorf("configuration %s: %w", path, err)
	}
	b.zone = newZone(cfg, nil)
	if len(cfg.checks()) == 0 {
		return nil
	}
	port, err := net.InterfaceByName(out)
	if err != nil {
		return fmt.Errorf("port %s: %w (the ports in and out must exist before the function starts)", out, err)
	}
	if b.watch, err = newWatch(cfg, port.HardwareAddr, b.log, events); err != nil {
		return fmt.Errorf("health: %w", err)
	}
	b.zone.up = b.watch.up
	return nil
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
		b.watch.start()
		if d == nf.Down && b.watch.take(f.Data, f.ChecksumMissing()) {
			return nf.Drop
		}
	}
	p := nf.Decode(f.Data)
	if d == nf.Down && p.Part == nf.First && p.Bad != "" { // it hides its ports in another fragment
		b.count.malformed.Add(1)
		return nf.Drop
	}
	if p.Transport == 0 || d == nf.Up && p.DstPort != port || d == nf.Down && p.SrcPort != port {
		return nf.Pass
	}
	switch {
	case p.Proto == nf.TCP:
		if !b.proxy.take(d, &p, f.Data, f.ChecksumMissing()) {
			return nf.Pass
		}
		return nf.Drop
	case p.Proto != nf.UDP:
	case p.Bad != "" || d == nf.Down && p.Part == nf.First && len(p.Data(f.Data)) < maxQuestion: // others may read a name there that we do not
		b.count.malformed.Add(1)
		return nf.Drop
	case d == nf.Up:
		return b.query(&p, f)
	case b.zone.foreign(p.Data(f.Data)):
		b.count.foreign.Add(1)
		return nf.Drop
	}
	return nf.Pass
}

// query decides about a datagram to port 53. What is not plainly a whole query from one station to another passes: the server will know.
func (b *balancer) query(p *nf.Packet, f nf.Frame) nf.Verdict {
	if p.Bad != "" || p.Part != nf.Whole || f.Segmented() || !single(p, f.Data) || !f.ChecksumMissing() && !p.Intact(f.Data) {
		return nf.Pass
	}
	reply, fate := b.zone.query(p.Data(f.Data), p.Src, 0)
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
