package ebpf

import (
	"context"
	"encoding/binary"
	"errors"
	"net/netip"
	"testing"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"weir.dev/weir/datapath"
	"weir.dev/weir/datapath/suite"
	"weir.dev/weir/flow"
)

// datagram from alice to bob.
func (h *host) datagram(src, dst uint16) []byte {
	b := append(append([]byte{}, h.bob.MAC[:]...), h.alice.MAC[:]...)
	b = append(b, 8, 0, 0x45, 0, 0, 36, 0, 0, 0x40, 0, 64, 17, 0, 0, 10, 9, 0, 1, 10, 9, 0, 2)
	b = binary.BigEndian.AppendUint16(binary.BigEndian.AppendUint16(b, src), dst)
	return append(b, 0, 16, 0, 0, 'd', 'a', 't', 'a', 'g', 'r', 'a', 'm')
}

// table of a function.
func (h *host) table(t *testing.T, name string) *ebpf.Map {
	t.Helper()
	s := h.Switch.(*Switch)
	var id ebpf.MapID
	if err := s.tables.maps.SteerMaps.Settled.Lookup(uint32(s.ports.fns[name].Slot), &id); err != nil {
		t.Fatal(err)
	}
	m, err := ebpf.NewMapFromID(id)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { m.Close() })
	return m
}

// entries of a function's table.
func (h *host) entries(t *testing.T, name string) (n int) {
	t.Helper()
	m := h.table(t, name)
	key, value := make([]byte, m.KeySize()), make([]byte, m.ValueSize())
	for it := m.Iterate(); it.Next(&key, &value); {
		n++
	}
	if uint32(n) > m.MaxEntries() {
		t.Errorf("%d entries in a table of %d", n, m.MaxEntries())
	}
	return n
}

// A flood of flows fills its function's table and no more, and pushes out none of another function's flows. Functions beyond the bound settle none.
func TestAFloodOfFlowsIsBounded(t *testing.T) {
	h := newHost(t, Options{Settled: 1024, settlers: 2})
	s := h.Switch.(*Switch)
	calm := h.Inline(datapath.Function{Name: "calm", Settles: true})
	rush := h.Inline(datapath.Function{Name: "rush", Settles: true})
	late := h.Inline(datapath.Function{Name: "late", Settles: true})
	udp := func(port uint16, f *suite.Function) []flow.Rule {
		return []flow.Rule{
			{Cookie: uint64(port), Stage: flow.Egress, Match: flow.Match{OutPort: h.bob.Port, EtherType: flow.EtherTypeIPv4, Proto: unix.IPPROTO_UDP,
				DstPorts: flow.PortRange{First: port, Last: port}}, Action: flow.Action{Op: flow.Output, Port: f.Ports.In}},
			{Cookie: uint64(port) + 1000, Match: flow.Match{InPort: f.Ports.Out}, Action: flow.Action{Op: flow.Output, Port: h.bob.Port}},
		}
	}
	h.Commit(append(append(udp(1, calm), udp(2, rush)...), udp(3, late)...)...)
	at := func(port uint16) netip.AddrPort {
		return netip.AddrPortFrom(netip.MustParseAddr("10.9.0.1"), port)
	}
	settle := func(f *suite.Function, src, dst uint16) error {
		_, err := s.SettleFlow(suite.Context(t), f.Name, datapath.Settlement{Verdict: datapath.Pass, Flow: datapath.Flow{Protocol: unix.IPPROTO_UDP,
			Src: at(src), Dst: netip.AddrPortFrom(netip.MustParseAddr("10.9.0.2"), dst), VLAN: datapath.NoVLAN}})
		return err
	}
	h.alice.Send(t, h.datagram(9, 1))
	suite.Until(t, "a flow is given", func() bool { return settle(calm, 9, 1) == nil })
	suite.Until(t, "its function sees it", func() bool { return calm.Sockets["in"].Count() > 0 })
	seen := calm.Sockets["in"].Count()
	const many = 20000
	for i := range uint16(many) {
		h.alice.Send(t, h.datagram(10000+i, 2))
	}
	suite.Until(t, "the flood is known", func() bool { return h.entries(t, "rush") >= 1024/2 })
	suite.Until(t, "the last flow of the flood can be settled", func() bool {
		h.alice.Send(t, h.datagram(10000+many-1, 2))
		return settle(rush, 10000+many-1, 2) == nil
	})
	if err := settle(rush, 10000, 2); !errors.Is(err, datapath.ErrNotGiven) {
		t.Errorf("the first flow of the flood: %v", err)
	}
	if n := h.entries(t, "calm"); n != 1 {
		t.Errorf("the other function has %d entries, want 1", n)
	}
	before := h.bob.Count()
	h.alice.Send(t, h.datagram(9, 1))
	suite.Until(t, "the settled flow arrives", func() bool { return h.bob.Count() > before })
	if n := calm.Sockets["in"].Count(); n != seen {
		t.Errorf("the function saw %d frames of a flow that it had settled before another one's flood", n-seen)
	}

	h.alice.Send(t, h.datagram(9, 3))
	suite.Until(t, "the third function works", func() bool { return late.Sockets["in"].Count() > 0 })
	if err := settle(late, 9, 3); !errors.Is(err, datapath.ErrFull) {
		t.Errorf("a function beyond the bound: %v", err)
	}
	if err := h.Switch.Remove(suite.Context(t), "function/rush"); err != nil {
		t.Fatal(err)
	}
	if _, err := s.AddFunction(suite.Context(t), late.F); err != nil {
		t.Fatal(err)
	}
	suite.Until(t, "there is room again", func() bool {
		h.alice.Send(t, h.datagram(9, 3))
		return settle(late, 9, 3) == nil
	})
}

// Nothing that takes a verdict back at the same moment shortens the time after a SYN in which none is taken.
func TestTheBarOfASYNStands(t *testing.T) {
	h := newHost(t, Options{})
	s := h.Switch.(*Switch)
	fw := h.Inline(datapath.Function{Name: "fw", Settles: true})
	h.Commit(
		flow.Rule{Cookie: 1, Stage: flow.Egress, Match: flow.Match{OutPort: h.bob.Port}, Action: flow.Action{Op: flow.Output, Port: fw.Ports.In}},
		flow.Rule{Cookie: 2, Match: flow.Match{InPort: fw.Ports.Out}, Action: flow.Action{Op: flow.Output, Port: h.bob.Port}})
	f := datapath.Flow{Protocol: unix.IPPROTO_TCP, Src: netip.MustParseAddrPort("10.9.0.1:9"), Dst: netip.MustParseAddrPort("10.9.0.2:9"), VLAN: datapath.NoVLAN}
	b := append(append([]byte{}, h.bob.MAC[:]...), h.alice.MAC[:]...)
	b = append(b, 8, 0, 0x45, 0, 0, 40, 0, 0, 0x40, 0, 64, 6, 0, 0, 10, 9, 0, 1, 10, 9, 0, 2, 0, 9, 0, 9, 0, 0, 0, 0, 0, 0, 0, 0, 0x50, 2, 0, 0, 0, 0, 0, 0)
	h.alice.Send(t, b)
	suite.Until(t, "the function sees the flow", func() bool { return fw.Sockets["in"].Count() > 0 })
	over := make(chan error, 1)
	ctx, stop := context.WithCancel(suite.Context(t))
	defer stop()
	go func() {
		for ctx.Err() == nil {
			if _, err := s.SettleFlow(ctx, "fw", datapath.Settlement{Verdict: datapath.Judge, Flow: f}); err != nil && ctx.Err() == nil {
				over <- err
				return
			}
		}
		over <- nil
	}()
	key, err := binary.Append(nil, binary.NativeEndian, request(s.ports.fns["fw"], datapath.Settlement{Flow: f}).Key)
	if err != nil {
		t.Fatal(err)
	}
	binary.NativeEndian.PutUint16(key, s.ports.fns["fw"].Ports[0].Slot)
	const shift, bar = 20, 191 // bpf/weir.h: TICK_SHIFT, SETTLE_BAR
	tick := func() uint64 {
		var at unix.Timespec
		if err := unix.ClockGettime(unix.CLOCK_MONOTONIC_COARSE, &at); err != nil {
			t.Fatal(err)
		}
		return uint64(at.Nano()) >> shift
	}
	flows := h.table(t, "fw")
	for begun := tick(); tick()-begun < 2000; {
		last := tick()
		suite.Until(t, "the time goes on", func() bool { return tick() > last })
		seen, now := fw.Sockets["in"].Count(), tick()
		h.alice.Send(t, b)
		suite.Until(t, "the function sees a SYN", func() bool { return fw.Sockets["in"].Count() > seen })
		value, err := flows.LookupBytes(key)
		if err != nil || value == nil {
			t.Fatal(value, err)
		}
		if until := binary.NativeEndian.Uint64(value) >> 8; until < now+bar { // VERDICT_BITS
			t.Fatalf("a SYN at %d bars verdicts until %d, want %d", now, until, now+bar)
		}
	}
	stop()
	if err := <-over; err != nil {
		t.Error(err)
	}
}
