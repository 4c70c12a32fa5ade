// Package solo runs one function by itself, without a daemon: the real image in a sandbox as the agent makes it, in a container of any runtime, with its
// configuration, its events and its probe file. Authors of functions try and test them so.
//
// Each run is an instance of its own (fn-XXXXXXX) in network namespaces of its own; nothing of it is in the host's namespace. A locked file says that its
// process lives. When that has ended, however, the next run removes what it left.
package solo

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"weir.dev/weir/agent/events"
	"weir.dev/weir/agent/health"
	"weir.dev/weir/agent/kernel"
	"weir.dev/weir/agent/sandbox"
	"weir.dev/weir/agent/socket"
	"weir.dev/weir/agent/xdp"
	"weir.dev/weir/api"
	"weir.dev/weir/bpf"
	"weir.dev/weir/container"
	"weir.dev/weir/container/drivers"
	"weir.dev/weir/datapath"
	"weir.dev/weir/flow"
	"weir.dev/weir/image"
	"weir.dev/weir/instance"
	"weir.dev/weir/netns"
)

// Errors that callers tell apart.
var (
	ErrConfig    = errors.New("the configuration is not what the image takes")
	ErrForbidden = errors.New("not permitted")
	ErrCase      = errors.New("the case does not fit the image")
	ErrEnded     = errors.New("the function has ended")
	ErrTimeout   = errors.New("not in time")
)

// name of the function in its instance.
const name = "function"

// Bounds.
const (
	maxEvents = 10_000
	maxLog    = 1 << 20
	stopGrace = 3 * time.Second
	removeFor = 30 * time.Second
)

// DefaultMTU of the function's ports.
const DefaultMTU = 1500

// Options of one run.
type Options struct {
	Image   string   // as an image store resolves it
	Layouts []string // that are searched for it
	Config  map[string]any
	Runtime string   // "": the default one
	Allow   []string // capabilities beyond those that count in the function's namespace only
	Env     []string
	MTU     int      // 0: DefaultMTU
	Session *Session // where it runs; nil: in one of its own
}

// Function is one that runs.
type Function struct {
	Image image.Image
	// Runtime is what runs it.
	Runtime string

	o       Options
	inst    instance.Instance
	own     *Session // that ends with it; nil: none does
	images  *image.Store
	boxes   *sandbox.Maker
	box     sandbox.Box
	rt      container.Runtime
	about   container.About
	spec    container.Spec
	events  *socket.HTTP
	xdp     *xdp.Server // of an image that hands AF_XDP sockets over
	wire    io.Closer
	probe   datapath.ProbeAddresses
	stop    context.CancelFunc // of what watches it
	ended   chan struct{}      // closed when its process has ended
	endedAs container.Status   // then
	ports   [flow.Sides]*port  // other ends of its links that are open; nil: none

	mu     sync.Mutex
	raised []api.Event
	missed int // events beyond maxEvents
}

// home makes links between a namespace of the run and others, as the agent does between the host's and others.
type home struct {
	kernel.Host
	path string
}

func (h home) Veth(space string, pairs ...netns.VethOptions) (made bool, err error) {
	err = netns.Do(h.path, func() error { made, err = h.Host.Veth(space, pairs...); return err })
	return made, err
}

func (h home) SetMTU(space string, mtu int, pairs map[string]string) error {
	return netns.Do(h.path, func() error { return h.Host.SetMTU(space, mtu, pairs) })
}

func (h home) DeleteLinks(names ...string) error {
	if !netns.Exists(h.path) {
		return nil
	}
	return netns.Do(h.path, func() error { return h.Host.DeleteLinks(names...) })
}

func homeOf(i instance.Instance) home { return home{path: filepath.Join(i.NetnsDir(), "home")} }

// Prepare makes everything but the container: namespaces, image, configuration. Close removes it.
func Prepare(ctx context.Context, o Options) (*Function, error) {
	if o.MTU == 0 {
		o.MTU = DefaultMTU
	}
	if o.Runtime == "" {
		o.Runtime = drivers.Default
	}
	driver, ok := drivers.All()[o.Runtime]
	if !ok {
		return nil, fmt.Errorf("runtime %q: %w: this program has %s", o.Runtime, container.ErrMissing, strings.Join(slices.Sorted(maps.Keys(drivers.All())), ", "))
	}
	f := &Function{o: o, Runtime: o.Runtime, ended: make(chan struct{})}
	if f.about = driver.About(ctx, drivers.Options{}); f.about.Missing != "" {
		return nil, fmt.Errorf("runtime %s: %w: %s", o.Runtime, container.ErrMissing, f.about.Missing)
	}
	if o.Session == nil {
		var err error
		if f.own, err = NewSession(); err != nil {
			return nil, err
		}
		o.Session = f.own
	}
	f.inst = o.Session.inst
	if err := f.prepare(ctx, driver); err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return f, nil
}

// check the image and what it is to get.
func (f *Function) check() error {
	if wrong := f.Image.Contract.CheckConfig(f.o.Config); len(wrong) > 0 {
		var lines []string
		for _, p := range wrong {
			lines = append(lines, p.String())
		}
		return fmt.Errorf("%w: %s", ErrConfig, strings.Join(lines, "; "))
	}
	if want := f.Image.Contract.Forwarder; want != "" && want != datapath.Wire {
		return fmt.Errorf("image %s wants the forwarder %s: %w: here is %s", f.o.Image, want, datapath.ErrUnsupported, datapath.Wire)
	}
	if f.Image.Contract.XDP && f.about.Machine {
		return fmt.Errorf("image %s takes frames by AF_XDP sockets of this machine's kernel: %w: functions in the runtime %s have a kernel of their own", f.o.Image, datapath.ErrUnsupported, f.Runtime)
	}
	return f.checkCapabilities()
}

func (f *Function) prepare(ctx context.Context, driver drivers.Driver) (err error) {
	space := homeOf(f.inst)
	f.images = image.Open(f.inst, f.o.Layouts...)
	f.boxes = sandbox.New(f.inst, space, f.images)
	if f.Image, err = f.images.Resolve(f.o.Image); err != nil {
		return err
	}
	if err := f.check(); err != nil {
		return err
	}
	if err := netns.Create(space.path, netns.Options{Quiet: true}); err != nil {
		return err
	}
	if f.rt, err = driver.Open(ctx, f.inst, drivers.Options{Adopt: true, Remove: true, Once: f.own != nil, Log: slog.New(slog.DiscardHandler)}); err != nil {
		return err
	}
	if f.box, err = f.boxes.New(name, 1, !f.about.Userns); err != nil {
		return err
	}
	rootfs, err := f.images.Mount(ctx, f.o.Image)
	if err != nil {
		return err
	}
	if err := f.writeConfig(); err != nil {
		return err
	}
	f.spec = container.Spec{
		Runtime: f.o.Runtime, Rootfs: rootfs, ReadOnly: true, Args: f.Image.Args, Dir: f.Image.Dir, Env: slices.Concat(f.Image.Env, f.o.Env),
		Capabilities: f.Image.Contract.Needs(f.o.Allow),
		Mounts: []container.Mount{
			{Source: f.path("etc"), Target: sandbox.ConfigDir, ReadOnly: true},
			{Source: f.path("run"), Target: socketDir, ReadOnly: true},
		},
		Annotations: map[string]string{"weir.instance": f.inst.Name, "weir.function": name, "weir.image": f.Image.Digest},
	}
	if f.about.Machine { // what acts in its namespace would act before the machine saw a frame
		f.spec.Forwarder = f.Image.Contract.Forwarder
	}
	return nil
}

// socketDir is where a function raises its events, inside the container.
const socketDir = "/run/weir"

func (f *Function) path(elem ...string) string {
	return filepath.Join(append([]string{f.inst.Run, "functions", name}, elem...)...)
}

// checkCapabilities refuses an image that asks for what counts beyond its own namespace, unless that is allowed.
func (f *Function) checkCapabilities() error {
	unshared := f.boxes.Unshared()
	if unshared != nil && !sandbox.Cannot(unshared) {
		return fmt.Errorf("whether the function can have a user namespace is not known: %w", unshared)
	}
	refused := f.Image.Contract.Refused(f.o.Allow, unshared == nil && f.about.Userns)
	if len(refused) == 0 {
		return nil
	}
	return fmt.Errorf("image %s asks for %s, which counts on this machine itself: %w; --allow %s if you trust the image with that", f.o.Image,
		strings.Join(refused, ", "), ErrForbidden, strings.Join(refused, " --allow "))
}

// writeConfig writes what the function finds in /etc/weir, and listens for its events.
func (f *Function) writeConfig() error {
	if err := os.MkdirAll(filepath.Dir(f.path()), 0o700); err != nil {
		return err
	}
	for _, d := range []string{f.path("etc"), f.path("run")} {
		if err := os.MkdirAll(d, 0o755); err != nil {
			return err
		}
	}
	config := f.o.Config
	if config == nil {
		config = map[string]any{}
	}
	text, err := json.Marshal(config)
	if err != nil {
		return fmt.Errorf("configuration: %w", err)
	}
	key := health.Key{File: filepath.Join(f.inst.Root, "probe.key")}
	if f.probe, err = key.Addresses(name); err != nil {
		return err
	}
	err = errors.Join(instance.Replace(f.path("etc", "config.json"), text, 0o644),
		instance.Replace(f.path("etc", "probe"), fmt.Appendf(nil, "%s %s\n", f.probe.Dst, f.probe.Src), 0o644))
	if err != nil {
		return fmt.Errorf("configuration: %w", err)
	}
	if f.events, err = events.Serve(f.path("events.new"), f.path("run", "events.sock"), name, f.raise); err != nil || !f.Image.Contract.XDP {
		return err
	}
	own, err := socket.SpaceAt(f.box.Net())
	if err != nil {
		return err
	}
	f.xdp, err = xdp.Serve(f.path("xdp.new"), f.path("run", "xdp.sock"), func(s socket.Space) (string, bool) { return f.box.Net(), s == own })
	return err
}

func (f *Function) raise(e api.Event) {
	e.Time = time.Now()
	f.mu.Lock()
	defer f.mu.Unlock()
	if len(f.raised) < maxEvents {
		f.raised = append(f.raised, e)
	} else {
		f.missed++
	}
}

// Events that the function has raised so far.
func (f *Function) Events() []api.Event {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.Clone(f.raised)
}

// start runs the container. The function's links are there and up.
func (f *Function) start(ctx context.Context) error {
	if f.Image.Contract.Forwarder == datapath.Wire && !f.about.Machine {
		err := netns.Do(f.box.Net(), func() (err error) {
			f.wire, err = bpf.AttachWire(flow.In.String(), flow.Out.String())
			return err
		})
		if err != nil {
			return err
		}
	}
	spec, err := f.boxes.Enter(ctx, &f.box, f.o.Image, f.spec)
	if err != nil {
		return err
	}
	f.spec = spec
	if err := f.rt.Run(ctx, spec); err != nil {
		return err
	}
	watch, stop := context.WithCancel(context.WithoutCancel(ctx))
	f.stop = stop
	go func() {
		st, err := f.rt.Wait(watch, spec.ID)
		if watch.Err() != nil {
			return
		}
		if err != nil {
			st = container.Status{ID: spec.ID, State: container.Stopped, ExitCode: -1}
		}
		f.endedAs = st
		close(f.ended)
	}()
	return nil
}

// Ended tells how its process ended; nil: it runs.
func (f *Function) Ended() error {
	select {
	case <-f.ended:
	default:
		return nil
	}
	c := f.endedAs
	switch {
	case c.OOM && c.Short == container.ShortHost:
		return fmt.Errorf("%w: the host is out of memory", ErrEnded)
	case c.OOM:
		return fmt.Errorf("%w: out of memory", ErrEnded)
	case c.Signal > 0:
		return fmt.Errorf("%w: killed by signal %d", ErrEnded, c.Signal)
	case c.ExitCode >= 0:
		return fmt.Errorf("%w: exit code %d", ErrEnded, c.ExitCode)
	}
	return ErrEnded
}

// Log is what the function has printed, at most the last maxLog bytes of it.
func (f *Function) Log() string {
	if f.rt == nil || f.spec.ID == "" {
		return ""
	}
	ctx, cancel := context.WithTimeout(context.Background(), stopGrace)
	defer cancel()
	logs, err := f.rt.Logs(ctx, f.spec.ID, container.LogOptions{})
	if err != nil {
		return ""
	}
	defer logs.Close()
	b, _ := io.ReadAll(io.LimitReader(logs, 16*maxLog))
	if len(b) > maxLog {
		b = b[len(b)-maxLog:]
	}
	return strings.ToValidUTF8(string(b), "?")
}

// Stop ends the function's process as an operator does, SIGTERM first, so that what it says at its end is in its log.
func (f *Function) Stop() {
	if f.rt == nil || f.spec.ID == "" {
		return
	}
	if f.stop != nil {
		f.stop()
	}
	ctx, cancel := context.WithTimeout(context.Background(), removeFor)
	defer cancel()
	_ = f.rt.Stop(ctx, f.spec.ID, stopGrace) // Close removes what does not end
}

// Close removes everything that was made.
func (f *Function) Close() error {
	if f.stop != nil {
		f.stop()
	}
	f.events.Close()
	f.xdp.Close()
	f.closePorts()
	var errs []error
	if f.wire != nil {
		errs = append(errs, f.wire.Close())
	}
	ctx, cancel := context.WithTimeout(context.Background(), removeFor)
	defer cancel()
	if f.rt != nil {
		errs = append(errs, f.rt.Destroy(ctx))
		if x, ok := f.rt.(io.Closer); ok {
			errs = append(errs, x.Close())
		}
	}
	errs = append(errs, clearRun(ctx, f.inst, f.images))
	if f.own != nil {
		errs = append(errs, f.own.Close())
	}
	return errors.Join(errs...)
}
