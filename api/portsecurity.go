package api

import (
	"fmt"
	"net/netip"
	"slices"
)

// PortSecurity says what may enter at an endpoint's port besides what Weir knows of it.
type PortSecurity struct {
	Mode       string   `json:"mode,omitempty"`        // auto (default), on, off
	MACs       []string `json:"macs,omitempty"`        // further source MACs
	Addresses  []string `json:"addresses,omitempty"`   // further source addresses, or prefixes
	Shared     []string `json:"shared,omitempty"`      // source addresses that several endpoints may have: packets come from them, ARP and neighbour discovery never tell of them
	DHCPServer bool     `json:"dhcp_server,omitempty"` // may answer as a DHCP server
	Router     bool     `json:"router,omitempty"`      // may advertise itself, and forwards packets of others
}

// Modes of port security.
const (
	PortSecurityAuto = "auto" // on where Weir made the link, where a station's switch port and MAC are given, or where macs, addresses or shared are given here
	PortSecurityOn   = "on"
	PortSecurityOff  = "off"
)

// Bounds of an endpoint's port security (flow.Guard), those of its own link included.
const (
	maxSecureMACs      = 8
	maxSecureAddresses = 32 // of each family
)

// checkPortSecurity checks it together with the addresses of the endpoint itself.
func checkPortSecurity(c *check, s EndpointSpec) {
	p := s.PortSecurity
	if p == nil {
		p = &PortSecurity{}
	}
	switch p.Mode {
	case "", PortSecurityAuto, PortSecurityOn:
	case PortSecurityOff:
		if len(p.MACs)+len(p.Addresses)+len(p.Shared) > 0 || p.DHCPServer || p.Router {
			c.add("port_security.mode", "leave the rest out, or the mode", "mode off checks nothing, so nothing else has a meaning")
		}
	default:
		c.add("port_security.mode", "", "mode %q: want auto, on or off", p.Mode)
	}
	for i, text := range p.MACs {
		path := fmt.Sprintf("port_security.macs[%d]", i)
		mac, err := ParseMAC(text)
		c.err(path, err)
		if err == nil && (mac[0]&1 == 1 || mac == [6]byte{}) {
			c.add(path, "", "MAC %s is no station's address", text)
		}
	}
	macs := len(p.MACs)
	if s.Netns != "" || !s.OfHost() {
		macs++
	}
	if macs > maxSecureMACs {
		c.add("port_security.macs", "or set mode: off", "%d MACs at one port: want at most %d", macs, maxSecureMACs)
	}
	var v4, v6 int
	count := func(a netip.Addr) {
		if a.Is4() {
			v4++
		} else {
			v6++
		}
	}
	for _, a := range s.Prefixes() {
		count(a.Addr())
	}
	for i, text := range p.Addresses {
		a, err := ParseCIDR(text)
		c.err(fmt.Sprintf("port_security.addresses[%d]", i), err)
		if err == nil {
			count(a.Addr())
		}
	}
	most6 := maxSecureAddresses
	if v4+v6 > 0 {
		most6 -= macs // a link-local one for each MAC
	}
	if len(p.Shared) > 0 && macs == 0 && v4+v6 == 0 {
		c.add("port_security.shared", "name its macs or its own addresses, too", "of this interface no MAC and no address is known, so nobody could tell what claims a shared address")
	}
	checkShared(c, s, p.Shared, count)
	if p.Mode == PortSecurityOff {
		return
	}
	for _, n := range []struct{ family, have, max int }{{4, v4, maxSecureAddresses}, {6, v6, most6}} {
		if n.have > n.max {
			c.add("port_security.addresses", "name a prefix in addresses, name fewer addresses in shared, or set mode: off", "%d IPv%d addresses at one port: want at most %d", n.have, n.family, n.max)
		}
	}
}

// checkShared checks addresses that several endpoints may have.
func checkShared(c *check, s EndpointSpec, shared []string, count func(netip.Addr)) {
	seen := map[netip.Addr]bool{}
	for i, text := range shared {
		path := fmt.Sprintf("port_security.shared[%d]", i)
		a, err := netip.ParseAddr(text)
		switch {
		case err != nil || a.Zone() != "" || a.Is4In6() || a.IsUnspecified() || a.IsMulticast() || a.IsLoopback() || a.IsLinkLocalUnicast():
			c.add(path, "leave out the prefix length", "%q: want the IPv4 or IPv6 address of a service, such as 10.9.0.100", text)
			continue
		case seen[a]:
			c.add(path, "", "address %s is given twice", a)
		case slices.ContainsFunc(s.Prefixes(), func(p netip.Prefix) bool { return p.Addr() == a }):
			c.add(path, "a shared address cannot be the endpoint's own: remove it from address or addresses, and set it on lo", "address %s is the endpoint's own", a)
		}
		seen[a] = true
		count(a)
	}
}

// SharedAddresses are those of Shared, as far as they can be read.
func (p PortSecurity) SharedAddresses() []netip.Addr {
	var out []netip.Addr
	for _, text := range p.Shared {
		if a, err := netip.ParseAddr(text); err == nil && !slices.Contains(out, a) {
			out = append(out, a)
		}
	}
	return out
}

// ParseCIDR reads an address, or a prefix without bits behind its length.
func ParseCIDR(text string) (netip.Prefix, error) { return parsePrefix(text) }
