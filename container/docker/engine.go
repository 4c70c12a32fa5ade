package docker

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/containerd/errdefs"
	api "github.com/moby/moby/api/types/container"
	"github.com/moby/moby/client"

	"weir.dev/weir/container"
	"weir.dev/weir/container/kernel"
	"weir.dev/weir/container/oci"
	"weir.dev/weir/instance"
)

// Labels of all that this driver makes in the engine.
const (
	labelInstance = "weir.instance"
	labelID       = "weir.id"
	labelImage    = "weir.image"
)

// engine is kernel.Engine over the API. What the runtime's program does by itself, once a container is made, is oci.Engine's.
type engine struct {
	*oci.Engine
	home   *kernel.Home
	inst   instance.Instance
	host   string
	script string
	api    *client.Client
	shared sync.Mutex // held while what all containers share is made: usedFile and the image
}

var _ kernel.Foreign = (*engine)(nil)

// Stepwise: see kernel.Stepwise.
func (*engine) Stepwise() {}

// The script finds a container's bundle by a link with the engine's id.
func (e *engine) linksDir() string               { return filepath.Join(e.inst.Run, Name, "engine") }
func (e *engine) bundle(id string) string        { return filepath.Join(e.inst.Run, Name, "bundles", id) }
func (e *engine) containerName(id string) string { return "weir-" + e.inst.Name + "-" + id }

// Launch has the engine make and start the container: to the engine it runs from now on. The script records what is needed before it is called.
func (e *engine) Launch(ctx context.Context, c kernel.Container, log *os.File, _ bool, made kernel.Made) error {
	if err := e.launch(ctx, c, log.Name()); err != nil {
		if ctx.Err() != nil {
			return errors.Join(ctx.Err(), err)
		}
		return oci.Explain(Name, err, c.Spec)
	}
	raw, err := os.ReadFile(filepath.Join(c.Bundle, "pid"))
	pid, perr := strconv.Atoi(strings.TrimSpace(string(raw)))
	if err = errors.Join(err, perr); err != nil {
		return fmt.Errorf("the runtime %s left no pid: %w", runtimeName, err)
	}
	return made(pid, true)
}

func (e *engine) launch(ctx context.Context, c kernel.Container, log string) error {
	for name, target := range map[string]string{"log": log, "oom": e.home.OOMFile(c.ID), "failcnt": e.home.FailuresFile(c.ID)} {
		if err := os.Symlink(target, filepath.Join(c.Bundle, name)); err != nil {
			return err
		}
	}
	if err := errors.Join(e.use(), os.MkdirAll(e.linksDir(), 0o700)); err != nil {
		return err
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	// The engine goes on with a request whose caller has left: its end is waited for, so that it can be undone.
	ctx, cancel := linger(ctx, lingerFor)
	defer cancel()
	ctx, stop := context.WithTimeout(ctx, requestTimeout)
	defer stop()
	id, err := e.create(ctx, c.Spec, filepath.Join(c.Bundle, askedFile))
	if err != nil {
		return explain(err)
	}
	if err := os.Symlink(c.Bundle, filepath.Join(e.linksDir(), id)); err != nil {
		return err
	}
	return e.asking(filepath.Join(c.Bundle, startFile), func() error {
		_, err := e.api.ContainerStart(ctx, id, client.ContainerStartOptions{})
		return explain(err)
	})
}

// A bundle has one of these files while the engine may be making, or starting, a container of which no answer has come: the engine, or this process, was
// killed meanwhile.
const (
	askedFile = "asked"
	startFile = "starting"
)

// asking makes a request whose marker stays if no answer comes.
func (e *engine) asking(marker string, request func() error) error {
	if err := os.WriteFile(marker, nil, 0o600); err != nil {
		return err
	}
	err := request()
	if err != nil && !answered(err) {
		return err
	}
	return errors.Join(err, os.Remove(marker))
}

const (
	lingerFor      = 10 * time.Second
	requestTimeout = time.Minute
)

// linger gives a context that ends some time after another.
func linger(ctx context.Context, d time.Duration) (context.Context, context.CancelFunc) {
	out, cancel := context.WithCancel(context.WithoutCancel(ctx))
	stop := context.AfterFunc(ctx, func() {
		t := time.NewTimer(d)
		defer t.Stop()
		select {
		case <-out.Done():
		case <-t.C:
			cancel()
		}
	})
	return out, func() { stop(); cancel() }
}

// create makes the engine's container. The image, and what an earlier call left under the name, are seen to when the engine says that they are in the way.
func (e *engine) create(ctx context.Context, s container.Spec, asked string) (string, error) {
	for try := 0; ; try++ {
		var id string
		err := e.asking(asked, func() error {
			r, err := e.api.ContainerCreate(ctx, e.config(s))
			id = r.ID
			return err
		})
		switch {
		case err == nil:
			return id, nil
		case try > 2:
			return "", err
		case errdefs.IsNotFound(err):
			err = e.importImage(ctx)
		case errdefs.IsConflict(err):
			err = e.giveWay(ctx, s.ID)
		}
		if err != nil {
			return "", err
		}
	}
}

// answered tells errors that the engine has told from those of the connection.
func answered(err error) bool {
	return errdefs.IsNotFound(err) || errdefs.IsConflict(err) || errdefs.IsInvalidArgument(err) || errdefs.IsInternal(err) && !client.IsErrConnectionFailed(err)
}

// giveWay removes a container that has the name of ours, if it is ours.
func (e *engine) giveWay(ctx context.Context, id string) error {
	name := e.containerName(id)
	c, err := e.api.ContainerInspect(ctx, name, client.ContainerInspectOptions{})
	if errdefs.IsNotFound(err) {
		return nil
	}
	if err != nil {
		return err
	}
	if !e.ours(c.Container.Config, id) {
		return fmt.Errorf("the engine has a container %s that is not of instance %s (no label %s): rename it (docker rename %s NAME)",
			name, e.inst.Name, labelInstance, name)
	}
	return e.Remove(ctx, id)
}

func (e *engine) ours(c *api.Config, id string) bool {
	return c != nil && c.Labels[labelInstance] == e.inst.Name && c.Labels[labelID] == id
}

// config is what the engine is told. What runs is the bundle's configuration; this says the same where the engine shows it, and makes it set up nothing
// else: no network, no log.
func (e *engine) config(s container.Spec) client.ContainerCreateOptions {
	h := &api.HostConfig{
		Runtime: runtimeName, NetworkMode: "none", UsernsMode: "host", CapDrop: []string{"ALL"}, CapAdd: s.Capabilities, ReadonlyRootfs: s.ReadOnly,
		SecurityOpt: []string{"no-new-privileges"}, LogConfig: api.LogConfig{Type: "none"}, RestartPolicy: api.RestartPolicy{Name: "no"},
	}
	c := &api.Config{
		Image: e.image(), Cmd: s.Args, WorkingDir: s.Dir, User: fmt.Sprintf("%d:%d", s.UID, s.GID), NetworkDisabled: true,
		Labels: map[string]string{labelInstance: e.inst.Name, labelID: s.ID, labelImage: s.Image},
	}
	h.Resources = resources(s)
	return client.ContainerCreateOptions{Name: e.containerName(s.ID), Config: c, HostConfig: h}
}

// resources are the limits as far as the engine takes them: it has bounds of its own.
func resources(s container.Spec) (r api.Resources) {
	if s.Memory >= leastMemory {
		r.Memory = s.Memory
	}
	if s.CPUs >= 0.01 && s.CPUs <= float64(runtime.NumCPU()) {
		r.NanoCPUs = int64(s.CPUs * 1e9)
	}
	if s.PIDs > 0 {
		r.PidsLimit = &s.PIDs
	}
	r.CpusetCpus = s.CPUSet
	return r
}

const leastMemory = 6 << 20 // that an engine takes

// late is how long after a crash a container may appear that was being made.
const late, lateEvery = 2 * time.Second, 50 * time.Millisecond

// Remove removes the engine's container, and what an engine that was killed has left of it.
func (e *engine) Remove(ctx context.Context, id string) error {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	h := e.handle(id)
	if err := e.removeFromEngine(ctx, id); err != nil {
		return fmt.Errorf("%s: %w", Name, err)
	}
	return e.Forget(ctx, id, h)
}

// removeFromEngine forces: the engine may not have seen yet that the process has ended.
func (e *engine) removeFromEngine(ctx context.Context, id string) error {
	c, err := e.api.ContainerInspect(ctx, e.containerName(id), client.ContainerInspectOptions{})
	if e.marked(id, askedFile) {
		for wait := late; errdefs.IsNotFound(err) && wait > 0 && ctx.Err() == nil; wait -= lateEvery {
			time.Sleep(lateEvery)
			c, err = e.api.ContainerInspect(ctx, e.containerName(id), client.ContainerInspectOptions{})
		}
	}
	if err == nil && e.ours(c.Container.Config, id) {
		if e.marked(id, startFile) {
			// An engine that was killed at it does not know that containerd has a task for the container, with a shim. It removes that when it is to start
			// the container again, which the script then refuses, and does not when it is to remove the container.
			_, _ = e.api.ContainerStart(ctx, c.Container.ID, client.ContainerStartOptions{})
		}
		err = e.removeContainer(ctx, c.Container.ID)
	}
	if err != nil && !errdefs.IsNotFound(err) {
		return explain(err)
	}
	return e.unlink(func(name, target string) (bool, error) {
		if target != e.bundle(id) {
			return false, nil
		}
		if e.marked(id, startFile) || e.half(id) {
			if err := endShim(ctx, name); err != nil {
				return false, err
			}
		}
		return true, nil
	})
}

// gone is what an engine says of a container that ended by itself just when it was to be killed: it does not remove it then.
const gone = "is not running"

// removeContainer waits for another's removal, too, such as one that a caller has left.
func (e *engine) removeContainer(ctx context.Context, id string) error {
	for wait := 10 * time.Millisecond; ; wait = min(2*wait, time.Second) {
		_, err := e.api.ContainerRemove(ctx, id, client.ContainerRemoveOptions{Force: true, RemoveVolumes: true})
		if err == nil || !errdefs.IsConflict(err) && !strings.Contains(err.Error(), gone) {
			return err
		}
		select {
		case <-ctx.Done():
			return errors.Join(ctx.Err(), err)
		case <-time.After(wait):
		}
	}
}

// made is what the script has recorded of a container: the directory where runc keeps what it knows of it, the engine's id, and containerd's directory.
func (e *engine) made(id string) (root, name, below string, ok bool) {
	raw, err := os.ReadFile(filepath.Join(e.bundle(id), "made"))
	lines := strings.Split(string(raw), "\n")
	if err != nil || len(lines) < 4 {
		return "", "", "", false
	}
	return lines[0], lines[1], lines[2], true
}

// handle of a container that runc was not called for yet is one that it does not know.
func (e *engine) handle(id string) oci.Handle {
	if root, name, _, ok := e.made(id); ok {
		return oci.Handle{Root: root, ID: name}
	}
	return oci.Handle{Root: e.linksDir(), ID: id}
}

// half tells whether containerd still has its directory of a container that the engine has removed.
func (e *engine) half(id string) bool {
	_, _, below, ok := e.made(id)
	if !ok {
		return false
	}
	_, err := os.Lstat(below)
	return err == nil
}

func (e *engine) marked(id, file string) bool {
	_, err := os.Lstat(filepath.Join(e.bundle(id), file))
	return err == nil
}

// unlink removes links to bundles.
func (e *engine) unlink(which func(name, target string) (bool, error)) error {
	links, err := os.ReadDir(e.linksDir())
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	for _, l := range links {
		path := filepath.Join(e.linksDir(), l.Name())
		target, err := os.Readlink(path)
		if err != nil {
			continue
		}
		if yes, err := which(l.Name(), target); err != nil {
			return err
		} else if !yes {
			continue
		}
		if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	return nil
}

// Find asks runc, where the engine has answered. Else the engine may still be at it, or think that it has failed: what there is is of no use.
func (e *engine) Find(ctx context.Context, c kernel.Container) (kernel.Found, error) {
	if _, _, _, ok := e.made(c.ID); !ok || e.marked(c.ID, askedFile) || e.marked(c.ID, startFile) {
		return kernel.Found{}, nil
	}
	return e.Engine.Find(ctx, c)
}

// Left are all containers of the instance that the engine has, also those that nobody started.
func (e *engine) Left() ([]string, error) {
	ctx, cancel := context.WithTimeout(context.Background(), requestTimeout)
	defer cancel()
	list, err := e.api.ContainerList(ctx, client.ContainerListOptions{All: true, Filters: make(client.Filters).Add("label", labelInstance+"="+e.inst.Name)})
	if err != nil {
		return nil, fmt.Errorf("find containers: %s: %w", Name, explain(err))
	}
	var ids []string
	for _, c := range list.Items {
		if id := c.Labels[labelID]; id != "" && slices.Contains(c.Names, "/"+e.containerName(id)) {
			ids = append(ids, id)
		}
	}
	return ids, nil
}

// ExitCode asks until the engine has seen the end, or is there again.
func (e *engine) ExitCode(ctx context.Context, id string) (int, bool) {
	for wait := 10 * time.Millisecond; ; wait = min(2*wait, time.Second) {
		c, err := e.api.ContainerInspect(ctx, e.containerName(id), client.ContainerInspectOptions{})
		switch {
		case err == nil && !e.ours(c.Container.Config, id), errdefs.IsNotFound(err):
			return 0, false
		case err == nil && c.Container.State != nil && c.Container.State.Status == api.StateExited:
			return c.Container.State.ExitCode, true
		}
		select {
		case <-ctx.Done():
			return 0, false
		case <-time.After(wait):
		}
	}
}

// Destroy removes the image. Containers are gone.
func (e *engine) Destroy(ctx context.Context) error {
	if err := e.unlink(func(string, string) (bool, error) { return true, nil }); err != nil {
		return err
	}
	if err := e.removeImages(ctx); err != nil {
		return err
	}
	if err := os.Remove(usedFile(e.inst)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}
