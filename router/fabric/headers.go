package fabric

import (
	"slices"

	"weir.dev/weir/flow"
)

// Header is what an OpenFlow switch sees of a frame that it has not read to the end.
type Header struct {
	EtherType uint16
	Proto     int  // of IP; -1: none
	NoAddress bool // the header of IP is broken: its fields are zero
}

// Next headers of IPv6 that are no upper layer's. Open vSwitch says 44 of fragments other than the first, 0 or 59 where an extension
// header is cut short. Others stop at the first extension header.
var unreadNext = [...]int{0, 43, 44, 51, 59, 60}

// Headers are all that a switch may see of the frames which a match with Unread selects. Each becomes an entry. Open vSwitch passes one
// tag, others two or all, so any tag behind the first may be the last that is seen.
func Headers(m *flow.Match) []Header {
	if m.Unread == flow.UnreadUpper {
		all := make([]Header, 0, len(unreadNext))
		for _, n := range unreadNext {
			all = append(all, Header{EtherType: flow.EtherTypeIPv6, Proto: n})
		}
		return all
	}
	all := []Header{
		{EtherType: flow.EtherTypeVLAN, Proto: -1}, {EtherType: flow.EtherTypeQinQ, Proto: -1},
		{EtherType: flow.EtherTypeIPv4, NoAddress: true}, {EtherType: flow.EtherTypeIPv6, NoAddress: true},
	}
	return slices.DeleteFunc(all, func(h Header) bool { return m.EtherType != 0 && m.EtherType != h.EtherType })
}
