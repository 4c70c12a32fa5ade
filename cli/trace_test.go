package cli

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"weir.dev/weir/api"
)

func TestVerdictsOfATrace(t *testing.T) {
	got := verdicts(api.TraceWay{Policies: []api.TracePolicy{
		{Policy: "a", Verdict: api.TraceDecides, Priority: 9, Mode: api.ModeReplica, Chain: "c", State: "pending", Message: "waits for fw"},
		{Policy: "b", Verdict: api.TraceOutranked, Priority: 3, State: "active"},
	}})
	want := []string{
		"policy a decides: chain c, replica, priority 9; not in force as shown here, it is pending: waits for fw",
		"policy b selects it, too, and is outranked: priority 3",
	}
	if d := cmp.Diff(want, got); d != "" {
		t.Error(d)
	}
}
