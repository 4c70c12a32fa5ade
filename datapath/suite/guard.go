package suite

import (
	"bytes"
	"encoding/binary"
	"net/netip"
	"testing"

	"pgregory.net/rapid"

	"weir.dev/weir/datapath"
	"weir.dev/weir/flow"
)

// guard of a station of the suite whose addresses end in this number.
func guard(st *Station, number byte) flow.Guard {
	return flow.Guard{On: true, MACs: []flow.MAC{st.MAC}, Bound: true, Addresses: []netip.Prefix{
		netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 9, 0, number}), 32), netip.MustParsePrefix("10.9.77.0/24"),
		netip.PrefixFrom(fd57(number), 128), netip.PrefixFrom(flow.LinkLocal(st.MAC), 128)}, Shared: shared(SharedNumber)}
}

// SharedNumber is the end of the addresses that the stations of GuardFrames share: 10.9.0.200 and fd57::c8.
const SharedNumber = 200

func shared(number byte) []netip.Addr {
	return []netip.Addr{netip.AddrFrom4([4]byte{10, 9, 0, number}), fd57(number)}
}

func fd57(number byte) netip.Addr { return netip.AddrFrom16([16]byte{0xfd, 0x57, 15: number}) }

// Guarded makes a station whose endpoint has a guard.
func (r *Rig) Guarded(name string, number byte) *Station {
	r.t.Helper()
	st := r.Unplugged(name)
	st.E.Guard = guard(st, number)
	return r.plugStation(st)
}

func arpOf(op byte, mac flow.MAC, sender, target byte, mark []byte) []byte {
	b := append([]byte{0, 1, 8, 0, 6, 4, 0, op}, mac[:]...)
	b = append(b, 10, 9, 0, sender)
	if sender == 0 {
		copy(b[14:], []byte{0, 0, 0, 0})
	}
	return append(append(b, 0, 0, 0, 0, 0, 0, 10, 9, 0, target), mark...)
}

// icmp6 is a packet whose source ends in this number, 0 for ::.
func icmp6(src byte, extensions []byte, message []byte) []byte {
	b := ipv6(src, 2, flow.ProtoICMPv6, 255, extensions, message)
	if src == 0 {
		copy(b[8:24], make([]byte, 16))
	}
	return b
}

// nd is a neighbour solicitation or advertisement. The mark stands in an option that nobody knows.
func nd(kind, target byte, option byte, mac flow.MAC, mark []byte) []byte {
	a := fd57(target).As16()
	b := append([]byte{kind, 0, 0, 0, 0, 0, 0, 0}, a[:]...)
	if option != 0 {
		b = append(append(b, option, 1), mac[:]...)
	}
	return append(append(append(b, 14, 3), mark...), make([]byte, 22-len(mark))...)
}

// hostile is a frame from alice (number 1), and what becomes of it.
type hostile struct {
	name  string
	frame func(alice, bob flow.MAC, mark []byte) []byte
	want  flow.Refusal
}

// GuardFrame is a frame from a station with the addresses 10.9.0.1, 10.9.77.0/24 and fd57::1, and those of SharedNumber, to one with 10.9.0.2 and fd57::2, and what
// its port's guard says.
type GuardFrame struct {
	Name string
	Data []byte
	Want flow.Refusal
}

// GuardFrames are the attempts of the suite, for others who guard ports. Each one that is accepted holds its mark.
func GuardFrames(alice, bob flow.MAC, mark func(name string) []byte) []GuardFrame {
	var all []GuardFrame
	for _, h := range hostileFrames() {
		all = append(all, GuardFrame{h.name, h.frame(alice, bob, mark(h.name)), h.want})
	}
	return all
}

func hostileFrames() []hostile {
	var all []hostile
	add := func(name string, want flow.Refusal, frame func(alice, bob flow.MAC, mark []byte) []byte) {
		all = append(all, hostile{name, frame, want})
	}
	type payload = func(alice, bob flow.MAC, mark []byte) []byte
	in := func(etherType uint16, p payload, tags ...uint16) payload {
		return func(alice, bob flow.MAC, mark []byte) []byte {
			return l2(bob, alice, tags, etherType, p(alice, bob, mark))
		}
	}
	four := func(src, proto byte, fragment uint16, sport, dport uint16) payload {
		return func(_, _ flow.MAC, mark []byte) []byte {
			b := ipv4(src, 2, proto, 9, fragment, udp(sport, dport, mark))
			if src == 0 {
				copy(b[12:16], make([]byte, 4))
				b[10], b[11] = 0, 0
				binary.BigEndian.PutUint16(b[10:], ^sum(b[:20]))
			}
			return b
		}
	}
	message := func(src byte, kind byte, extensions ...byte) payload {
		return func(_, _ flow.MAC, mark []byte) []byte {
			return icmp6(src, extensions, append([]byte{kind, 0, 0, 0, 0, 0, 0, 0}, mark...))
		}
	}
	// discovery: option 0 none; own or bob's MAC.
	discovery := func(src, kind, target, option byte, own bool, extensions ...byte) payload {
		return func(alice, bob flow.MAC, mark []byte) []byte {
			if own {
				bob = alice
			}
			return icmp6(src, extensions, nd(kind, target, option, bob, mark))
		}
	}
	arp := func(op byte, own bool, sender, target byte) payload {
		return func(alice, bob flow.MAC, mark []byte) []byte {
			if own {
				bob = alice
			}
			return arpOf(op, bob, sender, target, mark)
		}
	}
	const v4, v6 = flow.EtherTypeIPv4, flow.EtherTypeIPv6
	cut := func(n int, p payload) payload {
		return func(alice, bob flow.MAC, mark []byte) []byte { return p(alice, bob, mark)[:n] }
	}

	add("own packet", flow.Accepted, in(v4, four(1, 17, 0, 5, 6)))
	add("own packet, tagged", flow.Accepted, in(v4, four(1, 17, 0, 5, 6), 7))
	add("source of bob", flow.RefusedSource, in(v4, four(2, 17, 0, 5, 6)))
	add("source of bob, TCP", flow.RefusedSource, in(v4, four(2, 6, 0, 5, 6)))
	add("source of bob, priority tag", flow.RefusedSource, in(v4, four(2, 17, 0, 5, 6), 0))
	add("source of bob, two tags", flow.RefusedSource, in(v4, four(2, 17, 0, 5, 6), 4, 0))
	add("three tags", flow.RefusedUnread, func(alice, bob flow.MAC, mark []byte) []byte {
		return l2(bob, alice, []uint16{4, 0}, flow.EtherTypeVLAN, append([]byte{0, 0, 8, 0}, four(1, 17, 0, 5, 6)(alice, bob, mark)...))
	})
	add("source of bob in a later fragment", flow.RefusedSource, in(v4, four(2, 17, 9, 5, 6)))
	add("IPv4 cut short", flow.RefusedSource, in(v4, cut(19, four(1, 17, 0, 5, 6))))
	add("MAC of bob", flow.RefusedMAC, func(alice, bob flow.MAC, mark []byte) []byte {
		return l2(alice, bob, nil, v4, four(1, 17, 0, 5, 6)(alice, bob, mark))
	})
	add("MAC of nobody", flow.RefusedMAC, func(alice, bob flow.MAC, mark []byte) []byte {
		return l2(bob, flow.MAC{2, 9, 9, 9, 9, 9}, nil, 0x1234, mark)
	})
	add("DHCP discover", flow.Accepted, in(v4, four(0, 17, 0, 68, 67)))
	add("from 0.0.0.0", flow.RefusedSource, in(v4, four(0, 17, 0, 5, 67)))
	add("DHCP offer", flow.RefusedDHCP, in(v4, four(1, 17, 0, 67, 68)))
	add("DHCP offer, tagged", flow.RefusedDHCP, in(v4, four(1, 17, 0, 67, 68), 9))
	add("DHCPv6 reply", flow.RefusedDHCP, in(v6, func(_, _ flow.MAC, mark []byte) []byte { return ipv6(1, 2, 17, 9, []byte{60}, udp(547, 546, mark)) }))
	add("ARP request", flow.Accepted, in(flow.EtherTypeARP, arp(1, true, 1, 2)))
	add("ARP probe", flow.Accepted, in(flow.EtherTypeARP, arp(1, true, 0, 1)))
	add("ARP probe of bob's", flow.RefusedARP, in(flow.EtherTypeARP, arp(1, true, 0, 2)))
	add("ARP request of bob", flow.RefusedARP, in(flow.EtherTypeARP, arp(1, true, 2, 3)))
	add("ARP reply of bob", flow.RefusedARP, in(flow.EtherTypeARP, arp(2, true, 2, 3)))
	add("gratuitous ARP of bob", flow.RefusedARP, in(flow.EtherTypeARP, arp(1, true, 2, 2), 0))
	add("ARP reply with bob's MAC", flow.RefusedARP, in(flow.EtherTypeARP, arp(2, false, 1, 3)))
	add("ARP cut short", flow.RefusedARP, in(flow.EtherTypeARP, cut(27, arp(2, true, 1, 3))))
	add("own IPv6 packet", flow.Accepted, in(v6, func(_, _ flow.MAC, mark []byte) []byte { return ipv6(1, 2, 17, 9, nil, udp(5, 6, mark)) }))
	add("IPv6 source of bob", flow.RefusedSource, in(v6, func(_, _ flow.MAC, mark []byte) []byte { return ipv6(2, 1, 17, 9, nil, udp(5, 6, mark)) }))
	add("IPv6 source of bob behind headers", flow.RefusedSource, in(v6, func(_, _ flow.MAC, mark []byte) []byte {
		return ipv6(2, 1, 17, 9, []byte{0, 43, 60}, udp(5, 6, mark))
	}, 0))
	add("IPv6 cut short", flow.RefusedUnread, in(v6, cut(39, message(1, 128))))
	add("an extension header cut short", flow.RefusedUnread, in(v6, func(_, _ flow.MAC, _ []byte) []byte {
		return ipv6(1, 2, 60, 9, nil, []byte{58, 1, 0, 0, 0, 0, 0, 0})
	}))
	add("no upper layer in the first fragment", flow.RefusedUnread, in(v6, func(_, _ flow.MAC, _ []byte) []byte {
		return ipv6(1, 2, 44, 9, nil, []byte{58, 0, 0, 1, 0, 0, 0, 1, 134})
	}))
	add("own later fragment", flow.Accepted, in(v6, func(_, _ flow.MAC, mark []byte) []byte {
		return ipv6(1, 2, 44, 9, nil, append([]byte{58, 0, 1, 1, 0, 0, 0, 1, 134, 0, 0, 0, 0, 0, 0, 0}, mark...))
	}))
	add("ping", flow.Accepted, in(v6, message(1, 128)))
	add("ping from ::", flow.RefusedSource, in(v6, message(0, 128)))
	add("router solicitation from ::", flow.Accepted, in(v6, message(0, 133)))
	add("multicast report from ::", flow.Accepted, in(v6, message(0, 143, 0)))
	add("router advertisement", flow.RefusedRA, in(v6, message(1, 134)))
	add("router advertisement behind headers, tagged", flow.RefusedRA, in(v6, message(1, 134, 60, 0), 0))
	add("router advertisement in a first fragment", flow.RefusedRA, in(v6, func(_, _ flow.MAC, mark []byte) []byte {
		return ipv6(1, 2, 44, 9, nil, append([]byte{58, 0, 0, 1, 0, 0, 0, 1, 134, 0, 0, 0, 0, 0, 0, 0}, mark...))
	}))
	add("redirect", flow.RefusedRA, in(v6, message(1, 137)))
	add("solicitation", flow.Accepted, in(v6, discovery(1, 135, 2, 1, true)))
	add("solicitation with bob's MAC", flow.RefusedND, in(v6, discovery(1, 135, 2, 1, false)))
	add("detection of duplicates", flow.Accepted, in(v6, discovery(0, 135, 1, 0, true)))
	add("detection of bob's duplicates", flow.RefusedND, in(v6, discovery(0, 135, 2, 0, true)))
	add("advertisement", flow.Accepted, in(v6, discovery(1, 136, 1, 2, true)))
	add("advertisement for bob", flow.RefusedND, in(v6, discovery(1, 136, 2, 2, true)))
	add("advertisement for bob behind headers", flow.RefusedND, in(v6, discovery(1, 136, 2, 2, true, 60)))
	add("advertisement from bob", flow.RefusedSource, in(v6, discovery(2, 136, 1, 2, true)))
	add("advertisement with bob's MAC", flow.RefusedND, in(v6, discovery(1, 136, 1, 2, false)))
	add("advertisement cut short", flow.RefusedND, in(v6, func(alice, bob flow.MAC, mark []byte) []byte {
		return ipv6(1, 2, 58, 255, nil, nd(136, 1, 0, alice, mark)[:20])
	}))
	add("packet from a shared address", flow.Accepted, in(v4, four(SharedNumber, 17, 0, 5, 6)))
	add("TCP from a shared address", flow.Accepted, in(v4, four(SharedNumber, 6, 0, 5, 6)))
	add("bob's MAC and a shared address", flow.RefusedMAC, func(alice, bob flow.MAC, mark []byte) []byte {
		return l2(alice, bob, nil, v4, four(SharedNumber, 17, 0, 5, 6)(alice, bob, mark))
	})
	add("ARP request for a shared address", flow.Accepted, in(flow.EtherTypeARP, arp(1, true, 1, SharedNumber)))
	add("ARP request from a shared address", flow.RefusedARP, in(flow.EtherTypeARP, arp(1, true, SharedNumber, 2)))
	add("ARP reply for a shared address", flow.RefusedARP, in(flow.EtherTypeARP, arp(2, true, SharedNumber, 2)))
	add("ARP probe of a shared address", flow.RefusedARP, in(flow.EtherTypeARP, arp(1, true, 0, SharedNumber)))
	add("gratuitous ARP for a shared address", flow.RefusedARP, in(flow.EtherTypeARP, arp(1, true, SharedNumber, SharedNumber), 0))
	add("IPv6 packet from a shared address", flow.Accepted, in(v6, func(_, _ flow.MAC, mark []byte) []byte {
		return ipv6(SharedNumber, 2, 17, 9, nil, udp(5, 6, mark))
	}))
	add("echo reply from a shared address", flow.Accepted, in(v6, message(SharedNumber, 129)))
	add("router solicitation from a shared address", flow.RefusedND, in(v6, message(SharedNumber, 133)))
	add("solicitation from a shared address", flow.RefusedND, in(v6, discovery(SharedNumber, 135, 2, 1, true)))
	add("advertisement of a shared address", flow.RefusedND, in(v6, discovery(1, 136, SharedNumber, 2, true)))
	add("advertisement of a shared address behind headers", flow.RefusedND, in(v6, discovery(1, 136, SharedNumber, 2, true, 60)))
	add("advertisement from a shared address", flow.RefusedND, in(v6, discovery(SharedNumber, 136, 1, 2, true)))
	add("detection of duplicates of a shared address", flow.RefusedND, in(v6, discovery(0, 135, SharedNumber, 0, true)))
	add("unknown ethertype", flow.Accepted, func(alice, bob flow.MAC, mark []byte) []byte { return l2(bob, alice, nil, 0x1234, mark) })
	return all
}

// testGuard: what a station sends in another's name meets no rule and arrives nowhere; what it sends in its own does.
func testGuard(t *testing.T, open Factory) {
	r := NewRig(t, open)
	alice, bob, carol := r.Guarded("alice", 1), r.Guarded("bob", 2), r.Station("carol")
	uplink := r.Fabric("uplink", false)
	fn := r.Inline(datapath.Function{Name: "f"})
	w := newTwins(t, r)
	w.hello()
	// Port security comes before every kind of rule, and drops the same frames.
	policies := map[string][]flow.Rule{
		"ordinary switching":      nil,
		"an exhaustive chain":     policy{mode: "exhaustive", from: alice, chain: []hop{{fn: fn}}, cookie: 1}.rules(),
		"a chain before the exit": policy{mode: "selective", from: alice, to: bob, chain: []hop{{fn: fn}}, cookie: 1}.rules(),
	}
	refused := func(st *Station) [flow.Refusals]uint64 { return r.port("endpoint/" + st.Name).Refused }
	for _, name := range []string{"ordinary switching", "an exhaustive chain", "a chain before the exit"} {
		t.Run(name, func(t *testing.T) {
			w.t = t
			w.commit(policies[name]...)
			for _, h := range hostileFrames() {
				before := refused(alice)
				mark := w.next()
				frame := h.frame(alice.MAC, bob.MAC, mark)
				g := guard(alice, 1)
				if got := g.Check(frame); got != h.want {
					t.Fatalf("%s: the reference says %s, want %s\n%x", h.name, got, h.want, frame)
				}
				w.send(h.name, alice, mark, frame)
				if h.want == flow.Accepted {
					if !bytes.Contains(frame, mark) {
						t.Fatalf("%s: a frame without its mark", h.name)
					}
					continue
				}
				want := before
				want[h.want]++
				Until(t, h.name+" is counted as "+h.want.String(), func() bool { return refused(alice) == want })
			}
			w.check()
		})
	}
	t.Run("a guarded MAC enters nowhere else", func(t *testing.T) {
		w.t = t
		w.commit()
		for _, from := range []*Station{carol, uplink} {
			before := refused(from)
			w.say("bob's MAC from "+from.Name, from, alice.MAC, bob.MAC, nil, 0x1234)
			before[flow.RefusedMAC]++
			Until(t, "it is counted at "+from.Name, func() bool { return refused(from) == before })
			for range 2 {
				w.say("to bob", alice, bob.MAC, alice.MAC, nil, 0x1234)
			}
		}
		w.check()
	})
	t.Run("the guard changes", func(t *testing.T) {
		w.t = t
		forged := func() {
			m := w.next()
			w.send("bob's address", alice, m, l2(bob.MAC, alice.MAC, nil, flow.EtherTypeIPv4, ipv4(2, 3, 17, 9, 0, udp(1, 2, m))))
			m = w.next()
			w.send("own address", alice, m, l2(bob.MAC, alice.MAC, nil, flow.EtherTypeIPv4, ipv4(1, 3, 17, 9, 0, udp(1, 2, m))))
		}
		for _, g := range []flow.Guard{{}, {On: true, MACs: []flow.MAC{alice.MAC}}, guard(alice, 2), guard(alice, 1)} {
			alice.E.Guard = g
			r.plugStation(alice)
			must(t, w.ref.Guard(alice.Port, g))
			forged()
			w.check()
		}
		r.Close()
		r.Reopen()
		forged()
		w.check()
	})
}

// testGuardRandom: random frames, most of them wrong somewhere, from stations with random guards.
func testGuardRandom(t *testing.T, open Factory) {
	r := NewRig(t, open)
	stations := []*Station{r.Guarded("alice", 1), r.Guarded("bob", 2), r.Station("carol")}
	fn := r.Inline(datapath.Function{Name: "f"})
	w := newTwins(t, r)
	w.hello()
	w.commit(policy{mode: "selective", from: stations[0], to: stations[1], chain: []hop{{fn: fn}}, match: flow.Match{EtherType: flow.EtherTypeIPv6}, cookie: 1}.rules()...)
	headers := []byte{0, 43, 60, 44}
	rapid.Check(t, func(rt *rapid.T) {
		for i, st := range stations[:2] {
			g := guard(st, byte(i+1))
			switch rapid.IntRange(0, 3).Draw(rt, "guard") {
			case 0:
				g.Router, g.DHCPServer = rapid.Bool().Draw(rt, "router"), rapid.Bool().Draw(rt, "server")
			case 1:
				g.Bound, g.Addresses = false, nil
			case 2:
				g.MACs = nil
			}
			g.Shared = nil
			if n := rapid.ByteRange(0, 3).Draw(rt, "shared"); n > 0 { // an own one, perhaps
				g.Shared = shared(n)
			}
			if g.Equal(st.E.Guard) {
				continue
			}
			st.E.Guard = g
			r.plugStation(st)
			must(rt, w.ref.Guard(st.Port, g))
		}
		for range rapid.IntRange(1, 8).Draw(rt, "frames") {
			from := rapid.SampledFrom(stations).Draw(rt, "from")
			m := w.next()
			w.send("a frame", from, m, drawHostile(rt, from, stations, headers, m))
		}
		w.check()
		if t.Failed() {
			rt.Fatal("see above")
		}
	})
}

func drawHostile(t *rapid.T, from *Station, all []*Station, headers, mark []byte) []byte {
	number := func(what string) byte { return rapid.SampledFrom([]byte{0, 1, 2, 3}).Draw(t, what) }
	mac := func(what string) flow.MAC {
		if rapid.IntRange(0, 2).Draw(t, what) > 0 {
			return from.MAC
		}
		return rapid.SampledFrom(all).Draw(t, what).MAC
	}
	src, to := from.MAC, rapid.SampledFrom(all).Draw(t, "to").MAC
	if rapid.IntRange(0, 9).Draw(t, "stolen") == 0 {
		src = mac("source")
	}
	if src == to { // Open vSwitch does not learn at once where such a frame came from
		src = from.MAC
	}
	tags := rapid.SliceOfN(rapid.Uint16Range(0, 1), 0, 2).Draw(t, "tags")
	ports := []uint16{5, 67, 68, 546, 547}
	sport, dport := rapid.SampledFrom(ports).Draw(t, "sport"), rapid.SampledFrom(ports).Draw(t, "dport")
	extensions := rapid.SliceOfN(rapid.SampledFrom(headers), 0, 3).Draw(t, "extensions")
	etherType, payload := flow.EtherTypeIPv6, []byte(nil)
	switch rapid.IntRange(0, 4).Draw(t, "kind") {
	case 0:
		etherType, payload = flow.EtherTypeARP, arpOf(byte(rapid.IntRange(1, 2).Draw(t, "op")), mac("sha"), number("spa"), number("tpa"), mark)
	case 1:
		etherType = flow.EtherTypeIPv4
		payload = ipv4(number("src"), 2, rapid.SampledFrom([]byte{6, 17}).Draw(t, "proto"), 9, rapid.SampledFrom([]uint16{0, 0x2000, 3}).Draw(t, "fragment"), udp(sport, dport, mark))
		if payload[15] == 0 && rapid.Bool().Draw(t, "unspecified") {
			copy(payload[12:16], make([]byte, 4))
		}
		payload[10], payload[11] = 0, 0
		binary.BigEndian.PutUint16(payload[10:], ^sum(payload[:20]))
	case 2:
		payload = ipv6(number("src"), 2, 17, 9, extensions, udp(sport, dport, mark))
	case 3:
		kind := rapid.SampledFrom([]byte{128, 131, 133, 134, 137, 143}).Draw(t, "type")
		payload = icmp6(number("src"), extensions, append([]byte{kind, 0, 0, 0, 0, 0, 0, 0}, mark...))
	case 4:
		kind := rapid.SampledFrom([]byte{135, 136}).Draw(t, "type")
		payload = icmp6(number("src"), extensions, nd(kind, number("target"), byte(rapid.IntRange(0, 2).Draw(t, "option")), mac("lla"), mark))
	}
	return l2(to, src, tags, etherType, payload)
}
