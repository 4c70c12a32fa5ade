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

	made    []byte // the message at hand
	records []byte // of the next one
	n       uint32 // how many these are
}

// message of the records that were added, which are of one template and fit into one; with the templates if they are due. It is valid until the next one.
func (e *exporter) message(now time.Time, template uint16) []byte {
	m := append(e.made[:0], make([]byte, messageHeader)...)
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
	if e.n > 0 {
		at := len(m)
		m = binary.BigEndian.AppendUint16(m, template)
		m = append(m, 0, 0)
		m = append(m, e.records...)
		binary.BigEndian.PutUint16(m[at+2:], uint16(len(m)-at))
		e.sequence += e.n
		e.records, e.n = e.records[:0], 0
	}
	binary.BigEndian.PutUint16(m[2:], uint16(len(m)))
	e.made = m
	return m
}

// add the record of a direction of a report.
func (e *exporter) add(r *report, way int) { e.records, e.n = r.record(e.records, way), e.n+1 }

// full tells whether the next message has no room for a record of so many bytes.
func (e *exporter) full(length int) bool {
	return messageHeader+setHeader+len(e.records)+length > maxMessage
}

// template of the records of a report.
func (r *report) template() uint16 {
	switch r.first.ethertype {
	case etherIPv4:
		return template4
	case etherIPv6:
		return template6
	}
	return templateOther
}

// directions of a report that have packets: each has a record.
func (r *report) directions() (n int) {
	for _, packets := range r.packets {
		if packets > 0 {
			n++
		}
	}
	return n
}

// record of what a direction of a flow did since it was told last is appended.
func (r *report) record(b []byte, way int) []byte {
	p := r.first
	if way == 1 {
		p = p.reversed()
	}
	b = binary.BigEndian.AppendUint64(b, uint64(r.began.UnixMilli()))
	b = binary.BigEndian.AppendUint64(b, uint64(r.seen.UnixMilli()))
	b = binary.BigEndian.AppendUint64(b, r.packets[way])
	b = binary.BigEndian.AppendUint64(b, r.bytes[way])
	b = binary.BigEndian.AppendUint16(b, p.vlan)
	b = append(b, byte(r.reason))
	size := 6
	switch p.ethertype {
	case etherIPv4:
		size = 4
	case etherIPv6:
		size = 16
	}
	b = append(append(b, p.src[:size]...), p.dst[:size]...)
	if r.template() == templateOther {
		return binary.BigEndian.AppendUint16(b, p.ethertype)
	}
	b = append(b, p.proto)
	b = binary.BigEndian.AppendUint16(b, p.sport)
	b = binary.BigEndian.AppendUint16(b, p.dport)
	return append(b, 0, r.flags[way])
}

// recordLength of a template in bytes.
func recordLength(template uint16) (n int) {
	for _, f := range templates[template] {
		n += int(f.length)
	}
	return n
}
