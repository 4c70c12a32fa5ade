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
	"log/slog"
	"net"
	"sync"

	"weir.dev/weir/catalogue/nf"
)

func main() {
	settle := flag.String("settle", nf.SettleFile, "socket to settle flows at, if it exists")
	nf.Main("firewall", 25, func(ctx context.Context, s nf.Start) error {
		f := &firewall{Start: s, log: s.Log, events: s.Events, denials: &denials{events: s.Events}}
		f.settling.path, f.settling.to = *settle, nf.NewSettler(*settle, s.Log)
		defer f.settling.to.Close()
		return f.run(ctx)
	})
}

type firewall struct {
	nf.Start
	log     *slog.Logger
	events  nf.Events
	denials *denials
	kernel  *kernel
	denied  map[string]count // counters of denying rules at the last look
	before  count            // what rules that are in force no more have denied

	settling settling
}

// run filters until ctx ends. The rules are in force before the bridge is up, so nothing passes unfiltered.
func (f *firewall) run(ctx context.Context) error {
	told := f.Listen()
	defer told.Stop()
	raw, err := nf.ReadConfig(f.Config)
	if err != nil {
		return err
	}
	b, err := nf.NewBridge("firewall", f.In, f.Out)
	if err != nil {
		return err
	}
	defer b.Close()
	if f.kernel, err = newKernel(f.In, f.Out); err != nil {
		return err
	}
	tracked, err := f.settleAt()
	if err != nil {
		return err
	}
	defer tracked.close()
	if err := f.load(ctx, raw); err != nil {
		return err
	}
	var beside sync.WaitGroup
	defer beside.Wait()
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	beside.Go(func() {
		f.settling.run(ctx, func(err error) { f.log.Warn("settle flows", "error", err) })
	})
	return nf.Serve(ctx, f.log, b, told, nf.Work{Load: f.load, Report: f.report, Look: f.watchDenials, Numbers: f.numbers})
}

// load puts a configuration in force in one step: nothing passes unfiltered, and what the kernel tracks goes on. The rules that are in force stay when it is no good.
func (f *firewall) load(ctx context.Context, raw []byte) error {
	cfg, err := parseConfig(raw)
	if err != nil {
		return fmt.Errorf("configuration: %w", err)
	}
	if cfg.probe, err = nf.LoadProbe(f.Probe); err != nil {
		return err
	}
	if f.denied != nil {
		f.watchDenials(ctx) // the counters of the former rules end
	}
	note, err := f.apply(cfg)
	if err != nil {
		return err
	}
	for _, c := range f.denied {
		f.before.packets += c.packets
		f.before.bytes += c.bytes
	}
	f.denied = nil
	f.log.Info("rules in force", "default", cfg.Default, "allow", cfg.Allow, "deny", cfg.Deny, "tracking", f.kernel.mode())
	if note != "" {
		f.log.Warn(note)
		f.events.Raise(ctx, f.log, "warning", "FeatureMissing", note)
	}
	return nil
}

// settleAt the ports.
func (f *firewall) settleAt() (*connections, error) {
	for name, index := range map[string]*int{f.In: &f.settling.in, f.Out: &f.settling.out} {
		port, err := net.InterfaceByName(name)
		if err != nil {
			return nil, fmt.Errorf("port %s: %w", name, err)
		}
		*index = port.Index
	}
	c, err := newConnections()
	if err != nil {
		return nil, err
	}
	f.settling.liberal = c.liberal
	return c, nil
}

// apply puts rules in force, and takes back what was said of flows by the former ones. A kernel that cannot collect flows filters all the same.
func (f *firewall) apply(cfg config) (note string, err error) {
	s := &f.settling
	s.Lock()
	defer s.Unlock()
	f.kernel.settles = s.wanted() && (cfg.Settle == nil || *cfg.Settle)
	note, err = f.kernel.apply(cfg)
	if err != nil && f.kernel.settles {
		f.kernel.settles = false
		var again error
		if note, again = f.kernel.apply(cfg); again != nil {
			return "", errors.Join(err, again)
		}
		f.log.Warn("no flow is settled", "error", err)
		err = nil
	}
	if err != nil {
		return "", err
	}
	s.sets, s.tracked = f.kernel.now.accepted, f.kernel.tracked(cfg)
	s.anew()
	return note, nil
}

// numbers are what the rules that deny have denied.
func (f *firewall) numbers(n *nf.Numbers) {
	all := f.before
	for _, c := range f.denied {
		all.packets += c.packets
		all.bytes += c.bytes
	}
	n.Counter("firewall_denied_packets_total", "Packets that the rules denied.", float64(all.packets))
	n.Counter("firewall_denied_bytes_total", "Bytes of these packets.", float64(all.bytes))
	n.Counter("firewall_settled_total", "Directions of flows that were settled.", float64(f.settling.to.Counters().Settled))
	n.Gauge("firewall_denying_rules", "Rules that deny, the default among them.", float64(len(f.denied)))
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
