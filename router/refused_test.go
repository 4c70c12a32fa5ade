package router

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"weir.dev/weir/flow"
)

// One event for each endpoint and reason, at once, and not for each frame.
func TestRefusalsAreToldOnceAMinute(t *testing.T) {
	counts := func(arp, source uint64) Counts {
		var c [flow.Refusals]uint64
		c[flow.RefusedARP], c[flow.RefusedSource] = arp, source
		return Counts{"mallory": c}
	}
	var r Refused
	r.Start(counts(7, 0))
	begin := time.Now()
	var got []string
	for _, look := range []struct {
		second      int
		arp, source uint64
	}{{5, 7, 0}, {10, 9, 0}, {15, 100, 3}, {40, 5000, 3}, {71, 6000, 3}, {300, 6000, 3}, {305, 1, 0}} {
		for _, e := range r.Tell(counts(look.arp, look.source), begin.Add(time.Duration(look.second)*time.Second)) {
			got = append(got, e.Reason+" "+e.Object+" "+e.Message)
		}
	}
	want := []string{
		"RefusedArp mallory port security dropped 2 packets (9 in all): ARP for an address or MAC that is not this endpoint's",
		"RefusedSource mallory port security dropped 3 packets (3 in all): the source address is not this endpoint's",
		"RefusedArp mallory port security dropped 5991 packets (6000 in all): ARP for an address or MAC that is not this endpoint's",
		"RefusedArp mallory port security dropped 1 packets (1 in all): ARP for an address or MAC that is not this endpoint's",
	}
	if d := cmp.Diff(want, got); d != "" {
		t.Error(d)
	}
}
