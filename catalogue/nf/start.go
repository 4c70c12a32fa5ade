package nf

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"runtime/debug"
	"syscall"
)

// Start is what a function between two ports is started with: its flags, whose defaults are what the platform gives.
type Start struct {
	Config  string // file
	Probe   string // file with the addresses of the platform's probes
	In, Out string // ports
	Events  Events
	Metrics string // socket that takes the function's numbers
	Log     *slog.Logger
}

// Options of a loop over the frames of these ports.
func (s Start) Options() Options { return Options{In: s.In, Out: s.Out, Probe: s.Probe} }

// Main reads the command line and runs a function until SIGTERM. An error is logged and ends the process with exit code 1. A hundred functions may run on one
// machine: garbage is how much more memory than in use may be taken, in percent. A function's own flags are defined before. Called with
// one of the words of Command it runs that command.
func Main(name string, garbage int, run func(context.Context, Start) error) {
	Command()
	var s Start
	flag.StringVar(&s.Config, "config", ConfigFile, "configuration file")
	flag.StringVar(&s.Probe, "probe", ProbeFile, "file with the addresses of the platform's probe frames, if it exists")
	flag.StringVar(&s.In, "in", "in", "port of the clients")
	flag.StringVar(&s.Out, "out", "out", "port of the servers")
	flag.StringVar((*string)(&s.Events), "events", EventsFile, "socket to raise events at, if it exists")
	flag.StringVar(&s.Metrics, "metrics", MetricsFile, "socket to tell numbers at, if it exists")
	flag.Parse()
	debug.SetGCPercent(garbage)
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, os.Interrupt)
	defer stop()
	s.Log = slog.New(slog.NewTextHandler(os.Stdout, nil))
	if err := run(ctx, s); err != nil {
		s.Log.Error(name+" ends", "error", err)
		os.Exit(1)
	}
}

// DecodeConfig reads a configuration into a value that has the defaults; an empty one leaves them. Unknown fields are errors, and so is more than one value.
func DecodeConfig(raw []byte, into any) error {
	if len(bytes.TrimSpace(raw)) == 0 {
		return nil
	}
	dec := json.NewDecoder(bytes.NewReader(raw))
	dec.DisallowUnknownFields()
	if err := dec.Decode(into); err != nil {
		return err
	}
	if _, err := dec.Token(); !errors.Is(err, io.EOF) {
		return errors.New("more than one JSON value")
	}
	return nil
}
