package main

import (
	"fmt"
	"net/netip"
	"testing"
	"time"

	"weir.dev/weir/catalogue/nf"
	"weir.dev/weir/catalogue/rig"
)

// BenchmarkConnections opens connections one after the other: to a target directly, with nothing that balances in the function's place but a pass, and by the virtual address.
func BenchmarkConnections(b *testing.B) {
	for name, addr := range map[string]string{"virtual": "10.77.0.100:80", "passed": "10.77.0.2:9090"} {
		b.Run(name, func(b *testing.B) {
			r := rig.New(b, false)
			stations(b, r)
			for _, a := range []string{"10.77.0.2:8080", "10.77.0.3:8080", "10.77.0.2:9090"} {
				greet(b, r, a)
			}
			launch(b, r, two)
			rig.Eventually(b, "a connection", func() bool { _, _, _, err := connect(b, r, addr); return err == nil })
			for b.Loop() {
				c, _, _, err := connect(b, r, addr)
				must(b, err)
				c.Close()
			}
			b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "connections/s")
		})
	}
}

// BenchmarkKnown is a packet of a connection that is known, and BenchmarkNew one of a new connection, without sockets.
func BenchmarkKnown(b *testing.B) {
	l := newLab(b, small)
	l.send = func(nf.Dir, nf.Frame) {}
	f := nf.NewFrame(packet(b, "tcp 10.0.0.1:1000 10.0.0.100:80 ack", make([]byte, 1400)))
	b.ReportAllocs()
	for b.Loop() {
		l.handle(nf.Up, f, l.time)
	}
}

func BenchmarkNew(b *testing.B) {
	t, now := newTable(defaultConnections), time.Now()
	b.ReportAllocs()
	for i := 0; b.Loop(); i++ {
		k := key{0, netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, byte(i >> 24), byte(i >> 16), byte(i >> 8)}), uint16(i))}
		if t.find(k, now) == nil {
			t.add(k, 0, opening, now)
		}
	}
}

// BenchmarkTable makes the table of slots anew, as when a target goes.
func BenchmarkTable(b *testing.B) {
	for _, n := range []int{2, 64} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			names, weights := make([]string, n), make([]int, n)
			for i := range names {
				names[i], weights[i] = fmt.Sprint(i), 1
			}
			for b.Loop() {
				maglev(names, weights)
			}
		})
	}
}
