package main

import (
	"encoding/binary"
	"encoding/json"
	"fmt"
	"math"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/gopacket/gopacket"
	"github.com/gopacket/gopacket/layers"
	"github.com/miekg/dns"
	"pgregory.net/rapid"

	"weir.dev/weir/catalogue/rig"
)

// hello is a ClientHello for a name, with so many bytes of padding in an extension before it.
func hello(name string, padding int) []byte {
	vector := func(size int, b []byte) []byte {
		out := make([]byte, size, size+len(b))
		for i := range size {
			out[i] = byte(len(b) >> (8 * (size - 1 - i)))
		}
		return append(out, b...)
	}
	ext := append([]byte{0, 21}, vector(2, make([]byte, padding))...)
	ext = append(append(ext, 0, 0), vector(2, vector(2, append([]byte{0}, vector(2, []byte(name))...)))...)
	body := append([]byte{3, 3}, make([]byte, 32)...)
	body = append(append(append(append(body, 0), vector(2, []byte{19, 1})...), vector(1, []byte{0})...), vector(2, ext)...)
	return append([]byte{22, 3, 1}, vector(2, append([]byte{1}, vector(3, body)...))...)
}

// What a reader of IPFIX gets is what tshark, which knows nothing of us, reads in it: both directions of flows of IPv4, IPv6 and others, in a VLAN, with their
// packets, bytes, flags and times; a flow that goes on is reported in parts. JSON has the names, too.
func TestFlowsForReaders(t *testing.T) {
	r, dir := rig.New(t, true), t.TempDir()
	program, socket, file := rig.Build(t, "."), filepath.Join(dir, "flows"), filepath.Join(dir, "config.json")
	must(t, os.WriteFile(file, []byte(`{"idle_s": 3, "active_s": 1}`), 0o644))
	p := r.Start(program, "-flows", socket, "-config", file)
	p.Await(`"start"`)
	reading := map[string]*rig.Process{}
	for _, format := range []string{formatIPFIX, formatJSON} {
		reading[format] = r.Start("sh", "-c", `exec "$0" -flows "$1" -follow "$2" >"$3"`, program, socket, format, filepath.Join(dir, format))
	}
	rig.Eventually(t, "templates come at once", func() bool { fi, err := os.Stat(filepath.Join(dir, formatIPFIX)); return err == nil && fi.Size() > 0 })

	query := new(dns.Msg)
	query.SetQuestion("Host.Example.", dns.TypeA)
	question, err := query.Pack()
	must(t, err)
	udp := build(t, eth(0x800), v4(17), &layers.UDP{SrcPort: 5000, DstPort: 53}, gopacket.Payload(question))
	back4 := v4(17)
	back4.SrcIP, back4.DstIP = back4.DstIP, back4.SrcIP
	answer := build(t, eth(0x800), back4, &layers.UDP{SrcPort: 53, DstPort: 5000}, gopacket.Payload(make([]byte, 500)))
	syn := build(t, eth(0x8100), &layers.Dot1Q{VLANIdentifier: 42, Type: 0x86dd}, v6(6), &layers.TCP{SrcPort: 6000, DstPort: 443, SYN: true, Window: 9})
	tls := build(t, eth(0x8100), &layers.Dot1Q{VLANIdentifier: 42, Type: 0x86dd}, v6(6), &layers.TCP{SrcPort: 6000, DstPort: 443, ACK: true, PSH: true, Window: 9}, gopacket.Payload(hello("www.example", 900)))
	arp := build(t, eth(0x806), gopacket.Payload(make([]byte, 28)))
	began := time.Now()
	for _, f := range [][]byte{udp, answer, answer, syn, tls, arp} {
		r.Client.Send(f)
	}
	time.Sleep(1500 * time.Millisecond) // the flow goes on for longer than active_s
	r.Client.Send(udp)
	p.Await(`"event":"end"`)
	p.Signal(syscall.SIGUSR1)
	p.Await(`"talkers":[{"address":"fd00::1","packets":2,`)
	rig.Eventually(t, "all flows have ended", func() bool { return strings.Count(p.Output(), `"event":"end"`) >= 3 })
	time.Sleep(2 * flushEvery)
	p.Signal(syscall.SIGTERM)
	must(t, p.End())
	for format, f := range reading {
		if err := f.End(); err != nil {
			t.Errorf("reader of %s: %v: %s", format, err, f.Output())
		}
	}

	got := flowsByTshark(t, filepath.Join(dir, formatIPFIX), began)
	want := map[string][2]int{
		"10.1.1.1:5000 10.1.1.2:53 proto 17 vlan 0 flags 0":         {2, 2 * len(udp)},
		"10.1.1.2:53 10.1.1.1:5000 proto 17 vlan 0 flags 0":         {2, 2 * len(answer)},
		"fd00::1:6000 fd00::2:443 proto 6 vlan 42 flags 26":         {2, len(syn) + len(tls) - 8},
		"02:00:00:00:00:01 02:00:00:00:00:02 ethertype 2054 vlan 0": {1, len(arp)},
	}
	for flow, n := range want {
		if got[flow] != n {
			t.Errorf("%s: got %v, want %v", flow, got[flow], n)
		}
	}
	raw, err := os.ReadFile(filepath.Join(dir, formatJSON))
	must(t, err)
	var told []string
	packets := uint64(0)
	for text := range strings.Lines(string(raw)) {
		var l line
		must(t, json.Unmarshal([]byte(text), &l))
		told = append(told, l.Proto+" "+l.Name+" "+l.Flags)
		packets += l.Packets + l.ReplyPackets
		if l.Event != "flow" || l.Start == nil || l.Reason == "" {
			t.Errorf("line %s", text)
		}
	}
	slices.Sort(told)
	if diff := cmp.Diff([]string{"arp  ", "tcp www.example SPA", "udp host.example ", "udp host.example "}, filterPorts(told)); diff != "" || packets < 7 {
		t.Errorf("JSON (%d packets): %s\n%s", packets, diff, raw)
	}
}

// filterPorts leaves out what the stations say by themselves.
func filterPorts(lines []string) (out []string) {
	for _, l := range lines {
		if strings.HasPrefix(l, "arp") || strings.HasPrefix(l, "tcp") || strings.HasPrefix(l, "udp") {
			out = append(out, l)
		}
	}
	return out
}

// flowsByTshark reads a file of IPFIX: packets and bytes of each flow and direction.
func flowsByTshark(t *testing.T, file string, began time.Time) map[string][2]int {
	t.Helper()
	out, err := exec.Command("tshark", "-r", file, "-T", "json", "-Y", "cflow").Output()
	if err != nil {
		t.Fatalf("tshark: %v", err)
	}
	if strings.Contains(string(out), "Malformed") || strings.Contains(string(out), "_ws.expert") {
		t.Errorf("tshark finds faults: %s", out)
	}
	var messages []map[string]any
	must(t, json.Unmarshal(out, &messages))
	got := map[string][2]int{}
	var walk func(any)
	walk = func(x any) {
		switch x := x.(type) {
		case []any:
			for _, y := range x {
				walk(y)
			}
		case map[string]any:
			if n, ok := x["cflow.packets"]; ok {
				text := func(name string) string { v, _ := x[name].(string); return v }
				number := func(v any) (n int) { _, _ = fmt.Sscan(fmt.Sprint(v), &n); return n }
				base := func(v string) (n int) { _, _ = fmt.Sscanf(v, "0x%x", &n); return n }
				src, dst := text("cflow.srcaddr")+text("cflow.srcaddrv6"), text("cflow.dstaddr")+text("cflow.dstaddrv6")
				flow := fmt.Sprintf("%s:%s %s:%s proto %s vlan %s flags %d", src, text("cflow.srcport"), dst, text("cflow.dstport"), text("cflow.protocol"), text("cflow.vlanid"), base(text("cflow.tcpflags16")+text("cflow.tcpflags")))
				if src == "" {
					flow = fmt.Sprintf("%s %s ethertype %d vlan %s", text("cflow.srcmac"), text("cflow.dstmac"), number(text("cflow.ethernet_type")), text("cflow.vlanid"))
				}
				sum := got[flow]
				got[flow] = [2]int{sum[0] + number(n), sum[1] + number(x["cflow.octets"])}
			}
			for _, y := range x {
				walk(y)
			}
		}
	}
	for _, m := range messages {
		walk(m)
	}
	if len(got) == 0 {
		t.Errorf("tshark finds no flow: %.3000s", out)
	}
	return got
}

// A reader that does not read holds up nobody; what it misses, the numbers of its messages say. There are four at most.
func TestReadersAreBounded(t *testing.T) {
	rs := newReaders()
	path := filepath.Join(t.TempDir(), "flows")
	l, err := rs.listen(path)
	must(t, err)
	defer l.Close()
	var conns []net.Conn
	for range maxReaders {
		c, err := net.Dial("unix", path)
		must(t, err)
		defer c.Close()
		fmt.Fprintln(c, formatIPFIX)
		b := make([]byte, 3)
		_ = c.SetDeadline(time.Now().Add(rig.Patience))
		if _, err := c.Read(b); err != nil || string(b) != "ok\n" {
			t.Fatalf("%q, %v", b, err)
		}
		conns = append(conns, c)
	}
	if err := follow(path, formatJSON, os.Stdout); err == nil || !strings.Contains(err.Error(), "4 readers are here already") {
		t.Errorf("one more: %v", err)
	}
	x := report{first: packet{ethertype: etherIPv4}, packets: [2]uint64{1, 1}}
	for range 20 * maxWaiting { // nobody reads
		rs.add(x)
	}
	rs.mu.Lock()
	if rs.others.missed == 0 || rs.collector != (delivery{}) {
		t.Errorf("counted as missed: %+v, and of the collector %+v", rs.others, rs.collector)
	}
	rs.mu.Unlock()
	conns[0].Close()
	rig.Eventually(t, "there is room again", func() bool {
		rs.mu.Lock()
		defer rs.mu.Unlock()
		return len(rs.each) < maxReaders
	})
	if err := follow(path, "xml", os.Stdout); err == nil || !strings.Contains(err.Error(), `format "xml": want ipfix or json`) {
		t.Errorf("another format: %v", err)
	}
}

// Kinds of stations.
const (
	big = iota + 1
	small
	known
	others
)

func sender(kind byte, n int) station {
	s := station{ethertype: etherIPv6, address: address{0xfd, kind}}
	binary.BigEndian.PutUint32(s.address[12:], uint32(n))
	return s
}

// Who sends most is found among many who send little.
func TestTalkers(t *testing.T) {
	ts := newTalkers()
	for i := range 5 * maxTalkers {
		ts.add(sender(small, i), 1, 10)
		ts.add(sender(big, 7), 1, 1000)
		ts.add(sender(others, 0), 0, 0)
	}
	if top := ts.top(); len(ts.by) > maxTalkers || len(top) != topTalkers || top[0].Address != "fd01::7" || top[0].Packets != 5*maxTalkers {
		t.Errorf("%d: %+v", len(ts.by), top)
	}
}

// The place that a new address takes is that of an address that sent least; nothing that was counted is lost, whatever the order.
func TestTalkersKeepTheirOrder(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		ts, sum := newTalkers(), uint64(0)
		for i := range maxTalkers - 3 {
			ts.add(sender(known, i), 1, uint64(i))
			sum += uint64(i)
		}
		for range rapid.IntRange(0, 50).Draw(t, "additions") {
			address, bytes := sender(others, rapid.IntRange(0, 20).Draw(t, "address")), rapid.Uint64Range(0, 3000).Draw(t, "bytes")
			_, known := ts.by[address]
			full, least := len(ts.rank) == maxTalkers, uint64(math.MaxUint64)
			for _, x := range ts.rank {
				least = min(least, x.bytes)
			}
			displaced := ts.displaced
			ts.add(address, 1, bytes)
			sum += bytes
			if got := ts.displaced - displaced; got > 1 || (got == 1) != (full && !known) {
				t.Fatalf("%d addresses are displaced; full: %t, known: %t", got, full, known)
			}
			if got := ts.by[address]; full && !known && got.bytes != least+bytes {
				t.Fatalf("a new address has %d bytes, want those of the one that sent least, %d, and its own %d", got.bytes, least, bytes)
			}
		}
		all := uint64(0)
		for i, x := range ts.rank {
			if x.at != i || ts.by[x.station] != x || i > 0 && x.bytes < ts.rank[(i-1)/2].bytes {
				t.Fatalf("place %d: %+v", i, *x)
			}
			all += x.bytes
		}
		if all != sum || len(ts.by) != len(ts.rank) || len(ts.rank) > maxTalkers {
			t.Fatalf("%d bytes of %d, %d addresses, %d in order", all, sum, len(ts.by), len(ts.rank))
		}
	})
}

// An address that comes when there is no room costs about what one that is known costs, not a look at all of them: somebody may scan addresses.
func TestANewTalkerIsCheap(t *testing.T) {
	const many = 20_000
	took := func(address func(i int) station) time.Duration {
		least := time.Hour
		for range 5 {
			ts := newTalkers()
			for i := range maxTalkers {
				ts.add(sender(known, i), 1, uint64(1+i))
			}
			began := time.Now()
			for i := range many {
				ts.add(address(i), 1, 1)
			}
			least = min(least, time.Since(began))
		}
		return least
	}
	again, fresh := took(func(int) station { return sender(known, 7) }), took(func(i int) station { return sender(others, i) })
	if fresh > 60*again { // it was some 300 times
		t.Errorf("%d new addresses take %s, a known one so many times %s", many, fresh, again)
	}
}
