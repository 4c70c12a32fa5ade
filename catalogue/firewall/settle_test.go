package main

import (
	"bufio"
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/netip"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"github.com/google/nftables"
	"github.com/gopacket/gopacket"
	"github.com/gopacket/gopacket/layers"

	"weir.dev/weir/catalogue/nf"
	"weir.dev/weir/catalogue/rig"
)

// platform takes what a firewall says of flows.
type platform struct {
	mu    sync.Mutex
	lines []string
}

// startSettling starts a firewall with a platform that takes verdicts.
func startSettling(t *testing.T, config string) (*rig.Rig, *rig.Process, string, *platform) {
	t.Helper()
	r := rig.New(t, false)
	dir := t.TempDir()
	l, err := net.Listen("unix", filepath.Join(dir, "settle.sock"))
	must(t, err)
	t.Cleanup(func() { _ = l.Close() })
	p := &platform{}
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go p.hear(c)
		}
	}()
	file := filepath.Join(dir, "config.json")
	write(t, file, config)
	run := r.Start(program(), "-config", file, "-probe", rig.WriteProbe(t, dir), "-settle", filepath.Join(dir, "settle.sock"))
	run.Await("rules in force")
	rig.Eventually(t, "the bridge forwards", func() bool {
		r.Client.Send(rig.Probe(0))
		return r.Server.Receive(20*time.Millisecond) != nil
	})
	return r, run, file, p
}

func (p *platform) hear(c net.Conn) {
	defer c.Close()
	for lines := bufio.NewScanner(c); lines.Scan(); {
		p.mu.Lock()
		p.lines = append(p.lines, lines.Text())
		p.mu.Unlock()
		fmt.Fprintln(c, "ok 1")
	}
}

// said are the different lines since the last reset.
func (p *platform) said() []string {
	p.mu.Lock()
	defer p.mu.Unlock()
	last := -1
	for i, l := range p.lines {
		if l == "reset" {
			last = i
		}
	}
	out := slices.Clone(p.lines[last+1:])
	slices.Sort(out)
	return slices.Compact(out)
}

func (p *platform) resets() (n int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, l := range p.lines {
		if l == "reset" {
			n++
		}
	}
	return n
}

// Both directions of an allowed connection are settled, each for the port at which it enters; when the rules are others, all is taken back, and what
// they forbid is not settled any more.
func TestAllowedConnectionsAreSettled(t *testing.T) {
	r, run, file, p := startSettling(t, `{"allow": ["tcp/80"]}`)
	r.Server.Echo("10.77.0.2:80")
	ctx, cancel := context.WithTimeout(t.Context(), rig.Patience)
	defer cancel()
	c, err := r.Client.Dial(ctx, "tcp4", "10.77.0.2:80")
	must(t, err)
	defer c.Close()
	talk := func(patience time.Duration) error {
		must(t, c.SetDeadline(time.Now().Add(patience)))
		if _, err := c.Write([]byte("hello")); err != nil {
			return err
		}
		_, err := io.ReadFull(c, make([]byte, 5))
		return err
	}
	here, there := c.LocalAddr(), c.RemoteAddr()
	want := []string{fmt.Sprintf("pass tcp %s %s oneway at in", here, there), fmt.Sprintf("pass tcp %s %s oneway at out", there, here)}
	slices.Sort(want)
	rig.Eventually(t, "both directions are settled", func() bool {
		must(t, talk(rig.Patience))
		return cmp.Diff(want, p.said()) == ""
	})
	before := p.resets()
	write(t, file, `{"allow": ["tcp/81"]}`)
	run.Signal(syscall.SIGHUP)
	run.Await("allow=[tcp/81]")
	rig.Eventually(t, "all is taken back", func() bool { return p.resets() == before+1 })
	if talk(500*time.Millisecond) == nil {
		t.Error("a connection goes on that the rules forbid")
	}
	for _, l := range p.said() {
		if strings.Contains(l, fmt.Sprintf("%s %s", here, there)) {
			t.Errorf("%q is said by rules that forbid it", l)
		}
	}
}

// What the switch would take for a part of an accepted flow, and is not, settles nothing.
func TestOnlyPlainAcceptedPacketsSettle(t *testing.T) {
	segment := func(sport, dport layers.TCPPort) *layers.TCP {
		return &layers.TCP{SrcPort: sport, DstPort: dport, ACK: true, Window: 1000}
	}
	fragment := v4(layers.IPProtocolUDP)
	fragment.FragOffset = 3
	later := v4(layers.IPProtocolTCP)
	later.Flags = layers.IPv4MoreFragments
	options := v4(layers.IPProtocolUDP)
	options.Options = []layers.IPv4Option{{OptionType: 1}, {OptionType: 1}, {OptionType: 1}, {OptionType: 0}}
	end := segment(4000, 80)
	end.FIN = true
	// Without tracking, in any kernel: a lone segment belongs to no connection.
	r, _, _, p := startSettling(t, `{"default": "accept", "deny": ["udp/54", "tcp/81"]}`)
	odd := map[string][]byte{
		"SYN":            frame(t, eth(layers.EthernetTypeIPv4), v4(layers.IPProtocolTCP), syn(4000, 80)),
		"FIN":            frame(t, eth(layers.EthernetTypeIPv4), v4(layers.IPProtocolTCP), end),
		"first fragment": frame(t, eth(layers.EthernetTypeIPv4), later, segment(4000, 80)),
		"later fragment": frame(t, eth(layers.EthernetTypeIPv4), fragment, udp(4000, 53)),
		"IP options":     frame(t, eth(layers.EthernetTypeIPv4), options, udp(4000, 53)),
		"VLAN":           frame(t, eth(layers.EthernetTypeDot1Q), tag(5, layers.EthernetTypeIPv4), v4(layers.IPProtocolUDP), udp(4000, 53)),
		"ARP":            frames(t)["arp"],
	}
	denied := map[string][]byte{
		"denied":      frame(t, eth(layers.EthernetTypeIPv4), v4(layers.IPProtocolUDP), udp(4000, 54)),
		"also denied": frame(t, eth(layers.EthernetTypeIPv4), v4(layers.IPProtocolTCP), segment(4000, 81)),
	}
	plain := map[string][]byte{
		"UDP":  frame(t, eth(layers.EthernetTypeIPv4), v4(layers.IPProtocolUDP), udp(4001, 53)),
		"TCP6": frame(t, eth(layers.EthernetTypeIPv6), v6(layers.IPProtocolTCP), segment(4002, 80)),
	}
	all := func() {
		for i, set := range []map[string][]byte{odd, denied, plain} {
			for name, f := range set {
				if want := i != 1; rig.Passes(r.Client, r.Server, f) != want {
					t.Fatalf("%s: passes %t, want %t", name, !want, want)
				}
			}
		}
	}
	once := frame(t, eth(layers.EthernetTypeIPv4), v4(layers.IPProtocolUDP), udp(4003, 53))
	if !rig.Passes(r.Client, r.Server, once) {
		t.Error("a query does not pass")
	}
	want := []string{"pass tcp [fd00::1]:4002 [fd00::2]:80 oneway at in", "pass udp 10.1.1.1:4001 10.1.1.2:53 oneway at in"}
	rig.Eventually(t, "plain packets are settled", func() bool { all(); return len(p.said()) >= len(want) })
	for range 10 {
		all()
	}
	if d := cmp.Diff(want, p.said()); d != "" {
		t.Error(d)
	}
}

// Where nobody takes verdicts, or none are to be said, the rules collect no flows.
func TestNothingIsCollectedInVain(t *testing.T) {
	alone, _, _ := start(t, `{"allow": ["all"]}`)
	collectsNothing(t, alone)
	forbidden, _, _, _ := startSettling(t, `{"allow": ["all"], "settle": false}`)
	collectsNothing(t, forbidden)
}

func collectsNothing(t *testing.T, r *rig.Rig) {
	t.Helper()
	r.Do(r.Netns, func() error {
		c, err := nftables.New()
		must(t, err)
		sets, err := c.GetSets(&nftables.Table{Family: nftables.TableFamilyBridge, Name: tableName})
		if err == nil && len(sets) > 0 {
			t.Errorf("there are %d sets", len(sets))
		}
		return err
	})
}

func TestElementsAreRead(t *testing.T) {
	now := time.Now()
	key := binary.NativeEndian.AppendUint32(nil, 7)
	key = append(key, 17, 0, 0, 0, 10, 9, 0, 1, 10, 9, 0, 2, 0x0f, 0xa0, 0, 53)
	got, ok := acceptedSets[0].read(nftables.SetElement{Key: key, Expires: flowLife - 30*time.Millisecond}, now)
	at := netip.MustParseAddrPort
	want := accepted{7, nf.Flow{Proto: nf.UDP, Src: at("10.9.0.1:4000"), Dst: at("10.9.0.2:53"), VLAN: nf.NoVLAN}, now.Add(-30 * time.Millisecond)}
	if d := cmp.Diff(want, got, cmp.AllowUnexported(accepted{}), cmpopts.EquateComparable(netip.AddrPort{})); d != "" || !ok {
		t.Errorf("%t %s", ok, d)
	}
	if _, ok := acceptedSets[1].read(nftables.SetElement{Key: key}, now); ok {
		t.Error("a key of another family is read")
	}
}

// Flows that need the kernel's connections are given again in time, each once, and no more are remembered than the switch does.
func TestTrackedFlowsAreGivenAgain(t *testing.T) {
	s := nf.NewSettler(filepath.Join(t.TempDir(), "none"), slog.New(slog.DiscardHandler))
	defer s.Close()
	flow := func(n int) told {
		return told{nf.Up, nf.Flow{Proto: nf.UDP, Src: netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, byte(n >> 16), byte(n >> 8), byte(n)}), 1)}}
	}
	var a again
	now := time.Now()
	a.add(s, flow(1), now.Add(udpAgain))
	a.add(s, flow(1), now.Add(udpAgain+time.Second))
	a.giveAgain(s, now.Add(udpAgain-1))
	if len(a.queue) != 1 {
		t.Errorf("%d flows wait, want 1", len(a.queue))
	}
	a.giveAgain(s, now.Add(udpAgain))
	if len(a.queue) != 0 || len(a.known) != 0 {
		t.Errorf("%d flows wait, %d are known; want none", len(a.queue), len(a.known))
	}
	for n := range maxTold + 100 {
		a.add(s, flow(n), now)
	}
	if len(a.queue) != maxTold || len(a.known) != maxTold || a.known[flow(99)] || !a.known[flow(100)] {
		t.Errorf("%d flows wait, %d are known; want %d, without the oldest", len(a.queue), len(a.known), maxTold)
	}
}

// unpadded makes frames so long that they need no padding, which tracking connections takes off.
var unpadded = gopacket.Payload("eighteen bytes, so")

// Where the kernel tracks connections it does not see the segments that pass us by. What comes behind them is a part of the connection all the same.
func TestSegmentsBehindAGapPass(t *testing.T) {
	const config = `{"allow": ["tcp/80"]}`
	connection := func(r *rig.Rig, port layers.TCPPort, more func(again func())) bool {
		segment := func(back bool, seq, ack uint32, flags func(*layers.TCP)) []byte {
			ip, tcp := v4(layers.IPProtocolTCP), &layers.TCP{SrcPort: port, DstPort: 80, Seq: seq, Ack: ack, ACK: true, Window: 1000}
			if back {
				ip.SrcIP, ip.DstIP, tcp.SrcPort, tcp.DstPort = ip.DstIP, ip.SrcIP, 80, port
			}
			flags(tcp)
			return frame(t, eth(layers.EthernetTypeIPv4), ip, tcp, unpadded)
		}
		plain := func(*layers.TCP) {}
		for i, f := range [][]byte{
			segment(false, 1000, 0, func(h *layers.TCP) { h.SYN, h.ACK = true, false }), segment(true, 5000, 1001, func(h *layers.TCP) { h.SYN = true }),
			segment(false, 1001, 5001, plain), segment(true, 5001, 1001, plain),
		} {
			from, to := r.Client, r.Server
			if i%2 == 1 {
				from, to = to, from
			}
			if !rig.Passes(from, to, f) {
				t.Fatalf("segment %d does not pass", i)
			}
		}
		more(func() {
			if !rig.Passes(r.Client, r.Server, segment(false, 1001, 5001, plain)) || !rig.Passes(r.Server, r.Client, segment(true, 5001, 1001, plain)) {
				t.Fatal("a segment does not pass")
			}
		})
		return rig.Passes(r.Server, r.Client, segment(true, 50_000_000, 1001, plain)) &&
			rig.Passes(r.Server, r.Client, segment(true, 50_000_000, 1001, func(h *layers.TCP) { h.FIN = true }))
	}
	r, run, _, p := startSettling(t, config)
	if !connection(r, 4000, func(again func()) {
		rig.Eventually(t, "both directions are settled", func() bool { again(); return len(p.said()) == 2 })
	}) {
		t.Error("a segment behind a gap of a settled connection does not pass")
	}
	tracks := strings.Contains(run.Output(), "tracking=connections")
	t.Logf("the kernel tracks connections on bridges: %t", tracks)
	plain, _, _ := start(t, config)
	if passes := connection(plain, 4001, func(func()) {}); passes == tracks {
		t.Errorf("a segment beyond the window of a connection that is not settled: passes %t, tracked %t", passes, tracks)
	}
}

// Replies of UDP are settled, too, however the kernel knows that they are.
func TestRepliesOfUDPAreSettled(t *testing.T) {
	r, _, _, p := startSettling(t, `{"allow": ["udp/53"]}`)
	back := v4(layers.IPProtocolUDP)
	back.SrcIP, back.DstIP = back.DstIP, back.SrcIP
	rig.Eventually(t, "both directions are settled", func() bool {
		if !rig.Passes(r.Client, r.Server, frame(t, eth(layers.EthernetTypeIPv4), v4(layers.IPProtocolUDP), udp(4000, 53), unpadded)) ||
			!rig.Passes(r.Server, r.Client, frame(t, eth(layers.EthernetTypeIPv4), back, udp(53, 4000), unpadded)) {
			t.Fatal("a query or its reply does not pass")
		}
		return len(p.said()) == 2
	})
	want := []string{"pass udp 10.1.1.1:4000 10.1.1.2:53 oneway at in", "pass udp 10.1.1.2:53 10.1.1.1:4000 oneway at out"}
	if d := cmp.Diff(want, p.said()); d != "" {
		t.Error(d)
	}
}

// Packets that count for a limit come to the firewall, all of them; those of an entry with addresses need not. A process that takes over from a killed one
// replaces its sets.
func TestWhatCountsForALimitIsNotSettled(t *testing.T) {
	r, run, file, p := startSettling(t, `{"allow": [{"service": "udp/53", "limit": {"rate": "1000/s"}}, {"service": "tcp/80", "limit": {"rate": "1000/s", "per_source": true}},
		{"service": "udp/54", "from": "10.1.1.1", "to": "10.1.1.2"}]}`)
	segment := &layers.TCP{SrcPort: 4000, DstPort: 80, ACK: true, Window: 1000}
	all := func() {
		t.Helper()
		for i, f := range [][]byte{
			frame(t, eth(layers.EthernetTypeIPv4), v4(layers.IPProtocolUDP), udp(4000, 53), unpadded), frame(t, eth(layers.EthernetTypeIPv4), v4(layers.IPProtocolTCP), segment, unpadded),
			frame(t, eth(layers.EthernetTypeIPv4), v4(layers.IPProtocolUDP), udp(4000, 54), unpadded),
		} {
			if !rig.Passes(r.Client, r.Server, f) {
				t.Fatalf("frame %d does not pass", i)
			}
		}
	}
	want := []string{"pass udp 10.1.1.1:4000 10.1.1.2:54 oneway at in"}
	settled := func() bool {
		all()
		return len(p.said()) > 0
	}
	rig.Eventually(t, "a flow without a limit is settled", settled)
	all()
	if d := cmp.Diff(want, p.said()); d != "" {
		t.Error(d)
	}
	run.Signal(syscall.SIGKILL)
	_ = run.End()
	p.mu.Lock()
	p.lines = nil
	p.mu.Unlock()
	dir := filepath.Dir(file)
	next := r.Start(program(), "-config", file, "-probe", rig.WriteProbe(t, t.TempDir()), "-settle", filepath.Join(dir, "settle.sock"))
	next.Await("rules in force")
	rig.Eventually(t, "it is settled by the next process", settled)
	if d := cmp.Diff(want, p.said()); d != "" {
		t.Error(d)
	}
	r.Do(r.Netns, func() error {
		c, err := nftables.New()
		must(t, err)
		sets, err := c.GetSets(&nftables.Table{Family: nftables.TableFamilyBridge, Name: tableName})
		if own := 2 + 2 + 2; len(sets) != own { // accepted, addresses, sources of a limit
			t.Errorf("there are %d sets, want %d", len(sets), own)
		}
		return err
	})
}

// More flows than the sets hold at once are settled one after the other.
func TestManyFlowsAreSettledInTurn(t *testing.T) {
	r, _, _, p := startSettling(t, `{"allow": ["udp/53"]}`)
	const flows = 3 * maxAccepted
	var all [][]byte
	for i := range flows {
		all = append(all, frame(t, eth(layers.EthernetTypeIPv4), v4(layers.IPProtocolUDP), udp(layers.UDPPort(10000+i), 53)))
	}
	n := 0
	rig.Eventually(t, "all flows are settled", func() bool {
		for i := range all { // those that were first are last the next time
			r.Client.Send(all[(i+n)%flows])
		}
		n += 37
		for r.Server.Receive(time.Millisecond) != nil {
		}
		return len(p.said()) == flows
	})
}
