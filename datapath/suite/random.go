package suite

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"testing"

	"pgregory.net/rapid"

	"weir.dev/weir/datapath"
	"weir.dev/weir/flow"
)

// testRandom: random rules, states and frames, the same in both switches.
func testRandom(t *testing.T, open Factory) {
	r := NewRig(t, open)
	var stations []*Station
	for _, name := range []string{"alice", "bob", "carol"} {
		stations = append(stations, r.Station(name))
	}
	var functions []*Function
	for i := range 4 {
		on := datapath.OnFail(i % 2)
		functions = append(functions, r.Inline(datapath.Function{Name: fmt.Sprintf("f%d", i), OnFail: on}))
	}
	tap := r.Tap("mon")
	w := newTwins(t, r)
	extensions := 7
	if !r.can(SixHeaders) {
		extensions = 6
	}
	plain := !r.can(DropEligible)
	if !r.can(Instant) { // a frame to its own sender would be flooded the first time
		w.hello()
	}
	rapid.Check(t, func(rt *rapid.T) {
		w.t = t
		// Policies, whose chains share no function.
		var rules []flow.Rule
		free := rapid.Permutation(functions).Draw(rt, "functions")
		for i := range rapid.IntRange(1, 3).Draw(rt, "policies") {
			ends := rapid.Permutation(stations).Draw(rt, "ends")
			n := rapid.IntRange(0, min(2, len(free))).Draw(rt, "length")
			p := policy{mode: rapid.SampledFrom(modes[:]).Draw(rt, "mode"), from: ends[0], to: ends[1], cookie: uint64(i+1) * 100,
				priority: uint16(rapid.IntRange(1, 3).Draw(rt, "priority")), match: drawMatch(rt)}
			for _, f := range free[:n] {
				p.chain = append(p.chain, hop{fn: f})
			}
			free = free[n:]
			if rapid.Bool().Draw(rt, "tapped") {
				p.chain = append(p.chain, hop{fn: tap, tap: true})
			}
			rules = append(rules, p.rules()...)
		}
		// Rules that are nobody's policy, at any place.
		for i := range rapid.IntRange(0, 6).Draw(rt, "more rules") {
			st := rapid.SampledFrom(stations).Draw(rt, "at")
			rule := flow.Rule{Cookie: uint64(1000 + i), Priority: uint16(rapid.IntRange(0, 4).Draw(rt, "priority")), Match: drawMatch(rt),
				Action: flow.Action{Op: rapid.SampledFrom([]flow.Op{flow.Normal, flow.Drop}).Draw(rt, "op")}}
			if rapid.Bool().Draw(rt, "clone") {
				rule.Action.Clones = flow.Clones(tap.Ports.Tap)
			}
			if rapid.Bool().Draw(rt, "egress") {
				rule.Stage = flow.Egress
			} else if rapid.Bool().Draw(rt, "one port") {
				rule.Match.InPort = st.Port
			}
			rules = append(rules, rule)
		}
		for _, f := range functions {
			w.state(f.Name, datapath.State(rapid.IntRange(0, 3).Draw(rt, "state")&1|rapid.IntRange(0, 1).Draw(rt, "up")))
		}
		// The reference switch says what becomes of each frame.
		w.commit(rules...)
		for range rapid.IntRange(1, 8).Draw(rt, "frames") {
			from := rapid.SampledFrom(stations).Draw(rt, "from")
			to := rapid.SampledFrom(stations).Draw(rt, "to")
			m := w.next()
			w.send("a frame", from, m, drawFrame(rt, from, to, m, extensions, plain))
		}
		w.check()
		if t.Failed() {
			rt.Fatalf("rules %+v", rules)
		}
	})
}

// testPortCounters: what enters and leaves endpoints is counted, steered or not.
func testPortCounters(t *testing.T, open Factory) {
	r := NewRig(t, open)
	alice, bob, carol := r.Station("alice"), r.Station("bob"), r.Station("carol")
	fn := r.Inline(datapath.Function{Name: "f"})
	w := newTwins(t, r)
	w.hello()
	for _, rules := range [][]flow.Rule{nil, policy{mode: "selective", from: alice, to: bob, chain: []hop{{fn: fn}}, match: flow.Match{EtherType: 0x1234}, cookie: 1}.rules(),
		policy{mode: "replica", from: alice, to: bob, chain: []hop{{fn: fn}}, match: flow.Match{EtherType: 0x1234}, cookie: 11}.rules()} {
		w.commit(rules...)
		for _, kind := range []uint16{0x1234, 0x1235} {
			for _, d := range [][2]flow.MAC{{alice.MAC, bob.MAC}, {bob.MAC, alice.MAC}, {alice.MAC, carol.MAC}, {carol.MAC, broadcast}} {
				from := map[flow.MAC]*Station{alice.MAC: alice, bob.MAC: bob, carol.MAC: carol}[d[0]]
				w.say(fmt.Sprintf("%04x", kind), from, d[1], d[0], nil, kind)
			}
		}
		w.check()
		Until(t, "the counters of the reference", func() bool {
			for _, p := range r.ports() {
				if want := w.ref.Counters(p.Port); p.Rx.Packets != want.Rx.Packets || p.Tx.Packets != want.Tx.Packets {
					t.Logf("%s: in %d, out %d; want %d and %d", p.Name, p.Rx.Packets, p.Tx.Packets, want.Rx.Packets, want.Tx.Packets)
					return false
				}
			}
			return true
		})
	}
}

// testShapes: rules of more than a thousand shapes at one port, prefix pairs of all lengths with and without ports, and frames that meet few of them.
func testShapes(t *testing.T, open Factory) {
	r := NewRig(t, open)
	alice, bob := r.Station("alice"), r.Station("bob")
	fn := r.Inline(datapath.Function{Name: "f"})
	w := newTwins(t, r)
	w.hello()
	end := flow.Rule{Cookie: 1, Match: flow.Match{InPort: fn.Ports.Out}, Action: flow.Action{Op: flow.Output, Port: bob.Port}}
	rules := []flow.Rule{end}
	draw := rand.New(rand.NewPCG(1, 2))
	for _, src := range []byte{1, 2} {
		for a := 8; a <= 32; a++ {
			for b := 8; b <= 32; b++ {
				m := flow.Match{OutPort: bob.Port, Proto: flow.ProtoTCP,
					Src: netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 9, 0, src}), a).Masked(), Dst: netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 9, 0, byte(1 + draw.IntN(3))}), b).Masked()}
				first := uint16(draw.IntN(12))
				switch last := first + uint16(draw.IntN(9)); draw.IntN(4) {
				case 0:
					m.DstPorts = flow.PortRange{First: first, Last: max(last, 1)}
				case 1:
					m.SrcPorts = flow.PortRange{First: first, Last: max(last, 1)}
				}
				a := flow.Action{Op: []flow.Op{flow.Normal, flow.Drop, flow.Output}[draw.IntN(3)]}
				if a.Op == flow.Output {
					a.Port = fn.Ports.In
				}
				rules = append(rules, flow.Rule{Cookie: uint64(len(rules) + 1), Priority: uint16(1 + draw.IntN(100)), Stage: flow.Egress, Match: m, Action: a})
			}
		}
	}
	for range 2 { // some come, some go: what is there is used again
		w.commit(rules...)
		for src := byte(1); src <= 3; src++ {
			for dst := byte(1); dst <= 3; dst++ {
				for range 4 {
					m := w.next()
					frame := l2(bob.MAC, alice.MAC, nil, flow.EtherTypeIPv4, ipv4(src, dst, flow.ProtoTCP, 9, 0, tcp(uint16(draw.IntN(20)), uint16(draw.IntN(20)), m)))
					w.send(fmt.Sprint(src, " to ", dst), alice, m, frame)
				}
			}
		}
		w.check()
		draw.Shuffle(len(rules)-1, func(i, j int) { rules[i+1], rules[j+1] = rules[j+1], rules[i+1] })
		rules = rules[:len(rules)*2/3]
	}
}

func drawMatch(t *rapid.T) flow.Match {
	var m flow.Match
	switch rapid.IntRange(0, 5).Draw(t, "match") {
	case 0:
		m.EtherType = rapid.SampledFrom([]uint16{0x800, 0x806, 0x86dd, 0x1234}).Draw(t, "type")
	case 1, 2:
		m.Proto = rapid.SampledFrom([]uint8{6, 17}).Draw(t, "proto")
		first := uint16(rapid.IntRange(1, 6).Draw(t, "first"))
		m.DstPorts = flow.PortRange{First: first, Last: first + uint16(rapid.IntRange(0, 9).Draw(t, "more"))}
	case 3:
		m.Dst = netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 9, 0, byte(rapid.IntRange(1, 3).Draw(t, "host"))}), rapid.SampledFrom([]int{24, 31, 32}).Draw(t, "bits")).Masked()
	case 4:
		m.VLAN = rapid.SampledFrom([]uint16{1, 2, flow.VLANNone}).Draw(t, "vlan")
	}
	return m
}

func drawFrame(t *rapid.T, from, to *Station, mark []byte, headers int, plain bool) []byte {
	host := map[string]byte{"alice": 1, "bob": 2, "carol": 3}
	dst := to.MAC
	if rapid.IntRange(0, 4).Draw(t, "broadcast") == 0 {
		dst = broadcast
	}
	tags := rapid.SliceOfN(rapid.Uint16Range(1, 2), 0, 2).Draw(t, "tags")
	sport, dport := uint16(rapid.IntRange(1, 12).Draw(t, "sport")), uint16(rapid.IntRange(1, 12).Draw(t, "dport"))
	switch rapid.IntRange(0, 3).Draw(t, "kind") {
	case 0:
		return l2(dst, from.MAC, tags, flow.EtherTypeIPv4, ipv4(host[from.Name], host[to.Name], 6, 9, 0, tcp(sport, dport, mark)))
	case 1:
		fragment := rapid.SampledFrom([]uint16{0, 0x2000, 1}).Draw(t, "fragment")
		return l2(dst, from.MAC, tags, flow.EtherTypeIPv4, ipv4(host[from.Name], host[to.Name], 17, 9, fragment, udp(sport, dport, mark)))
	case 2:
		extensions := rapid.SliceOfN(rapid.SampledFrom([]byte{0, 43, 60, 44}), 0, headers).Draw(t, "extensions")
		return l2(dst, from.MAC, tags, flow.EtherTypeIPv6, ipv6(host[from.Name], host[to.Name], 17, 9, extensions, udp(sport, dport, mark)))
	}
	kind := rapid.SampledFrom([]uint16{0x806, 0x1234, 0x8100, 0x86dd, 0x800}).Draw(t, "type")
	if kind == 0x8100 && plain { // the mark is not to be a tag
		mark = append([]byte{0, 9, 0x12, 0x35}, mark...)
	}
	return l2(dst, from.MAC, tags, kind, mark)
}

// say sends a frame that has nothing but a mark behind its EtherType.
func (w *twins) say(what string, from *Station, dst, src flow.MAC, tags []uint16, kind uint16) {
	w.t.Helper()
	m := w.next()
	w.send(what, from, m, l2(dst, src, tags, kind, m))
}

// hello from every station.
func (w *twins) hello() {
	w.t.Helper()
	for _, st := range w.r.Stations {
		w.say("hello", st, broadcast, st.MAC, nil, 0x9000)
	}
}

// testLearned: one chain, several exits: the port is the one where the address was met.
func testLearned(t *testing.T, open Factory) {
	r := NewRig(t, open)
	alice, bob, carol, dave := r.Station("alice"), r.Station("bob"), r.Station("carol"), r.Station("dave")
	fn := r.Inline(datapath.Function{Name: "f"})
	w := newTwins(t, r)
	w.hello() // what is flooded would be learned everywhere
	entry := func(cookie uint64, stage flow.Stage, m flow.Match, to flow.Port) flow.Rule {
		return flow.Rule{Cookie: cookie, Priority: 10, Stage: stage, Match: m, Action: flow.Action{Op: flow.Output, Port: to}, Learn: true}
	}
	t.Run("Output", func(t *testing.T) {
		w.t = t
		to := func(st *Station) flow.Match { return flow.Match{OutPort: st.Port, EtherType: 0x1234} }
		w.commit(entry(1, flow.Egress, to(bob), fn.Ports.In), entry(2, flow.Egress, to(carol), fn.Ports.In),
			entry(3, flow.Egress, to(alice), fn.Ports.Out),
			flow.Rule{Cookie: 4, Match: flow.Match{InPort: fn.Ports.Out}, Action: flow.Action{Op: flow.Output}},
			flow.Rule{Cookie: 5, Match: flow.Match{InPort: fn.Ports.In}, Action: flow.Action{Op: flow.Output}})
		for range 3 {
			for _, d := range [][2]*Station{{alice, bob}, {alice, carol}, {bob, alice}, {carol, alice}, {bob, carol}} {
				w.say("to "+d[1].Name, d[0], d[1].MAC, d[0].MAC, nil, 0x1234)
				w.say("tagged to "+d[1].Name, d[0], d[1].MAC, d[0].MAC, []uint16{4}, 0x1234)
			}
			for _, many := range []flow.MAC{{255, 255, 255, 255, 255, 255}, {1, 0, 0x5e, 0, 0, 1}} { // they have no exit
				w.say("to many", alice, many, alice.MAC, nil, 0x1234)
			}
		}
		w.check()
	})
	t.Run("Resume, and an address that moves", func(t *testing.T) {
		w.t = t
		w.commit(entry(1, flow.Ingress, flow.Match{EtherType: 0x1234}, fn.Ports.In),
			flow.Rule{Cookie: 4, Match: flow.Match{InPort: fn.Ports.Out}, Action: flow.Action{Op: flow.Resume}})
		for range 3 {
			for _, from := range []*Station{alice, bob, carol} { // all with alice's address
				for range 2 {
					w.say("from "+from.Name, from, dave.MAC, alice.MAC, nil, 0x1234)
				}
			}
		}
		w.check()
	})
	t.Run("unknown exit", func(t *testing.T) {
		w.t = t
		w.commit(flow.Rule{Cookie: 8, Match: flow.Match{InPort: alice.Port, EtherType: 0x1234}, Action: flow.Action{Op: flow.Output, Port: fn.Ports.In}},
			flow.Rule{Cookie: 9, Match: flow.Match{InPort: fn.Ports.Out}, Action: flow.Action{Op: flow.Output}})
		w.say("to nobody", alice, flow.MAC{2, 9, 9, 9, 9, 9}, alice.MAC, nil, 0x1234)
		w.check()
	})
}
