package catalogue

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"time"

	"weir.dev/weir/e2e/rig"
)

// TestFirewallOfManyAddresses: a set of 100,000 addresses goes through the manager to the function, and a change of it is in force as the function runs.
func TestFirewallOfManyAddresses(t *testing.T) {
	r, ctx := rig.ForTest(t, rig.Options{})
	var list strings.Builder
	for i := range 100_000 {
		fmt.Fprintf(&list, " %s", netip.AddrFrom4([4]byte{100, byte(i >> 15), byte(i >> 7), byte(i << 1)}))
	}
	document := func(more string) string {
		return fmt.Sprintf(`endpoints:
  alice: {netns: %s, interface: eth0, address: 10.9.0.1/24}
  bob: {netns: %s, interface: eth0, address: 10.9.0.2/24}
functions:
  fw:
    image: firewall
    config:
      sets: {bad: "%s%s"}
      deny: [{service: all, from: "@bad"}]
      allow: [icmp]
chains: {only: fw}
policies:
  all: {from: alice, to: bob, chain: only}
`, r.Alice(), r.Bob(), more, list.String())
	}
	begin := time.Now()
	r.MustApply(ctx, t, document(""))
	rig.Eventually(ctx, t, "alice reaches bob", func() (bool, string) {
		out, err := r.Run(ctx, r.Alice(), "ping", "-c1", "-W1", rig.BobAddr)
		return err == nil, out
	})
	t.Logf("in force after %s", time.Since(begin).Round(time.Millisecond))
	before := started(ctx, t, r, "fw")
	r.MustApply(ctx, t, document("10.9.0.1"))
	rig.Eventually(ctx, t, "alice is in the set", func() (bool, string) {
		out, err := r.Run(ctx, r.Alice(), "ping", "-c1", "-W1", rig.BobAddr)
		return err != nil, out
	})
	if after := started(ctx, t, r, "fw"); after.Status.PID != before.Status.PID {
		t.Errorf("the function was started anew: process %d, then %d", before.Status.PID, after.Status.PID)
	}
}
