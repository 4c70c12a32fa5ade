package router

import (
	"net/netip"
	"slices"

	"weir.dev/weir/api"
	"weir.dev/weir/flow"
)

// Guard is the port security of an endpoint: what may enter at its port. mac is that of the link that Weir made for it, or that a station of the
// fabric is known by; zero if neither is there.
func Guard(e api.EndpointSpec, mac flow.MAC) flow.Guard {
	s := api.PortSecurity{}
	if e.PortSecurity != nil {
		s = *e.PortSecurity
	}
	// By default it is on only where Weir knows what the station may send.
	known := e.Netns != "" || e.SwitchPort != "" && e.MAC != "" || len(s.MACs)+len(s.Addresses)+len(s.Shared) > 0
	if s.Mode == api.PortSecurityOff || s.Mode != api.PortSecurityOn && !known {
		return flow.Guard{}
	}
	g := flow.Guard{On: true, DHCPServer: s.DHCPServer, Router: s.Router}
	addMAC := func(m flow.MAC) {
		if m != (flow.MAC{}) && !slices.Contains(g.MACs, m) {
			g.MACs = append(g.MACs, m)
		}
	}
	addMAC(mac)
	for _, text := range s.MACs {
		if m, err := api.ParseMAC(text); err == nil {
			addMAC(flow.MAC(m))
		}
	}
	add := func(p netip.Prefix) {
		if p = p.Masked(); !slices.Contains(g.Addresses, p) {
			g.Addresses = append(g.Addresses, p)
		}
	}
	for _, p := range e.Prefixes() {
		add(netip.PrefixFrom(p.Addr(), p.Addr().BitLen()))
	}
	for _, text := range s.Addresses {
		if p, err := api.ParseCIDR(text); err == nil {
			add(p)
		}
	}
	g.Shared = s.SharedAddresses()
	// IPv6 needs a link-local address, whatever else a station has.
	if g.Bound = len(g.Addresses) > 0; g.Bound {
		for _, m := range g.MACs {
			add(netip.PrefixFrom(flow.LinkLocal(m), 128))
		}
	}
	return g
}
