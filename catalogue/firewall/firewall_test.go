package main

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/gopacket/gopacket"
	"github.com/gopacket/gopacket/layers"

	"weir.dev/weir/catalogue/rig"
	"weir.dev/weir/netns"
)

// program is built once for all tests, unless WEIR_FIREWALL names it: where there is no compiler.
var program = sync.OnceValue(func() string {
	if named := os.Getenv("WEIR_FIREWALL"); named != "" {
		return named
	}
	out := filepath.Join(os.TempDir(), fmt.Sprintf("weir-firewall-test-%d", os.Getpid()))
	cmd := exec.Command("go", "build", "-trimpath", "-ldflags=-s -w", "-o", out, ".")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if text, err := cmd.CombinedOutput(); err != nil {
		panic(fmt.Sprintf("%v\n%s", err, text))
	}
	return out
})

func TestMain(m *testing.M) {
	code := m.Run()
	os.Remove(filepath.Join(os.TempDir(), fmt.Sprintf("weir-firewall-test-%d", os.Getpid())))
	os.Exit(code)
}

type station int

const (
	client station = iota // at in
	server                // at out
)

// start runs a firewall with a configuration and waits until it forwards.
func start(t *testing.T, config string) (*rig.Rig, *rig.Process, string) {
	t.Helper()
	r := rig.New(t, false)
	file := filepath.Join(t.TempDir(), "config.json")
	write(t, file, config)
	p := r.Start(program(), "-config", file, "-probe", rig.WriteProbe(t, filepath.Dir(file)), "-events", filepath.Join(filepath.Dir(file), "events.sock"))
	p.Await("rules in force")
	rig.Eventually(t, "the bridge forwards", func() bool {
		r.Client.Send(rig.Probe(0))
		return r.Server.Receive(20*time.Millisecond) != nil
	})
	return r, p, file
}

func write(t *testing.T, file, text string) {
	t.Helper()
	if err := os.WriteFile(file+".new", []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(file+".new", file); err != nil {
		t.Fatal(err)
	}
}

// frame builds a frame between the stations, from the client's view; reverse swaps the addresses but not the ports.
func frame(t *testing.T, parts ...gopacket.SerializableLayer) []byte {
	t.Helper()
	buf := gopacket.NewSerializeBuffer()
	var network gopacket.NetworkLayer
	for i, l := range parts {
		switch l := l.(type) {
		case *layers.IPv4:
			network = l
		case *layers.IPv6:
			network = l
		case *layers.TCP:
			must(t, l.SetNetworkLayerForChecksum(network))
		case *layers.UDP:
			must(t, l.SetNetworkLayerForChecksum(network))
		case *layers.ICMPv6:
			must(t, l.SetNetworkLayerForChecksum(network))
		case *layers.Ethernet:
			parts[i] = l
		}
	}
	must(t, gopacket.SerializeLayers(buf, gopacket.SerializeOptions{FixLengths: true, ComputeChecksums: true}, parts...))
	out := buf.Bytes()
	for len(out) < 60 {
		out = append(out, 0)
	}
	return out
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func eth(t layers.EthernetType) *layers.Ethernet {
	return &layers.Ethernet{SrcMAC: net.HardwareAddr{2, 9, 9, 9, 9, 1}, DstMAC: net.HardwareAddr{2, 9, 9, 9, 9, 2}, EthernetType: t}
}

func v4(p layers.IPProtocol) *layers.IPv4 {
	return &layers.IPv4{Version: 4, IHL: 5, TTL: 7, Protocol: p, SrcIP: net.IP{10, 1, 1, 1}, DstIP: net.IP{10, 1, 1, 2}}
}

func v6(p layers.IPProtocol) *layers.IPv6 {
	return &layers.IPv6{Version: 6, HopLimit: 7, NextHeader: p, SrcIP: net.ParseIP("fd00::1"), DstIP: net.ParseIP("fd00::2")}
}

func tag(id uint16, inner layers.EthernetType) *layers.Dot1Q {
	return &layers.Dot1Q{VLANIdentifier: id, Priority: 5, Type: inner}
}

func syn(sport, dport layers.TCPPort) *layers.TCP {
	return &layers.TCP{SrcPort: sport, DstPort: dport, SYN: true, Window: 1000}
}

func synAck(sport, dport layers.TCPPort) *layers.TCP {
	return &layers.TCP{SrcPort: sport, DstPort: dport, SYN: true, ACK: true, Window: 1000}
}

func udp(sport, dport layers.UDPPort) *layers.UDP { return &layers.UDP{SrcPort: sport, DstPort: dport} }

// frames by name, so that the tables below are short.
func frames(t *testing.T) map[string][]byte {
	body := gopacket.Payload("body of the datagram")
	ip4, ip6, vlan := layers.EthernetTypeIPv4, layers.EthernetTypeIPv6, layers.EthernetTypeDot1Q
	first := v4(layers.IPProtocolUDP)
	first.Flags, first.Id = layers.IPv4MoreFragments, 9
	later := v4(layers.IPProtocolUDP)
	later.FragOffset, later.Id = 100, 9
	overlap := v4(layers.IPProtocolTCP)
	overlap.FragOffset, overlap.Id = 1, 9
	ports := gopacket.Payload("\x13\x88\x00\x50\x00\x00\x00\x00\x00\x00\x00\x00\x50\x10\x00\x00") // as those of TCP from 5000 to 80
	label := v6(layers.IPProtocolIPv6Fragment)
	label.FlowLabel = 80
	overlap6 := gopacket.Payload("\x06\x00\x00\x08\x00\x00\x00\x09" + string(ports))
	hidden := gopacket.Payload("\x3c\x00\x00\x01\x00\x00\x00\x09\x06\x00\x01\x04\x00\x00\x00\x00")                     // a first fragment that ends behind destination options
	longer := gopacket.Payload("\x3c\x00\x00\x01\x00\x00\x00\x09\x06\x03\x01\x1c\x00\x00\x00\x00")                     // or within these
	right6 := gopacket.Payload("\x06\x00\x00\x01\x00\x00\x00\x09" + strings.Replace(string(ports), "\x50", "\x51", 1)) // to 81
	pingRest := v4(layers.IPProtocolICMPv4)
	pingRest.FragOffset, pingRest.Id = 9, 9
	later6 := gopacket.Payload(append([]byte{17, 0, 3, 0x20, 0, 0, 0, 9}, "rest of the datagram"...))
	return map[string][]byte{
		"tcp 80 syn":         frame(t, eth(ip4), v4(layers.IPProtocolTCP), syn(5000, 80)),
		"tcp 81 syn":         frame(t, eth(ip4), v4(layers.IPProtocolTCP), syn(5000, 81)),
		"tcp 8050 syn":       frame(t, eth(ip4), v4(layers.IPProtocolTCP), syn(5000, 8050)),
		"tcp 8101 syn":       frame(t, eth(ip4), v4(layers.IPProtocolTCP), syn(5000, 8101)),
		"tcp 80 syn-ack":     frame(t, eth(ip4), v4(layers.IPProtocolTCP), synAck(80, 5000)),
		"tcp from 80, syn":   frame(t, eth(ip4), v4(layers.IPProtocolTCP), syn(80, 5000)),
		"tcp 81 syn-ack":     frame(t, eth(ip4), v4(layers.IPProtocolTCP), synAck(81, 5000)),
		"tcp6 80 syn":        frame(t, eth(ip6), v6(layers.IPProtocolTCP), syn(5000, 80)),
		"tcp6 81 syn":        frame(t, eth(ip6), v6(layers.IPProtocolTCP), syn(5000, 81)),
		"tcp6 80 syn-ack":    frame(t, eth(ip6), v6(layers.IPProtocolTCP), synAck(80, 5000)),
		"vlan tcp 80 syn":    frame(t, eth(vlan), tag(42, ip4), v4(layers.IPProtocolTCP), syn(5000, 80)),
		"vlan tcp 81 syn":    frame(t, eth(vlan), tag(42, ip4), v4(layers.IPProtocolTCP), syn(5000, 81)),
		"vlan tcp6 80 syn":   frame(t, eth(vlan), tag(42, ip6), v6(layers.IPProtocolTCP), syn(5000, 80)),
		"vlan arp":           frame(t, eth(vlan), tag(42, layers.EthernetTypeARP), arp()),
		"udp 53":             frame(t, eth(ip4), v4(layers.IPProtocolUDP), udp(5000, 53), body),
		"udp from 53":        frame(t, eth(ip4), v4(layers.IPProtocolUDP), udp(53, 5000), body),
		"udp 54":             frame(t, eth(ip4), v4(layers.IPProtocolUDP), udp(5000, 54), body),
		"udp6 53":            frame(t, eth(ip6), v6(layers.IPProtocolUDP), udp(5000, 53), body),
		"first fragment":     frame(t, eth(ip4), first, udp(5000, 53), body),
		"later fragment":     frame(t, eth(ip4), later, body),
		"overlapping":        frame(t, eth(ip4), overlap, body),
		"overlapping, 80":    frame(t, eth(ip4), overlap, ports),
		"overlapping6, 80":   frame(t, eth(ip6), label, overlap6),
		"headers elsewhere6": frame(t, eth(ip6), v6(layers.IPProtocolIPv6Fragment), hidden),
		"headers cut6":       frame(t, eth(ip6), v6(layers.IPProtocolIPv6Fragment), longer),
		"first fragment6":    frame(t, eth(ip6), v6(layers.IPProtocolIPv6Fragment), right6),
		"rest, like error":   frame(t, eth(ip4), pingRest, gopacket.Payload("\x03\x01 and more")),
		"later fragment6":    frame(t, eth(ip6), v6(layers.IPProtocolIPv6Fragment), later6),
		"ping":               frame(t, eth(ip4), v4(layers.IPProtocolICMPv4), icmp(layers.ICMPv4TypeEchoRequest), body),
		"pong":               frame(t, eth(ip4), v4(layers.IPProtocolICMPv4), icmp(layers.ICMPv4TypeEchoReply), body),
		"too big":            frame(t, eth(ip4), v4(layers.IPProtocolICMPv4), icmp(layers.ICMPv4TypeDestinationUnreachable), body),
		"ping6":              frame(t, eth(ip6), v6(layers.IPProtocolICMPv6), icmp6(128), body),
		"pong6":              frame(t, eth(ip6), v6(layers.IPProtocolICMPv6), icmp6(129), body),
		"solicitation":       frame(t, eth(ip6), v6(layers.IPProtocolICMPv6), icmp6(135), body),
		"arp":                frame(t, eth(layers.EthernetTypeARP), arp()),
		"unknown ethertype":  frame(t, eth(0x9999), body),
		"lldp":               frame(t, &layers.Ethernet{SrcMAC: net.HardwareAddr{2, 9, 9, 9, 9, 1}, DstMAC: net.HardwareAddr{1, 0x80, 0xc2, 0, 0, 0xe}, EthernetType: 0x88cc}, body),
		"sctp 9":             frame(t, eth(ip4), v4(layers.IPProtocolSCTP), gopacket.Payload{0x13, 0x88, 0, 9, 0, 0, 0, 0, 0, 0, 0, 0}),
		"udp, priority tag":  frame(t, eth(vlan), tag(0, ip4), v4(layers.IPProtocolUDP), udp(5000, 53), body),
		"udp, two of them":   frame(t, eth(vlan), tag(0, vlan), tag(0, ip4), v4(layers.IPProtocolUDP), udp(5000, 53), body),
		"udp, and VLAN 7":    frame(t, eth(vlan), tag(0, vlan), tag(7, ip4), v4(layers.IPProtocolUDP), udp(5000, 53), body),
		"double tagged ping": frame(t, eth(vlan), tag(42, vlan), tag(43, ip4), v4(layers.IPProtocolICMPv4), icmp(layers.ICMPv4TypeEchoRequest), body),
	}
}

func icmp(typ uint8) *layers.ICMPv4 {
	return &layers.ICMPv4{TypeCode: layers.CreateICMPv4TypeCode(typ, 0)}
}

func icmp6(typ uint8) *layers.ICMPv6 {
	return &layers.ICMPv6{TypeCode: layers.CreateICMPv6TypeCode(typ, 0)}
}

func arp() *layers.ARP {
	return &layers.ARP{
		AddrType: layers.LinkTypeEthernet, Protocol: layers.EthernetTypeIPv4, HwAddressSize: 6, ProtAddressSize: 4, Operation: 1,
		SourceHwAddress: []byte{2, 9, 9, 9, 9, 1}, SourceProtAddress: []byte{10, 1, 1, 1},
		DstHwAddress: make([]byte, 6), DstProtAddress: []byte{10, 1, 1, 2},
	}
}

func TestFrames(t *testing.T) {
	const forward, back = client, server
	for _, tt := range []struct {
		name, config string
		pass, drop   map[string]station // frame -> where it comes from
	}{
		{
			name: "services to servers", config: `{"allow": ["tcp/80", "tcp/8000-8100", "udp/53"]}`,
			pass: map[string]station{
				"tcp 80 syn": forward, "tcp 8050 syn": forward, "tcp6 80 syn": forward, "vlan tcp 80 syn": forward,
				"vlan tcp6 80 syn": forward, "udp 53": forward, "udp6 53": forward, "first fragment": forward,
				"later fragment": forward, "later fragment6": forward,
			},
			drop: map[string]station{
				"tcp 81 syn": forward, "tcp 8101 syn": forward, "tcp6 81 syn": forward, "vlan tcp 81 syn": forward, "udp 54": forward,
				"ping": forward, "ping6": forward, "unknown ethertype": forward, "lldp": forward, "overlapping": forward, "sctp 9": forward,
				"tcp 80 syn-ack": forward, "udp from 53": forward, "double tagged ping": forward, "overlapping, 80": forward, "overlapping6, 80": forward, "rest, like error": forward,
			},
		},
		{
			name: "replies to clients", config: `{"allow": ["tcp/80", "udp/53", "icmp"]}`,
			pass: map[string]station{
				"tcp 80 syn-ack": back, "tcp6 80 syn-ack": back, "udp from 53": back, "pong": back, "pong6": back, "too big": back, "rest, like error": back,
			},
			drop: map[string]station{
				"tcp 80 syn": back, "tcp from 80, syn": back, "tcp 81 syn-ack": back, "udp 53": back, "ping": back, "ping6": back,
			},
		},
		{
			name: "what always passes", config: `{}`,
			pass: map[string]station{"arp": forward, "solicitation": back, "too big": forward, "vlan arp": back},
			drop: map[string]station{"ping": forward, "tcp 80 syn": forward, "unknown ethertype": back},
		},
		{
			name: "deny before allow", config: `{"allow": ["ip"], "deny": ["tcp/80", "icmp", "arp"]}`,
			pass: map[string]station{"tcp 81 syn": forward, "tcp6 81 syn": back, "udp 54": back, "solicitation": forward, "sctp 9": forward},
			drop: map[string]station{"tcp 80 syn": forward, "tcp6 80 syn": forward, "ping": forward, "pong": back, "arp": forward, "unknown ethertype": forward},
		},
		{
			name: "default accept", config: `{"default": "accept", "deny": ["udp"]}`,
			pass: map[string]station{
				"tcp 80 syn": back, "unknown ethertype": forward, "lldp": forward, "vlan tcp 81 syn": back, "double tagged ping": forward,
				"overlapping": forward,
			},
			drop: map[string]station{
				"udp 53": forward, "udp from 53": back, "later fragment": forward, "udp, priority tag": forward, "udp, two of them": forward, "udp, and VLAN 7": back,
			},
		},
		{
			name: "a port is denied", config: `{"default": "accept", "deny": ["tcp/80"]}`,
			pass: map[string]station{"tcp 81 syn": forward, "tcp6 81 syn": forward, "first fragment6": forward, "later fragment6": forward, "overlapping, 80": forward, "overlapping6, 80": forward, "udp6 53": back},
			drop: map[string]station{"tcp 80 syn": forward, "tcp6 80 syn": forward, "headers elsewhere6": forward, "headers cut6": forward},
		},
		{
			name: "all", config: `{"allow": ["all"]}`,
			pass: map[string]station{"unknown ethertype": back, "tcp 80 syn": back, "udp 54": forward, "ping6": back, "lldp": back},
		},
		{
			name: "sctp and whole protocols", config: `{"allow": ["sctp/9", "tcp"]}`,
			pass: map[string]station{"sctp 9": forward, "tcp 8101 syn": forward, "tcp 81 syn-ack": back, "overlapping": forward},
			drop: map[string]station{"tcp 80 syn": back, "udp 53": forward},
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			r, _, _ := start(t, tt.config)
			all := frames(t)
			for want, set := range map[bool]map[string]station{true: tt.pass, false: tt.drop} {
				for name, from := range set {
					f, ok := all[name]
					if !ok {
						t.Fatalf("no frame %q", name)
					}
					a, b, way := r.Client, r.Server, "to the server"
					if from == server {
						a, b, way = b, a, "to the client"
					}
					if got := rig.Passes(a, b, f); got != want {
						t.Errorf("%s %s: passes %v, want %v", name, way, got, want)
					}
				}
			}
		})
	}
}

func TestConnections(t *testing.T) {
	r, p, file := start(t, `{"allow": ["tcp/80"]}`)
	r.Server.Echo("10.77.0.2:80")
	r.Server.Echo("10.77.0.2:81")
	within := func(patience time.Duration, port string) error {
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		defer cancel()
		c, err := r.Client.Dial(ctx, "tcp4", "10.77.0.2:"+port)
		if err != nil {
			return err
		}
		defer c.Close()
		must(t, c.SetDeadline(time.Now().Add(rig.Patience)))
		if _, err := c.Write([]byte("hello")); err != nil {
			return err
		}
		_, err = c.Read(make([]byte, 5))
		return err
	}
	connect := func(port string) error { return within(rig.Patience, port) }
	silent := func(port string) bool { return within(500*time.Millisecond, port) != nil }
	if err := connect("80"); err != nil {
		t.Errorf("allowed port: %v", err)
	}
	if !silent("81") {
		t.Error("port 81 answers, yet it is not allowed")
	}
	write(t, file, `{"allow": ["tcp/81"]}`)
	p.Signal(syscall.SIGHUP)
	p.Await("tcp/81")
	if !silent("80") {
		t.Error("port 80 still answers after the change")
	}
	if err := connect("81"); err != nil {
		t.Errorf("port 81 after the change: %v", err)
	}
	write(t, file, `{"allow": ["tcp/zero"]}`)
	p.Signal(syscall.SIGHUP)
	p.Await("the former one stays in force")
	if err := connect("81"); err != nil {
		t.Errorf("after a bad configuration: %v", err)
	}
	p.Signal(syscall.SIGTERM)
	must(t, p.End())
	if !silent("81") {
		t.Error("a firewall that has ended lets traffic pass")
	}
}

// The kernel's own view: one table, ours, with a counter in each rule, that counts.
func TestRulesAsNftSeesThem(t *testing.T) {
	r, p, _ := start(t, `{"allow": ["tcp/80"], "deny": ["udp/53"]}`)
	if rig.Passes(r.Client, r.Server, frames(t)["udp 53"]) {
		t.Error("udp 53 passes")
	}
	var ruleset struct {
		Nftables []struct {
			Table *struct{ Family, Name string }
			Rule  *struct {
				Chain   string
				Comment string
				Expr    []map[string]any
			}
		}
	}
	var raw []byte
	r.Do(r.Netns, func() (err error) {
		raw, err = exec.Command("nft", "-j", "list", "ruleset").Output()
		return err
	})
	must(t, json.Unmarshal(raw, &ruleset))
	var tables, comments []string
	counts := map[string]float64{}
	for _, o := range ruleset.Nftables {
		switch {
		case o.Table != nil:
			tables = append(tables, o.Table.Family+" "+o.Table.Name)
		case o.Rule != nil && o.Rule.Chain != "filter" && o.Rule.Chain != headersChain: // which lead to the rules in force
			if !strings.Contains(o.Rule.Chain, "_") { // else it is about fragments
				comments = append(comments, o.Rule.Comment)
			}
			counter := false
			for _, e := range o.Rule.Expr {
				if c, ok := e["counter"].(map[string]any); ok {
					counter = true
					counts[o.Rule.Comment] += c["packets"].(float64)
				}
			}
			if !counter {
				t.Errorf("rule %q has no counter", o.Rule.Comment)
			}
		}
	}
	if diff := cmp.Diff([]string{"bridge weir_firewall"}, tables); diff != "" {
		t.Error(diff)
	}
	if counts["deny: deny udp/53"] != 1 {
		t.Errorf("counters: %v", counts)
	}
	if last := comments[len(comments)-1]; last != "deny: default drop" {
		t.Errorf("last rule is %q", last)
	}
	p.Signal(syscall.SIGUSR1)
	p.Await(`rule="deny udp/53" packets=1`)
}

func TestDenialsRaiseAnEvent(t *testing.T) {
	r, _, file := start(t, `{}`)
	events := listen(t, filepath.Join(filepath.Dir(file), "events.sock"))
	for range 5 {
		if rig.Passes(r.Client, r.Server, frames(t)["ping"]) {
			t.Error("ping passes")
		}
	}
	select {
	case e := <-events:
		if e["severity"] != "warning" || e["reason"] != "TrafficDenied" || !strings.Contains(e["message"], "default drop") {
			t.Errorf("event %v", e)
		}
	case <-time.After(rig.Patience):
		t.Error("no event")
	}
}

// Frames of the probes' type are as all others: only those with the function's own addresses, which no station knows, pass whatever the
// configuration.
func TestOnlyOurProbesPass(t *testing.T) {
	change := func(at int) []byte {
		f := rig.Probe(7)
		f[at] ^= 0x40
		return f
	}
	forged := map[string][]byte{"another destination": change(5), "another source": change(11), "another type": change(13)}
	r, _, _ := start(t, `{"allow": ["tcp/80"]}`)
	for name, f := range forged {
		if rig.Passes(r.Client, r.Server, f) || rig.Passes(r.Server, r.Client, f) {
			t.Errorf("default drop: a frame with %s passes", name)
		}
	}
	if !rig.Passes(r.Client, r.Server, rig.Probe(7)) {
		t.Error("the switch's probe does not pass")
	}
	open, _, _ := start(t, `{"default": "accept"}`)
	for name, f := range forged {
		if !rig.Passes(open.Client, open.Server, f) {
			t.Errorf("default accept: a frame with %s does not pass", name)
		}
	}
	none := rig.New(t, false) // nobody told it the addresses
	file := filepath.Join(t.TempDir(), "config.json")
	write(t, file, `{}`)
	p := none.Start(program(), "-config", file, "-probe", filepath.Join(t.TempDir(), "none"))
	p.Await("rules in force")
	none.Client.Send(rig.Probe(7))
	if f := none.Server.Receive(500 * time.Millisecond); f != nil {
		t.Errorf("without addresses % x passes", f)
	}
}

// Nothing that the function's interfaces say for themselves leaves; the stations' namespaces are quiet too, so nothing comes at all.
func TestSaysNothingForItself(t *testing.T) {
	r, _, _ := start(t, `{"allow": ["all"]}`)
	for r.Server.Receive(100*time.Millisecond) != nil { // probes of the start
	}
	var wg sync.WaitGroup
	for name, s := range map[string]*rig.Station{"client": r.Client, "server": r.Server} {
		wg.Go(func() {
			if f := s.Receive(5 * time.Second); f != nil {
				t.Errorf("%s got % x", name, f)
			}
		})
	}
	wg.Wait()
}

// A second process takes over the bridge of one that was killed: no frame is lost between them.
func TestRestartKeepsForwarding(t *testing.T) {
	r, p, file := start(t, `{"allow": ["icmp"]}`)
	ping := frames(t)["ping"]
	p.Signal(syscall.SIGKILL)
	_ = p.End()
	if !rig.Passes(r.Client, r.Server, ping) || rig.Passes(r.Client, r.Server, frames(t)["udp 53"]) {
		t.Error("the last rules are not in force after a kill")
	}
	must(t, netns.Do(r.Netns, func() error { // it was killed while it made others
		return exec.Command("nft", "add chain bridge weir_firewall g9; add rule bridge weir_firewall g9 accept; add set bridge weir_firewall g9_0 { type ipv4_addr; }").Run()
	}))
	next := r.Start(program(), "-config", file, "-probe", rig.WriteProbe(t, filepath.Dir(file)))
	for !strings.Contains(next.Output(), "rules in force") {
		if !rig.Passes(r.Client, r.Server, ping) {
			t.Fatal("a ping was lost while the next process started")
		}
	}
	if !rig.Passes(r.Client, r.Server, ping) || rig.Passes(r.Client, r.Server, frames(t)["udp 53"]) {
		t.Error("wrong rules after the restart")
	}
	if out := ruleset(t, r); strings.Contains(out, "g9") || strings.Contains(out, "g1 ") || !strings.Contains(out, "goto g10") {
		t.Errorf("what was left of the killed one is there still:\n%s", out)
	}
}

func TestBadStart(t *testing.T) {
	for name, tt := range map[string]struct{ config, want string }{
		"unknown key":     {`{"alow": []}`, `unknown field "alow"`},
		"unknown service": {`{"allow": ["http"]}`, `service "http": want one of`},
		"bad default":     {`{"default": "maybe"}`, `default "maybe": want drop or accept`},
	} {
		t.Run(name, func(t *testing.T) {
			r := rig.New(t, false)
			file := filepath.Join(t.TempDir(), "config.json")
			write(t, file, tt.config)
			p := r.Start(program(), "-config", file)
			if err := p.End(); err == nil {
				t.Error("it ended well")
			}
			if !strings.Contains(p.Output(), strings.ReplaceAll(tt.want, `"`, `\"`)) {
				t.Errorf("output %q, want %q in it", p.Output(), tt.want)
			}
		})
	}
	t.Run("no ports", func(t *testing.T) {
		r := rig.New(t, true)
		p := r.Start(program(), "-config", filepath.Join(t.TempDir(), "none.json"))
		if err := p.End(); err == nil || !strings.Contains(p.Output(), "port in:") {
			t.Errorf("%v: %s", err, p.Output())
		}
	})
}
