// Command shaper is a network function: it bounds the rate of each direction between its ports in and out.
//
// It makes a Linux bridge of the two ports and shapes there with the kernel's queues, so frames never come to user space and traffic flows on within
// its bounds if this process dies. See README.md for the configuration and how clients share a rate.
package main

import (
	"context"
	"fmt"
	"log/slog"
	"time"

	"github.com/vishvananda/netlink"

	"weir.dev/weir/catalogue/nf"
)

func main() {
	nf.Main("shaper", 25, func(ctx context.Context, s nf.Start) error {
		return (&shaper{path: s.Config, probe: s.Probe, log: s.Log, events: s.Events}).run(ctx, s.In, s.Out)
	})
}

type shaper struct {
	path, probe string
	log         *slog.Logger
	events      nf.Events
	kernel      *kernel
	seen        [2]nf.Mark // of the files in force or refused
}

// run shapes until ctx ends. The queues are in force before the bridge is up, so nothing passes unshaped.
func (s *shaper) run(ctx context.Context, in, out string) error {
	told := nf.Listen()
	defer told.Stop()
	b, err := nf.NewBridge("shaper", in, out)
	if err != nil {
		return err
	}
	defer b.Close()
	if s.kernel, err = newKernel(in, out); err != nil {
		return err
	}
	if err := s.load(); err != nil {
		return err
	}
	return nf.Serve(ctx, s.log, b, told, nf.Work{Changed: func() bool { return s.marks() != s.seen }, Reload: s.reload, Report: s.report})
}

func (s *shaper) marks() [2]nf.Mark { return [2]nf.Mark{nf.MarkOf(s.path), nf.MarkOf(s.probe)} }

// load the configuration and put it in force.
func (s *shaper) load() error {
	s.seen = s.marks()
	raw, err := nf.ReadConfig(s.path)
	if err != nil {
		return err
	}
	cfg, err := parseConfig(raw)
	if err != nil {
		return fmt.Errorf("configuration %s: %w", s.path, err)
	}
	probe, err := nf.LoadProbe(s.probe)
	if err != nil {
		return err
	}
	sharing, err := s.kernel.apply(cfg, probe)
	if err != nil {
		return err
	}
	s.log.Info("limits in force", "up", cfg.Up.Rate, "down", cfg.Down.Rate, "queue", time.Duration(cfg.Queue), "fair among", sharing)
	return nil
}

// reload keeps what is in force when the new configuration is no good.
func (s *shaper) reload(ctx context.Context) {
	if err := s.load(); err != nil {
		s.log.Error("configuration refused", "error", err)
		s.events.Raise(ctx, s.log, "error", "ConfigRefused", err.Error())
	}
}

// report logs what each port sent, and what its queues dropped.
func (s *shaper) report() {
	for name, link := range map[string]netlink.Link{"up": s.kernel.out, "down": s.kernel.in} {
		bytes, packets, drops := s.kernel.sent(link)
		s.log.Info("counter", "direction", name, "bytes", bytes, "packets", packets, "dropped", drops)
	}
}
