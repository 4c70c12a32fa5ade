// Command cache is a network function: nginx, as Debian has it, between the ports in and out. It answers HTTP requests that were answered before, and hands on
// everything else.
//
// It leads connections to configured ports to nginx and those that nginx makes to the servers, in the names of the clients; both keep their addresses, and see
// each other's. See README.md for the configuration, links.go and translate.go for how.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"runtime"
	"sync"
	"time"

	"weir.dev/weir/catalogue/nf"
)

func main() {
	run := flag.String("run", "/run/cache", "directory for nginx's files")
	tmp := flag.String("tmp", "/tmp/cache", "directory for answers")
	runtime.LockOSThread() // nginx dies with the thread that starts it
	nf.Main("cache", 50, func(ctx context.Context, s nf.Start) error { return serve(ctx, s, *run, *tmp) })
}

// serve until ctx ends, or nginx does. No frame passes before nginx answers, and none passes without it: what comes then is the platform's to say (on_fail).
func serve(ctx context.Context, s nf.Start, run, tmp string) error {
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
	stack, err := openLinks()
	if err != nil {
		return err
	}
	for _, dir := range []string{run, tmp} {
		if err := os.MkdirAll(dir, 0o700); err != nil {
			return err
		}
	}
	served := &results{}
	listening, err := served.listen(run)
	if err != nil {
		return err
	}
	defer listening.Close()
	e, err := startEngine(ctx, s.Log, cfg, run, tmp)
	if err != nil {
		return err
	}
	defer e.Stop()
	var frames *nf.Frames
	t := newTranslator(cfg.Ports, stack, func() time.Time { return frames.Now() }, func(d nf.Dir, f nf.Frame) { frames.Send(d, f) })
	o := s.Options()
	o.Side, o.Handle, o.Tick = loopLink, t.handle, t.tick
	closed := []string{o.Out, o.In} // ports from which the kernel's stack takes nothing
	if short, err := openShortcut(o.In, stackLink, loopLink, t.linkHeader, cfg.Ports); err == nil {
		defer short.Close()
		t.short, o.After = short, cfg.Ports
		if short.atOnce { // at in its table sees to that
			closed = closed[:1]
		}
	} else {
		s.Log.Info("the kernel has no shortcut: all segments go through the function", "error", err)
	}
	for _, port := range closed {
		if err := nf.StrictReversePath(port); err != nil {
			return err
		}
	}
	if frames, err = nf.OpenFrames(o); err != nil {
		return err
	}
	defer frames.Close()
	serving, end := context.WithCancelCause(ctx)
	var watching sync.WaitGroup
	watching.Go(func() { end(e.watch(serving)) })
	s.Log.Info("cache in force", "ports", cfg.Ports, "size", cfg.SizeMB<<20, "longest", cfg.MaxObjectKB<<10)
	full := &nf.Packed{Events: s.Events, Reason: "CacheOverloaded"}
	noted := uint64(0)
	err = frames.Serve(serving, told, nf.Work{
		Numbers: func(n *nf.Numbers) {
			frames.Do(func() {
				n.Counter("cache_connections_total", "Connections that nginx has taken.", float64(t.count.Connections))
				n.Counter("cache_uncached_connections_total", "Connections that went to their servers, since nginx had too many.", float64(t.count.Full))
				n.Gauge("cache_open_connections", "Connections that are open.", float64(len(t.accepted.of)))
			})
		},
		Look: func(ctx context.Context) {
			frames.Do(func() {
				if n := t.count.Full - noted; n > 0 {
					full.Add("", fmt.Sprintf("%d connections went to their servers uncached: nginx has %d", n, len(t.accepted.of)))
					noted = t.count.Full
				}
			})
			full.Raise(ctx, s.Log)
		},
		Report: func() {
			frames.Do(func() {
				c, n := frames.Counters(), t.count
				s.Log.Info("counters", append([]any{
					"connections", n.Connections, "open", len(t.accepted.of), "to servers", n.Dialled, "shortened", n.Shortened, "failures of the shortcut", n.Failed, "uncached", n.Full, "dropped", n.Dropped,
					"missed", c.Missed[nf.Up] + c.Missed[nf.Down] + c.Missed[nf.Side], "refused", c.Refused[nf.Up] + c.Refused[nf.Down] + c.Refused[nf.Side],
				}, served.list()...)...)
			})
		},
	})
	if err == nil && ctx.Err() == nil {
		err = context.Cause(serving)
	}
	end(nil)
	watching.Wait()
	return err
}
