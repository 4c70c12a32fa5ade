package ebpf

import (
	"context"
	"testing"
	"time"

	"weir.dev/weir/datapath"
	"weir.dev/weir/datapath/suite"
	"weir.dev/weir/flow"
	"weir.dev/weir/instance"
)

func TestSmoke(t *testing.T) {
	t0 := time.Now()
	r := suite.NewRig(t, func(i instance.Instance) (datapath.Switch, error) {
		return Open(context.Background(), Options{Instance: i})
	})
	t.Log("open", time.Since(t0))
	alice, bob := r.Station("alice"), r.Station("bob")
	fw := r.Wire("fw")
	t0 = time.Now()
	r.Commit(
		flow.Rule{Cookie: 1, Priority: 10, Stage: flow.Egress, Match: flow.Match{InPort: alice.Port, OutPort: bob.Port, EtherType: 0x1234}, Action: flow.Action{Op: flow.Output, Port: fw.Ports.In}},
		flow.Rule{Cookie: 2, Priority: 10, Match: flow.Match{InPort: fw.Ports.Out}, Action: flow.Action{Op: flow.Output, Port: bob.Port}})
	t.Log("commit", time.Since(t0))
	frame := make([]byte, 64)
	copy(frame, bob.MAC[:])
	copy(frame[6:], alice.MAC[:])
	frame[12], frame[13] = 0x12, 0x34
	copy(frame[20:], "hello")
	alice.Send(t, frame)
	suite.Until(t, "bob", func() bool { return len(bob.Frames([]byte("hello"))) == 1 })
	if n := len(fw.Sockets["in"].Frames([]byte("hello"))); n != 1 {
		t.Fatal(n)
	}
	p, err := r.Switch.Probe(suite.Context(t), "fw")
	t.Log(p, err)
	t0 = time.Now()
	if err := r.Switch.(*Switch).Settle(suite.Context(t)); err != nil {
		t.Fatal(err)
	}
	t.Log("settle", time.Since(t0))
	alice.Send(t, frame)
	suite.Until(t, "bob", func() bool { return len(bob.Frames([]byte("hello"))) == 2 })
	ps, rs, err := r.Switch.Status(suite.Context(t))
	for _, p := range ps {
		t.Logf("%+v", p)
	}
	t.Logf("%+v", rs)
	t0 = time.Now()
	if err := r.Switch.Close(); err != nil {
		t.Fatal(err)
	}
	r.Reopen()
	t.Log("reopen", time.Since(t0))
	alice.Send(t, frame)
	suite.Until(t, "bob", func() bool { return len(bob.Frames([]byte("hello"))) == 3 })
}
