package experiment

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"weir.dev/weir/container"
	containers "weir.dev/weir/container/drivers"
	"weir.dev/weir/instance"
	"weir.dev/weir/lab/machine"
	"weir.dev/weir/lab/platform"
	"weir.dev/weir/lab/traffic/tools"
	"weir.dev/weir/netns"
)

// bootExperiment times N functions (factor functions) of a runtime (factor runtime): created, started, stopped, and created and started at
// once. One after another, each with a network namespace of its own; all run the same program.
type bootExperiment struct{}

func (bootExperiment) Name() string { return "boot" }
func (bootExperiment) About() string {
	return "N functions, one after another, each in a network namespace of its own: create all, start all, stop all, delete all, create and start all; pss is the growth in memory of all processes except the lab's: shared pages count by share, files in memory (memfd, such as a machine's memory) with all of their pages; page caches of disks and kernel memory do not count"
}
func (bootExperiment) Metrics() map[string]string {
	return map[string]string{"run": "s", "create": "s", "start": "s", "stop": "s", "delete": "s", "pss": "MB"}
}
func (bootExperiment) Factors() []Factor {
	return []Factor{
		{Name: factorRuntime, About: "what makes containers", Check: oneOf(bootRuntimes()...)},
		{Name: factorFunctions, About: "how many", Check: between(1, maxFunctions, "functions")},
	}
}

// bootRuntimes are Weir's own drivers and what a user can run by hand.
func bootRuntimes() []string {
	return append(slices.Sorted(maps.Keys(containers.All())), platform.Crun, dockerRun, runcRun, lxcStart, nspawn, qemu)
}

const (
	factorRuntime   = "runtime"
	factorFunctions = "functions"
	maxFunctions    = 500
	suffixBoot      = "-r"

	// By hand, as a user calls the programs.
	dockerRun = "docker-run"
	runcRun   = "runc"
	lxcStart  = "lxc-start"
	nspawn    = "systemd-nspawn"

	qemu = "qemu"
)

// starter is a runtime: it starts functions. Each method is for one function, by its name.
type starter interface {
	create(ctx context.Context, name string) error
	start(ctx context.Context, name string) error
	run(ctx context.Context, name string) error
	stop(ctx context.Context, name string) error
	remove(ctx context.Context, name string) error
	close() error
}

func (bootExperiment) Check(_ context.Context, b *Bench, l Levels) string {
	if n, err := strconv.Atoi(l[factorFunctions]); err != nil || n < 1 || n > maxFunctions {
		return fmt.Sprintf("functions %q: want 1 to %d", l[factorFunctions], maxFunctions)
	}
	name := l[factorRuntime]
	if _, _, ours := platform.Driver(name); ours {
		return platform.CheckRuntime(name, b.options())
	}
	switch name {
	case runcRun:
		if err := tools.Installed("runc"); err != nil {
			return err.Error()
		}
		return platform.CheckImage(b.options())
	case dockerRun:
		return platform.CheckEngine(b.options())
	case qemu:
		return checkQEMU(b)
	case lxcStart:
		if err := tools.Installed("lxc-start"); err != nil {
			return "lxc-start: not installed (apt-get install lxc)"
		}
		return platform.CheckImage(b.options())
	case nspawn:
		if err := tools.Installed("systemd-nspawn"); err != nil {
			return "systemd-nspawn: not installed (apt-get install systemd-container)"
		}
		return platform.CheckImage(b.options())
	}
	return fmt.Sprintf("there is no runtime %q: this lab has %s", name, strings.Join(bootRuntimes(), ", "))
}

func (bootExperiment) Setup(ctx context.Context, b *Bench, l Levels) (Arrangement, error) {
	n, err := strconv.Atoi(l[factorFunctions])
	if err != nil {
		return nil, err
	}
	r, err := b.starter(ctx, l[factorRuntime])
	return &boot{r, n}, err
}

// starter opens a runtime, once.
func (b *Bench) starter(ctx context.Context, name string) (starter, error) {
	if r, ok := b.starters[name]; ok {
		return r, nil
	}
	var r starter
	var err error
	if name == dockerRun {
		var e *platform.Engine
		if e, err = platform.StartEngine(ctx, b.options()); err == nil {
			r = dockerRuntime{e}
		}
	} else {
		r, err = openBundles(ctx, b, name)
	}
	if err != nil {
		return nil, err
	}
	b.starters[name] = r
	return r, nil
}

type boot struct {
	r starter
	n int
}

// Close leaves the runtime to others.
func (b *boot) Close() error { return nil }

func (b *boot) Measure(ctx context.Context, _ time.Duration) (Measurement, error) {
	m := Measurement{Values: map[string]float64{}}
	all := func(metric string, f func(context.Context, string) error) error {
		begin := time.Now()
		for i := range b.n {
			if err := f(ctx, fmt.Sprintf("f%03d", i)); err != nil {
				return fmt.Errorf("%s of function %d: %w", metric, i, err)
			}
		}
		if metric != "" {
			m.Values[metric] = time.Since(begin).Seconds()
		}
		return nil
	}
	err := all("create", b.r.create)
	if err == nil {
		err = all("start", b.r.start)
	}
	if err == nil {
		err = all("stop", b.r.stop)
	}
	if err == nil {
		err = all("delete", b.r.remove)
	}
	before, merr := machine.PSS(machine.Others)
	if err == nil {
		err = all("run", b.r.run)
	}
	after, aerr := machine.PSS(machine.Others)
	if err == nil {
		err = errors.Join(merr, aerr)
		m.Values["pss"] = float64(after-before) / 1e6
	}
	if n, ok := b.r.(container.Noted); ok && n.Note() != "" {
		m.Conditions = map[string]string{platform.ConditionMachines: n.Note()}
	}
	cleaning, cancel := context.WithTimeout(context.Background(), time.Minute) // also when ctx is over
	defer cancel()
	for i := range b.n {
		err = errors.Join(err, b.r.remove(cleaning, fmt.Sprintf("f%03d", i)))
	}
	return m, err
}

// dockerRuntime is `docker` as a user calls it.
type dockerRuntime struct{ e *platform.Engine }

func (d dockerRuntime) do(ctx context.Context, args ...string) error {
	_, err := d.e.Docker(ctx, nil, args...)
	return err
}

func (d dockerRuntime) create(ctx context.Context, name string) error {
	return d.do(ctx, "create", "--network", "none", "--name", name, platform.DockerImage, platform.WireProgram)
}
func (d dockerRuntime) start(ctx context.Context, name string) error { return d.do(ctx, "start", name) }
func (d dockerRuntime) run(ctx context.Context, name string) error {
	return d.do(ctx, "run", "-d", "--network", "none", "--name", name, platform.DockerImage, platform.WireProgram)
}
func (d dockerRuntime) stop(ctx context.Context, name string) error {
	return d.do(ctx, "stop", "-t", "0", name)
}

// remove: with --force an unknown one is no error.
func (d dockerRuntime) remove(ctx context.Context, name string) error {
	return d.do(ctx, "rm", "--force", name)
}
func (d dockerRuntime) close() error { return d.e.Close() }

// bundles are what Weir's runtimes, runc and lxc have in common: the image's root and namespaces.
type bundles struct {
	platform.Bundle
	inst instance.Instance
}

func bootInstance(name string) (instance.Instance, error) { return instance.New(name+suffixBoot, "") }

func openBundles(ctx context.Context, b *Bench, kind string) (starter, error) {
	inst, err := bootInstance(b.Name)
	if err != nil {
		return nil, err
	}
	u := &bundles{inst: inst}
	if err := os.MkdirAll(inst.NetnsDir(), 0o755); err != nil {
		return nil, err
	}
	if u.Bundle, err = platform.OpenBundle(ctx, inst, b.Images); err != nil {
		return nil, err
	}
	if _, _, ours := platform.Driver(kind); ours {
		rt, err := platform.OpenRuntime(ctx, kind, inst)
		if err != nil {
			return nil, err
		}
		return &driverRuntime{u, rt}, nil
	}
	switch kind {
	case lxcStart:
		return &lxcRuntime{u}, nil
	case nspawn:
		return &nspawnRuntime{u, foreground{}}, nil
	case qemu:
		q := &qemuRuntime{bundles: u, foreground: foreground{}}
		return q, q.prepare(ctx, b)
	}
	r := &runcRuntime{bundles: u}
	return r, r.readSpec(ctx)
}

func (u *bundles) space(name string) string { return filepath.Join(u.inst.NetnsDir(), name) }

// driverRuntime is one of Weir's drivers.
type driverRuntime struct {
	*bundles
	rt *platform.Runtime
}

func (o *driverRuntime) create(ctx context.Context, name string) error {
	if err := netns.Create(o.space(name), netns.Options{}); err != nil {
		return err
	}
	return o.rt.Create(ctx, o.Container(name, o.space(name)))
}
func (o *driverRuntime) start(ctx context.Context, name string) error { return o.rt.Start(ctx, name) }
func (o *driverRuntime) run(ctx context.Context, name string) error {
	if err := netns.Create(o.space(name), netns.Options{}); err != nil {
		return err
	}
	return o.rt.Run(ctx, o.Container(name, o.space(name)))
}
func (o *driverRuntime) stop(ctx context.Context, name string) error { return o.rt.Stop(ctx, name, 0) }
func (o *driverRuntime) remove(ctx context.Context, name string) error {
	return errors.Join(o.rt.Delete(ctx, name), netns.Delete(o.space(name)))
}

// Note tells how a machine comes up here, of runtimes that make machines.
func (o *driverRuntime) Note() string { return o.rt.Note() }

func (o *driverRuntime) close() error {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	return o.rt.Close(ctx)
}

// removeBoot takes away what functions of the experiment boot have left.
func removeBoot(ctx context.Context, name string) error {
	inst, err := bootInstance(name)
	if err != nil {
		return err
	}
	u := &bundles{inst: inst}
	if _, err := os.Stat(inst.Run); errors.Is(err, os.ErrNotExist) {
		return os.RemoveAll(inst.Root)
	}
	var errs []error
	for _, r := range []struct {
		dir    string
		remove func(context.Context, string) error
	}{{filepath.Join(inst.Run, "runc"), (&runcRuntime{bundles: u}).remove}, {(&lxcRuntime{u}).dir(), (&lxcRuntime{u}).remove}} {
		entries, err := os.ReadDir(r.dir)
		if err != nil && !errors.Is(err, os.ErrNotExist) {
			errs = append(errs, err)
		}
		for _, e := range entries {
			errs = append(errs, r.remove(ctx, e.Name()))
		}
	}
	errs = append(errs, platform.RemoveContainers(ctx, inst), platform.RemoveCgroups(ctx, u.cgroup()))
	if err := errors.Join(errs...); err != nil {
		return err
	}
	return platform.RemoveInstance(inst)
}
