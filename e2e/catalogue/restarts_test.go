package catalogue

import (
	"testing"

	"weir.dev/weir/e2e/rig"
)

// TestRestartsLoseNothing: each function of the catalogue that stands between two ports is restarted twice under traffic, on both switches: a new instance is made beside the
// former one, so no datagram is lost and none comes twice.
func TestRestartsLoseNothing(t *testing.T) {
	t.Parallel()
	for _, sw := range []string{"ebpf", "ovs"} {
		t.Run(sw, func(t *testing.T) {
			t.Parallel()
			r, ctx := rig.ForTest(t, rig.Options{Args: []string{"--switch", sw}})
			for _, x := range []struct{ image, config string }{
				{"wire", "{}"}, {"wire-bridge", "{}"}, {"wire-packet", "{}"}, {"wire-xdp", "{}"},
				{"firewall", "{allow: [udp]}"},
				{"http-filter", "{rules: [{name: games, hosts: [games.example]}]}"},
				{"shaper", "{up: {rate: 100Mbit}, down: {rate: 100Mbit}}"},
				{"impair", "{up: {delay: 0s}}"},
				{"dns-lb", "{names: {app.example.com: {targets: [{address: 10.9.0.77}]}}}"},
				{"nat", "{pool: [10.9.0.100], clients: [10.9.0.50/32]}"},
				{"load-balancer", "{services: {web: {address: 10.9.0.100, protocol: tcp, port: 80, targets: [{address: 10.9.0.2}]}}, health: {addresses: [10.9.0.9/24]}}"},
				{"udp-forward", "{addresses: [10.9.0.9/24], relays: [{port: 7001, to: \"10.9.0.2:7001\"}]}"},
				{"cache", "{}"},
				{"ids", "{rules: \"alert icmp any any -> any any (msg:\\\"a ping\\\"; sid:1000001;)\"}"},
			} {
				t.Run(x.image, func(t *testing.T) {
					r.MustApply(ctx, t, r.Endpoints()+"functions:\n  f: {image: "+x.image+", config: "+x.config+"}\nchains: {c: f}\npolicies:\n  p: {from: alice, to: bob, match: [all], chain: c}\n", "--prune")
					counting(func() {
						s, err := rig.NewStream(r.Alice(), r.Bob(), rig.BobAddr, 7000, 200)
						if err != nil {
							t.Fatal(err)
						}
						before := started(ctx, t, r, "f")
						for range 2 {
							if out, err := r.Weir(ctx, "function", "restart", "f"); err != nil {
								t.Errorf("%v: %s", err, out)
							}
						}
						if o, err := s.Stop(); err != nil || o.Lost+o.Duplicated > 0 || o.Received == 0 {
							t.Errorf("datagrams: %+v, %v", o, err)
						}
						if after := started(ctx, t, r, "f"); after.Status.PID == before.Status.PID {
							t.Error("the function was not started anew")
						}
					})
				})
			}
		})
	}
}
