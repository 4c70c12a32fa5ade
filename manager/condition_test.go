package manager_test

import (
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"weir.dev/weir/api"
	"weir.dev/weir/manager"
)

// A condition is as old as it holds for one reason, whatever its message says meanwhile; what ends and comes back is new.
func TestConditionsSayHowLongTheyHold(t *testing.T) {
	begin := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	now := begin
	b := start(t, manager.Options{Now: func() time.Time { return now }})
	hostUp(t, b, "h1")
	must(b.Apply(ctx(t), api.ApplyRequest{Document: demo()}))(t)
	for i, x := range []struct {
		reason  api.Reason
		message string
		since   int
	}{{api.ReasonWaiting, "a", 0}, {api.ReasonWaiting, "b", 0}, {api.ReasonRefused, "b", 2}, {"", "", 0}, {api.ReasonRefused, "b", 4}, {api.ReasonRefused, "c", 4}} {
		now = begin.Add(time.Duration(i) * time.Minute)
		s := api.PolicyStatus{State: api.PolicyPending, Message: fmt.Sprint(i)}
		if x.reason != "" {
			s.Conditions = api.Conditions{{Type: api.ConditionClosed, Reason: x.reason, Message: x.message, Since: begin.Add(-time.Hour)}}
		}
		report(t, b, api.StatusReport{Host: "h1", Policies: map[string]api.PolicyStatus{"guests": s}})
		c := must(b.Policies().Get(ctx(t), "guests"))(t).Status.Conditions
		if x.reason == "" {
			if len(c) > 0 {
				t.Errorf("%d: %+v", i, c)
			}
			continue
		}
		if want := begin.Add(time.Duration(x.since) * time.Minute); len(c) != 1 || c[0].Reason != x.reason || c[0].Message != x.message || !c[0].Since.Equal(want) {
			t.Errorf("%d: %+v, want it since %v", i, c, want)
		}
	}
	many := make(api.Conditions, 100)
	report(t, b, api.StatusReport{Host: "h1", Policies: map[string]api.PolicyStatus{"guests": {State: api.PolicyPending, Conditions: many}}})
	if c := must(b.Policies().Get(ctx(t), "guests"))(t).Status.Conditions; len(c) > 16 {
		t.Errorf("%d conditions", len(c))
	}
}

// A chain across hosts, of which the manager itself tells, says since when it is impaired.
func TestConditionsOfChainsAcrossHosts(t *testing.T) {
	begin := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	now := begin
	b := start(t, manager.Options{Now: func() time.Time { return now }})
	hostUp(t, b, "h1", "h2")
	must(b.Apply(ctx(t), api.ApplyRequest{Document: api.Document{
		Functions: map[string]api.FunctionSpec{"f": {Image: "wire", Host: "h1"}, "g": {Image: "wire", Host: "h2"}},
		Chains:    map[string]api.ChainSpec{"c": {Path: "f | g"}},
	}}))(t)
	for i, x := range []struct {
		f, g  bool
		since int // -1: no condition
	}{{true, false, 0}, {false, false, 0}, {true, true, -1}, {false, true, 3}} {
		now = begin.Add(time.Duration(i) * time.Second)
		for host, s := range map[string]map[string]bool{"h1": {"f": x.f}, "h2": {"g": x.g}} {
			for name, healthy := range s {
				report(t, b, api.StatusReport{Host: host, Functions: map[string]api.FunctionStatus{name: {State: api.FunctionStarted, Healthy: healthy, Host: host}}})
			}
		}
		c := must(b.Chains().Get(ctx(t), "c"))(t).Status.Conditions
		if x.since < 0 {
			if len(c) > 0 {
				t.Errorf("%d: %+v", i, c)
			}
			continue
		}
		if want := begin.Add(time.Duration(x.since) * time.Second); len(c) != 1 || c[0].Type != api.ConditionImpaired || !c[0].Since.Equal(want) {
			t.Errorf("%d: %+v, want it since %v", i, c, want)
		}
	}
}

// A state that no type has is refused, with those that there are.
func TestStatesAreOfTheirType(t *testing.T) {
	b := start(t, manager.Options{})
	hostUp(t, b, "h1")
	for state, want := range map[string]int{"active": 204, "": 204, "up": 400, `act\u0069ve`: 204, "ACTIVE": 400} {
		body := `{"host": "h1", "policies": {"guests": {"state": "` + state + `"}}}`
		req := must(http.NewRequest("POST", b.url+"/v1/status", strings.NewReader(body)))(t)
		req.Header.Set("Authorization", "Bearer "+b.token)
		req.Header.Set("Content-Type", "application/json")
		res := must(http.DefaultClient.Do(req))(t)
		text := string(must(io.ReadAll(res.Body))(t))
		res.Body.Close()
		if res.StatusCode != want || want == 400 && !strings.Contains(text, "want pending, active, error, deleted") {
			t.Errorf("state %q: %d, want %d: %s", state, res.StatusCode, want, text)
		}
	}
}

// What a host lacks, or claims, are conditions with a time; they go with their cause, and an agent cannot write any.
func TestConditionsOfHosts(t *testing.T) {
	begin := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	now := begin
	b := start(t, manager.Options{Now: func() time.Time { return now }})
	for i, x := range []struct {
		state   api.HostState
		feature bool
		want    string
	}{
		{api.HostStarting, true, "Starting 0"},
		{api.HostReady, true, ""},
		{api.HostReady, false, "Incapable 2"},
		{api.HostReady, false, "Incapable 2"},
		{api.HostStarting, false, "Starting 4 Incapable 2"},
	} {
		now = begin.Add(time.Duration(i) * time.Second)
		s := api.HostStatus{State: x.state, Heartbeat: now, Features: []api.Feature{{Name: "tcx", Required: true, OK: x.feature, Detail: "needs 6.6"}, {Name: "other"}},
			Conditions: api.Conditions{{Type: api.ConditionLost, Message: "by the agent"}}}
		report(t, b, api.StatusReport{Host: "h1", HostState: &s})
		h := must(b.Hosts().Get(ctx(t), "h1"))(t)
		var got []string
		for _, c := range h.Status.Conditions {
			got = append(got, fmt.Sprintf("%s %d", c.Type, int(c.Since.Sub(begin).Seconds())))
		}
		if s := strings.Join(got, " "); s != x.want {
			t.Errorf("%d: conditions %q, want %q", i, s, x.want)
		}
		if r := h.Ready(); r.Ready() != (x.state == api.HostReady) || !r.Ready() && !strings.Contains(r.Message, "has not looked at all") {
			t.Errorf("%d: %v", i, r)
		}
	}
}
