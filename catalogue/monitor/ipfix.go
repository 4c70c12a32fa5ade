package main

import (
	"encoding/binary"
	"time"
)

// IPFIX (RFC 7011): a record for each direction of a flow, in messages that may stand one behind the other, in a file (RFC 5655) or a TCP connection to a
// collector, or each in a datagram.

// Numbers of information elements, as IANA has them.
const (
	ieOctets      = 1   // octetDeltaCount
	iePackets     = 2   // packetDeltaCount
	ieProtocol    = 4   // protocolIdentifier
	ieTCPFlags    = 6   // tcpControlBits
	ieSourcePort  = 7   // sourceTransportPort
	ieSource4     = 8   // sourceIPv4Address
	ieTargetPort  = 11  // destinationTransportPort
	ieTarget4     = 12  // destinationIPv4Address
	ieSource6     = 27  // sourceIPv6Address
	ieTarget6     = 28  // destinationIPv6Address
	ieSourceMAC   = 56  // sourceMacAddress
	ieVLAN        = 58  // vlanId
	ieTargetMAC   = 80  // destinationMacAddress
	ieEndReason   = 136 // flowEndReason
	ieStart       = 152 // flowStartMilliseconds
	ieEnd         = 153 // flowEndMilliseconds
	ieEthertype   = 256 // ethernetType
	ipfixVersion  = 10
	templateSet   = 2
	template4     = 256 // our templates
	template6     = 257
	templateOther = 258

	templatesEvery = 30 * time.Second // for a collector that comes late, or hears datagrams
	maxMessage     = 1200             // bytes: a datagram that every path carries
	messageHeader  = 16
	setHeader      = 4
)

// field of a template: element and length in bytes.
type field struct{ element, length uint16 }

var common = []field{{ieStart, 8}, {ieEnd, 8}, {iePackets, 8}, {ieOctets, 8}, {ieVLAN, 2}, {ieEndReason, 1}}

var templates = map[uint16][]field{
	template4:     append(common[:len(common):len(common)], field{ieSource4, 4}, field{ieTarget4, 4}, field{ieProtocol, 1}, field{ieSourcePort, 2}, field{ieTargetPort, 2}, field{ieTCPFlags, 2}),
	template6:     append(common[:len(common):len(common)], field{ieSource6, 16}, field{ieTarget6, 16}, field{ieProtocol, 1}, field{ieSourcePort, 2}, field{ieTargetPort, 2}, field{ieTCPFlags, 2}),
	templateOther: append(common[:len(common):len(common)], field{ieSourceMAC, 6}, field{ieTargetMAC, 6}, field{ieEthertype, 2}),
}

// exporter makes messages of records, for one reader.
type exporter struct {
	sequence  uint32 // records so far
	templates time.Time
}

// message of some records of one template, which fit into one; with the templates if they are due.
func (e *exporter) message(now time.Time, template uint16, records [][]byte) []byte {
	m := make([]byte, messageHeader, maxMessage)
	binary.BigEndian.PutUint16(m, ipfixVersion)
	binary.BigEndian.PutUint32(m[4:], uint32(now.Unix()))
	binary.BigEndian.PutUint32(m[8:], e.sequence)
	binary.BigEndian.PutUint32(m[12:], 1) // observation domain
	if now.Sub(e.templates) >= templatesEvery {
		e.templates = now
		at := len(m)
		m = append(m, 0, templateSet, 0, 0)
		for _, id := range []uint16{template4, template6, templateOther} {
			m = binary.BigEndian.AppendUint16(m, id)
			m = binary.BigEndian.AppendUint16(m, uint16(len(templates[id])))
			for _, f := range templates[id] {
				m = binary.BigEndian.AppendUint16(m, f.element)
				m = binary.BigEndian.AppendUint16(m, f.length)
			}
		}
		binary.BigEndian.PutUint16(m[at+2:], uint16(len(m)-at))
	}
	if len(records) > 0 {
		at := len(m)
		m = binary.BigEndian.AppendUint16(m, template)
		m = append(m, 0, 0)
		for _, r := range records {
			m = append(m, r...)
		}
		binary.BigEndian.PutUint16(m[at+2:], uint16(len(m)-at))
		e.sequence += uint32(len(records))
	}
	binary.BigEndian.PutUint16(m[2:], uint16(len(m)))
	return m
}

// records of what a flow did since it was told last: one for each direction that has packets. Their template is the same.
func (r report) records() (template uint16, records [][]byte) {
	template = templateOther
	switch r.first.ethertype {
	case etherIPv4:
		template = template4
	case etherIPv6:
		template = template6
	}
	p := r.first
	for way := range 2 {
		if r.packets[way] > 0 {
			b := binary.BigEndian.AppendUint64(nil, uint64(r.began.UnixMilli()))
			b = binary.BigEndian.AppendUint64(b, uint64(r.seen.UnixMilli()))
			b = binary.BigEndian.AppendUint64(b, r.packets[way])
			b = binary.BigEndian.AppendUint64(b, r.bytes[way])
			b = binary.BigEndian.AppendUint16(b, p.vlan)
			b = append(b, byte(r.reason))
			size := map[uint16]int{template4: 4, template6: 16, templateOther: 6}[template]
			b = append(append(b, p.src[:size]...), p.dst[:size]...)
			if template == templateOther {
				b = binary.BigEndian.AppendUint16(b, p.ethertype)
			} else {
				b = append(b, p.proto)
				b = binary.BigEndian.AppendUint16(b, p.sport)
				b = binary.BigEndian.AppendUint16(b, p.dport)
				b = append(b, 0, r.flags[way])
			}
			records = append(records, b)
		}
		p = p.reversed()
	}
	return template, records
}
