// Command impair is a network function: it delays, loses, doubles, reorders and slows chosen frames, for tests and teaching.
//
// It does that in user space, since kernels without CONFIG_NET_SCH_NETEM exist. What it does to the n-th frame of a direction follows from a seed. See README.md.
package main

import (
	"context"
	"fmt"
	"time"

	"weir.dev/weir/catalogue/nf"
)

func main() { nf.Main("impair", 50, run) }

func run(ctx context.Context, s nf.Start) error {
	told := s.Listen()
	defer told.Stop()
	raw, err := nf.ReadConfig(s.Config)
	if err != nil {
		return err
	}
	cfg, err := parseConfig(raw)
	if err != nil {
		return fmt.Errorf("configuration %s: %w", s.Config, err)
	}
	full := &nf.Packed{Events: s.Events, Reason: "BufferFull"}
	m := newImpairer(&cfg)
	var frames *nf.Frames
	o := s.Options()
	o.Handle = func(d nf.Dir, f nf.Frame) nf.Verdict { return m.handle(d, f, time.Now()) }
	o.Due = func(now time.Time) time.Time { return m.due(now, func(d nf.Dir, f nf.Frame) { frames.Send(d, f) }) }
	o.Tick = func(time.Time) {
		if n := m.full(); n > 0 {
			full.Add("", fmt.Sprintf("%d frames of a second were lost, since more than %d bytes would have waited (buffer)", n, cfg.Buffer))
		}
	}
	if frames, err = nf.OpenFrames(o); err != nil {
		return err
	}
	defer frames.Close()
	log := s.Log
	log.Info("impairments in force", "seed", cfg.Seed, "up", !cfg.Up.idle(), "down", !cfg.Down.idle())
	return frames.Serve(ctx, told, nf.Work{
		Look: func(ctx context.Context) { full.Raise(ctx, log) },
		Numbers: func(n *nf.Numbers) {
			frames.Do(func() {
				for d, l := range m.lines {
					way := map[nf.Dir]string{nf.Up: "up", nf.Down: "down"}[nf.Dir(d)]
					for fate, v := range map[string]uint64{"lost": l.count.lost, "doubled": l.count.doubled, "held": l.count.held, "queue_full": l.count.queueFull, "buffer_full": l.count.bufferFull} {
						n.Counter("impair_frames_total", "Frames that were impaired, by what became of them.", float64(v), "direction", way, "fate", fate)
					}
				}
			})
		},
		Report: func() {
			frames.Do(func() {
				c := frames.Counters()
				for d, l := range m.lines {
					log.Info("counter", "direction", nf.Dir(d), "taken", l.count.taken, "lost", l.count.lost, "doubled", l.count.doubled, "held", l.count.held,
						"queue full", l.count.queueFull, "buffer full", l.count.bufferFull, "waiting", len(l.waiting), "missed", c.Missed[d], "refused", c.Refused[d])
				}
			})
		},
	})
}

// impairer decides about frames. It is used by one goroutine.
type impairer struct {
	cfg   *config
	lines [2]*line
	noted uint64 // of bufferFull
}

func newImpairer(cfg *config) *impairer {
	return &impairer{cfg: cfg, lines: [2]*line{newLine(cfg.Up, cfg, streamUp), newLine(cfg.Down, cfg, streamDown)}}
}

func (m *impairer) handle(d nf.Dir, f nf.Frame, now time.Time) nf.Verdict {
	l := m.lines[d]
	if l.idle() {
		return nf.Pass
	}
	if p := nf.Decode(f.Data); !m.cfg.selects(&p) || l.take(f, now) {
		return nf.Pass
	}
	return nf.Drop
}

// atOnce is how many frames of a direction are sent before others are received.
const atOnce = 64

// due sends the frames whose time has come, and tells when more will be.
func (m *impairer) due(now time.Time, send func(nf.Dir, nf.Frame)) (next time.Time) {
	for d, l := range m.lines {
		var at time.Time
		for range atOnce {
			var f *frame
			if f, at = l.due(now); f == nil {
				break
			}
			send(nf.Dir(d), f.f)
		}
		if !at.IsZero() && (next.IsZero() || at.Before(next)) {
			next = at
		}
	}
	return next
}

// full counts the frames since the last call for which the buffer had no room.
func (m *impairer) full() uint64 {
	all := m.lines[nf.Up].count.bufferFull + m.lines[nf.Down].count.bufferFull
	n := all - m.noted
	m.noted = all
	return n
}
