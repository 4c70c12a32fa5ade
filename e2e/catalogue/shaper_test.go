// Package catalogue runs chains of the catalogue's functions on both switches, with real clients and servers.
package catalogue

import (
	"context"
	"fmt"
	"testing"

	"weir.dev/weir/api"
	"weir.dev/weir/e2e/rig"
)

// TestAShaperInAChain: what its README says, between two stations: each direction has its rate, by IPv4 and IPv6, others than the chain's traffic have none, and a
// new rate is in force without a packet lost on the way.
func TestAShaperInAChain(t *testing.T) {
	for _, sw := range []string{"ebpf", "ovs"} {
		t.Run(sw, func(t *testing.T) {
			r, ctx := rig.ForTest(t, rig.Options{Args: []string{"--switch", sw}})
			document := func(up, down string) string {
				return r.DualEndpoints() + fmt.Sprintf(`functions:
  slow: {image: shaper, config: {up: {rate: %s}, down: {rate: %s}}}
chains:
  c: slow
policies:
  p: {from: alice, to: bob, match: [icmp, tcp], chain: c}
`, up, down)
			}
			r.MustApply(ctx, t, document("20Mbit", "50Mbit"))
			within(ctx, t, r, ipv4, "up", 20e6)
			within(ctx, t, r, ipv6, "down", 50e6, "--reverse")
			s, err := rig.NewStream(r.Alice(), r.Bob(), rig.BobAddr, 7000, 200) // datagrams, which the policy does not select
			if err != nil {
				t.Fatal(err)
			}
			r.MustApply(ctx, t, document("40Mbit", "50Mbit"))
			if o, err := s.Stop(); err != nil || o.Lost > 0 || o.Received == 0 {
				t.Errorf("datagrams of others: %+v, %v", o, err)
			}
			within(ctx, t, r, ipv6, "up, changed", 40e6)
			within(ctx, t, r, ipv4, "down, unchanged", 50e6, "--reverse")
			var f api.Function
			if err := r.Get(ctx, &f, "function", "slow"); err != nil || f.Status.Restarts != 0 || f.Status.State != api.FunctionStarted {
				t.Errorf("%+v, %v: a full queue looked like a failure", f.Status, err)
			}
		})
	}
}

// within tries whether a stream has the rate, in bits of whole frames.
func within(ctx context.Context, t *testing.T, r *rig.Rig, f family, what string, want float64, more ...string) {
	t.Helper()
	what = f.name + ", " + what
	var seen []float64
	for range 4 { // others may have the processors for a while
		got, least, err := r.Limited(ctx, r.Alice(), r.Bob(), f.bob, 5201, 3, more...)
		if err != nil {
			t.Fatal(err)
		}
		if least > want*1.05 {
			t.Errorf("%s: %.3g bit/s in the whole time: want %.3g and not more", what, least, want)
		}
		if seen = append(seen, got); got > want*0.95 && got <= want*1.05 {
			return
		}
	}
	t.Errorf("%s: %.3g bit/s: want %.3g", what, seen, want)
}
