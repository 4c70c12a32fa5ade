package experiment

import (
	"context"
	"testing"
	"time"

	"weir.dev/weir/lab/platform"
)

// What needs a Weir that runs is measured with the program that was built, in namespaces of its own.
func TestDaemonsAreMeasured(t *testing.T) {
	for _, c := range []struct {
		x    Experiment
		l    Levels
		want []string
	}{
		{rulesExperiment{}, Levels{factorPolicies: "20"}, []string{"rate", "cost"}},
		{policiesExperiment{}, Levels{factorPolicies: "20"}, []string{"apply", "again"}},
		{startExperiment{}, Levels{factorBy: byWeir, factorFunctions: "2"}, []string{"one", "each", "all", "memory", "cpu"}},
		{startExperiment{}, Levels{factorBy: byDocker, factorFunctions: "2"}, []string{"one", "each", "all"}},
		{changeExperiment{}, Levels{FactorPlatform: platform.PlatformDaemon, factorChange: changeWire}, []string{"took"}},
		{changeExperiment{}, Levels{FactorPlatform: platform.PlatformFormer, factorChange: changeFirewall}, []string{"took"}},
	} {
		b := weirBench(t)
		b.Former = "../.."
		m := measure(t, c.x, b, c.l)
		if len(m.Values) < len(c.want) {
			t.Errorf("%s %v: %v", c.x.Name(), c.l, m.Values)
		}
		for _, name := range c.want {
			if m.Values[name] <= 0 {
				t.Errorf("%s %v: %s is %v", c.x.Name(), c.l, name, m.Values[name])
			}
		}
		t.Logf("%s %v: %v", c.x.Name(), c.l, m.Values)
	}
}

// A trial can be made again, by the same arrangement: what it found is as before.
func TestDaemonsAreMeasuredAgain(t *testing.T) {
	b := weirBench(t)
	a, err := policiesExperiment{}.Setup(t.Context(), b, Levels{factorPolicies: "50"})
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := a.Close(); err != nil {
			t.Error(err)
		}
	}()
	for range 2 {
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		m, err := a.Measure(ctx, 0)
		cancel()
		if err != nil || m.Values["apply"] <= 0 {
			t.Fatalf("%v, %v", m.Values, err)
		}
	}
}
