package agent

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"sync"
	"time"

	"weir.dev/weir/agent/sandbox"
	"weir.dev/weir/api"
	"weir.dev/weir/container"
	"weir.dev/weir/netns"
)

// Runtimes is what the agent needs of a container runtime that is several; package container/choice has it.
type Runtimes interface {
	Names() []string
	// About tells what this host has of a runtime now. An error says that it did not tell until ctx ended.
	About(ctx context.Context, name string) (container.About, error)
	// Of names the runtime that has a container; "" none.
	Of(id string) string
	Note(name string) string // what a runtime has found out at work; see container.Noted
}

// Looking at runtimes.
const (
	runtimesEvery = 3 * time.Minute
	runtimeTells  = 20 * time.Second // in which it tells about itself
	runtimeAgain  = 15 * time.Second // after which one that is missing is looked at again, where a function wants it
	mostSilent    = 2                // looks in a row that it does not answer; then it counts as missing
)

// runtimes is what the host has of each runtime.
type runtimes struct {
	mu    sync.Mutex
	known map[string]runtimeState
	late  []string // containers that nobody wants, or what is left of such, that could not be deleted yet
}

type runtimeState struct {
	about  container.About
	at     time.Time // of the last look
	silent int       // looks in a row without an answer
	told   bool      // that it is lost
}

// missingRuntime is a runtime that this host has not, now.
type missingRuntime struct{ host, name, why string }

func (m missingRuntime) Error() string {
	return fmt.Sprintf("host %s has no runtime %s: %s", m.host, m.name, m.why)
}
func (m missingRuntime) Is(target error) bool { return target == container.ErrMissing }

// runtime tells what this host has of a function's runtime, "" the default. It is an error if it cannot be used now; what is known of it is told all the
// same. One that was missing is looked at again, if that was some time ago.
func (a *Agent) runtime(ctx context.Context, name string) (container.About, error) {
	name = cmp.Or(name, a.RuntimeName)
	var about container.About
	switch s, known := a.runtimeState(name); {
	case a.Runtimes == nil && name == a.RuntimeName:
		about = container.About{Name: name, Ports: a.Runtime.PortKinds(), Userns: true}
	case a.Runtimes == nil:
		about = container.About{Name: name, Missing: "its agent has the runtime " + a.RuntimeName + " only"}
	case known && (s.about.Missing == "" || time.Since(s.at) < min(runtimeAgain, a.LookEvery)):
		about = s.about
	default:
		about = a.lookAtRuntime(ctx, name)
	}
	if about.Missing != "" {
		return about, missingRuntime{a.Host, name, about.Missing}
	}
	return about, nil
}

// machine tells whether a runtime's containers are machines, also while it does not tell anything.
func machine(about container.About) bool { return about.Machine || about.Name == api.RuntimeKVM }

// silentFor is how long a container may be without a probe that comes through.
func (a *Agent) silentFor(id string) time.Duration {
	if a.inMachine(id) {
		return slowFor
	}
	return unhealthyFor
}

// settlesIn is how long a container's process must live to count as up where no probe can check it.
func (a *Agent) settlesIn(id string) time.Duration {
	if a.inMachine(id) {
		return settleSlow
	}
	return settleFor
}

// inMachine tells whether a container is a machine.
func (a *Agent) inMachine(id string) bool {
	s, known := a.runtimeState(a.runtimeOf(id))
	return known && s.about.Machine
}

func (a *Agent) runtimeState(name string) (runtimeState, bool) {
	a.runtimes.mu.Lock()
	defer a.runtimes.mu.Unlock()
	s, known := a.runtimes.known[name]
	return s, known
}

// lookAtRuntime asks a runtime about itself. What is new of it is told to whom it concerns.
func (a *Agent) lookAtRuntime(ctx context.Context, name string) container.About {
	limited, cancel := context.WithTimeoutCause(ctx, runtimeTells, fmt.Errorf("no answer within %v", runtimeTells))
	defer cancel()
	about, err := a.Runtimes.About(limited, name)
	if ctx.Err() != nil {
		s, _ := a.runtimeState(name)
		s.about.Name, s.about.Missing = name, cmp.Or(s.about.Missing, api.RuntimeNotKnown)
		return s.about
	}
	a.runtimes.mu.Lock()
	before, known := a.runtimes.known[name]
	now := runtimeState{about: about, at: time.Now(), told: before.told}
	if err != nil {
		now.silent = before.silent + 1
		if now.about = before.about; !known || now.silent >= mostSilent {
			now.about.Name, now.about.Missing = name, err.Error()
		}
	}
	news := !known || !reflect.DeepEqual(before.about, now.about)
	lost := known && before.about.Missing == "" && now.about.Missing != ""
	back := before.told && now.about.Missing == ""
	now.told = (now.told || lost) && !back
	if a.runtimes.known == nil {
		a.runtimes.known = map[string]runtimeState{}
	}
	a.runtimes.known[name] = now
	a.runtimes.mu.Unlock()
	if news {
		a.tellRuntime(now.about, lost, back)
	}
	return now.about
}

// tellRuntime puts what is new of a runtime into the status of the host and of the functions that it runs. These stay where they are.
func (a *Agent) tellRuntime(about container.About, lost, back bool) {
	var names []string
	for _, f := range a.all() {
		if f.view().status.Runtime != about.Name {
			continue
		}
		names = append(names, f.name)
		f.update(func(v *view) {
			v.status.RuntimeNote = a.noteOf(about)
			if c := a.incapable(about); c != nil {
				v.status.Note(*c)
			} else {
				v.status.Drop(api.ConditionIncapable)
			}
		})
	}
	slices.Sort(names)
	switch {
	case lost && len(names) > 0:
		a.event(api.Warning, "RuntimeLost", fmt.Sprintf("runtime %s is not available any more: %s; it runs %s, which stay here", about.Name, about.Missing, listed(names)))
	case back && len(names) > 0:
		a.event(api.Info, "RuntimeBack", fmt.Sprintf("runtime %s is available again; it runs %s", about.Name, listed(names)))
	}
	a.news.Store(true)
	a.poke()
}

// mostListed is how many functions an event names.
const mostListed = 10

func listed(names []string) string {
	if more := len(names) - mostListed; more > 0 {
		return fmt.Sprintf("%s and %d more", strings.Join(names[:mostListed], ", "), more)
	}
	return strings.Join(names, ", ")
}

func (a *Agent) event(s api.Severity, reason, message string) {
	a.report.Event(api.Event{Severity: s, Reason: reason, Kind: api.KindHost, Object: a.Host, Message: message})
}

// all functions.
func (a *Agent) all() []*function {
	a.mu.Lock()
	defer a.mu.Unlock()
	out := make([]*function, 0, len(a.functions))
	for _, f := range a.functions {
		out = append(out, f)
	}
	return out
}

// incapable is the condition of functions that a runtime runs which is missing now; nil: it is not.
func (a *Agent) incapable(about container.About) *api.Condition {
	if about.Missing == "" {
		return nil
	}
	return &api.Condition{Type: api.ConditionIncapable, Reason: api.ReasonRuntime,
		Message: missingRuntime{a.Host, about.Name, about.Missing}.Error() + "; what runs goes on as it can, and starts anew when the runtime is back"}
}

// watchRuntimes looks at all runtimes, now and then again, and more often at those that are missing and run functions. Nobody waits for it.
func (a *Agent) watchRuntimes(ctx context.Context) {
	if a.Runtimes == nil {
		return
	}
	soon := time.NewTicker(min(runtimeAgain, a.LookEvery))
	defer soon.Stop()
	for {
		a.lookAtRuntime(ctx, a.RuntimeName) // first: functions wait for it
		a.lookAtRuntimes(ctx, func(name string, _ runtimeState) bool { return name != a.RuntimeName })
		a.deleteLate(ctx)
		for next := time.Now().Add(a.LookEvery); time.Now().Before(next); {
			select {
			case <-ctx.Done():
				return
			case <-soon.C:
			}
			a.lookAtRuntimes(ctx, func(name string, s runtimeState) bool { return s.about.Missing != "" && a.runsIn(name) })
			a.deleteLate(ctx)
		}
	}
}

// runsIn tells whether a function runs in a runtime, or did when it was last seen.
func (a *Agent) runsIn(runtime string) bool {
	return slices.ContainsFunc(a.all(), func(f *function) bool { return f.view().status.Runtime == runtime })
}

// lookAtRuntimes looks at some at the same time.
func (a *Agent) lookAtRuntimes(ctx context.Context, which func(name string, s runtimeState) bool) {
	var wg sync.WaitGroup
	defer wg.Wait()
	for _, name := range a.Runtimes.Names() {
		if s, _ := a.runtimeState(name); which(name, s) {
			wg.Go(func() { a.lookAtRuntime(ctx, name) })
		}
	}
}

// later notes a container to be deleted when its runtime is there.
func (a *Agent) later(id string) {
	a.runtimes.mu.Lock()
	defer a.runtimes.mu.Unlock()
	a.runtimes.late = append(a.runtimes.late, id)
}

func (a *Agent) deleteLate(ctx context.Context) {
	a.runtimes.mu.Lock()
	late := slices.Clone(a.runtimes.late)
	a.runtimes.mu.Unlock()
	ctx, cancel := context.WithTimeout(ctx, runtimeTells)
	defer cancel()
	var wg sync.WaitGroup
	defer wg.Wait()
	for _, id := range late {
		wg.Go(func() {
			if err := a.Runtime.Delete(ctx, id); err != nil {
				if !errors.Is(ctx.Err(), context.Canceled) {
					a.Log.Warn("remove orphan container", "container", id, "error", err)
				}
				return
			}
			a.runtimes.mu.Lock()
			defer a.runtimes.mu.Unlock()
			a.runtimes.late = slices.DeleteFunc(a.runtimes.late, func(x string) bool { return x == id })
		})
	}
}

// lateOf is the highest number of a function's containers that are to be deleted: another one has a number of its own.
func (a *Agent) lateOf(function string) (most int) {
	a.runtimes.mu.Lock()
	defer a.runtimes.mu.Unlock()
	for _, id := range a.runtimes.late {
		if name, n := sandbox.Of(id); name == function {
			most = max(most, n)
		}
	}
	return most
}

// hostRuntimes is what the host's status says of runtimes. Of those that have not told yet only the default counts as available: it has been opened.
func (a *Agent) hostRuntimes() (out []api.HostRuntime) {
	if a.Runtimes == nil {
		return nil
	}
	for _, name := range a.Runtimes.Names() {
		x := api.HostRuntime{Name: name, Default: name == a.RuntimeName}
		s, known := a.runtimeState(name)
		switch r := s.about; {
		case known:
			x.Version, x.Ports, x.Userns, x.Available, x.Why, x.Note = r.Version, r.Ports, r.Userns, r.Missing == "", r.Missing, a.noteOf(r)
		case x.Default:
			x.Available, x.Ports = true, a.Runtime.PortKinds()
		default:
			x.Why = api.RuntimeNotKnown
		}
		out = append(out, x)
	}
	return out
}

// runtimeOf names the runtime that has a container.
func (a *Agent) runtimeOf(id string) string {
	if a.Runtimes == nil {
		return a.RuntimeName
	}
	return cmp.Or(a.Runtimes.Of(id), a.RuntimeName)
}

// noteOf is what an operator should know of a runtime: what it has found out at work, else what it tells.
func (a *Agent) noteOf(about container.About) string {
	if a.Runtimes == nil || about.Missing != "" {
		return about.Note
	}
	return cmp.Or(a.Runtimes.Note(about.Name), about.Note)
}

// ranBy puts the runtime of a function's container into its status.
func (a *Agent) ranBy(v *view, id string) {
	v.status.Runtime = a.runtimeOf(id)
	s, _ := a.runtimeState(v.status.Runtime)
	v.status.RuntimeNote, v.machine = a.noteOf(s.about), s.about.Machine || v.status.Runtime == api.RuntimeKVM // which may not have told yet
}

// unsharedIn tells why functions in a runtime have no user namespaces of their own; nil: they have.
func (a *Agent) unsharedIn(about container.About) error {
	if !about.Userns {
		return fmt.Errorf("runtime %s: %w", about.Name, netns.ErrNoUserns)
	}
	return a.unshared()
}
