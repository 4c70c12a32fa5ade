package experiment

import (
	"os"
	"slices"
	"testing"

	"weir.dev/weir/testbed"
)

// Each kind of policy steers a packet behind its apply, and none before. The testbed of a run that was killed is removed by the next.
func TestPoliciesAreApplied(t *testing.T) {
	b := weirBench(t)
	for _, kind := range []string{policyEndpoint, policyPrefix, policyStarts} {
		m := measure(t, appliedExperiment{}, b, Levels{factorPolicy: kind, factorApplies: "2"})
		if len(m.Samples) != 2 || m.Values["first"] <= 0 || m.Values["slowest"] < m.Values["first"] || m.Values["lost"] < 0 {
			t.Errorf("%s: %+v", kind, m)
		}
		t.Logf("%s: %v", kind, m.Values)
	}
	if err := removeFig2(b.Name); err != nil { // as if it had been killed
		t.Fatal(err)
	}
	names, err := testbed.Names()
	if err != nil || slices.Contains(names, atFig2(b.Name).name) {
		t.Errorf("testbeds %v are left: %v", names, err)
	}
	if _, err := os.Lstat(atFig2(b.Name).record); err == nil {
		t.Error("its record is left")
	}
}
