package ebpf

import (
	"bytes"
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"testing"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"weir.dev/weir/bpf"
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

// Of many flows that a function has settled the biggest or the newest are listed, and none whose verdict has ended.
func TestSettledFlowsAreListed(t *testing.T) {
	h := newHost(t, Options{Settled: 4096})
	s := h.Switch.(*Switch)
	fw := h.Inline(datapath.Function{Name: "fw", Settles: true})
	h.Commit(
		flow.Rule{Cookie: 1, Stage: flow.Egress, Match: flow.Match{OutPort: h.bob.Port}, Action: flow.Action{Op: flow.Output, Port: fw.Ports.In}},
		flow.Rule{Cookie: 2, Match: flow.Match{InPort: fw.Ports.Out}, Action: flow.Action{Op: flow.Output, Port: h.bob.Port}})
	of := func(port uint16) datapath.Settlement {
		return datapath.Settlement{Verdict: datapath.Pass, OneWay: true, Flow: datapath.Flow{Protocol: unix.IPPROTO_UDP, VLAN: datapath.NoVLAN,
			Src: netip.AddrPortFrom(netip.MustParseAddr("10.9.0.1"), port), Dst: netip.MustParseAddrPort("10.9.0.2:9")}}
	}
	const many, first = 1500, 10000
	for i := range uint16(many) {
		h.alice.Send(t, h.datagram(first+i, 9))
		suite.Until(t, "a flow is settled", func() bool { _, err := s.SettleFlow(suite.Context(t), "fw", of(first+i)); return err == nil })
	}
	// Two flows have frames that do not enter the function: one has three, one two.
	before := h.bob.Count()
	for _, port := range []uint16{first + 700, first + 700, first + 700, first + 30, first + 30} {
		h.alice.Send(t, h.datagram(port, 9))
	}
	suite.Until(t, "they arrive", func() bool { return h.bob.Count() >= before+5 })
	list := func(q datapath.SettledQuery) datapath.SettledFlows {
		t.Helper()
		found, err := s.SettledFlows(suite.Context(t), "fw", q)
		if err != nil || len(found.Flows) > max(q.Limit, 1) {
			t.Fatalf("%d flows, %v", len(found.Flows), err)
		}
		return found
	}
	found := list(datapath.SettledQuery{Limit: 2})
	length := uint64(len(h.datagram(1, 1)))
	var got []datapath.Counter
	for _, f := range found.Flows {
		got = append(got, f.Missed)
	}
	if want := []datapath.Counter{{Packets: 3, Bytes: 3 * length}, {Packets: 2, Bytes: 2 * length}}; found.Total != many || !slices.Equal(got, want) || found.Flows[0].Flow != of(first+700).Flow {
		t.Errorf("the biggest of %d: %+v", found.Total, found.Flows)
	}
	newest := list(datapath.SettledQuery{Limit: 1000, Newest: true})
	if !slices.IsSortedFunc(newest.Flows, func(a, b datapath.SettledFlow) int { return cmp.Compare(a.Age, b.Age) }) || newest.Total != many || len(newest.Flows) != 1000 ||
		newest.Flows[0].Age > newest.Flows[999].Age || !slices.ContainsFunc(newest.Flows, func(f datapath.SettledFlow) bool { return f.Flow == of(first+many-1).Flow }) {
		t.Errorf("the newest of %d: %+v to %+v", newest.Total, newest.Flows[0], newest.Flows[len(newest.Flows)-1])
	}

	// A verdict that is too old, a flow that is idle for too long, and one of another instance are not there.
	flows, f := h.table(t, "fw"), s.ports.fns["fw"]
	for i, change := range []func(*bpf.SteerGiven){
		func(e *bpf.SteerGiven) { e.Since -= settleMost + 1 }, func(e *bpf.SteerGiven) { e.Last -= settleIdle + 1 }, func(e *bpf.SteerGiven) { e.Generation += 10 },
		func(e *bpf.SteerGiven) { e.State &^= verdictMask },
	} {
		k, e := request(f, of(first+uint16(i))).Key, bpf.SteerGiven{}
		k.Port = f.Ports[0].Slot
		if err := flows.Lookup(k, &e); err != nil {
			t.Fatal(err)
		}
		change(&e)
		if err := flows.Put(k, e); err != nil {
			t.Fatal(err)
		}
		if n := list(datapath.SettledQuery{Limit: 1}).Total; n != many-1-i {
			t.Errorf("%d flows are settled when %d verdicts have ended", n, 1+i)
		}
	}
	was := found.Flows[0].Generation
	if err := s.UnsettleFlows(suite.Context(t), "fw"); err != nil {
		t.Fatal(err)
	}
	h.alice.Send(t, h.datagram(first, 9))
	suite.Until(t, "a flow is settled again", func() bool { _, err := s.SettleFlow(suite.Context(t), "fw", of(first)); return err == nil })
	if found := list(datapath.SettledQuery{Limit: 5}); found.Total != 1 || found.Flows[0].Generation != was+1 || found.Flows[0].Missed != (datapath.Counter{}) {
		t.Errorf("after all was taken back, generation %d: %+v", was, found)
	}
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
	const bar = 191 // bpf/weir.h: SETTLE_BAR
	tick := func() uint64 {
		at, err := coarse()
		if err != nil {
			t.Fatal(err)
		}
		return at
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

// The sum of a whole packet that a device has given (CHECKSUM_COMPLETE) is that of the rewritten packet behind a rewrite.
func TestRewritesKeepTheSumOfThePacket(t *testing.T) {
	h := newHost(t, Options{})
	s := h.Switch.(*Switch)
	fw := h.Inline(datapath.Function{Name: "fw", Settles: true})
	h.Commit(
		flow.Rule{Cookie: 1, Match: flow.Match{InPort: h.alice.Port}, Action: flow.Action{Op: flow.Output, Port: fw.Ports.In}},
		flow.Rule{Cookie: 2, Match: flow.Match{InPort: fw.Ports.Out}, Action: flow.Action{Op: flow.Output, Port: h.bob.Port}})
	skb := make([]byte, 192) // struct __sk_buff
	binary.NativeEndian.PutUint32(skb[40:], uint32(h.alice.Port))
	run := func(frame []byte, flags uint32) ([]byte, error) {
		o := ebpf.RunOptions{Data: frame, DataOut: make([]byte, len(frame)+256), Context: skb, Flags: flags}
		return o.DataOut, h.Host.Do(func() error {
			verdict, err := s.tables.programs.IngressTcx.Run(&o)
			if err == nil && verdict != 7 { // TC_ACT_REDIRECT
				err = fmt.Errorf("verdict %d", int32(verdict))
			}
			return err
		})
	}
	const complete = 4 // BPF_F_TEST_SKB_CHECKSUM_COMPLETE, from Linux 6.11 on
	for name, tt := range map[string]struct {
		proto    uint8
		checksum [2]byte
	}{
		"TCP": {unix.IPPROTO_TCP, [2]byte{0x12, 0x34}}, "UDP": {unix.IPPROTO_UDP, [2]byte{0x12, 0x34}}, "UDP without a checksum": {unix.IPPROTO_UDP, [2]byte{}},
	} {
		for _, ends := range [][3]string{{"10.9.0.1:4000", "10.9.0.2:80", "192.0.2.77:50001"}, {"[fd57::1]:4000", "[fd57::2]:80", "[2001:db8::abcd]:50001"}} {
			for _, target := range []bool{false, true} {
				what := fmt.Sprint(name, " from ", ends[0], ", the target: ", target)
				f := datapath.Flow{Protocol: tt.proto, Src: netip.MustParseAddrPort(ends[0]), Dst: netip.MustParseAddrPort(ends[1]), VLAN: datapath.NoVLAN}
				to := netip.MustParseAddrPort(ends[2])
				frame := h.packet(f, tt.checksum)
				if err := s.UnsettleFlows(suite.Context(t), "fw"); err != nil { // the flow has another rewrite
					t.Fatal(err)
				}
				if _, err := run(frame, 0); err != nil {
					t.Fatal(what, err)
				}
				if n, err := s.SettleFlow(suite.Context(t), "fw", datapath.Settlement{Verdict: datapath.Pass, OneWay: true, At: "in", Flow: f,
					Rewrite: &datapath.Rewrite{Target: target, To: to}}); n != 1 || err != nil {
					t.Fatal(what, n, err)
				}
				out, err := run(frame, complete)
				if errors.Is(err, unix.EINVAL) {
					t.Log("this kernel cannot try sums of whole packets")
					out, err = run(frame, 0)
				}
				if err != nil {
					t.Errorf("%s: %v (EBADMSG: the sum is not that of the packet)", what, err)
					continue
				}
				if f.Src = to; target {
					f.Src, f.Dst = netip.MustParseAddrPort(ends[0]), to
				}
				want, n := h.packet(f, tt.checksum), 14+40+4 // up to the ports
				if to.Addr().Is4() {
					n = 14 + 20 + 4
					copy(want[14+10:14+12], out[14+10:]) // the checksum
				}
				if !bytes.Equal(out[:n], want[:n]) {
					t.Errorf("%s: % x, want % x", what, out[:n], want[:n])
				}
			}
		}
	}
}

// packet of a flow of TCP or UDP from alice to bob.
func (h *host) packet(f datapath.Flow, checksum [2]byte) []byte {
	upper := binary.BigEndian.AppendUint16(binary.BigEndian.AppendUint16(nil, f.Src.Port()), f.Dst.Port())
	if f.Protocol == unix.IPPROTO_TCP {
		upper = append(upper, 0, 0, 0, 1, 0, 0, 0, 1, 0x50, 0x10, 0, 9, checksum[0], checksum[1], 0, 0)
	} else {
		upper = append(upper, 0, 8+30, checksum[0], checksum[1])
	}
	upper = append(upper, bytes.Repeat([]byte{'x'}, 30)...)
	b := append(append([]byte{}, h.bob.MAC[:]...), h.alice.MAC[:]...)
	if f.Src.Addr().Is4() {
		b = append(b, 8, 0, 0x45, 0, 0, 20+byte(len(upper)), 0, 0, 0x40, 0, 64, f.Protocol, 0, 0)
	} else {
		b = append(b, 0x86, 0xdd, 0x60, 0, 0, 0, 0, byte(len(upper)), f.Protocol, 64)
	}
	return append(append(append(b, f.Src.Addr().AsSlice()...), f.Dst.Addr().AsSlice()...), upper...)
}
