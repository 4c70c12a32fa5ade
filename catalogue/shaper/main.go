// Command shaper is a network function: it bounds the rate of each direction between its ports in and out.
//
// It makes a Linux bridge of the two ports and shapes there with the kernel's queues, so frames never come to user space and traffic flows on within
// its bounds if this process dies. See README.md for the configuration, its classes and how clients share a rate.
package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/vishvananda/netlink"

	"weir.dev/weir/catalogue/nf"
)

func main() {
	nf.Main("shaper", 25, func(ctx context.Context, s nf.Start) error {
		return (&shaper{Start: s, log: s.Log}).run(ctx)
	})
}

type shaper struct {
	nf.Start
	log    *slog.Logger
	kernel *kernel
	bridge *nf.Bridge
	closed bool // no limits could be set, so nothing passes
}

// run shapes until ctx ends. The queues are in force before the bridge is up, so nothing passes unshaped.
func (s *shaper) run(ctx context.Context) error {
	told := s.Listen()
	defer told.Stop()
	var err error
	if s.bridge, err = nf.NewBridge("shaper", s.In, s.Out); err != nil {
		return err
	}
	defer s.bridge.Close()
	if s.kernel, err = newKernel(s.In, s.Out); err != nil {
		return err
	}
	raw, err := nf.ReadConfig(s.Config)
	if err == nil {
		err = s.load(ctx, raw)
	}
	if err != nil {
		return err
	}
	return nf.Serve(ctx, s.log, s.bridge, told, nf.Work{Load: s.load, Report: s.report, Numbers: s.numbers})
}

// load puts a configuration in force. What is in force stays when it is no good. If neither can be in force, nothing passes until one is.
func (s *shaper) load(_ context.Context, raw []byte) error {
	cfg, err := parseConfig(raw)
	if err != nil {
		return fmt.Errorf("configuration: %w", err)
	}
	probe, err := nf.LoadProbe(s.Probe)
	if err != nil {
		return err
	}
	former := s.kernel.now
	sharing, err := s.kernel.apply(cfg, probe)
	if err != nil && former != nil {
		if _, again := s.kernel.apply(*former, probe); again == nil {
			return fmt.Errorf("%w; the former limits are set again", err)
		}
	}
	if err != nil {
		s.closed = true
		return errors.Join(fmt.Errorf("%w; nothing passes until limits can be set", err), s.bridge.Down())
	}
	if s.closed {
		if err := s.bridge.Up(); err != nil {
			return err
		}
		s.closed = false
	}
	s.log.Info("limits in force", "up", cfg.Up.Rate, "down", cfg.Down.Rate, "queue", time.Duration(cfg.Queue), "classes", len(cfg.Classes), "fair among", sharing)
	return nil
}

// links by the direction that leaves there.
func (s *shaper) links() map[string]netlink.Link {
	return map[string]netlink.Link{"up": s.kernel.out, "down": s.kernel.in}
}

// numbers are what each port sent, and what its queues dropped.
func (s *shaper) numbers(n *nf.Numbers) {
	for name, link := range s.links() {
		all, classes := s.kernel.sent(link)
		n.Counter("shaper_sent_packets_total", "Packets that the queues of a direction have sent.", float64(all.packets), "direction", name)
		n.Counter("shaper_sent_bytes_total", "Bytes of these packets.", float64(all.bytes), "direction", name)
		n.Counter("shaper_dropped_packets_total", "Packets for which the queues of a direction had no room.", float64(all.drops), "direction", name)
		for _, c := range classes {
			n.Counter("shaper_class_sent_packets_total", "Packets of a class that a direction has sent.", float64(c.packets), "direction", name, "class", c.name)
			n.Counter("shaper_class_sent_bytes_total", "Bytes of these packets.", float64(c.bytes), "direction", name, "class", c.name)
			n.Counter("shaper_class_dropped_packets_total", "Packets for which a class had no room.", float64(c.drops), "direction", name, "class", c.name)
		}
	}
}

// report logs what each port sent, and what its queues dropped.
func (s *shaper) report() {
	for name, link := range s.links() {
		all, classes := s.kernel.sent(link)
		s.log.Info("counter", "direction", name, "bytes", all.bytes, "packets", all.packets, "dropped", all.drops)
		for _, c := range classes {
			s.log.Info("counter", "direction", name, "class", c.name, "bytes", c.bytes, "packets", c.packets, "dropped", c.drops)
		}
	}
}
