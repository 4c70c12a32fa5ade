// Command firewall is a network function: a transparent packet filter between its ports in and out.
//
// It makes a Linux bridge of the two ports and filters there with nftables, so frames never come to user space and traffic flows
// on by the last rules if this process dies. See README.md for the configuration and what always passes.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io/fs"
	"log/slog"
	"net"
	"os"
	"os/signal"
	"runtime/debug"
	"strings"
	"syscall"
	"time"
)

// look is how often the configuration file and the counters are looked at.
const look = 2 * time.Second

func main() {
	config := flag.String("config", "/etc/weir/config.json", "configuration file; read again when it changes and on SIGHUP")
	probe := flag.String("probe", "/etc/weir/probe", "file with the addresses of the probe frames that pass; none pass without it")
	in := flag.String("in", "in", "port of the clients")
	out := flag.String("out", "out", "port of the servers")
	events := flag.String("events", "/run/weir/events.sock", "socket to raise events at, if it exists")
	flag.Parse()
	debug.SetGCPercent(25) // a hundred of these may run on one machine; little is allocated after the start
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, os.Interrupt)
	defer stop()
	log := slog.New(slog.NewTextHandler(os.Stdout, nil))
	f := &firewall{path: *config, probe: *probe, in: *in, out: *out, log: log, events: &eventSink{path: *events}}
	if err := f.run(ctx); err != nil {
		log.Error("firewall ends", "error", err)
		os.Exit(1)
	}
}

type firewall struct {
	path    string
	probe   string
	in, out string
	log     *slog.Logger
	events  *eventSink
	kernel  *kernel
	seen    [2]fileMark      // of the configuration and the probe's addresses in force or refused
	denied  map[string]count // counters of denying rules at the last look
}

// run filters until ctx ends. The rules are in force before the bridge is up, so nothing passes unfiltered.
func (f *firewall) run(ctx context.Context) error {
	hup := make(chan os.Signal, 1)
	usr1 := make(chan os.Signal, 1)
	signal.Notify(hup, syscall.SIGHUP)
	signal.Notify(usr1, syscall.SIGUSR1)
	defer signal.Stop(hup)
	defer signal.Stop(usr1)

	f.seen = f.marks()
	cfg, err := load(f.path, f.probe)
	if err != nil {
		return err
	}
	b, err := newBridge(f.in, f.out)
	if err != nil {
		return err
	}
	defer b.close()
	if f.kernel, err = newKernel(f.in, f.out); err != nil {
		return err
	}
	if err := f.apply(ctx, cfg); err != nil {
		return err
	}
	if err := b.up(); err != nil {
		return err
	}
	// Stopped means stopped: no frame passes a firewall that was asked to end.
	defer func() {
		if err := b.down(); err != nil {
			f.log.Warn("take bridge down", "error", err)
		}
	}()

	tick := time.NewTicker(look)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			f.report()
			return nil
		case <-hup:
			f.reload(ctx)
		case <-usr1:
			f.report()
		case <-tick.C:
			if f.marks() != f.seen {
				f.reload(ctx)
			}
			f.watchDenials(ctx)
		}
	}
}

// apply puts a configuration in force in one step.
func (f *firewall) apply(ctx context.Context, cfg config) error {
	note, err := f.kernel.apply(cfg)
	if err != nil {
		return err
	}
	f.denied = nil
	f.log.Info("rules in force", "default", cfg.Default, "allow", cfg.Allow, "deny", cfg.Deny, "tracking", f.kernel.mode())
	if note != "" {
		f.log.Warn(note)
		f.events.raise(ctx, f.log, "warning", "FeatureMissing", note)
	}
	return nil
}

// reload keeps the rules that are in force when the new configuration is no good.
func (f *firewall) reload(ctx context.Context) {
	f.seen = f.marks()
	cfg, err := load(f.path, f.probe)
	if err == nil {
		err = f.apply(ctx, cfg)
	}
	if err != nil {
		f.log.Error("configuration refused, the old rules stay in force", "error", err)
		f.events.raise(ctx, f.log, "error", "ConfigRefused", err.Error()+"; the old rules stay in force")
	}
}

// report logs every rule's counter.
func (f *firewall) report() {
	counts, err := f.kernel.counters()
	if err != nil {
		f.log.Error("read counters", "error", err)
		return
	}
	for _, c := range counts {
		f.log.Info("counter", "rule", c.rule, "packets", c.packets, "bytes", c.bytes)
	}
}

// watchDenials logs and reports what was denied since the last look.
func (f *firewall) watchDenials(ctx context.Context) {
	counts, err := f.kernel.counters()
	if err != nil {
		f.log.Error("read counters", "error", err)
		return
	}
	now := map[string]count{}
	for _, c := range counts {
		if !c.denies {
			continue
		}
		now[c.rule] = c
		if more := c.packets - f.denied[c.rule].packets; c.packets > f.denied[c.rule].packets {
			f.log.Info("denied", "rule", c.rule, "packets", more, "total", c.packets)
			f.events.denied(ctx, f.log, c.rule, more)
		}
	}
	f.denied = now
}

// fileMark tells whether a file changed.
type fileMark struct {
	size  int64
	mtime time.Time
	inode uint64
}

func markOf(path string) fileMark {
	fi, err := os.Stat(path)
	if err != nil {
		return fileMark{}
	}
	m := fileMark{size: fi.Size(), mtime: fi.ModTime()}
	if st, ok := fi.Sys().(*syscall.Stat_t); ok {
		m.inode = st.Ino
	}
	return m
}

func (f *firewall) marks() [2]fileMark { return [2]fileMark{markOf(f.path), markOf(f.probe)} }

// loadProbe reads "destination source", the addresses of the frames by which the switch finds out whether we forward. nil: no such file.
func loadProbe(path string) ([]byte, error) {
	raw, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read the probe's addresses: %w", err)
	}
	fields := strings.Fields(string(raw))
	if len(fields) != 2 {
		return nil, fmt.Errorf("probe's addresses %s: want two MAC addresses", path)
	}
	var head []byte
	for _, text := range fields {
		mac, err := net.ParseMAC(text)
		if err != nil || len(mac) != 6 {
			return nil, fmt.Errorf("probe's addresses %s: %q is no MAC address", path, text)
		}
		head = append(head, mac...)
	}
	return head, nil
}

func load(path, probe string) (config, error) {
	raw, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		raw = nil
	} else if err != nil {
		return config{}, fmt.Errorf("read configuration: %w", err)
	}
	cfg, err := parseConfig(raw)
	if err != nil {
		return config{}, fmt.Errorf("configuration %s: %w", path, err)
	}
	if cfg.probe, err = loadProbe(probe); err != nil {
		return config{}, err
	}
	return cfg, nil
}
