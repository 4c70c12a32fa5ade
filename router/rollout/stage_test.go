package rollout

import (
	"testing"
	"time"

	"weir.dev/weir/api"
	"weir.dev/weir/router/fabric"
)

// What comes does not come before the former way's tags are in force and what had none has drained, whatever else happens meanwhile.
func TestAChangeWaitsUntilTheFormerWayIsMarked(t *testing.T) {
	input := func(path string) fabric.Input {
		return fabric.Input{Chains: map[string]api.ChainSpec{"c": {Path: path}}, Policies: map[string]api.PolicySpec{"p": {From: "a", To: "b", Chain: "c"}},
			Functions: map[string]fabric.Function{"f": {Host: "host:h1", Ready: true}, "g": {Host: "host:h2", Ready: true}}}
	}
	const plain, marked, after = 1, 2, 3
	compile := func(in fabric.Input) fabric.Output {
		cookie := uint64(plain)
		switch {
		case in.Chains["c"].Path == "g":
			cookie = after
		case len(in.Changing) > 0:
			cookie = marked
		}
		return fabric.Output{Entries: map[fabric.SwitchID][]*fabric.Entry{"of:1": {{Cookie: cookie}}}, Paths: &fabric.Paths{}}
	}
	now := time.Now()
	var s Stage
	var have fabric.Output
	for i, c := range []struct {
		path    string
		settled bool
		want    uint64
	}{
		{"f", true, plain}, {"g", true, marked}, {"g", false, marked}, {"g", false, marked}, {"g", true, after},
	} {
		have = s.Next(input(c.path), nil, have, c.settled, now, compile).Out
		if got := have.Entries["of:1"][0].Cookie; got != c.want {
			t.Errorf("step %d: rules %d are wanted, want %d", i, got, c.want)
		}
		now = now.Add(10 * time.Millisecond)
	}
}

// A function that is deleted with the change works until no rule leads to it; one that moved or is down makes the former way useless.
func TestADeletedFunctionDoesNotBreakTheFormerWay(t *testing.T) {
	in := func(functions map[string]fabric.Function) fabric.Input {
		return fabric.Input{Chains: map[string]api.ChainSpec{"c": {Path: "f | tap:m"}}, Policies: map[string]api.PolicySpec{"p": {Chain: "c"}}, Functions: functions}
	}
	f, m := fabric.Function{Host: "host:h1", Ready: true}, fabric.Function{Host: "host:h1", Tap: true, Ready: true}
	old := in(map[string]fabric.Function{"f": f, "m": m})
	for name, c := range map[string]struct {
		now    map[string]fabric.Function
		broken bool
	}{
		"as it was":    {map[string]fabric.Function{"f": f, "m": m}, false},
		"deleted":      {map[string]fabric.Function{"m": m}, false},
		"tap is down":  {map[string]fabric.Function{"f": f, "m": {Host: "host:h1", Tap: true}}, false},
		"it is down":   {map[string]fabric.Function{"f": {Host: "host:h1"}, "m": m}, true},
		"it has moved": {map[string]fabric.Function{"f": {Host: "host:h2", Ready: true}, "m": m}, true},
	} {
		if got := broken(old, in(c.now), map[string][]fabric.Variant{"p": nil}); got != c.broken {
			t.Errorf("%s: broken %v", name, got)
		}
	}
}

// The step that takes the tags away tidies up: no frame goes otherwise than before. It does not if the network has changed as well.
func TestTheLastStepTidiesUp(t *testing.T) {
	input := func(path string, ready bool) fabric.Input {
		return fabric.Input{Chains: map[string]api.ChainSpec{"c": {Path: path}}, Policies: map[string]api.PolicySpec{"p": {From: "a", To: "b", Chain: "c"}},
			Functions: map[string]fabric.Function{"f": {Host: "host:h1", Ready: true}, "g": {Host: "host:h2", Ready: true}, "other": {Host: "host:h3", Ready: ready}}}
	}
	compile := func(in fabric.Input) fabric.Output {
		cookie := uint64(len(in.Changing))<<8 | uint64(in.Chains["c"].Path[0])
		return fabric.Output{Entries: map[fabric.SwitchID][]*fabric.Entry{"of:1": {{Cookie: cookie}}}, Paths: &fabric.Paths{}}
	}
	for name, c := range map[string]struct {
		ready  bool
		tidies bool
	}{"the network is as it was": {true, true}, "the network has changed": {false, false}} {
		var s Stage
		var have target
		for i, x := range []struct {
			path   string
			ready  bool
			tidies bool
		}{{"f", true, false}, {"g", true, false}, {"g", true, false}, {"g", c.ready, c.tidies}, {"g", c.ready, false}} {
			have = s.Next(input(x.path, x.ready), nil, have.Out, true, time.Now(), compile)
			if have.Tidies != x.tidies {
				t.Errorf("%s: step %d tidies up: %t", name, i, have.Tidies)
			}
		}
	}
}
