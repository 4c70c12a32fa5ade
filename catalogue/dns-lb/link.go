package main

import (
	"net/netip"

	"weir.dev/weir/catalogue/nf"
)

const (
	port        = 53
	macs        = 12
	etherLength = macs + 2
	etherARP    = 0x0806
)

// single tells whether a frame goes from one station to one other, in plain Ethernet. What does not is never answered.
func single(p *nf.Packet, frame []byte) bool {
	return p.Network == etherLength+4*p.TagCount && frame[0]&1 == 0 && frame[6]&1 == 0 && unicast(p.Src) && unicast(p.Dst) && p.Src != p.Dst && p.SrcPort != 0
}

func unicast(a netip.Addr) bool {
	return !a.IsMulticast() && !a.IsUnspecified() && !a.IsLoopback() && a != netip.AddrFrom4([4]byte{255, 255, 255, 255})
}

// back makes the header of a link one to where a frame came from.
func back(header, frame []byte) {
	copy(header, frame[6:12])
	copy(header[6:], frame[:6])
}
