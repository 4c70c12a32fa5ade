package policy

import (
	"net/netip"

	"weir.dev/weir/api"
	"weir.dev/weir/flow"
)

// Matches appends what a term of a policy's match ("tcp/80", "icmp") selects; on the way back its ports are the source's. Where both families
// have a protocol it is one match, without an EtherType.
func Matches(to []flow.Match, t api.Term, w Way) []flow.Match {
	var m flow.Match
	switch t.Protocol {
	case api.ProtocolAll:
		return append(to, m)
	case api.ProtocolIP:
		return append(to, flow.Match{EtherType: flow.EtherTypeIPv4}, flow.Match{EtherType: flow.EtherTypeIPv6})
	case api.ProtocolARP:
		return append(to, flow.Match{EtherType: flow.EtherTypeARP})
	case api.ProtocolICMP:
		return append(to, flow.Match{EtherType: flow.EtherTypeIPv4, Proto: flow.ProtoICMP}, flow.Match{EtherType: flow.EtherTypeIPv6, Proto: flow.ProtoICMPv6})
	case api.ProtocolTCP:
		m.Proto = flow.ProtoTCP
	case api.ProtocolUDP:
		m.Proto = flow.ProtoUDP
	case api.ProtocolSCTP:
		m.Proto = flow.ProtoSCTP
	}
	ports := flow.PortRange{First: t.First, Last: t.Last}
	if w == Reverse {
		m.SrcPorts = ports
	} else {
		m.DstPorts = ports
	}
	return append(to, m)
}

// byFamily gives a protocol that both families have a match for each.
func byFamily(matches []flow.Match) []flow.Match {
	if m := matches[0]; len(matches) == 1 && m.Proto != 0 && m.EtherType == 0 {
		four, six := m, m
		four.EtherType, six.EtherType = flow.EtherTypeIPv4, flow.EtherTypeIPv6
		return append(matches[:0], four, six)
	}
	return matches
}

// apart says why a term has no frames between two ends.
func apart(t api.Term) string {
	if t.Protocol == api.ProtocolARP {
		return "ARP has no IP header; select by endpoint or MAC"
	}
	return "their address families differ"
}

// wholeMAC is the mask of one address.
var wholeMAC = flow.MAC{255, 255, 255, 255, 255, 255}

// ByMAC matches frames from or to a MAC.
func ByMAC(m flow.MAC, source bool) flow.Match {
	if source {
		return flow.Match{SrcMAC: m, SrcMACMask: wholeMAC}
	}
	return flow.Match{DstMAC: m, DstMACMask: wholeMAC}
}

// ByAddress matches packets from or to a network.
func ByAddress(p netip.Prefix, source bool) flow.Match {
	if source {
		return flow.Match{Src: p}
	}
	return flow.Match{Dst: p}
}

// BySelector matches what a selector selects by addresses: all, for an endpoint.
func BySelector(s api.Selector, source bool) flow.Match {
	switch s.Kind {
	case api.SelectPrefix:
		return ByAddress(s.Prefix, source)
	case api.SelectMAC:
		return ByMAC(s.MAC, source)
	}
	return flow.Match{}
}
