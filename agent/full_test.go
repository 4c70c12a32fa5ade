package agent

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"

	"weir.dev/weir/api"
	"weir.dev/weir/datapath"
	"weir.dev/weir/datapath/ebpf"
	"weir.dev/weir/datapath/suite"
	"weir.dev/weir/flow"
	"weir.dev/weir/instance"
	"weir.dev/weir/router"
)

func TestOnlyMisfitsAreLeftOut(t *testing.T) {
	full := fmt.Errorf("%w: test", datapath.ErrFull)
	all := map[string]api.PolicySpec{}
	for i := range 100 {
		all[fmt.Sprintf("p%02d", i)] = api.PolicySpec{Priority: i}
	}
	try := func(fits func(map[string]api.PolicySpec) bool, tries *int) func(map[string]api.PolicySpec) error {
		return func(some map[string]api.PolicySpec) error {
			if *tries++; fits(some) {
				return nil
			}
			return full
		}
	}
	one := func(some map[string]api.PolicySpec) bool { _, bad := some["p42"]; return !bad }
	few := func(some map[string]api.PolicySpec) bool { return len(some) <= 60 }
	none := func(map[string]api.PolicySpec) bool { return false }
	before := map[string]api.PolicySpec{"p98": all["p98"], "p99": all["p99"], "p42": {}}
	for _, x := range []struct {
		name   string
		fits   func(map[string]api.PolicySpec) bool
		fitted map[string]api.PolicySpec
		left   int
		stays  []string
	}{
		{"one that needs too much", one, nil, 1, nil},
		{"too many: those that were there stay", few, before, 40, []string{"p98", "p99"}},
		{"nothing fits", none, nil, 100, nil},
	} {
		t.Run(x.name, func(t *testing.T) {
			tries := 0
			left := misfits(all, x.fitted, try(x.fits, &tries))
			if len(left) != x.left || tries > fullTries {
				t.Errorf("%d tries, left out: %v", tries, slices.Sorted(maps.Keys(left)))
			}
			for _, name := range x.stays {
				if left[name] != nil {
					t.Errorf("%s is left out", name)
				}
			}
			for name, err := range left {
				if !errors.Is(err, datapath.ErrFull) {
					t.Errorf("%s: %v", name, err)
				}
			}
		})
	}
}

// A switch without room for all: what was in force goes on, what fits comes into force, what does not fit is dropped, and whoever comes next finds the same.
func TestFullSwitch(t *testing.T) {
	r := suite.NewRig(t, func(i instance.Instance) (datapath.Switch, error) {
		return ebpf.Open(context.Background(), ebpf.Options{Instance: i, Rules: 32})
	})
	alice, bob, fn := r.Station("alice"), r.Station("bob"), r.Inline(datapath.Function{Name: "f"})
	no := false
	in := router.Input{
		Endpoints: map[string]flow.Port{"alice": alice.Port, "bob": bob.Port},
		Functions: map[string]router.Function{"f": {In: fn.Ports.In, Out: fn.Ports.Out}},
		Chains:    map[string]api.ChainSpec{"web": {Path: "f"}},
		Policies:  map[string]api.PolicySpec{"voice": {From: "alice", To: "bob", Match: []string{"udp"}, Chain: "web", Symmetric: &no}},
	}
	views := map[string]view{"f": {placed: true, ports: fn.Ports, onFail: api.OnFailDrop}}
	newAgent := func() *Agent {
		return &Agent{Options: Options{Switch: r.Switch, Log: slog.New(slog.DiscardHandler)}}
	}
	commit := func(a *Agent) router.Output {
		t.Helper()
		out, _, rules, _, err := a.commit(suite.Context(t), in, nil, views)
		if err != nil {
			t.Fatal(err)
		}
		a.installed = rules
		a.fitted = maps.Clone(in.Policies)
		maps.DeleteFunc(a.fitted, func(name string, _ api.PolicySpec) bool { return out.Errors[name] != nil })
		return out
	}
	arrives := func(m flow.Match, n int) bool {
		t.Helper()
		whole := flow.MAC{255, 255, 255, 255, 255, 255}
		m.SrcMAC, m.SrcMACMask, m.DstMAC, m.DstMACMask = alice.MAC, whole, bob.MAC, whole
		frame, _, ok := flow.Witness(m)
		if !ok {
			t.Fatal("no frame")
		}
		mark, last := fmt.Appendf(nil, "weir-frame-%08d.", n), fmt.Appendf(nil, "weir-frame-%08d.", n+1)
		alice.Send(t, append(frame, mark...))
		suite.Until(t, "an end", func() bool { // by the same way as a frame of the policy in force
			f, _, _ := flow.Witness(flow.Match{SrcMAC: alice.MAC, SrcMACMask: whole, DstMAC: bob.MAC, DstMACMask: whole, EtherType: flow.EtherTypeIPv4, Proto: flow.ProtoUDP})
			alice.Send(t, append(f, last...))
			return len(bob.Socket.Frames(last)) > 0
		})
		return len(bob.Socket.Frames(mark)) > 0
	}
	tcp := func(i int) flow.Match {
		return flow.Match{EtherType: flow.EtherTypeIPv4, Proto: flow.ProtoTCP, DstPorts: flow.PortRange{First: uint16(1000 + i), Last: uint16(1000 + i)}}
	}
	a := newAgent()
	if out := commit(a); len(out.Errors) > 0 {
		t.Fatal(out.Errors)
	}
	if !arrives(tcp(7), 10) {
		t.Error("what no policy selects does not arrive")
	}
	for i := range 40 {
		in.Policies[fmt.Sprintf("p%02d", i)] = api.PolicySpec{From: "alice", To: "bob", Match: []string{fmt.Sprintf("tcp/%d", 1000+i)}, Chain: "web", Symmetric: &no}
	}
	out := commit(a)
	left := slices.Sorted(maps.Keys(out.Errors))
	if len(left) == 0 || len(left) > 39 || out.Errors["voice"] != nil {
		t.Fatalf("left out: %v", left)
	}
	for _, err := range out.Errors {
		if !errors.Is(err, datapath.ErrFull) {
			t.Errorf("got %v", err)
		}
	}
	for i := range 40 {
		name := fmt.Sprintf("p%02d", i)
		if got := arrives(tcp(i), 100+2*i); got == (out.Errors[name] != nil) {
			t.Errorf("%s: arrives %t, error %v", name, got, out.Errors[name])
		}
	}
	again := newAgent() // after a restart
	if diff := cmp.Diff(len(left), len(commit(again).Errors)); diff != "" {
		t.Error(diff)
	}
	for _, name := range left {
		delete(in.Policies, name)
	}
	if out := commit(a); len(out.Errors) > 0 {
		t.Errorf("what fits: %v", out.Errors)
	}
}

// A change that the switch has no room for is refused, with those of its policies that are too many.
func TestChangeThatDoesNotFitIsRefused(t *testing.T) {
	for _, sw := range []string{"small", "standard"} {
		t.Run(sw, func(t *testing.T) {
			o := ebpf.Options{}
			if sw == "small" {
				o.Rules = 64
			}
			r := suite.NewRig(t, func(i instance.Instance) (datapath.Switch, error) {
				o := o
				o.Instance = i
				return ebpf.Open(context.Background(), o)
			})
			a := &Agent{Options: Options{Switch: r.Switch, Host: "h1"}}
			d := api.Document{
				Endpoints: map[string]api.EndpointSpec{"alice": {Netns: "alice", Interface: "eth0"}, "bob": {Netns: "bob", Interface: "eth0"}},
				Functions: map[string]api.FunctionSpec{"f": {Image: "wire"}},
				Chains:    map[string]api.ChainSpec{"web": {Path: "f"}},
				Policies:  map[string]api.PolicySpec{"first": {From: "alice", To: "bob", Match: []string{"udp"}, Chain: "web"}},
			}
			changed := api.Document{Policies: map[string]api.PolicySpec{}}
			for i := range 300 { // random enough: pairs of prefixes of all lengths
				p := api.PolicySpec{From: fmt.Sprintf("10.%d.0.0/%d", i%200, 17+i%16), To: fmt.Sprintf("11.0.%d.0/%d", i%250, 25+i%8), Match: []string{"tcp"}, Chain: "web", Priority: 1 + i}
				name := fmt.Sprintf("p%03d", i)
				d.Policies[name], changed.Policies[name] = p, p
			}
			got := a.CheckPolicies(d, changed)
			if sw == "standard" && len(got) > 0 {
				t.Errorf("got %v", got)
			}
			if sw == "small" && (len(got) != maxMisfits || got[0].Path == "first" || got[0].Hint == "") {
				t.Errorf("got %v", got)
			}
		})
	}
}
