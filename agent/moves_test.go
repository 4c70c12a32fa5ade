package agent_test

import (
	"errors"
	"io"
	"slices"
	"strings"
	"sync"
	"testing"

	"weir.dev/weir/api"
	switchfake "weir.dev/weir/datapath/fake"
	"weir.dev/weir/image"
	"weir.dev/weir/manager"
	"weir.dev/weir/manager/ask"
)

// pair is two hosts of one manager.
type pair struct {
	t       *testing.T
	client  *api.Client
	hosts   map[string]*desk
	mu      sync.Mutex
	answers map[string]ask.Node
}

func newPair(t *testing.T, c image.Contract) *pair {
	t.Helper()
	dir := deskDir(t)
	p := &pair{t: t, hosts: map[string]*desk{}, answers: map[string]ask.Node{}}
	p.client = deskManager(t, dir, manager.Options{Node: func(host string) ask.Node {
		p.mu.Lock()
		defer p.mu.Unlock()
		return p.answers[host]
	}})
	for _, host := range []string{"h1", "h2"} {
		p.hosts[host] = newDeskAt(t, dir, host, p.client, switchfake.Options{}, with(c))
		p.reachable(host, true)
	}
	return p
}

// reachable says whether the manager can ask a host.
func (p *pair) reachable(host string, can bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.answers, host)
	if can {
		p.answers[host] = p.hosts[host].agent
	}
}

// move has the function fw up at a host.
func (p *pair) move(host string) {
	p.t.Helper()
	d := p.hosts[host]
	d.put("fw", api.FunctionSpec{Host: host})
	d.until("fw is up at "+host, func() bool {
		s := d.function("fw").Status
		return s.Healthy && s.Host == host
	})
}

// lead has a rule of the router lead to fw at a host, or none.
func (p *pair) lead(host string, to bool) {
	p.t.Helper()
	var spec api.AssignmentSpec
	if to {
		spec.Rules = []api.HostRule{{Cookie: "0000000000000001", Priority: 100, Stage: "ingress", Match: api.HostMatch{InPort: "function/fw/out"}, Action: api.HostAction{Op: "drop"}, Policy: "p"}}
	}
	p.hosts[host].must(nil, p.client.Fabric(p.t.Context(), api.FabricReport{Assignments: map[string]api.AssignmentSpec{host: spec}}))
	p.hosts[host].until("the assignment is in force", func() bool {
		a, err := p.client.Assignments().Get(p.t.Context(), host)
		return err == nil && a.Status.ObservedGeneration == a.Generation && a.Status.State == api.AssignmentInstalled
	})
}

// awayUntilGone moves the function fw from h1 to h2, where it is not up, and waits until nothing of it is at h1.
func (p *pair) awayUntilGone() {
	p.t.Helper()
	h1, h2 := p.hosts["h1"], p.hosts["h2"]
	p.move("h1")
	h2.sw.Hang("fw", true)
	h2.put("fw", api.FunctionSpec{Host: "h2"})
	h1.until("the former instance is gone", func() bool { list, err := h1.runtime.List(p.t.Context()); return err == nil && len(list) == 0 })
}

// What a function on another host knew comes with it: from the instance that still forwards, or from what that one left behind. Without it the function works all the same,
// and an event says why.
func aFunctionThatMovesTakesItsStateAlong(t *testing.T) {
	t.Parallel()
	keeps := image.Contract{Export: []string{"print", "sessions"}, Import: []string{"take", "13"}}
	t.Run("while rules lead to the former instance", func(t *testing.T) {
		t.Parallel()
		p := newPair(t, keeps)
		p.move("h1")
		p.lead("h1", true)
		p.move("h2")
		h1, h2 := p.hosts["h1"], p.hosts["h2"]
		if taken := h2.runtime.Taken(); !slices.Equal(taken, []string{"fw.1 sessions"}) {
			t.Errorf("h2 took %q", taken)
		}
		// A start after that, be it the function's or the agent's, asks for nothing more.
		h2.runtime.Crash("fw.1", 1)
		h2.until("it is up again", func() bool { s := h2.function("fw").Status; return s.Healthy && s.Restarts == 1 })
		h2.stop()
		h2.start()
		p.reachable("h2", true)
		h2.put("late", api.FunctionSpec{Host: "h2"}) // when it is up, the new agent has seen the other one
		h2.up("late")
		p.lead("h1", false)
		h1.until("the former instance is gone", func() bool { list, err := h1.runtime.List(t.Context()); return err == nil && len(list) == 0 })
		if taken := h2.runtime.Taken(); len(taken) != 1 || h2.tells("StateLost", "") {
			t.Errorf("h2 took %q", taken)
		}
		// And back.
		p.lead("h2", true)
		p.move("h1")
		if taken := h1.runtime.Taken(); !slices.Equal(taken, []string{"fw.1 sessions"}) {
			t.Errorf("h1 took %q", taken)
		}
	})
	t.Run("when the former instance is gone", func(t *testing.T) {
		t.Parallel()
		p := newPair(t, keeps)
		h1, h2 := p.hosts["h1"], p.hosts["h2"]
		p.move("h1")
		h2.sw.Hang("fw", true)
		h2.put("fw", api.FunctionSpec{Host: "h2"})
		h1.until("the former instance is gone", func() bool { list, err := h1.runtime.List(t.Context()); return err == nil && len(list) == 0 })
		h2.sw.Hang("fw", false)
		h2.up("fw")
		if taken := h2.runtime.Taken(); !slices.Equal(taken, []string{"fw.1 sessions"}) {
			t.Errorf("h2 took %q", taken)
		}
	})
	t.Run("a function that comes back before it went", func(t *testing.T) {
		t.Parallel()
		p := newPair(t, keeps)
		h1, h2 := p.hosts["h1"], p.hosts["h2"]
		p.move("h1")
		p.lead("h1", true)
		h2.sw.Hang("fw", true)
		h2.put("fw", api.FunctionSpec{Host: "h2"})
		h2.until("h2 has begun", func() bool { list, err := h2.runtime.List(t.Context()); return err == nil && len(list) == 1 })
		p.move("h1")
		h1.up("fw")
		if f := h1.function("fw"); f.Placement.FormerHost != "" || len(h1.runtime.Taken())+len(h2.runtime.Taken()) > 0 || h1.tells("StateLost", "") {
			t.Errorf("placement %+v; h1 took %q, h2 %q", f.Placement, h1.runtime.Taken(), h2.runtime.Taken())
		}
	})
	for name, between := range map[string]func(p *pair){
		"a function that comes back after it went": func(*pair) {},
		"one whose state the other host took, of which the manager does not know": func(p *pair) {
			h1 := p.hosts["h1"]
			state, _, err := h1.agent.State(p.t.Context(), "fw", h1.function("fw").UID)
			h1.must(nil, err)
			got, err := io.ReadAll(state)
			if err := errors.Join(err, state.Close()); err != nil || string(got) != "sessions\n" {
				p.t.Errorf("h2 is given %q, %v", got, err)
			}
		},
		"one that goes once more before it was up": func(p *pair) {
			h1, h2 := p.hosts["h1"], p.hosts["h2"]
			h1.sw.Hang("fw", true)
			h1.put("fw", api.FunctionSpec{Host: "h1"})
			h1.until("h1 has begun anew", func() bool { list, err := h1.runtime.List(p.t.Context()); return err == nil && len(list) == 1 })
			h1.runtime.Fail("Exec", errors.New("this instance has no state yet"))
			h2.put("fw", api.FunctionSpec{Host: "h2"})
			h1.until("h1 has ended it", func() bool { list, err := h1.runtime.List(p.t.Context()); return err == nil && len(list) == 0 })
			h1.runtime.Fail("Exec", nil)
			h1.sw.Hang("fw", false)
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := newPair(t, keeps)
			p.awayUntilGone()
			between(p)
			p.move("h1")
			h1 := p.hosts["h1"]
			if taken := h1.runtime.Taken(); len(taken) != 1 || !strings.HasSuffix(taken[0], " sessions") || h1.tells("StateLost", "") {
				t.Errorf("h1 took %q", taken)
			}
			if f := h1.function("fw"); f.Placement.FormerHost != "" {
				t.Errorf("it is up: %+v", f.Placement)
			}
		})
	}
	t.Run("one that comes back to an agent that has lost what it left", func(t *testing.T) {
		t.Parallel()
		p := newPair(t, keeps)
		p.awayUntilGone()
		h1 := p.hosts["h1"]
		h1.stop()
		h1.start()
		p.reachable("h1", true)
		p.move("h1")
		h1.until("an event says that the state is lost", func() bool { return h1.tells("StateLost", "host h1 has nothing of function fw any more") })
	})
	for name, x := range map[string]struct {
		contract image.Contract
		begin    func(p *pair)
		lost     string // "": nothing is
	}{
		"nothing to hand over":        {image.Contract{Export: []string{"print"}, Import: nil}, nil, ""},
		"an export that fails":        {image.Contract{Export: []string{"exit", "3"}, Import: []string{"take", "13"}}, nil, "export of the former instance: exit code 3"},
		"an import that refuses":      {image.Contract{Export: []string{"print", "13"}, Import: []string{"take", "13"}}, nil, "import by the new instance: exit code 1: refused: 13 is not for me"},
		"a host that cannot be asked": {keeps, func(p *pair) { p.reachable("h1", false) }, `the agent of host "h1" cannot be asked`},
		"a runtime that fails":        {keeps, func(p *pair) { p.hosts["h1"].runtime.Fail("Exec", errors.New("the launcher died")) }, "export of the former instance: the launcher died"},
		"an agent that knows nothing of it": {keeps, func(p *pair) {
			h := p.hosts["h1"]
			h.stop()
			h.runtime.Crash("fw.1", 1)
			h.must(nil, h.runtime.Delete(p.t.Context(), "fw.1"))
			p.hosts["h2"].put("fw", api.FunctionSpec{Host: "h2"})
			h.start()
			p.reachable("h1", true)
		}, "host h1 has nothing of function fw any more"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := newPair(t, x.contract)
			p.move("h1")
			p.lead("h1", true)
			if x.begin != nil {
				x.begin(p)
			}
			p.move("h2")
			h2 := p.hosts["h2"]
			if x.lost == "" {
				if h2.tells("StateLost", "") {
					t.Error("an event says that state is lost")
				}
				return
			}
			h2.until("an event says why the state is lost", func() bool { return h2.tells("StateLost", x.lost) })
		})
	}
}
