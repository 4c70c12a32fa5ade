package manager_test

import (
	"context"
	"testing"

	"weir.dev/weir/api"
	"weir.dev/weir/manager"
	"weir.dev/weir/manager/ask"
	"weir.dev/weir/store/mem"
)

// follower is the Fabric of a manager whose router does not run.
type follower struct{}

func (follower) SwitchRules(context.Context, string) (api.SwitchRules, error) {
	return api.SwitchRules{}, ask.ErrElsewhere
}

func (follower) SwitchCounters(context.Context, string) (api.SwitchCounters, error) {
	return api.SwitchCounters{}, ask.ErrElsewhere
}

func TestAFollowerSaysWhereTheLeaderIs(t *testing.T) {
	s := mem.New()
	b := start(t, manager.Options{Store: s, Fabric: follower{}})
	fabric(t, b, api.FabricReport{Switches: map[string]api.SwitchStatus{"s1": {State: "connected"}}})
	_, err := b.SwitchRules(ctx(t), "s1")
	refused(t, err, 503, "switch s1", "about to start")
	other := start(t, manager.Options{Store: s, Where: "machine m2, agents at 10.0.0.2:7412"})
	lead(t, other.m, nil)
	until(t, "the other leads", other.m.Leads)
	lead(t, b.m, nil) // it waits
	_, err = b.SwitchRules(ctx(t), "s1")
	refused(t, err, 503, "switch s1", "the manager that leads, machine m2, agents at 10.0.0.2:7412: ask there")
}
