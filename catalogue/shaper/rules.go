package main

import (
	"encoding/binary"
	"math/bits"
	"net/netip"
	"slices"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// rule is one filter of u32: what words of a frame must be. Words are of 32 bits, at a place in bytes from the network header, which is behind one VLAN tag if there is
// one: the kernel has taken it out. A word that a short frame does not have ends the search, so the words that say what the frame is come first.
type rule []nl.TcU32Key

// family of addresses, and where its header has what.
type family struct {
	ethertype uint32
	version   uint32
	source    int32 // in bytes from the beginning of the header, as the others
	target    int32
	length    int32 // of an address
	ports     int32 // behind a header without options
	icmp      uint8 // its protocol
}

var families = []family{
	{unix.ETH_P_IP, 4, 12, 16, 4, 20, unix.IPPROTO_ICMP},
	{unix.ETH_P_IPV6, 6, 8, 24, 16, 40, unix.IPPROTO_ICMPV6},
}

// beforeNetwork is where the ethertype is, and behind it the first two bytes of the network header.
const beforeNetwork = -2

// rules of a match, in the direction up or down.
func (m match) rules(up bool) (all []rule) {
	if m.kind == "arp" {
		return []rule{{{Off: beforeNetwork, Val: unix.ETH_P_ARP << 16, Mask: 0xffff0000}}}
	}
	from, to := m.clients, m.servers
	if !up {
		from, to = to, from
	}
	for _, f := range families {
		start := f.start(m)
		for _, source := range f.of(from) {
			for _, target := range f.of(to) {
				for _, ports := range m.ports(f.ports) {
					all = append(all, slices.Concat(start, prefixWords(f.source, source), prefixWords(f.target, target), ports))
				}
			}
		}
	}
	return all
}

// start of a family's rules: ethertype, version, DSCP and protocol.
func (f family) start(m match) rule {
	first := nl.TcU32Key{Off: beforeNetwork, Val: f.ethertype<<16 | f.version<<12, Mask: 0xfffff000}
	if m.dscp >= 0 { // behind the version and, of IPv4, the length of the header
		at := map[uint32]int{4: 2, 6: 6}[f.version]
		first.Val |= uint32(m.dscp) << at
		first.Mask |= 0x3f << at
	}
	if m.first > 0 && f.version == 4 { // no options
		first.Val |= 5 << 8
		first.Mask |= 0xf << 8
	}
	protocol, ok := map[string]uint8{"icmp": f.icmp, "tcp": unix.IPPROTO_TCP, "udp": unix.IPPROTO_UDP, "sctp": unix.IPPROTO_SCTP}[m.kind]
	switch {
	case !ok:
		return rule{first}
	case f.version == 6:
		return rule{first, {Off: 4, Val: uint32(protocol) << 8, Mask: 0xff00}}
	}
	keys := rule{first, {Off: 8, Val: uint32(protocol) << 16, Mask: 0xff0000}}
	if m.first > 0 { // no fragment: all of a packet are in one class
		keys = append(keys, nl.TcU32Key{Off: 4, Mask: 0x3fff})
	}
	return keys
}

// of are the networks of a family; the zero one stands for every address.
func (f family) of(all []netip.Prefix) (own []netip.Prefix) {
	if all == nil {
		return make([]netip.Prefix, 1)
	}
	for _, p := range all {
		if p.Addr().Is4() == (f.version == 4) {
			own = append(own, p)
		}
	}
	return own
}

// prefixWords are the words of an address at a place.
func prefixWords(at int32, p netip.Prefix) (keys rule) {
	if !p.IsValid() {
		return nil
	}
	raw := p.Addr().AsSlice()
	for i := 0; 8*i < p.Bits(); i += 4 {
		mask := ^uint32(0) << max(0, 32-(p.Bits()-8*i))
		keys = append(keys, nl.TcU32Key{Off: at + int32(i), Val: binary.BigEndian.Uint32(raw[i:]) & mask, Mask: mask})
	}
	return keys
}

// ports of a match: the source or the target is one of them.
func (m match) ports(at int32) (all []rule) {
	if m.first == 0 {
		return make([]rule, 1)
	}
	blocks := portBlocks(m.first, m.last)
	for _, end := range []int{16, 0} {
		for _, b := range blocks {
			all = append(all, rule{{Off: at, Val: uint32(b.first) << end, Mask: uint32(b.mask) << end}})
		}
	}
	return all
}

// portBlock is the ports that are first where mask has ones.
type portBlock struct{ first, mask uint16 }

// portBlocks are a range of ports.
func portBlocks(first, last uint16) (all []portBlock) {
	for at, end := uint32(first), uint32(last)+1; at < end; {
		size := uint32(1) << min(bits.TrailingZeros32(at), bits.Len32(end-at)-1)
		all = append(all, portBlock{uint16(at), uint16(-size)})
		at += size
	}
	return all
}
