package control

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"weir.dev/weir/api"
	"weir.dev/weir/flow"
	"weir.dev/weir/manager"
	"weir.dev/weir/manager/managertest"
	"weir.dev/weir/openflow"
	"weir.dev/weir/openflow/fake"
	"weir.dev/weir/openflow/lldp"
	"weir.dev/weir/store/mem"
)

const patience = 15 * time.Second

var testKey = []byte("0123456789abcdef0123456789abcdef")

// keyOfHost is the key of a host's link discovery frames in the tests.
func keyOfHost(name string) []byte { return []byte("the key of host " + name + "................") }

func hostTestKey(name string) ([]byte, error) { return keyOfHost(name), nil }

// rig is a real manager, and a router that runs.
type rig struct {
	t       testing.TB
	client  *api.Client
	c       *Controller
	address string // where switches connect
	stop    func() // ends the router and waits
	o       Options
	listen  func(address string) (net.Listener, error)
	agents  map[string]*agent
}

func newRig(t testing.TB, o Options) *rig {
	t.Helper()
	n := loopbacks.Add(1) // while a test's router is stopped, that of another takes no port of its
	return newRigAt(t, o, fmt.Sprintf("127.0.%d.%d:0", 1+n>>8, n&0xff), func(address string) (net.Listener, error) { return net.Listen("tcp", address) })
}

// loopbacks is how many of the loopback's addresses are in use.
var loopbacks atomic.Uint32

// newRigAt is newRig with a router that listens at an address, by listen.
func newRigAt(t testing.TB, o Options, address string, listen func(string) (net.Listener, error)) *rig {
	t.Helper()
	dir, err := os.MkdirTemp("", "weir")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	m, err := manager.New(manager.Options{Store: mem.New()})
	if err != nil {
		t.Fatal(err)
	}
	socket := filepath.Join(dir, "api.sock")
	managertest.Serve(t, m, manager.ServeOptions{Socket: socket})
	client, err := api.Dial(api.Options{Socket: socket})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(client.Close)
	r := &rig{t: t, client: client, address: address, o: o, listen: listen, agents: map[string]*agent{}}
	r.start()
	t.Cleanup(func() { r.stop() })
	return r
}

// start runs the router, again at the same address after a stop.
func (r *rig) start() {
	r.t.Helper()
	o := r.o
	var listener net.Listener
	var err error
	eventually(r.t, "listen at "+r.address, func() string { // a program that another test starts may hold the former listener for a moment
		if listener, err = r.listen(r.address); err != nil {
			return err.Error()
		}
		return ""
	})
	r.address = listener.Addr().String()
	o.API, o.Listener, o.LLDPKey = r.client, listener, testKey
	if o.HostKey == nil {
		o.HostKey = hostTestKey
	}
	if os.Getenv("WEIR_TEST_LOG") != "" {
		o.Log = slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelDebug}))
	}
	if r.c, err = New(o); err != nil {
		r.t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	c := r.c
	go func() { done <- c.Run(ctx) }()
	r.stop = sync.OnceFunc(func() {
		cancel()
		select {
		case err := <-done:
			if err != nil {
				r.t.Errorf("router: %v", err)
			}
		case <-time.After(patience):
			r.t.Error("the router does not end")
		}
	})
}

// eventually polls until f returns "", else fails with what f said last.
func eventually(t testing.TB, what string, f func() string) {
	t.Helper()
	poll := time.NewTicker(2 * time.Millisecond)
	defer poll.Stop()
	end := time.Now().Add(patience)
	for {
		said := f()
		if said == "" {
			return
		}
		if time.Now().After(end) {
			t.Fatalf("%s: %s", what, said)
		}
		<-poll.C
	}
}

// fakes are switches in memory that dial the router.
func (r *rig) dial(s *fake.Switch) (hangUp func()) {
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() { defer close(done); _ = s.Dial(ctx, "tcp", r.address) }()
	stop := sync.OnceFunc(func() { cancel(); <-done })
	r.t.Cleanup(stop)
	return stop
}

func ports(n int) []openflow.Port {
	var out []openflow.Port
	for i := range n {
		out = append(out, openflow.Port(i+1))
	}
	return out
}

func (r *rig) switches() map[string]api.Switch {
	r.t.Helper()
	l, err := r.client.Switches().List(r.t.Context(), api.ListOptions{})
	if err != nil {
		r.t.Fatal(err)
	}
	out := map[string]api.Switch{}
	for _, s := range l.Items {
		out[s.Name] = s
	}
	return out
}

// links are "s1:1 s2:1" as reported, each once.
func (r *rig) links() map[string]bool {
	out := map[string]bool{}
	for name, s := range r.switches() {
		for _, p := range s.Status.Ports {
			if p.Kind == "link" && s.Status.State == "connected" {
				a, b := fmt.Sprintf("%s:%d", name, p.Number), p.Peer
				if b < a {
					a, b = b, a
				}
				out[a+" "+b] = true
			}
		}
	}
	return out
}

func (r *rig) port(name string, n uint32) api.SwitchPort {
	for _, p := range r.switches()[name].Status.Ports {
		if p.Number == n {
			return p
		}
	}
	return api.SwitchPort{}
}

func (r *rig) waitLinks(n int) {
	r.t.Helper()
	eventually(r.t, "links", func() string {
		if got := r.links(); len(got) != n {
			return fmt.Sprintf("%d, want %d: %v", len(got), n, got)
		}
		return ""
	})
}

func (r *rig) waitEvent(reason, part string) api.Event {
	r.t.Helper()
	var found api.Event
	eventually(r.t, "event "+reason, func() string {
		l, err := r.client.Events().List(r.t.Context(), api.ListOptions{})
		if err != nil {
			return err.Error()
		}
		var all []string
		for _, e := range l.Items {
			if e.Reason == reason && strings.Contains(e.Message, part) {
				found = e
				return ""
			}
			all = append(all, e.Reason+": "+e.Message)
		}
		return fmt.Sprintf("none with %q among\n%s", part, strings.Join(all, "\n"))
	})
	return found
}

// events counts those that say something, however often each happened.
func (r *rig) events(reason, part string) int {
	r.t.Helper()
	l, err := r.client.Events().List(r.t.Context(), api.ListOptions{})
	if err != nil {
		r.t.Fatal(err)
	}
	n := 0
	for _, e := range l.Items {
		if e.Reason == reason && strings.Contains(e.Message, part) {
			n += max(e.Count, 1)
		}
	}
	return n
}

func (r *rig) waitPolicy(name, state string) api.Policy {
	r.t.Helper()
	var p api.Policy
	eventually(r.t, "policy "+name, func() string {
		var err error
		if p, err = r.client.Policies().Get(r.t.Context(), name); err != nil {
			return err.Error()
		}
		if string(p.Status.State) != state || p.Status.ObservedGeneration != p.Generation {
			return fmt.Sprintf("%+v, want %s", p.Status, state)
		}
		return ""
	})
	return p
}

func (r *rig) waitEdge(name string, n uint32) {
	r.t.Helper()
	eventually(r.t, "edge port", func() string {
		s := r.switches()[name]
		rules, err := r.c.SwitchRules(r.t.Context(), name)
		if err != nil {
			return err.Error()
		}
		for _, x := range rules.Rules {
			if strings.Contains(x.Match, fmt.Sprintf("in_port=%d", n)) && strings.Contains(x.Actions, "CONTROLLER") {
				return ""
			}
		}
		return fmt.Sprintf("no entry for stations at port %d of %s: %+v\n%+v", n, name, rules.Rules, s.Status.Ports)
	})
}

// agent stands for a host's agent: it says that the host is there, sends link discovery frames, and acknowledges assignments.
type agent struct {
	r     *rig
	name  string
	held  bool // does not acknowledge
	mu    sync.Mutex
	specs []api.AssignmentSpec
	seq   lldp.Sequence
	send  func([]byte)
}

func (r *rig) agent(name string, send func(frame []byte)) *agent {
	r.t.Helper()
	a := &agent{r: r, name: name, send: send}
	r.agents[name] = a
	a.report(api.StatusReport{HostState: &api.HostStatus{State: "ready", Heartbeat: time.Now(), Uplinks: []api.Uplink{{Interface: "eth0", MAC: "06:57:ff:00:00:01", State: "up"}}}})
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	r.t.Cleanup(func() { cancel(); wg.Wait() })
	wg.Go(func() { // the uplink
		tick := time.NewTicker(300 * time.Millisecond)
		defer tick.Stop()
		for {
			b, err := lldp.Encode(lldp.Frame{Chassis: lldp.HostChassis(name), Port: "eth0", TTL: 4, Sequence: a.seq.Next(time.Now())}, keyOfHost(name))
			if err == nil {
				send(b)
			}
			select {
			case <-ctx.Done():
				return
			case <-tick.C:
			}
		}
	})
	wg.Go(func() {
		for d := range r.client.Assignments().Watch(ctx, 0, api.ListOptions{}) {
			for _, x := range append(d.Items, d.Object) {
				if x.Name == name {
					a.acknowledge(x)
				}
			}
		}
	})
	return a
}

func (a *agent) acknowledge(x api.Assignment) {
	a.mu.Lock()
	held := a.held
	if !held && x.Status.ObservedGeneration < x.Generation {
		a.specs = append(a.specs, x.Spec)
	}
	a.mu.Unlock()
	if !held && x.Status.ObservedGeneration < x.Generation {
		a.report(api.StatusReport{Assigned: &api.AssignmentStatus{ObservedGeneration: x.Generation, State: "installed"}})
	}
}

func (a *agent) rules() []api.HostRule {
	a.mu.Lock()
	defer a.mu.Unlock()
	if len(a.specs) == 0 {
		return nil
	}
	return a.specs[len(a.specs)-1].Rules
}

func (a *agent) report(s api.StatusReport) {
	a.r.t.Helper()
	s.Host = a.name
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	if err := a.r.client.Report(ctx, s); err != nil {
		a.r.t.Errorf("agent %s: %v", a.name, err)
	}
}

// function makes a function and says that it runs at the host.
func (a *agent) function(name string) {
	a.r.t.Helper()
	if _, err := a.r.client.Functions().Put(a.r.t.Context(), name, api.FunctionSpec{Image: "wire", Host: a.name}); err != nil {
		a.r.t.Fatal(err)
	}
	eventually(a.r.t, "placement of "+name, func() string {
		f, err := a.r.client.Functions().Get(a.r.t.Context(), name)
		if err != nil || f.Placement == nil || f.Placement.Host != a.name {
			return fmt.Sprintf("%+v, %v", f.Placement, err)
		}
		return ""
	})
	a.report(api.StatusReport{Functions: map[string]api.FunctionStatus{name: {
		ObservedGeneration: 1, State: api.FunctionStarted, Healthy: true, Host: a.name, Ports: api.FunctionPorts{In: 2, Out: 3},
	}}})
}

func mac(n byte) flow.MAC { return flow.MAC{2, 0, 0, 0, 0, n} }

// arp is a broadcast ARP request of a station.
func arp(m flow.MAC, ip [4]byte) []byte {
	b := append([]byte{0xff, 0xff, 0xff, 0xff, 0xff, 0xff}, m[:]...)
	b = append(b, 0x08, 0x06, 0, 1, 8, 0, 6, 4, 0, 1)
	b = append(append(b, m[:]...), ip[:]...)
	b = append(b, 0, 0, 0, 0, 0, 0, 10, 0, 0, 99)
	return append(b, make([]byte, 60-len(b))...)
}
