// Package drivers lists the switch drivers of this program, once for all who choose among them: `weir up`, the lab, and what tells of a machine.
package drivers

import (
	"context"
	"log/slog"

	"weir.dev/weir/datapath"
	"weir.dev/weir/datapath/ebpf"
	"weir.dev/weir/datapath/ovs"
	"weir.dev/weir/instance"
)

// Options of every driver.
type Options struct {
	Instance instance.Instance
	Logger   *slog.Logger
	// AcceptBridged has the host's iptables accept what a bridge of the switch forwards, where bridged packets are shown to them; see ebpf.Options.
	AcceptBridged bool
	Private       bool // the switch shares no process with others, even where the machine runs one that it could use
}

// Driver is one way to forward on a host.
type Driver struct {
	Open func(ctx context.Context, o Options) (datapath.Switch, error)
	// Destroy removes what a switch of the instance has left, also where none was ever opened.
	Destroy func(ctx context.Context, o Options) error
	// Features tells what the machine has of what the switch uses. It changes nothing.
	Features func() []datapath.Feature
}

// All drivers by the name that --switch takes.
func All() map[string]Driver {
	return map[string]Driver{
		"ebpf": {
			Open:    func(ctx context.Context, o Options) (datapath.Switch, error) { return ebpf.Open(ctx, o.ebpf()) },
			Destroy: func(ctx context.Context, o Options) error { return ebpf.Destroy(ctx, o.ebpf()) }, Features: ebpf.Features,
		},
		"ovs": {
			Open:    func(ctx context.Context, o Options) (datapath.Switch, error) { return ovs.Open(ctx, o.ovs()) },
			Destroy: func(ctx context.Context, o Options) error { return ovs.Destroy(ctx, o.ovs()) }, Features: ovs.Features,
		},
	}
}

func (o Options) ebpf() ebpf.Options {
	return ebpf.Options{Instance: o.Instance, Logger: o.Logger, AcceptBridged: o.AcceptBridged}
}

func (o Options) ovs() ovs.Options {
	out := ovs.Options{Instance: o.Instance, Logger: o.Logger}
	if o.Private {
		out.OVSDB = ovs.Private
	}
	return out
}
