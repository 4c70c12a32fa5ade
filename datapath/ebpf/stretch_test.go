package ebpf

import (
	"net/netip"
	"testing"

	"golang.org/x/sys/unix"

	"weir.dev/weir/bpf"
	"weir.dev/weir/datapath"
	"weir.dev/weir/datapath/suite"
	"weir.dev/weir/flow"
)

// settled has functions settle a flow of datagrams from alice to bob, each when it is given the first frame that those before let pass.
func (h *host) settled(t *testing.T, all ...*suite.Function) datapath.Flow {
	t.Helper()
	f := datapath.Flow{Protocol: unix.IPPROTO_UDP, VLAN: datapath.NoVLAN, Src: netip.MustParseAddrPort("10.9.0.1:9"), Dst: netip.MustParseAddrPort("10.9.0.2:1")}
	for _, fn := range all {
		h.alice.Send(t, h.datagram(9, 1))
		suite.Until(t, "the flow is settled", func() bool {
			n, err := h.Switch.(*Switch).SettleFlow(suite.Context(t), fn.Name, datapath.Settlement{Verdict: datapath.Pass, Flow: f})
			return err == nil && n == 1
		})
	}
	return f
}

// given is a flow's entry at port in of a function.
func (h *host) given(t *testing.T, name string, f datapath.Flow) (k bpf.SettleSettleKey, e bpf.SteerGiven) {
	t.Helper()
	fn := h.Switch.(*Switch).ports.fns[name]
	k = request(fn, datapath.Settlement{Flow: f}).Key
	k.Port = fn.Ports[0].Slot
	if err := h.table(t, name).Lookup(k, &e); err != nil {
		t.Fatal(err)
	}
	return k, e
}

// A frame that resumes at alice's port, and goes on straight into bob's chain, passes the functions of each chain by together.
func TestAStretchEndsWhereTheFrameResumes(t *testing.T) {
	h := newHost(t, Options{})
	n := 0
	h.speak(t, &n)
	var all []*suite.Function
	for _, name := range []string{"f1", "f2", "f3"} {
		all = append(all, h.Inline(datapath.Function{Name: name, Settles: true}))
	}
	lead := func(cookie uint64, stage flow.Stage, m flow.Match, op flow.Op, to flow.Port) flow.Rule {
		return flow.Rule{Cookie: cookie, Stage: stage, Match: m, Action: flow.Action{Op: op, Port: to}}
	}
	h.Commit(
		lead(1, flow.Ingress, flow.Match{InPort: h.alice.Port}, flow.Output, all[0].Ports.In),
		lead(2, flow.Ingress, flow.Match{InPort: all[0].Ports.Out}, flow.Output, all[1].Ports.In),
		lead(3, flow.Ingress, flow.Match{InPort: all[1].Ports.Out}, flow.Resume, h.alice.Port),
		lead(4, flow.Egress, flow.Match{OutPort: h.bob.Port}, flow.Output, all[2].Ports.In),
		lead(5, flow.Ingress, flow.Match{InPort: all[2].Ports.Out}, flow.Output, h.bob.Port))
	f := h.settled(t, all...)
	for range 5 {
		before := h.bob.Count()
		h.alice.Send(t, h.datagram(9, 1))
		suite.Until(t, "a frame arrives", func() bool { return h.bob.Count() > before })
	}
	if _, e := h.given(t, "f1", f); e.Stretch&stretchMask != 1 || e.AheadPackets == 0 {
		t.Errorf("%d functions in the stretch behind the first, want 1; %d frames have passed them by together, want some", e.Stretch&stretchMask, e.AheadPackets)
	}
}

// What another processor wrote in a tick that this one has not read yet is new: the verdict holds.
func TestAVerdictOfTheNextTickHolds(t *testing.T) {
	h := newHost(t, Options{})
	fw := h.Inline(datapath.Function{Name: "fw", Settles: true})
	h.Commit(
		flow.Rule{Cookie: 1, Stage: flow.Egress, Match: flow.Match{OutPort: h.bob.Port}, Action: flow.Action{Op: flow.Output, Port: fw.Ports.In}},
		flow.Rule{Cookie: 2, Match: flow.Match{InPort: fw.Ports.Out}, Action: flow.Action{Op: flow.Output, Port: h.bob.Port}})
	f := h.settled(t, fw)
	suite.Until(t, "the first frame is through the function", func() bool { return h.bob.Count() > 0 })
	const soon = 60 * 1000 // ticks: a minute
	for what, change := range map[string]func(*bpf.SteerGiven){
		"the flow's last frame": func(e *bpf.SteerGiven) { e.Last += soon }, "the verdict": func(e *bpf.SteerGiven) { e.Since += soon },
	} {
		k, e := h.given(t, "fw", f)
		was := e
		change(&e)
		if err := h.table(t, "fw").Put(k, e); err != nil {
			t.Fatal(err)
		}
		before, seen := h.bob.Count(), fw.Sockets["in"].Count()
		h.alice.Send(t, h.datagram(9, 1))
		suite.Until(t, "the frame goes somewhere", func() bool { return h.bob.Count() > before || fw.Sockets["in"].Count() > seen })
		if fw.Sockets["in"].Count() > seen {
			t.Errorf("%s is of a later tick: the function got the frame", what)
		}
		if n, err := h.Switch.(*Switch).SettleFlow(suite.Context(t), "fw", datapath.Settlement{Verdict: datapath.Pass, Flow: f}); err != nil || n != 1 {
			t.Errorf("%s is of a later tick: %d entries settled again, %v", what, n, err)
		}
		if err := h.table(t, "fw").Put(k, was); err != nil {
			t.Fatal(err)
		}
	}
}
