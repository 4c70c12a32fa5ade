package ovs

import (
	"context"
	"testing"

	"weir.dev/weir/datapath"
	"weir.dev/weir/datapath/suite"
	"weir.dev/weir/instance"
)

// tested is the switch with what the suite wants to know of it.
type tested struct{ *Switch }

func (tested) Lacks() []suite.Capability {
	return []suite.Capability{suite.Unattended, suite.Ordered, suite.SixHeaders, suite.LaterFragments, suite.ThreeTags, suite.TagAndVLAN,
		suite.DropEligible, suite.TooLarge, suite.Instant, suite.Known, suite.WrongLengths}
}

// Converge empties the cache of flows, as the commits of this driver do; without that learned addresses take hold some milliseconds later.
func (t tested) Converge(ctx context.Context) error {
	return t.processes.own.Control(ctx, "revalidator/purge")
}

func factory(i instance.Instance) (datapath.Switch, error) {
	s, err := Open(context.Background(), Options{Instance: i})
	if err != nil {
		return nil, err
	}
	return tested{s}, nil
}

func TestConformance(t *testing.T) { suite.Run(t, factory) }
