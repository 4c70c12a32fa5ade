package cli

import (
	"testing"

	"weir.dev/weir/api"
)

// A chain across hosts is ready as soon as its functions are: whoever applies a change of it waits for the rules of its policies, too.
func TestPolicyIsAwaitedUntilItLeadsWhereItsChainDoes(t *testing.T) {
	d := api.Document{
		Functions: map[string]api.FunctionSpec{"fw": {}, "w1": {}, "mon": {}},
		Chains:    map[string]api.ChainSpec{"c": {Path: "fw | w1 | tap:mon"}},
	}
	for name, c := range map[string]struct {
		path    []string
		message string
		ready   bool
	}{
		"as wanted":          {[]string{"endpoint/a", "function/fw/in", "function/fw/out", "h1:tunnel/h2", "function/w1/in", "function/w1/out", "function/mon/tap", "endpoint/b"}, "", true},
		"the former order":   {[]string{"function/w1/in", "function/fw/in", "function/mon/tap"}, "", false},
		"without one":        {[]string{"function/fw/in", "function/mon/tap"}, "", false},
		"without the tap":    {[]string{"function/fw/in", "function/w1/in"}, "", false},
		"one that is gone":   {[]string{"function/fw/in", "function/old/in", "function/w1/in", "function/mon/tap"}, "", false},
		"it says why itself": {[]string{"function/fw/in"}, "its traffic bypasses some functions (down: w1)", true},
		"nothing is known":   {nil, "", true},
	} {
		p := api.Policy{Spec: api.PolicySpec{Chain: "c"}, Status: api.PolicyStatus{State: "active", RenderedPath: c.path, Message: c.message}}
		if why := readyIn(d)(p); (why == "") != c.ready {
			t.Errorf("%s: %q", name, why)
		}
	}
	stopped := d
	stopped.Functions = map[string]api.FunctionSpec{"fw": {State: api.FunctionStopped}}
	p := api.Policy{Spec: api.PolicySpec{Chain: "c"}, Status: api.PolicyStatus{State: "active", RenderedPath: []string{"function/w1/in"}}}
	if why := readyIn(stopped)(p); why != "" {
		t.Errorf("a function that shall be stopped: %q", why)
	}
}

// What a policy in force does not select does not come by waiting: apply warns of it, as long as it is so.
func TestAPolicyThatSelectsTooLittleIsReadyWithAWarning(t *testing.T) {
	d := api.Document{Chains: map[string]api.ChainSpec{"c": {Path: "nat"}}, Policies: map[string]api.PolicySpec{"p": {Chain: "c"}}}
	w := await(d, nil)
	w.set("chain/c", "")
	note := func(path string, conditions ...api.Condition) {
		p := api.Policy{Meta: api.Meta{Name: "p"}, Spec: d.Policies["p"], Status: api.PolicyStatus{State: api.PolicyActive, RenderedPath: []string{path}, Conditions: conditions}}
		if len(conditions) > 0 {
			p.Status.Message = conditions[0].Message
		}
		w.note(policies(), change{kind: api.DeltaReset, items: []any{p}}, nil, readyIn(d))
	}
	unselected := api.Condition{Type: api.ConditionUnselected, Reason: api.ReasonRewrites, Message: "function nat changes addresses"}
	if note("function/old/in", unselected); len(w.open) != 1 {
		t.Error("a policy that leads where its chain was before is ready")
	}
	if note("function/nat/in", unselected); len(w.open) > 0 || w.warnings["policy/p"] != "policy p: function nat changes addresses" {
		t.Errorf("open: %v; warnings: %v", w.open, w.warnings)
	}
	if note("function/nat/in"); len(w.open) > 0 || len(w.warnings) > 0 {
		t.Errorf("open: %v; warnings: %v", w.open, w.warnings)
	}
}
