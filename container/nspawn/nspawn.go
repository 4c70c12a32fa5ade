// Package nspawn makes containers by systemd-nspawn, without systemd in them or outside, as an engine of package kernel.
//
// systemd-nspawn runs, if the container has a user namespace, in that as its root: it is then as little as the container outside. It sees a mount namespace
// in which /run is empty but for the container's root. It makes the container's namespaces, enters the sandbox's network namespace, and executes the
// launcher as the container's first process.
package nspawn

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"weir.dev/weir/container/kernel"
	"weir.dev/weir/container/kernel/entry"
	"weir.dev/weir/instance"
)

// Name of the runtime.
const Name = "nspawn"

const program = "systemd-nspawn"

// Options of a Runtime; the zero value is useful.
type Options struct {
	kernel.Options
	Remove bool // only Destroy will be called: it can do without systemd-nspawn
}

// Engine is kernel.Engine over systemd-nspawn.
type Engine struct {
	*entry.Tool
	cli string
}

var _ kernel.Engine = (*Engine)(nil)

// New opens the instance's containers; see kernel.New.
func New(ctx context.Context, inst instance.Instance, o Options) (*kernel.Runtime, error) {
	return called.Open(ctx, inst, o.Options, o.Remove, func(t *entry.Tool, path string) kernel.Engine { return &Engine{Tool: t, cli: path} })
}

// Prepare makes what systemd-nspawn insists on in a writable root. In one that is read-only Launch adds it.
func (e *Engine) Prepare(c kernel.Container) error {
	if c.ReadOnly {
		return nil
	}
	if err := os.Mkdir(filepath.Join(c.Root, insisted), 0o755); err != nil && !errors.Is(err, os.ErrExist) {
		return fmt.Errorf("root file system: %w", err)
	}
	return nil
}

// insisted is the directory without which systemd-nspawn takes a root for none.
const insisted = "usr"

// Where systemd-nspawn finds the container's root, in its own /run.
const (
	rootDir  = "/run/stage/root"
	imageDir = "/run/stage/image"
	extraDir = "/run/stage/extra"
)

// Launch is one call of systemd-nspawn.
func (e *Engine) Launch(ctx context.Context, c kernel.Container, log *os.File, run bool, made kernel.Made) error {
	return explain(e.Tool.Launch(ctx, c, log, run, made, func(x *entry.Launch) error { return e.plan(x, c) }))
}

func (e *Engine) plan(x *entry.Launch, c kernel.Container) error {
	x.Begin(e.Home, c, c.IDs.First)
	x.EnterGroups(e.Home, c)
	x.Enter(c)
	stage(x, c)
	x.Cover = []string{"/sys/fs/cgroup"}
	x.Args = e.arguments(c)
	x.Numbered = "LISTEN_PID="
	unified := "0"
	if e.Home.AnyUnified() { // in a user namespace it can mount no other, and in none it need not
		unified = "1"
	}
	x.Env = []string{"PATH=" + os.Getenv("PATH"), "SYSTEMD_NSPAWN_UNIFIED_HIERARCHY=" + unified, "SYSTEMD_LOG_TARGET=console", "SYSTEMD_LOG_COLOR=0"}
	return nil
}

// stage makes the mounts that systemd-nspawn sees.
func stage(x *entry.Launch, c kernel.Container) {
	set := uint64(0)
	if c.ReadOnly {
		set = unix.MOUNT_ATTR_RDONLY
	}
	root := x.Tree(c.Root, set)
	x.Unshare(unix.CLONE_NEWNS)
	x.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, "")
	x.Mount("tmpfs", "/run", "tmpfs", unix.MS_NOSUID|unix.MS_NODEV, "mode=755,size=1m")
	x.MakeDir(rootDir)
	if fi, err := os.Stat(filepath.Join(c.Root, insisted)); err == nil && fi.IsDir() {
		x.Attach("mount the root", root, rootDir)
		return
	}
	x.MakeDir(imageDir)
	x.MakeDir(extraDir + "/" + insisted)
	x.Attach("mount the root", root, imageDir)
	x.Mount("overlay", rootDir, "overlay", unix.MS_RDONLY, "lowerdir="+imageDir+":"+extraDir)
}

// arguments are systemd-nspawn(1). Of the container's process package entry takes care; until then it may do all.
func (e *Engine) arguments(c kernel.Container) []string {
	a := []string{e.cli, "--quiet", "--directory=" + rootDir, "--machine=weir", "--register=no", "--keep-unit", "--settings=no", "--console=pipe",
		"--private-users=no", "--resolv-conf=off", "--timezone=off", "--link-journal=no", "--capability=all", "--rlimit=RLIMIT_NOFILE=" + files()}
	if c.ReadOnly {
		a = append(a, "--read-only")
	}
	if c.Netns != "" {
		a = append(a, "--network-namespace-path=/proc/self/ns/net")
	} else {
		a = append(a, "--private-network")
	}
	return append(append(a, "--"), entry.Entry()...)
}

// files is the limit of open files, as it is here: systemd-nspawn would take that of the host's first process, which may be lower.
func files() string {
	var own unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &own); err != nil {
		return "1024"
	}
	return fmt.Sprintf("1024:%d", own.Max)
}

// explain turns what systemd-nspawn says into what to do.
func explain(err error) error {
	if err == nil || errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) {
		return err
	}
	text := err.Error()
	switch {
	case strings.Contains(text, "subcgroup"):
		return fmt.Errorf("systemd-nspawn cannot make its cgroups: is the hierarchy that systemd uses mounted and writable? %w", err)
	}
	return err
}

// Left are those that have a monitor.
func (e *Engine) Left() ([]string, error) { return e.Home.Monitors() }

// Remove ends systemd-nspawn.
func (e *Engine) Remove(ctx context.Context, id string) error { return e.Home.EndMonitor(ctx, id) }
