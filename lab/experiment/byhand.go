package experiment

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"weir.dev/weir/lab/tied"
)

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

// foreground are programs that stay in the foreground, by the names of functions: a user would put them into the background.
type foreground map[string]*exec.Cmd

// upIn is how long such a program may take until the function's program runs.
const upIn = time.Minute

func (f foreground) begin(name string, cmd *exec.Cmd) error {
	err := tied.Start("", cmd)
	if err == nil {
		f[name] = cmd
	}
	return err
}

// end kills the process that which names, given that of a program, and waits for the program.
func (f foreground) end(name string, which func(pid int) int) error {
	cmd := f[name]
	if cmd == nil {
		return nil
	}
	delete(f, name)
	p, err := os.FindProcess(which(cmd.Process.Pid))
	if err != nil {
		return err
	}
	if err := p.Kill(); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return err
	}
	_ = cmd.Wait() // it says that its program was killed
	return nil
}

func (f foreground) endAll(which func(pid int) int) error {
	var errs []error
	for name := range f {
		errs = append(errs, f.end(name, which))
	}
	return errors.Join(errs...)
}

// nspawnRuntime is systemd-nspawn by hand.
type nspawnRuntime struct {
	*bundles
	foreground
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
	if err := n.begin(name, cmd); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeoutCause(ctx, upIn, fmt.Errorf("its program does not run within %v", upIn))
	defer cancel()
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
	return fmt.Errorf("systemd-nspawn: %w", context.Cause(ctx))
}
func (n *nspawnRuntime) run(ctx context.Context, name string) error { return n.start(ctx, name) }

// groups makes the cgroups that it starts in, and names the files by which to enter them: where systemd keeps its books, with version 2 or without.
func (n *nspawnRuntime) groups(name string) (procs []string, err error) {
	for top, file := range map[string]string{"/sys/fs/cgroup/systemd": "tasks", "/sys/fs/cgroup/unified": "cgroup.procs", "/sys/fs/cgroup": "cgroup.procs"} {
		if _, err := os.Stat(filepath.Join(top, file)); err != nil {
			continue
		}
		dir := filepath.Join(top, n.cgroup(), name+".nspawn") // LXC wants to make its groups, of the name alone, itself
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return nil, err
		}
		procs = append(procs, filepath.Join(dir, file))
	}
	return procs, nil
}

// inside is the program, with which systemd-nspawn ends: the other way round the program would live on.
func (n *nspawnRuntime) inside(pid int) int {
	if found, ok := executes(pid, filepath.Base(n.Args()[0])); ok {
		return found
	}
	return pid
}

func (n *nspawnRuntime) stop(_ context.Context, name string) error   { return n.end(name, n.inside) }
func (n *nspawnRuntime) remove(_ context.Context, name string) error { return n.end(name, n.inside) }
func (n *nspawnRuntime) close() error                                { return n.endAll(n.inside) }

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
