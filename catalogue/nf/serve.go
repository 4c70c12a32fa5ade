package nf

import (
	"bytes"
	"context"
	"log/slog"
	"os"
	"os/signal"
	"syscall"
	"time"
)

// look is how often the files and the counters are looked at.
const look = 2 * time.Second

// TellEvery is how often functions tell numbers.
const TellEvery = 5 * time.Second

// Work is what a function does while it forwards. Its functions are called one after the other.
type Work struct {
	// Load puts a changed configuration in force, or leaves the former one as it is and says why: it is called on SIGHUP, when the files are others, and by the command
	// reload. nil: the configuration is read at the start only.
	Load    func(ctx context.Context, raw []byte) error
	Report  func()                // on SIGUSR1, and at the end
	Look    func(context.Context) // now and then; nil: nothing
	Numbers func(*Numbers)        // for the platform's metrics; nil: none
	// Export is the function's state and Import takes that of a former instance, for the commands of these names; nil: there is none.
	Export func() ([]byte, error)
	Import func([]byte) error
}

// Signals tell a function to read its files again (SIGHUP) and to report (SIGUSR1). From Listen on neither ends it.
type Signals struct {
	hup, usr1 chan os.Signal
	start     Start
	seen      [2]Mark // of the files in force or refused
}

// Listen to them until Stop. A change of the files from now on will be seen.
func (s Start) Listen() Signals {
	told := Signals{make(chan os.Signal, 1), make(chan os.Signal, 1), s, s.marks()}
	signal.Notify(told.hup, syscall.SIGHUP)
	signal.Notify(told.usr1, syscall.SIGUSR1)
	return told
}

func (s Start) marks() [2]Mark { return [2]Mark{MarkOf(s.Config), MarkOf(s.Probe)} }

// Stop listening.
func (s Signals) Stop() {
	signal.Stop(s.hup)
	signal.Stop(s.usr1)
}

// Gate is what frames pass while it is up, as a Bridge is.
type Gate interface {
	Up() error
	Down() error
}

// Serve takes the gate up and works until ctx ends. Stopped means stopped: then the gate is down, and no frame passes.
func Serve(ctx context.Context, log *slog.Logger, g Gate, told Signals, w Work) error {
	if err := g.Up(); err != nil {
		return err
	}
	defer func() {
		if err := g.Down(); err != nil {
			log.Warn("let no more frames pass", "error", err)
		}
	}()
	w.attend(ctx, told)
	w.Report()
	return nil
}

// attend to signals, files and commands until ctx ends.
func (w Work) attend(ctx context.Context, told Signals) {
	asked := make(chan request)
	defer listen(ctx, told.start.Log, asked)()
	d := &duty{Work: w, start: told.start, seen: told.seen}
	tick := time.NewTicker(look)
	defer tick.Stop()
	tell := time.NewTicker(TellEvery)
	defer tell.Stop()
	d.tell(ctx)
	for {
		select {
		case <-ctx.Done():
			return
		case <-told.hup:
			d.read(ctx, true)
		case <-told.usr1:
			w.Report()
		case r := <-asked:
			r.answer <- d.carryOut(ctx, r)
		case <-tell.C:
			d.tell(ctx)
		case <-tick.C:
			if d.start.marks() != d.seen {
				d.read(ctx, false)
			}
			if w.Look != nil {
				w.Look(ctx)
			}
		}
	}
}

// duty is Work that is done.
type duty struct {
	Work
	start Start
	seen  [2]Mark
	given []byte // the configuration in force, if the command reload gave it; nil: it is the file's
}

// read the files again. What is in force stays when the new configuration is no good. Unless anew, a file with what the command reload gave is nothing new.
func (d *duty) read(ctx context.Context, anew bool) {
	log := d.start.Log
	d.seen = d.start.marks()
	if d.Load == nil {
		log.Info("the configuration is read at the start only")
		return
	}
	raw, err := ReadConfig(d.start.Config)
	if err == nil && !anew && d.given != nil && bytes.Equal(raw, d.given) {
		return
	}
	if err == nil {
		err = d.Load(ctx, raw)
	}
	if err != nil {
		log.Error("configuration refused, the former one stays in force", "file", d.start.Config, "error", err)
		d.start.Events.Raise(ctx, log, "error", "ConfigRefused", err.Error()+"; the former configuration stays in force")
		return
	}
	d.given = nil
}
