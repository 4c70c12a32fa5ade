package main

import (
	"context"
	"fmt"
	"testing"
	"time"

	"weir.dev/weir/e2e/rig"
)

// The peers must really carry traffic, or a ratio to it means nothing.
func TestPeersAndGeneratorCarryTraffic(t *testing.T) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	r, err := rig.New(rig.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := r.Discard(); err != nil {
			t.Error(err)
		}
	})
	b := &bench{ctx: ctx}
	p, err := newBridges(ctx, r, 3)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := p.close(); err != nil {
			t.Error(err)
		}
	})
	carries(t, b, r, p.hub, "bsrc", newPath(p.src(), p.dst(), "10.8.0.2"), "10.8.0.1")
	l, err := newLeast(r, 3)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := l.close(); err != nil {
			t.Error(err)
		}
	})
	carries(t, b, r, l.hub, "lsrc", newPath(l.src(), l.dst(), "10.7.0.2"), "10.7.0.1")
	for i := range 3 { // through each of its namespaces, or it is no chain
		if n, err := (&sink{space: fmt.Sprintf("%s-l%d", r.Name, i), link: "in"}).count(); err != nil || n < 1000 {
			t.Errorf("the least chain's wire %d has received %d packets, %v", i, n, err)
		}
	}
}

// carries sends pings, a TCP stream and injected datagrams along a path.
func carries(t *testing.T, b *bench, r *rig.Rig, space, link string, p *path, from string) {
	t.Helper()
	rtt, err := r.Ping(b.ctx, p.from, p.addr, 5, "0.02")
	if err != nil {
		t.Fatal(err)
	}
	if bits, err := r.Iperf(b.ctx, p.from, p.to, p.addr, 5201, 1, "-C", "reno"); err != nil || bits <= 0 { // reno: always there, nobody's default
		t.Errorf("one TCP stream from %s: %v bits/s, %v", p.from, bits, err)
	}
	g, stop, err := inject(b, r, space, link, p.from, p.to, from, p.addr, 9)
	if err != nil {
		t.Fatal(err)
	}
	s, err := newSink(p.to, "eth0")
	if err != nil {
		t.Fatal(err)
	}
	v, err := rate(g, s, 200*time.Millisecond)
	if err != nil {
		t.Error(err)
	}
	t.Logf("from %s: ping %s, %.3f Mpps", p.from, rtt, v/1e6)
	if err := s.close(); err != nil {
		t.Error(err)
	}
	if err := stop(); err != nil {
		t.Error(err)
	}
}
