package netns

import (
	"errors"
	"fmt"
	"hash/fnv"
	"os"
	"slices"
	"strings"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// Space is an open network namespace: its file descriptor and one rtnetlink socket in it. It is safe for
// several goroutines. Open one per namespace and keep it for several links.
type Space struct {
	ns      *os.File
	sockets map[int]*nl.SocketHandle
	current bool
}

// At opens a namespace, "" the calling thread's own.
func At(nameOrPath string) (*Space, error) {
	var ns *os.File
	var err error
	if nameOrPath == "" {
		ns, err = os.Open("/proc/thread-self/ns/net")
	} else {
		ns, err = Open(nameOrPath)
	}
	if err != nil {
		return nil, err
	}
	s := &Space{ns: ns, current: nameOrPath == ""}
	if err := do(ns, s.openSocket); err != nil {
		ns.Close()
		return nil, err
	}
	return s, nil
}

func (s *Space) openSocket() error {
	// ns.None: the thread is there already; the library's own way back would keep a lost thread alive.
	sock, err := nl.GetNetlinkSocketAt(-1, -1, unix.NETLINK_ROUTE)
	if err != nil {
		return fmt.Errorf("open rtnetlink socket in %s: %w", s, err)
	}
	// Best effort: texts with the errors, and an end to a wait that the kernel never makes us do.
	_ = sock.SetExtAck(true)
	_ = sock.SetReceiveTimeout(&unix.Timeval{Sec: 10})
	s.sockets = map[int]*nl.SocketHandle{unix.NETLINK_ROUTE: {Socket: sock}}
	return nil
}

// String names the namespace for people.
func (s *Space) String() string {
	if s.current {
		return "this network namespace"
	}
	return "network namespace " + s.ns.Name()
}

// Close lets go of the namespace.
func (s *Space) Close() error {
	for _, h := range s.sockets {
		h.Close()
	}
	return s.ns.Close()
}

// Do runs f on a thread inside the namespace; see the package's Do.
func (s *Space) Do(f func() error) error { return do(s.ns, f) }

// Netlink runs f as Do does, with an rtnetlink socket in the namespace.
func (s *Space) Netlink(f func(*netlink.Handle) error) error {
	return s.Do(func() error { return withNetlink(f) })
}

// withNetlink runs f with an rtnetlink socket in the thread's namespace.
func withNetlink(f func(*netlink.Handle) error) error {
	h, err := netlink.NewHandle(unix.NETLINK_ROUTE)
	if err != nil {
		return fmt.Errorf("open rtnetlink socket: %w", err)
	}
	defer h.Close()
	return f(h)
}

// Fd is the namespace's file descriptor, valid until Close.
func (s *Space) Fd() int { return int(s.ns.Fd()) }

// request sends one rtnetlink request and waits for its acknowledgement.
func (s *Space) request(proto, flags int, parts ...nl.NetlinkRequestData) error {
	req := nl.NewNetlinkRequest(proto, flags|unix.NLM_F_ACK)
	req.Sockets = s.sockets
	for _, p := range parts {
		req.AddData(p)
	}
	_, err := req.Execute(unix.NETLINK_ROUTE, 0)
	return err
}

// maxDumps bounds how often an interrupted dump is repeated.
const maxDumps = 10

// dump asks for many messages. The kernel marks a dump during which its tables changed; such a dump may miss entries,
// so it is repeated.
func (s *Space) dump(proto int, reply uint16, part nl.NetlinkRequestData) ([][]byte, error) {
	var err error
	for range maxDumps {
		req := nl.NewNetlinkRequest(proto, unix.NLM_F_DUMP)
		req.Sockets = s.sockets
		req.AddData(part)
		var msgs [][]byte
		msgs, err = req.Execute(unix.NETLINK_ROUTE, reply)
		if err == nil {
			return msgs, nil
		}
		if !errors.Is(err, netlink.ErrDumpInterrupted) && !errors.Is(err, unix.EINTR) && !errors.Is(err, unix.EAGAIN) {
			return nil, err
		}
	}
	return nil, fmt.Errorf("still interrupted after %d attempts: %w", maxDumps, err)
}

// Link is a network interface as the kernel has it.
type Link struct {
	Index     int
	Name      string
	Alias     string
	Kind      string // veth, bridge, ...; empty for a device
	MAC       [6]byte
	MTU       int
	Up        bool
	Carrier   bool // and connected
	Master    int  // interface index of the bridge, 0 none
	PeerIndex int  // of a veth: the other end's index in its own namespace
	Group     uint32
}

// SetMTU changes what a link carries, while it is up.
func (s *Space) SetMTU(name string, mtu int) error {
	is, err := s.Link(name)
	if err != nil || is.MTU == mtu {
		return err
	}
	msg := nl.NewIfInfomsg(unix.AF_UNSPEC)
	msg.Index = int32(is.Index)
	if err := s.request(unix.RTM_SETLINK, 0, msg, nl.NewRtAttr(unix.IFLA_MTU, nl.Uint32Attr(uint32(mtu)))); err != nil {
		return fmt.Errorf("set MTU of %s to %d: %w", name, mtu, err)
	}
	return nil
}

// Unmarked is the interface group (IFLA_GROUP) of a link of the instance from the request that makes it until the request that marks it: the
// kernel takes no alias in the former. alias is the mark, or its part that all links of the instance have, "weir:INSTANCE:"; of another form: 0, which
// is everybody's group.
func Unmarked(alias string) uint32 {
	parts := strings.SplitAfterN(alias, ":", 3)
	if len(parts) < 3 {
		return 0
	}
	h := fnv.New32a()
	h.Write([]byte(parts[0] + parts[1]))
	return 1<<30 | h.Sum32()>>2 // no number that people give groups
}

// Mark puts the mark on a link that was made as Unmarked says, and takes it out of that group.
func (s *Space) Mark(name, alias string) error {
	err := s.request(unix.RTM_SETLINK, 0, nl.NewIfInfomsg(unix.AF_UNSPEC), nl.NewRtAttr(unix.IFLA_IFNAME, nl.ZeroTerminated(name)),
		nl.NewRtAttr(unix.IFLA_IFALIAS, []byte(alias)), nl.NewRtAttr(unix.IFLA_GROUP, nl.Uint32Attr(0)))
	if err != nil {
		return fmt.Errorf("mark %s in %s: %w", name, s, err)
	}
	return nil
}

// halfMade: a crash came between making the link and marking it.
func (l Link) halfMade(group uint32) bool {
	return group != 0 && l.Group == group && l.Alias == "" && !l.Up && slices.Contains([]string{"veth", "vxlan", "bridge"}, l.Kind)
}

// ErrNoLink says that there is no such interface.
var ErrNoLink = errors.New("no such interface")

// Link looks an interface up by its name.
func (s *Space) Link(name string) (Link, error) {
	m, err := s.linkMessage(name, filterSkipStats)
	if err != nil {
		return Link{}, err
	}
	return parseLink(m)
}

// Received is how many packets have come in at an interface: at one end of a veth pair, those that left by the other end.
func (s *Space) Received(name string) (uint64, error) {
	m, err := s.linkMessage(name, 0)
	if err != nil {
		return 0, err
	}
	attrs, err := nl.ParseRouteAttr(m[unix.SizeofIfInfomsg:])
	if err != nil {
		return 0, fmt.Errorf("parse link %s: %w", name, err)
	}
	for _, a := range attrs {
		if a.Attr.Type == unix.IFLA_STATS64 && len(a.Value) >= 8 {
			return nl.NativeEndian().Uint64(a.Value), nil // struct rtnl_link_stats64 begins with rx_packets
		}
	}
	return 0, fmt.Errorf("get link %s in %s: no statistics", name, s)
}

// Lost is how many packets each interface, by its index, could not send: of a veth's end also those that are larger than the other end's MTU.
func (s *Space) Lost() (map[int]uint64, error) {
	const filter, txErrors, txDropped = 1 << (unix.IFLA_STATS_LINK_64 - 1), 5 * 8, 7 * 8 // struct if_stats_msg, rtnl_link_stats64
	msgs, err := s.dump(unix.RTM_GETSTATS, unix.RTM_NEWSTATS, statsRequest(filter))
	if err != nil {
		return nil, fmt.Errorf("read statistics of links in %s: %w", s, err)
	}
	lost := make(map[int]uint64, len(msgs))
	for _, m := range msgs {
		if len(m) < statsHeader {
			continue
		}
		attrs, err := nl.ParseRouteAttr(m[statsHeader:])
		if err != nil {
			return nil, fmt.Errorf("parse statistics: %w", err)
		}
		for _, a := range attrs {
			if a.Attr.Type == unix.IFLA_STATS_LINK_64 && len(a.Value) >= txDropped+8 {
				lost[int(nl.NativeEndian().Uint32(m[4:]))] = nl.NativeEndian().Uint64(a.Value[txErrors:]) + nl.NativeEndian().Uint64(a.Value[txDropped:])
			}
		}
	}
	return lost, nil
}

const statsHeader = 12 // struct if_stats_msg: family, padding, ifindex, filter

type statsRequest uint32

func (r statsRequest) Len() int { return statsHeader }

func (r statsRequest) Serialize() []byte {
	b := make([]byte, statsHeader)
	nl.NativeEndian().PutUint32(b[8:], uint32(r))
	return b
}

// Links lists the interfaces whose alias starts with prefix ("" all of them).
func (s *Space) Links(prefix string) ([]Link, error) {
	msg := nl.NewIfInfomsg(unix.AF_UNSPEC)
	msgs, err := s.dump(unix.RTM_GETLINK, unix.RTM_NEWLINK, msg)
	if err != nil {
		return nil, fmt.Errorf("list links in %s: %w", s, err)
	}
	var links []Link
	for _, m := range msgs {
		l, err := parseLink(m)
		if err != nil {
			return nil, fmt.Errorf("list links in %s: %w", s, err)
		}
		if strings.HasPrefix(l.Alias, prefix) {
			links = append(links, l)
		}
	}
	return links, nil
}

// Delete removes one interface. Unknown: nil.
func (s *Space) Delete(name string) error {
	err := s.request(unix.RTM_DELLINK, 0, nl.NewIfInfomsg(unix.AF_UNSPEC),
		nl.NewRtAttr(unix.IFLA_IFNAME, nl.ZeroTerminated(name)))
	if err != nil && !errors.Is(err, unix.ENODEV) {
		return fmt.Errorf("delete link %s in %s: %w", name, s, err)
	}
	return nil
}

// DeleteByAlias removes the interfaces whose alias starts with prefix, which must not be empty, and tells their names. With all those of an
// instance ("weir:INSTANCE:") go those that it made and could not mark any more. An interface that went with its peer meanwhile is no error. told, unless nil, hears how many
// are gone, of how many.
func (s *Space) DeleteByAlias(prefix string, told func(done, all int)) ([]string, error) {
	if prefix == "" {
		return nil, errors.New("delete links by alias: an empty prefix would delete every link")
	}
	links, err := s.Links("")
	if err != nil {
		return nil, err
	}
	var group uint32
	if strings.Count(prefix, ":") == 2 && strings.HasSuffix(prefix, ":") {
		group = Unmarked(prefix)
	}
	links = slices.DeleteFunc(links, func(l Link) bool { return !strings.HasPrefix(l.Alias, prefix) && !l.halfMade(group) })
	var gone []string
	var errs []error
	for i, l := range links {
		if told != nil {
			told(i, len(links))
		}
		if err := s.Delete(l.Name); err != nil {
			errs = append(errs, err)
			continue
		}
		gone = append(gone, l.Name)
	}
	return gone, errors.Join(errs...)
}

// Links lists the interfaces of the calling thread's namespace whose alias starts with prefix.
func Links(prefix string) ([]Link, error) {
	s, err := At("")
	if err != nil {
		return nil, err
	}
	defer s.Close()
	return s.Links(prefix)
}

// DeleteByAlias removes links of the calling thread's namespace; see Space.DeleteByAlias.
func DeleteByAlias(prefix string, told func(done, all int)) ([]string, error) {
	s, err := At("")
	if err != nil {
		return nil, err
	}
	defer s.Close()
	return s.DeleteByAlias(prefix, told)
}

func parseLink(m []byte) (Link, error) {
	if len(m) < unix.SizeofIfInfomsg {
		return Link{}, fmt.Errorf("rtnetlink link message of %d bytes", len(m))
	}
	msg := nl.DeserializeIfInfomsg(m)
	attrs, err := nl.ParseRouteAttr(m[unix.SizeofIfInfomsg:])
	if err != nil {
		return Link{}, fmt.Errorf("parse link: %w", err)
	}
	l := Link{Index: int(msg.Index), Up: msg.Flags&unix.IFF_UP != 0, Carrier: msg.Flags&unix.IFF_LOWER_UP != 0}
	for _, a := range attrs {
		switch a.Attr.Type {
		case unix.IFLA_IFNAME:
			l.Name = text(a.Value)
		case unix.IFLA_IFALIAS:
			l.Alias = text(a.Value)
		case unix.IFLA_ADDRESS:
			if len(a.Value) == 6 {
				l.MAC = [6]byte(a.Value)
			}
		case unix.IFLA_MTU:
			l.MTU = int(word(a.Value))
		case unix.IFLA_MASTER:
			l.Master = int(word(a.Value))
		case unix.IFLA_GROUP:
			l.Group = word(a.Value)
		case unix.IFLA_LINK:
			l.PeerIndex = int(word(a.Value))
		case unix.IFLA_LINKINFO:
			infos, err := nl.ParseRouteAttr(a.Value)
			if err != nil {
				return Link{}, fmt.Errorf("parse link: %w", err)
			}
			for _, i := range infos {
				if i.Attr.Type == nl.IFLA_INFO_KIND {
					l.Kind = text(i.Value)
				}
			}
		}
	}
	return l, nil
}

func text(b []byte) string { return strings.TrimRight(string(b), "\x00") }

func word(b []byte) uint32 {
	if len(b) < 4 {
		return 0
	}
	return nl.NativeEndian().Uint32(b)
}
