// Command nat is a network function: it gives clients at its port in addresses of a pool at its port out, and forwards ports of the pool to clients.
//
// It stands in the line between both and is no router: frames keep their way, VLAN tags and TTL. See README.md.
package main

import (
	"context"
	"fmt"
	"time"

	"weir.dev/weir/catalogue/nf"
)

func main() { nf.Main("nat", 50, run) }

func run(ctx context.Context, s nf.Start) error {
	told := nf.Listen()
	defer told.Stop()
	raw, err := nf.ReadConfig(s.Config)
	if err != nil {
		return err
	}
	cfg, err := parseConfig(raw)
	if err != nil {
		return fmt.Errorf("configuration %s: %w", s.Config, err)
	}
	var frames *nf.Frames
	t := newTranslator(&cfg, time.Now, func(d nf.Dir, f nf.Frame) { frames.Send(d, f) })
	full := &nf.Packed{Events: s.Events, Reason: "SessionsExhausted"}
	noted := uint64(0)
	o := s.Options()
	o.Handle = t.handle
	o.Tick = func(now time.Time) {
		t.tick(now)
		if n := t.table.full - noted; n > 0 {
			full.Add("", fmt.Sprintf("no room for %d new sessions in a second; there are %d, and a client may have %d", n, len(t.table.inner), cfg.Sessions))
			noted = t.table.full
		}
	}
	if frames, err = nf.OpenFrames(o); err != nil {
		return err
	}
	defer frames.Close()
	log := s.Log
	log.Info("pool in force", "addresses", len(cfg.Pool), "forwarded ports", len(cfg.Forward))
	return frames.Serve(ctx, told, nf.Work{
		Changed: func() bool { return false }, // a changed configuration starts a new instance
		Reload:  func(context.Context) { log.Info("the configuration is read at the start only") },
		Look:    func(ctx context.Context) { full.Raise(ctx, log) },
		Report: func() {
			frames.Do(func() {
				c, n := frames.Counters(), t.count
				log.Info("counter", "sessions", len(t.table.inner), "no room", t.table.full, "translated up", n.translated[nf.Up], "translated down", n.translated[nf.Down],
					"dropped up", n.dropped[nf.Up], "dropped down", n.dropped[nf.Down], "passed up", n.passed[nf.Up], "passed down", n.passed[nf.Down],
					"missed", c.Missed[nf.Up]+c.Missed[nf.Down], "refused", c.Refused[nf.Up]+c.Refused[nf.Down])
			})
		},
	})
}
