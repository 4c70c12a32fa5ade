// Command nat is a network function: it gives clients at its port in addresses of a pool at its port out, and forwards ports of the pool to clients.
//
// It stands in the line between both and is no router: frames keep their way, VLAN tags and TTL. See README.md.
package main

import (
	"context"
	"flag"
	"fmt"
	"time"

	"weir.dev/weir/catalogue/nf"
)

func main() {
	settle := flag.String("settle", nf.SettleFile, "socket to settle flows at, if it exists")
	nf.Main("nat", 50, func(ctx context.Context, s nf.Start) error {
		p := &program{Start: s, settler: nf.NewSettler(*settle, s.Log)}
		defer p.settler.Close()
		p.settler.Reset() // of a former process
		return p.run(ctx)
	})
}

// program is the function. What it has of the translator belongs to the goroutine of the loop over frames; which translator that is changes load alone, beside whose goroutine
// no other one asks.
type program struct {
	nf.Start
	frames *nf.Frames
	t      *translator
	full   nf.Packed
	noted  uint64 // sessions without room that were told

	settler *nf.Settler
}

func (p *program) run(ctx context.Context) error {
	told := p.Listen()
	defer told.Stop()
	raw, err := nf.ReadConfig(p.Config)
	if err != nil {
		return err
	}
	cfg, err := parseConfig(raw)
	if err != nil {
		return fmt.Errorf("configuration %s: %w", p.Config, err)
	}
	p.t = p.translator(&cfg)
	p.full = nf.Packed{Events: p.Events, Reason: "SessionsExhausted"}
	o := p.Options()
	o.Handle = func(d nf.Dir, f nf.Frame) nf.Verdict { return p.t.handle(d, f) }
	o.Tick, o.Settler = p.tick, p.settler
	if p.frames, err = nf.OpenFrames(o); err != nil {
		return err
	}
	defer p.frames.Close()
	p.inForce(&cfg)
	return p.frames.Serve(ctx, told, nf.Work{
		Load: p.load, Export: p.export, Import: p.take, Report: p.report, Numbers: p.numbers,
		Look: func(ctx context.Context) { p.full.Raise(ctx, p.Log) },
	})
}

func (p *program) translator(cfg *config) *translator {
	t := newTranslator(cfg, func() time.Time { return p.frames.Now() }, func(d nf.Dir, f nf.Frame) { p.frames.Send(d, f) })
	t.settler, t.copy = p.settler, func(f nf.Frame) nf.Frame { return p.frames.Copy(f) }
	return t
}

func (p *program) inForce(cfg *config) {
	p.Log.Info("pool in force", "addresses", len(cfg.Pool), "forwarded ports", len(cfg.Forward))
}

func (p *program) tick(now time.Time) {
	p.t.tick(now)
	if n := p.t.table.full - p.noted; n > 0 {
		p.full.Add("", fmt.Sprintf("no room for %d new sessions in a second; there are %d, and a client may have %d", n, len(p.t.table.inner), p.t.cfg.Sessions))
		p.noted = p.t.table.full
	}
}

// load puts a configuration in force between two frames. Sessions that it still allows go on; the others end.
func (p *program) load(_ context.Context, raw []byte) error {
	cfg, err := parseConfig(raw)
	if err != nil {
		return fmt.Errorf("configuration: %w", err)
	}
	next, left := p.translator(&cfg), 0
	rest := next.table.follow(p.frames.Do, p.t.table, nf.AtOnce, time.Now())
	p.frames.Do(func() {
		rest()
		left = len(p.t.table.all) - len(next.table.all)
		next.table.full += p.t.table.full
		p.noted = next.table.full
		next.count, next.stations = p.t.count, p.t.stations
		p.t = next
		p.settler.Reset() // other flows are translated now
	})
	p.inForce(&cfg)
	if left > 0 {
		p.Log.Info("sessions ended, which the configuration does not allow any more", "sessions", left)
	}
	return nil
}

// export the sessions for another instance.
func (p *program) export() ([]byte, error) {
	return p.t.table.export(p.frames.Do, time.Now()), nil
}

// take the sessions of another instance.
func (p *program) take(state []byte) error {
	taken, left, err := p.t.table.restore(p.frames.Do, state, time.Now())
	if err == nil {
		p.Log.Info("sessions of the former instance", "taken", taken, "left", left)
	}
	return err
}

// numbers are the counters and how full the table is.
func (p *program) numbers(n *nf.Numbers) {
	p.frames.Do(func() {
		t := p.t
		n.Gauge("nat_sessions", "Sessions in the table.", float64(len(t.table.inner)))
		n.Gauge("nat_sessions_max", "Sessions for which there is room.", maxSessions)
		n.Counter("nat_settled_total", "Directions of flows that were settled.", float64(p.settler.Counters().Settled))
		n.Counter("nat_sessions_refused_total", "Sessions for which there was no room.", float64(t.table.full))
		for d, name := range map[nf.Dir]string{nf.Up: "up", nf.Down: "down"} {
			n.Counter("nat_translated_packets_total", "Packets that were translated.", float64(t.count.translated[d]), "direction", name)
			n.Counter("nat_dropped_packets_total", "Packets that belong to no session.", float64(t.count.dropped[d]), "direction", name)
			n.Counter("nat_passed_packets_total", "Packets that passed as they came.", float64(t.count.passed[d]), "direction", name)
		}
	})
}

// report logs the counters.
func (p *program) report() {
	p.frames.Do(func() {
		c, t, n := p.frames.Counters(), p.t, p.t.count
		p.Log.Info("counter", "sessions", len(t.table.inner), "no room", t.table.full, "translated up", n.translated[nf.Up], "translated down", n.translated[nf.Down],
			"dropped up", n.dropped[nf.Up], "dropped down", n.dropped[nf.Down], "passed up", n.passed[nf.Up], "passed down", n.passed[nf.Down],
			"missed", c.Missed[nf.Up]+c.Missed[nf.Down], "refused", c.Refused[nf.Up]+c.Refused[nf.Down])
	})
}
