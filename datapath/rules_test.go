package datapath

import (
	"errors"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"weir.dev/weir/flow"
)

const alice, uplink, fwIn, nowhere flow.Port = 1, 2, 3, 9

func kind(n flow.Port) PortKind {
	return map[flow.Port]PortKind{alice: EndpointPort, uplink: FabricPort, fwIn: FunctionPort}[n]
}

func TestCheckRule(t *testing.T) {
	output := func(p flow.Port) flow.Action { return flow.Action{Op: flow.Output, Port: p} }
	for name, c := range map[string]struct {
		rule flow.Rule
		want string // "": fine
	}{
		"any port":                     {flow.Rule{Action: output(0), Stage: flow.Egress}, ""},
		"into a function":              {flow.Rule{Match: flow.Match{InPort: alice}, Action: output(fwIn)}, ""},
		"out of a function":            {flow.Rule{Match: flow.Match{InPort: fwIn}, Action: output(alice)}, ""},
		"what the language refuses":    {flow.Rule{Match: flow.Match{OutPort: alice}}, "where the frame will leave"},
		"in port":                      {flow.Rule{Match: flow.Match{InPort: nowhere}}, "in port 9 is no port of this switch"},
		"out port":                     {flow.Rule{Stage: flow.Egress, Match: flow.Match{OutPort: nowhere}}, "out port 9 is no port of this switch"},
		"target":                       {flow.Rule{Action: output(nowhere)}, "target port 9 is no port of this switch"},
		"clone":                        {flow.Rule{Action: flow.Action{Clones: flow.Clones(nowhere)}}, "clone to port 9 is no port of this switch"},
		"leaving a function":           {flow.Rule{Stage: flow.Egress, Match: flow.Match{OutPort: fwIn}}, "out port 3: a function's port"},
		"leaving, come from one":       {flow.Rule{Stage: flow.Egress, Match: flow.Match{InPort: fwIn}}, "in port 3: a function's port"},
		"resume at a function":         {flow.Rule{Action: flow.Action{Op: flow.Resume, Port: fwIn}}, "target port 3: a function's port"},
		"a tag at a port into fabric":  {flow.Rule{Match: flow.Match{InPort: uplink, Tag: flow.TagFirst}, Action: output(uplink)}, ""},
		"a tag at any port":            {flow.Rule{Match: flow.Match{Tag: flow.TagFirst}, Action: flow.Action{Op: flow.Drop}}, ""},
		"a tag at an endpoint":         {flow.Rule{Match: flow.Match{InPort: alice, Tag: flow.TagFirst}, Action: flow.Action{Op: flow.Drop}}, "matched at port 1, which is none into the fabric"},
		"a tag stays on":               {flow.Rule{Match: flow.Match{InPort: uplink, Tag: flow.TagFirst}, Action: output(alice)}, "goes to port 1, which is none into the fabric"},
		"a tag pushed to a function":   {flow.Rule{Action: flow.Action{Op: flow.Output, Port: fwIn, Push: flow.TagFirst}}, "goes to port 3, which is none into the fabric"},
		"a tag on a function's copy":   {flow.Rule{Action: flow.Action{Clones: []flow.Clone{{Port: fwIn, Push: flow.TagFirst}}}}, "a copy with a fabric tag goes to port 3"},
		"a tag popped for an endpoint": {flow.Rule{Match: flow.Match{Tag: flow.TagFirst}, Action: flow.Action{Op: flow.Output, Port: alice, Pop: true}}, ""},
	} {
		err := CheckRule(&c.rule, kind)
		if c.want == "" && err != nil || c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)) {
			t.Errorf("%s: got %v, want %q", name, err, c.want)
		}
		if absent := strings.Contains(c.want, "no port of"); errors.Is(err, ErrNotFound) != absent {
			t.Errorf("%s: %v is ErrNotFound: %t", name, err, !absent)
		}
	}
	twins := []flow.Rule{{Cookie: 7, Note: "a"}, {Cookie: 7, Note: "b"}}
	if err := CheckRules(twins, kind); err == nil || !strings.Contains(err.Error(), `shared by the rules "a" and "b"`) {
		t.Error(err)
	}
}

func TestCompare(t *testing.T) {
	before := []flow.Rule{
		{Cookie: 1, Note: "same"}, {Cookie: 2, Action: flow.Action{Clones: flow.Clones(fwIn)}}, {Cookie: 3, Priority: 1}, {Cookie: 4, Learn: true}, {Cookie: 5},
	}
	after := []flow.Rule{
		{Cookie: 6}, {Cookie: 4}, {Cookie: 3, Priority: 2}, {Cookie: 2, Action: flow.Action{Clones: flow.Clones(alice)}}, {Cookie: 1, Note: "but for its note"},
	}
	if d := cmp.Diff(Commit{Added: 1, Changed: 3, Removed: 1, Unchanged: 1}, Compare(before, after)); d != "" {
		t.Error(d)
	}
	if !SameNotes(before, before) || SameNotes(before[:1], after[4:]) || SameNotes(before, before[1:]) {
		t.Error("notes")
	}
}
