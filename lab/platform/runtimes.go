package platform

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"

	"weir.dev/weir/container"
	containers "weir.dev/weir/container/drivers"
	"weir.dev/weir/image"
	"weir.dev/weir/instance"
	"weir.dev/weir/lab/traffic/tools"
)

const wireImage = "wire"

// noProcess is the runtime of functions without a process.
type noProcess struct{}

func openBare(context.Context, Options, instance.Instance) (runtime, error) { return noProcess{}, nil }

func (noProcess) run(context.Context, string, string) (int, error) { return 0, nil }
func (noProcess) close(context.Context) error                      { return nil }

// Bundle is the image "wire" as it is mounted, for what runs containers of it.
type Bundle struct {
	store *image.Store
	img   image.Image
	root  string
}

// OpenBundle mounts the image.
func OpenBundle(ctx context.Context, i instance.Instance, images []string) (b Bundle, err error) {
	b.store = image.Open(i, images...)
	if b.img, err = b.store.Resolve(wireImage); err == nil {
		b.root, err = b.store.Mount(ctx, wireImage)
	}
	return b, err
}

// Args of its process, and its Root file system.
func (b Bundle) Args() []string { return b.img.Args }
func (b Bundle) Root() string   { return b.root }

// Container is what runs in a function.
func (b Bundle) Container(id, space string) container.Spec {
	return container.Spec{
		ID: id, Rootfs: b.root, ReadOnly: true, Args: b.img.Args, Env: b.img.Env, Dir: b.img.Dir, Netns: space, Capabilities: b.img.Contract.Capabilities,
	}
}

// CheckImage tells why there is no image "wire"; empty: there is.
func CheckImage(o Options) string {
	i, err := instance.New("0", os.DevNull)
	if err == nil {
		_, err = image.Open(i, o.Images...).Resolve(wireImage)
	}
	if err != nil {
		return fmt.Sprintf("image %s: %s (make build)", wireImage, err)
	}
	return ""
}

// CheckRuntime tells why a container runtime of this program cannot be had here; empty: it can.
func CheckRuntime(name string, o Options) string {
	d, ok := containers.All()[name]
	if !ok {
		return fmt.Sprintf("this program has no container runtime %s", name)
	}
	if os.Geteuid() != 0 {
		return "needs root"
	}
	if err := tools.Installed(d.Programs...); err != nil {
		return err.Error()
	}
	if a := d.About(context.Background(), containers.Options{}); a.Missing != "" {
		return fmt.Sprintf("runtime %s: %s", name, a.Missing)
	}
	return CheckImage(o)
}

// contained runs the image "wire" in containers of a driver. The image's process only waits: it forwards nothing.
type contained struct {
	rt     container.Runtime
	bundle Bundle
	inst   instance.Instance
}

func containerRuntime(name string, d containers.Driver) runtimeMaker {
	return runtimeMaker{
		name: name, about: "in a container of the runtime " + name, check: func(o Options) string { return CheckRuntime(name, o) },
		open: func(ctx context.Context, o Options, i instance.Instance) (runtime, error) {
			rt, err := d.Open(ctx, i, containers.Options{Adopt: true})
			if err != nil {
				return nil, err
			}
			c := &contained{rt: rt, inst: i}
			if c.bundle, err = OpenBundle(ctx, i, o.Images); err != nil {
				return nil, errors.Join(err, c.close(ctx))
			}
			return c, nil
		},
	}
}

func (c *contained) run(ctx context.Context, name, space string) (int, error) {
	if err := c.rt.Run(ctx, c.bundle.Container(name, space)); err != nil {
		return 0, err
	}
	st, err := c.rt.Status(ctx, name)
	return st.PID, err
}

func (c *contained) close(ctx context.Context) error {
	err := c.rt.Destroy(ctx)
	if x, ok := c.rt.(io.Closer); ok {
		err = errors.Join(err, x.Close())
	}
	return errors.Join(err, image.Open(c.inst).Destroy(ctx))
}

// RemoveContainers of an instance, whichever runtime made them, and its images' mounts.
func RemoveContainers(ctx context.Context, i instance.Instance) error {
	var errs []error
	for _, d := range containers.All() {
		rt, err := d.Open(ctx, i, containers.Options{Remove: true})
		if err != nil {
			errs = append(errs, err)
			continue
		}
		errs = append(errs, (&contained{rt: rt, inst: i}).close(ctx))
	}
	return errors.Join(errs...)
}
