package cli

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"weir.dev/weir/api"
)

func TestAChainIsNoBetterThanItsFunctions(t *testing.T) {
	function := func(name string, healthy bool) api.Function {
		return api.Function{Meta: api.Meta{Name: name}, Status: api.FunctionStatus{Healthy: healthy}}
	}
	chain := func(path string, state api.ChainState, message string) api.Chain {
		return api.Chain{Spec: api.ChainSpec{Path: path}, Status: api.ChainStatus{State: state, Message: message}}
	}
	s := overview{
		Functions: []api.Function{function("fw", true), function("w1", false), function("mon", false)},
		Chains:    []api.Chain{chain("fw", "ready", ""), chain("fw | w1 | tap:mon", "ready", ""), chain("w1", "pending", "waits")},
	}
	degrade(s)
	want := []api.Chain{chain("fw", "ready", ""), chain("fw | w1 | tap:mon", "degraded", "down: w1, mon"), chain("w1", "pending", "waits")}
	if diff := cmp.Diff(want, s.Chains); diff != "" {
		t.Error(diff)
	}
}

func TestEventsSayHowOften(t *testing.T) {
	first := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	for want, e := range map[string]api.Event{
		"exit code 1":                                {Message: "exit code 1"},
		"exit code 1 (x5 over 90s)":                  {Message: "exit code 1", Count: 5, First: first, Time: first.Add(90 * time.Second)},
		"running again (outage 1.25s)":               {Message: "running again", OutageNs: 1_250_000_000},
		"running again (outage 1.25s) (x2 over 10m)": {Message: "running again", OutageNs: 1_250_000_000, Count: 2, First: first, Time: first.Add(10 * time.Minute)},
	} {
		if got := eventMessage(e); got != want {
			t.Errorf("%s, want %s", got, want)
		}
	}
}

func TestWhatIsFromBeforeTheStartIsNotTakenForWell(t *testing.T) {
	for name, tt := range map[string]struct {
		hosts []string
		want  bool
	}{
		"no host yet":             {nil, true},
		"a host that is starting": {[]string{"ready", "starting"}, true},
		"all reported":            {[]string{"ready", "lost"}, false},
		"a host with no status":   {[]string{""}, true},
	} {
		var s overview
		for _, state := range tt.hosts {
			s.Hosts = append(s.Hosts, api.Host{Status: api.HostStatus{State: api.HostState(state)}})
		}
		if got := s.starting(); got != tt.want {
			t.Errorf("%s: starting is %v, want %v", name, got, tt.want)
		}
	}
}
