package main

import (
	"encoding/json"
	"fmt"
	"net/netip"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/gopacket/gopacket"
	"github.com/gopacket/gopacket/layers"

	"weir.dev/weir/catalogue/rig"
	"weir.dev/weir/netns"
)

// packetOf is a frame from one address to another, of TCP with flags, or of UDP.
func packetOf(t *testing.T, from, to string, upper gopacket.SerializableLayer, tags ...uint16) []byte {
	t.Helper()
	src, dst := netip.MustParseAddr(from), netip.MustParseAddr(to)
	proto := layers.IPProtocolTCP
	if _, ok := upper.(*layers.UDP); ok {
		proto = layers.IPProtocolUDP
	}
	kind, network := layers.EthernetTypeIPv4, gopacket.SerializableLayer(&layers.IPv4{Version: 4, IHL: 5, TTL: 7, Protocol: proto, SrcIP: src.AsSlice(), DstIP: dst.AsSlice()})
	if src.Is6() {
		kind, network = layers.EthernetTypeIPv6, &layers.IPv6{Version: 6, HopLimit: 7, NextHeader: proto, SrcIP: src.AsSlice(), DstIP: dst.AsSlice()}
	}
	if len(tags) > 0 {
		return frame(t, eth(layers.EthernetTypeDot1Q), tag(tags[0], kind), network, upper)
	}
	return frame(t, eth(kind), network, upper)
}

// Entries are for the addresses of clients and servers that they name, in both directions and behind a VLAN tag.
func TestAddresses(t *testing.T) {
	r, p, file := start(t, `{"sets": {"office": ["10.1.0.0/16 10.2.0.5", "fd00:1::/32"], "bad": "10.1.6.6-10.1.6.9"}, "deny": [{"service": "all", "from": "@bad"}],
		"allow": [{"service": "tcp/22", "from": "@office", "to": ["10.9.0.2", "fd00:9::2"]}, {"service": "udp/53", "to": "10.9.0.3"}, {"service": "udp/54", "from": "@bad"}]}`)
	check := func(what string, want bool, back bool, f []byte) {
		t.Helper()
		a, b := r.Client, r.Server
		if back {
			a, b = b, a
		}
		if got := rig.Passes(a, b, f); got != want {
			t.Errorf("%s: passes %v, want %v", what, got, want)
		}
	}
	ssh, dns := syn(5000, 22), udp(5000, 53)
	check("a prefix", true, false, packetOf(t, "10.1.200.3", "10.9.0.2", ssh))
	check("an address", true, false, packetOf(t, "10.2.0.5", "10.9.0.2", ssh))
	check("beside it", false, false, packetOf(t, "10.2.0.6", "10.9.0.2", ssh))
	check("another server", false, false, packetOf(t, "10.1.200.3", "10.9.0.4", ssh))
	check("the server as a client", false, false, packetOf(t, "10.9.0.2", "10.1.200.3", ssh))
	check("denied before", false, false, packetOf(t, "10.1.6.7", "10.9.0.2", ssh))
	check("denied, from the server", false, true, packetOf(t, "10.9.0.2", "10.1.6.7", synAck(22, 5000)))
	check("IPv6", true, false, packetOf(t, "fd00:1::7", "fd00:9::2", ssh))
	check("IPv6 of others", false, false, packetOf(t, "fd00:2::7", "fd00:9::2", ssh))
	check("behind a tag", true, false, packetOf(t, "10.1.200.3", "10.9.0.2", ssh, 7))
	check("behind a tag, another", false, false, packetOf(t, "10.3.0.1", "10.9.0.2", ssh, 7))
	check("the reply", true, true, packetOf(t, "10.9.0.2", "10.1.200.3", synAck(22, 5000)))
	check("a reply of another", false, true, packetOf(t, "10.9.0.4", "10.1.200.3", synAck(22, 5000)))
	check("from all", true, false, packetOf(t, "192.0.2.1", "10.9.0.3", dns))
	check("its reply", true, true, packetOf(t, "10.9.0.3", "192.0.2.1", udp(53, 5000)))
	check("only IPv4 is named", false, false, packetOf(t, "fd00:1::7", "fd00:9::2", dns))
	check("allowed behind a deny", false, false, packetOf(t, "10.1.6.6", "10.9.0.3", udp(5000, 54)))

	write(t, file, `{"sets": {"office": []}, "allow": [{"service": "tcp/22", "from": "10.3.0.0/16"}]}`)
	p.Signal(syscall.SIGHUP)
	p.Await("configuration refused") // an empty list is most likely a mistake
	check("a prefix, still", true, false, packetOf(t, "10.1.200.3", "10.9.0.2", ssh))
	write(t, file, `{"sets": {"office": ""}, "deny": [{"service": "all", "from": "@office"}], "allow": [{"service": "tcp/22", "from": "10.3.0.0/16"}, {"service": "tcp/23", "from": "@office"}]}`)
	p.Signal(syscall.SIGHUP)
	p.Await("10.3.0.0/16")
	check("the former prefix", false, false, packetOf(t, "10.1.200.3", "10.9.0.2", ssh))
	check("the new one", true, false, packetOf(t, "10.3.200.3", "10.9.0.2", ssh))
	check("nobody", false, false, packetOf(t, "10.1.200.3", "10.9.0.2", syn(5000, 23)))
	if out := ruleset(t, r); strings.Contains(out, "g1") || strings.Contains(out, "g2") && strings.Contains(out, "g3") {
		t.Errorf("the former rules or sets are left:\n%s", out)
	}
}

func ruleset(t *testing.T, r *rig.Rig) (out string) {
	t.Helper()
	must(t, netns.Do(r.Netns, func() error {
		b, err := exec.Command("nft", "list", "ruleset").CombinedOutput()
		out = string(b)
		return err
	}))
	return out
}

// A list of 100,000 addresses is in force within seconds, as it runs, and each of them counts; so are 1,000 entries.
func TestManyAddressesAndEntries(t *testing.T) {
	r, p, file := start(t, `{"default": "accept"}`)
	var list []string
	for i := range 100_000 { // every other address: none are joined
		list = append(list, netip.AddrFrom4([4]byte{100, byte(i >> 15), byte(i >> 7), byte(i << 1)}).String())
	}
	entries := []any{map[string]any{"service": "all", "from": "@bad"}}
	for i := range 999 {
		entries = append(entries, fmt.Sprintf("tcp/%d", 10000+i))
	}
	raw, err := json.Marshal(map[string]any{"default": "accept", "sets": map[string]any{"bad": list}, "deny": entries})
	must(t, err)
	begin := time.Now()
	write(t, file, string(raw))
	p.Signal(syscall.SIGHUP)
	rig.Eventually(t, "they are in force", func() bool { return strings.Count(p.Output(), "rules in force") == 2 })
	t.Logf("%d KB of configuration are in force after %s", len(raw)>>10, time.Since(begin).Round(time.Millisecond))
	for from, want := range map[string]bool{"100.0.0.0": false, "100.0.0.1": true, "100.3.13.62": false, "100.3.13.63": true, "100.3.13.64": true, "99.255.255.255": true} {
		if got := rig.Passes(r.Client, r.Server, packetOf(t, from, "10.9.0.2", syn(1, 80))); got != want {
			t.Errorf("%s: passes %v, want %v", from, got, want)
		}
	}
	if rig.Passes(r.Client, r.Server, packetOf(t, "99.0.0.1", "10.9.0.2", syn(1, 10998))) {
		t.Error("the last entry does not count")
	}
	write(t, file, `{"default": "accept"}`)
	p.Signal(syscall.SIGHUP)
	rig.Eventually(t, "they are gone", func() bool { return strings.Count(p.Output(), "rules in force") == 3 })
	if out := ruleset(t, r); strings.Contains(out, "elements") {
		t.Errorf("%.300s", out)
	}
}

// What is over a limit is denied: new connections of TCP and no segments of others, else packets; of all sources together or of each.
func TestLimits(t *testing.T) {
	r, p, file := start(t, `{"default": "accept", "allow": [{"service": "tcp/22", "limit": {"rate": "1/h", "burst": 3}}, {"service": "udp/53", "limit": {"rate": "1/h", "burst": 2, "per_source": true}}]}`)
	passed := func(n int, f func(i int) []byte) (count int) {
		for i := range n {
			if rig.Passes(r.Client, r.Server, f(i)) {
				count++
			}
		}
		return count
	}
	if n := passed(6, func(i int) []byte { return packetOf(t, fmt.Sprintf("10.1.0.%d", i), "10.9.0.2", syn(5000, 22)) }); n != 3 {
		t.Errorf("%d of 6 connections pass: want 3", n)
	}
	ack := &layers.TCP{SrcPort: 5000, DstPort: 22, ACK: true, Window: 9}
	if n := passed(6, func(int) []byte { return packetOf(t, "10.1.0.1", "10.9.0.2", ack) }); n != 6 {
		t.Errorf("%d of 6 segments of connections pass", n)
	}
	for _, from := range []string{"10.1.0.1", "10.1.0.2", "fd00:1::1"} {
		to := map[bool]string{true: "10.9.0.2", false: "fd00:9::2"}[from[0] == '1']
		if n := passed(5, func(int) []byte { return packetOf(t, from, to, udp(5000, 53)) }); n != 2 {
			t.Errorf("%d of 5 datagrams of %s pass: want 2", n, from)
		}
	}
	if n := passed(3, func(i int) []byte { return packetOf(t, fmt.Sprintf("fd00:1::%d", 7+i), "fd00:9::2", udp(5000, 53)) }); n > 0 {
		t.Errorf("%d datagrams of the same /64 pass", n)
	}
	if n := passed(6, func(int) []byte { return packetOf(t, "10.1.0.1", "10.9.0.2", udp(5000, 54)) }); n != 6 {
		t.Errorf("%d of 6 others pass", n)
	}
	p.Await("over the limit of allow tcp/22")
	write(t, file, `{"allow": [{"service": "tcp/22", "limit": {"rate": "100/s", "burst": 1000}}]}`)
	p.Signal(syscall.SIGHUP)
	rig.Eventually(t, "another limit is in force", func() bool { return strings.Count(p.Output(), "rules in force") == 2 })
	if n := passed(20, func(i int) []byte { return packetOf(t, "10.1.0.1", "10.9.0.2", syn(6000, 22)) }); n != 20 {
		t.Errorf("%d of 20 connections pass", n)
	}
}
