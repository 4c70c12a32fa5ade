package manager_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"weir.dev/weir/api"
	"weir.dev/weir/manager"
	"weir.dev/weir/manager/ask"
	"weir.dev/weir/store/mem"
)

func hostUp(t testing.TB, b *bench, names ...string) {
	t.Helper()
	for _, h := range names {
		report(t, b, api.StatusReport{Host: h, HostState: &api.HostStatus{State: "ready", Cores: 4, Memory: 8 << 30, Free: 8 << 30, Heartbeat: time.Now()}})
	}
}

// beating beats for some hosts until stop is called for them, or the test ends.
type beating struct{ stop map[string]context.CancelFunc }

func beat(t testing.TB, b *bench, hosts ...string) beating {
	t.Helper()
	out := beating{map[string]context.CancelFunc{}}
	for _, h := range hosts {
		c, cancel := context.WithCancel(ctx(t))
		done := make(chan struct{})
		out.stop[h] = func() { cancel(); <-done }
		t.Cleanup(out.stop[h])
		if _, err := b.Beat(c, h, time.Now()); err != nil {
			t.Fatal(err)
		}
		go func() {
			defer close(done)
			tick := time.NewTicker(api.Beat / 4)
			defer tick.Stop()
			for {
				select {
				case <-c.Done():
					return
				case <-tick.C:
					_, _ = b.Beat(c, h, time.Now())
				}
			}
		}()
	}
	return out
}

// lead lets the manager be the leader until the test ends.
func lead(t testing.TB, m *manager.Manager, f func(context.Context)) (end func()) {
	t.Helper()
	c, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- m.Lead(c, f) }()
	ended := false
	end = func() {
		if ended {
			return
		}
		ended = true
		cancel()
		if err := <-done; err != nil {
			t.Errorf("lead: %v", err)
		}
	}
	t.Cleanup(end)
	return end
}

// until waits until something holds.
func until(t testing.TB, what string, holds func() bool) {
	t.Helper()
	deadline := time.Now().Add(patience)
	for !holds() {
		if time.Now().After(deadline) {
			t.Fatalf("not in %v: %s", patience, what)
		}
		<-time.After(20 * time.Millisecond)
	}
}

// at is where endpoints and functions are: "f@h1".
func at(t testing.TB, b *bench) map[string]string {
	t.Helper()
	out := map[string]string{}
	for _, f := range must(b.Functions().List(ctx(t), api.ListOptions{}))(t).Items {
		out[f.Name] = f.At()
	}
	for _, e := range must(b.Endpoints().List(ctx(t), api.ListOptions{}))(t).Items {
		out[e.Name] = e.At()
	}
	return out
}

func events(t testing.TB, b *bench) []string {
	t.Helper()
	var out []string
	for _, e := range must(b.Events().List(ctx(t), api.ListOptions{}))(t).Items {
		out = append(out, fmt.Sprintf("%s %s %s: %s", e.Severity, e.Reason, e.Object, e.Message))
	}
	return out
}

func has(list []string, part string) bool {
	for _, s := range list {
		if strings.Contains(s, part) {
			return true
		}
	}
	return false
}

func TestFunctionsArePlacedWithTheirApply(t *testing.T) {
	b := start(t, manager.Options{})
	hostUp(t, b, "h1")
	r := must(b.Apply(ctx(t), api.ApplyRequest{Document: demo()}))(t)
	want := map[string]string{"fw": "h1", "w1": "h1", "mon": "h1", "alice": "h1", "bob": "h1"}
	if d := cmp.Diff(want, at(t, b)); d != "" {
		t.Error(d)
	}
	for _, f := range must(b.Functions().List(ctx(t), api.ListOptions{}))(t).Items {
		if f.Generation != 1 || f.Revision != r.Revision || f.Placement.Reason != "the only host" {
			t.Errorf("%s: generation %d, revision %d of %d, %+v", f.Name, f.Generation, f.Revision, r.Revision, f.Placement)
		}
	}
	f := must(b.Functions().Put(ctx(t), "w2", api.FunctionSpec{Image: "wire"}))(t)
	if f.At() != "h1" {
		t.Errorf("put answers with %+v", f.Placement)
	}
}

func TestFunctionsWaitForTheFirstHost(t *testing.T) {
	b := start(t, manager.Options{})
	must(b.Apply(ctx(t), api.ApplyRequest{Document: demo()}))(t)
	if f := must(b.Functions().Get(ctx(t), "fw"))(t); f.Placement != nil || f.Status.State != api.FunctionPending || f.Status.Message != "no host has joined yet" {
		t.Errorf("%+v", f)
	}
	hostUp(t, b, "h1")
	want := map[string]string{"fw": "h1", "w1": "h1", "mon": "h1", "alice": "h1", "bob": "h1"}
	if d := cmp.Diff(want, at(t, b)); d != "" {
		t.Error(d)
	}
	if f := must(b.Functions().Get(ctx(t), "fw"))(t); f.Generation != 2 || f.Status.Message != "" {
		t.Errorf("its agent does not hear of it: %+v", f)
	}
	if e := events(t, b); len(e) != 0 {
		t.Errorf("events %v", e)
	}
}

func TestPlacementIsBetweenHosts(t *testing.T) {
	b := start(t, manager.Options{Placement: "spread"})
	hostUp(t, b, "h1", "h2")
	must(b.Apply(ctx(t), api.ApplyRequest{Document: api.Document{
		Endpoints: map[string]api.EndpointSpec{"a": {Interface: "eth0", Host: "h1"}, "s": {Switch: "s1", SwitchPort: "2"}},
		Functions: map[string]api.FunctionSpec{"f1": {Image: "wire"}, "f2": {Image: "wire"}, "f3": {Image: "wire", Host: "h2"}},
	}}))(t)
	want := map[string]string{"f3": "h2", "f1": "h1", "f2": "h1", "a": "h1", "s": ""} // what is pinned comes first
	if d := cmp.Diff(want, at(t, b)); d != "" {
		t.Error(d)
	}
	f := must(b.Functions().Patch(ctx(t), "f1", map[string]any{"host": "h2"}))(t)
	if f.At() != "h2" || f.Placement.Reason != "pinned by spec.host" || f.Generation != 2 {
		t.Errorf("a new pin: %+v, generation %d", f.Placement, f.Generation)
	}
	must(b.Endpoints().Put(ctx(t), "a", api.EndpointSpec{Interface: "eth0", Host: "h2"}))(t)
	if at(t, b)["a"] != "h2" {
		t.Error("an endpoint does not go to its new host")
	}
	if _, err := manager.New(manager.Options{Store: mem.New(), Placement: "best"}); err == nil || !strings.Contains(err.Error(), "want one of") {
		t.Errorf("an unknown strategy: %v", err)
	}
}

func TestWhatNoHostCanGiveIsRefused(t *testing.T) {
	b := start(t, manager.Options{})
	hostUp(t, b, "host-1", "host-2")
	for name, x := range map[string]struct {
		d    api.Document
		says string
	}{
		"an unknown host of a function": {api.Document{Functions: map[string]api.FunctionSpec{"f": {Image: "wire", Host: "host-3"}}},
			`functions.f.host: no host is called "host-3" (did you mean "host-1"? known are host-1, host-2; others join with`},
		"an unknown host of an endpoint": {api.Document{Endpoints: map[string]api.EndpointSpec{"a": {Interface: "eth0", Host: "x"}}},
			`endpoints.a.host: no host is called "x" (known are host-1, host-2`},
		"an endpoint of one of several": {api.Document{Endpoints: map[string]api.EndpointSpec{"a": {Interface: "eth0"}}},
			"endpoints.a.host: there are several hosts, and the endpoint does not say which it is at (want one of host-1, host-2)"},
		"more cores than any host has":  {api.Document{Functions: map[string]api.FunctionSpec{"f": {Image: "wire", CPUs: "5"}}}, "functions.f.cpus: no host has 5 cores: the largest has 4"},
		"more memory than any host has": {api.Document{Functions: map[string]api.FunctionSpec{"f": {Image: "wire", Memory: "9G"}}}, "functions.f.memory: no host has 9G of memory: the largest has 8192M"},
	} {
		t.Run(name, func(t *testing.T) {
			if _, err := b.Apply(ctx(t), api.ApplyRequest{Document: x.d}); !errors.Is(err, api.ErrInvalid) || !strings.Contains(err.Error(), x.says) {
				t.Errorf("says %v, want %q", err, x.says)
			}
		})
	}
	must(b.Apply(ctx(t), api.ApplyRequest{Document: api.Document{Functions: map[string]api.FunctionSpec{
		"a": {Image: "wire", CPUs: "3"}, "b": {Image: "wire", CPUs: "3"}, "c": {Image: "wire", CPUs: "2"}}}}))(t)
	c := must(b.Functions().Get(ctx(t), "c"))(t)
	if want := "no host: host-1 has 1 of 4 cores left, and 2 are asked for; host-2 has 1 of 4 cores left, and 2 are asked for"; c.At() != "" || c.Status.Message != want {
		t.Errorf("at %q, says %q, want %q", c.At(), c.Status.Message, want)
	}
	if !has(events(t, b), "warning FunctionNotPlaced c: no host:") {
		t.Errorf("events %q", events(t, b))
	}
	lead(t, b.m, nil)
	must(b.Functions().Delete(ctx(t), "a"))(t)
	report(t, b, api.StatusReport{Host: must(b.Functions().Get(ctx(t), "a"))(t).At(), Functions: map[string]api.FunctionStatus{"a": {State: api.FunctionDeleted}}})
	until(t, "the freed cores are used", func() bool { return at(t, b)["c"] != "" })
}

func TestAnUnschedulableHostGetsNothingNew(t *testing.T) {
	b := start(t, manager.Options{})
	hostUp(t, b, "h1", "h2")
	must(b.Functions().Put(ctx(t), "old", api.FunctionSpec{Image: "wire"}))(t)
	if at(t, b)["old"] != "h1" {
		t.Fatal(at(t, b))
	}
	must(b.Hosts().Patch(ctx(t), "h1", map[string]any{"unschedulable": true}))(t)
	must(b.Functions().Put(ctx(t), "new", api.FunctionSpec{Image: "wire"}))(t)
	if d := cmp.Diff(map[string]string{"old": "h1", "new": "h2"}, at(t, b)); d != "" {
		t.Error(d)
	}
	must(b.Hosts().Patch(ctx(t), "h2", map[string]any{"unschedulable": true}))(t)
	must(b.Functions().Put(ctx(t), "third", api.FunctionSpec{Image: "wire"}))(t)
	if at(t, b)["third"] != "" {
		t.Error("placed on an unschedulable host")
	}
	must(b.Hosts().Patch(ctx(t), "h1", map[string]any{"unschedulable": nil}))(t)
	if at(t, b)["third"] != "h1" {
		t.Errorf("the host takes functions again, and it is at %q", at(t, b)["third"])
	}
}

func TestALostHostsFunctionsRunElsewhere(t *testing.T) {
	b := start(t, manager.Options{})
	hostUp(t, b, "h1", "h2")
	beats := beat(t, b, "h1", "h2")
	lead(t, b.m, nil)
	must(b.Apply(ctx(t), api.ApplyRequest{Document: api.Document{
		Functions: map[string]api.FunctionSpec{"f": {Image: "wire"}, "g": {Image: "wire"}},
		Chains:    map[string]api.ChainSpec{"c": {Path: "f | g"}},
		Policies:  map[string]api.PolicySpec{"p": {From: "10.0.0.1", Chain: "c"}},
	}}))(t)
	must(b.Functions().Put(ctx(t), "pinned", api.FunctionSpec{Image: "wire", Host: "h1"}))(t)
	must(b.Functions().Put(ctx(t), "dying", api.FunctionSpec{Image: "wire", Host: "h1"}))(t)
	if at(t, b)["f"] != "h1" {
		t.Fatal(at(t, b))
	}
	report(t, b, api.StatusReport{Host: "h1", Chains: map[string]api.ChainStatus{"c": {ObservedGeneration: 1, State: "ready"}},
		Functions: map[string]api.FunctionStatus{"f": {ObservedGeneration: 1, State: api.FunctionStarted, Healthy: true, Host: "h1", Ports: api.FunctionPorts{In: 1, Out: 2}}}})
	op := must(b.Functions().Delete(ctx(t), "dying"))(t)
	watch := b.Hosts().Watch(ctx(t), 0, api.ListOptions{Name: "h1"})
	beats.stop["h1"]()
	began := time.Now()
	until(t, "f runs elsewhere", func() bool { return at(t, b)["f"] == "h2" && at(t, b)["g"] == "h2" })
	if took := time.Since(began); took < api.BeatLost-api.Beat {
		t.Errorf("moved after %v: the host was not lost yet", took)
	}
	f := must(b.Functions().Get(ctx(t), "f"))(t)
	if f.Generation != 2 || f.Status.State != api.FunctionPending || f.Status.Ports.In != 0 || !strings.HasPrefix(f.Placement.Reason, "h1 is lost; most-available: ") {
		t.Errorf("%+v %+v", f, f.Placement)
	}
	if c := must(b.Chains().Get(ctx(t), "c"))(t); c.Status.State != "degraded" || c.Status.Message != "moved: f, g" {
		t.Errorf("the chain is %+v", c.Status)
	}
	if at(t, b)["pinned"] != "h1" {
		t.Errorf("the pinned function is at %q", at(t, b)["pinned"])
	}
	if done := must(b.Wait(ctx(t), op.Name))(t); done.State != api.OpCompleted {
		t.Errorf("what was being deleted there: %+v", done)
	}
	e := events(t, b)
	for _, want := range []string{"error HostLost h1: host h1 is lost: its agent has been silent for", "warning FunctionMoved f: moved from h1 to h2: h1 is lost; most-available",
		"error FunctionNotPlaced pinned: h1 is lost; pinned there by spec.host"} {
		if !has(e, want) {
			t.Errorf("no event %q in %q", want, e)
		}
	}
	states := map[string]bool{}
	for d := range watch {
		for _, h := range append(d.Items, d.Object) {
			states[string(h.Status.State)] = true
		}
		if states["lost"] {
			break
		}
	}
	// Late news of the host that had it do not count any more; it is told nothing but that.
	report(t, b, api.StatusReport{Host: "h1", Functions: map[string]api.FunctionStatus{"f": {State: api.FunctionStarted, Healthy: true, Host: "h1"}}})
	if f := must(b.Functions().Get(ctx(t), "f"))(t); f.Status.State != api.FunctionPending {
		t.Errorf("the lost host's news count: %+v", f.Status)
	}
	beat(t, b, "h1")
	until(t, "the host is back", func() bool { return must(b.Hosts().Get(ctx(t), "h1"))(t).Status.State == "ready" })
	if e := events(t, b); !has(e, "info HostBack h1: host h1 is back") {
		t.Errorf("events %q", e)
	}
	if at(t, b)["f"] != "h2" {
		t.Error("the function went back")
	}
}

func TestOnlyALostHostIsRemoved(t *testing.T) {
	b := start(t, manager.Options{})
	hostUp(t, b, "h1", "h2")
	beats := beat(t, b, "h1", "h2")
	lead(t, b.m, nil)
	must(b.Functions().Put(ctx(t), "f", api.FunctionSpec{Image: "wire", Host: "h1"}))(t)
	must(b.Endpoints().Put(ctx(t), "e", api.EndpointSpec{Interface: "eth0", Host: "h1"}))(t)
	report(t, b, api.StatusReport{Host: "h1", Endpoints: map[string]api.EndpointStatus{"e": {State: "up", ObservedGeneration: 1}}})
	if err := b.Fabric(ctx(t), api.FabricReport{Assignments: map[string]api.AssignmentSpec{"h1": {}, "h2": {}}}); err != nil {
		t.Fatal(err)
	}
	if _, err := b.Hosts().Delete(ctx(t), "h1"); !errors.Is(err, api.ErrConflict) || !strings.Contains(err.Error(), "host h1 is ready: stop its agent first") {
		t.Errorf("a living host: %v", err)
	}
	beats.stop["h1"]()
	until(t, "h1 is lost", func() bool { return must(b.Hosts().Get(ctx(t), "h1"))(t).Status.State == "lost" })
	const why = "host h1 is lost: its agent has been silent for "
	_, logs := b.Logs(ctx(t), "f", api.LogOptions{})
	_, exec := b.Exec(ctx(t), "f", api.ExecOptions{Args: []string{"ls"}})
	_, counters := b.Counters(ctx(t), "h1")
	for what, err := range map[string]error{"logs": logs, "exec": exec, "counters": counters} {
		if !errors.Is(err, api.ErrBusy) || !strings.Contains(err.Error(), why) {
			t.Errorf("%s at a lost host: %v", what, err)
		}
	}
	restart := must(b.Restart(ctx(t), "f"))(t)
	if restart.State != api.OpFailedTemp || !strings.HasPrefix(restart.Message, why) {
		t.Errorf("restart at a lost host: %+v", restart)
	}
	if op, err := b.Hosts().Delete(ctx(t), "h1"); op != nil || err != nil {
		t.Fatalf("%+v, %v", op, err)
	}
	if _, err := b.Hosts().Get(ctx(t), "h1"); !errors.Is(err, api.ErrNotFound) {
		t.Errorf("still there: %v", err)
	}
	if a := must(b.Assignments().List(ctx(t), api.ListOptions{}))(t); len(a.Items) != 1 || a.Items[0].Name != "h2" {
		t.Errorf("assignments %+v", a.Items)
	}
	if e := must(b.Endpoints().Get(ctx(t), "e"))(t); e.At() != "h1" || e.Status.State != "pending" || e.Status.Message != "host h1 was removed" {
		t.Errorf("its endpoint: %+v", e)
	}
	if !has(events(t, b), "HostRemoved h1") {
		t.Error("no event")
	}
}

// Two managers share a store: one leads, and the other takes over.
func TestOneManagerLeads(t *testing.T) {
	s := mem.New()
	b1, b2 := start(t, manager.Options{Store: s, Host: "m1"}), start(t, manager.Options{Store: s, Host: "m2"})
	var one, two atomic.Int32
	run := func(n *atomic.Int32) func(context.Context) {
		return func(ctx context.Context) {
			n.Add(1)
			<-ctx.Done()
			n.Add(-1)
		}
	}
	end := lead(t, b1.m, run(&one))
	until(t, "the first leads", func() bool { return b1.m.Leads() && one.Load() == 1 })
	lead(t, b2.m, run(&two))
	s.Depose("manager") // and it may campaign again
	until(t, "one leads again", func() bool { return one.Load()+two.Load() == 1 })
	end()
	if one.Load() != 0 || b1.m.Leads() {
		t.Error("who has ended still leads")
	}
	until(t, "the second leads", func() bool { return two.Load() == 1 && b2.m.Leads() })
	hostUp(t, b1, "h1", "h2")
	beats := beat(t, b2, "h1", "h2")
	must(b1.Functions().Put(ctx(t), "f", api.FunctionSpec{Image: "wire"}))(t)
	beats.stop["h1"]()
	until(t, "the new leader moves the function", func() bool { return at(t, b1)["f"] == "h2" })
}

// A manager whose machine has rebooted forgets what its own agent had told, not what other hosts did.
func TestForgetStatusIsOfTheOwnHost(t *testing.T) {
	b := start(t, manager.Options{Host: "h1"})
	hostUp(t, b, "h1", "h2")
	must(b.Apply(ctx(t), api.ApplyRequest{Document: api.Document{
		Endpoints: map[string]api.EndpointSpec{"e1": {Interface: "eth0", Host: "h1"}, "e2": {Interface: "eth0", Host: "h2"}},
		Functions: map[string]api.FunctionSpec{"f1": {Image: "wire", Host: "h1"}, "f2": {Image: "wire", Host: "h2"}},
		Chains:    map[string]api.ChainSpec{"c1": {Path: "f1"}, "c2": {Path: "f2"}},
		Policies:  map[string]api.PolicySpec{"p1": {From: "e1", Chain: "c1"}, "p2": {From: "e2", Chain: "c2"}},
	}}))(t)
	for _, n := range []string{"1", "2"} {
		report(t, b, api.StatusReport{Host: "h" + n, Functions: map[string]api.FunctionStatus{"f" + n: {State: api.FunctionStarted, Healthy: true}},
			Chains: map[string]api.ChainStatus{"c" + n: {State: "ready"}}, Policies: map[string]api.PolicyStatus{"p" + n: {State: "active"}}})
	}
	if err := b.m.News.ForgetStatus(ctx(t)); err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, f := range must(b.Functions().List(ctx(t), api.ListOptions{}))(t).Items {
		got = append(got, f.Name+" "+string(f.Status.State)+" at "+f.At())
	}
	for _, c := range must(b.Chains().List(ctx(t), api.ListOptions{}))(t).Items {
		got = append(got, c.Name+" "+string(c.Status.State))
	}
	for _, p := range must(b.Policies().List(ctx(t), api.ListOptions{}))(t).Items {
		got = append(got, p.Name+" "+string(p.Status.State))
	}
	if d := cmp.Diff([]string{"f1  at h1", "f2 started at h2", "c1 ", "c2 ready", "p1 ", "p2 active"}, got); d != "" {
		t.Error(d)
	}
}

// counting is a host that counts what passes its ports.
type counting struct {
	*node
	counters api.Counters
	err      error
}

func (c counting) Counters(context.Context) (api.Counters, error) { return c.counters, c.err }

func TestThePathOfAPolicyAcrossHosts(t *testing.T) {
	ports := func(host string, names ...string) api.Counters {
		c := api.Counters{Host: host}
		for i, n := range names {
			c.Ports = append(c.Ports, api.PortCounters{Name: n, Port: uint32(i + 1), State: "up", Rx: api.Counter{Packets: uint64(i + 1)}})
		}
		return c
	}
	down := errors.New("its agent does not answer")
	nodes := map[string]counting{
		"h1": {counters: ports("h1", "endpoint/a", "function/f1/in", "function/f1/out", "uplink/eth1")},
		"h2": {counters: ports("h2", "function/f2/in", "function/f2/out", "uplink/eth1")},
	}
	b := start(t, manager.Options{Node: func(h string) ask.Node {
		if n, ok := nodes[h]; ok {
			return n
		}
		return nil
	}})
	hostUp(t, b, "h1", "h2")
	must(b.Apply(ctx(t), api.ApplyRequest{Document: api.Document{
		Endpoints: map[string]api.EndpointSpec{"a": {Interface: "eth0", Host: "h1"}},
		Functions: map[string]api.FunctionSpec{"f1": {Image: "wire", Host: "h1"}, "f2": {Image: "wire", Host: "h2"}},
		Chains:    map[string]api.ChainSpec{"c": {Path: "f1 | f2"}},
		Policies:  map[string]api.PolicySpec{"p": {From: "a", Chain: "c"}},
	}}))(t)
	fabric(t, b, api.FabricReport{Policies: map[string]api.PolicyStatus{"p": {State: "active",
		RenderedPath: []string{"endpoint/a", "function/f1/in", "h1:uplink/eth1", "s1:3", "h2:uplink/eth1", "function/f2/in", "any"}}}})
	look := func() []string {
		var out []string
		for _, h := range must(b.Path(ctx(t), "p"))(t).Forward {
			out = append(out, fmt.Sprintf("%s on %q live %v %d", h.Port, h.Host, h.Live, h.Rx.Packets))
		}
		return out
	}
	want := []string{`endpoint/a on "h1" live true 1`, `function/f1/in on "h1" live true 2`, `h1:uplink/eth1 on "h1" live true 4`, `s1:3 on "" live false 0`,
		`h2:uplink/eth1 on "h2" live true 3`, `function/f2/in on "h2" live true 1`, `any on "" live false 0`}
	if d := cmp.Diff(want, look()); d != "" {
		t.Error(d)
	}
	nodes["h2"] = counting{err: down}
	want[4], want[5] = `h2:uplink/eth1 on "" live false 0`, `function/f2/in on "" live false 0`
	if d := cmp.Diff(want, look()); d != "" {
		t.Errorf("with one host silent: %s", d)
	}
	nodes["h1"] = counting{err: down}
	if _, err := b.Path(ctx(t), "p"); err == nil || !strings.Contains(err.Error(), "does not answer") {
		t.Errorf("with all hosts silent: %v", err)
	}
}

// An agent says how many functions it has; the manager, what is placed there. Both together say how far a drain is.
func TestADrainIsDoneWhenNothingIsLeft(t *testing.T) {
	b := start(t, manager.Options{})
	hostUp(t, b, "h1", "h2")
	for name, spec := range map[string]api.FunctionSpec{"moves": {Image: "wire"}, "pinned": {Image: "wire", Host: "h1"}, "large": {Image: "wire", CPUs: "4"}} {
		must(b.Functions().Put(ctx(t), name, spec))(t)
	}
	must(b.Hosts().Patch(ctx(t), "h2", map[string]any{"cpus": "1"}))(t)
	for name, host := range at(t, b) { // wherever the strategy has put them, they begin on h1
		if host != "h1" {
			must(b.Functions().Patch(ctx(t), name, map[string]any{"host": "h1"}))(t)
			if name != "pinned" {
				must(b.Functions().Patch(ctx(t), name, map[string]any{"host": nil}))(t)
			}
		}
	}
	says := func(functions int) {
		t.Helper()
		report(t, b, api.StatusReport{Host: "h1", HostState: &api.HostStatus{State: "ready", Cores: 4, Memory: 8 << 30, Free: 8 << 30, Heartbeat: time.Now(), Functions: functions}})
	}
	drain := func() *api.HostDrain { t.Helper(); return must(b.Hosts().Get(ctx(t), "h1"))(t).Status.Drain }
	says(3)

	// A plan changes nothing.
	want := api.DrainResult{Host: "h1", Moves: []api.DrainMove{{Function: "moves", To: "h2", Reason: "h1 is being drained; most-available: 1 of 1 cores and 8 GiB of 8 GiB free"}},
		Stays: []api.DrainStay{{Kind: api.KindFunction, Name: "large", Reason: "h1 is being drained; no host: h1 is being drained (spec.drain); h2 has 1 of 1 cores left, and 4 are asked for"},
			{Kind: api.KindFunction, Name: "pinned", Reason: "h1 is being drained; pinned by spec.host"}}}
	revision := must(b.Hosts().List(ctx(t), api.ListOptions{}))(t).Revision
	if d := cmp.Diff(want, must(b.Drain(ctx(t), "h1", api.DrainRequest{Plan: true}))(t)); d != "" {
		t.Error(d)
	}
	if now := must(b.Hosts().List(ctx(t), api.ListOptions{}))(t).Revision; now != revision || drain() != nil {
		t.Errorf("a plan has written something: revision %d, before %d, %+v", now, revision, drain())
	}

	if d := cmp.Diff(want, must(b.Drain(ctx(t), "h1", api.DrainRequest{}))(t)); d != "" {
		t.Error(d)
	}
	if d := cmp.Diff(&api.HostDrain{Stays: 2, Leaving: 1}, drain()); d != "" {
		t.Error(d)
	}
	if f := must(b.Functions().Get(ctx(t), "pinned"))(t); f.Placement.Stays != "h1 is being drained; pinned by spec.host" {
		t.Errorf("the function says %q", f.Placement.Stays)
	}
	says(2)
	if d := cmp.Diff(&api.HostDrain{Stays: 2}, drain()); d != "" {
		t.Error(d)
	}
	report(t, b, api.StatusReport{Host: "h1", HostState: &api.HostStatus{State: api.HostStarting, Cores: 4, Memory: 8 << 30, Drain: &api.HostDrain{Stays: 77}}})
	if d := cmp.Diff(&api.HostDrain{Stays: 2}, drain()); d != "" {
		t.Errorf("an agent that starts does not know what it has, and does not say how far the drain is: %s", d)
	}

	// As soon as they can they move, too.
	must(b.Functions().Patch(ctx(t), "pinned", map[string]any{"host": nil}))(t)
	must(b.Hosts().Patch(ctx(t), "h2", map[string]any{"cpus": "16"}))(t)
	report(t, b, api.StatusReport{Host: "h2", HostState: &api.HostStatus{State: "ready", Cores: 16, Memory: 8 << 30, Free: 8 << 30, Heartbeat: time.Now()}})
	must(b.Drain(ctx(t), "h1", api.DrainRequest{}))(t)
	if d := cmp.Diff(map[string]string{"moves": "h2", "pinned": "h2", "large": "h2"}, at(t, b)); d != "" {
		t.Error(d)
	}
	says(0)
	if d := drain(); d == nil || !d.Done() || !has(events(t, b), "info HostDrained h1: host h1 is drained") {
		t.Errorf("%+v, %q", d, events(t, b))
	}
	must(b.Functions().Put(ctx(t), "later", api.FunctionSpec{Image: "wire"}))(t)
	if at(t, b)["later"] != "h2" {
		t.Error("placed on a host that is being drained")
	}
	must(b.Hosts().Patch(ctx(t), "h1", map[string]any{"drain": nil}))(t)
	if h := must(b.Hosts().Get(ctx(t), "h1"))(t); h.Status.Drain != nil || len(h.Status.Conditions) != 0 {
		t.Errorf("the drain was taken back: %+v", h.Status)
	}
	if _, err := b.Drain(ctx(t), "h9", api.DrainRequest{}); !errors.Is(err, api.ErrNotFound) {
		t.Errorf("a host that is not there: %v", err)
	}
}

// The number of functions that an agent has reported may be older than what it has said of each of them.
func TestADrainIsNotDoneBeforeItHasBegun(t *testing.T) {
	b := start(t, manager.Options{})
	hostUp(t, b, "h1", "h2")
	must(b.Functions().Put(ctx(t), "f", api.FunctionSpec{Image: "wire", Host: "h1"}))(t)
	must(b.Functions().Patch(ctx(t), "f", map[string]any{"host": nil}))(t)
	says := func() *api.HostDrain {
		t.Helper()
		report(t, b, api.StatusReport{Host: "h1", HostState: &api.HostStatus{State: "ready", Cores: 4, Memory: 8 << 30, Free: 8 << 30, Heartbeat: time.Now()}})
		return must(b.Hosts().Get(ctx(t), "h1"))(t).Status.Drain
	}
	says() // no function yet
	f := must(b.Functions().Get(ctx(t), "f"))(t)
	report(t, b, api.StatusReport{Host: "h1", Functions: map[string]api.FunctionStatus{"f": {State: api.FunctionStarted, Host: "h1", ObservedGeneration: f.Generation}}})
	if f = must(b.Functions().Get(ctx(t), "f"))(t); f.Status.State != api.FunctionStarted || f.Status.Host != "h1" {
		t.Fatalf("%+v", f.Status)
	}
	must(b.Drain(ctx(t), "h1", api.DrainRequest{}))(t)
	if d := cmp.Diff(&api.HostDrain{Leaving: 1}, must(b.Hosts().Get(ctx(t), "h1"))(t).Status.Drain); d != "" {
		t.Error(d)
	}
	if d := cmp.Diff(&api.HostDrain{}, says()); d != "" {
		t.Error(d)
	}
}
