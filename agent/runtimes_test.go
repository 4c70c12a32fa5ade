package agent_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"weir.dev/weir/api"
	"weir.dev/weir/container"
	"weir.dev/weir/container/choice"
	runtimefake "weir.dev/weir/container/fake"
	switchfake "weir.dev/weir/datapath/fake"
)

// engines are the runtimes of a desk beside oci, which is its d.runtime.
type engines struct {
	docker, bare, kvm *runtimefake.Runtime
	left              bool          // each may have containers
	boots             chan struct{} // machines come up when it is closed; nil: at once
	begun             atomic.Int32  // machines that were to come up
	mu                sync.Mutex
	missing           string   // why there is no docker
	leaves            bool     // docker makes no container, and leaves something of it
	deleted           []string // containers that docker was to delete
}

func (e *engines) set(missing string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.missing = missing
}

func (e *engines) why() string {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.missing
}

// several gives a desk the runtimes oci, docker, bare and kvm; fallback is the default.
func (e *engines) several(fallback string) func(*desk) {
	return func(d *desk) {
		driver := func(rt *runtimefake.Runtime, a container.About, why func() string) choice.Driver {
			return choice.Driver{
				Open: func(context.Context) (container.Runtime, error) {
					if w := why(); w != "" {
						return nil, errors.New(w)
					}
					if a.Machine && e.boots != nil {
						return slowMachines{rt, e}, nil
					}
					if rt == e.docker {
						return leaving{rt, e}, nil
					}
					return rt, nil
				},
				About: func(context.Context) container.About {
					now := a
					now.Ports, now.Missing = rt.Kinds, why()
					return now
				},
				Left: func() bool { return e.left },
			}
		}
		there := func() string { return "" }
		r, err := choice.Open(d.t.Context(), choice.Options{Dir: d.options.Instance.Run + "/runtimes", Default: fallback, Drivers: map[string]choice.Driver{
			"oci": driver(d.runtime, container.About{Version: "1.1"}, there), "docker": driver(e.docker, container.About{Note: "an old engine"}, e.why),
			"bare": driver(e.bare, container.About{}, there), "kvm": driver(e.kvm, container.About{Machine: true}, there),
		}})
		if err != nil {
			d.t.Fatal(err)
		}
		d.options.Runtime, d.options.Runtimes, d.options.RuntimeName, d.options.LookEvery = r, r, fallback, 20*time.Millisecond
	}
}

func newEngines() *engines {
	return &engines{docker: runtimefake.New(), bare: runtimefake.New(), kvm: runtimefake.New()}
}

// slowMachines come up when boots is closed.
type slowMachines struct {
	*runtimefake.Runtime
	e *engines
}

func (s slowMachines) Run(ctx context.Context, spec container.Spec) error {
	s.e.begun.Add(1)
	select {
	case <-s.e.boots:
		return s.Runtime.Run(ctx, spec)
	case <-ctx.Done():
		return ctx.Err()
	}
}

// leaving is docker, which may leave something of a container that it could not make.
type leaving struct {
	*runtimefake.Runtime
	e *engines
}

func (l leaving) Run(ctx context.Context, spec container.Spec) error {
	l.e.mu.Lock()
	defer l.e.mu.Unlock()
	if l.e.leaves {
		return fmt.Errorf("no answer; %w", container.ErrLeft)
	}
	return l.Runtime.Run(ctx, spec)
}

func (l leaving) Delete(ctx context.Context, id string) error {
	l.e.mu.Lock()
	defer l.e.mu.Unlock()
	if l.e.leaves {
		return errors.New("no answer")
	}
	l.e.deleted = append(l.e.deleted, id)
	return l.Runtime.Delete(ctx, id)
}

// only waits until a function's container, and no other one, is in a runtime.
func (d *desk) only(in *runtimefake.Runtime, function string, others ...*runtimefake.Runtime) {
	d.t.Helper()
	has := func(rt *runtimefake.Runtime) (n int) {
		list, err := rt.List(d.t.Context())
		d.must(nil, err)
		for _, c := range list {
			if name, _, _ := strings.Cut(c.ID, "."); name == function {
				n++
			}
		}
		return n
	}
	d.until("function "+function+" is in its runtime alone", func() bool {
		return has(in) == 1 && !slices.ContainsFunc(others, func(rt *runtimefake.Runtime) bool { return has(rt) > 0 })
	})
}

func (d *desk) reasons() (out []string) {
	d.t.Helper()
	events, err := d.client.Events().List(d.t.Context(), api.ListOptions{})
	d.must(nil, err)
	for _, e := range events.Items {
		out = append(out, e.Reason)
	}
	return out
}

// A function runs in the runtime that it names. A change of that is a planned change: traffic goes on, by the same ports.
func aFunctionsRuntimeCanBeChanged(t *testing.T) {
	e := newEngines()
	d := newDesk(t, switchfake.Options{}, e.several("oci"))
	d.put("fw", api.FunctionSpec{Runtime: "docker"})
	d.put("ids", api.FunctionSpec{})
	d.chain("web", "fw | ids")
	d.policy("guests", "web", 80)
	d.only(e.docker, "fw", d.runtime)
	d.only(d.runtime, "ids", e.docker)
	if s := d.up("fw").Status; s.Runtime != "docker" || s.RuntimeNote != "an old engine" {
		t.Errorf("fw runs in %q (%s)", s.Runtime, s.RuntimeNote)
	}
	if s := d.up("ids").Status; s.Runtime != "oci" || s.RuntimeNote != "" {
		t.Errorf("ids runs in %q (%s)", s.Runtime, s.RuntimeNote)
	}
	d.waits("the chain is in force", through("fw", "ids"), 80)
	d.put("fw", api.FunctionSpec{Runtime: "oci"})
	d.until("it is changed", func() bool {
		if got := d.way(80); got != through("fw", "ids") && !strings.HasPrefix(got, "function/fw~/in") {
			t.Fatalf("while it changes frames go %q", got)
		}
		f := d.function("fw")
		return f.Status.Healthy && f.Status.ObservedGeneration == f.Generation && f.Status.Runtime == "oci"
	})
	d.only(d.runtime, "fw", e.docker)
	d.put("fw", api.FunctionSpec{Runtime: "docker"})
	d.until("and back", func() bool { f := d.up("fw"); return f.Status.Runtime == "docker" })
	d.only(e.docker, "fw", d.runtime)
	d.put("fw", api.FunctionSpec{})
	d.until("and to the default", func() bool { f := d.up("fw"); return f.Status.Runtime == "oci" })
	d.only(d.runtime, "fw", e.docker)
}

// Of a runtime that goes the host says so, and each function that it runs: none is moved, and traffic goes on while it can.
func aRuntimeThatGoesIsSaid(t *testing.T) {
	e := newEngines()
	d := newDesk(t, switchfake.Options{}, e.several("oci"))
	d.put("fw", api.FunctionSpec{Runtime: "docker"})
	d.chain("web", "fw")
	d.policy("guests", "web", 80)
	pid := d.up("fw").Status.PID
	d.waits("the chain is in force", through("fw"), 80)
	e.set("no engine: start dockerd")
	docker := func() api.HostRuntime {
		h, err := d.client.Hosts().Get(t.Context(), "h1")
		d.must(nil, err)
		r, _ := h.Status.RuntimeOf("docker")
		return r
	}
	d.until("the host says it", func() bool { r := docker(); return !r.Available && r.Why == "no engine: start dockerd" })
	d.until("the function says it", func() bool {
		c := d.function("fw").Status.Conditions.Get(api.ConditionIncapable)
		return c != nil && c.Reason == api.ReasonRuntime && strings.Contains(c.Message, "host h1 has no runtime docker: no engine: start dockerd")
	})
	d.until("an event tells", func() bool { return slices.Contains(d.reasons(), "RuntimeLost") })
	if f := d.function("fw"); !f.Status.Healthy || f.At() != "h1" || f.Status.PID != pid || d.way(80) != through("fw") {
		t.Errorf("it is at %s, process %d, was %d, healthy %v; frames go %q", f.At(), f.Status.PID, pid, f.Status.Healthy, d.way(80))
	}
	d.put("late", api.FunctionSpec{Runtime: "docker"})
	d.until("what comes now waits", func() bool {
		return strings.Contains(d.function("late").Status.Message, "h1 has no runtime docker: no engine: start dockerd")
	})
	// An agent that starts meanwhile leaves alone what it cannot see.
	d.stop()
	e.several("oci")(d)
	d.start()
	d.until("the next agent takes it as it is", func() bool {
		f := d.function("fw")
		return f.Status.Healthy && f.Status.Runtime == "docker" && f.Status.Conditions.Get(api.ConditionIncapable) != nil
	})
	if got := d.way(80); got != through("fw") {
		t.Errorf("frames go %q", got)
	}
	e.set("")
	d.until("it is back", func() bool {
		return docker().Available && d.function("fw").Status.Conditions.Get(api.ConditionIncapable) == nil
	})
	d.only(e.docker, "fw", d.runtime)
	if n := len(slices.DeleteFunc(e.docker.Calls(), func(c string) bool { return !strings.HasPrefix(c, "Start fw.") })); n != 1 {
		t.Errorf("fw was started %d times", n)
	}
	d.put("late", api.FunctionSpec{Runtime: "docker", Env: map[string]string{"LOOK": "again"}}) // here nobody leads, who would look at hosts
	d.up("late")
}

// A second container of a function that an agent which was killed has left, in a runtime that is missing now, keeps no agent from starting; it goes when
// the runtime is back.
func aSecondContainerInAMissingRuntimeGoesLater(t *testing.T) {
	e := newEngines()
	d := newDesk(t, switchfake.Options{}, e.several("oci"))
	d.put("fw", api.FunctionSpec{})
	pid := d.up("fw").Status.PID
	d.stop()
	d.must(nil, d.options.Runtime.Run(t.Context(), container.Spec{ID: "fw.7", Runtime: "docker", Args: []string{"wait"}}))
	e.set("no engine")
	e.several("oci")(d)
	d.start()
	d.put("late", api.FunctionSpec{})
	d.up("late")
	e.set("")
	d.until("the second one is gone", func() bool { list, err := e.docker.List(t.Context()); return err == nil && len(list) == 0 })
	if s := d.up("fw").Status; s.PID != pid || s.Runtime != "oci" {
		t.Errorf("fw: process %d, was %d, in %s", s.PID, pid, s.Runtime)
	}
}

// A runtime that goes and comes under one agent is told twice.
func aRuntimeThatComesBackIsSaid(t *testing.T) {
	e := newEngines()
	d := newDesk(t, switchfake.Options{}, e.several("oci"))
	d.put("fw", api.FunctionSpec{Runtime: "docker"})
	d.up("fw")
	e.set("no engine")
	d.until("an event tells", func() bool { return slices.Contains(d.reasons(), "RuntimeLost") })
	e.set("")
	d.until("and another", func() bool { return slices.Contains(d.reasons(), "RuntimeBack") })
	d.until("the condition is gone", func() bool { return d.function("fw").Status.Conditions.Get(api.ConditionIncapable) == nil })
}

// A change to a runtime that the host has not changes nothing.
func aChangeToARuntimeThatIsNotThere(t *testing.T) {
	e := newEngines()
	e.set("no engine")
	d := newDesk(t, switchfake.Options{}, e.several("oci"))
	d.put("fw", api.FunctionSpec{})
	d.chain("web", "fw")
	d.policy("guests", "web", 80)
	d.waits("the chain is in force", through("fw"), 80)
	pid := d.up("fw").Status.PID
	d.put("fw", api.FunctionSpec{Runtime: "docker"})
	d.until("its status says why", func() bool {
		c := d.function("fw").Status.Conditions.Get(api.ConditionOutdated)
		return c != nil && c.Reason == api.ReasonRuntime && strings.Contains(c.Message, "host h1 has no runtime docker: no engine")
	})
	if f := d.function("fw"); f.Status.PID != pid || f.Status.Runtime != "oci" || d.way(80) != through("fw") {
		t.Errorf("process %d, was %d, in %s; frames go %q", f.Status.PID, pid, f.Status.Runtime, d.way(80))
	}
	e.set("")
	d.until("it moves when the runtime is there", func() bool { f := d.function("fw"); return f.Status.Healthy && f.Status.Runtime == "docker" })
	d.only(e.docker, "fw", d.runtime)
}

// Another default is for what starts from then on: what runs, also what a former version made, is adopted as it is.
func anotherDefaultMovesNothing(t *testing.T) {
	e := newEngines()
	d := newDesk(t, switchfake.Options{}) // a former version: one runtime
	d.put("fw", api.FunctionSpec{})
	d.chain("web", "fw")
	d.policy("guests", "web", 80)
	pid := d.up("fw").Status.PID
	d.waits("the chain is in force", through("fw"), 80)
	version := d.sw.Version()
	d.stop()
	e.left = true // it wrote down nothing of whose its containers are
	e.several("docker")(d)
	d.start()
	d.put("late", api.FunctionSpec{})
	if s := d.up("late").Status; s.Runtime != "docker" {
		t.Errorf("late runs in %s", s.Runtime)
	}
	if f := d.up("fw"); f.Status.PID != pid || f.Status.Runtime != "oci" || d.sw.Version() != version {
		t.Errorf("fw: process %d, was %d, in %s; %d commits", f.Status.PID, pid, f.Status.Runtime, d.sw.Version()-version)
	}
	d.runtime.Crash("fw.1", 3)
	d.until("what starts anew is in the default", func() bool { f := d.function("fw"); return f.Status.Healthy && f.Status.Runtime == "docker" })
	d.only(e.docker, "fw", d.runtime)
}

// What does not come with Weir does not run on the host itself, but by the operator's word.
func bareIsForTheCatalogue(t *testing.T) {
	e := newEngines()
	d := newDesk(t, switchfake.Options{}, e.several("oci"), func(d *desk) {
		d.options.Catalogue = func(digest string) bool { return digest == "sha256:monitor" }
	})
	d.put("fw", api.FunctionSpec{Runtime: "bare"})
	d.put("mon", api.FunctionSpec{Runtime: "bare", Image: "monitor"})
	d.put("other", api.FunctionSpec{Runtime: "bare", Image: "monitor", Command: []string{"wait", "for"}})
	for name, want := range map[string]string{"fw": "image firewall as processes of host h1 itself, and the image is none of the catalogue", "other": "and its command is not the image's"} {
		d.until(name+" is refused", func() bool {
			m := d.function(name).Status.Message
			return strings.Contains(m, want) && strings.Contains(m, "--allow-bare")
		})
	}
	d.up("mon")
	d.only(e.bare, "mon", d.runtime, e.docker)
	d.stop()
	d.options.AllowBare = true
	d.start()
	d.up("fw")
	d.up("other")
	d.only(e.bare, "fw", d.runtime, e.docker)
}

// Nothing tells when the program of a tap listens. On an emulated processor that takes a while, in which no frames are copied to it.
func aTapInAMachineHasTimeToListen(t *testing.T) {
	e := newEngines()
	d := newDesk(t, switchfake.Options{}, e.several("oci"))
	d.put("mon", api.FunctionSpec{Image: "monitor", Runtime: "kvm"})
	if age := time.Since(d.up("mon").Status.Started); age < time.Second {
		t.Errorf("it is up %v after its start", age)
	}
}

// What the switch forwards in a function's namespace would never come to a machine: a machine forwards itself, and the switch knows of nothing.
func aMachineForwardsItself(t *testing.T) {
	e := newEngines()
	d := newDesk(t, switchfake.Options{}, e.several("oci"))
	forwards := func(rt *runtimefake.Runtime, inside, outside string) {
		t.Helper()
		d.until("the wire is forwarded by the right one", func() bool {
			specs, functions := rt.Specs(), d.sw.Functions()
			return len(specs) == 1 && specs[0].Forwarder == inside && len(functions) == 1 && functions[0].Forwarder == outside
		})
	}
	d.put("w", api.FunctionSpec{Image: "wire", Runtime: "kvm"})
	d.only(e.kvm, "w", d.runtime)
	d.up("w")
	forwards(e.kvm, "wire", "")
	d.put("w", api.FunctionSpec{Image: "wire"})
	d.only(d.runtime, "w", e.kvm)
	forwards(d.runtime, "", "wire")
	d.stop()
	d.start()
	d.put("w", api.FunctionSpec{Image: "wire", Runtime: "kvm"})
	d.only(e.kvm, "w", d.runtime)
	forwards(e.kvm, "wire", "")
}

// Machines that take their time to come up hold up no function in another runtime: it starts, and starts anew when it has crashed.
func slowMachinesHoldUpNobodyElse(t *testing.T) {
	e := newEngines()
	e.boots = make(chan struct{})
	d := newDesk(t, switchfake.Options{}, e.several("oci"), func(d *desk) { d.options.Parallel = 2 })
	for _, name := range []string{"m1", "m2", "m3"} {
		d.put(name, api.FunctionSpec{Runtime: "kvm"})
	}
	d.until("both places of machines are taken", func() bool { return e.begun.Load() == 2 })
	d.put("fw", api.FunctionSpec{})
	before := d.up("fw").Status.PID
	d.runtime.Crash("fw.1", 3)
	d.until("it runs again", func() bool { f := d.function("fw"); return f.Status.Healthy && f.Status.PID != before })
	d.put("fw", api.FunctionSpec{Env: map[string]string{"A": "b"}})
	d.until("it is changed", func() bool {
		f := d.function("fw")
		return f.Status.Healthy && f.Status.ObservedGeneration == f.Generation
	})
	close(e.boots)
	for _, name := range []string{"m1", "m2", "m3"} {
		d.up(name)
	}
}

// A start that is under way ends when its function is deleted, or is to run in another runtime.
func aStartThatIsNotWantedEnds(t *testing.T) {
	e := newEngines()
	e.boots = make(chan struct{})
	d := newDesk(t, switchfake.Options{}, e.several("oci"), func(d *desk) { d.options.Parallel = 2 })
	deleted := func(name string) {
		t.Helper()
		d.must(d.client.Functions().Delete(t.Context(), name))
		d.until(name+" is deleted", func() bool {
			_, err := d.client.Functions().Get(t.Context(), name)
			return errors.Is(err, api.ErrNotFound)
		})
	}
	d.put("m1", api.FunctionSpec{Runtime: "kvm"})
	d.put("m2", api.FunctionSpec{Runtime: "kvm"})
	d.until("both are under way", func() bool { return e.begun.Load() == 2 })
	d.put("m3", api.FunctionSpec{Runtime: "kvm"})
	d.until("the third one has its ports, and waits for its turn", func() bool { return d.function("m3").Status.Ports.In != 0 })
	deleted("m3")
	deleted("m1")
	d.put("m2", api.FunctionSpec{})
	d.up("m2")
	d.only(d.runtime, "m2", e.kvm)
	d.put("m2", api.FunctionSpec{Runtime: "kvm"}) // the same of a change
	d.until("the change is under way", func() bool { return e.begun.Load() == 3 })
	deleted("m2")
}

// What a runtime left of a container that it could not make is removed when the runtime can. Until then no other container has the same id.
func whatAFailedStartLeftGoesLater(t *testing.T) {
	e := newEngines()
	e.leaves = true
	d := newDesk(t, switchfake.Options{}, e.several("oci"))
	d.put("fw", api.FunctionSpec{Runtime: "docker"})
	d.until("it has failed", func() bool { return strings.Contains(d.function("fw").Status.Message, "no answer") })
	d.put("fw", api.FunctionSpec{})
	d.up("fw")
	e.mu.Lock()
	e.leaves = false
	e.mu.Unlock()
	d.until("what was left is removed", func() bool {
		e.mu.Lock()
		defer e.mu.Unlock()
		return slices.Contains(e.deleted, "fw.1")
	})
	d.until("the function runs on", func() bool { return d.function("fw").Status.Healthy })
	for _, s := range d.runtime.Specs() {
		if s.ID == "fw.1" {
			t.Errorf("its container has the id %s", s.ID)
		}
	}
}

// A start that takes long is said to be under way.
func TestASlowStartIsSaid(t *testing.T) {
	e := newEngines()
	e.boots = make(chan struct{})
	d := newDesk(t, switchfake.Options{}, e.several("oci"))
	d.put("m", api.FunctionSpec{Runtime: "kvm"})
	d.until("its status says so", func() bool {
		c := d.function("m").Status.Conditions.Get(api.ConditionWaiting)
		return c != nil && c.Message == "its start in the runtime kvm is under way"
	})
	close(e.boots)
	if s := d.up("m").Status; len(s.Conditions) > 0 {
		t.Errorf("it is up, and says %+v", s.Conditions)
	}
}
