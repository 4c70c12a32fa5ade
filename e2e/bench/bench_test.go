package main

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/vishvananda/netlink"

	"weir.dev/weir/e2e/rig"
	"weir.dev/weir/lab/platform"
	"weir.dev/weir/netns"
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
	p, done, err := newBridges(ctx, r, 3)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := done(); err != nil {
			t.Error(err)
		}
	})
	carries(t, b, r, p)
	l, err := newLeast(r, 3)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := l.close(); err != nil {
			t.Error(err)
		}
	})
	carries(t, b, r, l.path())
	for i := range 3 { // through each of its namespaces, or it is no chain
		err := netns.Do(fmt.Sprintf("%s-l%d", r.Name, i), func() error {
			in, err := netlink.LinkByName("in")
			if err == nil && in.Attrs().Statistics.RxPackets < 1000 {
				t.Errorf("the least chain's wire %d has received %d packets", i, in.Attrs().Statistics.RxPackets)
			}
			return err
		})
		if err != nil {
			t.Error(err)
		}
	}
}

// carries sends pings, a TCP stream and injected datagrams along a path.
func carries(t *testing.T, b *bench, r *rig.Rig, p platform.Path) {
	t.Helper()
	rtt, err := r.Ping(b.ctx, p.From, p.Address.String(), 5, "0.02")
	if err != nil {
		t.Fatal(err)
	}
	if bits, err := r.Iperf(b.ctx, p.From, p.To, p.Address.String(), 5201, 1, "-C", "reno"); err != nil || bits <= 0 { // reno: always there, nobody's default
		t.Errorf("one TCP stream from %s: %v bits/s, %v", p.From, bits, err)
	}
	v, err := side{Path: p}.rate(b.ctx, 200*time.Millisecond)
	if err != nil {
		t.Error(err)
	}
	t.Logf("from %s: ping %s, %.3f Mpps", p.From, rtt, v/1e6)
}
