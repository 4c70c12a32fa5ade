// Command http-filter is a network function: it follows the TCP connections between its ports in and out and ends those in which HTTP or TLS names what its
// rules forbid. It forwards packets as they came, and is no proxy. See README.md for the rules and for what it does not see.
package main

import (
	"context"
	"flag"
	"fmt"
	"log/slog"
	"time"

	"weir.dev/weir/catalogue/nf"
)

func main() {
	settle := flag.String("settle", nf.SettleFile, "socket to settle flows at, if it exists")
	nf.Main("http-filter", 50, func(ctx context.Context, s nf.Start) error {
		p := &program{Start: s, log: s.Log, blocked: nf.Packed{Events: s.Events, Reason: "Blocked"}, settler: nf.NewSettler(*settle, s.Log)}
		defer p.settler.Close()
		return p.run(ctx, s.Options())
	})
}

type program struct {
	nf.Start
	log     *slog.Logger
	blocked nf.Packed
	settler *nf.Settler
	frames  *nf.Frames
	filter  *filter
}

// run filters until ctx ends. Nothing passes before the rules are in force.
func (p *program) run(ctx context.Context, o nf.Options) error {
	told := p.Listen()
	defer told.Stop()
	raw, err := nf.ReadConfig(p.Config)
	if err != nil {
		return err
	}
	cfg, err := parseConfig(raw)
	if err == nil {
		p.filter, err = newFilter(cfg, func(d nf.Dir, f nf.Frame) { p.frames.Send(d, f) }, p.blocked.Add, time.Now())
	}
	if err != nil {
		return fmt.Errorf("configuration %s: %w", p.Config, err)
	}
	p.filter.settle = p.settler
	o.Handle, o.Tick, o.Settler = p.filter.frame, p.filter.tick, p.settler
	if p.frames, err = nf.OpenFrames(o); err != nil {
		return err
	}
	defer p.frames.Close()
	p.inForce(cfg)
	return p.frames.Serve(ctx, told, nf.Work{
		Load:    p.load,
		Report:  p.report,
		Numbers: p.numbers,
		Look:    func(ctx context.Context) { p.blocked.Raise(ctx, p.log) },
	})
}

func (p *program) inForce(cfg config) {
	p.log.Info("rules in force", "rules", len(cfg.Rules), "midstream", cfg.Midstream, "full", cfg.Full)
}

// load puts a configuration in force between two frames. What is in force stays when it is no good.
func (p *program) load(_ context.Context, raw []byte) error {
	cfg, err := parseConfig(raw)
	if err == nil {
		p.frames.Do(func() { err = p.filter.configure(cfg) })
	}
	if err != nil {
		return fmt.Errorf("configuration: %w", err)
	}
	p.settler.Reset() // other ports may count now
	p.inForce(cfg)
	return nil
}

// numbers are the counters, by what was decided.
func (p *program) numbers(n *nf.Numbers) {
	p.frames.Do(func() {
		c, s := p.filter.count, p.settler.Counters()
		n.Counter("http_filter_connections_total", "Connections that were followed from their beginning.", float64(c.Connections))
		for verdict, v := range map[string]uint64{"blocked": c.Blocked, "refused": c.Refused, "midstream": c.Midstream, "fragments": c.Fragments, "malformed": c.Malformed, "quic": c.QUIC} {
			n.Counter("http_filter_verdicts_total", "What was not passed or not read, by kind.", float64(v), "verdict", verdict)
		}
		n.Counter("http_filter_dropped_segments_total", "Segments of connections that were dropped.", float64(c.Dropped))
		n.Counter("http_filter_settled_total", "Directions of flows that were settled.", float64(s.Settled))
		n.Gauge("http_filter_open_connections", "Connections that are open.", float64(len(p.filter.flows)))
		n.Gauge("http_filter_memory_bytes", "Memory that connections hold.", float64(p.filter.budget.Used))
	})
}

// report logs the counters.
func (p *program) report() {
	p.frames.Do(func() {
		c, n, s := p.filter.count, p.frames.Counters(), p.settler.Counters()
		p.log.Info("counters", "connections", c.Connections, "open", len(p.filter.flows), "memory", p.filter.budget.Used, "blocked", c.Blocked, "refused", c.Refused, "midstream", c.Midstream,
			"fragments", c.Fragments, "malformed", c.Malformed, "quic", c.QUIC, "segments dropped", c.Dropped, "frames", n.Sent[nf.Up]+n.Sent[nf.Down], "missed", n.Missed[nf.Up]+n.Missed[nf.Down], "settled", s.Settled)
	})
}
