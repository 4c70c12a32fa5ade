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

// forbidden says why a frame must not pass a firewall that allows tcp/80 and udp/53, and nothing else.
func forbidden(up bool, b []byte) string {
	r := rig.Read(b)
	port := func(at int, want uint16) bool {
		return len(r.Upper) >= at+2 && binary.BigEndian.Uint16(r.Upper[at:]) == want
	}
	code := func(first, last byte) bool { return len(r.Upper) > 0 && r.Upper[0] >= first && r.Upper[0] <= last }
	switch {
	case len(r.VLANs) > 1:
		return "behind two VLAN tags"
	case r.Kind == unix.ETH_P_ARP:
		return ""
	case r.Proto < 0:
		return "neither ARP nor a proper IP packet"
	case r.Offset > 1 && (r.Proto == unix.IPPROTO_TCP || r.Proto == unix.IPPROTO_UDP):
		return "" // behind all ports and flags
	case r.Offset > 0:
		return "a fragment that nothing allows"
	case r.Proto == unix.IPPROTO_ICMP && r.Kind == unix.ETH_P_IP && (code(3, 3) || code(11, 12)), r.Proto == unix.IPPROTO_ICMPV6 && (code(1, 4) || code(133, 137)):
		return "" // as stations need
	case up && (r.Proto == unix.IPPROTO_TCP && port(portDst, 80) || r.Proto == unix.IPPROTO_UDP && port(portDst, 53)):
		return ""
	case !up && r.Proto == unix.IPPROTO_UDP && port(portSrc, 53):
		return ""
	case !up && r.Proto == unix.IPPROTO_TCP && port(portSrc, 80):
		const syn, ack = 2, 16
		if len(r.Upper) > 13 && r.Upper[13]&(syn|ack) != syn {
			return ""
		}
		return "a server begins a connection"
	}
	return "a service that is not allowed"
}

// denied says why a frame must not pass a firewall that accepts everything but UDP.
func denied(_ bool, b []byte) string {
	switch r := rig.Read(b); {
	case len(r.VLANs) < 2 && r.Proto == unix.IPPROTO_UDP:
		return "UDP"
	case len(r.VLANs) > 1 && r.VLANs[0] == 0:
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
				h.Changed = func(f []byte) bool {
					r := rig.Read(f)
					return r.Kind == unix.ETH_P_IP || r.Kind == unix.ETH_P_IPV6
				}
			}
			h.Send(r, p.PID())
			p.Signal(syscall.SIGTERM)
			must(t, p.End())
		})
	}
}
