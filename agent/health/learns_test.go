package health

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"weir.dev/weir/api"
)

func TestPoliciesThatALearningBridgeBreaks(t *testing.T) {
	oneWay := new(bool)
	for name, x := range map[string]struct {
		policies map[string]api.PolicySpec
		want     map[string][]string
	}{
		"two one-way policies share a chain": {map[string]api.PolicySpec{
			"p": {From: "alice", To: "bob", Chain: "c", Symmetric: oneWay}, "q": {From: "bob", To: "alice", Chain: "c", Symmetric: oneWay},
		}, map[string][]string{"f": {"p", "q"}}},
		"each has its own":  {map[string]api.PolicySpec{"p": {From: "alice", To: "bob", Chain: "c", Symmetric: oneWay}, "q": {From: "bob", To: "alice", Chain: "d", Symmetric: oneWay}}, nil},
		"both ways in one":  {map[string]api.PolicySpec{"p": {From: "alice", To: "bob", Chain: "c"}}, nil},
		"the same way":      {map[string]api.PolicySpec{"p": {From: "alice", To: "bob", Chain: "c"}, "q": {From: "alice", To: "bob", Chain: "c"}}, nil},
		"opposite, both":    {map[string]api.PolicySpec{"p": {From: "alice", To: "bob", Chain: "c"}, "q": {From: "bob", To: "alice", Chain: "c"}}, map[string][]string{"f": {"p", "q"}}},
		"copies are not it": {map[string]api.PolicySpec{"p": {From: "alice", To: "bob", Chain: "c", Mode: api.ModeReplica}, "q": {From: "bob", To: "alice", Chain: "c", Mode: api.ModeReplica}}, nil},
		"a tap is not it":   {map[string]api.PolicySpec{"p": {From: "alice", To: "bob", Chain: "e", Symmetric: oneWay}, "q": {From: "bob", To: "alice", Chain: "e", Symmetric: oneWay}}, nil},
	} {
		t.Run(name, func(t *testing.T) {
			got := BothWays(map[string]api.ChainSpec{"c": {Path: "f"}, "d": {Path: "g"}, "e": {Path: "tap:m"}}, x.policies)
			if len(got) == 0 {
				got = nil
			}
			if d := cmp.Diff(x.want, got); d != "" {
				t.Error(d)
			}
		})
	}
}
