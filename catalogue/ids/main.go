// Command ids is a network function: Suricata, as Debian has it, between the ports in and out, where it drops what its rules say, or behind a tap.
//
// It writes Suricata's configuration, starts it, raises its alerts as events, and ends when Suricata ends. See README.md for the configuration.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"log/slog"
	"os"
	"os/signal"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"strings"
	"sync"
	"syscall"
	"time"

	"weir.dev/weir/catalogue/nf"
)

func main() {
	nf.Command()
	config := flag.String("config", nf.ConfigFile, "configuration file; read again when it changes and on SIGHUP")
	tap := flag.Bool("tap", false, "look at what comes to the port tap, instead of standing between in and out")
	events := flag.String("events", nf.EventsFile, "socket to raise events at, if it exists")
	metrics := flag.String("metrics", nf.MetricsFile, "socket to tell numbers at, if it exists")
	settleAt := flag.String("settle", nf.SettleFile, "socket to settle flows at, if it exists")
	dir := flag.String("dir", "/run/ids", "directory for Suricata's files")
	flag.Parse()
	debug.SetGCPercent(25)
	runtime.LockOSThread() // Suricata dies with the thread that starts it
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, os.Interrupt)
	defer stop()
	log := slog.New(slog.NewTextHandler(os.Stdout, nil))
	ports := []string{"in", "out"}
	if *tap {
		ports = []string{"tap"}
	}
	s := &ids{Start: nf.Start{Config: *config, Events: nf.Events(*events), Metrics: *metrics, Log: log}, dir: *dir, log: log, alerts: newAlerts(log)}
	if _, err := os.Stat(*settleAt); err == nil && !*tap {
		s.settler = nf.NewSettler(*settleAt, log)
		defer s.settler.Close()
		s.alerts.settle = func(e eve) { settle(s.settler, e, s.inner, time.Now()) }
	}
	if err := s.run(ctx, ports); err != nil {
		log.Error("ids ends", "error", err)
		os.Exit(1)
	}
}

type ids struct {
	nf.Start
	dir     string
	log     *slog.Logger
	alerts  *alerts
	settler *nf.Settler // nil: the platform takes no verdicts
	engine  *engine
	inner   []string // interfaces that Suricata reads
	cfg     config   // in force; of Serve's goroutine then
}

// run serves until ctx ends, or Suricata does. The doors are opened when Suricata reads packets: nothing passes before, and nothing passes without it.
func (s *ids) run(ctx context.Context, ports []string) error {
	told := s.Listen()
	defer told.Stop()
	if err := os.MkdirAll(s.dir, 0o700); err != nil {
		return err
	}
	var doors []*door
	for _, p := range ports {
		d, err := openDoor(p)
		if err != nil {
			return err
		}
		defer d.Close()
		doors = append(doors, d)
		s.inner = append(s.inner, d.inner.Attrs().Name)
	}
	raw, err := nf.ReadConfig(s.Config)
	if err != nil {
		return err
	}
	cfg, err := parseConfig(raw)
	if err != nil {
		return fmt.Errorf("configuration %s: %w", s.Config, err)
	}
	s.cfg = cfg
	if err := cfg.render(s.dir, s.dir, s.inner, s.settler != nil); err != nil {
		return err
	}
	l, err := listenEve(s.dir, s.alerts.take)
	if err != nil {
		return err
	}
	defer l.Close()
	if s.engine, err = startEngine(ctx, s.log, s.dir); err != nil {
		return err
	}
	defer s.engine.Stop()
	for _, d := range doors[1:] {
		if err := d.Up(); err != nil {
			return err
		}
		defer func() { _ = d.Down() }() // Suricata ends anyway
	}
	s.log.Info("rules in force", "files", len(cfg.RuleFiles))
	serving, end := context.WithCancel(ctx)
	var raising sync.WaitGroup
	raising.Go(func() {
		select {
		case <-s.engine.Ended:
			end()
		case <-serving.Done():
		}
	})
	raising.Go(func() { s.raise(serving) })
	err = nf.Serve(serving, s.log, doors[0], told, nf.Work{Load: s.load, Report: s.report, Numbers: s.alerts.numbers})
	end()
	raising.Wait()
	if err == nil && ctx.Err() == nil {
		err = fmt.Errorf("suricata has ended: %w", s.engine.Err())
	}
	return err
}

// report logs the counters.
func (s *ids) report() {
	s.alerts.report()
	if s.settler != nil {
		c := s.settler.Counters()
		s.log.Info("settled", "flows", c.Settled, "early", c.Early, "not_given", c.NotGiven, "refused", c.Refused, "lost", c.Lost)
	}
}

// raise events while there are some.
func (s *ids) raise(ctx context.Context) {
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-s.alerts.wake:
		case <-tick.C:
		}
		for _, e := range s.alerts.due(time.Now()) {
			s.Events.Raise(ctx, s.log, e.severity, e.reason, e.message)
		}
	}
}

// held says why a running Suricata cannot take a configuration as a whole: it reads some of it at its start only. Empty: it can.
func (s *ids) held(next *config) string {
	var names []string
	add := func(name string, other bool) {
		if other {
			names = append(names, name)
		}
	}
	add("depth", next.Depth != s.cfg.Depth)
	add("overload", next.Overload != s.cfg.Overload)
	add("bypass_encrypted", (next.Encrypted == nil || *next.Encrypted) != (s.cfg.Encrypted == nil || *s.cfg.Encrypted))
	if len(names) == 0 {
		return ""
	}
	return strings.Join(names, ", ") + " changed, which Suricata reads at its start only, so all of the former configuration stays: put the new one in force with `weir function restart`"
}

// load puts a configuration in force, without losing a packet. What is in force stays when it is no good.
func (s *ids) load(ctx context.Context, raw []byte) error {
	cfg, err := parseConfig(raw)
	if err != nil {
		return fmt.Errorf("configuration: %w", err)
	}
	if why := s.held(&cfg); why != "" {
		return errors.New(why)
	}
	trial := filepath.Join(s.dir, "trial")
	if err := os.MkdirAll(trial, 0o700); err != nil {
		return err
	}
	defer os.RemoveAll(trial)
	if err := cfg.render(trial, s.dir, s.inner, s.settler != nil); err != nil {
		return err
	}
	if err := check(ctx, trial); err != nil {
		return fmt.Errorf("rules: %w", err)
	}
	if err := cfg.render(s.dir, s.dir, s.inner, s.settler != nil); err != nil {
		return err
	}
	if err := s.engine.reload(); err != nil {
		return err
	}
	if s.settler != nil {
		s.settler.Reset()
	}
	s.cfg = cfg
	s.log.Info("rules in force", "files", len(cfg.RuleFiles))
	return nil
}
