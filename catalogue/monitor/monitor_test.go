package main

import (
	"encoding/json"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"github.com/gopacket/gopacket"
	"github.com/gopacket/gopacket/layers"
	"pgregory.net/rapid"

	"weir.dev/weir/catalogue/rig"
)

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func build(t testing.TB, parts ...gopacket.SerializableLayer) []byte {
	t.Helper()
	buf := gopacket.NewSerializeBuffer()
	must(t, gopacket.SerializeLayers(buf, gopacket.SerializeOptions{FixLengths: true}, parts...))
	return buf.Bytes()
}

func eth(typ layers.EthernetType) *layers.Ethernet {
	return &layers.Ethernet{SrcMAC: net.HardwareAddr{2, 0, 0, 0, 0, 1}, DstMAC: net.HardwareAddr{2, 0, 0, 0, 0, 2}, EthernetType: typ}
}

func v4(p layers.IPProtocol) *layers.IPv4 {
	return &layers.IPv4{Version: 4, IHL: 5, TTL: 9, Protocol: p, SrcIP: net.IP{10, 1, 1, 1}, DstIP: net.IP{10, 1, 1, 2}}
}

func v6(p layers.IPProtocol) *layers.IPv6 {
	return &layers.IPv6{Version: 6, HopLimit: 9, NextHeader: p, SrcIP: net.ParseIP("fd00::1"), DstIP: net.ParseIP("fd00::2")}
}

func TestParse(t *testing.T) {
	tcp := &layers.TCP{SrcPort: 5000, DstPort: 80}
	udp := &layers.UDP{SrcPort: 5000, DstPort: 53}
	fragment := v4(layers.IPProtocolUDP)
	fragment.FragOffset = 7
	options := v4(layers.IPProtocolTCP)
	options.Options = []layers.IPv4Option{{OptionType: 148, OptionLength: 4, OptionData: []byte{0, 0}}}
	hop := gopacket.Payload{17, 0, 5, 2, 0, 0, 1, 0, 0x13, 0x88, 0, 53, 0, 8, 0, 0}
	frag6 := gopacket.Payload{17, 0, 1, 0, 0, 0, 0, 9, 1, 2, 3, 4}
	for name, tt := range map[string]struct {
		frame []byte
		want  string
	}{
		"tcp":           {build(t, eth(0x800), v4(6), tcp), "tcp 10.1.1.1 5000 10.1.1.2 80 vlan 0"},
		"ip options":    {build(t, eth(0x800), options, tcp), "tcp 10.1.1.1 5000 10.1.1.2 80 vlan 0"},
		"udp6":          {build(t, eth(0x86dd), v6(17), udp), "udp fd00::1 5000 fd00::2 53 vlan 0"},
		"hop by hop":    {build(t, eth(0x86dd), v6(0), hop), "udp fd00::1 5000 fd00::2 53 vlan 0"},
		"fragment":      {build(t, eth(0x800), fragment, gopacket.Payload("12345678")), "udp 10.1.1.1 0 10.1.1.2 0 vlan 0"},
		"fragment6":     {build(t, eth(0x86dd), v6(44), frag6), "udp fd00::1 0 fd00::2 0 vlan 0"},
		"icmp":          {build(t, eth(0x800), v4(1), gopacket.Payload{8, 0, 0, 0}), "icmp 10.1.1.1 0 10.1.1.2 0 vlan 0"},
		"tagged":        {build(t, eth(0x8100), &layers.Dot1Q{VLANIdentifier: 42, Type: 0x800}, v4(6), tcp), "tcp 10.1.1.1 5000 10.1.1.2 80 vlan 42"},
		"unknown":       {build(t, eth(0x9999), gopacket.Payload("x")), "0x9999 02:00:00:00:00:01 0 02:00:00:00:00:02 0 vlan 0"},
		"arp":           {build(t, eth(0x806), gopacket.Payload("x")), "arp 02:00:00:00:00:01 0 02:00:00:00:00:02 0 vlan 0"},
		"gre by number": {build(t, eth(0x800), v4(47), gopacket.Payload("x")), "47 10.1.1.1 0 10.1.1.2 0 vlan 0"},
		"cut in ports":  {build(t, eth(0x800), v4(6), gopacket.Payload{0x13})[:35], "tcp 10.1.1.1 0 10.1.1.2 0 vlan 0"},
	} {
		t.Run(name, func(t *testing.T) {
			if got := describe(flowOf(tt.frame)); got != tt.want {
				t.Errorf("got %s, want %s", got, tt.want)
			}
		})
	}
}

func describe(p packet) string {
	raw, _ := json.Marshal((&flow{first: p}).line(""))
	var l line
	_ = json.Unmarshal(raw, &l)
	return strings.Join([]string{l.Proto, l.Src, num(l.SrcPort), l.Dst, num(l.DstPort), "vlan", num(l.VLAN)}, " ")
}

func flowOf(b []byte) packet { p, _ := parse(b, 0); return p }

func num(n uint16) string { b, _ := json.Marshal(n); return string(b) }

// gopacket is the oracle for whatever it can decode without an error; it does not look at the version of IP.
func FuzzParse(f *testing.F) {
	f.Add(build(f, eth(0x800), v4(6), &layers.TCP{SrcPort: 5000, DstPort: 80}))
	f.Add(build(f, eth(0x86dd), v6(17), &layers.UDP{SrcPort: 5000, DstPort: 53}))
	f.Add([]byte{})
	f.Fuzz(func(t *testing.T, b []byte) {
		p := flowOf(b)
		if p.reversed().reversed() != p {
			t.Error("reversed twice differs")
		}
		_ = describe(p)
		d := gopacket.NewPacket(b, layers.LayerTypeEthernet, gopacket.NoCopy)
		e, _ := d.LinkLayer().(*layers.Ethernet)
		ip, _ := d.NetworkLayer().(*layers.IPv4)
		tcp, _ := d.TransportLayer().(*layers.TCP)
		if d.ErrorLayer() != nil || e == nil || ip == nil || ip.Version != 4 || tcp == nil || len(d.Layers()) < 3 || d.Layers()[1] != gopacket.Layer(ip) || d.Layers()[2] != gopacket.Layer(tcp) || ip.FragOffset != 0 {
			return
		}
		if p.sport != uint16(tcp.SrcPort) || p.dport != uint16(tcp.DstPort) || p.text(p.src) != ip.SrcIP.String() {
			t.Errorf("got %s, gopacket says %v", describe(p), d)
		}
	})
}

// Every packet is counted once: in a flow that has ended, and in its direction, or as untracked.
func TestTableCountsEveryPacketOnce(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var ended, lines, reported uint64
		var ways [2]uint64
		cfg := config{MaxFlows: rapid.IntRange(1, 5).Draw(t, "max"), IdleS: 3, ActiveS: 2}
		tab := newTable(cfg, func(l line) {
			if l.Event == "end" {
				ended += l.Packets + l.ReplyPackets
				ways[0], ways[1] = ways[0]+l.Packets, ways[1]+l.ReplyPackets
				lines++
			}
		}, func(r report) {
			if r.packets[0]+r.packets[1] == 0 {
				t.Error("a report of nothing")
			}
			reported += r.packets[0] + r.packets[1]
		})
		now := time.Unix(1000, 0)
		n := rapid.IntRange(0, 200).Draw(t, "packets")
		for range n {
			p := packet{ethertype: etherIPv4, proto: 6, sport: uint16(rapid.IntRange(1, 4).Draw(t, "sport")), dport: uint16(rapid.IntRange(1, 4).Draw(t, "dport"))}
			tab.add(p, 0, 100, now, func() string { return "" })
			if len(tab.flows) > tab.max {
				t.Fatalf("%d flows, at most %d", len(tab.flows), tab.max)
			}
			now = now.Add(time.Duration(rapid.IntRange(0, 2000).Draw(t, "ms")) * time.Millisecond)
			tab.sweep(now)
		}
		tab.endAll(now)
		sent := uint64(0)
		for _, x := range tab.talkers.rank {
			sent += x.packets
		}
		if reported != ended || sent != ended || ended+tab.untracked.packets != uint64(n) || lines != tab.total || tab.busy() {
			t.Fatalf("%d packets: %d in flows, %d untracked; %d flows, %d ended", n, ended, tab.untracked.packets, tab.total, lines)
		}
		for way, a := range []amount{tab.count[0], tab.count[1], tab.untracked} {
			if a.bytes != 100*a.packets || way < 2 && a.packets != ways[way] {
				t.Fatalf("way %d: %+v, and lines of %d packets", way, a, ways)
			}
		}
	})
}

func TestLogIsBounded(t *testing.T) {
	var out strings.Builder
	l := newLog(&out)
	now := time.Unix(1000, 0)
	for range linesPerSecond + 50 {
		if l.wants(now) {
			l.line(line{Time: now, Event: "new"})
		}
	}
	l.line(line{Time: now, Event: "summary"})
	must(t, l.flush())
	lines := strings.Split(strings.TrimSpace(out.String()), "\n")
	if len(lines) != linesPerSecond+1 || !strings.Contains(lines[linesPerSecond], `"unlogged":50`) {
		t.Errorf("%d lines, the last %s", len(lines), lines[len(lines)-1])
	}
}

func TestConfig(t *testing.T) {
	for name, tt := range map[string]struct{ text, err string }{
		"empty":       {"", ""},
		"all":         {`{"max_flows": 5, "idle_s": 1, "active_s": 2}`, ""},
		"no active":   {`{"active_s": 0}`, "active_s 0: want 1 to 86400"},
		"none at all": {`{"max_flows": 0}`, "want 1 to 1000000"},
		"no time":     {`{"idle_s": 0}`, "want 1 to 86400"},
		"two values":  {`{"idle_s": 1} {"idle_s": 2}`, "more than one"},
		"half a one":  {`{"idle_s": 1}}`, "more than one"},
		"unknown key": {`{"max": 0}`, "unknown field"},
	} {
		t.Run(name, func(t *testing.T) {
			file := filepath.Join(t.TempDir(), "config.json")
			must(t, os.WriteFile(file, []byte(tt.text), 0o644))
			_, err := load(file)
			if (err == nil) != (tt.err == "") || err != nil && !strings.Contains(err.Error(), tt.err) {
				t.Errorf("got %v, want %q", err, tt.err)
			}
		})
	}
}

func TestCountsWhatTheTapSees(t *testing.T) {
	r := rig.New(t, true)
	file := filepath.Join(t.TempDir(), "config.json")
	must(t, os.WriteFile(file, []byte(`{"idle_s": 60}`), 0o644))
	p := r.Start(rig.Build(t, "."), "-flows", filepath.Join(t.TempDir(), "flows"), "-config", file)
	p.Await(`"start"`)

	big := gopacket.Payload(make([]byte, 1000))
	there := build(t, eth(0x800), v4(17), &layers.UDP{SrcPort: 5000, DstPort: 53}, big)
	back4 := v4(17)
	back4.SrcIP, back4.DstIP = back4.DstIP, back4.SrcIP
	back := build(t, eth(0x800), back4, &layers.UDP{SrcPort: 53, DstPort: 5000}, big)
	tagged := build(t, eth(0x8100), &layers.Dot1Q{VLANIdentifier: 42, Type: 0x86dd}, v6(6), &layers.TCP{SrcPort: 6000, DstPort: 443})
	for range 10 {
		r.Client.Send(there)
	}
	for range 4 {
		r.Client.Send(back)
	}
	r.Client.Send(tagged)
	p.Await(`"vlan":42`)
	p.Signal(syscall.SIGUSR1)
	p.Await(`"summary"`)
	p.Signal(syscall.SIGTERM)
	must(t, p.End())

	got := map[string][]line{}
	dec := json.NewDecoder(strings.NewReader(p.Output()))
	for {
		var l line
		err := dec.Decode(&l)
		if err == io.EOF {
			break
		}
		must(t, err)
		if l.Event == "new" || l.Event == "end" {
			got[l.Event] = append(got[l.Event], l)
		}
	}
	udp := line{Event: "new", Proto: "udp", Src: "10.1.1.1", SrcPort: 5000, Dst: "10.1.1.2", DstPort: 53}
	tcp := line{Event: "new", Proto: "tcp", Src: "fd00::1", SrcPort: 6000, Dst: "fd00::2", DstPort: 443, VLAN: 42}
	udpEnd, tcpEnd := udp, tcp
	udpEnd.Event, tcpEnd.Event = "end", "end"
	udpEnd.Packets, udpEnd.ReplyPackets = 10, 4
	udpEnd.Bytes, udpEnd.ReplyBytes = 10*uint64(len(there)), 4*uint64(len(back))
	tcpEnd.Packets, tcpEnd.Bytes = 1, uint64(len(tagged)-4) // the kernel keeps the tag beside the frame
	want := map[string][]line{"new": {udp, tcp}, "end": {udpEnd, tcpEnd}}
	byProto := cmpopts.SortSlices(func(a, b line) bool { return a.Proto < b.Proto }) // flows that began at one time end in any order
	if diff := cmp.Diff(want, got, cmpopts.IgnoreFields(line{}, "Time", "DurationNs"), byProto); diff != "" {
		t.Errorf("%s\n%s", diff, p.Output())
	}
	if f := r.Client.Receive(0); f != nil {
		t.Errorf("it sent % x", f)
	}
}

// Frames that no honest station sends, up to jumbo frames: each is counted, or as one that the kernel had no room for. It says nothing, and goes on.
func TestHostileFrames(t *testing.T) {
	r := rig.New(t, true)
	file := filepath.Join(t.TempDir(), "config.json")
	must(t, os.WriteFile(file, []byte(`{"idle_s": 1}`), 0o644))
	p := r.Start(rig.Build(t, "."), "-flows", filepath.Join(t.TempDir(), "flows"), "-config", file)
	p.Await(`"start"`)
	const frames = 1_000_000
	rig.Hostile{Frames: frames, MTU: 9000, MemoryKB: 48 << 10}.Send(r, p.PID())
	port := layers.UDPPort(0)
	rig.Eventually(t, "a new flow is logged", func() bool { // when those of before have ended, and fewer lines come
		other := v4(17)
		other.SrcIP = net.IP{10, 1, 1, 77}
		port++
		r.Client.Send(build(t, eth(0x800), other, &layers.UDP{SrcPort: port, DstPort: 9}))
		return strings.Contains(p.Output(), `"event":"new","proto":"udp","src":"10.1.1.77"`)
	})
	if f := r.Client.Receive(0); f != nil {
		t.Errorf("it sent % x", f)
	}
	p.Signal(syscall.SIGTERM)
	must(t, p.End())
	var sum line
	for text := range strings.Lines(p.Output()) {
		if l := (line{}); json.Unmarshal([]byte(text), &l) == nil && l.Event == "summary" {
			sum = l
		}
	}
	t.Logf("%d packets of %d flows, %d of none; %d dropped by the kernel", sum.Packets, sum.Flows, sum.Untracked, sum.Dropped)
	if want := uint64(frames); !testing.Short() && (sum.Packets+sum.Dropped < want*9/10 || sum.Packets < want/4) {
		t.Errorf("%d packets and %d dropped: want %d in all, and most of them counted", sum.Packets, sum.Dropped, want)
	}
}

// A tap that has nothing to do costs nothing, and one that goes away ends the function.
func TestTapGone(t *testing.T) {
	r := rig.New(t, true)
	p := r.Start(rig.Build(t, "."), "-flows", filepath.Join(t.TempDir(), "flows"), "-config", filepath.Join(t.TempDir(), "none.json"))
	p.Await(`"start"`)
	r.Client.Cut()
	if err := p.End(); err == nil || !strings.Contains(p.Output(), "the tap is gone") {
		t.Errorf("%v: %s", err, p.Output())
	}
}

func TestNoTap(t *testing.T) {
	r := rig.New(t, false)
	p := r.Start(rig.Build(t, "."))
	if err := p.End(); err == nil || !strings.Contains(p.Output(), "interface tap:") {
		t.Errorf("%v: %s", err, p.Output())
	}
}
