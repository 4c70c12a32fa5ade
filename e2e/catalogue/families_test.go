package catalogue

import "weir.dev/weir/e2e/rig"

// family is a version of IP, the addresses that alice and bob have of it (rig.DualEndpoints), and what the monitor calls its echo requests.
type family struct{ name, alice, bob, icmp string }

var (
	ipv4     = family{"IPv4", rig.AliceAddr, rig.BobAddr, "icmp"}
	ipv6     = family{"IPv6", rig.AliceAddr6, rig.BobAddr6, "icmpv6"}
	families = []family{ipv4, ipv6}
)

// pinged tells whether a flow of the monitor is that of echo requests from alice to bob. By IPv6 bob may have begun it: he asks for alice's address first, and a flow of ICMP has no ports.
func (f family) pinged(proto, src, dst string) bool {
	return proto == f.icmp && (src == f.alice && dst == f.bob || f == ipv6 && src == f.bob && dst == f.alice)
}
