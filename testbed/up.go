package testbed

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"weir.dev/weir/netns"
)

// ErrInvalid says that a value is none.
var ErrInvalid = errors.New("invalid")

// Options of commands that run processes.
type Options struct {
	Program  string                        // Weir's own binary; default this program
	Progress func(format string, a ...any) // one line for each step; default none
	Timeout  time.Duration                 // of each wait; default a minute
}

func (o *Options) defaults() error {
	if os.Geteuid() != 0 {
		return ErrForbidden
	}
	if o.Program == "" {
		self, err := os.Executable()
		if err != nil {
			return fmt.Errorf("find our own program: %w", err)
		}
		o.Program = self
	}
	if o.Progress == nil {
		o.Progress = func(string, ...any) {}
	}
	if o.Timeout <= 0 {
		o.Timeout = time.Minute
	}
	return nil
}

// undoTimeout bounds the removal of what was half built.
const undoTimeout = 2 * time.Minute

// Up builds a testbed, or starts again what of it has died; Changed tells whether there was anything to do. When it fails, or ctx ends, nothing
// of it is left, unless it was up before.
func Up(ctx context.Context, f File, o Options) (changed bool, err error) {
	if err := o.defaults(); err != nil {
		return false, err
	}
	if problems := f.Spec.Validate(); len(problems) > 0 {
		return false, fmt.Errorf("testbed %s: %s: %s: %w", f.Spec.Name, problems[0].Path, problems[0].Message, ErrInvalid)
	}
	p := newPlan(f.Spec)
	if len(p.Switches) > 0 {
		if err := checkOVS(); err != nil {
			return false, err
		}
	}
	release, err := lock(p.Name)
	if err != nil {
		return false, err
	}
	keep := false
	defer func() { release(!keep) }()
	before, err := readRecord(p.Name)
	switch {
	case err == nil && before.Ready && !before.same(f.Spec):
		keep = true
		return false, fmt.Errorf("testbed %s is up, with another file: take it down first (weir testbed down %s): %w", p.Name, p.Name, ErrConflict)
	case err == nil && before.Ready && netns.Exists(p.netns(NodeManager)):
		keep = true
		return o.again(ctx, p)
	case err == nil || !errors.Is(err, ErrNotFound): // half built, or half gone
		o.Progress("taking down what is left of an earlier start")
		if err := o.remove(ctx, p.Name); err != nil {
			keep = true
			return false, err
		}
	}
	if p.Manager != nil {
		if err := p.checkInstance(); err != nil {
			return false, err
		}
	}
	if err := o.build(ctx, p, f.Path); err != nil {
		undo, cancel := context.WithTimeout(context.WithoutCancel(ctx), undoTimeout)
		defer cancel()
		if worse := o.remove(undo, p.Name); worse != nil {
			keep = true
			err = errors.Join(err, fmt.Errorf("and what was built is not all gone (try weir testbed down %s): %w", p.Name, worse))
		}
		return false, err
	}
	keep = true
	return true, nil
}

// build makes everything.
func (o *Options) build(ctx context.Context, p plan, path string) error {
	if path != "" && path != "-" {
		if abs, err := filepath.Abs(path); err == nil {
			path = abs
		}
	}
	for _, dir := range []string{p.Run, filepath.Join(p.Run, "log"), p.State} {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return fmt.Errorf("make directory: %w", err)
		}
	}
	r := record{Spec: p.Spec, File: path}
	if err := r.write(); err != nil {
		return err
	}
	o.Progress("%d namespaces, %d cables", len(p.namespaces()), len(p.Links))
	if err := p.makeSpaces(); err != nil {
		return err
	}
	if err := p.makeLinks(); err != nil {
		return err
	}
	for _, c := range p.cables() {
		if err := p.impair(c, Impairment{c.Rate, c.Delay, c.Loss}); err != nil {
			return err
		}
	}
	if err := o.startAll(ctx, p, map[string]bool{}); err != nil {
		return err
	}
	r.Ready = true
	return r.write()
}

// startAll starts what does not run, and waits until it works.
func (o *Options) startAll(ctx context.Context, p plan, running map[string]bool) error {
	if p.Manager != nil && !running[NodeManager] {
		o.Progress("manager")
		if err := o.startManager(ctx, p); err != nil {
			return err
		}
	}
	if len(p.Switches) > 0 && !(running[ovsdbServer] && running[ovsVswitchd]) {
		o.Progress("%d switches (Open vSwitch)", len(p.Switches))
		fresh := !running[ovsdbServer] && !fileExists(filepath.Join(p.ovsDir(), "conf.db"))
		if err := p.startOVS(ctx); err != nil {
			return err
		}
		if fresh {
			if p.openflowTLS() {
				if err := o.certifySwitches(ctx, p); err != nil {
					return err
				}
			}
			if err := p.configureSwitches(ctx); err != nil {
				return err
			}
		}
		if err := p.widen(); err != nil {
			return err
		}
	}
	told := false
	for _, node := range sorted(p.Agents) {
		if running[node] {
			continue
		}
		if !told {
			o.Progress("agents")
			told = true
		}
		if err := o.startAgent(ctx, p, node); err != nil {
			return err
		}
	}
	if p.Manager == nil {
		return nil
	}
	return o.awaitNodes(ctx, p)
}

func fileExists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}

// again starts what has died since.
func (o *Options) again(ctx context.Context, p plan) (changed bool, err error) {
	running, err := p.running()
	if err != nil {
		return false, err
	}
	for _, n := range p.daemons() {
		changed = changed || !running[n]
	}
	if !changed {
		return false, nil
	}
	return true, o.startAll(ctx, p, running)
}

// daemons are the nodes' processes that have to run.
func (p plan) daemons() []string {
	var out []string
	if p.Manager != nil {
		out = append(out, NodeManager)
	}
	if len(p.Switches) > 0 {
		out = append(out, ovsdbServer, ovsVswitchd)
	}
	return append(out, sorted(p.Agents)...)
}

// running tells which of them do.
func (p plan) running() (map[string]bool, error) {
	list, err := p.processes()
	if err != nil {
		return nil, err
	}
	up := map[string]bool{}
	for _, x := range list {
		if x.node != "" {
			up[x.node] = true
		}
	}
	return up, nil
}

// Down removes a testbed and everything that was made for it, whatever state it is in. Not there: nil, false.
func Down(ctx context.Context, name string, o Options) (found bool, err error) {
	if err := o.defaults(); err != nil {
		return false, err
	}
	release, err := lock(name)
	if err != nil {
		return false, err
	}
	p := newPlan(Spec{Name: name})
	if !fileExists(p.Run) && !fileExists(p.State) {
		release(true)
		return false, nil
	}
	err = o.remove(ctx, name)
	release(err == nil)
	return true, err
}

// remove takes down in the order in which things hold each other. Safe to call again.
func (o *Options) remove(ctx context.Context, name string) error {
	p := newPlan(Spec{Name: name})
	if r, err := readRecord(name); err == nil {
		p = newPlan(r.Spec)
	} else if !errors.Is(err, ErrNotFound) {
		o.Progress("%v; removing what bears its name", err)
	}
	if err := p.killDaemons(ctx); err != nil {
		return err
	}
	if err := o.stopWeir(ctx, p); err != nil {
		return err
	}
	if err := p.killAll(ctx); err != nil {
		return err
	}
	entries, err := os.ReadDir(filepath.Join(p.Run, "netns"))
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("list namespaces: %w", err)
	}
	for _, e := range entries {
		if err := netns.Delete(p.netns(e.Name())); err != nil {
			return err
		}
	}
	for _, dir := range []string{p.State, p.Run} { // the record goes last
		if err := os.RemoveAll(dir); err != nil {
			return fmt.Errorf("remove directory: %w", err)
		}
	}
	_ = os.Remove(stateBase) // if this was the last testbed
	return nil
}
