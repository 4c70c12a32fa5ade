package control

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"weir.dev/weir/api"
	"weir.dev/weir/flow"
	"weir.dev/weir/openflow"
	"weir.dev/weir/openflow/fake"
)

// answering is a station that answers what it is asked about its address (ARP, and neighbour solicitations).
func answering(s *fake.Switch, port openflow.Port, m flow.MAC, ip netip.Addr) {
	s.Attach(port, func(b []byte) {
		if len(b) < 42 {
			return
		}
		raw := ip.AsSlice()
		switch kind := binary.BigEndian.Uint16(b[12:]); {
		case kind == 0x0806 && ip.Is4() && b[21] == 1 && bytes.Equal(b[38:42], raw):
			reply := slices.Concat(b[6:12], m[:], []byte{8, 6, 0, 1, 8, 0, 6, 4, 0, 2}, m[:], raw, b[22:32], make([]byte, 18))
			s.Receive(port, reply)
		case kind == 0x86dd && ip.Is6() && len(b) >= 78 && b[54] == 135 && bytes.Equal(b[62:78], raw):
			s.Receive(port, advertisement(m, ip))
		}
	})
}

// advertisement is a neighbour advertisement to all nodes.
func advertisement(m flow.MAC, ip netip.Addr) []byte {
	raw := ip.As16()
	b := slices.Concat([]byte{0x33, 0x33, 0, 0, 0, 1}, m[:], []byte{0x86, 0xdd, 0x60, 0, 0, 0, 0, 32, 58, 255}, raw[:], []byte{0xff, 2, 15: 1}, []byte{136, 0, 0, 0, 0x20, 0, 0, 0})
	return slices.Concat(b, raw[:], []byte{2, 1}, m[:])
}

// One frame moves nobody's address: neither a MAC to another port nor an IP address to another station, while its owner answers. When the owner
// is silent, or its port goes down, the address moves.
func TestAClaimMovesNothingWhileTheOwnerAnswers(t *testing.T) {
	t.Parallel()
	r := newRig(t, Options{Names: map[uint64]string{1: "s1"}})
	s := fake.New(fake.Config{DatapathID: 1, Ports: ports(4)})
	r.dial(s)
	for p := range 4 {
		r.waitEdge("s1", uint32(p+1))
	}
	four, six := netip.MustParseAddr("10.0.0.1"), netip.MustParseAddr("fd00::2")
	stations := func(want map[int]string) {
		t.Helper()
		eventually(t, "the stations", func() string {
			for _, p := range r.switches()["s1"].Status.Ports {
				if got := strings.Join(p.Stations, ", "); got != want[int(p.Number)] {
					return fmt.Sprintf("at port %d: %q, want %q", p.Number, got, want[int(p.Number)])
				}
			}
			return ""
		})
	}
	victim, other, thief := mac(1), mac(2), mac(9)
	answering(s, 1, victim, four)
	answering(s, 2, other, six)
	s.Receive(1, arp(victim, four.As4()))
	s.Receive(2, advertisement(other, six))
	own := map[int]string{1: victim.String() + " 10.0.0.1", 2: other.String() + " fd00::2"}
	stations(own)

	s.Receive(3, arp(victim, four.As4())) // the MAC
	r.waitEvent("StationRefused", "claims "+victim.String())
	s.Receive(3, arp(thief, four.As4())) // the address, from another MAC
	r.waitEvent("StationRefused", "claims 10.0.0.1")
	s.Receive(3, advertisement(other, six))
	r.waitEvent("StationRefused", "claims "+other.String())
	s.Receive(3, advertisement(thief, six))
	r.waitEvent("StationRefused", "claims fd00::2")
	own[3] = thief.String()
	stations(own)
	if n := r.events("StationMoved", ""); n != 0 {
		t.Errorf("%d stations moved", n)
	}

	s.Attach(1, nil) // it is unplugged, and its port does not tell
	s.Receive(4, arp(victim, four.As4()))
	r.waitEvent("StationMoved", "from s1:1 to s1:4")
	stations(map[int]string{2: own[2], 3: own[3], 4: own[1]})
	s.SetLink(4, false)
	s.Receive(1, arp(victim, four.As4()))
	stations(map[int]string{1: own[1], 2: own[2], 3: own[3]})
}

// An address that an endpoint of a host declares is nobody's in the fabric, from the first frame on.
func TestAnEndpointsAddressIsNotClaimed(t *testing.T) {
	t.Parallel()
	r := newRig(t, Options{Names: map[uint64]string{1: "s1", 2: "s2"}})
	_, s2, h := fig2(t, r, fake.Config{})
	_ = h
	ctx := t.Context()
	if _, err := r.client.Endpoints().Put(ctx, "vm3", api.EndpointSpec{Host: "h1", Netns: "vm3", Interface: "eth0", Address: "10.0.0.7/24"}); err != nil {
		t.Fatal(err)
	}
	eventually(t, "a refusal", func() string {
		s2.Receive(2, arp(mac(2), [4]byte{10, 0, 0, 7}))
		if r.events("StationRefused", "10.0.0.7") == 0 {
			return "none yet"
		}
		return ""
	})
	for name, sw := range r.switches() {
		for _, p := range sw.Status.Ports {
			if strings.Contains(strings.Join(p.Stations, " "), "10.0.0.7") {
				t.Errorf("%s:%d has it: %v", name, p.Number, p.Stations)
			}
		}
	}
}
