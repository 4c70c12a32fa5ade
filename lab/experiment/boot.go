package experiment

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
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
	return "N functions, one after another, each in a network namespace of its own: create all, start all, stop all, delete all, create and start all"
}
func (bootExperiment) Metrics() map[string]string {
	return map[string]string{"run": "s", "create": "s", "start": "s", "stop": "s", "delete": "s", "memory": "MB"}
}
func (bootExperiment) Factors() []Factor {
	return []Factor{
		{Name: factorRuntime, About: "what makes containers", Check: oneOf(bootRuntimes()...)},
		{Name: factorFunctions, About: "how many", Check: between(1, maxFunctions, "functions")},
	}
}

// bootRuntimes are Weir's own drivers and what a user can run by hand.
func bootRuntimes() []string {
	return append(slices.Sorted(maps.Keys(containers.All())), dockerRun, runcRun, lxcStart, nspawn, runtimeVM)
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

	runtimeVM = "vm" // what functions are compared with in papers
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
	if _, ours := containers.All()[name]; ours {
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
	case runtimeVM:
		k, _ := platform.Find("vm-virtio")
		return k.Check(b.options())
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
	before, merr := machine.Available()
	if err == nil {
		err = all("run", b.r.run)
	}
	after, aerr := machine.Available()
	if err == nil {
		err = errors.Join(merr, aerr)
		m.Values["memory"] = float64(before-after) / 1e6
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
	if d, ok := containers.All()[kind]; ok {
		rt, err := d.Open(ctx, inst, containers.Options{Adopt: true})
		return &driverRuntime{u, rt}, err
	}
	switch kind {
	case lxcStart:
		return &lxcRuntime{u}, nil
	case nspawn:
		return &nspawnRuntime{bundles: u, running: map[string]*exec.Cmd{}}, nil
	}
	r := &runcRuntime{bundles: u}
	return r, r.readSpec(ctx)
}

func (u *bundles) space(name string) string { return filepath.Join(u.inst.NetnsDir(), name) }

// driverRuntime is one of Weir's drivers.
type driverRuntime struct {
	*bundles
	rt container.Runtime
}

func (o *driverRuntime) create(ctx context.Context, name string) error {
	if err := netns.Create(o.space(name), netns.Options{Quiet: true}); err != nil {
		return err
	}
	return o.rt.Create(ctx, o.Container(name, o.space(name)))
}
func (o *driverRuntime) start(ctx context.Context, name string) error { return o.rt.Start(ctx, name) }
func (o *driverRuntime) run(ctx context.Context, name string) error {
	if err := netns.Create(o.space(name), netns.Options{Quiet: true}); err != nil {
		return err
	}
	return o.rt.Run(ctx, o.Container(name, o.space(name)))
}
func (o *driverRuntime) stop(ctx context.Context, name string) error { return o.rt.Stop(ctx, name, 0) }
func (o *driverRuntime) remove(ctx context.Context, name string) error {
	return errors.Join(o.rt.Delete(ctx, name), netns.Delete(o.space(name)))
}
func (o *driverRuntime) close() error { return nil } // with the others' directories: removeBoot

// command runs a program to its end. Its output goes to a file: what it starts may keep it open.
func (u *bundles) command(ctx context.Context, argv ...string) error {
	out, err := os.CreateTemp(u.inst.Run, "out-")
	if err != nil {
		return err
	}
	defer out.Close()
	defer os.Remove(out.Name())
	cmd := exec.CommandContext(ctx, argv[0], argv[1:]...)
	cmd.Stdout, cmd.Stderr = out, out
	if err := cmd.Run(); err != nil {
		text, _ := os.ReadFile(out.Name())
		return fmt.Errorf("%s: %w: %s", strings.Join(argv, " "), errors.Join(err, ctx.Err()), strings.TrimSpace(string(text)))
	}
	return nil
}

// runcRuntime is runc by hand: one call a step, with what `runc spec` says once for all.
type runcRuntime struct {
	*bundles
	spec map[string]any // what all configurations have in common
}

func (r *runcRuntime) bundle(name string) string { return filepath.Join(r.inst.Run, "by-hand", name) }

func (r *runcRuntime) runc(ctx context.Context, args ...string) error {
	return r.command(ctx, append([]string{"runc", "--root", filepath.Join(r.inst.Run, "runc")}, args...)...)
}

// readSpec asks runc for a configuration and makes it one for the image.
func (r *runcRuntime) readSpec(ctx context.Context) error {
	dir := r.bundle("spec")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	if err := r.runc(ctx, "spec", "--bundle", dir); err != nil {
		return err
	}
	path := filepath.Join(dir, "config.json")
	text, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	if err := json.Unmarshal(text, &r.spec); err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	process, _ := r.spec["process"].(map[string]any)
	root, _ := r.spec["root"].(map[string]any)
	linux, _ := r.spec["linux"].(map[string]any)
	if process == nil || root == nil || linux == nil {
		return fmt.Errorf("%s: want process, root and linux", path)
	}
	process["terminal"], process["args"] = false, r.Args()
	root["path"], root["readonly"] = r.Root(), true
	return os.RemoveAll(dir)
}

func (r *runcRuntime) prepare(name string) error {
	if err := os.MkdirAll(r.bundle(name), 0o755); err != nil {
		return err
	}
	r.spec["linux"].(map[string]any)["cgroupsPath"] = "/" + r.cgroup() + "/" + name // it is one: readSpec
	text, err := json.Marshal(r.spec)
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(r.bundle(name), "config.json"), text, 0o644)
}

func (u *bundles) cgroup() string { return "weir-" + u.inst.Name }

func (r *runcRuntime) create(ctx context.Context, name string) error {
	if err := r.prepare(name); err != nil {
		return err
	}
	return r.runc(ctx, "create", "--bundle", r.bundle(name), name)
}
func (r *runcRuntime) start(ctx context.Context, name string) error {
	return r.runc(ctx, "start", name)
}
func (r *runcRuntime) run(ctx context.Context, name string) error {
	if err := r.prepare(name); err != nil {
		return err
	}
	return r.runc(ctx, "run", "--detach", "--bundle", r.bundle(name), name)
}
func (r *runcRuntime) stop(ctx context.Context, name string) error {
	return r.runc(ctx, "kill", name, "KILL")
}

// remove: with --force an unknown one is no error.
func (r *runcRuntime) remove(ctx context.Context, name string) error {
	return errors.Join(r.runc(ctx, "delete", "--force", name), os.RemoveAll(r.bundle(name)))
}
func (r *runcRuntime) close() error { return nil }

// lxcRuntime is LXC's programs by hand.
type lxcRuntime struct{ *bundles }

func (x *lxcRuntime) dir() string { return filepath.Join(x.inst.Run, lxcStart) }

func (x *lxcRuntime) create(_ context.Context, name string) error {
	mount := filepath.Join(x.dir(), name, "rootfs") // LXC's own is there only where LXC is installed
	if err := os.MkdirAll(mount, 0o755); err != nil {
		return err
	}
	own := x.cgroup() + "/" + name
	text := strings.Join([]string{
		"lxc.uts.name = " + name, "lxc.rootfs.path = dir:" + x.Root(), "lxc.rootfs.mount = " + mount, "lxc.rootfs.options = ro", "lxc.init.cmd = " + strings.Join(x.Args(), " "),
		"lxc.net.0.type = empty", "lxc.autodev = 1", "lxc.console.path = none", "lxc.tty.max = 0", "lxc.pty.max = 1",
		"lxc.cgroup.dir.container = " + own, "lxc.cgroup.dir.monitor = " + own + ".monitor", "lxc.cgroup.dir.monitor.pivot = " + own + ".pivot", "",
	}, "\n")
	return os.WriteFile(filepath.Join(x.dir(), name, "config"), []byte(text), 0o644)
}
func (x *lxcRuntime) start(ctx context.Context, name string) error {
	return x.command(ctx, "lxc-start", "-P", x.dir(), "-n", name, "-d", "-l", "ERROR", "-o", "/dev/stderr")
}
func (x *lxcRuntime) run(ctx context.Context, name string) error {
	if err := x.create(ctx, name); err != nil {
		return err
	}
	return x.start(ctx, name)
}
func (x *lxcRuntime) stop(ctx context.Context, name string) error {
	return x.command(ctx, "lxc-stop", "-P", x.dir(), "-n", name, "-k")
}

// remove: not by lxc-destroy, which would delete the image's root with the container.
func (x *lxcRuntime) remove(ctx context.Context, name string) error {
	dir := filepath.Join(x.dir(), name)
	if _, err := os.Stat(dir); errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err := x.stop(ctx, name); err != nil && !strings.Contains(err.Error(), "is not running") {
		return err
	}
	return os.RemoveAll(dir)
}
func (x *lxcRuntime) close() error { return nil }

// nspawnRuntime is systemd-nspawn by hand: a program in the foreground, that a user puts into the background.
type nspawnRuntime struct {
	*bundles
	running map[string]*exec.Cmd
}

// create: there is nothing to prepare.
func (*nspawnRuntime) create(context.Context, string) error { return nil }

func (n *nspawnRuntime) start(ctx context.Context, name string) error {
	out, err := os.CreateTemp(n.inst.Run, "out-")
	if err != nil {
		return err
	}
	defer out.Close()
	defer os.Remove(out.Name())
	procs, err := n.groups(name)
	if err != nil {
		return err
	}
	enter := "for f in " + strings.Join(procs, " ") + "; do echo 0 >$f; done; exec \"$@\"" // by tasks, which takes no time; it makes groups below its own
	cmd := exec.Command("sh", append([]string{"-c", enter, "sh", "systemd-nspawn", "--quiet", "--register=no", "--keep-unit", "--read-only", "--private-network",
		"--machine=" + name, "--directory=" + n.Root(), "--console=pipe", "--"}, n.Args()...)...)
	cmd.Stdout, cmd.Stderr = out, out
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := cmd.Start(); err != nil {
		return err
	}
	n.running[name] = cmd
	for ctx.Err() == nil { // there is a program when a descendant of it executes the image's
		if _, ok := executes(cmd.Process.Pid, filepath.Base(n.Args()[0])); ok {
			return nil
		}
		if ended(cmd.Process.Pid) {
			text, _ := os.ReadFile(out.Name())
			return fmt.Errorf("systemd-nspawn has ended: %s", strings.TrimSpace(string(text)))
		}
		time.Sleep(time.Millisecond)
	}
	return ctx.Err()
}
func (n *nspawnRuntime) run(ctx context.Context, name string) error { return n.start(ctx, name) }

// groups makes the cgroups that it starts in, and names the files by which to enter them: where systemd keeps its books, with version 2 or without.
func (n *nspawnRuntime) groups(name string) (procs []string, err error) {
	for top, file := range map[string]string{"/sys/fs/cgroup/systemd": "tasks", "/sys/fs/cgroup/unified": "cgroup.procs", "/sys/fs/cgroup": "cgroup.procs"} {
		if _, err := os.Stat(filepath.Join(top, file)); err != nil {
			continue
		}
		dir := filepath.Join(top, n.cgroup(), name)
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return nil, err
		}
		procs = append(procs, filepath.Join(dir, file))
	}
	return procs, nil
}

// stop ends the program, and systemd-nspawn with it: the other way round the program would live on.
func (n *nspawnRuntime) stop(_ context.Context, name string) error {
	cmd := n.running[name]
	if cmd == nil {
		return nil
	}
	delete(n.running, name)
	p := cmd.Process
	if pid, ok := executes(p.Pid, filepath.Base(n.Args()[0])); ok {
		var err error
		if p, err = os.FindProcess(pid); err != nil {
			return err
		}
	}
	if err := p.Kill(); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return err
	}
	_ = cmd.Wait() // it says that its program was killed
	return nil
}
func (n *nspawnRuntime) remove(ctx context.Context, name string) error { return n.stop(ctx, name) }
func (n *nspawnRuntime) close() error {
	var errs []error
	for name := range n.running {
		errs = append(errs, n.stop(context.Background(), name))
	}
	return errors.Join(errs...)
}

// executes finds the process, or one of its descendants, that executes a program of that name.
func executes(pid int, program string) (int, bool) {
	if exe, err := os.Readlink(fmt.Sprintf("/proc/%d/exe", pid)); err == nil && filepath.Base(exe) == program {
		return pid, true
	}
	lists, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/children", pid)) // the pattern is right
	for _, list := range lists {
		raw, err := os.ReadFile(list)
		if err != nil {
			continue // it has ended
		}
		for f := range strings.FieldsSeq(string(raw)) {
			if child, err := strconv.Atoi(f); err == nil {
				if found, ok := executes(child, program); ok {
					return found, true
				}
			}
		}
	}
	return 0, false
}

func ended(pid int) bool {
	raw, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	return err != nil || strings.Contains(string(raw), ") Z ")
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
