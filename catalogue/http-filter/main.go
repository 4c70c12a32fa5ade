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
		p := &program{path: s.Config, log: s.Log, events: s.Events, blocked: nf.Packed{Events: s.Events, Reason: "Blocked"}, settler: nf.NewSettler(*settle, s.Log)}
		defer p.settler.Close()
		return p.run(ctx, s.Options())
	})
}

type program struct {
	path    string
	log     *slog.Logger
	events  nf.Events
	blocked nf.Packed
	settler *nf.Settler
	frames  *nf.Frames
	filter  *filter
	seen    nf.Mark // of the configuration in force or refused
}

// run filters until ctx ends. Nothing passes before the rules are in force.
func (p *program) run(ctx context.Context, o nf.Options) error {
	told := nf.Listen()
	defer told.Stop()
	cfg, err := p.load()
	if err != nil {
		return err
	}
	p.filter, err = newFilter(cfg, func(d nf.Dir, f nf.Frame) { p.frames.Send(d, f) }, p.blocked.Add, time.Now())
	if err != nil {
		return fmt.Errorf("configuration %s: %w", p.path, err)
	}
	p.filter.settle = p.settler.Pass
	o.Handle, o.Tick = p.filter.frame, p.filter.tick
	if p.frames, err = nf.OpenFrames(o); err != nil {
		return err
	}
	defer p.frames.Close()
	p.inForce(cfg)
	return p.frames.Serve(ctx, told, nf.Work{
		Changed: func() bool { return nf.MarkOf(p.path) != p.seen },
		Reload:  p.reload,
		Report:  p.report,
		Look:    func(ctx context.Context) { p.blocked.Raise(ctx, p.log) },
	})
}

func (p *program) load() (config, error) {
	p.seen = nf.MarkOf(p.path)
	raw, err := nf.ReadConfig(p.path)
	if err != nil {
		return config{}, err
	}
	cfg, err := parseConfig(raw)
	if err != nil {
		return config{}, fmt.Errorf("configuration %s: %w", p.path, err)
	}
	return cfg, nil
}

func (p *program) inForce(cfg config) {
	p.log.Info("rules in force", "rules", len(cfg.Rules), "midstream", cfg.Midstream, "full", cfg.Full)
}

// reload keeps what is in force when the new configuration is no good.
func (p *program) reload(ctx context.Context) {
	cfg, err := p.load()
	if err == nil {
		p.frames.Do(func() { err = p.filter.configure(cfg) })
		p.settler.Reset() // other ports may count now
	}
	if err != nil {
		p.log.Error("configuration refused, the old rules stay in force", "error", err)
		p.events.Raise(ctx, p.log, "error", "ConfigRefused", err.Error()+"; the old rules stay in force")
		return
	}
	p.inForce(cfg)
}

// report logs the counters.
func (p *program) report() {
	p.frames.Do(func() {
		c, n, s := p.filter.count, p.frames.Counters(), p.settler.Counters()
		p.log.Info("counters", "connections", c.Connections, "open", len(p.filter.flows), "memory", p.filter.budget.Used, "blocked", c.Blocked, "refused", c.Refused, "midstream", c.Midstream,
			"fragments", c.Fragments, "malformed", c.Malformed, "quic", c.QUIC, "segments dropped", c.Dropped, "frames", n.Sent[nf.Up]+n.Sent[nf.Down], "missed", n.Missed[nf.Up]+n.Missed[nf.Down], "settled", s.Settled)
	})
}
