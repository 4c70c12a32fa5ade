package agent

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"weir.dev/weir/agent/sandbox"
	"weir.dev/weir/api"
	"weir.dev/weir/container"
	"weir.dev/weir/datapath"
	"weir.dev/weir/flow"
	"weir.dev/weir/image"
	"weir.dev/weir/instance"
	"weir.dev/weir/netns"
	"weir.dev/weir/portkind"
)

// probeFile is where a function finds its probe addresses in its configuration: "destination source", as in an Ethernet header.
const probeFile = "probe"

// socketDir is where a function raises its events, inside the container.
const socketDir = "/run/weir"

// attachment is what a function's ports were made from; equal means nothing to do.
type attachment struct {
	tap, speaks bool
	settles     bool
	finished    bool // frames come to it as on a wire
	xdp         bool // takes frames by AF_XDP sockets
	exports     bool // flows, to the host's collector
	forwarder   string
	onFail      api.OnFail
	done        bool
}

// prepare makes what the container needs that does not depend on its sandbox: image, configuration, and what it is made from.
func (f *function) prepare(ctx context.Context, want api.Function) (image.Image, container.Spec, error) {
	img, err := f.a.Images.Resolve(want.Spec.Image)
	if err != nil {
		return img, container.Spec{}, err
	}
	about, err := f.a.runtime(ctx, want.Spec.Runtime)
	if err != nil && started(want.Spec) && !(f.have == container.Running && f.a.runtimeOf(f.container()) == about.Name) { // what runs goes on
		return img, container.Spec{}, err
	}
	if err == nil {
		if p := f.a.checkIn(about, f.name, want.Spec, img); p != nil { // the image has changed since it was admitted
			return img, container.Spec{}, errors.New(strings.TrimSuffix(p.Message+": "+p.Hint, ": "))
		}
	}
	rootfs, err := f.a.Images.Mount(ctx, want.Spec.Image)
	if err != nil {
		return img, container.Spec{}, err
	}
	spec, err := f.spec(want, img, rootfs)
	if err != nil {
		return img, spec, err
	}
	if machine(about) {
		spec.Forwarder = img.Contract.Forwarder
	}
	if err := f.writeConfig(want); err != nil {
		return img, spec, err
	}
	return img, spec, f.a.secrets.Place(ctx, want, &spec)
}

func (f *function) spec(want api.Function, img image.Image, rootfs string) (container.Spec, error) {
	s := container.Spec{
		Runtime: want.Spec.Runtime, Rootfs: rootfs, ReadOnly: true, Args: img.Args, Dir: img.Dir,
		Env: slices.Clone(img.Env), Capabilities: img.Contract.Needs(want.Spec.Allow),
		Mounts: []container.Mount{
			{Source: f.path("etc"), Target: sandbox.ConfigDir, ReadOnly: true},
			{Source: f.path("run"), Target: socketDir, ReadOnly: true}, // which hinders nobody from connecting
		},
		Annotations: map[string]string{"weir.instance": f.a.Instance.Name, "weir.function": f.name, "weir.image": img.Digest},
	}
	if len(want.Spec.Command) > 0 {
		s.Args = want.Spec.Command
	}
	for _, k := range slices.Sorted(maps.Keys(want.Spec.Env)) {
		s.Env = append(s.Env, k+"="+want.Spec.Env[k])
	}
	var err error
	if s.CPUs, err = api.ParseCPUs(want.Spec.CPUs); err != nil {
		return s, err
	}
	if s.CPUSet, err = api.ParseCPUSet(want.Spec.CPUSet); err != nil {
		return s, err
	}
	if s.Memory, err = api.ParseMemory(want.Spec.Memory); err != nil {
		return s, err
	}
	// The configuration is part of what a container is made from.
	b, err := json.Marshal(want.Spec.Config)
	if err != nil {
		return s, fmt.Errorf("config of function %s: %w", f.name, err)
	}
	if len(want.Spec.Config) > 0 {
		s.Annotations[configNote] = string(b)
	}
	return s, nil
}

func (f *function) writeConfig(want api.Function) error {
	// What is in it is for any user of the container, and for nobody else: configurations, the socket for events.
	all := filepath.Dir(f.path())
	if err := os.MkdirAll(all, 0o700); err != nil {
		return fmt.Errorf("directory of function %s: %w", f.name, err)
	}
	if err := os.Chmod(all, 0o700); err != nil { // one that an older version made
		return fmt.Errorf("directory of function %s: %w", f.name, err)
	}
	for _, d := range []string{f.path("etc"), f.path("run")} {
		if err := os.MkdirAll(d, 0o755); err != nil {
			return fmt.Errorf("directory of function %s: %w", f.name, err)
		}
	}
	b, err := configOf(want)
	if err != nil {
		return err
	}
	probe, err := f.a.probes.Addresses(f.name)
	if err != nil {
		return err
	}
	f.serve()
	return errors.Join(f.writeEtc("config.json", b), f.writeEtc(probeFile, fmt.Appendf(nil, "%s %s\n", probe.Dst, probe.Src)))
}

// configOf a function as it finds it.
func configOf(want api.Function) ([]byte, error) {
	config := want.Spec.Config
	if config == nil {
		config = map[string]any{}
	}
	b, err := json.Marshal(config)
	if err != nil {
		return nil, fmt.Errorf("config of function %s: %w", want.Name, err)
	}
	return b, nil
}

// writeEtc writes a file that the function may read, unless it is there already.
func (f *function) writeEtc(name string, text []byte) error {
	path := f.path("etc", name)
	if old, err := os.ReadFile(path); err == nil && string(old) == string(text) {
		return nil
	}
	if err := instance.Replace(path, text, 0o644); err != nil {
		return fmt.Errorf("%s of function %s: %w", name, f.name, err)
	}
	return nil
}

// attach makes links between the function's sandbox and the switch, and the sandbox where a container is to be made and that of the former one is used.
func (f *function) attach(ctx context.Context, want api.Function, img image.Image) error {
	next := f.attachment(want, img)
	f.update(func(v *view) { v.status.Rewrites = img.Contract.Rewrites })
	if f.attached.done && f.attached.tap != next.tap { // another kind of function under the same name: other ports
		if err := f.halt(ctx, "its image changed from tap to inline or back"); err != nil {
			return err
		}
		if err := f.detach(ctx); err != nil {
			return err
		}
		if err := f.writeConfig(want); err != nil {
			return err
		}
	}
	if contained := f.have == container.Running || f.have == container.Created; !contained && (f.box.Used || !f.a.boxes.Whole(f.box) || !f.suits(ctx)) {
		if err := f.newBox(ctx); err != nil {
			return err
		}
	}
	if f.attached == next && f.crashes < 2 && !f.unsure.Swap(false) { // a function that keeps crashing may have lost its links
		return nil
	}
	ports, err := f.plug(ctx, f.box, f.inSwitch(), next)
	if err != nil {
		return err
	}
	f.attached = next
	f.update(func(v *view) { v.join(ports, next.tap) })
	return nil
}

// attachment is how a function of the image that is prepared has to be joined with the switch. In a machine the switch forwards nothing: what acts in the
// function's namespace would act before the machine saw a frame.
func (f *function) attachment(want api.Function, img image.Image) attachment {
	next := attachment{tap: img.Contract.Tap, speaks: img.Contract.Speaks, forwarder: img.Contract.Forwarder, onFail: want.Spec.OnFail, done: true}
	if f.ready.spec.Forwarder != "" {
		next.forwarder = ""
	}
	next.settles = img.Contract.Settles && f.a.Switch.Abilities().Settles
	next.finished, next.xdp = img.Contract.Finished, img.Contract.XDP
	next.exports = img.Contract.IPFIX && f.a.Collector.IsValid()
	return next
}

// join notes the ports that a function has now.
func (v *view) join(ports datapath.Ports, tap bool) {
	v.ports, v.placed, v.tap = ports, true, tap
	v.status.Ports = api.FunctionPorts{In: uint32(ports.In), Out: uint32(ports.Out), Tap: uint32(ports.Tap)}
	if v.status.State == "" {
		v.status.State = api.FunctionPending
	}
}

// plug makes links between a sandbox and the switch, and a function of the switch of them.
func (f *function) plug(ctx context.Context, b sandbox.Box, name string, next attachment) (ports datapath.Ports, err error) {
	about, err := f.a.runtime(ctx, f.ready.spec.Runtime)
	kind := portkind.Veth // of what runs while its runtime is missing
	if err == nil {
		kind, err = f.a.portKind(f.name, about)
	} else if f.have == container.Running {
		err = nil
	}
	if err != nil {
		return ports, err
	}
	if kind != portkind.Veth {
		return ports, fmt.Errorf("function %s: this agent makes no ports of kind %s", f.name, kind)
	}
	sw := datapath.Function{Name: name, Netns: b.Net(), Forwarder: next.forwarder, Speaks: next.speaks, Settles: next.settles, Whole: next.finished}
	if sw.Probe, err = f.a.probes.Addresses(f.name); err != nil {
		return ports, err
	}
	if next.onFail == api.OnFailBypass {
		sw.OnFail = datapath.FailBypass
	}
	f.mtu = f.portMTU(next)
	if err := f.a.boxes.Plug(b, next.tap, f.mtu); err != nil {
		return ports, err
	}
	if next.finished {
		for _, side := range flow.SidesOf(next.tap) {
			if err := f.a.Kernel.Finish(f.a.boxes.Link(b, side)); err != nil {
				return ports, err
			}
		}
	}
	if next.tap {
		sw.Tap = f.a.boxes.Link(b, flow.Tap)
	} else {
		sw.In, sw.Out = f.a.boxes.Link(b, flow.In), f.a.boxes.Link(b, flow.Out)
		sw.InPeer, sw.OutPeer = flow.In.String(), flow.Out.String()
	}
	if ports, err = f.a.Switch.AddFunction(ctx, sw); err == nil {
		err = f.hear(name, b, next.settles, next.xdp)
		f.sendFlows(next.exports)
	}
	return ports, err
}

// newBox gives the function a pristine sandbox. The links of the former one go at once, as nothing is to come from there any more; the rest can
// wait until the function is up again.
func (f *function) newBox(ctx context.Context) error {
	f.attached = attachment{}
	former := f.box
	f.last++
	f.enterBox(sandbox.Box{Name: f.name, N: f.last})
	var err error
	if former.N > 0 {
		err = f.a.boxes.DeleteLinks(former)
	} else { // those of a former version, or of an agent that was killed
		err = f.a.Kernel.DeleteMarked(f.a.Instance.Alias("function/" + f.name))
	}
	if err != nil {
		return err
	}
	f.litter = true
	b, err := f.makeBox(ctx)
	if err != nil {
		return err
	}
	f.enterBox(b)
	return f.showNetns(b)
}

// suits tells whether the sandbox has a user namespace if, and only if, a container in the function's runtime is to have one: it may have been made for
// another runtime.
func (f *function) suits(ctx context.Context) bool {
	about, err := f.a.runtime(ctx, f.ready.spec.Runtime)
	return err == nil && (f.box.IDs != netns.IDs{}) == (f.a.unsharedIn(about) == nil)
}

// makeBox makes a sandbox of the last number, with a user namespace if the function's runtime can use one.
func (f *function) makeBox(ctx context.Context) (sandbox.Box, error) {
	about, err := f.a.runtime(ctx, f.ready.spec.Runtime)
	if err != nil {
		return sandbox.Box{}, err
	}
	return f.a.boxes.New(f.name, f.last, !about.Userns)
}

// showNetns lets users find a sandbox's network namespace under the function's name.
func (f *function) showNetns(b sandbox.Box) error {
	if err := f.a.Kernel.Delete(f.netns()); err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(f.netns()), 0o755); err != nil {
		return err
	}
	return os.Symlink(b.Net(), f.netns())
}

func (f *function) enterBox(b sandbox.Box) {
	f.box = b
	f.mu.Lock()
	defer f.mu.Unlock()
	for side := range flow.Sides {
		f.links[side] = f.a.boxes.Link(b, side)
	}
}

// collect removes what is left of former starts: containers, whose log the present one goes on with, and sandboxes.
func (f *function) collect(ctx context.Context) error {
	if !f.lone && f.a.commits.Load() > 0 { // of an agent that was killed while it changed the function; no rule leads there any more
		if err := f.a.Switch.Remove(ctx, "function/"+f.standby()); err != nil {
			return err
		}
		f.lone = true
	}
	for len(f.former) > 0 {
		if err := f.a.Runtime.Delete(ctx, f.former[0]); err != nil {
			return err
		}
		f.former = f.former[1:]
	}
	if !f.litter {
		return nil
	}
	boxes, err := f.a.boxes.Find(f.name)
	if err != nil {
		return err
	}
	_, contained := sandbox.Of(f.container())
	for _, b := range boxes {
		if b.N != f.box.N && b.N != contained {
			err = errors.Join(err, f.a.boxes.Delete(ctx, b))
		}
	}
	f.litter = err != nil
	return err
}

// detach removes ports, links, sandboxes and directories.
func (f *function) detach(ctx context.Context) error {
	f.stopSockets()
	boxes, err := f.a.boxes.Find(f.name)
	err = errors.Join(err,
		f.a.Switch.Remove(ctx, "function/"+f.name),
		f.a.Switch.Remove(ctx, "function/"+f.name+second),
		f.a.Kernel.DeleteMarked(f.a.Instance.Alias("function/"+f.name)),
		f.a.Kernel.Delete(f.netns()),
		os.RemoveAll(f.path()),
	)
	for _, b := range boxes {
		err = errors.Join(err, f.a.boxes.Remove(ctx, b.Dir))
	}
	if err == nil {
		f.attached, f.box = attachment{}, sandbox.Box{}
		f.update(func(v *view) { v.placed, v.wasUp, v.ports = false, false, datapath.Ports{} })
	}
	return err
}

// maxSweep bounds how long the rest waits for the namespaces of functions that left thousands of links; the next look goes on with them.
const maxSweep = time.Second

// sweepDirs removes namespaces and directories of functions that the intent does not name.
func (a *Agent) sweepDirs(ctx context.Context, want share) {
	ctx, cancel := context.WithTimeout(ctx, maxSweep)
	defer cancel()
	for _, dir := range []string{a.Instance.NetnsDir(), filepath.Join(a.Instance.Run, "functions"), a.boxes.Dir()} {
		entries, err := os.ReadDir(dir)
		if err != nil {
			continue // nothing there yet
		}
		for _, e := range entries {
			name, _ := sandbox.Of(e.Name())
			if _, ok := want.functions[name]; ok || a.has(name) {
				continue
			}
			path := filepath.Join(dir, e.Name())
			switch dir {
			case a.Instance.NetnsDir():
				err = a.Kernel.Delete(path)
			case a.boxes.Dir():
				err = a.boxes.Remove(ctx, path)
			default:
				err = os.RemoveAll(path)
			}
			if err != nil {
				a.Log.Warn("remove orphan", "path", path, "error", err)
			}
		}
	}
}

func hex64(v uint64) string { return strconv.FormatUint(v, 16) }
