// Command firewall is a network function: a transparent packet filter between its ports in and out.
//
// It makes a Linux bridge of the two ports and filters there with nftables, so frames never come to user space and traffic flows
// on by the last rules if this process dies. See README.md for the configuration and what always passes.
package main

import (
	"context"
	"fmt"
	"log/slog"

	"weir.dev/weir/catalogue/nf"
)

func main() {
	nf.Main("firewall", 25, func(ctx context.Context, s nf.Start) error {
		f := &firewall{path: s.Config, probe: s.Probe, in: s.In, out: s.Out, log: s.Log, events: s.Events, denials: &denials{events: s.Events}}
		return f.run(ctx)
	})
}

type firewall struct {
	path    string
	probe   string
	in, out string
	log     *slog.Logger
	events  nf.Events
	denials *denials
	kernel  *kernel
	seen    [2]nf.Mark       // of the configuration and the probe's addresses in force or refused
	denied  map[string]count // counters of denying rules at the last look
}

// run filters until ctx ends. The rules are in force before the bridge is up, so nothing passes unfiltered.
func (f *firewall) run(ctx context.Context) error {
	told := nf.Listen()
	defer told.Stop()
	f.seen = f.marks()
	cfg, err := load(f.path, f.probe)
	if err != nil {
		return err
	}
	b, err := nf.NewBridge("firewall", f.in, f.out)
	if err != nil {
		return err
	}
	defer b.Close()
	if f.kernel, err = newKernel(f.in, f.out); err != nil {
		return err
	}
	if err := f.apply(ctx, cfg); err != nil {
		return err
	}
	return nf.Serve(ctx, f.log, b, told, nf.Work{Changed: func() bool { return f.marks() != f.seen }, Reload: f.reload, Report: f.report, Look: f.watchDenials})
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
		f.events.Raise(ctx, f.log, "warning", "FeatureMissing", note)
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
		f.events.Raise(ctx, f.log, "error", "ConfigRefused", err.Error()+"; the old rules stay in force")
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
			f.denials.denied(ctx, f.log, c.rule, more)
		}
	}
	f.denied = now
}

func (f *firewall) marks() [2]nf.Mark { return [2]nf.Mark{nf.MarkOf(f.path), nf.MarkOf(f.probe)} }

func load(path, probe string) (config, error) {
	raw, err := nf.ReadConfig(path)
	if err != nil {
		return config{}, err
	}
	cfg, err := parseConfig(raw)
	if err != nil {
		return config{}, fmt.Errorf("configuration %s: %w", path, err)
	}
	if cfg.probe, err = nf.LoadProbe(probe); err != nil {
		return config{}, err
	}
	return cfg, nil
}
