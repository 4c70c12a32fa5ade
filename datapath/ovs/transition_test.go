package ovs

import (
	"slices"
	"testing"

	"weir.dev/weir/openflow"
)

// What a change of entries writes, and what becomes of their counters.
func TestTransition(t *testing.T) {
	made := func(out openflow.Port, owners ...owner) *entry {
		e := &entry{table: tableTo, priority: 1, match: openflow.Match{reg(regTo, 7)}, actions: list(openflow.Output{Port: out}), owners: owners}
		if err := e.seal(); err != nil {
			t.Fatal(err)
		}
		return e
	}
	set := func(all ...*entry) entrySet {
		s := entrySet{}
		for _, e := range all {
			s[e.key()] = e
		}
		return s
	}
	rule, port := owner{ownRule, 1}, owner{ownTx, 2}
	one, other := made(1, rule), made(2, rule)
	for _, c := range []struct {
		name         string
		before, next entrySet
		commands     []openflow.FlowCommand
		reset        bool
		going        int
		carried      bool
	}{
		{"the same", set(one), set(made(1, rule)), nil, false, 0, false},
		{"comes", set(), set(one), []openflow.FlowCommand{openflow.FlowAdd}, false, 0, false},
		{"goes", set(one), set(), []openflow.FlowCommand{openflow.FlowDeleteStrict}, false, 1, false},
		{"goes, and nobody asks for its counter", set(made(1)), set(), []openflow.FlowCommand{openflow.FlowDeleteStrict}, false, 0, false},
		{"does something else for the same owner", set(one), set(other), []openflow.FlowCommand{openflow.FlowAdd}, false, 0, true},
		{"counts for another", set(one), set(made(1, port)), []openflow.FlowCommand{openflow.FlowAdd}, true, 1, false},
	} {
		to := c.before.towards(c.next)
		var commands []openflow.FlowCommand
		reset := false
		for _, m := range to.mods {
			f := m.(*openflow.FlowMod)
			commands, reset = append(commands, f.Command), reset || f.Flags&openflow.FlagResetCounts != 0
		}
		carried := to.carry[one.cookie] == other.cookie
		if !slices.Equal(commands, c.commands) || reset != c.reset || len(to.going) != c.going || carried != c.carried {
			t.Errorf("%s: commands %v, reset %v, going %d, carried %v", c.name, commands, reset, len(to.going), carried)
		}
	}
}
