// Package drivers lists the container runtimes of this program, once for all who choose among them: the agent and the lab.
package drivers

import (
	"cmp"
	"context"
	"log/slog"
	"os"
	"path/filepath"
	"time"

	"weir.dev/weir/container"
	"weir.dev/weir/container/choice"
	"weir.dev/weir/container/docker"
	"weir.dev/weir/container/kernel"
	"weir.dev/weir/container/kvm"
	"weir.dev/weir/container/lxc"
	"weir.dev/weir/container/native"
	"weir.dev/weir/container/nspawn"
	"weir.dev/weir/container/oci"
	"weir.dev/weir/container/rkt"
	"weir.dev/weir/instance"
)

// OCI is the runtime whose program is any OCI runtime's.
const OCI = oci.Name

// Default is the runtime of functions that name none, on a host that names none.
const Default = native.Name

// Options of all drivers; each takes what it has use for. See kernel.Options and oci.Options.
type Options struct {
	CLI               string // program of the runtime oci
	KVMKernel         string // of virtual machines; default $WEIR_KVM_KERNEL, else it is looked for
	DockerHost        string // where Docker's engine listens; default $DOCKER_HOST, else its usual socket
	DockerScript      string // the engine's runtime "weir"; default where an operator has it
	Remove, KeepLogs  bool
	Once              bool // one container is to be made, or few: what would serve others is not
	Memory, DiskBytes int64
	Rings             int64
	CPUs              float64
	Adopt, Vulnerable bool
	Log               *slog.Logger
}

func (o Options) kernel() kernel.Options {
	return kernel.Options{KeepLogs: o.KeepLogs, Memory: o.Memory, DiskBytes: o.DiskBytes, CPUs: o.CPUs, Rings: o.Rings, Adopt: o.Adopt}
}

func (o Options) oci() oci.Options {
	return oci.Options{Options: o.kernel(), CLI: o.CLI, Remove: o.Remove, Vulnerable: o.Vulnerable, Log: o.Log}
}

func (o Options) kvm() kvm.Options {
	return kvm.Options{Options: o.kernel(), Kernel: cmp.Or(o.KVMKernel, os.Getenv("WEIR_KVM_KERNEL")), Remove: o.Remove, Alone: o.Once, Log: o.Log}
}

func (o Options) docker() docker.Options {
	return docker.Options{Options: o.kernel(), Host: o.DockerHost, Script: o.DockerScript, Remove: o.Remove, Vulnerable: o.Vulnerable}
}

// Driver is one way to run containers.
type Driver struct {
	// Open gives the runtime of an instance; it may be an io.Closer.
	Open func(ctx context.Context, i instance.Instance, o Options) (container.Runtime, error)
	// About tells what this host has of it, without Open. It makes nothing, and takes as long as its programs take to say their versions.
	About func(ctx context.Context, o Options) container.About
	// Left tells whether an instance may have something of it, without Open.
	Left func(i instance.Instance) bool
	// Programs that it runs.
	Programs []string
}

// All drivers by name.
func All() map[string]Driver {
	return map[string]Driver{
		native.Name: processes(native.Name, func(ctx context.Context, i instance.Instance, o Options) (*kernel.Runtime, error) {
			return native.New(ctx, i, o.kernel())
		}, func(ctx context.Context, _ Options) container.About { return native.About(ctx) }),
		native.Bare: processes(native.Bare, func(ctx context.Context, i instance.Instance, o Options) (*kernel.Runtime, error) {
			return native.NewBare(ctx, i, o.kernel())
		}, func(ctx context.Context, _ Options) container.About { return native.AboutBare(ctx) }),
		OCI: processes(OCI, func(ctx context.Context, i instance.Instance, o Options) (*kernel.Runtime, error) {
			return oci.New(ctx, i, o.oci())
		}, func(ctx context.Context, o Options) container.About { return oci.About(ctx, o.oci()) }, "runc"),
		lxc.Name: processes(lxc.Name, func(ctx context.Context, i instance.Instance, o Options) (*kernel.Runtime, error) {
			return lxc.New(ctx, i, lxc.Options{Options: o.kernel(), Remove: o.Remove})
		}, func(ctx context.Context, _ Options) container.About { return lxc.About(ctx) }, "lxc-start"),
		nspawn.Name: processes(nspawn.Name, func(ctx context.Context, i instance.Instance, o Options) (*kernel.Runtime, error) {
			return nspawn.New(ctx, i, nspawn.Options{Options: o.kernel(), Remove: o.Remove})
		}, func(ctx context.Context, _ Options) container.About { return nspawn.About(ctx) }, "systemd-nspawn"),
		rkt.Name: processes(rkt.Name, func(ctx context.Context, i instance.Instance, o Options) (*kernel.Runtime, error) {
			return rkt.New(ctx, i, rkt.Options{Options: o.kernel(), Remove: o.Remove})
		}, func(ctx context.Context, _ Options) container.About { return rkt.About(ctx) }, "rkt"),
		kvm.Name: processes(kvm.Name, func(ctx context.Context, i instance.Instance, o Options) (*kvm.Runtime, error) {
			return kvm.New(ctx, i, o.kvm())
		}, func(ctx context.Context, o Options) container.About { return kvm.About(ctx, o.kvm()) }, kvm.QEMU, "prlimit"),
		docker.Name: overDocker(),
	}
}

func overDocker() Driver {
	d := processes(docker.Name, func(ctx context.Context, i instance.Instance, o Options) (*kernel.Runtime, error) {
		return docker.New(ctx, i, o.docker())
	}, func(ctx context.Context, o Options) container.About { return docker.About(ctx, o.docker()) }, "runc")
	d.Left = docker.Left
	return d
}

// processes is a driver over an engine of package kernel.
func processes[R container.Runtime](name string, open func(context.Context, instance.Instance, Options) (R, error), about func(context.Context, Options) container.About,
	programs ...string) Driver {
	return Driver{
		Open: func(ctx context.Context, i instance.Instance, o Options) (container.Runtime, error) {
			rt, err := open(ctx, i, o)
			if err != nil { // not a nil pointer in an interface
				return nil, err
			}
			return rt, nil
		},
		About:    about,
		Left:     func(i instance.Instance) bool { return kernel.Left(i, name) },
		Programs: programs,
	}
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
