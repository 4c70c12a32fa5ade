package suite

import (
	"fmt"
	"net/netip"
	"testing"

	"weir.dev/weir/datapath"
	"weir.dev/weir/flow"
)

// family of traffic: what a policy selects, frames it selects and frames it does not, either direction.
type family struct {
	name       string
	match      flow.Match // from -> to
	selected   func(src, dst peer, reverse bool, mark []byte) []byte
	unselected func(src, dst peer, reverse bool, mark []byte) []byte
}

type peer struct {
	mac  flow.MAC
	host byte // of its addresses
}

// service builds a frame between a client's port 40000 and the service's.
func service(build func(src, dst peer, sport, dport uint16, mark []byte) []byte, port uint16) func(src, dst peer, reverse bool, mark []byte) []byte {
	return func(src, dst peer, reverse bool, mark []byte) []byte {
		if reverse {
			return build(src, dst, port, 40000, mark)
		}
		return build(src, dst, 40000, port, mark)
	}
}

func tcp4(tags ...uint16) func(src, dst peer, sport, dport uint16, mark []byte) []byte {
	return func(src, dst peer, sport, dport uint16, mark []byte) []byte {
		return l2(dst.mac, src.mac, tags, flow.EtherTypeIPv4, ipv4(src.host, dst.host, flow.ProtoTCP, 1, 0x4000, tcp(sport, dport, mark)))
	}
}

func udp4(fragment uint16) func(src, dst peer, sport, dport uint16, mark []byte) []byte {
	return func(src, dst peer, sport, dport uint16, mark []byte) []byte {
		return l2(dst.mac, src.mac, nil, flow.EtherTypeIPv4, ipv4(src.host, dst.host, flow.ProtoUDP, 255, fragment, udp(sport, dport, mark)))
	}
}

func tcp6(extensions ...byte) func(src, dst peer, sport, dport uint16, mark []byte) []byte {
	return func(src, dst peer, sport, dport uint16, mark []byte) []byte {
		return l2(dst.mac, src.mac, nil, flow.EtherTypeIPv6, ipv6(src.host, dst.host, flow.ProtoTCP, 1, extensions, tcp(sport, dport, mark)))
	}
}

func plain(tags []uint16, etherType uint16, payload func(src, dst peer, mark []byte) []byte) func(src, dst peer, reverse bool, mark []byte) []byte {
	return func(src, dst peer, _ bool, mark []byte) []byte {
		return l2(dst.mac, src.mac, tags, etherType, payload(src, dst, mark))
	}
}

func icmp4(src, dst peer, mark []byte) []byte {
	return ipv4(src.host, dst.host, flow.ProtoICMP, 64, 0, append([]byte{8, 0, 0, 0, 0, 1, 0, 1}, mark...))
}

func rawPayload(_, _ peer, mark []byte) []byte { return append(make([]byte, 30), mark...) }

func families() []family {
	any4 := flow.EtherTypeIPv4
	port := func(p uint16) flow.PortRange { return flow.PortRange{First: p, Last: p} }
	arpFrame := func(src, dst peer, mark []byte) []byte { return arp(2, src.mac, dst.mac, mark) }
	return []family{
		{"IPv4 TCP", flow.Match{EtherType: any4, Proto: 6, DstPorts: port(80)}, service(tcp4(), 80), service(tcp4(), 81)},
		{"IPv4 TCP by prefix and range", flow.Match{Src: netip.MustParsePrefix("10.9.0.1/32"), Dst: netip.MustParsePrefix("10.9.0.0/30"), Proto: 6,
			DstPorts: flow.PortRange{First: 1000, Last: 2999}}, service(tcp4(), 2999), service(tcp4(), 3000)},
		{"UDP", flow.Match{EtherType: any4, Proto: 17, DstPorts: port(53)}, service(udp4(0), 53), service(udp4(0), 54)},
		{"UDP, first fragment", flow.Match{EtherType: any4, Proto: 17, DstPorts: port(53)}, service(udp4(0x2000), 53), service(udp4(0x2001), 53)},
		{"UDP, later fragment without ports", flow.Match{EtherType: any4, Proto: 17}, service(udp4(0x0100), 53), service(tcp4(), 53)},
		{"ICMP", flow.Match{EtherType: any4, Proto: 1}, plain(nil, any4, icmp4), service(udp4(0), 53)},
		{"IPv6 TCP", flow.Match{EtherType: flow.EtherTypeIPv6, Proto: 6, DstPorts: port(443)}, service(tcp6(), 443), service(tcp6(), 444)},
		{"IPv6 TCP behind extension headers", flow.Match{Dst: netip.MustParsePrefix("fd57::/64"), Src: netip.MustParsePrefix("fd57::/64"), Proto: 6, DstPorts: port(443)},
			service(tcp6(0, 43, 44, 60, 60, 60), 443), service(tcp6(0, 43, 44, 60, 60, 60, 60), 443)},
		{"both families", flow.Match{Proto: 6, DstPorts: port(443)}, service(tcp6(60), 443), service(udp4(0), 443)},
		{"ARP", flow.Match{EtherType: flow.EtherTypeARP}, plain(nil, flow.EtherTypeARP, arpFrame), plain(nil, any4, icmp4)},
		{"VLAN", flow.Match{VLAN: 5, EtherType: any4, Proto: 6}, service(tcp4(5), 80), service(tcp4(6), 80)},
		{"VLAN, two tags", flow.Match{VLAN: 7, Proto: 6, DstPorts: port(80)}, service(tcp4(7, 8), 80), service(tcp4(8, 7), 80)},
		{"untagged only", flow.Match{VLAN: flow.VLANNone, EtherType: any4}, service(tcp4(), 80), service(tcp4(4), 80)},
		{"unknown EtherType", flow.Match{EtherType: 0x1234}, plain(nil, 0x1234, rawPayload), plain(nil, 0x1235, rawPayload)},
		{"unknown EtherType, tagged", flow.Match{VLAN: 9, EtherType: 0x1234}, plain([]uint16{9}, 0x1234, rawPayload), plain(nil, 0x1234, rawPayload)},
		{"by MAC", flow.Match{DstMAC: flow.MAC{2, 0x57, 'b'}, DstMACMask: flow.MAC{255, 255, 255}}, service(tcp4(), 80),
			func(src, dst peer, _ bool, mark []byte) []byte {
				return l2(broadcast, src.mac, nil, 0x1234, mark)
			}},
	}
}

// testSteering: modes x families x directions x kinds of functions.
func testSteering(t *testing.T, open Factory) {
	for _, kind := range []string{"wire", "inline"} {
		t.Run(kind, func(t *testing.T) {
			r := NewRig(t, open)
			alice, bob := r.Station("alice"), r.Station("bob")
			r.Station("carol") // sees what is flooded, and nothing else
			var chain []hop
			for i := range 3 {
				name := fmt.Sprintf("f%d", i)
				if kind == "wire" {
					chain = append(chain, hop{fn: r.Wire(name)})
				} else {
					chain = append(chain, hop{fn: r.Inline(datapath.Function{Name: name})})
				}
				if i == 1 {
					chain = append(chain, hop{fn: r.Tap("mon"), tap: true})
				}
			}
			w := newTwins(t, r)
			for _, mode := range modes {
				for _, f := range families() {
					if seven := "IPv6 TCP behind extension headers"; f.name == seven && !r.can(SixHeaders) {
						f.unselected = service(tcp6(0, 43, 44, 60, 60, 60), 444)
					}
					t.Run(mode+"/"+f.name, func(t *testing.T) {
						w.t = t
						p := policy{mode: mode, from: alice, to: bob, chain: chain, match: f.match, cookie: 1}
						w.commit(p.rules()...)
						a, b := peer{alice.MAC, 1}, peer{bob.MAC, 2}
						for range 2 { // the second time the flow is known
							for _, d := range []struct {
								name     string
								from     *Station
								src, dst peer
								reverse  bool
							}{{"forward", alice, a, b, false}, {"reverse", bob, b, a, true}} {
								m := w.next()
								w.send(d.name+", selected", d.from, m, f.selected(d.src, d.dst, d.reverse, m))
								m = w.next()
								w.send(d.name+", not selected", d.from, m, f.unselected(d.src, d.dst, d.reverse, m))
								w.say(d.name+", broadcast", d.from, broadcast, d.src.mac, nil, 0x1236)
							}
						}
						w.check()
					})
				}
			}
		})
	}
}
