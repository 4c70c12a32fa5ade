package manager_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"weir.dev/weir/api"
	"weir.dev/weir/manager"
)

func TestTrace(t *testing.T) {
	type asked struct {
		policies, down int
		mac            string
		query          api.TraceQuery
	}
	var got asked
	b := start(t, manager.Options{Trace: func(d api.Document, q api.TraceQuery, macs map[string]string, down map[string]bool) (api.Trace, error) {
		got = asked{policies: len(d.Policies), mac: macs["bob"], query: q}
		for _, is := range down {
			if is {
				got.down++
			}
		}
		return api.Trace{From: q.From, To: q.To,
			Request: api.TraceWay{Policies: []api.TracePolicy{{Policy: "guests"}}, Steps: []api.TraceStep{{Event: "entered", Hop: api.Hop{Port: "endpoint/alice"}}}}}, nil
	}})
	must(b.Apply(ctx(t), api.ApplyRequest{Document: demo()}))(t)
	report(t, b, api.StatusReport{Host: "h1",
		Endpoints: map[string]api.EndpointStatus{"bob": {State: "up", MAC: "02:00:00:00:00:0b"}},
		Functions: map[string]api.FunctionStatus{"fw": {State: api.FunctionStarted, Healthy: true}},
		Policies:  map[string]api.PolicyStatus{"guests": {State: "error", Message: "no room"}}})
	q := api.TraceQuery{From: "alice", To: "bob", Match: "tcp/80", Source: "10.9.0.7", Destination: "10.9.0.8", SourcePort: 9, VLAN: 7}
	trace := must(b.Trace(ctx(t), q))(t)
	if d := cmp.Diff(asked{policies: 1, down: 2, mac: "02:00:00:00:00:0b", query: q}, got, cmp.AllowUnexported(asked{})); d != "" {
		t.Error(d)
	}
	// Its host cannot be asked: no counters, and an answer still.
	want := api.TraceWay{Policies: []api.TracePolicy{{Policy: "guests", State: "error", Message: "no room"}}, Steps: []api.TraceStep{{Event: "entered", Hop: api.Hop{Port: "endpoint/alice"}}}}
	if d := cmp.Diff(want, trace.Request); d != "" {
		t.Error(d)
	}
	q.VLAN = -1
	if _, err := b.Trace(ctx(t), q); !errors.Is(err, api.ErrBadRequest) || !strings.Contains(err.Error(), `query.vlan: is "-1"`) {
		t.Errorf("%v", err)
	}
	if _, err := start(t, manager.Options{}).Trace(ctx(t), q); err == nil {
		t.Error("a manager without a router tells something")
	}
}
