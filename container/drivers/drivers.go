// Package drivers lists the container runtimes of this program, once for all who choose among them: the agent and the lab.
package drivers

import (
	"context"
	"log/slog"

	"weir.dev/weir/container"
	"weir.dev/weir/container/kernel"
	"weir.dev/weir/container/native"
	"weir.dev/weir/container/oci"
	"weir.dev/weir/instance"
)

// Default is the runtime that an agent has.
const Default = "oci"

// Options of all drivers; each takes what it has use for. See kernel.Options and oci.Options.
type Options struct {
	CLI               string // program of the runtime oci
	Remove, KeepLogs  bool
	Memory, DiskBytes int64
	CPUs              float64
	Adopt, Vulnerable bool
	Log               *slog.Logger
}

func (o Options) kernel() kernel.Options {
	return kernel.Options{KeepLogs: o.KeepLogs, Memory: o.Memory, DiskBytes: o.DiskBytes, CPUs: o.CPUs, Adopt: o.Adopt}
}

func (o Options) oci() oci.Options {
	return oci.Options{Options: o.kernel(), CLI: o.CLI, Remove: o.Remove, Vulnerable: o.Vulnerable, Log: o.Log}
}

// Driver is one way to run containers.
type Driver struct {
	// Open gives the runtime of an instance; it may be an io.Closer.
	Open func(ctx context.Context, i instance.Instance, o Options) (container.Runtime, error)
	// About tells what this host has of it, without Open. It makes nothing, and takes as long as its programs take to say their versions.
	About func(ctx context.Context, o Options) container.About
	// Programs that it runs.
	Programs []string
}

// All drivers by name.
func All() map[string]Driver {
	return map[string]Driver{
		Default: {
			Open: func(ctx context.Context, i instance.Instance, o Options) (container.Runtime, error) {
				rt, err := oci.New(ctx, i, o.oci())
				if err != nil { // not a nil pointer in an interface
					return nil, err
				}
				return rt, nil
			},
			About:    func(ctx context.Context, o Options) container.About { return oci.About(ctx, o.oci()) },
			Programs: []string{"runc"},
		},
		native.Name: {
			Open: func(ctx context.Context, i instance.Instance, o Options) (container.Runtime, error) {
				rt, err := native.New(ctx, i, o.kernel())
				if err != nil {
					return nil, err
				}
				return rt, nil
			},
			About: func(ctx context.Context, _ Options) container.About { return native.About(ctx) },
		},
	}
}
