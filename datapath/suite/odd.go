package suite

import (
	"bytes"
	"encoding/binary"
	"testing"

	"weir.dev/weir/datapath"
	"weir.dev/weir/flow"
)

// odd is a frame that is seldom seen, or that no good sender sends.
type odd struct {
	name  string
	frame func(dst, src flow.MAC, mark []byte) []byte
	sound bool // its lengths are true
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
	return []odd{
		{"IPv4 options", four(options), true},
		{"IPv4 options cut short", four(cut), false},
		{"a header of five words and less", func(dst, src flow.MAC, mark []byte) []byte {
			b := ipv4(1, 2, flow.ProtoTCP, 9, 0, append(bytes.Clone(segment), mark...))
			b[0] = 0x44
			return l2(dst, src, nil, flow.EtherTypeIPv4, b)
		}, false},
		{"version 6 in IPv4", func(dst, src flow.MAC, mark []byte) []byte {
			return l2(dst, src, nil, flow.EtherTypeIPv4, ipv6(1, 2, flow.ProtoTCP, 9, nil, append(bytes.Clone(segment), mark...)))
		}, false},
		{"a priority tag", func(dst, src flow.MAC, mark []byte) []byte {
			return l2(dst, src, []uint16{0}, flow.EtherTypeIPv4, ipv4(1, 2, flow.ProtoTCP, 9, 0, append(bytes.Clone(segment), mark...)))
		}, true},
		{"authentication header", six(51, append(ah, segment...)...), true},
		{"atomic fragment", six(44, append([]byte{flow.ProtoTCP, 0, 0, 0, 0, 0, 0, 1}, segment...)...), true},
		{"first fragment, reserved bits", six(44, append([]byte{flow.ProtoTCP, 0, 0, 7, 0, 0, 0, 1}, segment...)...), true},
		{"no next header", six(59, segment...), true},
		{"mobility header", six(135, append([]byte{59, 0, 0, 0, 0, 0, 0, 0}, segment...)...), true},
		{"extension header that ends behind the frame", six(60, flow.ProtoTCP, 9, 1, 4, 0, 0, 0, 0), false},
		{"a second such, behind the frame", six(60, 43, 9, 1, 4, 0, 0, 0, 0), false},
		{"extension header cut short", func(dst, src flow.MAC, mark []byte) []byte { // the mark is in the addresses
			b := ipv6(1, 2, 60, 9, nil, []byte{flow.ProtoTCP, 0})
			copy(b[8+6:], mark)
			return l2(dst, src, nil, flow.EtherTypeIPv6, b)
		}, false},
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
	for _, o := range oddFrames() {
		t.Run(o.name, func(t *testing.T) {
			if !o.sound && !r.can(WrongLengths) {
				return
			}
			w.t = t
			for _, m := range matches {
				w.commit(policy{mode: "selective", from: alice, to: bob, chain: []hop{{fn: fn}}, match: m, cookie: 1}.rules()...)
				for range 2 { // the second time the flow is known
					mark := w.next()
					w.send(o.name, alice, mark, o.frame(bob.MAC, alice.MAC, mark))
				}
				w.check()
			}
		})
	}
}
