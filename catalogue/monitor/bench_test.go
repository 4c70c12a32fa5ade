package main

import (
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"testing"
	"time"

	"github.com/gopacket/gopacket"
	"github.com/gopacket/gopacket/layers"
	"github.com/miekg/dns"
)

// frames of so many flows of UDP by IPv4, one of each.
func flowFrames(tb testing.TB, flows int) [][]byte {
	tb.Helper()
	one := build(tb, eth(0x800), v4(17), &layers.UDP{SrcPort: 1000, DstPort: 9}, gopacket.Payload(make([]byte, 100)))
	all := make([][]byte, flows)
	for i := range all {
		all[i] = append([]byte(nil), one...)
		binary.BigEndian.PutUint32(all[i][26:], 10<<24|uint32(i)) // the source's address
	}
	return all
}

// take a frame as the loop over the ring does.
func take(t *table, frame []byte, now time.Time) {
	flow, flags := parse(frame, 0)
	t.add(flow, flags, len(frame), now, func() string { return nameIn(frame) })
}

// BenchmarkFrames counts frames of flows that are known, without the ring.
func BenchmarkFrames(b *testing.B) {
	for _, flows := range []int{1, 10_000} {
		b.Run(fmt.Sprint(flows, "-flows"), func(b *testing.B) {
			all, now := flowFrames(b, flows), time.Unix(1000, 0)
			t := newTable(config{MaxFlows: flows, IdleS: 15, ActiveS: 60}, func(line) {}, func(report) {})
			for range namedWithin { // from then on nobody looks for a name
				for _, f := range all {
					take(t, f, now)
				}
			}
			before, n := t.count[0].packets, 0
			b.ReportAllocs()
			for b.Loop() {
				take(t, all[n%flows], now)
				n++
			}
			if got := t.count[0].packets - before; got != uint64(n) || len(t.flows) != flows || t.untracked.packets > 0 {
				b.Fatalf("%d packets of %d flows are counted, want %d of %d", got, len(t.flows), n, flows)
			}
		})
	}
}

// BenchmarkFlows is the whole life of a flow of two frames: it begins, is reported, and ends; the log has its bounded rate, and nobody reads.
func BenchmarkFlows(b *testing.B) {
	const flows = 10_000
	all, now := flowFrames(b, flows), time.Unix(1000, 0)
	log, reports := newLog(io.Discard), 0
	t := newTable(config{MaxFlows: flows, IdleS: 15, ActiveS: 60}, log.line, func(report) { reports++ })
	t.wants = log.wants
	n := 0
	b.ReportAllocs()
	for b.Loop() {
		for range 2 {
			take(t, all[n%flows], now)
		}
		if n++; n%flows == 0 {
			now = now.Add(20 * time.Second)
			t.sweep(now)
		}
	}
	if reports != n-n%flows || t.total != uint64(n) || len(t.flows) != n%flows {
		b.Fatalf("%d reports of %d flows, %d still there: want %d of %d", reports, t.total, len(t.flows), n-n%flows, n)
	}
}

// BenchmarkSweep looks once for flows that have ended, among many that have not.
func BenchmarkSweep(b *testing.B) {
	const flows = 100_000
	now := time.Unix(1000, 0)
	t := newTable(config{MaxFlows: flows, IdleS: 15, ActiveS: 60}, func(line) {}, func(report) {})
	for _, f := range flowFrames(b, flows) {
		take(t, f, now)
	}
	b.ReportAllocs()
	for b.Loop() {
		t.swept = time.Time{}
		t.sweep(now)
	}
	if len(t.flows) != flows {
		b.Fatalf("%d flows are left of %d", len(t.flows), flows)
	}
}

// sent counts what is written.
type sent struct {
	net.Conn
	messages, bytes int
}

func (s *sent) Write(b []byte) (int, error) {
	s.messages++
	s.bytes += len(b)
	return len(b), nil
}

// BenchmarkIPFIX writes 64 reports, as many as are sent together, a third of each template.
func BenchmarkIPFIX(b *testing.B) {
	var reports []report
	for i := range maxTogether {
		kinds := []uint16{etherIPv4, etherIPv6, etherARP}
		reports = append(reports, report{
			first: packet{ethertype: kinds[i%3], proto: 17, sport: uint16(i)}, packets: [2]uint64{1, 1}, bytes: [2]uint64{60, 60}, began: time.Unix(1000, 0), seen: time.Unix(1001, 0), reason: reasonIdle,
		})
	}
	to := &sent{}
	r := &reader{conn: to, format: formatIPFIX}
	r.exports.templates = time.Now().Add(time.Hour) // they are not due
	want, n := 0, 0
	for i, template := range []uint16{template4, template6, templateOther} {
		records := 2 * ((maxTogether + 2 - i) / 3)
		perMessage := (maxMessage - messageHeader - setHeader) / recordLength(template)
		want += records*recordLength(template) + (records+perMessage-1)/perMessage*(messageHeader+setHeader)
	}
	b.ReportAllocs()
	for b.Loop() {
		if err := r.write(&r.exports, reports); err != nil {
			b.Fatal(err)
		}
		n++
	}
	if to.bytes != n*want || r.exports.sequence != uint32(n*2*maxTogether) {
		b.Fatalf("%d bytes in %d messages, sequence %d: want %d times %d bytes", to.bytes, to.messages, r.exports.sequence, n, want)
	}
	b.ReportMetric(float64(to.messages)/float64(n), "messages/op")
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(n*2*maxTogether), "ns/record")
}

// BenchmarkNames reads the name that a frame asks for.
func BenchmarkNames(b *testing.B) {
	query := new(dns.Msg)
	query.SetQuestion("www.example.com.", dns.TypeA)
	question, err := query.Pack()
	must(b, err)
	first := gopacket.Payload(hello("www.example.com", 300))
	for name, c := range map[string]struct {
		frame []byte
		want  string
	}{
		"dns":       {build(b, eth(0x800), v4(17), &layers.UDP{SrcPort: 5000, DstPort: 53}, gopacket.Payload(question)), "www.example.com"},
		"tls":       {build(b, eth(0x86dd), v6(6), &layers.TCP{SrcPort: 6000, DstPort: 443, ACK: true, PSH: true, Window: 9}, first), "www.example.com"},
		"no-name":   {build(b, eth(0x86dd), v6(6), &layers.TCP{SrcPort: 6000, DstPort: 443, ACK: true, Window: 9}, gopacket.Payload(make([]byte, 1000))), ""},
		"other-udp": {build(b, eth(0x800), v4(17), &layers.UDP{SrcPort: 5000, DstPort: 5353}, gopacket.Payload(question)), ""},
	} {
		b.Run(name, func(b *testing.B) {
			got := ""
			b.ReportAllocs()
			for b.Loop() {
				got = nameIn(c.frame)
			}
			if got != c.want {
				b.Fatalf("%q: want %q", got, c.want)
			}
		})
	}
}
