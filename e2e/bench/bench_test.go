package main

import (
	"context"
	"testing"
	"time"

	"weir.dev/weir/e2e/rig"
)

// The peer must really carry traffic, or a ratio to it means nothing.
func TestPeerAndGeneratorCarryTraffic(t *testing.T) {
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
	p, err := newBridges(ctx, r, 3)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := p.close(); err != nil {
			t.Error(err)
		}
	})
	rtt, err := r.Ping(ctx, p.src(), "10.8.0.2", 5, "0.02")
	if err != nil {
		t.Fatal(err)
	}
	if bits, err := r.Iperf(ctx, p.src(), p.dst(), "10.8.0.2", 5201, 1, "-C", "reno"); err != nil || bits <= 0 { // reno: always there, nobody's default
		t.Errorf("one TCP stream: %v bits/s, %v", bits, err)
	}
	b := &bench{ctx: ctx}
	g, stop, err := inject(b, r, p.hub, "bsrc", p.src(), p.dst(), "10.8.0.1", "10.8.0.2", 9)
	if err != nil {
		t.Fatal(err)
	}
	s, err := newSink(p.dst(), "eth0")
	if err != nil {
		t.Fatal(err)
	}
	v, err := rate(g, s, 200*time.Millisecond)
	if err != nil {
		t.Error(err)
	}
	t.Logf("3 bridges: ping %s, %.3f Mpps", rtt, v/1e6)
	if err := s.close(); err != nil {
		t.Error(err)
	}
	if err := stop(); err != nil {
		t.Error(err)
	}
}
