package catalogue

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"time"

	"weir.dev/weir/e2e/rig"
)

// TestFirewallOfManyAddresses: a set of 100,000 addresses goes through the manager to the function, and a change of it is in force as the function runs, for IPv4
// and IPv6.
func TestFirewallOfManyAddresses(t *testing.T) {
	r, ctx := rig.ForTest(t, rig.Options{})
	var list strings.Builder
	for i := range 100_000 {
		fmt.Fprintf(&list, " %s", netip.AddrFrom4([4]byte{100, byte(i >> 15), byte(i >> 7), byte(i << 1)}))
	}
	document := func(more string) string {
		return r.DualEndpoints() + fmt.Sprintf(`functions:
  fw:
    image: firewall
    config:
      sets: {bad: "%s%s"}
      deny: [{service: all, from: "@bad"}]
      allow: [icmp]
chains: {only: fw}
policies:
  all: {from: alice, to: bob, chain: only}
`, more, list.String())
	}
	begin := time.Now()
	r.MustApply(ctx, t, document(""))
	reaches := func(f family, want bool, what string) {
		t.Helper()
		rig.Eventually(ctx, t, f.name+": "+what, func() (bool, string) {
			out, err := r.Run(ctx, r.Alice(), "ping", "-c1", "-W1", f.bob)
			return (err == nil) == want, out
		})
	}
	for _, f := range families {
		reaches(f, true, "alice reaches bob")
	}
	t.Logf("in force after %s", time.Since(begin).Round(time.Millisecond))
	before := started(ctx, t, r, "fw")
	r.MustApply(ctx, t, document(ipv4.alice))
	reaches(ipv4, false, "alice is in the set")
	reaches(ipv6, true, "alice is not in the set")
	r.MustApply(ctx, t, document(ipv6.alice))
	reaches(ipv6, false, "alice is in the set")
	reaches(ipv4, true, "alice is in the set no more")
	if after := started(ctx, t, r, "fw"); after.Status.PID != before.Status.PID {
		t.Errorf("the function was started anew: process %d, then %d", before.Status.PID, after.Status.PID)
	}
}
