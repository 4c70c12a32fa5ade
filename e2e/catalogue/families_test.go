package catalogue

import (
	"fmt"

	"weir.dev/weir/e2e/rig"
)

// family is a version of IP, the addresses that alice and bob have of it, and what the monitor calls its echo requests.
type family struct{ name, alice, bob, icmp string }

var families = []family{ipv4, ipv6}

var (
	ipv4 = family{"IPv4", rig.AliceAddr, rig.BobAddr, "icmp"}
	ipv6 = family{"IPv6", "2001:db8:9::1", "2001:db8:9::2", "icmpv6"}
)

// both is the endpoints alice and bob with IPv4 and IPv6.
func both(r *rig.Rig) string {
	return fmt.Sprintf("endpoints:\n  alice: {netns: %s, interface: eth0, address: %s/24, addresses: [%q]}\n  bob: {netns: %s, interface: eth0, address: %s/24, addresses: [%q]}\n",
		r.Alice(), ipv4.alice, ipv6.alice+"/64", r.Bob(), ipv4.bob, ipv6.bob+"/64")
}
