package platform

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strconv"

	"weir.dev/weir/container"
	"weir.dev/weir/container/docker/dockerd"
	containers "weir.dev/weir/container/drivers"
	"weir.dev/weir/container/kvm"
	"weir.dev/weir/container/rkt"
	"weir.dev/weir/flow"
	"weir.dev/weir/image"
	"weir.dev/weir/instance"
	"weir.dev/weir/lab/tied"
	"weir.dev/weir/lab/traffic/tools"
)

const wireImage = "wire"

// Bundle is an image as it is mounted, for what runs containers of it.
type Bundle struct {
	store *image.Store
	img   image.Image
	root  string
}

// OpenBundle mounts the image "wire".
func OpenBundle(ctx context.Context, i instance.Instance, images []string) (Bundle, error) {
	return openBundle(ctx, i, images, wireImage)
}

func openBundle(ctx context.Context, i instance.Instance, images []string, name string) (b Bundle, err error) {
	b.store = image.Open(i, images...)
	if b.img, err = b.store.Resolve(name); err == nil {
		b.root, err = b.store.Mount(ctx, name)
	}
	return b, err
}

// Args of its process, and its Root file system.
func (b Bundle) Args() []string { return b.img.Args }
func (b Bundle) Root() string   { return b.root }

// Container is what runs in a function.
func (b Bundle) Container(id, space string) container.Spec {
	return container.Spec{
		ID: id, Image: b.img.Ref, Rootfs: b.root, ReadOnly: true, Args: b.img.Args, Env: b.img.Env, Dir: b.img.Dir, Netns: space,
		Capabilities: b.img.Contract.Capabilities,
	}
}

// CheckImage tells why there is no image "wire"; empty: there is.
func CheckImage(o Options) string { return checkImage(o, wireImage, "make build") }

func checkImage(o Options, name, builtBy string) string {
	i, err := instance.New("0", "/nonexistent") // what came with this program counts alone
	if err == nil {
		_, err = image.Open(i, o.Images...).Resolve(name)
	}
	if err != nil {
		return fmt.Sprintf("%s (%s)", err, builtBy)
	}
	return ""
}

// Crun is the runtime oci with the program crun in place of runc.
const Crun = containers.OCI + "-crun"

// Driver is what makes a container runtime of this program, and what it is told; false: there is no such runtime.
func Driver(name string) (containers.Driver, containers.Options, bool) {
	if name == Crun {
		d := containers.All()[containers.OCI]
		d.Programs = []string{"crun"}
		return d, containers.Options{CLI: "crun"}, true
	}
	d, ok := containers.All()[name]
	return d, containers.Options{}, ok
}

// CheckRuntime tells why a container runtime of this program cannot be had here; empty: it can.
func CheckRuntime(name string, o Options) string {
	d, told, ok := Driver(name)
	if !ok {
		return fmt.Sprintf("this program has no container runtime %s", name)
	}
	if os.Geteuid() != 0 {
		return "needs root"
	}
	if name == rkt.Name { // there is no package to name
		if a := d.About(context.Background(), containers.Options{}); a.Missing != "" {
			return name + ": " + a.Missing
		}
	}
	if err := tools.Installed(d.Programs...); err != nil {
		return err.Error()
	}
	if name == byDocker { // the lab starts an engine that knows Weir's runtime
		if err := tools.Installed("dockerd", "containerd"); err != nil {
			return err.Error()
		}
	} else if a := d.About(context.Background(), told); a.Missing != "" {
		return fmt.Sprintf("runtime %s: %s", name, a.Missing)
	}
	return CheckImage(o)
}

// Runtime is a driver's, with what it needs of this machine.
type Runtime struct {
	container.Runtime
	inst   instance.Instance
	engine *dockerd.Engine // nil: it needs none
}

// OpenRuntime opens a driver for an instance; docker with an engine of its own.
func OpenRuntime(ctx context.Context, name string, i instance.Instance) (*Runtime, error) {
	d, o, ok := Driver(name)
	if !ok {
		return nil, fmt.Errorf("this program has no container runtime %s", name)
	}
	o.Adopt = true
	r := &Runtime{inst: i}
	if name == byDocker {
		var err error
		if r.engine, err = dockerd.Start(ctx, engineOptions(i)); err != nil {
			return nil, err
		}
		o.DockerHost, o.DockerScript = r.engine.Host(), engineScript(i)
	}
	var err error
	if r.Runtime, err = d.Open(ctx, i, o); err != nil {
		return nil, errors.Join(err, r.Close(ctx))
	}
	return r, nil
}

// engineOptions are those of the engine of an instance whose functions run in the runtime docker.
func engineOptions(i instance.Instance) dockerd.Options {
	return dockerd.Options{Dir: filepath.Join(i.Run, "engine"), Name: "weir-" + i.Name + "-engine", Runtimes: map[string]string{"weir": engineScript(i)}}
}

func engineScript(i instance.Instance) string { return filepath.Join(i.Run, "docker-runtime") }

// Note tells what was found out about the runtime at work; see container.Noted.
func (r *Runtime) Note() string {
	if n, ok := r.Runtime.(container.Noted); ok {
		return n.Note()
	}
	return ""
}

// Close removes all its containers.
func (r *Runtime) Close(ctx context.Context) error {
	var errs []error
	if r.Runtime != nil {
		errs = append(errs, r.Destroy(ctx))
	}
	if x, ok := r.Runtime.(io.Closer); ok {
		errs = append(errs, x.Close())
	}
	if r.engine != nil {
		errs = append(errs, r.engine.Close())
	}
	return errors.Join(errs...)
}

// contained runs images in containers of a driver: that of the function's program, or "wire", whose process only waits. A machine without a program forwards.
type contained struct {
	rt      *Runtime
	bundles map[string]Bundle // by image
	machine bool
}

// configInside is where a function of the catalogue finds its configuration.
const configInside = "/etc/weir"

func containerRuntime(name string) runtimeMaker {
	m := runtimeMaker{name: name, about: "in a container of the runtime " + name, check: func(o Options) string { return CheckRuntime(name, o) }, machine: name == virtual}
	if m.machine {
		m.about = "in a virtual machine of the runtime " + name
	}
	m.open = func(ctx context.Context, o Options, i instance.Instance, f function) (runtime, error) {
		c := &contained{machine: m.machine, bundles: map[string]Bundle{}}
		var err error
		if c.rt, err = OpenRuntime(ctx, name, i); err != nil {
			return nil, err
		}
		images := []string{}
		for _, p := range f.all() {
			images = append(images, p.image)
		}
		if len(images) == 0 {
			images = []string{wireImage}
		}
		for _, image := range images {
			if c.bundles[image], err = openBundle(ctx, i, o.Images, image); err != nil {
				return nil, errors.Join(err, c.close(ctx))
			}
		}
		return c, nil
	}
	return m
}

func (c *contained) run(ctx context.Context, w work) (int, error) {
	image := wireImage
	if w.program != nil {
		image = w.program.image
	}
	s := c.bundles[image].Container(w.name, w.space)
	if c.machine {
		w.ports = machinePorts(&s, w)
	}
	switch {
	case w.program == nil && c.machine:
		s.Forwarder = wireFunction
	case w.program != nil:
		if w.ports.sockets != "" {
			w.ports.seen = socketsInside
			s.Mounts = append(s.Mounts, container.Mount{Source: w.ports.sockets, Target: socketsInside})
		}
		if w.program.config != "" {
			dir := filepath.Join(c.rt.inst.Run, "config", w.name)
			if err := errors.Join(os.MkdirAll(dir, 0o755), os.WriteFile(filepath.Join(dir, "config.json"), []byte(w.program.config), 0o644)); err != nil {
				return 0, err
			}
			s.Mounts = append(s.Mounts, container.Mount{Source: dir, Target: configInside, ReadOnly: true})
		}
		s.Args = append(slices.Clone(s.Args), w.program.argumentsFor(w.ports)...)
	}
	if err := c.rt.Run(ctx, s); err != nil {
		return 0, err
	}
	st, err := c.rt.Status(ctx, w.name)
	return st.PID, err
}

// directMemory of a machine whose program drives its ports itself: some of it is hugepages.
const directMemory = 256 << 20

// machinePorts has a machine share memory with the switch where that has sockets for it, and tells what its program then finds in the place of those.
func machinePorts(s *container.Spec, w work) ports {
	var p ports // the one processor that it has is its first
	if w.program != nil && w.program.polls {
		s.CPUSet = strconv.Itoa(w.ports.cpu)
	}
	if w.ports.sockets == "" {
		return p
	}
	s.Shared = &container.Shared{Dir: w.ports.sockets, Ports: []string{flow.In.String(), flow.Out.String()}}
	if w.program != nil && w.program.sockets {
		s.Shared.Direct, s.Memory = true, directMemory
		s.Capabilities = append(slices.Clone(s.Capabilities), "CAP_SYS_ADMIN", "CAP_SYS_RAWIO")
		for i := range s.Shared.Ports {
			p.devices = append(p.devices, kvm.Device(i))
		}
	}
	return p
}

// ConditionMachines tells how a machine comes up here. It begins with Emulated where there is no processor that runs machines.
const (
	ConditionMachines = "virtual machines"
	Emulated          = kvm.Emulated
)

func (c *contained) conditions() map[string]string {
	if note := c.rt.Note(); note != "" {
		return map[string]string{ConditionMachines: note}
	}
	return nil
}

// ill says which containers have ended, and their last words; nil: none has.
func (c *contained) ill(ctx context.Context) error {
	all, err := c.rt.List(ctx)
	if err != nil {
		return err
	}
	var errs []error
	for _, st := range all {
		if st.State == container.Running {
			continue
		}
		text := ""
		if log, err := c.rt.Logs(ctx, st.ID, container.LogOptions{Tail: 5}); err == nil {
			b, _ := io.ReadAll(io.LimitReader(log, tied.DefaultMost))
			text = tied.Tail(string(b))
			_ = log.Close()
		}
		errs = append(errs, fmt.Errorf("function %s: its container is %s: %s", st.ID, st.State, text))
	}
	return errors.Join(errs...)
}

func (c *contained) close(ctx context.Context) error {
	return errors.Join(c.rt.Close(ctx), image.Open(c.rt.inst).Destroy(ctx))
}

// RemoveContainers of an instance, whichever runtime made them, and its images' mounts.
func RemoveContainers(ctx context.Context, i instance.Instance) error {
	var errs []error
	// Containers of the runtime docker end with the instance's own engine, which may have ended before what is kept of them was removed.
	if o := engineOptions(i); exists(o.Dir) {
		errs = append(errs, dockerd.Remove(o))
	}
	errs = append(errs, os.RemoveAll(filepath.Join(i.Run, byDocker)), os.RemoveAll(filepath.Join(i.Root, byDocker)))
	for _, d := range containers.All() {
		rt, err := d.Open(ctx, i, containers.Options{Remove: true})
		if err != nil {
			errs = append(errs, err)
			continue
		}
		errs = append(errs, (&Runtime{Runtime: rt, inst: i}).Close(ctx))
	}
	return errors.Join(append(errs, image.Open(i).Destroy(ctx))...)
}
