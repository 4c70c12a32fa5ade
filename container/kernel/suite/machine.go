package suite

import "testing"

// Machine tests an engine whose containers are virtual machines: the conformance of its runtime, and what package kernel promises of every engine
// wherever the program's own kernel is not asked.
func (k Kit) Machine(t *testing.T) {
	t.Run("conformance", k.Conformance)
	for name, f := range map[string]func(t *testing.T){
		"bad specs are told and leave nothing":     k.badSpecs,
		"exec with a terminal":                     k.execWithTerminal,
		"a new process of the instance takes over": k.takeOver,
		"a log is bounded":                         k.logIsBounded,
		"killed at any moment":                     k.killedAtAnyMoment,
		"what a killed process ran by exec ends":   k.execOfAKilledProcess,
		"destroy leaves the logs where it is told": k.destroyLeavesTheLogsWhereItIsTold,
	} {
		t.Run(name, f)
	}
}
