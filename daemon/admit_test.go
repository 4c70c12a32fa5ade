package daemon

import (
	"context"
	"io"
	"strings"
	"sync"
	"testing"
	"time"

	"weir.dev/weir/api"
	"weir.dev/weir/container"
)

// hanging is a host that answers nothing but pings.
type hanging struct {
	asked chan struct{} // closed with the first question
	once  sync.Once
}

func (h *hanging) hang(ctx context.Context) error {
	h.once.Do(func() { close(h.asked) })
	<-ctx.Done()
	return ctx.Err()
}

func (h *hanging) Counters(ctx context.Context) (api.Counters, error) {
	return api.Counters{}, h.hang(ctx)
}

func (h *hanging) Metrics(ctx context.Context) ([]api.FunctionMetrics, error) {
	return nil, h.hang(ctx)
}

func (h *hanging) ImageList(ctx context.Context) ([]api.Image, error) {
	return nil, h.hang(ctx)
}

func (h *hanging) Logs(ctx context.Context, _ string, _ container.LogOptions) (io.ReadCloser, error) {
	return nil, h.hang(ctx)
}

func (h *hanging) State(ctx context.Context, _, _ string) (io.ReadCloser, int64, error) {
	return nil, 0, h.hang(ctx)
}

func (h *hanging) Flows(ctx context.Context, _ string, _ api.FlowOptions) (api.SettledFlows, error) {
	return api.SettledFlows{}, h.hang(ctx)
}

func (h *hanging) Capture(ctx context.Context, _ api.Kind, _ string, _ api.CaptureOptions) (io.ReadCloser, error) {
	return nil, h.hang(ctx)
}

func (h *hanging) Exec(ctx context.Context, _ string, _ container.ExecSpec) (int, error) {
	return 0, h.hang(ctx)
}

func (h *hanging) Admit(ctx context.Context, _, _ api.Document) []api.Problem {
	_ = h.hang(ctx)
	return nil
}

// A host that hangs keeps nobody but those who change what is there, and them for seconds; they are told.
func TestAHangingHostHoldsUpNobodyElse(t *testing.T) {
	x, m := joined(t)
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	defer wg.Wait()
	defer cancel()
	h := &hanging{asked: make(chan struct{})}
	l := &link{m: m, address: m.managers[0], node: h}
	wg.Go(func() { l.answer(ctx) })
	wg.Go(func() { l.beat(ctx) })
	c, err := api.Dial(api.Options{Socket: x.socket})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if err := c.Report(ctx, api.StatusReport{Host: "h1", HostState: &api.HostStatus{State: "ready"}}); err != nil {
		t.Fatal(err)
	}
	pinned := func(name string) api.ApplyRequest {
		return api.ApplyRequest{Document: api.Document{Functions: map[string]api.FunctionSpec{name: {Image: "wire", Host: "h1"}}}}
	}
	type outcome struct {
		result api.ApplyResult
		err    error
		took   time.Duration
	}
	slow := make(chan outcome, 1)
	asked := false
	for deadline := time.Now().Add(time.Minute); !asked; { // until its connection is there
		wg.Go(func() {
			began := time.Now()
			r, err := c.Apply(ctx, pinned("f1"))
			select {
			case slow <- outcome{r, err, time.Since(began)}:
			default:
			}
		})
		select {
		case <-h.asked:
			asked = true
		case <-slow:
			if _, err := c.Functions().Delete(ctx, "f1"); err != nil {
				t.Fatal(err)
			}
			if err := c.Report(ctx, api.StatusReport{Host: "h1", Functions: map[string]api.FunctionStatus{"f1": {State: api.FunctionDeleted}}}); err != nil {
				t.Fatal(err)
			}
		}
		if time.Now().After(deadline) {
			t.Fatal("the host is never asked")
		}
	}
	for i, d := range []api.Document{
		{Endpoints: map[string]api.EndpointSpec{"s": {Address: "10.0.0.1/24"}}},
		{Endpoints: map[string]api.EndpointSpec{"s": {Address: "10.0.0.2/24"}, "t": {MAC: "02:00:00:00:00:01"}}},
	} {
		began := time.Now()
		if _, err := c.Apply(ctx, api.ApplyRequest{Document: d}); err != nil {
			t.Fatal(err)
		}
		if took := time.Since(began); took > time.Second {
			t.Errorf("document %d took %v while a host hangs", i, took)
		}
	}
	o := <-slow
	if o.err != nil || o.took > hostTimeout+2*time.Second {
		t.Errorf("what concerns the host: %v after %v", o.err, o.took)
	}
	if len(o.result.Warnings) != 1 || !strings.Contains(o.result.Warnings[0], "host h1") || !strings.Contains(o.result.Warnings[0], "did not answer within 3s") {
		t.Errorf("warnings: %q", o.result.Warnings)
	}
	began := time.Now()
	r, err := c.Apply(ctx, pinned("f2")) // it is not asked again at once
	if err != nil || time.Since(began) > time.Second || len(r.Warnings) != 1 {
		t.Errorf("the next: %v, %q after %v", err, r.Warnings, time.Since(began))
	}
}

func TestAHostSaysNothingOfWhatItWasNotAskedAbout(t *testing.T) {
	changed := api.Document{Functions: map[string]api.FunctionSpec{"f": {}}, Endpoints: map[string]api.EndpointSpec{"e": {}}}
	got := about(changed, []api.Problem{{Path: "functions.f.image"}, {Path: "functions.other.image"}, {Path: "endpoints.e.interface"}, {Path: "endpoints.x"}, {Path: "policies.p"}, {Path: ""}})
	if len(got) != 2 || got[0].Path != "functions.f.image" || got[1].Path != "endpoints.e.interface" {
		t.Errorf("%v", got)
	}
}

// What hosts elsewhere are asked about names no secrets of functions that may run at others.
func TestHostsSeeWhatTheyNeed(t *testing.T) {
	f := api.FunctionSpec{Image: "wire", Env: map[string]string{"KEY": "s3cret"}, Config: api.Config{"a": 1.0}, CPUSet: "3", Runtime: "oci"}
	d := api.Document{
		Functions: map[string]api.FunctionSpec{"f": f, "g": f, "h": f}, Chains: map[string]api.ChainSpec{"c": {Path: "f | g"}, "x": {Path: "h"}},
		Policies: map[string]api.PolicySpec{"p": {Chain: "c"}},
	}
	changed := api.Document{Functions: map[string]api.FunctionSpec{"f": f}}
	n, b := needed(d, changed), bare(changed)
	if len(n.Functions) != 2 || len(n.Chains) != 1 || n.Policies != nil || n.Functions["g"].Env != nil || n.Functions["g"].Image != "wire" {
		t.Errorf("of the document: %+v", n)
	}
	if b.Functions["f"].Env != nil || b.Functions["f"].Config == nil || b.Functions["f"].CPUSet != "3" || b.Functions["f"].Runtime != "oci" || changed.Functions["f"].Env == nil {
		t.Errorf("of what changed: %+v", b)
	}
}
