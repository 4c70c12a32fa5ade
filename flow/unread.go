package flow

import (
	"fmt"
	"net/netip"
)

// Unread says how much of a frame's headers could not be read. Whoever receives such a frame may read on: Linux passes any number of
// priority tags, for example. So rules can select it for what it may be.
type Unread uint8

const (
	// ReadAll: everything was read that there is to read.
	ReadAll Unread = iota
	// UnreadNetwork: what follows the MAC addresses and the VLAN is unknown: there is a tag behind the two that are passed, a tag is cut short,
	// or an IPv4 or IPv6 header is cut short or contradicts itself.
	UnreadNetwork
	// UnreadUpper: what follows the addresses of an IPv6 packet is unknown: there is an extension header behind the six that are passed, one
	// is cut short, or it is in another fragment.
	UnreadUpper
)

// ParseUnread reads a String; "" is ReadAll.
func ParseUnread(s string) (Unread, error) {
	for _, u := range []Unread{ReadAll, UnreadNetwork, UnreadUpper} {
		if s == u.String() || s == "" {
			return u, nil
		}
	}
	return ReadAll, fmt.Errorf("unread %q: must be %q or %q", s, UnreadNetwork, UnreadUpper)
}

func (u Unread) String() string {
	return [...]string{"all read", "unread behind Ethernet", "unread behind IPv6"}[u]
}

// May turns a match into that of the frames, unread as u says, which it may select: fields that cannot be read are left out. ok is false where
// the match names none of these, and so needs no help, and where no such frame can be meant.
func (m Match) May(u Unread) (Match, bool) {
	if m.Unread != ReadAll {
		return Match{}, false
	}
	w := m
	w.Unread, w.Proto, w.SrcPorts, w.DstPorts = u, 0, PortRange{}, PortRange{}
	switch u {
	case UnreadNetwork:
		w.EtherType, w.Src, w.Dst = 0, netip.Prefix{}, netip.Prefix{}
		return w, m.family() != 0 || m.Proto != 0
	case UnreadUpper:
		w.EtherType = EtherTypeIPv6
		return w, m.Proto != 0 && (m.family() == 0 || m.family() == EtherTypeIPv6)
	}
	return Match{}, false
}

// hides reports that a match names a field which frames unread as it says do not have.
func (m Match) hides() bool {
	switch m.Unread {
	case UnreadNetwork:
		return m.Src.IsValid() || m.Dst.IsValid() || m.Proto != 0
	case UnreadUpper:
		return m.Proto != 0 || m.family() != 0 && m.family() != EtherTypeIPv6
	}
	return false
}
