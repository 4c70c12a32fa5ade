package suite

import (
	"maps"
	"testing"
)

// Run runs the suite against a driver.
func Run(t *testing.T, open Factory) { RunBut(t, open, nil) }

// RunBut runs the suite but for cases that do not apply, by name, each with its reason. It is for fakes: a driver lacks a Capability, or passes.
func RunBut(t *testing.T, open Factory, without map[string]string) {
	left := maps.Clone(without)
	for _, test := range []struct {
		name string
		run  func(*testing.T, Factory)
	}{
		{"abilities", testAbilities},
		{"steering as the reference switch does", testSteering},
		{"learned exits", testLearned},
		{"stations that move", testMoves},
		{"functions that are down", testDown},
		{"a hundred dead functions", testDead},
		{"a process ends", testProcess},
		{"probes", testProbe},
		{"probes that stations forge and replay", testForgedProbes},
		{"own words stay inside", testOwnWords},
		{"commits under traffic", testCommitTraffic},
		{"restart", testRestart},
		{"held endpoints", testHeld},
		{"destroy", testDestroy},
		{"refusals", testRefusals},
		{"the fabric's tag and isolated ports", testFabric},
		{"a stream with the fabric's tag", testFabricStream},
		{"odd frames", testOdd},
		{"tiny fragments", testTiny},
		{"counters of ports", testPortCounters},
		{"frames larger than a port", testTooLarge},
		{"frames into a function that wants them whole", testWhole},
		{"rules of a thousand shapes", testShapes},
		{"random rules and frames", testRandom},
		{"settled flows", testSettled},
		{"flows that functions in a row have settled", testSettledInARow},
		{"port security", testGuard},
		{"port security, random frames", testGuardRandom},
	} {
		if why, out := left[test.name]; out {
			t.Logf("without %q: %s", test.name, why)
			delete(left, test.name)
			continue
		}
		t.Run(test.name, func(t *testing.T) { test.run(t, open) })
	}
	for name := range left {
		t.Errorf("the suite has no case %q", name)
	}
}
