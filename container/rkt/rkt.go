// Package rkt makes containers by rkt, where it is installed, as an engine of package kernel.
//
// A container is a pod of one app. Its image is written for it from the container's root; the app is the launcher, which finds what it needs in
// a volume. rkt's pod is a systemd-nspawn of its own with a systemd in it (stage 1), so the app is not process 1. rkt's last release, 1.30.0, is of 2018:
// there is none to test with on a distribution of today. What this package relies on is what rkt's documentation says, and the package's test has a
// program that does that.
package rkt

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"weir.dev/weir/container"
	"weir.dev/weir/container/kernel"
	"weir.dev/weir/container/kernel/entry"
	"weir.dev/weir/instance"
)

// Name of the runtime.
const Name = "rkt"

const (
	program     = "rkt"
	callTimeout = time.Minute // of one call of rkt but that which stays
	insideDir   = "/.weir"    // in the container
	insideLog   = "/.weir-log"
	imageFile   = "image.aci"
)

// Options of a Runtime; the zero value is useful.
type Options struct {
	kernel.Options
	Remove bool // only Destroy will be called: it can do without rkt
}

// Engine is kernel.Engine over rkt.
type Engine struct {
	*entry.Tool
	cli string
}

var _ kernel.Engine = (*Engine)(nil)

var called = entry.Program{
	Runtime: Name, Name: program, Absent: "not installed: rkt's last release is 1.30.0 (2018); studies take nspawn, its engine, as the stand-in", Version: []string{"version"},
	Judge: func(line string) (version, wrong string) { return strings.TrimPrefix(line, "rkt Version: "), "" },
	Any:   true,
	Note:  "the function is not process 1 of its container; it has no user namespace",
}

// New opens the instance's containers; see kernel.New.
func New(ctx context.Context, inst instance.Instance, o Options) (*kernel.Runtime, error) {
	return called.Open(ctx, inst, o.Options, o.Remove, func(t *entry.Tool, path string) kernel.Engine {
		t.Rooted = true
		return &Engine{Tool: t, cli: path}
	})
}

// About tells whether rkt is here.
func About(ctx context.Context) container.About {
	a, _ := called.Look(ctx)
	return a
}

// Prepare writes the container's image.
func (e *Engine) Prepare(c kernel.Container) error {
	if c.Userns != "" {
		return errors.New("rkt cannot enter a user namespace: take another runtime, or allow this function root of the host")
	}
	if err := writeImage(filepath.Join(c.Bundle, imageFile), appName(c.ID), c.Rootfs); err != nil {
		return fmt.Errorf("write image for rkt: %w", err)
	}
	return nil
}

// Launch is rkt prepare, and rkt run-prepared, which stays.
func (e *Engine) Launch(ctx context.Context, c kernel.Container, log *os.File, run bool, made kernel.Made) error {
	if err := os.Mkdir(entry.Dir(c), 0o755); err != nil && !errors.Is(err, os.ErrExist) {
		return err
	}
	out, err := e.call(ctx, append([]string{"prepare", "--insecure-options=image"}, prepareArgs(c, log.Name())...)...)
	if err != nil {
		return err
	}
	pod := strings.TrimSpace(out)
	if !isUUID(pod) {
		return fmt.Errorf("rkt prepare printed %q: want the UUID of a pod", pod)
	}
	return e.Tool.Launch(ctx, c, log, run, made, func(x *entry.Launch) error { return e.plan(x, c, pod) })
}

func (e *Engine) plan(x *entry.Launch, c kernel.Container, pod string) error {
	if err := e.Home.MakeGroups(c.Spec); err != nil {
		return err
	}
	x.Begin(e.Home, c, 0)
	network := "--net=none"
	x.Enter(c)
	if c.Netns != "" {
		network = "--net=host" // that which it is called in
	}
	x.Args = []string{e.cli, e.dir(), "run-prepared", network, "--mds-register=false"}
	if hostname.MatchString(c.ID) { // it takes no other, and there is no later occasion
		x.Args = append(x.Args, "--hostname="+c.ID)
	}
	x.Args = append(x.Args, pod)
	x.Env = os.Environ()
	x.Apart = entry.Apart{Inside: insideDir, Log: insideLog}
	return nil
}

// prepareArgs are those of rkt prepare: volumes, the image, and what is the app's.
func prepareArgs(c kernel.Container, log string) []string {
	volumes := []string{volume("weir", entry.Dir(c), true), volume("weir-log", log, false),
		"--volume=run,kind=empty,mode=0755", "--volume=tmp,kind=empty,mode=1777"}
	app := []string{"--name=" + appName(c.ID), "--mount=volume=weir,target=" + insideDir, "--mount=volume=weir-log,target=" + insideLog,
		"--mount=volume=run,target=/run", "--mount=volume=tmp,target=/tmp", "--readonly-rootfs=" + strconv.FormatBool(c.ReadOnly),
		"--caps-retain=" + strings.Join(append([]string{"CAP_SETUID", "CAP_SETGID", "CAP_SETPCAP", "CAP_SYS_RESOURCE"}, c.Capabilities...), ",")}
	for i, m := range c.Mounts {
		name := "mount-" + strconv.Itoa(i)
		volumes = append(volumes, volume(name, m.Source, m.ReadOnly))
		app = append(app, "--mount=volume="+name+",target="+m.Target)
	}
	return append(append(append([]string{"--quiet"}, volumes...), filepath.Join(c.Bundle, imageFile)), app...)
}

func volume(name, source string, readOnly bool) string {
	return fmt.Sprintf("--volume=%s,kind=host,source=%s,readOnly=%t", name, source, readOnly)
}

// dir is where rkt keeps this instance's pods and images.
func (e *Engine) dir() string { return "--dir=" + filepath.Join(e.Home.Dir(), "data") }

// call runs rkt to its end and returns what it printed.
func (e *Engine) call(ctx context.Context, args ...string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	cmd := exec.CommandContext(ctx, e.cli, append([]string{e.dir()}, args...)...)
	cmd.Env = append(os.Environ(), e.Home.Mark("call", "rkt")) // one that is left by a killed process ends by itself
	out, err := cmd.Output()
	var exit *exec.ExitError
	switch {
	case ctx.Err() != nil:
		return "", ctx.Err()
	case errors.As(err, &exit):
		return "", fmt.Errorf("rkt %s: %w: %s", args[0], err, strings.TrimSpace(string(exit.Stderr)))
	}
	return string(out), err
}

// Remove ends rkt and removes the container's pods, those too that were prepared and not run.
func (e *Engine) Remove(ctx context.Context, id string) error {
	if err := e.Home.EndMonitor(ctx, id); err != nil {
		return err
	}
	pods, err := e.pods(ctx)
	if err != nil {
		return err
	}
	for pod, app := range pods {
		if app != appName(id) {
			continue
		}
		if _, err := e.call(ctx, "stop", "--force", pod); err != nil && ctx.Err() != nil { // it has ended, if all is well
			return err
		}
		if _, err := e.call(ctx, "rm", pod); err != nil {
			return err
		}
	}
	return nil
}

// Left are those that have pods or monitors.
func (e *Engine) Left() ([]string, error) {
	ids, err := e.Home.Monitors()
	if err != nil {
		return nil, err
	}
	pods, err := e.pods(context.Background())
	for _, app := range pods {
		if id, ok := idOf(app); ok {
			ids = append(ids, id)
		}
	}
	return ids, err
}
