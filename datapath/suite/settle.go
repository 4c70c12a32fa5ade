package suite

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"weir.dev/weir/datapath"
	"weir.dev/weir/flow"
)

// settling is a chain of functions of which some settle flows, between two stations.
type settling struct {
	*Rig
	t          testing.TB
	s          datapath.Settler
	alice, bob *Station
	n          int
}

// testSettled: a function that has settled a flow does not see its frames, and all others as before.
func testSettled(t *testing.T, open Factory) {
	r := NewRig(t, open)
	s, is := r.Switch.(datapath.Settler)
	if !r.Switch.Abilities().Settles {
		if is {
			if _, err := s.SettleFlow(Context(t), "fw", pass(echo)); err == nil {
				t.Error("its abilities do not name that functions settle flows, and it settles one")
			}
		}
		t.Log("on this switch functions settle no flows")
		return
	}
	if !is {
		t.Fatal("it is no Settler")
	}
	w := &settling{Rig: r, t: t, s: s, alice: r.Station("alice"), bob: r.Station("bob")}
	fw := r.Inline(datapath.Function{Name: "fw", Settles: true})
	other := r.Inline(datapath.Function{Name: "other"})
	idle := r.Inline(datapath.Function{Name: "idle", Settles: true})
	chain := policy{mode: "exhaustive", from: w.alice, to: w.bob, chain: []hop{{fn: fw}, {fn: other}}, cookie: 1}
	w.Commit(chain.rules()...)

	w.flows(fw, other, idle)
	w.verdicts(fw)
	w.rewrites(fw, other)
	w.connections(fw)
	w.oddBeginnings(fw)
	w.unkeyed(fw)
	w.lives(fw, chain)
	w.taps(chain)
	if _, err := r.Switch.Probe(Context(t), "fw"); err != nil {
		t.Errorf("probe: %v", err)
	}
}

var echo = datapath.Flow{Protocol: unix.IPPROTO_UDP, Src: netip.MustParseAddrPort("10.9.0.1:4000"), Dst: netip.MustParseAddrPort("10.9.0.2:7"), VLAN: datapath.NoVLAN}

// frame from alice to bob, or back.
func (w *settling) frame(back bool, tags []uint16, etherType uint16, payload []byte) (from *Station, f []byte) {
	if back {
		return w.bob, l2(w.alice.MAC, w.bob.MAC, tags, etherType, payload)
	}
	return w.alice, l2(w.bob.MAC, w.alice.MAC, tags, etherType, payload)
}

// udp is a frame of the flow echo.
func (w *settling) udp(back bool, m []byte) (*Station, []byte) {
	if back {
		return w.frame(true, nil, flow.EtherTypeIPv4, ipv4(2, 1, unix.IPPROTO_UDP, 64, 0, udp(7, 4000, m)))
	}
	return w.frame(false, nil, flow.EtherTypeIPv4, ipv4(1, 2, unix.IPPROTO_UDP, 64, 0, udp(4000, 7, m)))
}

// tcp is a segment with the same ports and these flags.
func (w *settling) tcp(back bool, flags byte, m []byte) (*Station, []byte) {
	src, dst, a, b := uint16(4000), uint16(7), byte(1), byte(2)
	if back {
		src, dst, a, b = dst, src, b, a
	}
	segment := tcp(src, dst, m)
	segment[13] = flags
	return w.frame(back, nil, flow.EtherTypeIPv4, ipv4(a, b, unix.IPPROTO_TCP, 64, 0, segment))
}

// fate sends a frame, and behind it one that no function can settle, and says which functions saw it and whether it arrived.
func (w *settling) fate(make func(m []byte) (*Station, []byte), functions ...*Function) (seen []bool, arrived bool) {
	w.t.Helper()
	w.n += 2
	m, last := mark(w.n), mark(w.n+1)
	from, f := make(m)
	from.Send(w.t, f)
	to := w.bob
	if from == w.bob {
		to = w.alice
	}
	_, f = w.frame(from == w.bob, nil, 0x1234, last)
	from.Send(w.t, f)
	Until(w.t, "the frame behind arrives", func() bool { return len(to.Frames(last)) > 0 })
	for _, fn := range functions {
		saw := false
		for _, s := range fn.Sockets {
			saw = saw || len(s.Frames(m)) > 0
		}
		seen = append(seen, saw)
	}
	// What passes functions by may be late only where it is copied.
	return seen, len(to.Frames(m)) > 0
}

func (w *settling) want(what string, seen, arrives bool, fn *Function, make func(m []byte) (*Station, []byte)) {
	w.t.Helper()
	if saw, arrived := w.fate(make, fn); saw[0] != seen || arrived != arrives {
		w.t.Errorf("%s: seen by the function: %t, arrived: %t; want %t, %t", what, saw[0], arrived, seen, arrives)
	}
}

func (w *settling) there(m []byte) (*Station, []byte) { return w.udp(false, m) }
func (w *settling) back(m []byte) (*Station, []byte)  { return w.udp(true, m) }

func (w *settling) settle(fn *Function, v datapath.Settlement, entries int, want error) {
	w.t.Helper()
	n, err := w.s.SettleFlow(Context(w.t), fn.Name, v)
	if n != entries || !errors.Is(err, want) {
		w.t.Errorf("settle: %d entries, %v; want %d, %v", n, err, entries, want)
	}
}

// early: of a connection that has begun or ended no verdict is taken at first, since it may be about the former one, or about before the end.
func (w *settling) early(fn *Function, f datapath.Flow, begun time.Time) {
	w.t.Helper()
	n, err := w.s.SettleFlow(Context(w.t), fn.Name, pass(f))
	if late := time.Since(begun) > 150*time.Millisecond; !errors.Is(err, datapath.ErrEarly) && !late {
		w.t.Errorf("settle after a beginning or an end: %d entries, %v; want %v", n, err, datapath.ErrEarly)
	}
	_, err = w.s.SettleFlow(Context(w.t), fn.Name, datapath.Settlement{Flow: f}) // it may have been late
	must(w.t, err)
	old := pass(f)
	old.Heard = time.Now().Add(-2 * datapath.SettleWithin)
	if n, err := w.s.SettleFlow(Context(w.t), fn.Name, old); !errors.Is(err, datapath.ErrEarly) {
		w.t.Errorf("a verdict that was said long ago: %d entries, %v; want %v", n, err, datapath.ErrEarly)
	}
}

// listed: the switch lists what a function has settled, and the frames that did not enter it since.
func (w *settling) listed(fn *Function, want ...string) {
	w.t.Helper()
	found, err := w.s.SettledFlows(Context(w.t), fn.Name, datapath.SettledQuery{Limit: 100})
	got := []string{}
	for _, f := range found.Flows {
		text := fmt.Sprintf("%d at %s: %d %s %s vlan %d reply %t: %d", f.Verdict, f.At, f.Flow.Protocol, f.Flow.Src, f.Flow.Dst, f.Flow.VLAN, f.Reply, f.Missed.Packets)
		if r := f.Rewrite; r != nil {
			text += fmt.Sprintf(" to %t %s %s", r.Target, r.To, net.HardwareAddr(r.MAC[:]))
		}
		got = append(got, text)
		if n := f.Missed; n.Bytes < 60*n.Packets || n.Bytes > 200*n.Packets || f.Age < 0 || f.Age > time.Minute || f.Idle < 0 || f.Idle > time.Minute {
			w.t.Errorf("%+v", f)
		}
	}
	slices.Sort(got)
	slices.Sort(want)
	if err != nil || found.Total != len(want) || !slices.Equal(got, want) {
		w.t.Errorf("settled flows of %s: %d, %q, %v; want %q", fn.Name, found.Total, got, err, want)
	}
}

func pass(f datapath.Flow) datapath.Settlement {
	return datapath.Settlement{Verdict: datapath.Pass, Flow: f}
}

// flows: a function settles what it has been given, and no other flow; its word holds for itself only.
func (w *settling) flows(fw, other, idle *Function) {
	w.settle(fw, pass(echo), 0, datapath.ErrNotGiven)
	w.want("a new flow", true, true, fw, w.there)
	w.settle(idle, pass(echo), 0, datapath.ErrNotGiven) // no frame of it came there
	w.settle(other, pass(echo), 0, datapath.ErrSettlesNothing)
	w.settle(&Function{Name: "nobody"}, pass(echo), 0, datapath.ErrNotFound)
	w.want("a flow that others have tried to settle", true, true, fw, w.there)
	before := w.port("function/fw/in")
	w.settle(fw, pass(echo), 1, nil)
	if seen, arrived := w.fate(w.there, fw, other); seen[0] || !seen[1] || !arrived {
		w.t.Errorf("a settled flow: seen by the function %t, by the next %t, arrived %t", seen[0], seen[1], arrived)
	}
	after := w.port("function/fw/in")
	if got := after.Settled.Packets - before.Settled.Packets; got != 1 || after.Settled.Bytes <= before.Settled.Bytes || after.Tx.Packets != before.Tx.Packets+1 {
		w.t.Errorf("counters before %+v, after %+v; want one packet settled, and one, the frame behind, sent", before, after)
	}
	// The other direction has not been given yet.
	w.want("the reverse, not given yet", true, true, fw, w.back)
	w.settle(fw, pass(echo), 2, nil)
	w.want("the reverse", false, true, fw, w.back)
	w.want("a settled flow", false, true, fw, w.there)
	for what, make := range map[string]func(m []byte) (*Station, []byte){
		"another port": func(m []byte) (*Station, []byte) {
			return w.frame(false, nil, flow.EtherTypeIPv4, ipv4(1, 2, unix.IPPROTO_UDP, 64, 0, udp(4001, 7, m)))
		},
		"another address": func(m []byte) (*Station, []byte) {
			return w.frame(false, nil, flow.EtherTypeIPv4, ipv4(3, 2, unix.IPPROTO_UDP, 64, 0, udp(4000, 7, m)))
		},
		"another protocol": func(m []byte) (*Station, []byte) { return w.tcp(false, 0x10, m) },
		"another VLAN": func(m []byte) (*Station, []byte) {
			return w.frame(false, []uint16{5}, flow.EtherTypeIPv4, ipv4(1, 2, unix.IPPROTO_UDP, 64, 0, udp(4000, 7, m)))
		},
		"another sender": func(m []byte) (*Station, []byte) {
			return w.alice, l2(w.bob.MAC, flow.MAC{2, 6, 6, 6, 6, 6}, nil, flow.EtherTypeIPv4, ipv4(1, 2, unix.IPPROTO_UDP, 64, 0, udp(4000, 7, m)))
		},
		"IPv6": func(m []byte) (*Station, []byte) {
			return w.frame(false, nil, flow.EtherTypeIPv6, ipv6(1, 2, unix.IPPROTO_UDP, 64, nil, udp(4000, 7, m)))
		},
	} {
		w.want(what, true, true, fw, make)
	}
	// Who receives a frame with the priority tag takes it as one without.
	w.want("the priority tag", false, true, fw, func(m []byte) (*Station, []byte) {
		return w.frame(false, []uint16{0}, flow.EtherTypeIPv4, ipv4(1, 2, unix.IPPROTO_UDP, 64, 0, udp(4000, 7, m)))
	})
	w.listed(fw, "1 at in: 17 10.9.0.1:4000 10.9.0.2:7 vlan 65535 reply false: 3", "1 at out: 17 10.9.0.2:7 10.9.0.1:4000 vlan 65535 reply false: 1")
	w.listed(idle)
	for name, want := range map[string]error{"other": datapath.ErrSettlesNothing, "nobody": datapath.ErrNotFound} {
		if _, err := w.s.SettledFlows(Context(w.t), name, datapath.SettledQuery{Limit: 1}); !errors.Is(err, want) {
			w.t.Errorf("settled flows of %s: %v, want %v", name, err, want)
		}
	}
	must(w.t, w.s.UnsettleFlows(Context(w.t), "fw"))
	w.listed(fw)
	w.want("all verdicts taken back", true, true, fw, w.there)
}

// verdicts: drop, judge, one way; IPv6, VLANs, ICMP echo.
func (w *settling) verdicts(fw *Function) {
	for _, back := range []func(m []byte) (*Station, []byte){w.there, w.back} {
		w.want("a flow anew", true, true, fw, back)
	}
	before := w.port("function/fw/in")
	w.settle(fw, datapath.Settlement{Verdict: datapath.Discard, Flow: echo}, 2, nil)
	w.want("a dropped flow", false, false, fw, w.there)
	w.want("its reverse", false, false, fw, w.back)
	w.listed(fw, "2 at in: 17 10.9.0.1:4000 10.9.0.2:7 vlan 65535 reply false: 1", "2 at out: 17 10.9.0.2:7 10.9.0.1:4000 vlan 65535 reply false: 1")
	if after := w.port("function/fw/in"); after.Dropped.Packets != before.Dropped.Packets+1 || after.Settled.Packets != before.Settled.Packets+1 {
		w.t.Errorf("counters before %+v, after %+v; want one packet dropped and settled", before, after)
	}
	w.settle(fw, datapath.Settlement{Verdict: datapath.Judge, Flow: echo, OneWay: true}, 1, nil)
	w.want("a verdict taken back", true, true, fw, w.there)
	w.want("its reverse", false, false, fw, w.back)
	w.settle(fw, datapath.Settlement{Verdict: datapath.Judge, Flow: echo}, 2, nil)
	// At one port alone: frames of the same flow that enter at the other one are forged, perhaps.
	w.settle(fw, datapath.Settlement{Verdict: datapath.Pass, Flow: echo, At: "out"}, 1, nil)
	w.want("a flow that is settled at the port out", true, true, fw, w.there)
	w.want("its reverse, which enters there", false, true, fw, w.back)
	w.settle(fw, datapath.Settlement{Verdict: datapath.Pass, Flow: echo, OneWay: true, At: "out"}, 0, datapath.ErrNotGiven)
	w.settle(fw, datapath.Settlement{Verdict: datapath.Pass, Flow: echo, OneWay: true, At: "in"}, 1, nil)
	w.want("a flow that is settled at both ports", false, true, fw, w.there)
	w.settle(fw, datapath.Settlement{Verdict: datapath.Judge, Flow: echo}, 2, nil)

	icmp := func(kind byte, m []byte) []byte { return append([]byte{kind, 0, 0xab, 0xcd, 0, 9, 0, 1}, m...) }
	ping := func(m []byte) (*Station, []byte) {
		return w.frame(false, nil, flow.EtherTypeIPv4, ipv4(1, 2, unix.IPPROTO_ICMP, 64, 0, icmp(8, m)))
	}
	pong := func(m []byte) (*Station, []byte) {
		return w.frame(true, nil, flow.EtherTypeIPv4, ipv4(2, 1, unix.IPPROTO_ICMP, 64, 0, icmp(0, m)))
	}
	six := func(m []byte) (*Station, []byte) {
		return w.frame(false, []uint16{5}, flow.EtherTypeIPv6, ipv6(1, 2, unix.IPPROTO_TCP, 64, nil, tcp(4000, 7, m)))
	}
	w.want("a request", true, true, fw, ping)
	w.want("its reply", true, true, fw, pong)
	w.want("a segment in a VLAN", true, true, fw, six)
	w.settle(fw, pass(datapath.Flow{Protocol: unix.IPPROTO_ICMP, Src: netip.MustParseAddrPort("10.9.0.1:9"), Dst: netip.MustParseAddrPort("10.9.0.2:9"), VLAN: datapath.NoVLAN}), 2, nil)
	w.settle(fw, pass(datapath.Flow{Protocol: unix.IPPROTO_TCP, Src: netip.MustParseAddrPort("[fd57::1]:4000"), Dst: netip.MustParseAddrPort("[fd57::2]:7"), VLAN: 5}), 1, nil)
	w.want("a request, settled", false, true, fw, ping)
	w.want("its reply, settled", false, true, fw, pong)
	w.want("a segment in a VLAN, settled", false, true, fw, six)
	w.listed(fw, "1 at in: 1 10.9.0.1:9 10.9.0.2:9 vlan 65535 reply false: 1", "1 at out: 1 10.9.0.2:9 10.9.0.1:9 vlan 65535 reply true: 1",
		"1 at in: 6 [fd57::1]:4000 [fd57::2]:7 vlan 5 reply false: 1")
	w.want("a request the other way", true, true, fw, func(m []byte) (*Station, []byte) {
		return w.frame(true, nil, flow.EtherTypeIPv4, ipv4(2, 1, unix.IPPROTO_ICMP, 64, 0, icmp(8, m)))
	})
	w.want("an ICMP error", true, true, fw, func(m []byte) (*Station, []byte) {
		return w.frame(false, nil, flow.EtherTypeIPv4, ipv4(1, 2, unix.IPPROTO_ICMP, 64, 0, icmp(3, m)))
	})
}

// sealed is a frame of TCP or UDP, without options and extension headers, whose checksums are right. One of UDP that has none stays so.
func sealed(frame []byte, network int) []byte {
	b := slices.Clone(frame)
	ip, upper, at, proto := b[network:], 20, 16, byte(0)
	pseudo := 0
	if ip[0]>>4 == 4 {
		proto = ip[9]
		ip[10], ip[11] = 0, 0
		binary.BigEndian.PutUint16(ip[10:], ^sum(ip[:20]))
		pseudo = int(sum(ip[12:20]))
	} else {
		upper, proto, pseudo = 40, ip[6], int(sum(ip[8:40]))
	}
	if proto == unix.IPPROTO_UDP {
		at = 6
	}
	h := ip[upper:]
	if old := h[at : at+2]; proto == unix.IPPROTO_UDP && old[0]|old[1] == 0 {
		return b
	}
	h[at], h[at+1] = 0, 0
	even := append(slices.Clone(h), make([]byte, len(h)%2)...)
	total := binary.BigEndian.AppendUint16(binary.BigEndian.AppendUint16(binary.BigEndian.AppendUint16(even, uint16(pseudo)), uint16(proto)), uint16(len(h)))
	binary.BigEndian.PutUint16(h[at:], ^sum(total))
	return b
}

// rewrites: a flow that the function hands on with another address and port at one end. The next function and the receiver get the frame that it would have sent.
func (w *settling) rewrites(fw, other *Function) {
	to4, to6 := netip.MustParseAddrPort("10.9.0.77:50001"), netip.MustParseAddrPort("[fd57::abcd:1234]:50001")
	four, six := []netip.AddrPort{echo.Src, echo.Dst}, []netip.AddrPort{netip.MustParseAddrPort("[fd57::1]:4000"), netip.MustParseAddrPort("[fd57::2]:7")}
	for _, tt := range []struct {
		what    string
		proto   uint8
		tags    []uint16
		to      netip.AddrPort
		target  bool
		mac     flow.MAC
		without bool // a checksum
	}{
		{what: "UDP, source", proto: unix.IPPROTO_UDP, to: to4},
		{what: "UDP without a checksum, source", proto: unix.IPPROTO_UDP, to: to4, without: true},
		{what: "UDP, target in a VLAN", proto: unix.IPPROTO_UDP, tags: []uint16{5}, to: to4, target: true},
		{what: "TCP, source", proto: unix.IPPROTO_TCP, to: to4},
		{what: "TCP, target with its station", proto: unix.IPPROTO_TCP, to: to4, target: true, mac: w.bob.MAC},
		{what: "IPv6 UDP, source", proto: unix.IPPROTO_UDP, to: to6},
		{what: "IPv6 TCP, target in a VLAN", proto: unix.IPPROTO_TCP, tags: []uint16{5}, to: to6, target: true},
	} {
		ends, etherType, network := four, flow.EtherTypeIPv4, 14+4*len(tt.tags)
		if tt.to.Addr().Is6() {
			ends, etherType = six, flow.EtherTypeIPv6
		}
		frame := func(m []byte) (*Station, []byte) {
			upper := udp(4000, 7, m)
			if tt.proto == unix.IPPROTO_TCP {
				upper = tcp(4000, 7, m)
			}
			if tt.without {
				upper[6], upper[7] = 0, 0
			}
			packet := ipv4(1, 2, tt.proto, 64, 0, upper)
			if etherType == flow.EtherTypeIPv6 {
				packet = ipv6(1, 2, tt.proto, 64, nil, upper)
			}
			from, f := w.frame(false, tt.tags, etherType, packet)
			if tt.mac != (flow.MAC{}) {
				copy(f, []byte{2, 7, 7, 7, 7, 7}) // to another station, as it comes
			}
			return from, sealed(f, network)
		}
		changed := func(f []byte) []byte {
			f = slices.Clone(f)
			if tt.mac != (flow.MAC{}) {
				copy(f, tt.mac[:])
			}
			ip, size, head := f[network:], tt.to.Addr().BitLen()/8, 20
			at := 12
			if size == 16 {
				at, head = 8, 40
			}
			port := head
			if tt.target {
				at, port = at+size, port+2
			}
			copy(ip[at:], tt.to.Addr().AsSlice())
			binary.BigEndian.PutUint16(ip[port:], tt.to.Port())
			return sealed(f, network)
		}
		v := datapath.Settlement{Verdict: datapath.Pass, OneWay: true, At: "in", Rewrite: &datapath.Rewrite{Target: tt.target, To: tt.to, MAC: tt.mac},
			Flow: datapath.Flow{Protocol: tt.proto, Src: ends[0], Dst: ends[1], VLAN: datapath.NoVLAN}}
		if len(tt.tags) > 0 {
			v.Flow.VLAN = tt.tags[0]
		}
		must(w.t, w.s.UnsettleFlows(Context(w.t), fw.Name)) // others had the same addresses
		w.want(tt.what+": a flow that is not settled", true, true, fw, frame)
		w.settle(fw, v, 1, nil)
		for range 2 {
			before := w.port("function/fw/in")
			if seen, arrived := w.fate(frame, fw, other); seen[0] || !seen[1] || !arrived {
				w.t.Errorf("%s: seen by the function %t, by the next %t, arrived %t; want false, true, true", tt.what, seen[0], seen[1], arrived)
				continue
			}
			if after := w.port("function/fw/in"); after.Settled.Packets != before.Settled.Packets+1 {
				w.t.Errorf("%s: counters before %+v, after %+v; want one packet settled", tt.what, before, after)
			}
			m := mark(w.n)
			_, sent := frame(m)
			want := changed(sent)
			for _, s := range []*Socket{w.bob.Socket, other.Sockets["in"]} {
				if got := s.Frames(m); len(got) != 1 || !bytes.Equal(got[0], want) {
					w.t.Errorf("%s: got\n% x, want\n% x", tt.what, got, want)
				}
			}
			w.settle(fw, v, 1, nil) // the same again changes nothing
		}
		w.listed(fw, fmt.Sprintf("1 at in: %d %s %s vlan %d reply false: 2 to %t %s %s", tt.proto, ends[0], ends[1], v.Flow.VLAN, tt.target, tt.to, net.HardwareAddr(tt.mac[:])))
		// Another rewrite: a frame under way may be about to read the former one, so the function gets the flow first.
		another := *v.Rewrite
		another.To = netip.AddrPortFrom(another.To.Addr(), 50002)
		v.Rewrite = &another
		w.settle(fw, v, 0, datapath.ErrEarly)
		w.want(tt.what+": a flow with another rewrite", true, true, fw, frame)
		w.settle(fw, v, 1, nil)
		w.want(tt.what+": a flow with another rewrite, settled", false, true, fw, frame)
		w.settle(fw, datapath.Settlement{Verdict: datapath.Judge, Flow: v.Flow}, 1, nil)
		w.want(tt.what+": a flow that is judged again", true, true, fw, frame)
	}
	for what, v := range map[string]datapath.Settlement{
		"both directions": {Verdict: datapath.Pass, Flow: echo, Rewrite: &datapath.Rewrite{To: to4}},
		"what is dropped": {Verdict: datapath.Discard, OneWay: true, Flow: echo, Rewrite: &datapath.Rewrite{To: to4}},
		"another family":  {Verdict: datapath.Pass, OneWay: true, Flow: echo, Rewrite: &datapath.Rewrite{To: to6}},
		"to a group":      {Verdict: datapath.Pass, OneWay: true, Flow: echo, Rewrite: &datapath.Rewrite{To: to4, MAC: flow.MAC{1, 0, 0x5e, 0, 0, 1}}},
		"ICMP": {Verdict: datapath.Pass, OneWay: true, Rewrite: &datapath.Rewrite{To: to4},
			Flow: datapath.Flow{Protocol: unix.IPPROTO_ICMP, Src: netip.MustParseAddrPort("10.9.0.1:9"), Dst: netip.MustParseAddrPort("10.9.0.2:9"), VLAN: datapath.NoVLAN}},
	} {
		if n, err := w.s.SettleFlow(Context(w.t), fw.Name, v); err == nil {
			w.t.Errorf("a rewrite of %s: %d entries, no error", what, n)
		}
	}
}

// copiesAreLeftAlone: a frame that is rewritten behind a tap has gone into the tap as it came, and one that is rewritten before a tap goes into it rewritten.
func (w *settling) copiesAreLeftAlone(tap *Function) {
	fw := w.Inline(datapath.Function{Name: "rewriter", Settles: true})
	must(w.t, w.s.UnsettleFlows(Context(w.t), tap.Name))
	to := netip.MustParseAddrPort("10.9.0.77:50001")
	for what, tt := range map[string]struct {
		chain  []hop
		source netip.Addr // in the copy
	}{
		"a tap before the rewrite": {[]hop{{fn: tap, tap: true}, {fn: fw}}, echo.Src.Addr()},
		"a tap behind the rewrite": {[]hop{{fn: fw}, {fn: tap, tap: true}}, to.Addr()},
	} {
		w.Commit(policy{mode: "exhaustive", from: w.alice, to: w.bob, chain: tt.chain, cookie: 1}.rules()...)
		w.want(what+": a new flow", true, true, fw, w.there)
		w.settle(fw, datapath.Settlement{Verdict: datapath.Pass, OneWay: true, At: "in", Flow: echo, Rewrite: &datapath.Rewrite{To: to}}, 1, nil)
		w.want(what+": a rewritten flow", false, true, fw, w.there)
		m := mark(w.n)
		Until(w.t, what+": the copy", func() bool { return len(tap.Sockets["tap"].Frames(m)) > 0 })
		at := func(s *Socket) netip.Addr { return netip.AddrFrom4([4]byte(s.Frames(m)[0][14+12:])) }
		if got := at(tap.Sockets["tap"]); got != tt.source {
			w.t.Errorf("%s: the copy is from %s, want %s", what, got, tt.source)
		}
		if got := at(w.bob.Socket); got != to.Addr() {
			w.t.Errorf("%s: it arrives from %s, want %s", what, got, to.Addr())
		}
	}
}

const (
	fin = 1 << iota
	syn
	rst
	_
	ack
)

// connections: the function sees the frames that begin and end one, and judges what follows anew.
func (w *settling) connections(fw *Function) {
	stream := echo
	stream.Protocol = unix.IPPROTO_TCP
	segment := func(back bool, flags byte) func(m []byte) (*Station, []byte) {
		return func(m []byte) (*Station, []byte) { return w.tcp(back, flags, m) }
	}
	for what, flags := range map[string]byte{"SYN": syn, "SYN and ACK": syn | ack, "FIN": fin | ack, "RST": rst} {
		for _, back := range []bool{false, true} {
			Until(w.t, "the connection is settled", func() bool {
				w.fate(segment(false, ack))
				w.fate(segment(true, ack))
				n, err := w.s.SettleFlow(Context(w.t), fw.Name, pass(stream))
				if err != nil && !errors.Is(err, datapath.ErrEarly) {
					w.t.Fatal(err)
				}
				return n == 2
			})
			w.want("a segment", false, true, fw, segment(false, ack))
			w.want("a segment back", false, true, fw, segment(true, ack))
			begun := time.Now()
			w.want(what, true, true, fw, segment(back, flags))
			w.early(fw, stream, begun)
			w.want("a segment after "+what, true, true, fw, segment(false, ack))
			w.want("a segment back after "+what, true, true, fw, segment(true, ack))
		}
	}
}

// change the header of an IPv4 packet, and make its checksum right again.
func change(b []byte, change func(b []byte)) []byte {
	change(b)
	copy(b[10:12], []byte{0, 0})
	s := ^sum(b[:int(b[0]&15)*4])
	b[10], b[11] = byte(s>>8), byte(s)
	return b
}

// oddBeginnings: a connection that begins with a frame of another form than its further frames have is a new one, too.
func (w *settling) oddBeginnings(fw *Function) {
	const ad0 = 0xffff // an 802.1ad tag with id 0
	tagged := func(back bool, tags []uint16, etherType uint16, packet []byte) (*Station, []byte) {
		if len(tags) == 1 && tags[0] == ad0 {
			from, f := w.frame(back, []uint16{0}, etherType, packet)
			f[12], f[13] = 0x88, 0xa8
			return from, f
		}
		return w.frame(back, tags, etherType, packet)
	}
	priority, options := []uint16{0}, func(b []byte) { b[0] = 0x46 }
	type segment struct {
		port  uint16
		flags byte
		m     []byte
	}
	plain := func(s segment) []byte {
		b := tcp(s.port, 7, s.m)
		b[13] = s.flags
		return b
	}
	v4 := func(s segment) []byte { return ipv4(1, 2, unix.IPPROTO_TCP, 64, 0, plain(s)) }
	v6 := func(extensions ...byte) func(s segment) []byte {
		return func(s segment) []byte { return ipv6(1, 2, unix.IPPROTO_TCP, 64, extensions, plain(s)) }
	}
	for i, tt := range []struct {
		what        string
		vlan        uint16   // of the flow
		with, later []uint16 // tags of the frames that are judged, and of those after the beginning
		begins      []uint16 // tags of the beginning
		packet      func(s segment) []byte
		six, fin    bool
	}{
		{what: "a SYN without the priority tag", vlan: datapath.NoVLAN, with: priority, later: priority, packet: v4},
		{what: "a SYN with the priority tag", vlan: datapath.NoVLAN, begins: priority, later: priority, packet: v4},
		{what: "a SYN with the priority tag, then none", vlan: 0, with: priority, begins: priority, packet: v4},
		{what: "a SYN with the priority tag of 802.1ad", vlan: datapath.NoVLAN, begins: []uint16{ad0}, packet: v4},
		{what: "a SYN with two priority tags", vlan: datapath.NoVLAN, begins: []uint16{0, 0}, packet: v4},
		{what: "a SYN with three priority tags", vlan: datapath.NoVLAN, begins: []uint16{0, 0, 0}, packet: v4},
		{what: "a SYN with the priority tag before a VLAN's", vlan: 5, with: []uint16{5}, begins: []uint16{0, 5}, later: []uint16{5}, packet: v4},
		{what: "a SYN with IP options", vlan: datapath.NoVLAN, packet: func(s segment) []byte {
			return change(ipv4(1, 2, unix.IPPROTO_TCP, 64, 0, append([]byte{1, 1, 1, 1}, plain(s)...)), options)
		}},
		{what: "a FIN with IP options", vlan: datapath.NoVLAN, fin: true, packet: func(s segment) []byte {
			return change(ipv4(1, 2, unix.IPPROTO_TCP, 64, 0, append([]byte{1, 1, 1, 1}, plain(s)...)), options)
		}},
		{what: "a SYN with the reserved flag", vlan: datapath.NoVLAN, packet: func(s segment) []byte {
			return ipv4(1, 2, unix.IPPROTO_TCP, 64, 0x8000, plain(s))
		}},
		{what: "a SYN in fragments", vlan: datapath.NoVLAN, packet: func(s segment) []byte {
			return ipv4(1, 2, unix.IPPROTO_TCP, 64, 0x2000, plain(s))
		}},
		{what: "a SYN in a fragment that ends before the flags", vlan: datapath.NoVLAN, packet: func(s segment) []byte {
			return append(ipv4(1, 2, unix.IPPROTO_TCP, 64, 0x2000, ports(s.port, 7, 0, 0, 0, 1)), s.m...) // behind the packet: padding
		}},
		{what: "a SYN of IPv6", vlan: datapath.NoVLAN, six: true, begins: priority, packet: v6()},
		{what: "a SYN behind destination options", vlan: datapath.NoVLAN, six: true, packet: v6(60)},
		{what: "a SYN behind four headers", vlan: datapath.NoVLAN, six: true, packet: v6(0, 60, 43, 60)},
		{what: "a SYN in fragments of IPv6", vlan: datapath.NoVLAN, six: true, packet: v6(44)},
	} {
		etherType, whole, from, to := flow.EtherTypeIPv4, v4, "10.9.0.1", "10.9.0.2"
		if tt.six {
			etherType, whole, from, to = flow.EtherTypeIPv6, v6(), "fd57::1", "fd57::2"
		}
		port, flags := uint16(5000+i), byte(syn)
		if tt.fin {
			flags = fin | ack
		}
		with := func(tags []uint16) func(m []byte) (*Station, []byte) {
			return func(m []byte) (*Station, []byte) { return tagged(false, tags, etherType, whole(segment{port, ack, m})) }
		}
		stream := datapath.Flow{Protocol: unix.IPPROTO_TCP, VLAN: tt.vlan, Src: netip.AddrPortFrom(netip.MustParseAddr(from), port),
			Dst: netip.AddrPortFrom(netip.MustParseAddr(to), 7)}
		w.want(tt.what+": a segment of before", true, true, fw, with(tt.with))
		w.settle(fw, pass(stream), 1, nil)
		w.want(tt.what+": a settled segment", false, true, fw, with(tt.with))
		w.want(tt.what+": a settled segment as later", false, true, fw, with(tt.later))
		begun := time.Now()
		w.want(tt.what, true, true, fw, func(m []byte) (*Station, []byte) {
			return tagged(false, tt.begins, etherType, tt.packet(segment{port, flags, m}))
		})
		w.early(fw, stream, begun)
		w.want(tt.what+": the segment behind", true, true, fw, with(tt.later))
	}
}

// longer changes the length in a header of UDP.
func longer(b []byte, by int) []byte {
	binary.BigEndian.PutUint16(b[4:], uint16(int(binary.BigEndian.Uint16(b[4:]))+by))
	return b
}

// unkeyed: frames of which a flow cannot be told are always given to the function.
func (w *settling) unkeyed(fw *Function) {
	for _, way := range []func(m []byte) (*Station, []byte){w.there, w.back} {
		w.want("a flow anew", true, true, fw, way)
	}
	w.settle(fw, pass(echo), 2, nil)
	w.want("a settled flow", false, true, fw, w.there)
	for what, packet := range map[string]func(m []byte) []byte{
		"a first fragment": func(m []byte) []byte { return ipv4(1, 2, unix.IPPROTO_UDP, 64, 0x2000, udp(4000, 7, m)) },
		"a later fragment": func(m []byte) []byte { return ipv4(1, 2, unix.IPPROTO_UDP, 64, 8, udp(4000, 7, m)) },
		"IP options": func(m []byte) []byte {
			return change(ipv4(1, 2, unix.IPPROTO_UDP, 64, 0, append([]byte{1, 1, 1, 1}, udp(4000, 7, m)...)), func(b []byte) { b[0] = 0x46 })
		},
		"a length beyond the frame": func(m []byte) []byte {
			return change(ipv4(1, 2, unix.IPPROTO_UDP, 64, 0, udp(4000, 7, m)), func(b []byte) { b[2] = 9 })
		},
		"UDP longer than its packet":  func(m []byte) []byte { return ipv4(1, 2, unix.IPPROTO_UDP, 64, 0, longer(udp(4000, 7, m), 1)) },
		"UDP shorter than its header": func(m []byte) []byte { return ipv4(1, 2, unix.IPPROTO_UDP, 64, 0, longer(udp(4000, 7, m), -len(m)-1)) },
		"SCTP":                        func(m []byte) []byte { return ipv4(1, 2, unix.IPPROTO_SCTP, 64, 0, udp(4000, 7, m)) },
		"TCP without any flag":        func(m []byte) []byte { _, f := w.tcp(false, 0, m); return f[14:] },
		"a header cut short":          func(m []byte) []byte { return ipv4(1, 2, unix.IPPROTO_TCP, 64, 0, ports(4000, 7)) },
		"TCP with a wrong offset":     func(m []byte) []byte { _, f := w.tcp(false, ack, m); f[14+20+12] = 0x10; return f[14:] },
	} {
		w.want(what, what != "a header cut short", what != "a header cut short", fw, func(m []byte) (*Station, []byte) {
			return w.frame(false, nil, flow.EtherTypeIPv4, packet(m))
		})
	}
	w.want("two tags", true, true, fw, func(m []byte) (*Station, []byte) {
		return w.frame(false, []uint16{5, 6}, flow.EtherTypeIPv4, ipv4(1, 2, unix.IPPROTO_UDP, 64, 0, udp(4000, 7, m)))
	})
	w.want("an extension header", true, true, fw, func(m []byte) (*Station, []byte) {
		return w.frame(false, nil, flow.EtherTypeIPv6, ipv6(1, 2, unix.IPPROTO_UDP, 64, []byte{60}, udp(4000, 7, m)))
	})
	for what, f := range map[string]datapath.Flow{
		"no addresses":    {Protocol: unix.IPPROTO_UDP, VLAN: datapath.NoVLAN},
		"two families":    {Protocol: unix.IPPROTO_UDP, VLAN: datapath.NoVLAN, Src: echo.Src, Dst: netip.MustParseAddrPort("[fd57::1]:1")},
		"mapped":          {Protocol: unix.IPPROTO_UDP, VLAN: datapath.NoVLAN, Src: netip.MustParseAddrPort("[::ffff:10.9.0.1]:1"), Dst: netip.MustParseAddrPort("[fd57::1]:1")},
		"a great VLAN":    {Protocol: unix.IPPROTO_UDP, VLAN: 4096, Src: echo.Src, Dst: echo.Dst},
		"a protocol":      {Protocol: unix.IPPROTO_SCTP, VLAN: datapath.NoVLAN, Src: echo.Src, Dst: echo.Dst},
		"ICMP of IPv6":    {Protocol: unix.IPPROTO_ICMPV6, VLAN: datapath.NoVLAN, Src: echo.Src, Dst: echo.Src},
		"ICMP of two ids": {Protocol: unix.IPPROTO_ICMP, VLAN: datapath.NoVLAN, Src: echo.Src, Dst: echo.Dst},
	} {
		if n, err := w.s.SettleFlow(Context(w.t), fw.Name, pass(f)); err == nil || n != 0 {
			w.t.Errorf("%s: %d entries, %v; want an error", what, n, err)
		}
	}
	w.want("still settled", false, true, fw, w.there)
}

// lives: verdicts outlive the switch's process and commits that are about others; not the function's process, its state, and a change of the rules
// that lead to it.
func (w *settling) lives(fw *Function, chain policy) {
	again := func(what string) {
		w.t.Helper()
		w.want("after "+what, true, true, fw, w.there)
		w.settle(fw, pass(echo), 1, nil)
		w.want("settled again, after "+what, false, true, fw, w.there)
	}
	w.Close()
	w.Reopen()
	w.s = w.Switch.(datapath.Settler)
	if p, err := w.Switch.AddFunction(Context(w.t), fw.F); err != nil || p != fw.Ports {
		w.t.Fatalf("added again: %v, %v", p, err)
	}
	w.want("after a restart of the switch's process", false, true, fw, w.there)
	w.Commit(append(chain.rules(), flow.Rule{Cookie: 77, Priority: 1, Stage: flow.Egress, Match: flow.Match{OutPort: w.bob.Port, EtherType: 0x4321}, Action: flow.Action{Op: flow.Drop}})...)
	w.want("after a commit about others", false, true, fw, w.there)
	w.Commit(chain.rules()...)
	up := func(pid int) { must(w.t, w.Switch.SetState(Context(w.t), "fw", datapath.Up, pid)) }
	up(0)
	w.want("up, as before", false, true, fw, w.there)
	up(unix.Getpid())
	up(0)
	again("another process")
	must(w.t, w.Switch.SetState(Context(w.t), "fw", datapath.Down, 0))
	m := mark(9e6)
	from, f := w.udp(false, m)
	from.Send(w.t, f)
	Until(w.t, "the frame for a dead function is dropped", func() bool { return w.port("function/fw/in").Dropped.Packets > 0 })
	if len(w.bob.Frames(m)) > 0 {
		w.t.Error("a settled flow passes a function that is down and drops")
	}
	up(0)
	again("an outage")
	alone := chain
	alone.chain = chain.chain[:1]
	w.Commit(alone.rules()...)
	again("a change of its chain")
	w.Commit(chain.rules()...)
	again("another one")
	f2 := fw.F
	f2.Settles = false
	if _, err := w.Switch.AddFunction(Context(w.t), f2); err != nil {
		w.t.Fatal(err)
	}
	w.want("when it may not settle flows any more", true, true, fw, w.there)
	w.settle(fw, pass(echo), 0, datapath.ErrSettlesNothing)
	if _, err := w.Switch.AddFunction(Context(w.t), fw.F); err != nil {
		w.t.Fatal(err)
	}
	again("it may again")
}

// taps: one that has settled a flow gets no more copies of it.
func (w *settling) taps(chain policy) {
	tap := w.function(datapath.Function{Name: "mon", Settles: true}, true)
	chain.chain = append(chain.chain[:len(chain.chain):len(chain.chain)], hop{fn: tap, tap: true})
	w.Commit(chain.rules()...)
	copied := func(what string, want bool) {
		w.t.Helper()
		w.n += 2
		m, last := mark(w.n), mark(w.n+1)
		from, f := w.udp(false, m)
		from.Send(w.t, f)
		_, f = w.frame(false, nil, 0x1234, last)
		from.Send(w.t, f)
		Until(w.t, what+": both arrive", func() bool { return len(w.bob.Frames(m)) > 0 && len(w.bob.Frames(last)) > 0 })
		Until(w.t, what+": a copy of the frame behind", func() bool { return len(tap.Sockets["tap"].Frames(last)) > 0 })
		if got := len(tap.Sockets["tap"].Frames(m)) > 0; got != want {
			w.t.Errorf("%s: copied: %t, want %t", what, got, want)
		}
	}
	copied("a new flow", true)
	w.settle(tap, pass(echo), 1, nil)
	copied("a settled flow", false)
	w.listed(tap, "1 at tap: 17 10.9.0.1:4000 10.9.0.2:7 vlan 65535 reply false: 1")
	w.copiesAreLeftAlone(tap)

	// Functions of a chain of copies, too: the copy goes on to the next one.
	first, last := w.Inline(datapath.Function{Name: "first", Settles: true}), w.Inline(datapath.Function{Name: "last"})
	w.Commit(policy{mode: "replica", from: w.alice, to: w.bob, chain: []hop{{fn: first}, {fn: last}}, cookie: 1, match: flow.Match{EtherType: flow.EtherTypeIPv4}}.rules()...)
	replica := func(what string, want bool) {
		w.t.Helper()
		w.n++
		m := mark(w.n)
		from, f := w.udp(false, m)
		from.Send(w.t, f)
		Until(w.t, what+": it arrives, and its copy in the last function", func() bool {
			return len(w.bob.Frames(m)) > 0 && len(last.Sockets["in"].Frames(m)) > 0
		})
		if want { // a socket keeps a frame when it has been handed on
			Until(w.t, what+": it is in the first function", func() bool { return len(first.Sockets["in"].Frames(m)) > 0 })
		}
		if got := len(first.Sockets["in"].Frames(m)) > 0; got != want {
			w.t.Errorf("%s: the first function has the copy: %t, want %t", what, got, want)
		}
	}
	replica("a copy", true)
	w.settle(first, pass(echo), 1, nil)
	replica("a copy of a settled flow", false)
}
