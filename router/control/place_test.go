package control

import (
	"testing"
	"time"

	"weir.dev/weir/api"
	"weir.dev/weir/router/fabric"
)

// A function is met where it runs. Until that is its new place, it is where it ran last.
func TestWhereAFunctionIsMet(t *testing.T) {
	up := func(host string) api.FunctionStatus {
		return api.FunctionStatus{Host: host, State: api.FunctionStarted, Healthy: true}
	}
	down := func(host string) api.FunctionStatus { return api.FunctionStatus{Host: host, State: api.FunctionFailed} }
	moved := api.FunctionStatus{State: api.FunctionPending} // what the manager writes
	for name, x := range map[string]struct {
		ran, placed string
		status      api.FunctionStatus
		host        string
		ready       bool
	}{
		"new":                                  {"", "h1", api.FunctionStatus{}, "h1", false},
		"up":                                   {"", "h1", up("h1"), "h1", true},
		"down":                                 {"h1", "h1", down("h1"), "h1", false},
		"moved":                                {"h1", "h2", moved, "h1", true},
		"moved, starting there":                {"h1", "h2", down("h2"), "h1", true},
		"moved, up there":                      {"h1", "h2", up("h2"), "h2", true},
		"moved back before it was up":          {"h1", "h1", moved, "h1", true},
		"moved from a host that is gone":       {"gone", "h2", moved, "h2", false},
		"moved, and the router began just now": {"", "h2", up("h1"), "h1", true},
	} {
		l := newLoop(&Controller{o: Options{Underlay: UnderlayVXLAN, Now: time.Now}})
		for _, h := range []string{"h1", "h2"} {
			l.intent.hosts[h] = api.Host{Meta: api.Meta{Name: h}, Status: api.HostStatus{State: "ready"}}
		}
		if x.ran != "" {
			l.placed["f"] = x.ran
		}
		f := api.Function{Placement: &api.Placement{Host: x.placed}, Status: x.status}
		if got := l.function("f", f, nil, &fabric.Input{}); got.Host != fabric.HostID(x.host) || got.Ready != x.ready {
			t.Errorf("%s: at %s, ready %v; want %s, %v", name, got.Host, got.Ready, x.host, x.ready)
		}
	}
}
