// Package term tells what the terms of a policy's match ("tcp/80", "icmp") select.
package term

import (
	"weir.dev/weir/api"
	"weir.dev/weir/flow"
)

// Matches appends what a term selects; on the way back its ports are the source's. Where both families have a protocol it is one match,
// without an EtherType.
func Matches(to []flow.Match, t api.Term, back bool) []flow.Match {
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
	if back {
		m.SrcPorts = ports
	} else {
		m.DstPorts = ports
	}
	return append(to, m)
}

// Apart says why a term has no frames between two ends.
func Apart(t api.Term) string {
	if t.Protocol == api.ProtocolARP {
		return "ARP has no IP header; select by endpoint or MAC"
	}
	return "their address families differ"
}
