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

	"weir.dev/weir/api"
	"weir.dev/weir/container"
	"weir.dev/weir/datapath"
	"weir.dev/weir/flow"
	"weir.dev/weir/image"
	"weir.dev/weir/instance"
	"weir.dev/weir/netns"
)

// Interface indexes inside a function's namespace; the wire program relies on in and out differing in the last bit only.
const (
	indexIn  = 1024
	indexOut = 1025
	indexTap = 1026
)

// Where a function finds its configuration and raises its events, inside the container.
const (
	configDir = "/etc/weir"
	socketDir = "/run/weir"
)

// attachment is what a function's ports were made from; equal means nothing to do.
type attachment struct {
	tap, speaks bool
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
	if p := f.a.CheckCapabilities(want.Spec, img); p != nil { // the image has changed since it was admitted
		return img, container.Spec{}, fmt.Errorf("%s: %s", p.Message, p.Hint)
	}
	rootfs, err := f.a.Images.Mount(ctx, want.Spec.Image)
	if err != nil {
		return img, container.Spec{}, err
	}
	spec, err := f.spec(want, img, rootfs)
	if err != nil {
		return img, spec, err
	}
	if err := f.writeConfig(want); err != nil {
		return img, spec, err
	}
	return img, spec, f.placeSecrets(ctx, want, &spec)
}

func (f *function) spec(want api.Function, img image.Image, rootfs string) (container.Spec, error) {
	s := container.Spec{
		Rootfs: rootfs, ReadOnly: true, Args: img.Args, Dir: img.Dir,
		Env: slices.Clone(img.Env), Capabilities: img.Contract.Capabilities,
		Mounts: []container.Mount{
			{Source: f.path("etc"), Target: configDir, ReadOnly: true},
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
	if s.Memory, err = api.ParseMemory(want.Spec.Memory); err != nil {
		return s, err
	}
	// The configuration is part of what a container is made from.
	b, err := json.Marshal(want.Spec.Config)
	if err != nil {
		return s, fmt.Errorf("config of function %s: %w", f.name, err)
	}
	if len(want.Spec.Config) > 0 {
		s.Annotations["weir.config"] = string(b)
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
	config := want.Spec.Config
	if config == nil {
		config = map[string]any{}
	}
	b, err := json.Marshal(config)
	if err != nil {
		return fmt.Errorf("config of function %s: %w", f.name, err)
	}
	probe, err := f.a.probeAddresses(f.name)
	if err != nil {
		return err
	}
	f.serveEvents()
	return errors.Join(f.writeEtc("config.json", b), f.writeEtc(probeFile, fmt.Appendf(nil, "%s %s\n", probe.Dst, probe.Src)))
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
	next := attachment{tap: img.Contract.Tap, speaks: img.Contract.Speaks, forwarder: img.Contract.Forwarder, onFail: want.Spec.OnFail, done: true}
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
	if contained := f.have == container.Running || f.have == container.Created; !contained && (f.box.used || !f.box.whole()) {
		if err := f.newBox(); err != nil {
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

// join notes the ports that a function has now.
func (v *view) join(ports datapath.Ports, tap bool) {
	v.ports, v.placed, v.tap = ports, true, tap
	v.status.Ports = api.FunctionPorts{In: uint32(ports.In), Out: uint32(ports.Out), Tap: uint32(ports.Tap)}
	if v.status.State == "" {
		v.status.State = api.FunctionPending
	}
}

// plug makes links between a sandbox and the switch, and a function of the switch of them.
func (f *function) plug(ctx context.Context, b sandbox, name string, next attachment) (ports datapath.Ports, err error) {
	host, err := netns.At("")
	if err != nil {
		return ports, err
	}
	defer host.Close()
	inside, err := netns.At(b.net())
	if err != nil {
		return ports, err
	}
	defer inside.Close()
	sw := datapath.Function{Name: name, Netns: b.net(), Forwarder: next.forwarder, Speaks: next.speaks}
	if sw.Probe, err = f.a.probeAddresses(f.name); err != nil {
		return ports, err
	}
	if next.onFail == api.OnFailBypass {
		sw.OnFail = datapath.FailBypass
	}
	f.mtu = f.a.portMTU()
	if next.tap {
		sw.Tap, err = f.link(host, inside, b, flow.Tap, indexTap)
	} else {
		sw.In, err = f.link(host, inside, b, flow.In, indexIn)
		if err == nil {
			sw.Out, err = f.link(host, inside, b, flow.Out, indexOut)
		}
		sw.InPeer, sw.OutPeer = flow.In.String(), flow.Out.String()
	}
	if err != nil {
		return ports, err
	}
	return f.a.Switch.AddFunction(ctx, sw)
}

func (f *function) link(host, inside *netns.Space, b sandbox, side flow.Side, index int) (string, error) {
	object := side.Of(f.name)
	o := netns.VethOptions{
		HostName: f.a.linkName(b, side), Alias: f.a.Instance.Alias(object),
		HostMAC: f.a.Instance.MAC(object + "/switch"), PeerMAC: f.a.Instance.MAC(object),
		PeerName: side.String(), PeerIndex: index, Quiet: true, MTU: f.mtu,
	}
	_, err := host.Veth(inside, o)
	return o.HostName, err
}

// newBox gives the function a pristine sandbox. The links of the former one go at once, as nothing is to come from there any more; the rest can
// wait until the function is up again.
func (f *function) newBox() error {
	f.attached = attachment{}
	former := f.box
	f.last++
	f.enterBox(sandbox{name: f.name, n: f.last})
	var err error
	if former.n > 0 {
		err = f.a.deleteSandboxLinks(former)
	} else { // those of a former version, or of an agent that was killed
		err = f.a.deleteLinks("function/" + f.name)
	}
	if err != nil {
		return err
	}
	f.litter = true
	b, err := f.a.newSandbox(f.name, f.last)
	if err != nil {
		return err
	}
	f.enterBox(b)
	return f.showNetns(b)
}

// showNetns lets users find a sandbox's network namespace under the function's name.
func (f *function) showNetns(b sandbox) error {
	if err := netns.Delete(f.netns()); err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(f.netns()), 0o755); err != nil {
		return err
	}
	return os.Symlink(b.net(), f.netns())
}

func (f *function) enterBox(b sandbox) {
	f.box = b
	f.mu.Lock()
	defer f.mu.Unlock()
	for side := range flow.Sides {
		f.links[side] = f.a.linkName(b, side)
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
	boxes, err := f.a.findSandboxes(f.name)
	if err != nil {
		return err
	}
	_, contained := sandboxOf(f.container())
	for _, b := range boxes {
		if b.n != f.box.n && b.n != contained {
			err = errors.Join(err, f.a.deleteSandbox(b))
		}
	}
	f.litter = err != nil
	return err
}

// detach removes ports, links, sandboxes and directories.
func (f *function) detach(ctx context.Context) error {
	f.stopEvents()
	boxes, err := f.a.findSandboxes(f.name)
	err = errors.Join(err,
		f.a.Switch.Remove(ctx, "function/"+f.name),
		f.a.Switch.Remove(ctx, "function/"+f.name+second),
		f.a.deleteLinks("function/"+f.name),
		netns.Delete(f.netns()),
		os.RemoveAll(f.path()),
	)
	for _, b := range boxes {
		err = errors.Join(err, removeSandbox(b.dir))
	}
	if err == nil {
		f.attached, f.box = attachment{}, sandbox{}
		f.update(func(v *view) { v.placed, v.wasUp, v.ports = false, false, datapath.Ports{} })
	}
	return err
}

// sweepDirs removes namespaces and directories of functions that the intent does not name.
func (a *Agent) sweepDirs(want share) {
	for _, dir := range []string{a.Instance.NetnsDir(), filepath.Join(a.Instance.Run, "functions"), sandboxesDir(a.Instance)} {
		entries, err := os.ReadDir(dir)
		if err != nil {
			continue // nothing there yet
		}
		for _, e := range entries {
			name, _ := sandboxOf(e.Name())
			if _, ok := want.functions[name]; ok || a.has(name) {
				continue
			}
			path := filepath.Join(dir, e.Name())
			switch dir {
			case a.Instance.NetnsDir():
				err = netns.Delete(path)
			case sandboxesDir(a.Instance):
				err = removeSandbox(path)
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
