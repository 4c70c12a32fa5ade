package main

import (
	"net"
	"os/exec"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/miekg/dns"

	"weir.dev/weir/catalogue/rig"
)

// BenchmarkAnswers asks for one name, with 64 queries under way, over one link: the function at its other end, and dnsmasq there.
func BenchmarkAnswers(b *testing.B) {
	b.Run("dns-lb", func(b *testing.B) {
		r := rig.New(b, false)
		launch(b, r, own)
		rig.Command(b, r.Client, "ip", "neigh", "replace", "10.77.0.2", "lladdr", net.HardwareAddr(r.Server.Link.MAC[:]).String(), "dev", r.Client.Link.Name)
		queries(b, r)
	})
	b.Run("dnsmasq", func(b *testing.B) {
		r := rig.New(b, false)
		if out, err := exec.Command("nsenter", "--net="+r.Netns, "ip", "addr", "add", "10.77.0.2/24", "dev", "in").CombinedOutput(); err != nil {
			b.Fatalf("%s", out)
		}
		c := exec.Command("dnsmasq", "--keep-in-foreground", "--conf-file=/dev/null", "--no-resolv", "--no-hosts", "--user=root", "--group=root", "--pid-file=", "--address=/own.example/10.77.0.11")
		r.Do(r.Netns, c.Start)
		defer func() { _ = c.Process.Kill(); _ = c.Wait() }()
		queries(b, r)
	})
}

func queries(b *testing.B, r *rig.Rig) {
	b.Helper()
	const clients, underWay = 8, 8
	query := ask("own.example.", dns.TypeA)
	conns := make([]net.Conn, clients)
	for i := range conns {
		var err error
		conns[i], err = r.Client.Dial(b.Context(), "udp4", "10.77.0.2:53")
		must(b, err)
		defer conns[i].Close()
	}
	answered := func(c net.Conn) bool {
		_ = c.SetReadDeadline(time.Now().Add(200 * time.Millisecond))
		_, err := c.Read(make([]byte, 512))
		return err == nil
	}
	rig.Eventually(b, "it answers", func() bool { _, _ = conns[0].Write(query); return answered(conns[0]) })
	for answered(conns[0]) { // what came late
	}
	var lost atomic.Int64
	var all sync.WaitGroup
	b.ResetTimer()
	for i, c := range conns {
		all.Go(func() {
			share := b.N / clients
			if i == 0 {
				share += b.N % clients
			}
			for sent, got := 0, 0; got < share; {
				for sent < share && sent-got < underWay {
					_, _ = c.Write(query)
					sent++
				}
				if !answered(c) {
					lost.Add(int64(sent - got))
					got = sent
					continue
				}
				got++
			}
		})
	}
	all.Wait()
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "queries/s")
	b.ReportMetric(float64(lost.Load()), "lost")
}

// BenchmarkQuery answers a query, without sockets.
func BenchmarkQuery(b *testing.B) {
	z := testZone(b, own)
	q := ask("own.example.", dns.TypeA)
	b.ReportAllocs()
	for b.Loop() {
		if _, fate := z.query(q, client, 0); fate != answered {
			b.Fatal(fate)
		}
	}
}

// BenchmarkOther looks at a query that is not ours.
func BenchmarkOther(b *testing.B) {
	z := testZone(b, own)
	q := ask("www.other.example.", dns.TypeA)
	b.ReportAllocs()
	for b.Loop() {
		if _, fate := z.query(q, client, 0); fate != passes {
			b.Fatal(fate)
		}
	}
}
