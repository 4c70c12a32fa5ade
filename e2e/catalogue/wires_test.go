package catalogue

import (
	"fmt"
	"testing"

	"weir.dev/weir/api"
	"weir.dev/weir/e2e/rig"
)

// TestWiresInAChain: the functions that only forward, one behind the other, on both switches: TCP passes, and no datagram is
// lost while their order in the chain changes.
func TestWiresInAChain(t *testing.T) {
	t.Parallel()
	for _, sw := range []string{"ebpf", "ovs"} {
		t.Run(sw, func(t *testing.T) {
			t.Parallel()
			r, ctx := rig.ForTest(t, rig.Options{Args: []string{"--switch", sw}})
			document := func(path string) string {
				return r.Endpoints() + fmt.Sprintf(`functions:
  a: {image: wire-bridge}
  b: {image: wire-packet}
  c: {image: wire}
  d: {image: wire-xdp}
chains:
  w: %s
policies:
  p: {from: alice, to: bob, match: [icmp, tcp, udp], chain: w}
`, path)
			}
			r.MustApply(ctx, t, document("a | b | d | c"))
			if rate, err := stream(ctx, r, rig.BobAddr); err != nil || rate == 0 {
				t.Fatal(rate, err)
			}
			if rate, err := stream(ctx, r, rig.BobAddr, "--reverse"); err != nil || rate == 0 {
				t.Fatal(rate, err)
			}
			counting(func() {
				s, err := rig.NewStream(r.Alice(), r.Bob(), rig.BobAddr, 7000, 200)
				if err != nil {
					t.Fatal(err)
				}
				r.MustApply(ctx, t, document("d | b | a | c"))
				if o, err := s.Stop(); err != nil || o.Lost > 0 || o.Received == 0 {
					t.Errorf("datagrams: %+v, %v", o, err)
				}
			})
			for _, name := range []string{"a", "b", "d"} {
				var f api.Function
				if err := r.Get(ctx, &f, "function", name); err != nil || f.Status.Restarts != 0 || f.Status.State != api.FunctionStarted {
					t.Errorf("%s: %+v, %v", name, f.Status, err)
				}
			}
		})
	}
}
