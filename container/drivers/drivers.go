// Package drivers lists the container runtimes of this program, once for all who choose among them: the agent and the lab.
package drivers

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"weir.dev/weir/container"
	"weir.dev/weir/container/choice"
	"weir.dev/weir/container/oci"
	"weir.dev/weir/instance"
)

// OCI is the runtime whose program is any OCI runtime's.
const OCI = "oci"

// Default is the runtime of functions that name none, on a host that names none.
const Default = OCI

// Options are those of the runtime oci, so far the only one.
type Options = oci.Options

// Driver is one way to run containers.
type Driver struct {
	// Open gives the runtime of an instance; it may be an io.Closer.
	Open func(ctx context.Context, i instance.Instance, o Options) (container.Runtime, error)
	// About tells what this host has of it, without Open. It makes nothing, and takes as long as its programs take to say their versions.
	About func(ctx context.Context, o Options) container.About
	// Left tells, without Open and at once, whether there may be something of the instance that Open takes over or removes. nil: there may.
	Left func(i instance.Instance) bool
	// Programs that it runs.
	Programs []string
}

// All drivers by name.
func All() map[string]Driver {
	return map[string]Driver{
		OCI: {
			Open: func(ctx context.Context, i instance.Instance, o Options) (container.Runtime, error) {
				rt, err := oci.New(ctx, i, o)
				if err != nil { // not a nil pointer in an interface
					return nil, err
				}
				return rt, nil
			},
			About: oci.About,
			Left: func(i instance.Instance) bool {
				return anyIn(filepath.Join(i.Run, "oci", "bundles"), filepath.Join(i.Run, "oci", "state"), filepath.Join(i.Root, "containers"))
			},
			Programs: []string{"runc"},
		},
	}
}

// anyIn tells whether there is something in one of the directories, as far as can be told.
func anyIn(dirs ...string) bool {
	for _, dir := range dirs {
		entries, err := os.ReadDir(dir)
		if len(entries) > 0 || err != nil && !errors.Is(err, fs.ErrNotExist) {
			return true
		}
	}
	return false
}

// openAgain spares a host attempts to open what has just failed: many functions may want it.
const openAgain = 2 * time.Second

// Open gives all of them as one runtime: each container is run by the one that it names, or by fallback.
func Open(ctx context.Context, i instance.Instance, o Options, fallback string) (*choice.Runtime, error) {
	c := choice.Options{Dir: filepath.Join(i.Run, "runtimes"), Default: fallback, Drivers: map[string]choice.Driver{}, Again: openAgain, Log: o.Log}
	for name, d := range All() {
		bound := choice.Driver{
			Open:  func(ctx context.Context) (container.Runtime, error) { return d.Open(ctx, i, o) },
			About: func(ctx context.Context) container.About { return d.About(ctx, o) },
		}
		if d.Left != nil {
			bound.Left = func() bool { return d.Left(i) }
		}
		c.Drivers[name] = bound
	}
	return choice.Open(ctx, c)
}
