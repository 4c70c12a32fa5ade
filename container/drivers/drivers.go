// Package drivers lists the container runtimes of this program, once for all who choose among them: the agent and the lab.
package drivers

import (
	"context"

	"weir.dev/weir/container"
	"weir.dev/weir/container/oci"
	"weir.dev/weir/instance"
)

// Default is the runtime that an agent has.
const Default = "oci"

// Options are those of the runtime oci, so far the only one.
type Options = oci.Options

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
				rt, err := oci.New(ctx, i, o)
				if err != nil { // not a nil pointer in an interface
					return nil, err
				}
				return rt, nil
			},
			About:    oci.About,
			Programs: []string{"runc"},
		},
	}
}
