// Package oci makes containers by the command line of any OCI runtime (runc, crun, runsc, kata), as an engine of package kernel.
//
// What Run costs is the runtime. With runc 1.1 on two cores a start alone takes some 25 ms of processor time, nearly all of it in
// processes that are not ours (profile of 60 starts): runc itself 47 %, its init until it executes the program 34 %, its two helpers
// between them 8 %, Weir 9 %, the program 2 %. Seven tenths are spent in the kernel (page faults, executing, cgroups, mounts), a fifth
// in runc's Go code, a twentieth on the filter of system calls. Of waiting beside that there was one piece: see kernel.Home.Rouse.
package oci

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"weir.dev/weir/container"
	"weir.dev/weir/container/kernel"
	"weir.dev/weir/instance"
)

const (
	// Name of the runtime.
	Name       = "oci"
	defaultCLI = "runc"
	cliTimeout = time.Minute // of one runtime call
)

// Options of a Runtime; the zero value is useful.
type Options struct {
	kernel.Options
	CLI        string       // name or path of the runtime, default runc
	Remove     bool         // only Destroy will be called: it can do without the runtime's program
	Vulnerable bool         // accepts a runtime with known escapes
	Log        *slog.Logger // takes warnings; nil: nobody does
}

// Engine is kernel.Engine over an OCI runtime's command line.
type Engine struct {
	home   *kernel.Home
	cli    string
	crun   bool // the program is crun
	handle func(id string) Handle
}

// Handle is how the runtime's program knows a container: by an id, in a directory.
type Handle struct{ Root, ID string }

// Over gives an Engine for containers that a daemon has the runtime's program make: all but Launch and Left.
func Over(h *kernel.Home, cli string, handle func(id string) Handle) *Engine {
	return &Engine{home: h, cli: cli, handle: handle}
}

var _ kernel.Engine = (*Engine)(nil)

// New opens the instance's containers; see kernel.New.
func New(ctx context.Context, inst instance.Instance, o Options) (*kernel.Runtime, error) {
	o.CLI = cmp.Or(o.CLI, defaultCLI)
	cli, err := exec.LookPath(o.CLI)
	if o.Remove && err != nil {
		cli, err = o.CLI, nil
	}
	if err != nil {
		return nil, fmt.Errorf("container runtime %s: %w: %s", o.CLI, err, remedy)
	}
	version := ""
	if !o.Remove {
		if version, err = o.admit(ctx, cli); err != nil {
			return nil, err
		}
	}
	r, err := kernel.New(ctx, inst, Name, o.Options, func(h *kernel.Home) (kernel.Engine, error) {
		e := &Engine{home: h, cli: cli, crun: isCrun(version)}
		e.handle = func(id string) Handle { return Handle{e.stateDir(), id} }
		return e, os.MkdirAll(e.stateDir(), 0o700)
	})
	if err != nil {
		return nil, fmt.Errorf("container runtime %s: %w", o.CLI, err)
	}
	return r, nil
}

// admit refuses a runtime with known escapes, or warns of it. It returns the version.
func (o Options) admit(ctx context.Context, cli string) (string, error) {
	version, warning, err := checkVersion(ctx, cli)
	switch {
	case errors.Is(err, ErrVulnerable) && !o.Vulnerable:
		return "", fmt.Errorf("container runtime %s: %w (or start with --allow-vulnerable-runtime, and trust every image)", cli, err)
	case errors.Is(err, ErrVulnerable):
		warning = err.Error()
	case err != nil:
		return "", fmt.Errorf("container runtime: %w", err)
	}
	if warning != "" && o.Log != nil {
		o.Log.Warn("container runtime", "program", cli, "warning", warning)
	}
	return version, nil
}

func (e *Engine) stateDir() string { return filepath.Join(e.home.Dir(), "state") }

// Prepare writes config.json.
func (e *Engine) Prepare(c kernel.Container) error {
	config, err := e.home.Config(c)
	if err != nil {
		return err
	}
	if err := inherit(c.Bundle, config, c.Userns); err != nil {
		return fmt.Errorf("write config: %w", err)
	}
	raw, err := json.Marshal(config)
	if err != nil {
		return fmt.Errorf("write config: %w", err)
	}
	if err := os.WriteFile(filepath.Join(c.Bundle, "config.json"), raw, 0o600); err != nil {
		return fmt.Errorf("write config: %w", err)
	}
	return nil
}

// Launch is one call of the runtime.
func (e *Engine) Launch(ctx context.Context, c kernel.Container, log *os.File, run bool, made kernel.Made) error {
	defer e.home.Rouse()()
	if err := os.MkdirAll(e.stateDir(), 0o700); err != nil { // Destroy removes it
		return err
	}
	verb := []string{"create"}
	if run {
		verb = []string{"run", "--detach"}
	}
	pid := filepath.Join(c.Bundle, "pid")
	if err := e.call(ctx, c.ID, log, append(verb, "--bundle", c.Bundle, "--pid-file", pid, c.ID)...); err != nil {
		return explain(err, c.Spec)
	}
	n, err := readPID(pid)
	if err != nil {
		return err
	}
	return made(n, true)
}

// Start is one call of the runtime.
func (e *Engine) Start(ctx context.Context, c kernel.Container) error {
	if err := e.call(ctx, c.ID, nil, "start", e.handle(c.ID).ID); err != nil {
		return explain(err, c.Spec)
	}
	return nil
}

// Find asks the runtime.
func (e *Engine) Find(ctx context.Context, c kernel.Container) (kernel.Found, error) {
	out, err := e.output(ctx, c.ID, "state", e.handle(c.ID).ID)
	if err != nil {
		return kernel.Found{}, ctx.Err() // it does not know it
	}
	var state struct {
		PID     int       `json:"pid"`
		Status  string    `json:"status"`
		Created time.Time `json:"created"`
	}
	if err := json.Unmarshal(out, &state); err != nil {
		return kernel.Found{}, fmt.Errorf("answer of %s state: %w", e.cli, err)
	}
	f := kernel.Found{State: container.State(state.Status), PID: state.PID, Started: state.Created}
	if f.State == "creating" { // the call died half-way
		f.State = ""
	}
	return f, nil
}

// Left are those of whom the runtime has a state.
func (e *Engine) Left() ([]string, error) {
	entries, err := os.ReadDir(e.stateDir())
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("find containers: %w", err)
	}
	var ids []string
	for _, d := range entries {
		if !strings.HasPrefix(d.Name(), ".") { // crun keeps its filters of system calls in .cache
			ids = append(ids, d.Name())
		}
	}
	return ids, nil
}

// Remove has the runtime forget a container.
func (e *Engine) Remove(ctx context.Context, id string) error {
	return e.Forget(ctx, id, e.handle(id))
}

// Forget removes what the program knows under a handle. The id is for messages.
func (e *Engine) Forget(ctx context.Context, id string, h Handle) error {
	state := filepath.Join(h.Root, h.ID)
	if _, err := os.Lstat(state); err != nil {
		return nil
	}
	if err := e.call(ctx, id, nil, "delete", h.ID); err != nil {
		if err := e.call(ctx, id, nil, "delete", "--force", h.ID); err != nil && ctx.Err() != nil {
			return err
		}
	}
	// Its processes are gone; what the runtime could not make sense of are files.
	if err := os.RemoveAll(state); err != nil {
		return fmt.Errorf("remove state: %w", err)
	}
	return nil
}

func readPID(path string) (int, error) {
	raw, err := os.ReadFile(path)
	if err != nil {
		return 0, fmt.Errorf("the runtime left no pid: %w", err)
	}
	pid, err := strconv.Atoi(strings.TrimSpace(string(raw)))
	if err != nil || pid <= 0 {
		return 0, fmt.Errorf("the runtime left no pid: %s holds %q", path, raw)
	}
	return pid, nil
}
