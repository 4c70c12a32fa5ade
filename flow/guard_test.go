package flow

import (
	"encoding/binary"
	"net/netip"
	"slices"
	"testing"
)

var (
	hers, forged = MAC{2, 0, 0, 0, 0, 1}, MAC{2, 0, 0, 0, 0, 9}
	everybody    = MAC{255, 255, 255, 255, 255, 255}
)

func aliceGuard() Guard {
	return Guard{On: true, MACs: []MAC{hers}, Bound: true, Addresses: []netip.Prefix{
		netip.MustParsePrefix("10.9.0.1/32"), netip.MustParsePrefix("10.9.1.0/24"), netip.MustParsePrefix("fd00::1/128"), netip.PrefixFrom(LinkLocal(hers), 128)},
		Shared: []netip.Addr{netip.MustParseAddr("10.9.1.100"), netip.MustParseAddr("fd00::100")}} // the first one is in an own prefix
}

func ether(src MAC, tags []uint16, kind uint16, payload ...byte) []byte {
	b := append(everybody[:], src[:]...)
	for range tags {
		b = binary.BigEndian.AppendUint16(b, EtherTypeVLAN)
		b = binary.BigEndian.AppendUint16(b, tags[0])
	}
	return append(binary.BigEndian.AppendUint16(b, kind), payload...)
}

func arpOf(op byte, mac MAC, sender, target string) []byte {
	b := append([]byte{0, 1, 8, 0, 6, 4, 0, op}, mac[:]...)
	s, t := netip.MustParseAddr(sender).As4(), netip.MustParseAddr(target).As4()
	return append(append(append(b, s[:]...), make([]byte, 6)...), t[:]...)
}

func v4(src string, proto uint8, fragment uint16, payload ...byte) []byte {
	b := []byte{0x45, 0, 0, byte(20 + len(payload)), 0, 1, byte(fragment >> 8), byte(fragment), 64, proto, 0, 0}
	s := netip.MustParseAddr(src).As4()
	return append(append(append(b, s[:]...), 10, 9, 0, 2), payload...)
}

func v6(src string, next uint8, payload ...byte) []byte {
	s := netip.MustParseAddr(src).As16()
	b := append([]byte{0x60, 0, 0, 0, 0, byte(len(payload)), next, 255}, s[:]...)
	b = append(b, []byte{0xff, 2, 15: 1}...)
	return append(b, payload...)
}

func udpOf(src, dst uint16) []byte {
	b := binary.BigEndian.AppendUint16(nil, src)
	return append(binary.BigEndian.AppendUint16(b, dst), 0, 8, 0, 0)
}

func nd(kind uint8, target string, options ...[]byte) []byte {
	t := netip.MustParseAddr(target).As16()
	return append(append([]byte{kind, 0, 0, 0, 0, 0, 0, 0}, t[:]...), slices.Concat(options...)...)
}

func lla(kind byte, m MAC) []byte { return append([]byte{kind, 1}, m[:]...) }

func behind(next uint8, payload []byte) []byte {
	return append([]byte{next, 0, 1, 4, 0, 0, 0, 0}, payload...)
}

func TestGuard(t *testing.T) {
	local := LinkLocal(hers).String()
	six := func(p []byte) []byte { return ether(hers, nil, EtherTypeIPv6, p...) }
	four := func(p []byte) []byte { return ether(hers, nil, EtherTypeIPv4, p...) }
	arp := func(p []byte) []byte { return ether(hers, nil, EtherTypeARP, p...) }
	na := nd(icmpNeighbour, "fd00::2", lla(2, hers))
	chain := nd(icmpNeighbourAsk, "fd00::2")
	for range 7 {
		chain = behind(60, chain)
	}
	for _, c := range []struct {
		name  string
		frame []byte
		want  Refusal
	}{
		{"own packet", four(v4("10.9.0.1", ProtoTCP, 0)), Accepted},
		{"of an own prefix", four(v4("10.9.1.77", ProtoTCP, 0)), Accepted},
		{"other source", four(v4("10.9.0.2", ProtoTCP, 0)), RefusedSource},
		{"other source, priority tag", ether(hers, []uint16{0}, EtherTypeIPv4, v4("10.9.0.2", ProtoTCP, 0)...), RefusedSource},
		{"other source behind two tags", ether(hers, []uint16{0, 0}, EtherTypeIPv4, v4("10.9.0.2", ProtoTCP, 0)...), RefusedSource},
		{"three tags", ether(hers, []uint16{0, 0, 0}, EtherTypeIPv4, v4("10.9.0.1", ProtoTCP, 0)...), RefusedUnread},
		{"a tag cut short", ether(hers, nil, EtherTypeVLAN, 0, 1, 8), RefusedUnread},
		{"other source in a later fragment", four(v4("10.9.0.2", ProtoTCP, 100)), RefusedSource},
		{"IPv4 cut short", four(v4("10.9.0.1", ProtoTCP, 0)[:17]), RefusedSource},
		{"other MAC", ether(forged, nil, EtherTypeIPv4, v4("10.9.0.1", ProtoTCP, 0)...), RefusedMAC},
		{"DHCP discover", four(v4("0.0.0.0", ProtoUDP, 0, udpOf(68, 67)...)), Accepted},
		{"no source, no DHCP", four(v4("0.0.0.0", ProtoUDP, 0, udpOf(68, 69)...)), RefusedSource},
		{"DHCP offer", four(v4("10.9.0.1", ProtoUDP, 0, udpOf(67, 68)...)), RefusedDHCP},
		{"DHCPv6 reply", six(v6("fd00::1", ProtoUDP, udpOf(547, 546)...)), RefusedDHCP},
		{"DHCPv6 reply behind options", six(v6("fd00::1", 60, behind(ProtoUDP, udpOf(547, 546))...)), RefusedDHCP},
		{"ARP", arp(arpOf(1, hers, "10.9.0.1", "10.9.0.2")), Accepted},
		{"ARP probe", arp(arpOf(1, hers, "0.0.0.0", "10.9.0.1")), Accepted},
		{"ARP probe for another's", arp(arpOf(1, hers, "0.0.0.0", "10.9.0.2")), RefusedARP},
		{"ARP reply for another's", arp(arpOf(2, hers, "10.9.0.2", "10.9.0.3")), RefusedARP},
		{"gratuitous ARP for another's", arp(arpOf(1, hers, "10.9.0.2", "10.9.0.2")), RefusedARP},
		{"ARP with another's MAC", arp(arpOf(2, forged, "10.9.0.1", "10.9.0.3")), RefusedARP},
		{"ARP cut short", arp(arpOf(2, hers, "10.9.0.1", "10.9.0.3")[:27]), RefusedARP},
		{"own IPv6", six(v6("fd00::1", ProtoTCP)), Accepted},
		{"own link-local", six(v6(local, ProtoTCP)), Accepted},
		{"other link-local", six(v6("fe80::7", ProtoTCP)), RefusedSource},
		{"other IPv6 behind options", six(v6("fd00::2", 60, behind(ProtoTCP, nil)...)), RefusedSource},
		{"IPv6 cut short", six(v6("fd00::1", ProtoTCP)[:39]), RefusedUnread},
		{"seven extension headers", six(v6("fd00::1", 60, chain...)), RefusedUnread},
		{"an extension header cut short", six(v6("fd00::1", 60, 58, 1, 0, 0, 0, 0, 0, 0)), RefusedUnread},
		{"no upper layer in the first fragment", six(v6("fd00::1", 44, ProtoICMPv6, 0, 0, 1, 0, 0, 0, 1, 134)), RefusedUnread},
		{"later fragment", six(v6("fd00::1", 44, ProtoICMPv6, 0, 0, 9, 0, 0, 0, 1, 134)), Accepted},
		{"ping", six(v6("fd00::1", ProtoICMPv6, 128, 0, 0, 0, 0, 0, 0, 0)), Accepted},
		{"router solicitation from nowhere", six(v6("::", ProtoICMPv6, 133, 0, 0, 0, 0, 0, 0, 0)), Accepted},
		{"multicast report from nowhere", six(v6("::", 0, behind(ProtoICMPv6, []byte{143, 0, 0, 0, 0, 0, 0, 0})...)), Accepted},
		{"ping from nowhere", six(v6("::", ProtoICMPv6, 128, 0, 0, 0, 0, 0, 0, 0)), RefusedSource},
		{"router advertisement", six(v6(local, ProtoICMPv6, 134, 0, 0, 0, 0, 0, 0, 0)), RefusedRA},
		{"redirect", six(v6(local, ProtoICMPv6, 137, 0, 0, 0, 0, 0, 0, 0)), RefusedRA},
		{"solicitation", six(v6("fd00::1", ProtoICMPv6, nd(135, "fd00::2", lla(1, hers))...)), Accepted},
		{"solicitation with another's MAC", six(v6("fd00::1", ProtoICMPv6, nd(135, "fd00::2", lla(1, forged))...)), RefusedND},
		{"the second option with another's MAC", six(v6("fd00::1", ProtoICMPv6, nd(135, "fd00::2", lla(14, forged), lla(1, forged))...)), RefusedND},
		{"an option twice", six(v6("fd00::1", ProtoICMPv6, nd(135, "fd00::2", lla(1, hers), lla(1, hers))...)), RefusedND},
		{"detection of duplicates", six(v6("::", ProtoICMPv6, nd(135, "fd00::1")...)), Accepted},
		{"detection of duplicates of another's", six(v6("::", ProtoICMPv6, nd(135, "fd00::2")...)), RefusedND},
		{"advertisement", six(v6(local, ProtoICMPv6, nd(136, "fd00::1", lla(2, hers))...)), Accepted},
		{"advertisement of another's", six(v6("fd00::1", ProtoICMPv6, na...)), RefusedND},
		{"advertisement from another's", six(v6("fd00::2", ProtoICMPv6, na...)), RefusedSource},
		{"advertisement behind options", six(v6("fd00::1", 60, behind(ProtoICMPv6, na)...)), RefusedND},
		{"advertisement with another's MAC", six(v6("fd00::1", ProtoICMPv6, nd(136, "fd00::1", lla(2, forged))...)), RefusedND},
		{"advertisement cut short", six(v6("fd00::1", ProtoICMPv6, na[:23]...)), RefusedND},
		{"unknown ethertype", ether(hers, nil, 0x1234, 1, 2, 3), Accepted},
		{"from a shared address", four(v4("10.9.1.100", ProtoTCP, 0)), Accepted},
		{"ping from a shared address", four(v4("10.9.1.100", 1, 0)), Accepted},
		{"another MAC from a shared address", ether(forged, nil, EtherTypeIPv4, v4("10.9.1.100", ProtoTCP, 0)...), RefusedMAC},
		{"DHCP offer from a shared address", four(v4("10.9.1.100", ProtoUDP, 0, udpOf(67, 68)...)), RefusedDHCP},
		{"ARP request from a shared address", arp(arpOf(1, hers, "10.9.1.100", "10.9.0.2")), RefusedARP},
		{"ARP reply for a shared address", arp(arpOf(2, hers, "10.9.1.100", "10.9.0.2")), RefusedARP},
		{"ARP probe for a shared address", arp(arpOf(1, hers, "0.0.0.0", "10.9.1.100")), RefusedARP},
		{"gratuitous ARP for a shared address, tagged", ether(hers, []uint16{0}, EtherTypeARP, arpOf(1, hers, "10.9.1.100", "10.9.1.100")...), RefusedARP},
		{"ARP request for a shared address", arp(arpOf(1, hers, "10.9.0.1", "10.9.1.100")), Accepted},
		{"IPv6 from a shared address", six(v6("fd00::100", ProtoTCP)), Accepted},
		{"a later fragment from a shared address", six(v6("fd00::100", 44, ProtoTCP, 0, 0, 9, 0, 0, 0, 1)), Accepted},
		{"echo reply from a shared address", six(v6("fd00::100", ProtoICMPv6, 129, 0, 0, 0, 0, 0, 0, 0)), Accepted},
		{"solicitation from a shared address", six(v6("fd00::100", ProtoICMPv6, nd(135, "fd00::2", lla(1, hers))...)), RefusedND},
		{"solicitation for a shared address", six(v6("fd00::1", ProtoICMPv6, nd(135, "fd00::100", lla(1, hers))...)), Accepted},
		{"router solicitation from a shared address", six(v6("fd00::100", ProtoICMPv6, 133, 0, 0, 0, 0, 0, 0, 0)), RefusedND},
		{"advertisement of a shared address", six(v6(local, ProtoICMPv6, nd(136, "fd00::100", lla(2, hers))...)), RefusedND},
		{"advertisement from a shared address", six(v6("fd00::100", ProtoICMPv6, nd(136, "fd00::1", lla(2, hers))...)), RefusedND},
		{"detection of duplicates of a shared address", six(v6("::", ProtoICMPv6, nd(135, "fd00::100")...)), RefusedND},
	} {
		g := aliceGuard()
		if got := g.Check(c.frame); got != c.want {
			t.Errorf("%s: %s, want %s\n%x", c.name, got, c.want, c.frame)
		}
		if g = (Guard{}); g.Check(c.frame) != Accepted {
			t.Errorf("%s: refused without a guard", c.name)
		}
	}
}

func TestGuardExceptions(t *testing.T) {
	router := aliceGuard()
	router.Router, router.DHCPServer = true, true
	free := Guard{On: true, MACs: []MAC{hers}}
	nic := Guard{On: true}
	sharing := Guard{On: true, Shared: aliceGuard().Shared}
	for _, c := range []struct {
		name  string
		g     Guard
		frame []byte
		want  Refusal
	}{
		{"a router forwards", router, ether(hers, nil, EtherTypeIPv4, v4("192.0.2.1", ProtoTCP, 0)...), Accepted},
		{"a router advertises", router, ether(hers, nil, EtherTypeIPv6, v6(LinkLocal(hers).String(), ProtoICMPv6, 134, 0, 0, 0, 0, 0, 0, 0)...), Accepted},
		{"a router's ARP is its own", router, ether(hers, nil, EtherTypeARP, arpOf(2, hers, "10.9.0.2", "10.9.0.3")...), RefusedARP},
		{"a DHCP server answers", router, ether(hers, nil, EtherTypeIPv4, v4("10.9.0.1", ProtoUDP, 0, udpOf(67, 68)...)...), Accepted},
		{"addresses unknown", free, ether(hers, nil, EtherTypeIPv4, v4("192.0.2.1", ProtoTCP, 0)...), Accepted},
		{"addresses unknown, ARP with another's MAC", free, ether(hers, nil, EtherTypeARP, arpOf(2, forged, "10.9.0.2", "10.9.0.3")...), RefusedARP},
		{"MACs unknown", nic, ether(forged, nil, EtherTypeARP, arpOf(2, hers, "10.9.0.2", "10.9.0.3")...), Accepted},
		{"a router's shared address", router, ether(hers, nil, EtherTypeIPv6, v6("fd00::100", ProtoICMPv6, nd(135, "fd00::2", lla(1, hers))...)...), RefusedND},
		{"nothing but a shared address known", sharing, ether(forged, nil, EtherTypeIPv4, v4("192.0.2.1", ProtoTCP, 0)...), Accepted},
		{"nothing but a shared address known, ARP", sharing, ether(forged, nil, EtherTypeARP, arpOf(2, hers, "10.9.0.2", "10.9.0.3")...), Accepted},
		{"nothing but a shared address known, ARP cut short", sharing, ether(forged, nil, EtherTypeARP, arpOf(2, hers, "10.9.1.100", "10.9.0.3")[:20]...), Accepted},
		{"nothing but a shared address known, ARP that tells it", sharing, ether(forged, nil, EtherTypeARP, arpOf(2, hers, "10.9.1.100", "10.9.0.3")...), RefusedARP},
		{"nothing but a shared address known, its advertisement", sharing, ether(forged, nil, EtherTypeIPv6, v6("fd00::7", ProtoICMPv6, nd(136, "fd00::100", lla(2, hers))...)...), RefusedND},
		{"MACs unknown, no DHCP server", nic, ether(forged, nil, EtherTypeIPv4, v4("192.0.2.1", ProtoUDP, 0, udpOf(67, 68)...)...), RefusedDHCP},
	} {
		if got := c.g.Check(c.frame); got != c.want {
			t.Errorf("%s: %s, want %s", c.name, got, c.want)
		}
	}
}

// TestGuardSwitch: a refused frame meets no rule and moves no address; a guarded MAC belongs to its port, whatever other ports check.
func TestGuardSwitch(t *testing.T) {
	s := New()
	for p, name := range map[Port]string{1: "alice", 2: "bob", 3: "nic"} {
		if err := s.AddEndpoint(p, name); err != nil {
			t.Fatal(err)
		}
	}
	if err := s.AddFabric(4, "uplink", false); err != nil {
		t.Fatal(err)
	}
	if err := s.Guard(1, aliceGuard()); err != nil {
		t.Fatal(err)
	}
	if err := s.Guard(4, aliceGuard()); err == nil {
		t.Error("a port into the fabric takes a guard")
	}
	s.Know(hers, 1)
	if err := s.Commit([]Rule{{Cookie: 1, Match: Match{EtherType: EtherTypeARP}, Action: Action{Op: Drop}}}); err != nil {
		t.Fatal(err)
	}
	for _, p := range []Port{3, 4} {
		res, err := s.Inject(p, ether(hers, nil, 0x1234, 1))
		if err != nil || res.Drops != 1 || s.Counters(p).Refused[RefusedMAC] != 1 {
			t.Errorf("port %d: %v %v %+v", p, err, res.Trail, s.Counters(p))
		}
	}
	if _, err := s.Inject(1, ether(hers, nil, EtherTypeARP, arpOf(2, hers, "10.9.0.2", "10.9.0.3")...)); err != nil || s.Hits(1).Packets != 0 {
		t.Errorf("a refused frame met a rule: %v", err)
	}
}
