package main

import (
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/gopacket/gopacket"
	"github.com/gopacket/gopacket/layers"

	"weir.dev/weir/catalogue/rig"
)

// collector reads messages as RFC 7011 has them. It knows no more of records than their templates say.
type collector struct {
	t         *testing.T
	conn      *net.UnixConn
	templates map[uint16][]field
	described int    // sets of templates
	sequence  uint32 // the next, of records
	messages  int
	packets   map[string]uint64 // by addresses, ports and protocol
	reasons   map[uint64]int
}

// collect listens where the platform would.
func collect(t *testing.T) (*collector, string) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "ipfix.sock")
	l, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: path, Net: "unixgram"})
	must(t, err)
	t.Cleanup(func() { l.Close() })
	return &collector{t: t, conn: l, templates: map[uint16][]field{}, packets: map[string]uint64{}, reasons: map[uint64]int{}}, path
}

// hear a message; false: none came in time.
func (c *collector) hear(within time.Duration) bool {
	c.t.Helper()
	b := make([]byte, 65536)
	must(c.t, c.conn.SetReadDeadline(time.Now().Add(within)))
	n, err := c.conn.Read(b)
	if errors.Is(err, os.ErrDeadlineExceeded) {
		return false
	}
	must(c.t, err)
	c.message(b[:n])
	return true
}

func (c *collector) message(b []byte) {
	c.t.Helper()
	u16, u32 := binary.BigEndian.Uint16, binary.BigEndian.Uint32
	if len(b) < 16 || len(b) > maxMessage || u16(b) != 10 || int(u16(b[2:])) != len(b) || u32(b[12:]) == 0 {
		c.t.Fatalf("message of %d bytes % x", len(b), b)
	}
	if at := time.Unix(int64(u32(b[4:])), 0); time.Since(at).Abs() > time.Minute {
		c.t.Errorf("exported at %s", at)
	}
	if got := u32(b[8:]); got < c.sequence {
		c.t.Errorf("sequence number %d after %d records", got, c.sequence)
	} else {
		c.sequence = got
	}
	c.messages++
	for b = b[16:]; len(b) > 0; {
		if len(b) < 4 || int(u16(b[2:])) < 4 || int(u16(b[2:])) > len(b) {
			c.t.Fatalf("set % x", b)
		}
		id, set := u16(b), b[4:u16(b[2:])]
		b = b[u16(b[2:]):]
		switch {
		case id == 2:
			c.described++
			for len(set) >= 4 {
				set = c.template(set)
			}
		case id < 256:
			c.t.Fatalf("set %d", id)
		default:
			for set = c.record(id, set); len(set) > 0 && c.length(id) <= len(set); {
				set = c.record(id, set)
			}
		}
	}
}

// template is learned: what is behind it.
func (c *collector) template(b []byte) []byte {
	c.t.Helper()
	id, n := binary.BigEndian.Uint16(b), int(binary.BigEndian.Uint16(b[2:]))
	if b = b[4:]; id < 256 || n == 0 || len(b) < 4*n {
		c.t.Fatalf("template %d of %d fields in %d bytes", id, n, len(b))
	}
	c.templates[id] = nil
	for range n {
		c.templates[id] = append(c.templates[id], field{binary.BigEndian.Uint16(b), binary.BigEndian.Uint16(b[2:])})
		b = b[4:]
	}
	return b
}

func (c *collector) length(id uint16) (n int) {
	for _, f := range c.templates[id] {
		n += int(f.length)
	}
	return n
}

func (c *collector) record(id uint16, b []byte) []byte {
	c.t.Helper()
	if c.length(id) == 0 || len(b) < c.length(id) {
		c.t.Fatalf("a record of template %d, of %d bytes, in %d", id, c.length(id), len(b))
	}
	values := map[uint16][]byte{}
	for _, f := range c.templates[id] {
		values[f.element] = b[:f.length]
		b = b[f.length:]
	}
	number := func(element uint16) (n uint64) {
		for _, x := range values[element] {
			n = n<<8 | uint64(x)
		}
		return n
	}
	address := func(elements ...uint16) string {
		for _, e := range elements {
			if a, ok := netip.AddrFromSlice(values[e]); ok {
				return a.String()
			}
		}
		return hex.EncodeToString(values[elements[0]])
	}
	src, dst := address(ieSource4, ieSource6), address(ieTarget4, ieTarget6)
	c.packets[fmt.Sprintf("%d %s:%d %s:%d", number(ieProtocol), src, number(ieSourcePort), dst, number(ieTargetPort))] += number(iePackets)
	c.reasons[number(ieEndReason)]++
	c.sequence++
	if start, end := number(ieStart), number(ieEnd); number(ieOctets) == 0 || start > end || time.Since(time.UnixMilli(int64(start))).Abs() > time.Hour {
		c.t.Errorf("a flow of %d bytes from %d to %d", number(ieOctets), start, end)
	}
	return b
}

// What the platform gets for a collector is all that was seen, in messages that a datagram carries, and numbered. What goes on when the function stops comes, too.
func TestFlowsAreExported(t *testing.T) {
	c, path := collect(t)
	r, dir := rig.New(t, true), t.TempDir()
	file := filepath.Join(dir, "config.json")
	must(t, os.WriteFile(file, []byte(`{"idle_s": 3600, "active_s": 3600}`), 0o644))
	p := r.Start(rig.Build(t, "."), "-flows", filepath.Join(dir, "flows"), "-ipfix", path, "-config", file)
	p.Await(`"start"`)
	if !c.hear(rig.Patience) || c.described != 1 || len(c.templates) != 3 {
		t.Fatalf("%d sets of templates, %v: want all at once", c.described, c.templates)
	}
	const many = 200
	want := map[string]uint64{}
	for i := range many {
		r.Client.Send(build(t, eth(0x800), v4(17), &layers.UDP{SrcPort: layers.UDPPort(1000 + i), DstPort: 9}, gopacket.Payload("x")))
		want[fmt.Sprintf("17 10.1.1.1:%d 10.1.1.2:9", 1000+i)]++
	}
	syn := build(t, eth(0x8100), &layers.Dot1Q{VLANIdentifier: 42, Type: 0x86dd}, v6(6), &layers.TCP{SrcPort: 6000, DstPort: 443, SYN: true, Window: 9})
	r.Client.Send(syn)
	r.Client.Send(syn)
	want["6 fd00::1:6000 fd00::2:443"] = 2
	rig.Eventually(t, "all flows are seen", func() bool {
		p.Signal(syscall.SIGUSR1) // reports what there is so far
		for c.hear(100 * time.Millisecond) {
		}
		return c.packets["6 fd00::1:6000 fd00::2:443"] == 2
	})
	r.Client.Send(syn)
	want["6 fd00::1:6000 fd00::2:443"]++
	rig.Eventually(t, "the last one is seen", func() bool {
		p.Signal(syscall.SIGUSR1)
		for c.hear(100 * time.Millisecond) {
		}
		return c.packets["6 fd00::1:6000 fd00::2:443"] == 3
	})
	r.Client.Send(build(t, eth(0x800), v4(17), &layers.UDP{SrcPort: 9999, DstPort: 9}, gopacket.Payload("x")))
	want["17 10.1.1.1:9999 10.1.1.2:9"]++
	p.Await(`"sport":9999`)
	p.Signal(syscall.SIGTERM)
	must(t, p.End())
	for c.hear(100 * time.Millisecond) {
	}
	maps.DeleteFunc(c.packets, func(flow string, _ uint64) bool { return want[flow] == 0 }) // what stations say by themselves
	if !maps.Equal(c.packets, want) {
		t.Errorf("%d flows, want %d; %v", len(c.packets), len(want), c.packets)
	}
	if c.reasons[reasonForced] == 0 || c.reasons[reasonActive] < many || c.messages < 5 {
		t.Errorf("reasons %v, %d messages", c.reasons, c.messages)
	}
}

// A collector that does not read, or whose platform is away for a while, holds up nobody. The numbers say how many records it has missed, and templates come anew.
func TestACollectorMissesWhatItDoesNotRead(t *testing.T) {
	c, path := collect(t)
	rs := newReaders()
	must(t, rs.export(path))
	x := report{first: packet{ethertype: etherIPv4, proto: 17}, packets: [2]uint64{1, 1}, bytes: [2]uint64{60, 60}, began: time.Now(), seen: time.Now(), reason: reasonIdle}
	all := uint32(0)
	began := time.Now()
	for range 5 * maxWaiting { // nobody reads
		rs.add(x)
		all += 2
	}
	if took := time.Since(began); took > 5*time.Second {
		t.Errorf("it took %s", took)
	}
	numbered := func() bool {
		for c.hear(50 * time.Millisecond) {
		}
		rs.add(x) // what is missing is told with the next
		all += 2
		for range 60 {
			if c.hear(50 * time.Millisecond); c.sequence == all {
				return true
			}
		}
		return false
	}
	rig.Eventually(t, "the numbers are right", numbered)
	read := uint32(0)
	for _, n := range c.packets {
		read += uint32(n)
	}
	if read == 0 || read >= all-uint32(maxWaiting) {
		t.Errorf("%d records were read of %d", read, all)
	}
	counted := func() (d delivery) {
		rs.mu.Lock()
		defer rs.mu.Unlock()
		return rs.collector
	}
	rig.Eventually(t, "what was read is counted as sent, and all else as missed", func() bool {
		return counted() == delivery{sent: uint64(read), missed: uint64(all - read)}
	})
	// The platform's agent restarts.
	must(t, c.conn.Close())
	must(t, os.Remove(path))
	for range 2 * maxTogether {
		rs.add(x)
		all += 2
	}
	l, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: path, Net: "unixgram"})
	must(t, err)
	defer l.Close()
	c.conn, c.described, c.templates = l, 0, map[uint16][]field{}
	rig.Eventually(t, "the numbers are right after a restart of the agent", numbered)
	if c.described == 0 {
		t.Error("no templates")
	}
	rig.Eventually(t, "all are counted, as sent or missed", func() bool { d := counted(); return d.sent+d.missed == uint64(all) && d.sent > uint64(read) })
	rs.finish()
}

// Templates are told again each half minute, since datagrams get lost.
func TestTemplatesAreToldAgain(t *testing.T) {
	now, e := time.Unix(1000, 0), exporter{}
	has := func(m []byte) bool {
		return len(m) > messageHeader && binary.BigEndian.Uint16(m[messageHeader:]) == templateSet
	}
	for _, x := range []struct {
		after time.Duration
		want  bool
	}{{0, true}, {29 * time.Second, false}, {30 * time.Second, true}, {31 * time.Second, false}, {61 * time.Second, true}} {
		if got := has(e.message(now.Add(x.after), template4)); got != x.want {
			t.Errorf("after %s: %t", x.after, got)
		}
	}
}
