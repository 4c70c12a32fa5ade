package manager_test

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"weir.dev/weir/api"
	"weir.dev/weir/manager"
	"weir.dev/weir/manager/ask"
)

func fabric(t testing.TB, b *bench, r api.FabricReport) {
	t.Helper()
	if err := b.Fabric(ctx(t), r); err != nil {
		t.Fatal(err)
	}
}

func TestTheRoutersNews(t *testing.T) {
	b := start(t, manager.Options{})
	s1 := api.SwitchStatus{State: "connected", DatapathID: "0000000000000001", Rules: 2, Tables: []api.SwitchTable{{ID: 0, Rules: 2, Size: 2000}}}
	rule := api.HostRule{Cookie: "0000000000000007", Priority: 9, Stage: "ingress", Match: api.HostMatch{InPort: "uplink/eth1"}, Action: api.HostAction{Op: "drop"}}
	r := api.FabricReport{
		Switches:    map[string]api.SwitchStatus{"s1": s1, "s2": {State: "lost"}},
		Assignments: map[string]api.AssignmentSpec{"h1": {Known: 1}},
		Events:      []api.Event{{Reason: "SwitchConnected", Kind: api.KindSwitch, Object: "s1", Message: "s1 is connected"}},
	}
	fabric(t, b, r)
	first := must(b.Switches().List(ctx(t), api.ListOptions{}))(t)
	if len(first.Items) != 2 || first.Items[0].Name != "s1" || first.Items[0].Generation != 1 || first.Items[0].UID == "" {
		t.Fatalf("%+v", first)
	}
	if d := cmp.Diff(s1, must(b.Switches().Get(ctx(t), "s1"))(t).Status); d != "" {
		t.Error(d)
	}
	r.Events = nil
	fabric(t, b, r)
	again := must(b.Switches().List(ctx(t), api.ListOptions{}))(t)
	if first.Items[0].Revision != again.Items[0].Revision {
		t.Error("an equal report wrote")
	}
	watch := b.Assignments().Watch(ctx(t), again.Revision, api.ListOptions{Name: "h1"})
	fabric(t, b, api.FabricReport{Gone: []string{"s2", "unknown", "s2"}, Assignments: map[string]api.AssignmentSpec{"h1": {Known: 1, Rules: []api.HostRule{rule}}}})
	if _, err := b.Switches().Get(ctx(t), "s2"); !errors.Is(err, api.ErrNotFound) {
		t.Errorf("what is gone: %v", err)
	}
	if d, ok := <-watch; !ok || d.Object.Name != "h1" || d.Object.Generation != 2 || len(d.Object.Spec.Rules) != 1 {
		t.Errorf("the agent hears %+v", d)
	}
	hostUp(t, b, "h1")
	report(t, b, api.StatusReport{Host: "h1", Assigned: &api.AssignmentStatus{ObservedGeneration: 2, State: "installed"}})
	report(t, b, api.StatusReport{Host: "h2", Assigned: &api.AssignmentStatus{ObservedGeneration: 2, State: "installed"}}) // has none
	a := must(b.Assignments().Get(ctx(t), "h1"))(t)
	if a.Status.State != "installed" || a.Status.ObservedGeneration != 2 || a.Generation != 2 {
		t.Errorf("%+v", a)
	}
	fabric(t, b, api.FabricReport{Assignments: map[string]api.AssignmentSpec{"h1": a.Spec}})
	if now := must(b.Assignments().Get(ctx(t), "h1"))(t); now.Revision != a.Revision {
		t.Error("an equal assignment wrote, or lost its status")
	}
	if !has(events(t, b), "info SwitchConnected s1") {
		t.Error("no event")
	}
	for name, x := range map[string]api.FabricReport{
		"a bad name":                           {Switches: map[string]api.SwitchStatus{"S 1": {}}},
		"both there and gone":                  {Switches: map[string]api.SwitchStatus{"s3": {}}, Gone: []string{"s3"}},
		"a host's name of no host":             {Assignments: map[string]api.AssignmentSpec{"a/b": {}}},
		"more events than one report may have": {Events: make([]api.Event, 1001)},
	} {
		if err := b.Fabric(ctx(t), x); !errors.Is(err, api.ErrInvalid) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if n := must(b.store.Count(ctx(t), "switch/"))(t); n != 1 {
		t.Errorf("%d switches after refused reports", n)
	}
}

// Who may tell how a policy is: the host that has it to itself; else the router.
func TestWhoTellsOfWhat(t *testing.T) {
	b := start(t, manager.Options{})
	hostUp(t, b, "h1", "h2")
	must(b.Apply(ctx(t), api.ApplyRequest{Document: api.Document{
		Endpoints: map[string]api.EndpointSpec{"a1": {Interface: "eth0", Host: "h1"}, "b1": {Interface: "eth1", Host: "h1"}, "c1": {Interface: "eth2", Host: "h1"},
			"a2": {Interface: "eth0", Host: "h2"}, "b2": {Interface: "eth1", Host: "h2"}, "s": {MAC: "02:00:00:00:00:01"}},
		Functions: map[string]api.FunctionSpec{"f1": {Image: "wire", Host: "h1"}, "g1": {Image: "wire", Host: "h1"}, "f2": {Image: "wire", Host: "h2"},
			"x1": {Image: "wire", Host: "h1"}, "x2": {Image: "wire", Host: "h2"}, "k1": {Image: "wire", Host: "h1"}},
		Chains: map[string]api.ChainSpec{"one": {Path: "f1 | g1"}, "two": {Path: "f2"}, "both": {Path: "x1 | x2"}, "far": {Path: "k1"}},
		Policies: map[string]api.PolicySpec{
			"local": {From: "a1", To: "10.0.0.1", Chain: "one"}, "far-end": {From: "b2", Chain: "far"}, "station": {To: "s", Chain: "far"},
			"across": {From: "b1", Chain: "both"}, "shared": {From: "c1", Chain: "far"}, "second": {From: "any", To: "a2", Chain: "two"},
		},
	}}))(t)
	for _, h := range []string{"h1", "h2"} {
		r := api.StatusReport{Host: h, Policies: map[string]api.PolicyStatus{}, Chains: map[string]api.ChainStatus{}, Functions: map[string]api.FunctionStatus{}, Endpoints: map[string]api.EndpointStatus{}}
		for _, p := range []string{"local", "far-end", "station", "across", "shared", "second"} {
			r.Policies[p] = api.PolicyStatus{State: "active", Message: h}
		}
		for _, c := range []string{"one", "two", "both", "far"} {
			r.Chains[c] = api.ChainStatus{State: "ready", Message: h}
		}
		for _, f := range []string{"f1", "g1", "f2", "x1", "x2", "k1"} {
			r.Functions[f] = api.FunctionStatus{State: api.FunctionStarted, Healthy: f != "x1", Message: h}
		}
		for _, e := range []string{"a1", "b1", "c1", "a2", "b2", "s"} {
			r.Endpoints[e] = api.EndpointStatus{State: "up", Message: h}
		}
		report(t, b, r)
	}
	got := map[string]string{}
	for _, p := range must(b.Policies().List(ctx(t), api.ListOptions{}))(t).Items {
		got["policy "+p.Name] = p.Status.Message
	}
	for _, c := range must(b.Chains().List(ctx(t), api.ListOptions{}))(t).Items {
		got["chain "+c.Name] = string(c.Status.State) + " " + c.Status.Message
	}
	for _, f := range must(b.Functions().List(ctx(t), api.ListOptions{}))(t).Items {
		got["function "+f.Name] = f.Status.Message
	}
	for _, e := range must(b.Endpoints().List(ctx(t), api.ListOptions{}))(t).Items {
		got["endpoint "+e.Name] = e.Status.Message
	}
	want := map[string]string{
		"policy local": "h1", "policy far-end": "", "policy station": "", "policy across": "", "policy shared": "", "policy second": "h2",
		"chain one": "ready h1", "chain two": "ready h2", "chain both": "degraded down: x1", "chain far": "ready h1",
		"function f1": "h1", "function g1": "h1", "function f2": "h2", "function x1": "h1", "function x2": "h2", "function k1": "h1",
		"endpoint a1": "h1", "endpoint b1": "h1", "endpoint c1": "h1", "endpoint a2": "h2", "endpoint b2": "h2", "endpoint s": "",
	}
	if d := cmp.Diff(want, got); d != "" {
		t.Error(d)
	}
	report(t, b, api.StatusReport{Host: "h1", Functions: map[string]api.FunctionStatus{"x1": {State: api.FunctionStarted, Healthy: true}}})
	if c := must(b.Chains().Get(ctx(t), "both"))(t); c.Status.State != "ready" || c.Status.ObservedGeneration != 1 {
		t.Errorf("the chain across hosts is %+v", c.Status)
	}
	fabric(t, b, api.FabricReport{
		Policies:  map[string]api.PolicyStatus{"across": {State: "active", RenderedPath: []string{"endpoint/b1", "function/x1/in"}}},
		Endpoints: map[string]api.EndpointStatus{"s": {State: "up", Link: "s1:2"}},
	})
	if p := must(b.Policies().Get(ctx(t), "across"))(t); p.Status.State != "active" {
		t.Errorf("%+v", p.Status)
	}
	if e := must(b.Endpoints().Get(ctx(t), "s"))(t); e.Status.Link != "s1:2" {
		t.Errorf("%+v", e.Status)
	}
}

// Deleting: the router's part is over when the router says so, a station's at once.
func TestDeletingWhatCrossesHosts(t *testing.T) {
	b := start(t, manager.Options{})
	hostUp(t, b, "h1", "h2")
	must(b.Apply(ctx(t), api.ApplyRequest{Document: api.Document{
		Endpoints: map[string]api.EndpointSpec{"s": {MAC: "02:00:00:00:00:01"}, "e": {Interface: "eth0", Host: "h1"}},
		Functions: map[string]api.FunctionSpec{"f": {Image: "wire", Host: "h1"}},
		Chains:    map[string]api.ChainSpec{"c": {Path: "f"}},
		Policies:  map[string]api.PolicySpec{"p": {To: "s", Chain: "c"}},
	}}))(t)
	op := must(b.Policies().Delete(ctx(t), "p"))(t)
	report(t, b, api.StatusReport{Host: "h1", Policies: map[string]api.PolicyStatus{"p": {State: "deleted"}}})
	if _, err := b.Policies().Get(ctx(t), "p"); err != nil {
		t.Fatalf("an agent's word ends the router's policy: %v", err)
	}
	fabric(t, b, api.FabricReport{Policies: map[string]api.PolicyStatus{"p": {State: "deleted"}}})
	if done := must(b.Wait(ctx(t), op.Name))(t); done.State != api.OpCompleted {
		t.Errorf("%+v", done)
	}
	must(b.Policies().Put(ctx(t), "own", api.PolicySpec{From: "e", Chain: "c"}))(t)
	op = must(b.Policies().Delete(ctx(t), "own"))(t)
	fabric(t, b, api.FabricReport{Policies: map[string]api.PolicyStatus{"own": {State: "deleted"}}})
	if _, err := b.Policies().Get(ctx(t), "own"); err != nil {
		t.Fatalf("the router's word ends a host's policy: %v", err)
	}
	report(t, b, api.StatusReport{Host: "h1", Policies: map[string]api.PolicyStatus{"own": {State: "deleted"}}})
	if done := must(b.Wait(ctx(t), op.Name))(t); done.State != api.OpCompleted {
		t.Errorf("%+v", done)
	}
	op = must(b.Endpoints().Delete(ctx(t), "s"))(t)
	if done := must(b.Wait(ctx(t), op.Name))(t); done.State != api.OpCompleted {
		t.Errorf("%+v", done)
	}
	if l := must(b.Endpoints().List(ctx(t), api.ListOptions{}))(t); len(l.Items) != 1 {
		t.Errorf("%+v", l.Items)
	}
}

type rules struct{ err error }

func (r rules) SwitchRules(_ context.Context, name string) (api.SwitchRules, error) {
	return api.SwitchRules{Switch: name}, r.err
}

func (r rules) SwitchCounters(_ context.Context, name string) (api.SwitchCounters, error) {
	return api.SwitchCounters{Switch: name}, r.err
}

func TestSwitchRulesAreReadLive(t *testing.T) {
	for name, x := range map[string]struct {
		fabric ask.Fabric
		object string
		is     error
		says   string
	}{
		"as the router reads them":   {rules{}, "s1", nil, ""},
		"of no switch":               {rules{}, "s2", api.ErrNotFound, `switch "s2" not found`},
		"of one that does not speak": {rules{errors.New("no connection")}, "s1", api.ErrBusy, "switch s1 (connected): no connection"},
		"without a router":           {nil, "s1", api.ErrBusy, "controls no switches"},
	} {
		t.Run(name, func(t *testing.T) {
			b := start(t, manager.Options{Fabric: x.fabric})
			fabric(t, b, api.FabricReport{Switches: map[string]api.SwitchStatus{"s1": {State: "connected"}}})
			got, err := b.SwitchRules(ctx(t), x.object)
			if !errors.Is(err, x.is) || err != nil && !strings.Contains(err.Error(), x.says) {
				t.Errorf("says %v, want %q", err, x.says)
			}
			if err == nil && (got.Switch != "s1" || got.Tables == nil || got.Rules == nil) {
				t.Errorf("%+v", got)
			}
			counters, cerr := b.SwitchCounters(ctx(t), x.object)
			if !errors.Is(cerr, x.is) || cerr != nil && !strings.Contains(cerr.Error(), x.says) {
				t.Errorf("of counters it says %v, want %q", cerr, x.says)
			}
			if cerr == nil && (counters.Switch != "s1" || counters.Ports == nil) {
				t.Errorf("%+v", counters)
			}
		})
	}
}
