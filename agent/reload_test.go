package agent_test

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"weir.dev/weir/api"
	"weir.dev/weir/container"
	"weir.dev/weir/datapath"
	switchfake "weir.dev/weir/datapath/fake"
	"weir.dev/weir/image"
	imagefake "weir.dev/weir/image/fake"
)

// with has an image "firewall" of a contract.
func with(c image.Contract) func(*desk) {
	return func(d *desk) {
		c.Probe = true
		d.options.Images = imagefake.Store{Root: d.options.Instance.Root, Images: map[string]image.Image{"firewall": {Args: []string{"wait"}, Contract: c}}}
	}
}

func port(n int) api.FunctionSpec { return api.FunctionSpec{Config: map[string]any{"port": n}} }

// finds is the config that the function's instance in force finds.
func (d *desk) finds(box string) string {
	b, err := os.ReadFile(filepath.Join(d.options.Instance.Run, "sandboxes", box, "etc", "config.json"))
	if err != nil {
		d.t.Fatal(err)
	}
	return string(b)
}

// A changed config is given to the instance that runs. One that it refuses changes nothing, and its condition says why; a crash of the agent in between asks again.
func aConfigIsTakenWithoutANewInstance(t *testing.T) {
	d := newDesk(t, switchfake.Options{}, with(image.Contract{Reload: []string{"take", "13"}}))
	d.put("fw", port(1))
	before := d.up("fw").Status
	d.put("fw", port(2))
	if after := d.up("fw").Status; after.PID != before.PID || after.Restarts != 0 || d.finds("fw.1") != `{"port":2}` {
		t.Errorf("before %+v, after %+v, the function finds %s", before, after, d.finds("fw.1"))
	}
	d.put("fw", port(13))
	d.until("its status says that it refuses the config", func() bool {
		s := d.function("fw").Status
		return s.Healthy && strings.Contains(s.Message, "refuses the config, the former one stays in force: 13 is not for me")
	})
	if f := d.function("fw"); f.Status.PID != before.PID || f.Status.ObservedGeneration == f.Generation || d.finds("fw.1") != `{"port":2}` {
		t.Errorf("refused: %+v, the function finds %s", f.Status, d.finds("fw.1"))
	}
	d.stop()
	d.start()
	d.until("a new agent says so, too", func() bool { return strings.Contains(d.function("fw").Status.Message, "13 is not for me") })
	d.put("fw", port(2))
	d.until("nothing is left to say", func() bool {
		f := d.function("fw")
		return f.Status.Message == "" && f.Status.ObservedGeneration == f.Generation && f.Status.PID == before.PID
	})
	d.stop()
	d.put("fw", port(3))
	d.start()
	if after := d.up("fw").Status; after.PID != before.PID || d.finds("fw.1") != `{"port":3}` {
		t.Errorf("changed while the agent was away: %+v, the function finds %s", after, d.finds("fw.1"))
	}
	// What is more than a config makes a new instance, and so does a restart.
	more := port(3)
	more.Env = map[string]string{"A": "b"}
	d.put("fw", more)
	d.until("it is made anew", func() bool {
		f := d.function("fw")
		return f.Status.PID != before.PID && f.Status.ObservedGeneration == f.Generation
	})
	for _, taken := range d.runtime.Taken() {
		if !strings.HasPrefix(taken, "fw.1 ") {
			t.Errorf("told: %s", taken)
		}
	}
}

// settling is a switch that settles flows.
type settling struct {
	*switchfake.Switch
	fails atomic.Bool
	anew  atomic.Int64
}

func (s *settling) Abilities() datapath.Abilities {
	a := s.Switch.Abilities()
	a.Settles = true
	return a
}

func (s *settling) AddFunction(ctx context.Context, f datapath.Function) (datapath.Ports, error) {
	f.Settles = false // the switch in memory does not
	return s.Switch.AddFunction(ctx, f)
}

func (s *settling) SettleFlow(context.Context, string, datapath.Settlement) (int, error) {
	return 1, nil
}

// SettledFlows has as many as are asked for, and one more.
func (s *settling) SettledFlows(_ context.Context, function string, q datapath.SettledQuery) (found datapath.SettledFlows, err error) {
	for i := range q.Limit {
		found.Flows = append(found.Flows, datapath.SettledFlow{
			At: "in", Verdict: datapath.Discard, Age: time.Duration(1+i) * time.Second, Missed: datapath.Counter{Packets: 1, Bytes: uint64(100 - i)}, Generation: 5,
			Flow: datapath.Flow{Protocol: unix.IPPROTO_ICMP, Src: netip.MustParseAddrPort("10.9.0.1:7"), Dst: netip.MustParseAddrPort("10.9.0.2:7"), VLAN: datapath.NoVLAN},
		})
	}
	found.Total = q.Limit + 1
	return found, nil
}

func (s *settling) UnsettleFlows(context.Context, string) error {
	if s.fails.Swap(false) {
		return errors.New("the switch is busy")
	}
	s.anew.Add(1)
	return nil
}

// A config is told to be in force only when flows that were settled by the former one are judged again.
func flowsAreJudgedAgainAfterAReload(t *testing.T) {
	s := &settling{}
	d := newDesk(t, switchfake.Options{}, with(image.Contract{Reload: []string{"take", "13"}, Settles: true}), func(d *desk) {
		s.Switch = d.sw
		d.options.Switch = s
	})
	d.put("fw", port(1))
	d.until("it has a namespace", func() bool { // a file stands for it
		return os.WriteFile(filepath.Join(d.options.Instance.Run, "sandboxes", "fw.1", "net"), nil, 0o600) == nil
	})
	before := d.up("fw").Status
	for n := int64(1); n < 4; n++ {
		s.fails.Store(n == 2)
		d.put("fw", port(1+int(n)))
		if after := d.up("fw").Status; after.PID != before.PID || s.anew.Load() != n {
			t.Errorf("after reload %d its flows were judged anew %d times; before %+v, after %+v", n, s.anew.Load(), before, after)
		}
	}
	flows, err := d.agent.Flows(t.Context(), "fw", api.FlowOptions{Limit: 2})
	if err != nil || flows.Total != 3 || len(flows.Flows) != 2 || flows.Function != "fw" {
		t.Errorf("%+v, %v", flows, err)
	} else if f := flows.Flows[0]; f.Check() != "" || f.Verdict != api.FlowDrop || f.Protocol != "icmp" || *f.EchoID != 7 || f.SourcePort != 0 || f.VLAN != 0 || !f.Since.Equal(flows.Time.Add(-time.Second)) {
		t.Errorf("%+v", f)
	}
	d.put("fw", port(13))
	d.until("it is refused", func() bool { return strings.Contains(d.function("fw").Status.Message, "13 is not for me") })
	if s.anew.Load() != 3 {
		t.Error("a refused config takes verdicts back")
	}
}

// Whether a config is in force of which no answer came is not known: a new instance has it.
func aReloadWithoutAnAnswerMakesANewInstance(t *testing.T) {
	d := newDesk(t, switchfake.Options{}, with(image.Contract{Reload: []string{"take", "13"}}))
	d.put("fw", port(1))
	before := d.up("fw").Status
	d.runtime.Fail("Exec", errors.New("the launcher died"))
	d.put("fw", port(2))
	if after := d.up("fw").Status; after.PID == before.PID || d.finds("fw.2") != `{"port":2}` {
		t.Errorf("before %+v, after %+v", before, after)
	}
	d.until("an event says so", func() bool { return d.tells("ReloadFailed", "the launcher died") })
}

func (d *desk) tells(reason, text string) bool {
	l, err := d.client.Events().List(d.t.Context(), api.ListOptions{})
	return err == nil && slices.ContainsFunc(l.Items, func(e api.Event) bool { return e.Reason == reason && strings.Contains(e.Message, text) })
}

// What the former instance exports the new one imports before frames go there, also if the former one has to end first. Without it the new one works all the same, and an
// event says so.
func aNewInstanceGetsTheStateOfTheFormerOne(t *testing.T) {
	for name, c := range map[string]image.Contract{
		"beside":   {Export: []string{"print", "sessions"}, Import: []string{"take", "13"}},
		"recreate": {Export: []string{"print", "sessions"}, Import: []string{"take", "13"}, Recreate: true},
	} {
		t.Run(name, func(t *testing.T) {
			d := newDesk(t, switchfake.Options{}, with(c))
			d.put("fw", port(1))
			d.up("fw")
			d.put("fw", port(2))
			d.up("fw")
			if taken := d.runtime.Taken(); !slices.Equal(taken, []string{"fw.2 sessions"}) {
				t.Errorf("taken: %q", taken)
			}
			d.until("one instance is left", func() bool { list, err := d.runtime.List(t.Context()); return err == nil && len(list) == 1 })
			d.runtime.Fail("Exec", errors.New("it hangs"))
			d.put("fw", port(3))
			d.up("fw")
			d.until("an event says that the state is lost", func() bool { return d.tells("StateLost", "export of the former instance: it hangs") })
		})
	}
}

// Functions that hang while they take a config, as many as there are places, hold nobody's state up.
func reloadsThatHangHoldNoHandOverUp(t *testing.T) {
	hangs := image.Image{Args: []string{"wait"}, Contract: image.Contract{Probe: true, Reload: []string{"wait"}}}
	keeps := image.Image{Args: []string{"wait"}, Contract: image.Contract{Probe: true, Export: []string{"print", "sessions"}, Import: []string{"take", "13"}}}
	d := newDesk(t, switchfake.Options{}, func(d *desk) {
		d.options.Images = imagefake.Store{Root: d.options.Instance.Root, Images: map[string]image.Image{"hangs": hangs, "keeps": keeps}}
	})
	config := func(n int) api.FunctionSpec { s := port(n); s.Image = "hangs"; return s }
	hanging := 2*container.AtOnce() + 1
	for i := range hanging {
		d.put(fmt.Sprint("hangs", i), config(1))
	}
	d.put("keeps", api.FunctionSpec{Image: "keeps"})
	for i := range hanging {
		d.up(fmt.Sprint("hangs", i))
	}
	d.up("keeps")
	for i := range hanging {
		d.put(fmt.Sprint("hangs", i), config(2))
	}
	d.until("all places are taken", func() bool { return d.runtime.Waiting() == hanging-1 })
	d.put("keeps", api.FunctionSpec{Image: "keeps", Env: map[string]string{"A": "b"}})
	d.until("the new instance has the state", func() bool { return slices.Equal(d.runtime.Taken(), []string{"keeps.2 sessions"}) })
}
