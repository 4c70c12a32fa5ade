package experiment

import (
	"os"
	"slices"
	"testing"

	"weir.dev/weir/lab/platform"
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
	b.Former = "../.." // the same program, as another version
	if m := measure(t, appliedExperiment{}, b, Levels{FactorPlatform: platform.PlatformFormer, factorPolicy: policyEndpoint, factorApplies: "2"}); m.Values["first"] <= 0 {
		t.Errorf("former: %+v", m)
	}
	if err := removeFig2(b.Name); err != nil { // as if it had been killed
		t.Fatal(err)
	}
	names, err := testbed.Names()
	for whose, suffix := range suffixesFig2 {
		n := atFig2(b.Name, suffix)
		if err != nil || slices.Contains(names, n.name) {
			t.Errorf("%s: testbeds %v are left: %v", whose, names, err)
		}
		if _, err := os.Lstat(n.record); err == nil {
			t.Errorf("%s: its record is left", whose)
		}
	}
}
