// Package lxc makes containers by LXC's lxc-start, version 5 and newer, as an engine of package kernel.
//
// lxc-start runs in the foreground, as a child of nobody, in a mount namespace in which /run is empty but for the container's root. It makes the
// container's namespaces, or enters the sandbox's, its root, /dev, /proc and /sys, and executes the launcher as the container's first
// process. It stays as the container's monitor.
package lxc

import (
	"context"
	"errors"
	"fmt"
	"os"
	"regexp"

	"golang.org/x/sys/unix"

	"weir.dev/weir/container/kernel"
	"weir.dev/weir/container/kernel/entry"
	"weir.dev/weir/container/kernel/launcher"
	"weir.dev/weir/instance"
)

// Name of the runtime.
const Name = "lxc"

const program = "lxc-start"

// Options of a Runtime; the zero value is useful.
type Options struct {
	kernel.Options
	Remove bool // only Destroy will be called: it can do without LXC
}

// Engine is kernel.Engine over lxc-start.
type Engine struct {
	*entry.Tool
	cli string
}

var _ kernel.Engine = (*Engine)(nil)

// New opens the instance's containers; see kernel.New.
func New(ctx context.Context, inst instance.Instance, o Options) (*kernel.Runtime, error) {
	return called.Open(ctx, inst, o.Options, o.Remove, func(t *entry.Tool, path string) kernel.Engine { return &Engine{Tool: t, cli: path} })
}

// Prepare: all that lxc-start wants it is given when it is called.
func (e *Engine) Prepare(kernel.Container) error { return nil }

// Where lxc-start finds the container's root and puts it, in its own /run, and where it looks for cgroups.
const (
	rootDir    = "/run/root"
	mountDir   = "/run/mount"
	cgroupsDir = "/sys/fs/cgroup"
)

// Launch is one call of lxc-start.
func (e *Engine) Launch(ctx context.Context, c kernel.Container, log *os.File, run bool, made kernel.Made) error {
	return explain(e.Tool.Launch(ctx, c, log, run, made, func(x *entry.Launch) error { return e.plan(x, c) }))
}

func (e *Engine) plan(x *entry.Launch, c kernel.Container) error {
	x.Begin(e.Home, c, 0)
	x.Still = true
	x.EnterGroups(e.Home, c)
	set := uint64(0)
	if c.ReadOnly {
		set = unix.MOUNT_ATTR_RDONLY
	}
	root := x.Tree(c.Root, set)
	config, err := e.open(x, c)
	if err != nil {
		return err
	}
	x.Unshare(unix.CLONE_NEWNS)
	x.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, "")
	x.Mount("tmpfs", "/run", "tmpfs", unix.MS_NOSUID|unix.MS_NODEV, "mode=755,size=1m")
	x.MakeDir(rootDir)
	x.MakeDir(mountDir)
	x.Attach("mount the root", root, rootDir)
	x.List.Cover(cgroupsDir)      // it would make groups in each hierarchy that it finds
	x.Made = []string{"/dev/pts"} // with /dev/ptmx
	x.MakeDir(e.Home.Dir())       // no container of another instance has the same
	x.Args = []string{e.cli, "--lxcpath", e.Home.Dir(), "--name", c.ID, "--foreground", "--quiet",
		"--rcfile", config, "--logpriority", "ERROR", "--logfile", "/proc/self/fd/2"}
	x.Env = []string{"PATH=" + os.Getenv("PATH")}
	return nil
}

// open gives the configuration to lxc-start, and returns its path there.
func (e *Engine) open(x *entry.Launch, c kernel.Container) (string, error) {
	fd, err := unix.MemfdCreate("config", unix.MFD_CLOEXEC)
	if err != nil {
		return "", fmt.Errorf("make config: %w", err)
	}
	file := os.NewFile(uintptr(fd), "config")
	at := x.Add(file)
	if _, err := file.WriteString(e.config(c, space(x, c.Userns), space(x, c.Netns))); err != nil {
		return "", fmt.Errorf("write config: %w", err)
	}
	return launcher.Descriptor(at), nil
}

// space opens a namespace, as the place where it is bound cannot be seen by lxc-start.
func space(x *entry.Launch, path string) string {
	if path == "" {
		return ""
	}
	return launcher.Descriptor(x.Open(path))
}

// noise is what stands before each of lxc-start's words in its log, and the same words as it prints them.
var noise = regexp.MustCompile(`lxc-start \S+ \d+\.\d+ ERROR +\S+ - \S+ - |; lxc-start: \S+: \.\./src[^;]*`)

// explain leaves out what stands before lxc-start's words.
func explain(err error) error {
	if err == nil || errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) {
		return err
	}
	if text := noise.ReplaceAllString(err.Error(), ""); text != err.Error() {
		return errors.New(text)
	}
	return err
}

// Left are those that have a monitor.
func (e *Engine) Left() ([]string, error) { return e.Home.Monitors() }

// Remove ends lxc-start.
func (e *Engine) Remove(ctx context.Context, id string) error { return e.Home.EndMonitor(ctx, id) }
