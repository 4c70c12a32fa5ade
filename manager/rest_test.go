package manager_test

import (
	"errors"
	"testing"

	"github.com/google/go-cmp/cmp"

	"weir.dev/weir/api"
	"weir.dev/weir/manager"
)

func TestObjectLifeOverTheSocket(t *testing.T) {
	b := start(t, manager.Options{})
	spec := api.FunctionSpec{Image: "wire", Memory: "64M"}
	made := must(b.Functions().Put(ctx(t), "w1", spec))(t)
	if made.Generation != 1 || made.Revision == 0 || made.UID == "" || made.Created.IsZero() {
		t.Errorf("made: %+v", made.Meta)
	}
	got := must(b.Functions().Get(ctx(t), "w1"))(t)
	if d := cmp.Diff(made, got); d != "" {
		t.Errorf("PUT's answer differs from GET's: %s", d)
	}
	same := must(b.Functions().Put(ctx(t), "w1", spec))(t)
	if d := cmp.Diff(made, same); d != "" {
		t.Errorf("an equal spec changed something: %s", d)
	}
	patched := must(b.Functions().Patch(ctx(t), "w1", map[string]any{"memory": nil, "cpus": "0.5"}))(t)
	if d := cmp.Diff(api.FunctionSpec{Image: "wire", CPUs: "0.5"}, patched.Spec); d != "" || patched.Generation != 2 {
		t.Errorf("generation %d: %s", patched.Generation, d)
	}
	l := must(b.Functions().List(ctx(t), api.ListOptions{}))(t)
	if len(l.Items) != 1 || l.Revision < patched.Revision {
		t.Errorf("list: %+v", l)
	}
	op := must(b.Functions().Delete(ctx(t), "w1"))(t)
	if op == nil || op.State != api.OpStarting {
		t.Fatalf("delete's operation: %+v", op)
	}
	if f := must(b.Functions().Get(ctx(t), "w1"))(t); f.Deleting == nil {
		t.Error("not marked as deleting")
	}
	if err := b.Report(ctx(t), api.StatusReport{Host: "h", Functions: map[string]api.FunctionStatus{"w1": {State: api.FunctionDeleted}}}); err != nil {
		t.Fatal(err)
	}
	if _, err := b.Functions().Get(ctx(t), "w1"); !errors.Is(err, api.ErrNotFound) {
		t.Errorf("after the agent is done: %v", err)
	}
	if done := must(b.Wait(ctx(t), op.Name))(t); done.State != api.OpCompleted || done.Finished.IsZero() {
		t.Errorf("operation: %+v", done)
	}
}

func TestApplyPlansMergesAndPrunes(t *testing.T) {
	b := start(t, manager.Options{})
	plan := must(b.Apply(ctx(t), api.ApplyRequest{Document: demo(), Plan: true}))(t)
	if n := len(plan.Changes); n != 7 {
		t.Fatalf("%d changes", n)
	}
	if l := must(b.Chains().List(ctx(t), api.ListOptions{}))(t); len(l.Items) != 0 {
		t.Error("a plan changed something")
	}
	first := must(b.Apply(ctx(t), api.ApplyRequest{Document: demo()}))(t)
	if d := cmp.Diff(plan.Changes, first.Changes); d != "" {
		t.Errorf("plan and apply differ: %s", d)
	}
	written := dump(t, b.store)
	again := must(b.Apply(ctx(t), api.ApplyRequest{Document: demo()}))(t)
	if d := cmp.Diff(written, dump(t, b.store)); d != "" {
		t.Errorf("applying twice wrote: %s", d)
	}
	if n := len(audits(t, b, api.ListOptions{Verb: "apply"})); n != 1 {
		t.Errorf("%d applies in the audit log, want that which changed something", n)
	}
	for _, c := range again.Changes {
		if c.Action != "unchanged" {
			t.Errorf("applied twice: %+v", c)
		}
	}
	d := demo()
	fw := d.Functions["fw"]
	fw.Memory = "128M"
	d.Functions["fw"] = fw
	delete(d.Policies, "guests")
	got := must(b.Apply(ctx(t), api.ApplyRequest{Document: d, Prune: true}))(t)
	var changed []api.Change
	for _, c := range got.Changes {
		if c.Action != "unchanged" {
			changed = append(changed, c)
		}
	}
	want := []api.Change{
		{Action: "update", Kind: api.KindFunction, Name: "fw", Fields: []string{"memory: 64M -> 128M"}, Affects: []string{"chain/web", "policy/guests"}},
		{Action: "delete", Kind: api.KindPolicy, Name: "guests", Affects: []string{"endpoint/alice", "endpoint/bob", "function/fw", "function/mon", "function/w1"}},
	}
	if d := cmp.Diff(want, changed); d != "" {
		t.Error(d)
	}
}

// The graph shows all, or with underlay only hosts and switches and what joins them.
func TestTheGraphOfTheUnderlay(t *testing.T) {
	b := start(t, manager.Options{})
	hostUp(t, b, "h1", "h2")
	must(b.Functions().Put(ctx(t), "f", api.FunctionSpec{Image: "wire"}))(t)
	nodes := func(o api.GraphOptions) (out []string) {
		t.Helper()
		for _, n := range must(b.Graph(ctx(t), o))(t).Nodes {
			out = append(out, n.ID)
		}
		return out
	}
	if d := cmp.Diff([]string{"function/f", "host/h1", "host/h2"}, nodes(api.GraphOptions{})); d != "" {
		t.Error(d)
	}
	if d := cmp.Diff([]string{"host/h1", "host/h2"}, nodes(api.GraphOptions{Underlay: true})); d != "" {
		t.Error(d)
	}
}
