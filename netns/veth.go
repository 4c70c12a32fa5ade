package netns

import (
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// VethOptions describe a pair: the host end in one namespace, the peer end in another.
type VethOptions struct {
	HostName  string
	Alias     string // ownership mark of both ends; a pair without it is foreign
	HostMAC   [6]byte
	PeerName  string
	PeerIndex int     // interface index inside the peer's namespace, 0 any
	PeerMAC   [6]byte // zero: the kernel's choice
	MTU       int     // 0: 1500
	Queues    int     // rx and tx queues of both ends, 0: 1
	Addresses []netip.Prefix
	Reserved  bool // the peer end answers and asks by ARP with its own addresses only, not with those of other interfaces
	Quiet     bool // the peer end says nothing for itself: no ARP, no IPv6. The host end never does.
}

// Pair is a pair as it is.
type Pair struct {
	Host, Peer Link
	Made       bool // false: it was there already
}

// ErrForeign says that a name is taken by something that Weir did not make.
var ErrForeign = errors.New("not made by this Weir")

// addressMark is the IFA_PROTO (kernel 5.18) of addresses that Weir sets, so that it takes away only its own.
const addressMark = 0x57

// Attribute numbers of the kernel's uapi that the libraries lack.
const (
	ifaProto          = 11     // if_addr.h: IFA_PROTO
	filterSkipStats   = 1 << 3 // rtnetlink.h: RTEXT_FILTER_SKIP_STATS
	ifaFlagNoDAD      = unix.IFA_F_NODAD
	maxLinkNameLength = unix.IFNAMSIZ - 1
)

// Veth makes a pair between two namespaces, "" being the calling thread's own; see Space.Veth. For several pairs keep the Spaces.
func Veth(hostNetns, peerNetns string, o VethOptions) (Pair, error) {
	host, err := At(hostNetns)
	if err != nil {
		return Pair{}, err
	}
	defer host.Close()
	peer, err := At(peerNetns)
	if err != nil {
		return Pair{}, err
	}
	defer peer.Close()
	return host.Veth(peer, o)
}

// Veth makes a pair with its host end in s and its peer end directly in the peer's namespace, both up. Safe to call again: an
// equal pair is left as it is, one of ours that differs is put right (made anew only where the kernel allows no other way).
// A link of that name without our mark is ErrForeign.
func (s *Space) Veth(peer *Space, o VethOptions) (Pair, error) {
	if err := o.check(); err != nil {
		return Pair{}, err
	}
	made := true
	err := s.newVeth(peer, o)
	if errors.Is(err, unix.EEXIST) || errors.Is(err, unix.EBUSY) { // a name, an index is taken
		var same bool
		if same, err = s.reuse(peer, o); err == nil && !same {
			err = s.newVeth(peer, o)
		}
		made = !same
	}
	if err != nil {
		return Pair{}, fmt.Errorf("veth %s in %s to %s in %s: %w", o.HostName, s, o.PeerName, peer, err)
	}
	if err := s.setUp(peer, o, made); err != nil {
		if made {
			err = errors.Join(err, s.Delete(o.HostName))
		}
		return Pair{}, fmt.Errorf("veth %s in %s to %s in %s: %w", o.HostName, s, o.PeerName, peer, err)
	}
	p := Pair{Made: made}
	if p.Host, err = s.Link(o.HostName); err != nil {
		return Pair{}, err
	}
	if p.Peer, err = peer.Link(o.PeerName); err != nil {
		return Pair{}, err
	}
	return p, nil
}

func (o *VethOptions) check() error {
	for _, n := range []string{o.HostName, o.PeerName} {
		if n == "" || len(n) > maxLinkNameLength {
			return fmt.Errorf("interface name %q: want 1 to %d bytes", n, maxLinkNameLength)
		}
	}
	if o.Alias == "" {
		return fmt.Errorf("veth %s: an alias is needed as ownership mark", o.HostName)
	}
	if o.MTU == 0 {
		o.MTU = 1500
	}
	if o.Queues == 0 {
		o.Queues = 1
	}
	return nil
}

// newVeth makes both ends in one request. The link that the request is about is the peer end: the kernel then takes its index, and
// the "peer" of the request, the host end, gets a free one.
func (s *Space) newVeth(peer *Space, o VethOptions) error {
	msg := nl.NewIfInfomsg(unix.AF_UNSPEC)
	msg.Index = int32(o.PeerIndex)
	info := nl.NewRtAttr(unix.IFLA_LINKINFO, nil)
	info.AddRtAttr(nl.IFLA_INFO_KIND, nl.NonZeroTerminated("veth"))
	host := info.AddRtAttr(nl.IFLA_INFO_DATA, nil).AddRtAttr(nl.VETH_INFO_PEER, nil)
	nl.NewIfInfomsgChild(host, unix.AF_UNSPEC)

	parts := []nl.NetlinkRequestData{msg, nl.NewRtAttr(unix.IFLA_NET_NS_FD, nl.Uint32Attr(uint32(peer.Fd())))}
	set := func(attr int, peerValue, hostValue []byte) {
		if peerValue != nil {
			parts = append(parts, nl.NewRtAttr(attr, peerValue))
		}
		if hostValue != nil {
			host.AddRtAttr(attr, hostValue)
		}
	}
	mtu, queues := nl.Uint32Attr(uint32(o.MTU)), nl.Uint32Attr(uint32(o.Queues))
	set(unix.IFLA_IFNAME, nl.ZeroTerminated(o.PeerName), nl.ZeroTerminated(o.HostName))
	set(unix.IFLA_ADDRESS, macAttr(o.PeerMAC), macAttr(o.HostMAC))
	set(unix.IFLA_MTU, mtu, mtu)
	set(unix.IFLA_NUM_TX_QUEUES, queues, queues)
	set(unix.IFLA_NUM_RX_QUEUES, queues, queues)
	group := nl.Uint32Attr(Unmarked(o.Alias))
	set(unix.IFLA_GROUP, group, group)
	return s.request(unix.RTM_NEWLINK, unix.NLM_F_CREATE|unix.NLM_F_EXCL, append(parts, info)...)
}

// reuse looks at what is there under the pair's names: true when it is our pair with the wanted ends, false when what was in the way
// was ours and has been removed, or has gone by itself.
func (s *Space) reuse(peer *Space, o VethOptions) (bool, error) {
	host, hostErr := s.Link(o.HostName)
	if hostErr != nil && !errors.Is(hostErr, ErrNoLink) {
		return false, hostErr
	}
	inner, innerErr := peer.Link(o.PeerName)
	if innerErr != nil && !errors.Is(innerErr, ErrNoLink) {
		return false, innerErr
	}
	for _, end := range []struct {
		link  Link
		err   error
		space *Space
	}{{host, hostErr, s}, {inner, innerErr, peer}} {
		if end.err == nil && !end.link.ours(o) {
			return false, fmt.Errorf("interface %s in %s exists (%s): %w; rename or remove it", end.link.Name, end.space, end.link.describe(), ErrForeign)
		}
	}
	if hostErr == nil && innerErr == nil && host.Kind == "veth" && inner.Kind == "veth" &&
		host.PeerIndex == inner.Index && inner.PeerIndex == host.Index && (o.PeerIndex == 0 || inner.Index == o.PeerIndex) {
		return true, nil
	}
	if hostErr == nil {
		if err := s.Delete(o.HostName); err != nil {
			return false, err
		}
	}
	if innerErr == nil {
		if err := peer.Delete(o.PeerName); err != nil {
			return false, err
		}
	}
	if hostErr == nil || innerErr == nil {
		return false, nil
	}
	links, err := peer.Links("")
	if err != nil {
		return false, err
	}
	if slices.ContainsFunc(links, func(l Link) bool { return l.Index == o.PeerIndex }) {
		return false, fmt.Errorf("interface index %d in %s is taken: %w", o.PeerIndex, peer, ErrForeign)
	}
	return false, nil // the kernel was removing a link, with a namespace that had ended
}

// Marked tells that the link carries the mark of an object, which is an alias, or of a part of the object.
func (l Link) Marked(alias string) bool {
	return l.Alias == alias || strings.HasPrefix(l.Alias, alias+"/")
}

// ours: the mark, or none yet.
func (l Link) ours(o VethOptions) bool { return l.Alias == o.Alias || l.halfMade(Unmarked(o.Alias)) }

func (l Link) describe() string {
	kind := l.Kind
	if kind == "" {
		kind = "device"
	}
	if l.Alias == "" {
		return kind + ", no alias"
	}
	return fmt.Sprintf("%s, alias %q", kind, l.Alias)
}

// setUp silences, marks and raises both ends, and sets the peer's addresses.
func (s *Space) setUp(peer *Space, o VethOptions, made bool) error {
	if err := s.Do(func() error { return DisableIPv6(o.HostName) }); err != nil {
		return err
	}
	if err := s.setLink(o.HostName, o.Alias, o.HostMAC, o.MTU, 0, made); err != nil {
		return err
	}
	var flags uint32
	if o.Quiet {
		flags = unix.IFF_NOARP
		if err := peer.Do(func() error { return DisableIPv6(o.PeerName) }); err != nil {
			return err
		}
	}
	if o.Reserved {
		if err := peer.Do(func() error { return reserveARP(o.PeerName) }); err != nil {
			return err
		}
	}
	if err := peer.setLink(o.PeerName, o.Alias, o.PeerMAC, o.MTU, flags, made); err != nil {
		return err
	}
	return peer.setAddresses(o.PeerName, o.Addresses, made)
}

// setLink marks one end and brings it up, in one request; an end that was there already also gets MAC and MTU.
func (s *Space) setLink(name, alias string, mac [6]byte, mtu int, flags uint32, made bool) error {
	msg := nl.NewIfInfomsg(unix.AF_UNSPEC)
	msg.Flags = unix.IFF_UP | flags
	msg.Change = unix.IFF_UP | flags
	parts := []nl.NetlinkRequestData{msg,
		nl.NewRtAttr(unix.IFLA_IFNAME, nl.ZeroTerminated(name)),
		nl.NewRtAttr(unix.IFLA_IFALIAS, []byte(alias))}
	group := made
	if !made {
		is, err := s.Link(name)
		if err != nil {
			return err
		}
		group = is.halfMade(Unmarked(alias))
		if is.MTU != mtu {
			parts = append(parts, nl.NewRtAttr(unix.IFLA_MTU, nl.Uint32Attr(uint32(mtu))))
		}
		if mac != ([6]byte{}) && is.MAC != mac {
			parts = append(parts, nl.NewRtAttr(unix.IFLA_ADDRESS, mac[:]))
		}
	}
	if group {
		parts = append(parts, nl.NewRtAttr(unix.IFLA_GROUP, nl.Uint32Attr(0)))
	}
	if err := s.request(unix.RTM_SETLINK, 0, parts...); err != nil {
		return fmt.Errorf("set %s up: %w", name, err)
	}
	return nil
}

// setAddresses makes the interface carry want, and takes away other addresses that Weir once set. Duplicate address
// detection is off: the addresses are usable at once.
func (s *Space) setAddresses(name string, want []netip.Prefix, fresh bool) error {
	if fresh && len(want) == 0 {
		return nil
	}
	link, err := s.Link(name)
	if err != nil {
		return err
	}
	keep := map[netip.Prefix]bool{} // ours?
	for _, p := range want {
		keep[p] = true
	}
	if !fresh {
		have, err := s.addresses(link.Index)
		if err != nil {
			return fmt.Errorf("list addresses of %s: %w", name, err)
		}
		removed := false
		for p, ours := range have {
			if _, wanted := keep[p]; wanted {
				continue
			}
			if !ours {
				keep[p] = false
				continue
			}
			err := s.request(unix.RTM_DELADDR, 0, addressParts(link.Index, p, true)...)
			if err != nil && !errors.Is(err, unix.EADDRNOTAVAIL) {
				return fmt.Errorf("remove address %s from %s: %w", p, name, err)
			}
			removed = true
		}
		if removed { // with a primary IPv4 address its secondaries go, too
			if have, err = s.addresses(link.Index); err != nil {
				return fmt.Errorf("list addresses of %s: %w", name, err)
			}
		}
		for p := range have {
			delete(keep, p)
		}
	}
	missing := slices.Concat(want, slices.SortedFunc(maps.Keys(keep), netip.Prefix.Compare)) // want's first one is the primary
	for _, p := range missing {
		ours, todo := keep[p]
		if !todo {
			continue
		}
		delete(keep, p)
		err := s.request(unix.RTM_NEWADDR, unix.NLM_F_CREATE|unix.NLM_F_REPLACE, addressParts(link.Index, p, ours)...)
		if err != nil {
			return fmt.Errorf("set address %s on %s: %w", p, name, err)
		}
	}
	return nil
}

func addressParts(index int, p netip.Prefix, ours bool) []nl.NetlinkRequestData {
	family := unix.AF_INET
	if p.Addr().Is6() {
		family = unix.AF_INET6
	}
	msg := nl.NewIfAddrmsg(family)
	msg.Index = uint32(index)
	msg.Prefixlen = uint8(p.Bits())
	raw := p.Addr().AsSlice()
	parts := []nl.NetlinkRequestData{msg, nl.NewRtAttr(unix.IFA_LOCAL, raw), nl.NewRtAttr(unix.IFA_ADDRESS, raw)}
	if ours {
		parts = append(parts, nl.NewRtAttr(ifaProto, []byte{addressMark}))
	}
	if family == unix.AF_INET6 {
		return append(parts, nl.NewRtAttr(unix.IFA_FLAGS, nl.Uint32Attr(ifaFlagNoDAD)))
	}
	if p.Bits() < 31 {
		parts = append(parts, nl.NewRtAttr(unix.IFA_BROADCAST, broadcast(p)))
	}
	return parts
}

func broadcast(p netip.Prefix) []byte {
	a := p.Addr().As4()
	for bit := p.Bits(); bit < 32; bit++ {
		a[bit/8] |= 0x80 >> (bit % 8)
	}
	return a[:]
}

// addresses of an interface, and which of them Weir set.
func (s *Space) addresses(index int) (map[netip.Prefix]bool, error) {
	msgs, err := s.dump(unix.RTM_GETADDR, unix.RTM_NEWADDR, nl.NewIfAddrmsg(unix.AF_UNSPEC))
	if err != nil {
		return nil, err
	}
	found := map[netip.Prefix]bool{}
	for _, m := range msgs {
		msg := nl.DeserializeIfAddrmsg(m)
		if int(msg.Index) != index {
			continue
		}
		attrs, err := nl.ParseRouteAttr(m[msg.Len():])
		if err != nil {
			return nil, err
		}
		var addr netip.Addr
		ours := false
		for _, a := range attrs {
			switch a.Attr.Type {
			case unix.IFA_LOCAL:
				addr, _ = netip.AddrFromSlice(a.Value)
			case unix.IFA_ADDRESS:
				if !addr.IsValid() { // IPv6 has only this one
					addr, _ = netip.AddrFromSlice(a.Value)
				}
			case ifaProto:
				ours = len(a.Value) == 1 && a.Value[0] == addressMark
			}
		}
		if addr.IsValid() {
			found[netip.PrefixFrom(addr, int(msg.Prefixlen))] = ours
		}
	}
	return found, nil
}

func macAttr(m [6]byte) []byte {
	if m == ([6]byte{}) {
		return nil
	}
	return m[:]
}
