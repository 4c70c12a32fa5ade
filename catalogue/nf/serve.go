package nf

import (
	"context"
	"log/slog"
	"os"
	"os/signal"
	"syscall"
	"time"
)

// look is how often the files and the counters are looked at.
const look = 2 * time.Second

// Work is what a function does while it forwards.
type Work struct {
	Changed func() bool           // whether its files are others than those in force or refused
	Reload  func(context.Context) // on SIGHUP, and when they are
	Report  func()                // on SIGUSR1, and at the end
	Look    func(context.Context) // now and then; nil: nothing
}

// Signals tell a function to read its files again (SIGHUP) and to report (SIGUSR1). From Listen on neither ends it.
type Signals struct{ hup, usr1 chan os.Signal }

// Listen to them until Stop.
func Listen() Signals {
	s := Signals{make(chan os.Signal, 1), make(chan os.Signal, 1)}
	signal.Notify(s.hup, syscall.SIGHUP)
	signal.Notify(s.usr1, syscall.SIGUSR1)
	return s
}

// Stop listening.
func (s Signals) Stop() {
	signal.Stop(s.hup)
	signal.Stop(s.usr1)
}

// Serve takes the bridge up and works until ctx ends. Stopped means stopped: then the bridge is down, and no frame passes.
func Serve(ctx context.Context, log *slog.Logger, b *Bridge, told Signals, w Work) error {
	if err := b.Up(); err != nil {
		return err
	}
	defer func() {
		if err := b.Down(); err != nil {
			log.Warn("take bridge down", "error", err)
		}
	}()
	w.attend(ctx, told)
	w.Report()
	return nil
}

// attend to signals and files until ctx ends.
func (w Work) attend(ctx context.Context, told Signals) {
	tick := time.NewTicker(look)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-told.hup:
			w.Reload(ctx)
		case <-told.usr1:
			w.Report()
		case <-tick.C:
			if w.Changed() {
				w.Reload(ctx)
			}
			if w.Look != nil {
				w.Look(ctx)
			}
		}
	}
}
