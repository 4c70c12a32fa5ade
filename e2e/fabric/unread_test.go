package fabric

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"weir.dev/weir/e2e/rig"
)

// unreadForms are forms of a datagram that a receiver may read and some switch on the way may not. Each one's payload is a mark of its name.
func unreadForms(from, to rig.Station, mark func(form string) string) map[string][]byte {
	all := map[string][]byte{}
	datagram := func(form string) []byte {
		return rig.Packet{Proto: unix.IPPROTO_UDP, Src: 9000, Dst: 9000, TTL: 64, Payload: mark(form)}.Bytes(from, to)
	}
	tags := func(b []byte, tpids ...uint16) []byte {
		for _, t := range tpids {
			b = slices.Concat(b[:12], []byte{byte(t >> 8), byte(t), 0, 0}, b[12:])
		}
		return b
	}
	six := func(form string, next byte, headers ...byte) []byte {
		b := datagram(form)
		rest := slices.Concat(headers, b[34:])
		h := []byte{0x60, 0, 0, 0, 0, byte(len(rest)), next, 64}
		for _, s := range []string{"fd57::1", "fd57::2"} {
			h = append(h, netip.MustParseAddr(s).AsSlice()...)
		}
		return slices.Concat(b[:12], []byte{0x86, 0xdd}, h, rest)
	}
	for form, tpids := range map[string][]uint16{
		"plain": nil, "one priority tag": {0x8100}, "two priority tags": {0x8100, 0x8100}, "three priority tags": {0x8100, 0x8100, 0x8100},
		"three tags, the inner ones 802.1ad": {0x88a8, 0x88a8, 0x8100}, "four tags": {0x8100, 0x8100, 0x8100, 0x8100},
	} {
		all[form] = tags(datagram(form), tpids...)
	}
	option := func(next byte) []byte { return []byte{next, 0, 1, 4, 0, 0, 0, 0} }
	fragment := func(next byte, offset uint16) []byte {
		return binary.BigEndian.AppendUint32(binary.BigEndian.AppendUint16([]byte{next, 0}, offset), 7)
	}
	const whole, more = 0, 1
	for form, chain := range map[string][]byte{
		"plain IPv6":                     {17},
		"IPv6 behind one option":         append([]byte{60}, option(17)...),
		"IPv6 behind seven options":      slices.Concat([]byte{60}, bytes.Repeat(option(60), 6), option(17)),
		"IPv6 behind hop-by-hop options": append([]byte{0}, option(17)...),
		"IPv6 behind a routing header":   append([]byte{43}, 17, 0, 253, 0, 0, 0, 0, 0),
		"an atomic fragment of IPv6":     append([]byte{44}, fragment(17, whole)...),
		"a first fragment of IPv6":       append([]byte{44}, fragment(17, more)...),
		"a later fragment of IPv6":       append([]byte{44}, fragment(17, 8)...),
		"a later fragment of options":    append([]byte{44}, fragment(60, 8)...),
		"a fragment behind an option":    slices.Concat([]byte{60}, option(44), fragment(17, 8)),
	} {
		all[form] = six(form, chain[0], chain[1:]...)
	}
	// A TCP segment in two fragments: the first one with the whole header, and with the ports only.
	for form, first := range map[string]int{"a first fragment of TCP": 88, "a tiny first fragment of TCP": 8} {
		b := rig.Packet{Proto: unix.IPPROTO_TCP, Src: 9000, Dst: 80, TTL: 64, Payload: mark(form) + strings.Repeat(".", 64)}.Bytes(from, to)
		ip := b[14:34]
		copy(b[38:], tinyMark(mark(form))) // the sequence number, which a tiny fragment holds, too
		binary.BigEndian.PutUint16(ip[2:], uint16(20+first))
		binary.BigEndian.PutUint16(ip[6:], 1<<13) // more fragments
		binary.BigEndian.PutUint16(ip[10:], 0)
		sum := uint32(0)
		for i := 0; i < len(ip); i += 2 {
			sum += uint32(binary.BigEndian.Uint16(ip[i:]))
		}
		binary.BigEndian.PutUint16(ip[10:], ^uint16(sum+sum>>16))
		all[form] = b[:34+first]
	}
	all["IPv6 behind two tags"] = tags(six("IPv6 behind two tags", 17), 0x8100, 0x8100)
	return all
}

// tinyMark stands for a text in four octets.
func tinyMark(text string) []byte {
	return binary.BigEndian.AppendUint32(nil, crc32.ChecksumIEEE([]byte(text)))
}

// What some switch cannot read to the end does not get past a policy that crosses hosts: not at an OpenFlow switch's port, not at a host's,
// not on the way between two hosts.
func TestNothingUnreadPassesAPolicyBy(t *testing.T) {
	for _, sw := range [][2]string{{"ovs", "ebpf"}, {"ebpf", "ovs"}} {
		t.Run("functions at "+sw[0]+", an endpoint at "+sw[1], func(t *testing.T) {
			t.Parallel()
			b := newBed(t, "fig2.yaml", func(s string) string {
				s = strings.Replace(s, "  nfv1: {switch: ovs}\n", fmt.Sprintf("  nfv1: {switch: %s}\n  nfv2: {switch: %s}\n", sw[0], sw[1]), 1)
				s = strings.Replace(s, "  vm2: {address: 10.0.0.2/24}\n", "  vm2: {address: 10.0.0.2/24}\n  vm3: {agent: nfv2}\n", 1)
				return s + "  - {a: \"s1:3\", b: nfv2}\n"
			})
			objects := fmt.Sprintf(`
endpoints:
  vm1: {address: 10.0.0.1/24}
  vm2: {address: 10.0.0.2/24}
  vm3: {host: nfv2, netns: %s, interface: eth0, address: 10.0.0.3/24, port_security: {mode: off}}
functions:
  fw: {image: firewall, host: nfv1, on_fail: drop, config: {allow: [icmp]}}
chains:
  c: fw
`, b.netns("vm3"))
			b.apply(objects)
			b.reach("vm1", "10.0.0.2")
			b.reach("vm3", "10.0.0.2")
			u := unread{b: b, heard: listen(t, b.netns("vm2"), "eth0"), to: b.station("vm2")}
			from := map[string]rig.Station{"vm1": b.station("vm1"), "vm3": b.taken("vm3", "10.0.0.3")}
			for name, s := range from {
				all := slices.Sorted(maps.Keys(unreadForms(s, u.to, func(string) string { return "" })))
				if got := u.arrived(name, s); !slices.Equal(got, all) {
					t.Fatalf("without a policy there arrive from %s %q, want %q", name, got, all)
				}
			}
			const match = "match: [tcp, udp, icmp, sctp]"
			for policy, senders := range map[string][]string{
				"{from: vm1, to: vm2, match_by: mac, " + match + ", chain: c}":                 {"vm1"},
				"{from: vm3, to: vm2, match_by: mac, " + match + ", chain: c}":                 {"vm3"},
				"{from: any, to: vm2, match_by: mac, " + match + ", chain: c}":                 {"vm1", "vm3"},
				"{from: any, to: any, symmetric: false, " + match + ", chain: c}":              {"vm1", "vm3"},
				"{from: vm1, to: vm2, match_by: mac, match: [tcp/80, udp/9000], chain: c}":     {"vm1"},
				"{from: any, to: vm2, match_by: mac, match: [tcp/80, udp/9000], chain: c}":     {"vm1"},
				"{from: vm3, to: any, match_by: mac, symmetric: false, match: [ip], chain: c}": {"vm3"},
			} {
				b.apply(objects + "policies:\n  p: " + policy + "\n")
				for _, name := range senders {
					b.reach(name, "10.0.0.2") // through the firewall
					if got := u.arrived(name, from[name]); len(got) > 0 {
						t.Errorf("%s: what %s sends gets past the firewall: %q", policy, name, got)
					}
				}
				b.apply(objects, "--prune")
			}
		})
	}
}

type unread struct {
	b     *bed
	heard *rig.Capture
	to    rig.Station
	round int
}

// arrived sends each form some times and gives those that arrive. What is sent last no policy here selects, and it takes the shortest way.
func (u *unread) arrived(name string, from rig.Station) []string {
	u.b.t.Helper()
	u.round++
	sender := newSender(u.b.t, u.b.netns(name), "eth0")
	mark := func(form string) string { return fmt.Sprintf("<%d: %s from %s>", u.round, form, name) }
	forms := unreadForms(from, u.to, mark)
	send := func(frame []byte) {
		if err := sender.Send(frame); err != nil {
			u.b.t.Fatal(err)
		}
	}
	for range 5 {
		for _, frame := range forms {
			send(frame)
		}
	}
	u.b.await("the last frame arrives", func() (bool, string) {
		send(slices.Concat(u.to.MAC, from.MAC, []byte{0x88, 0xb6}, []byte(mark("the last"))))
		return len(u.heard.With(mark("the last"))) > 0, "nothing heard"
	})
	var got []string
	for form := range forms {
		if len(u.heard.With(mark(form)))+len(u.heard.With(string(tinyMark(mark(form))))) > 0 {
			got = append(got, form)
		}
	}
	slices.Sort(got)
	return got
}
