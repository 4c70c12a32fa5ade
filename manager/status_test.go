package manager_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"weir.dev/weir/api"
	"weir.dev/weir/manager"
	"weir.dev/weir/store"
)

func report(t testing.TB, b *bench, r api.StatusReport) {
	t.Helper()
	if err := b.Report(ctx(t), r); err != nil {
		t.Fatal(err)
	}
}

func TestOnlyWhatDiffersIsWritten(t *testing.T) {
	b := start(t, manager.Options{})
	report(t, b, api.StatusReport{Host: "h1", HostState: &api.HostStatus{State: "ready"}})
	must(b.Apply(ctx(t), api.ApplyRequest{Document: demo()}))(t)
	r := api.StatusReport{
		Host:      "h1",
		HostState: &api.HostStatus{State: "ready", Kernel: "6.18"},
		Functions: map[string]api.FunctionStatus{"fw": {State: api.FunctionStarted}, "w1": {State: api.FunctionStarted}, "unknown": {State: api.FunctionStarted}},
		Policies:  map[string]api.PolicyStatus{"guests": {State: "active"}},
	}
	stored := func() map[string]int64 { // but for the audit log, which is written after the answer to the apply
		all, _, err := b.store.List(ctx(t), "", listAll)
		if err != nil {
			t.Fatal(err)
		}
		revisions := map[string]int64{}
		for _, i := range all {
			if !strings.HasPrefix(i.Key, store.Prefix(api.KindAudit)) {
				revisions[i.Key] = i.Revision
			}
		}
		return revisions
	}
	report(t, b, r)
	first := must(b.Functions().List(ctx(t), api.ListOptions{}))(t)
	before := stored()
	report(t, b, r)
	if d := cmp.Diff(before, stored()); d != "" {
		t.Errorf("an equal report wrote: %s", d)
	}
	fw := r.Functions["fw"]
	fw.Healthy = true
	r.Functions["fw"] = fw
	report(t, b, r)
	for _, f := range must(b.Functions().List(ctx(t), api.ListOptions{}))(t).Items {
		switch {
		case f.Name == "fw" && (!f.Status.Healthy || f.Revision <= first.Revision):
			t.Errorf("fw was not written: %+v", f)
		case f.Name != "fw" && f.Revision > first.Revision:
			t.Errorf("%s was written although it is the same", f.Name)
		case f.Generation != 1:
			t.Errorf("%s: a status moved the generation to %d", f.Name, f.Generation)
		}
	}
	if h := must(b.Hosts().Get(ctx(t), "h1"))(t); h.Status.Kernel != "6.18" {
		t.Errorf("%+v", h)
	}
}

func TestEventsAreBoundedAndFiltered(t *testing.T) {
	b := start(t, manager.Options{})
	for round := range 11 {
		var events []api.Event
		for i := range 1000 {
			e := api.Event{Severity: api.Info, Reason: "Tick", Kind: api.KindFunction, Object: "fw", Message: fmt.Sprintf("%d", round*1000+i)}
			if i == 999 {
				e.Severity, e.Object = api.Error, "w1"
			}
			events = append(events, e)
		}
		report(t, b, api.StatusReport{Host: "h1", Events: events})
	}
	l := must(b.Events().List(ctx(t), api.ListOptions{}))(t)
	if len(l.Items) != 10_000 || l.Items[0].Message != "1000" || l.Items[9_999].Message != "10999" {
		t.Errorf("%d events, from %s to %s: want the newest 10,000 in order", len(l.Items), l.Items[0].Message, l.Items[len(l.Items)-1].Message)
	}
	if e := l.Items[0]; e.Host != "h1" || e.Time.IsZero() {
		t.Errorf("host or time is missing: %+v", e)
	}
	for name, x := range map[string]struct {
		o    api.ListOptions
		want int
	}{
		"severity": {api.ListOptions{Severity: api.Warning}, 10},
		"object":   {api.ListOptions{Object: "fw"}, 9_990},
		"kind":     {api.ListOptions{Kind: api.KindChain}, 0},
		"limit":    {api.ListOptions{Limit: 3}, 3},
	} {
		if got := must(b.Events().List(ctx(t), x.o))(t); len(got.Items) != x.want {
			t.Errorf("%s: %d events, want %d", name, len(got.Items), x.want)
		}
	}
	if last := must(b.Events().List(ctx(t), api.ListOptions{Limit: 1}))(t).Items[0]; last.Message != "10999" {
		t.Errorf("limit 1 gives %s, want the newest", last.Message)
	}
}

// An event that happens again takes the place of the former, as the newest, and tells since when; who follows sees it.
func TestEventsThatHappenAgain(t *testing.T) {
	b := start(t, manager.Options{})
	begin := time.Now().UTC().Truncate(time.Second)
	tell := func(after time.Duration, message string) {
		t.Helper()
		report(t, b, api.StatusReport{Host: "h1", Events: []api.Event{{Time: begin.Add(after), Severity: api.Warning, Reason: "FunctionDied", Kind: api.KindFunction,
			Object: "fw", Message: message}}})
	}
	tell(0, "exit code 1")
	first := must(b.Events().List(ctx(t), api.ListOptions{}))(t).Items[0]
	w := b.Events().Watch(ctx(t), 0, api.ListOptions{})
	if d := next(t, w); len(d.Items) != 1 {
		t.Fatalf("%d items", len(d.Items))
	}
	tell(time.Second, "exit code 2")
	next(t, w)
	tell(2*time.Second, "exit code 1")
	gone, came := next(t, w), next(t, w)
	if gone.Type != api.DeltaDelete || gone.Object.Name != first.Name || came.Type != api.DeltaPut || came.Object.Count != 2 {
		t.Errorf("followed: %+v, then %+v", gone, came)
	}
	l := must(b.Events().List(ctx(t), api.ListOptions{}))(t).Items
	if len(l) != 2 || l[0].Message != "exit code 2" || l[0].Count != 0 || !l[0].First.IsZero() {
		t.Fatalf("%+v", l)
	}
	if e := l[1]; e.Count != 2 || !e.First.Equal(begin) || !e.Time.Equal(begin.Add(2*time.Second)) || e.UID != first.UID || e.Message != "exit code 1" {
		t.Errorf("%+v", e)
	}
}

func TestOperationsFollowTheAgent(t *testing.T) {
	type step struct {
		status  api.FunctionStatus
		state   api.OperationState
		message string
	}
	for name, x := range map[string]struct {
		verb  func(*bench) (api.Operation, error)
		steps []step
	}{
		"start completes": {
			func(b *bench) (api.Operation, error) { return b.Start(ctx(t), "fw") },
			[]step{
				{api.FunctionStatus{ObservedGeneration: 2, State: api.FunctionCreated}, api.OpStarting, ""},
				{api.FunctionStatus{ObservedGeneration: 3, State: api.FunctionPending, Message: "mounting"}, api.OpProcessing, "mounting"},
				{api.FunctionStatus{ObservedGeneration: 3, State: api.FunctionStarted}, api.OpCompleted, ""},
			}},
		"start fails for now, then completes": {
			func(b *bench) (api.Operation, error) { return b.Start(ctx(t), "fw") },
			[]step{
				{api.FunctionStatus{ObservedGeneration: 3, State: api.FunctionFailed, Message: "exit code 1"}, api.OpFailedTemp, "exit code 1"},
				{api.FunctionStatus{ObservedGeneration: 3, State: api.FunctionStarted}, api.OpCompleted, ""},
			}},
		"restart completes": {
			func(b *bench) (api.Operation, error) { return b.Restart(ctx(t), "fw") },
			[]step{
				{api.FunctionStatus{ObservedGeneration: 2, State: api.FunctionStarted}, api.OpStarting, ""},
				{api.FunctionStatus{ObservedGeneration: 3, State: api.FunctionStarted}, api.OpProcessing, ""},
				{api.FunctionStatus{ObservedGeneration: 3, ObservedRestart: 1, State: api.FunctionStarted}, api.OpCompleted, ""},
			}},
		"a failing function's deletion goes on": {
			func(b *bench) (api.Operation, error) {
				op, err := b.Functions().Delete(ctx(t), "fw")
				return *op, err
			},
			[]step{{api.FunctionStatus{ObservedGeneration: 2, State: api.FunctionFailed, Message: "exit code 1"}, api.OpProcessing, "exit code 1"}},
		},
		"a stop of what is stopped is done at once": {
			func(b *bench) (api.Operation, error) { return b.Stop(ctx(t), "fw") },
			[]step{{api.FunctionStatus{ObservedGeneration: 2, State: api.FunctionStopped}, api.OpCompleted, ""}},
		},
		"start, then stop before it ran: superseded": {
			func(b *bench) (api.Operation, error) {
				op, err := b.Start(ctx(t), "fw")
				must(b.Stop(ctx(t), "fw"))(t)
				return op, err
			},
			[]step{{api.FunctionStatus{ObservedGeneration: 3, State: api.FunctionPending}, api.OpFailed, "superseded: the function is now wanted stopped (generation 4)"}},
		},
	} {
		t.Run(name, func(t *testing.T) {
			b := start(t, manager.Options{})
			must(b.Functions().Put(ctx(t), "fw", api.FunctionSpec{Image: "firewall"}))(t)
			must(b.Stop(ctx(t), "fw"))(t)
			tell := func(s api.FunctionStatus) {
				report(t, b, api.StatusReport{Functions: map[string]api.FunctionStatus{"fw": s}})
			}
			tell(api.FunctionStatus{ObservedGeneration: 2, State: api.FunctionStopped})
			op := must(x.verb(b))(t)
			for i, s := range x.steps {
				tell(s.status)
				got := must(b.Operations().Get(ctx(t), op.Name))(t)
				if got.State != s.state || got.Message != s.message {
					t.Fatalf("step %d: %s %q, want %s %q", i, got.State, got.Message, s.state, s.message)
				}
				if done := got.State == api.OpCompleted || got.State == api.OpFailed; done == got.Finished.IsZero() {
					t.Errorf("step %d: %s finished at %v", i, got.State, got.Finished)
				}
			}
		})
	}
}

func TestWaitingForAnOperation(t *testing.T) {
	b := start(t, manager.Options{})
	must(b.Functions().Put(ctx(t), "fw", api.FunctionSpec{Image: "firewall"}))(t)
	op := must(b.Restart(ctx(t), "fw"))(t)
	got := make(chan api.Operation, 1)
	go func() {
		o, err := b.Wait(ctx(t), op.Name)
		if err != nil {
			t.Error(err)
		}
		got <- o
	}()
	report(t, b, api.StatusReport{Functions: map[string]api.FunctionStatus{"fw": {ObservedGeneration: 2, State: api.FunctionFailed, Message: "no image"}}})
	select {
	case o := <-got:
		if o.State != api.OpFailedTemp || o.Message != "no image" {
			t.Errorf("%+v", o)
		}
	case <-time.After(patience):
		t.Fatal("did not end")
	}
	if _, err := b.Wait(ctx(t), "none"); err == nil {
		t.Error("an unknown operation is waited for")
	}
}

func TestOperationsAreBounded(t *testing.T) {
	b := start(t, manager.Options{})
	must(b.Functions().Put(ctx(t), "fw", api.FunctionSpec{Image: "firewall"}))(t)
	for range 1100 {
		must(b.Restart(ctx(t), "fw"))(t)
	}
	if n := must(b.store.Count(ctx(t), "operation/"))(t); n != 1000 {
		t.Errorf("%d operations, want 1000", n)
	}
	if n := must(b.store.Count(ctx(t), "open/"))(t); n != 1000 {
		t.Errorf("%d open operations in the index, want 1000", n)
	}
	report(t, b, api.StatusReport{Functions: map[string]api.FunctionStatus{"fw": {ObservedGeneration: 1101, ObservedRestart: 1100, State: api.FunctionStarted}}})
	if n := must(b.store.Count(ctx(t), "open/"))(t); n != 0 {
		t.Errorf("%d open operations after all are done", n)
	}
}

// TestChangedChainAcrossHostsIsReadyAtOnce: its functions are up and nothing about them changes, so no agent has news.
func TestChangedChainAcrossHostsIsReadyAtOnce(t *testing.T) {
	b := start(t, manager.Options{})
	hostUp(t, b, "h1", "h2")
	d := api.Document{
		Functions: map[string]api.FunctionSpec{"f1": {Image: "wire", Host: "h1"}, "f2": {Image: "wire", Host: "h2"}, "f3": {Image: "wire", Host: "h2"}},
		Chains:    map[string]api.ChainSpec{"c": {Path: "f1 | f2"}},
	}
	must(b.Apply(ctx(t), api.ApplyRequest{Document: d}))(t)
	up := api.FunctionStatus{State: api.FunctionStarted, Healthy: true, ObservedGeneration: 1}
	report(t, b, api.StatusReport{Host: "h1", Functions: map[string]api.FunctionStatus{"f1": up}})
	report(t, b, api.StatusReport{Host: "h2", Functions: map[string]api.FunctionStatus{"f2": up, "f3": up}})
	for generation, path := range []string{1: "f1 | f2", 2: "f3 | f1 | f2", 3: "f1 | f3"} {
		if path == "" {
			continue
		}
		d.Chains["c"] = api.ChainSpec{Path: path}
		must(b.Apply(ctx(t), api.ApplyRequest{Document: d}))(t)
		c := must(b.Chains().Get(ctx(t), "c"))(t)
		if c.Generation != int64(generation) || c.Status.ObservedGeneration != c.Generation || c.Status.State != "ready" {
			t.Errorf("%s: %+v, %+v", path, c.Meta, c.Status)
		}
	}
}
