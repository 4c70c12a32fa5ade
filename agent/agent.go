// Package agent makes one host match the intent: endpoints become ports, functions become containers with links, policies become rules.
// It acts on what the manager placed on this host. Of a policy whose parts are all here it computes the rules itself; those of policies
// that cross hosts come from the router as the host's assignment, with the tunnels to other hosts. Both are committed together.
// At the uplink into the fabric it shows itself to the router by signed link discovery frames.
//
// It is a client of the API: it watches specs and reports status, and it is the only writer of the status of its functions, endpoints and
// chains, and of policies that are local to the host. What it made goes on working while it is dead; started again it finds everything by its marks and changes only what differs.
//
// One goroutine (Run) owns endpoints and rules; each function has a goroutine of its own, so that a slow container holds up
// nobody else. It does not forward packets, store intent, or choose hosts. DESIGN.md has the flow, the invariants and the bounds.
package agent

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"weir.dev/weir/agent/health"
	"weir.dev/weir/agent/kernel"
	"weir.dev/weir/agent/report"
	"weir.dev/weir/agent/sandbox"
	"weir.dev/weir/agent/secrets"
	"weir.dev/weir/agent/tunnel"
	"weir.dev/weir/agent/uplink"
	"weir.dev/weir/api"
	"weir.dev/weir/container"
	"weir.dev/weir/datapath"
	"weir.dev/weir/flow"
	"weir.dev/weir/image"
	"weir.dev/weir/instance"
	"weir.dev/weir/netns"
)

// Kernel is what the agent needs of this machine's kernel; see package kernel.
type Kernel interface {
	sandbox.Kernel
	tunnel.Kernel
	// Check tells why a namespace, as users name it, cannot be worked in.
	Check(space string) error
	// Link reads a link of a namespace, "" the host's. None: netns.ErrNoLink.
	Link(space, name string) (netns.Link, error)
	// Links lists the host's links whose alias begins with prefix.
	Links(prefix string) ([]netns.Link, error)
	// Finish has the kernel finish each frame before a link of the host sends it; see netns.Space.Finish.
	Finish(link string) error
	// ProbeXDP tells why functions can have no AF_XDP sockets here; nil: they can.
	ProbeXDP() error
	// Received counts the packets that came in by a link of the host.
	Received(link string) (uint64, error)
	// LearningBridge is the bridge of a namespace that joins two links and learns addresses; "" none.
	LearningBridge(space, one, other string) (string, error)
	// WatchLinks calls f with what happens to the host's links until ctx ends.
	WatchLinks(ctx context.Context, f func(netns.LinkEvent)) error
}

// Images is what the agent needs of an image store.
type Images interface {
	sandbox.Images
	// Resolve finds an image by the reference that a user wrote. image.ErrPulling: it is being fetched, ask again.
	Resolve(ref string) (image.Image, error)
	// Mount makes the image's root available read-only and returns its path; safe to call twice.
	Mount(ctx context.Context, ref string) (string, error)
	List() ([]image.Image, error)
	// Offers are the names of images that the host would fetch from its manager.
	Offers() []string
}

// Options wire an agent to its host. Instance to Images are needed.
type Options struct {
	Instance instance.Instance
	Host     string
	Version  string
	API      *api.Client
	Switch   datapath.Switch
	Runtime  container.Runtime
	Images   Images
	Kernel   Kernel // default this machine's
	Features []datapath.Feature
	Log      *slog.Logger
	Parallel int // container operations at once, in each runtime; 0: container.AtOnce

	SwitchName      string                                             // ebpf, ovs; default ebpf
	RuntimeName     string                                             // of functions that name none; default oci
	Runtimes        Runtimes                                           // of Runtime; nil: it is one, called RuntimeName
	LookEvery       time.Duration                                      // at runtimes; default 3 minutes
	Collector       netip.AddrPort                                     // that gets what functions export of flows, IPFIX by UDP; invalid: none
	AllowBare       bool                                               // the runtime bare runs every image, not the catalogue's alone
	Catalogue       func(digest string) bool                           // whether an image is of the catalogue; nil: none is
	Uplink          string                                             // the host's interface into the OpenFlow fabric; "" none
	UnderlayAddress netip.Addr                                         // where tunnels from other hosts end; invalid: none
	Config          func(ctx context.Context) (api.AgentConfig, error) // what all hosts have in common; nil: a host for itself
	// Joined: the manager is elsewhere. Then what it said last is kept for a start without it.
	Joined bool
	Now    func() time.Time // this host's clock, as others are told; default time.Now
}

// Timings of the reconciliation. They bound work, they are not performance targets.
const (
	debounce      = 3 * time.Millisecond   // changes that arrive together are one pass
	resync        = 10 * time.Second       // a full pass even if nothing seemed to change
	retryAfter    = time.Second            // after a failed endpoint or commit
	countEvery    = time.Second            // how often the number of functions is reported, while it changes
	drainFor      = 250 * time.Millisecond // old hops of a changed chain keep forwarding what is in flight
	drainSlow     = 2 * time.Second        // the same of a virtual machine
	surveyAgain   = 50 * time.Millisecond  // until every object has a status of this run
	managerWait   = 2 * time.Second        // then an agent goes on with what the manager said last
	probeFirst    = 20 * time.Millisecond  // for the first probe of a function that starts; it grows up to probeLast
	probeLast     = time.Second
	unhealthyFor  = 5 * time.Second        // then it is restarted
	mostPatience  = time.Minute            // with a process that is started anew again and again
	maxDoubled    = 4                      // failures that count for it
	slowFor       = 30 * time.Second       // the same of a virtual machine, whose programs start slowly on an emulated processor
	settleFor     = 100 * time.Millisecond // a process that no probe can check must live so long to count as up
	settleSlow    = time.Second            // the same in a virtual machine, where a program comes to listen as much later as its processor is slower
	slowAfter     = 5 * time.Second        // a start that takes longer is said to be under way
	steadyFor     = 3 * time.Second        // a function that failed must be up so long to count as recovered
	giveUp        = 2                      // a process that ended so often in a row and was never up has failed, for who waits; it is started on and on
	stopGrace     = 3 * time.Second
	backoffFirst  = 250 * time.Millisecond
	backoffMax    = 30 * time.Second
	backoffForget = time.Minute // a function that lived so long starts anew without delay
)

// Agent reconciles one host. Make it with New, then Run it once.
type Agent struct {
	Options
	wake    chan struct{}
	slots   *slots        // bounds concurrent container operations
	reloads chan struct{} // and commands of functions' contracts: those that take a config
	hands   chan struct{} // and those that hand state over
	fetches *fetches      // and states that are fetched from other hosts
	gives   chan struct{} // and that are given to them
	left    left
	intent  *intent
	report  *report.Reporter

	probes  health.Key
	notes   atomic.Pointer[notes]
	moved   atomic.Int64                        // when Run's goroutine last began or ended a pass, ns since begun (1 at least); 0 before the first
	turns   atomic.Uint32                       // of probing
	both    atomic.Pointer[map[string][]string] // as bothWays found
	mtu     atomic.Int64                        // that functions' ports carry; 0: not known yet
	inUse   atomic.Pointer[map[flow.Port]bool]  // ports that the rules in force name
	commits atomic.Int64

	mu        sync.Mutex
	functions map[string]*function
	captures  atomic.Int32     // under way
	flowReads atomic.Int32     // under way
	wires     map[string]*wire // links of endpoints that are up, and the bridge

	// Owned by Run's goroutine.
	endpoints  map[string]*endpoint
	troubles   map[string]string // why endpoints are in error
	uplink     uplinkPort
	tunnels    *tunnel.Set
	remembered int   // changes of the intent that are written down
	observed   int64 // generation of the assignment in force
	begun      time.Time
	held       bool                      // holds is over
	surveyed   bool                      // every object has had a status of this run
	chains     map[string]api.ChainSpec  // in force
	policies   map[string]api.PolicySpec // in force
	installed  []flow.Rule               // the last set committed
	committed  bool                      // installed is what the switch has; before, that is what an earlier run committed
	draining   []draining
	fitted     map[string]api.PolicySpec // in force, and not left out for want of room
	full       *overfull                 // nil: the switch has room for all

	runtimes runtimes
	boxes    *sandbox.Maker
	unshared func() error // why functions have no user namespaces; nil: they have

	secrets *secrets.Store
	common  common
	news    atomic.Bool   // the host's status has changed
	hurry   chan struct{} // link discovery frames are wanted now
}

// New prepares an agent; nothing happens before Run.
func New(o Options) *Agent {
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	if o.Parallel <= 0 {
		o.Parallel = container.AtOnce()
	}
	if o.Now == nil {
		o.Now = time.Now
	}
	o.LookEvery = cmp.Or(o.LookEvery, runtimesEvery)
	o.SwitchName, o.RuntimeName = cmp.Or(o.SwitchName, "ebpf"), cmp.Or(o.RuntimeName, "oci")
	if o.Kernel == nil {
		o.Kernel = kernel.Host{}
	}
	a := &Agent{
		Options: o, wake: make(chan struct{}, 1), slots: newSlots(o.Parallel), reloads: make(chan struct{}, 2*container.AtOnce()), hands: make(chan struct{}, 2*container.AtOnce()),
		fetches: newFetches(), gives: make(chan struct{}, giveAtOnce),
		functions: map[string]*function{}, wires: map[string]*wire{}, endpoints: map[string]*endpoint{}, troubles: map[string]string{},
		hurry:  make(chan struct{}, 1),
		chains: map[string]api.ChainSpec{}, policies: map[string]api.PolicySpec{},
	}
	a.probes.File = filepath.Join(o.Instance.Root, "probe.key")
	a.boxes = sandbox.New(o.Instance, o.Kernel, o.Images)
	a.unshared = a.boxes.Unshared
	a.secrets = secrets.New(o.Instance, o.API.FunctionSecrets)
	a.tunnels = tunnel.New(tunnel.Options{
		Instance: o.Instance, Host: o.Host, Address: o.UnderlayAddress, Switch: o.Switch, Kernel: o.Kernel, Log: o.Log, Now: o.Now,
		News: func() { a.news.Store(true) },
	})
	a.intent = newIntent(o.Host, a.poke)
	a.report = report.New(o.Host, o.API, o.Log, o.Now)
	return a
}

// HostKnown is closed once the manager has heard of this host.
func (a *Agent) HostKnown() <-chan struct{} { return a.report.HostKnown() }

// stalledAfter is far longer than any pass takes.
const stalledAfter = time.Minute

// Stalled returns an error when the reconciliation has made no progress for a minute. For a watchdog.
func (a *Agent) Stalled() error {
	moved := a.moved.Load()
	if moved == 0 {
		return nil
	}
	if idle := time.Since(a.begun) - time.Duration(moved); idle > stalledAfter { // not by the wall clock, which somebody may set
		return fmt.Errorf("the agent's reconciliation has not moved for %v", idle.Round(time.Second))
	}
	return nil
}

// poke asks for a pass; many pokes before it are one.
func (a *Agent) poke() {
	select {
	case a.wake <- struct{}{}:
	default:
	}
}

// Run reconciles until ctx ends, and leaves everything as it is then. It returns an error only if it could not begin.
func (a *Agent) Run(ctx context.Context) error {
	// Containers that an earlier agent left; whether user namespaces work here.
	found, err := a.Runtime.List(ctx)
	if err != nil {
		return fmt.Errorf("list containers: %w", err)
	}
	existing, err := a.present(ctx, found)
	if err != nil {
		return err
	}
	if err := a.unshared(); err != nil {
		a.Log.Warn("no user namespaces: " + sandbox.Feature(err).Detail)
	}
	// The goroutines around the loop. Run waits for them at its end.
	var wg sync.WaitGroup
	defer wg.Wait()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	if a.UnderlayAddress.IsValid() {
		a.tunnels.Prepare()
	}
	a.syncUplink(ctx) // first, so that it has the same port after every start
	wg.Go(func() { a.report.Run(ctx) })
	wg.Go(func() { a.watchRuntimes(ctx) })
	wg.Go(func() { a.probeAll(ctx) })
	wg.Go(func() { a.watchSilent(ctx) })
	wg.Go(func() { a.watchLearning(ctx) })
	wg.Go(func() { a.watchRefused(ctx) })
	wg.Go(func() { a.watchLinks(ctx) })
	if a.Config != nil && (a.Joined || a.Uplink != "") {
		wg.Go(func() { a.followConfig(ctx) })
	}
	if a.Uplink != "" {
		wg.Go(func() {
			(&uplink.Announcer{Host: a.Host, Interface: a.Uplink, Key: a.lldpKey, Known: a.report.HostKnown(), Hurry: a.hurry, Log: a.Log, Now: a.Now}).Run(ctx)
		})
	}
	// The intent: from the manager, or from the copy on disk.
	failed := make(chan error, 1)
	wg.Go(func() {
		if err := a.intent.follow(ctx, a.API, a.report, a.Log); err != nil {
			failed <- err
		}
	})
	if heard, err := a.hear(ctx, failed); !heard {
		return err
	}
	// What was in force stays in force; objects that the intent no longer names go.
	a.begun = time.Now()
	if err := a.loadInForce(); err != nil {
		a.Log.Error("read what was in force", "error", err)
		if err := a.assumeInForce(); err != nil {
			a.Log.Warn("write what is in force", "error", err)
		}
	}
	a.sweep(ctx, &wg, existing)

	// The loop: a pass after each change, and one each resync.
	timer := time.NewTimer(0)
	defer timer.Stop()
	beat := time.Time{}
	counted := 0 // functions here, as last reported
	rings := refusedRings{}
	for {
		a.moved.Store(max(1, int64(time.Since(a.begun))))
		select {
		case <-ctx.Done():
			return nil
		case err := <-failed:
			return err
		case <-timer.C:
		case <-a.wake:
			select {
			case <-time.After(debounce):
			case <-ctx.Done():
				return nil
			}
			select {
			case <-a.wake:
			default:
			}
		}
		// After the pass the host's status is reported, if it is news or due.
		again := a.pass(ctx, &wg, existing)
		existing = nil // only the first pass adopts
		news := a.survey()
		now, here := a.Now(), a.countFunctions()
		if here != counted && now.Sub(beat) < countEvery {
			again = min(again, countEvery)
		}
		if a.news.Swap(false) || news || here != counted && now.Sub(beat) >= countEvery || now.Sub(beat) >= api.HostBeat {
			beat, counted = now, here
			list, err := a.Runtime.List(ctx) // which also keeps the logs within their bounds
			if err != nil {
				a.Log.Warn("list containers", "error", err)
			}
			rings.tell(list, a.report.Event)
			a.report.Host(a.hostStatus(now))
		}
		if !a.surveyed {
			again = min(again, surveyAgain)
		}
		timer.Reset(again)
	}
}

// present finds each function's container. Of two, one of which an agent that was killed was about to put in the other's place, the first is kept:
// it is the one that frames go through.
func (a *Agent) present(ctx context.Context, found []container.Status) (map[string]container.Status, error) {
	existing := map[string]container.Status{}
	var errs []error
	for _, c := range found {
		name, n := sandbox.Of(c.ID)
		other, two := existing[name]
		if !two {
			existing[name] = c
			continue
		}
		if _, m := sandbox.Of(other.ID); a.inForceNow(name, c.ID) || !a.inForceNow(name, other.ID) && keeps(c, n, other, m) {
			existing[name], c = c, other
		}
		if err := a.Runtime.Delete(ctx, c.ID); errors.Is(err, container.ErrMissing) {
			a.later(c.ID)
		} else {
			errs = append(errs, err)
		}
	}
	return existing, errors.Join(errs...)
}

// inForceNow tells whether a function's container is the one that frames go through, as an earlier agent has written down.
func (a *Agent) inForceNow(function, id string) bool {
	var v applied
	b, err := os.ReadFile(filepath.Join(a.Instance.Run, "functions", function, "applied.json"))
	return err == nil && json.Unmarshal(b, &v) == nil && v.Container == id
}

// keeps tells whether a container in sandbox n is kept beside another in sandbox m: one that runs before one that does not, then the former.
func keeps(c container.Status, n int, other container.Status, m int) bool {
	if run := c.State == container.Running; run != (other.State == container.Running) {
		return run
	}
	return n < m
}

// current tells whether a link belongs to where a function's container is.
func (a *Agent) current(function, link string, existing map[string]container.Status) bool {
	a.mu.Lock()
	f := a.functions[function]
	a.mu.Unlock()
	if f != nil {
		return f.hasLink(link)
	}
	c, ok := existing[function]
	_, n := sandbox.Of(c.ID)
	if !ok || n == 0 { // what has no sandbox is made anew, links and all
		return true
	}
	b := sandbox.Box{Name: function, N: n}
	for side := range flow.Sides {
		if a.boxes.Link(b, side) == link {
			return true
		}
	}
	return false
}

// survey reports whether just now the last object got a status of this run: until then the manager has what an earlier run said.
func (a *Agent) survey() bool {
	if a.surveyed {
		return false
	}
	want := a.mine(a.intent.snapshot(time.Now()))
	for name, c := range want.chains {
		if !want.tells(c.Spec) {
			delete(want.chains, name)
		}
	}
	a.surveyed = known(a.report, api.KindEndpoint, want.endpoints) && known(a.report, api.KindFunction, want.functions) &&
		known(a.report, api.KindChain, want.chains) && known(a.report, api.KindPolicy, want.policies)
	return a.surveyed
}

func known[T any, P interface {
	*T
	Metadata() *api.Meta
}](r *report.Reporter, kind api.Kind, objects map[string]T) bool {
	for name, o := range objects {
		if !r.Knows(kind, name, P(&o).Metadata().UID) {
			return false
		}
	}
	return true
}

// pass brings the host one step closer to the intent and says when to look again at the latest.
func (a *Agent) pass(ctx context.Context, wg *sync.WaitGroup, existing map[string]container.Status) time.Duration {
	a.remember()
	want := a.mine(a.intent.snapshot(time.Now()))
	a.disown(want)
	again := resync
	a.widen(want)
	a.syncFunctions(ctx, wg, want, existing)
	if a.holds(want, time.Now()) {
		return holdFor
	}
	for _, sync := range []func(context.Context, share) bool{
		func(ctx context.Context, _ share) bool { return a.syncUplink(ctx) },
		func(ctx context.Context, want share) bool {
			return a.tunnels.Sync(ctx, want.tunnels(), tunnelMTU(want))
		},
		a.syncEndpoints,
	} {
		if !sync(ctx, want) {
			again = retryAfter
		}
	}
	wait, err := a.syncRules(ctx, want)
	again = min(again, wait)
	if !a.letEndpointsGo(ctx, want, err) {
		again = min(again, retryAfter)
	}
	a.release(ctx, want)
	return again
}

// syncFunctions gives every wanted function a goroutine and tells it what is wanted now.
func (a *Agent) syncFunctions(ctx context.Context, wg *sync.WaitGroup, want share, existing map[string]container.Status) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for name, f := range a.functions {
		if w, ok := want.functions[name]; ok && w.UID == f.uid {
			if w.Deleting == nil {
				f.remember()
				if f.ended.Load() && f.away() { // it was elsewhere meanwhile
					delete(a.functions, name)
				}
			}
			continue
		}
		f.forget() // its record is gone, or it is another host's now: nothing of it may stay
		if f.ended.Load() {
			delete(a.functions, name)
		}
	}
	for name, w := range want.functions {
		f := a.functions[name]
		if f == nil {
			f = newFunction(a, name, w.UID, existing)
			a.functions[name] = f
			f.set(w)
			wg.Go(func() { f.run(ctx) })
			continue
		}
		if f.uid == w.UID { // else its former life has to end first
			f.set(w)
		}
	}
}

// release lets deleted functions and endpoints go once no installed rule names their ports.
func (a *Agent) release(ctx context.Context, want share) {
	if !a.committed {
		return
	}
	used := portsIn(a.installed)
	a.tunnels.Release(ctx, want.tunnels(), used)
	a.letLeave(want, used, time.Now())
	for name, e := range a.endpoints {
		w, ok := want.endpoints[name]
		if (ok && w.Deleting == nil) || used[e.port] {
			continue
		}
		if err := a.removeEndpoint(ctx, name, e); err != nil {
			a.Log.Warn("remove endpoint", "endpoint", name, "error", err)
			if ok {
				a.report.Endpoint(name, w.UID, api.EndpointStatus{State: "error", Message: err.Error(), Host: a.Host})
			}
			continue
		}
		delete(a.endpoints, name)
		delete(a.troubles, name)
		if ok { // else it is gone, or another host's
			a.report.Endpoint(name, w.UID, api.EndpointStatus{State: api.EndpointDeleted, Host: a.Host})
		}
	}
	for name, w := range want.endpoints { // being deleted when an earlier agent ended, or never made
		if w.Deleting == nil || a.endpoints[name] != nil || a.report.Knows(api.KindEndpoint, name, w.UID) {
			continue
		}
		s := api.EndpointStatus{State: api.EndpointDeleted, Host: a.Host}
		if err := a.removeEndpoint(ctx, name, &endpoint{made: w.Spec.Netns != ""}); err != nil {
			s.State, s.Message = "error", err.Error()
		}
		a.report.Endpoint(name, w.UID, s)
	}
}

// portsIn are the ports that rules name.
func portsIn(rules []flow.Rule) map[flow.Port]bool {
	used := map[flow.Port]bool{}
	for _, r := range rules {
		for _, p := range []flow.Port{r.Match.InPort, r.Match.OutPort, r.Action.Port} {
			used[p] = p != 0
		}
		for _, c := range r.Action.Clones {
			used[c.Port] = true
		}
	}
	return used
}

// sweep removes what an earlier run of this instance made and the intent no longer names, but for functions that rules may lead to: they
// leave as others do.
func (a *Agent) sweep(ctx context.Context, wg *sync.WaitGroup, existing map[string]container.Status) {
	want := a.mine(a.intent.snapshot(time.Now()))
	ports, err := a.Switch.Ports(ctx)
	if err != nil {
		a.Log.Warn("list ports", "error", err)
	}
	a.adoptLeaving(ctx, wg, want, existing, ports)
	// Containers of functions that are not wanted are deleted.
	for function, c := range existing {
		if _, ok := want.functions[function]; ok {
			continue
		}
		a.Log.Info("remove orphan container", "container", c.ID)
		if err := a.Runtime.Delete(ctx, c.ID); err != nil {
			a.Log.Warn("remove orphan container", "container", c.ID, "error", err)
			a.later(c.ID)
		}
		delete(existing, function)
	}
	// judge decides about links and ports by the object that they belong to.
	links, err := a.Kernel.Links(a.Instance.Alias(""))
	if err != nil {
		a.Log.Warn("list links", "error", err)
	}
	orphans := map[string]bool{}
	judge := func(object string) { // "function/fw/in"
		if kind, name, ok := fabricPort(object); ok {
			if kind == "uplink" && name != a.Uplink || kind == "tunnel" && !want.tunnel(name) {
				orphans["endpoint/"+kind+"/"+name] = true
			} else if kind == "tunnel" {
				a.tunnels.Adopt(name) // to be looked at, or released
			}
			return
		}
		kind, name := objectOf(object)
		if kind == "tunnel" && !want.tunnel(name) {
			orphans["endpoint/tunnel/"+name] = true
		}
		own := strings.TrimSuffix(name, second) // of two instances the function itself removes the one that it does not need
		_, function := want.functions[own]
		_, endpoint := want.endpoints[name]
		if kind == "function" && !function && !a.has(own) || kind == "endpoint" && !endpoint {
			orphans[kind+"/"+name] = true
		}
	}
	// A link has its object in its alias.
	for _, l := range links {
		object := strings.TrimPrefix(l.Alias, a.Instance.Alias(""))
		judge(object)
		if kind, name := objectOf(object); kind == "function" && !orphans["function/"+name] && !a.current(name, l.Name, existing) {
			if err := a.Kernel.DeleteLinks(l.Name); err != nil {
				a.Log.Warn("remove the link of a former start", "link", l.Name, "alias", l.Alias, "error", err)
			}
		}
	}
	for _, p := range ports { // interfaces that Weir only took carry no mark
		judge(p.Name)
	}
	// Orphans are removed: the port, then its links.
	for object := range orphans {
		a.Log.Info("remove orphan", "object", object)
		links := object
		if kind, name, ok := fabricPort(object); ok {
			links = kind + "/" + name
		}
		if err := errors.Join(a.Switch.Remove(ctx, object), a.Kernel.DeleteMarked(a.Instance.Alias(links))); err != nil {
			a.Log.Warn("remove orphan", "object", object, "error", err)
		}
	}
	a.sweepDirs(ctx, want)
}
