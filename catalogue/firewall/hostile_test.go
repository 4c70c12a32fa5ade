package main

import (
	"encoding/binary"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"weir.dev/weir/catalogue/rig"
	"weir.dev/weir/netns"
)

// reading is what a station makes of a frame, behind VLAN tags.
type reading struct {
	tags   int
	outer  uint16 // the first tag's VLAN
	kind   uint16
	proto  int // -1: no IP packet with one that can be found
	offset int // of a fragment, in units of 8 bytes
	upper  []byte
}

func read(b []byte) reading {
	r, at := reading{proto: -1}, 12
	for ; at+2 <= len(b); at += 4 {
		r.kind = binary.BigEndian.Uint16(b[at:])
		if r.kind != unix.ETH_P_8021Q && r.kind != unix.ETH_P_8021AD {
			break
		}
		if r.tags++; r.tags == 1 && at+4 <= len(b) {
			r.outer = binary.BigEndian.Uint16(b[at+2:]) & 0xfff
		}
	}
	ip := b[min(at+2, len(b)):]
	switch {
	case r.kind == unix.ETH_P_IP && len(ip) >= 20 && ip[0]>>4 == 4 && ip[0]&15 >= 5:
		head, total := int(ip[0]&15)*4, int(binary.BigEndian.Uint16(ip[2:]))
		if head <= total && total <= len(ip) {
			r.proto, r.offset, r.upper = int(ip[9]), int(binary.BigEndian.Uint16(ip[6:])&0x1fff), ip[head:]
		}
	case r.kind == unix.ETH_P_IPV6 && len(ip) >= 40 && ip[0]>>4 == 6 && 40+int(binary.BigEndian.Uint16(ip[4:])) <= len(ip):
		r.behind(ip[6], ip[40:])
	}
	return r
}

// behind extension headers of IPv6. An authentication header is a protocol of its own: who has no key for it takes nothing that is behind it.
func (r *reading) behind(next byte, rest []byte) {
	for {
		size := 8
		switch next {
		case unix.IPPROTO_HOPOPTS, unix.IPPROTO_ROUTING, unix.IPPROTO_DSTOPTS, unix.IPPROTO_FRAGMENT:
			if len(rest) < size {
				return
			}
		case unix.IPPROTO_NONE:
			return
		default:
			r.proto, r.upper = int(next), rest
			return
		}
		if next != unix.IPPROTO_FRAGMENT {
			size += int(rest[1]) * 8
		} else if r.offset = int(binary.BigEndian.Uint16(rest[2:]) >> 3); r.offset > 0 {
			r.proto = int(rest[0])
			return
		}
		if len(rest) < size {
			return
		}
		next, rest = rest[0], rest[size:]
	}
}

// forbidden says why a frame must not pass a firewall that allows tcp/80 and udp/53, and nothing else.
func forbidden(up bool, b []byte) string {
	r := read(b)
	port := func(at int, want uint16) bool {
		return len(r.upper) >= at+2 && binary.BigEndian.Uint16(r.upper[at:]) == want
	}
	code := func(first, last byte) bool { return len(r.upper) > 0 && r.upper[0] >= first && r.upper[0] <= last }
	switch {
	case r.tags > 1:
		return "behind two VLAN tags"
	case r.kind == unix.ETH_P_ARP:
		return ""
	case r.proto < 0:
		return "neither ARP nor a proper IP packet"
	case r.offset > 1 && (r.proto == unix.IPPROTO_TCP || r.proto == unix.IPPROTO_UDP):
		return "" // behind all ports and flags
	case r.offset > 0:
		return "a fragment that nothing allows"
	case r.proto == unix.IPPROTO_ICMP && r.kind == unix.ETH_P_IP && (code(3, 3) || code(11, 12)), r.proto == unix.IPPROTO_ICMPV6 && (code(1, 4) || code(133, 137)):
		return "" // as stations need
	case up && (r.proto == unix.IPPROTO_TCP && port(portDst, 80) || r.proto == unix.IPPROTO_UDP && port(portDst, 53)):
		return ""
	case !up && r.proto == unix.IPPROTO_UDP && port(portSrc, 53):
		return ""
	case !up && r.proto == unix.IPPROTO_TCP && port(portSrc, 80):
		const syn, ack = 2, 16
		if len(r.upper) > 13 && r.upper[13]&(syn|ack) != syn {
			return ""
		}
		return "a server begins a connection"
	}
	return "a service that is not allowed"
}

// denied says why a frame must not pass a firewall that accepts everything but UDP.
func denied(_ bool, b []byte) string {
	switch r := read(b); {
	case r.tags < 2 && r.proto == unix.IPPROTO_UDP:
		return "UDP"
	case r.tags > 1 && r.outer == 0:
		return "behind a priority tag and another"
	}
	return ""
}

// The header of a long frame of a packet socket is in another part of the kernel's packet than its begin: the protocol in it is read all the same.
func TestLongFrames(t *testing.T) {
	r, _, _ := start(t, `{"default": "accept", "deny": ["udp"]}`)
	for space, links := range map[string][]string{r.Netns: {"in", "out"}, r.Client.Netns: {r.Client.Link.Name}, r.Server.Netns: {r.Server.Link.Name}} {
		s, err := netns.At(space)
		must(t, err)
		defer s.Close()
		for _, l := range links {
			must(t, s.SetMTU(l, 9000))
		}
	}
	for name, want := range map[string]bool{"udp 53": false, "udp6 53": false, "tcp 80 syn": true, "tcp6 80 syn": true} {
		for _, n := range []int{1000, 4000, 5000, 8900} {
			f := append(frames(t)[name], make([]byte, n)...)
			if up, down := rig.Passes(r.Client, r.Server, f), rig.Passes(r.Server, r.Client, f); up != want || down != want {
				t.Errorf("%s, %d bytes: passes up %t, down %t; want %t", name, len(f), up, down, want)
			}
		}
	}
}

// Hostile frames by both ports, up to jumbo frames: what is not allowed does not pass, whatever is wrong with it, and what passes is as it came.
func TestHostileFrames(t *testing.T) {
	for _, x := range []struct {
		name, config string
		frames       int
		denied       func(bool, []byte) string
	}{
		{"services are allowed", `{"allow": ["tcp/80", "udp/53"]}`, 700_000, forbidden},
		{"UDP is denied", `{"default": "accept", "deny": ["udp"]}`, 300_000, denied},
	} {
		t.Run(x.name, func(t *testing.T) {
			r, p, _ := start(t, x.config)
			h := rig.Hostile{Frames: x.frames, MTU: 9000, MemoryKB: 48 << 10, Denied: x.denied, Pass: 0.01}
			if strings.Contains(p.Output(), "tracking=connections") { // then the kernel puts fragments together, and cuts padding off
				h.Changed = func(f []byte) bool { return read(f).kind == unix.ETH_P_IP || read(f).kind == unix.ETH_P_IPV6 }
			}
			h.Send(r, p.PID())
			p.Signal(syscall.SIGTERM)
			must(t, p.End())
		})
	}
}
