package suite

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"net/netip"
	"testing"

	"weir.dev/weir/datapath"
	"weir.dev/weir/flow"
)

// odd is a frame that is seldom seen, or that no good sender sends.
type odd struct {
	name  string
	frame func(dst, src flow.MAC, mark []byte) []byte
	sound bool // its lengths are true
	needs Capability
}

func oddFrames() []odd {
	four := func(b []byte) func(dst, src flow.MAC, mark []byte) []byte {
		return func(dst, src flow.MAC, mark []byte) []byte {
			return l2(dst, src, nil, flow.EtherTypeIPv4, append(bytes.Clone(b), mark...))
		}
	}
	// six is an IPv6 packet whose payload begins with a header of this type.
	six := func(next uint8, payload ...byte) func(dst, src flow.MAC, mark []byte) []byte {
		return func(dst, src flow.MAC, mark []byte) []byte {
			return l2(dst, src, nil, flow.EtherTypeIPv6, ipv6(1, 2, next, 9, nil, append(bytes.Clone(payload), mark...)))
		}
	}
	ah := append([]byte{flow.ProtoTCP, 4}, make([]byte, 22)...) // 24 bytes: a length in other units than the others'
	segment := tcp(40000, 80, nil)
	cut := ipv4(1, 2, flow.ProtoTCP, 9, 0, nil)
	cut[0] = 0x4f // 40 bytes of options, of which only the mark is there
	options := ipv4(1, 2, flow.ProtoTCP, 9, 0, append([]byte{1, 1, 1, 1}, segment...))
	options[0], options[10], options[11] = 0x46, 0, 0
	binary.BigEndian.PutUint16(options[10:], ^sum(options[:24]))
	whole := ipv4(1, 2, flow.ProtoTCP, 9, 0, segment)
	// tags are EtherTypes and ids of tags before an IPv4 packet.
	tags := func(tags ...uint16) func(dst, src flow.MAC, mark []byte) []byte {
		return func(dst, src flow.MAC, mark []byte) []byte {
			var b []byte
			for _, n := range tags {
				b = binary.BigEndian.AppendUint16(b, n)
			}
			return l2(dst, src, nil, tags[0], append(append(b[2:], 8, 0), append(bytes.Clone(whole), mark...)...))
		}
	}
	snap := func(inner ...byte) func(dst, src flow.MAC, mark []byte) []byte {
		return func(dst, src flow.MAC, mark []byte) []byte {
			b := append([]byte{0xaa, 0xaa, 3}, inner...)
			b = append(append(b, whole...), mark...)
			return l2(dst, src, nil, uint16(len(b)), b)
		}
	}
	seven := bytes.Repeat([]byte{60, 0, 1, 4, 0, 0, 0, 0}, 6)
	seven = append(append(seven, flow.ProtoTCP, 0, 1, 4, 0, 0, 0, 0), segment...)
	return []odd{
		{name: "three priority tags", frame: tags(0x8100, 0, 0x8100, 0, 0x8100, 0), sound: true},
		{name: "three tags", frame: tags(0x88a8, 5, 0x8100, 6, 0x8100, 7), sound: true},
		{name: "four tags", frame: tags(0x88a8, 0, 0x88a8, 0, 0x88a8, 0, 0x88a8, 0), sound: true},
		{name: "SNAP", frame: snap(0, 0, 0, 8, 0), sound: true},
		{name: "SNAP of another organisation", frame: snap(0, 0x80, 0xc2, 8, 0), sound: true},
		{name: "a tag behind SNAP", frame: snap(0, 0, 0, 0x81, 0, 0, 0, 8, 0), sound: true},
		{name: "seven extension headers", frame: six(60, seven...), sound: true, needs: SixHeaders},
		{name: "a later IPv6 fragment", frame: six(44, append([]byte{flow.ProtoTCP, 0, 0, 8, 0, 0, 0, 1}, segment...)...), sound: true, needs: LaterFragments},
		{name: "a later IPv6 fragment with an extension header", frame: six(44, append([]byte{60, 0, 0, 8, 0, 0, 0, 1, flow.ProtoTCP, 0, 1, 4, 0, 0, 0, 0}, segment...)...), sound: true},
		{name: "a fragment header behind another", frame: six(60, append([]byte{44, 0, 1, 4, 0, 0, 0, 0, flow.ProtoTCP, 0, 0, 1, 0, 0, 0, 1}, segment...)...), sound: true},
		{name: "encapsulating security payload", frame: six(50, segment...), sound: true},
		{name: "GRE", frame: four(ipv4(1, 2, 47, 9, 0, append([]byte{0, 0, 8, 0}, whole...))), sound: true},
		{name: "MPLS", frame: func(dst, src flow.MAC, mark []byte) []byte {
			return l2(dst, src, nil, 0x8847, append(append([]byte{0, 1, 1, 64}, whole...), mark...))
		}, sound: true},
		{name: "PPPoE", frame: func(dst, src flow.MAC, mark []byte) []byte {
			return l2(dst, src, nil, 0x8864, append(append([]byte{0x11, 0, 0, 1, 0, 62, 0, 0x21}, whole...), mark...))
		}, sound: true},
		{name: "IPv4 options", frame: four(options), sound: true},
		{name: "IPv4 options cut short", frame: four(cut), sound: false},
		{name: "a header of five words and less", frame: func(dst, src flow.MAC, mark []byte) []byte {
			b := ipv4(1, 2, flow.ProtoTCP, 9, 0, append(bytes.Clone(segment), mark...))
			b[0] = 0x44
			return l2(dst, src, nil, flow.EtherTypeIPv4, b)
		}, sound: false},
		{name: "version 6 in IPv4", frame: func(dst, src flow.MAC, mark []byte) []byte {
			return l2(dst, src, nil, flow.EtherTypeIPv4, ipv6(1, 2, flow.ProtoTCP, 9, nil, append(bytes.Clone(segment), mark...)))
		}, sound: false},
		{name: "a priority tag", frame: func(dst, src flow.MAC, mark []byte) []byte {
			return l2(dst, src, []uint16{0}, flow.EtherTypeIPv4, ipv4(1, 2, flow.ProtoTCP, 9, 0, append(bytes.Clone(segment), mark...)))
		}, sound: true},
		{name: "authentication header", frame: six(51, append(ah, segment...)...), sound: true},
		{name: "atomic fragment", frame: six(44, append([]byte{flow.ProtoTCP, 0, 0, 0, 0, 0, 0, 1}, segment...)...), sound: true},
		{name: "first fragment, reserved bits", frame: six(44, append([]byte{flow.ProtoTCP, 0, 0, 7, 0, 0, 0, 1}, segment...)...), sound: true},
		{name: "no next header", frame: six(59, segment...), sound: true},
		{name: "mobility header", frame: six(135, append([]byte{59, 0, 0, 0, 0, 0, 0, 0}, segment...)...), sound: true},
		{name: "extension header that ends behind the frame", frame: six(60, flow.ProtoTCP, 9, 1, 4, 0, 0, 0, 0), sound: false},
		{name: "a second such, behind the frame", frame: six(60, 43, 9, 1, 4, 0, 0, 0, 0), sound: false},
		{name: "extension header cut short", frame: func(dst, src flow.MAC, mark []byte) []byte { // the mark is in the addresses
			b := ipv6(1, 2, 60, 9, nil, []byte{flow.ProtoTCP, 0})
			copy(b[8+6:], mark)
			return l2(dst, src, nil, flow.EtherTypeIPv6, b)
		}, sound: false},
	}
}

// testOdd: rules for protocols and ports, and frames with headers that are seldom seen, cut short or wrong.
func testOdd(t *testing.T, open Factory) {
	r := NewRig(t, open)
	alice, bob := r.Station("alice"), r.Station("bob")
	fn := r.Inline(datapath.Function{Name: "f"})
	w := newTwins(t, r)
	w.hello()
	matches := []flow.Match{{Proto: flow.ProtoTCP, DstPorts: flow.PortRange{First: 80, Last: 80}}, {VLAN: 0, Proto: flow.ProtoTCP}, {VLAN: flow.VLANNone},
		{EtherType: flow.EtherTypeIPv4}, {EtherType: flow.EtherTypeIPv6}}
	for _, proto := range []uint8{43, 44, 51, 59, 60, 135} {
		matches = append(matches, flow.Match{Proto: proto})
	}
	ten := netip.MustParsePrefix("10.9.0.0/24")
	for _, u := range []flow.Unread{flow.UnreadNetwork, flow.UnreadUpper} {
		for _, m := range []flow.Match{{Proto: flow.ProtoTCP, DstPorts: flow.PortRange{First: 80, Last: 80}}, {VLAN: flow.VLANNone, Proto: flow.ProtoTCP}, {Src: ten, Dst: ten}} {
			if w, ok := m.May(u); ok {
				matches = append(matches, w)
			}
		}
	}
	for _, m := range matches {
		t.Run(fmt.Sprintf("%+v", m), func(t *testing.T) {
			w.t = t
			w.commit(policy{mode: "selective", from: alice, to: bob, chain: []hop{{fn: fn}}, match: m, cookie: 1}.rules()...)
			for range 2 { // the second time the flows are known
				for _, o := range oddFrames() {
					if o.sound || r.can(WrongLengths) {
						if o.needs == "" || r.can(o.needs) {
							mark := w.next()
							w.send(o.name, alice, mark, o.frame(bob.MAC, alice.MAC, mark))
						}
					}
				}
			}
			w.check()
		})
	}
}

// testTiny: a first fragment too small for the whole TCP header is taken by a rule for ports, or dropped: its ports do arrive.
func testTiny(t *testing.T, open Factory) {
	r := NewRig(t, open)
	alice, bob := r.Station("alice"), r.Station("bob")
	fn := r.Inline(datapath.Function{Name: "f"})
	w := newTwins(t, r)
	w.hello()
	for _, m := range []flow.Match{{Proto: flow.ProtoTCP, DstPorts: flow.PortRange{First: 80, Last: 80}}, {Proto: flow.ProtoSCTP, DstPorts: flow.PortRange{First: 1, Last: 90}}} {
		w.commit(policy{mode: "selective", from: alice, to: bob, chain: []hop{{fn: fn}}, match: m, cookie: 1}.rules()...)
		eight := tcp(40000, 80, nil)[:8]
		for name, frame := range map[string][]byte{
			"IPv4": l2(bob.MAC, alice.MAC, nil, flow.EtherTypeIPv4, ipv4(1, 2, m.Proto, 9, 0x2000, eight)),
			"IPv6": l2(bob.MAC, alice.MAC, nil, flow.EtherTypeIPv6, ipv6(1, 2, 44, 9, nil, append([]byte{m.Proto, 0, 0, 1, 0, 0, 0, 1}, eight...))),
		} {
			mark, last := w.next(), w.next()
			alice.Send(t, append(frame, mark...)) // as padding
			alice.Send(t, l2(bob.MAC, alice.MAC, nil, 0x9000, last))
			Until(t, "the last frame", func() bool { return len(bob.Socket.Frames(last)) == 1 })
			if len(bob.Socket.Frames(mark)) > 0 { // a function counts a frame after it has handed it on
				Until(t, fmt.Sprintf("%s, protocol %d met the chain", name, m.Proto), func() bool { return len(fn.Sockets["in"].Frames(mark)) > 0 })
			}
		}
	}
}
