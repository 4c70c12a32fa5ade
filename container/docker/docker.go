// Package docker drives containers through the API of a Docker engine, 1.40 and newer.
//
// The engine makes each container with the runtime "weir", a script that hands on to runc with the configuration of package kernel; see DESIGN.md. So a
// container is what the runtime oci makes of it, to the capability and the namespace, and package kernel drives it.
//
// It owns INSTANCE.Run/docker, INSTANCE.Root/docker, the cgroups weir/INSTANCE@docker/ID, the script, and in the engine the containers and the image that
// carry the instance's label. Whatever of the engine's does not carry it is never touched.
package docker

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"weir.dev/weir/container/kernel"
	"weir.dev/weir/container/oci"
	"weir.dev/weir/instance"
)

// Name of the driver.
const Name = "docker"

// Options of the driver; the zero value is useful.
type Options struct {
	kernel.Options
	Host       string // where the engine listens; default $DOCKER_HOST, or unix:///var/run/docker.sock
	Script     string // where the runtime "weir" is; default /var/lib/weir/docker-runtime
	Remove     bool   // only Destroy will be called: it can do without an engine where none was used
	Vulnerable bool   // accepts a runc with known escapes
}

// program is what the script hands on to. The driver calls it, too.
const program = "runc"

// New opens the instance's containers; see kernel.New.
func New(ctx context.Context, inst instance.Instance, o Options) (*kernel.Runtime, error) {
	rt, err := open(ctx, inst, o)
	if err != nil {
		return nil, fmt.Errorf("container runtime docker: %w", err)
	}
	return rt, nil
}

func open(ctx context.Context, inst instance.Instance, o Options) (*kernel.Runtime, error) {
	e, err := connect(inst, o)
	if err != nil {
		return nil, err
	}
	if o.Remove && !Left(inst) { // then there need be no engine
		return kernel.New(ctx, inst, Name, o.Options, func(*kernel.Home) (kernel.Engine, error) { return nothing{}, nil })
	}
	if err := e.prepare(ctx, !o.Remove); err != nil {
		return nil, err
	}
	o.Adopt = false // containers are children of the engine's shims
	return kernel.New(ctx, inst, Name, o.Options, func(h *kernel.Home) (kernel.Engine, error) {
		e.home, e.Engine = h, oci.Over(h, program, e.handle)
		return e, nil
	})
}

// usedFile is there while the instance may have something in the engine.
func usedFile(i instance.Instance) string { return filepath.Join(i.Root, Name, "engine") }

// Left tells whether an instance may have something of this driver.
func Left(i instance.Instance) bool {
	_, err := os.Lstat(usedFile(i))
	return err == nil || kernel.Left(i, Name)
}

// use records that there is something from now on.
func (e *engine) use() error {
	e.shared.Lock()
	defer e.shared.Unlock()
	if _, err := os.Lstat(usedFile(e.inst)); err == nil {
		return nil
	}
	return instance.WriteFile(usedFile(e.inst), []byte(e.host+"\n"))
}

// patience is how long an engine that restarts is waited for, where containers of ours may run in it.
const patience = 3 * time.Second

// prepare checks the engine and, to make containers, its runtime.
func (e *engine) prepare(ctx context.Context, create bool) error {
	limit := time.Now().Add(patience)
	found, err := e.look(ctx)
	for wait := 50 * time.Millisecond; errors.Is(err, errAway) && Left(e.inst) && time.Now().Before(limit); wait = min(2*wait, time.Second) {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(wait):
		}
		found, err = e.look(ctx)
	}
	if err != nil || !create {
		return err
	}
	if missing := e.lacks(found); missing != "" {
		return errors.New(missing)
	}
	return e.writeScript()
}

// nothing is the engine of an instance that has nothing in one.
type nothing struct{ kernel.Engine }

func (nothing) Left() ([]string, error)              { return nil, nil }
func (nothing) Remove(context.Context, string) error { return nil }
