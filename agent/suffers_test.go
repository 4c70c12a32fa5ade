package agent

import (
	"strings"
	"testing"

	"weir.dev/weir/api"
)

// A policy in force tells what becomes of its traffic at functions that are down.
func TestAPolicyTellsWhatBecomesOfItsTraffic(t *testing.T) {
	function := func(f api.OnFail, healthy bool) api.Function {
		return api.Function{Spec: api.FunctionSpec{Image: "wire", OnFail: f}, Status: api.FunctionStatus{Healthy: healthy}}
	}
	all := state{
		functions: map[string]api.Function{"up": function("", true), "down": function("", false), "away": function(api.OnFailBypass, false)},
		chains:    map[string]api.Chain{},
	}
	suffers := func(s share, p api.PolicySpec, views map[string]view) string {
		text, conditions := s.suffers(p, views)
		if c := conditions.Get(api.ConditionImpaired); (c == nil) != (text == "") || c != nil && (c.Message != text || (c.Reason == api.ReasonDropped) != strings.Contains(text, "dropped")) {
			t.Errorf("%q, but the condition is %+v", text, c)
		}
		return text
	}
	for path, want := range map[string]string{
		"up":               "",
		"up | tap:down":    "",
		"up | away":        "its traffic bypasses some functions (down: away)",
		"up | down | away": "its traffic is dropped (down: down)",
	} {
		all.chains["c"] = api.Chain{Spec: api.ChainSpec{Path: path}}
		s := share{all: all}
		if got := suffers(s, api.PolicySpec{Chain: "c"}, nil); got != want {
			t.Errorf("%s: %q, want %q", path, got, want)
		}
		if got := suffers(s, api.PolicySpec{Chain: "c", Mode: api.ModeReplica}, nil); got != "" {
			t.Errorf("copies into %s: %q", path, got)
		}
	}
	all.functions["here"] = function("", true)
	all.chains["c"] = api.Chain{Spec: api.ChainSpec{Path: "here"}}
	s := share{all: all, state: state{functions: map[string]api.Function{"here": {}}}}
	if got := suffers(s, api.PolicySpec{Chain: "c"}, map[string]view{}); got != "its traffic is dropped (down: here)" {
		t.Errorf("a function of this host is as it is now, not as it was told last: %q", got)
	}
}
