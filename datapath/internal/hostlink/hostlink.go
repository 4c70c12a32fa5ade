// Package hostlink is what every switch driver asks of a host's network interfaces: which one is meant, whether it can become a port
// without breaking what it is used for, and where the other end of a veth is. It changes nothing but by SetDown.
package hostlink

import (
	"errors"
	"fmt"
	"net"
	"strings"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"weir.dev/weir/datapath"
	"weir.dev/weir/flow"
	"weir.dev/weir/netns"
	"weir.dev/weir/portkind"
)

// Handle opens an rtnetlink socket of the library's own in a namespace.
func Handle(space *netns.Space) (*netlink.Handle, error) {
	var h *netlink.Handle
	err := space.Do(func() (err error) {
		h, err = netlink.NewHandle(unix.NETLINK_ROUTE)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("open rtnetlink socket in %s: %w", space, err)
	}
	return h, nil
}

// In calls f with a namespace, by its path, and an rtnetlink socket there.
func In(path string, f func(*netns.Space, *netlink.Handle) error) error {
	space, err := netns.At(path)
	if err != nil {
		return err
	}
	defer space.Close()
	nl, err := Handle(space)
	if err != nil {
		return err
	}
	defer nl.Close()
	return f(space, nl)
}

// ByName looks an interface up.
func ByName(nl *netlink.Handle, space *netns.Space, name string) (netlink.Link, error) {
	if name == "" || len(name) > unix.IFNAMSIZ-1 {
		return nil, fmt.Errorf("interface name %q: want 1 to %d bytes", name, unix.IFNAMSIZ-1)
	}
	l, err := nl.LinkByName(name)
	if Missing(err) {
		return nil, fmt.Errorf("interface %s in %s: %w", name, space, datapath.ErrNotFound)
	}
	if err != nil {
		return nil, fmt.Errorf("interface %s: %w", name, err)
	}
	return l, nil
}

// ByIndex looks a port's link up again, of which people know the name. It is nil if the link is gone.
func ByIndex(nl *netlink.Handle, index int, name string) (netlink.Link, error) {
	l, err := nl.LinkByIndex(index)
	if Missing(err) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("interface %s: %w", name, err)
	}
	return l, nil
}

// Missing: a look-up found no such interface.
func Missing(err error) bool {
	var missing netlink.LinkNotFoundError
	return errors.As(err, &missing)
}

// SetDown sets a link down that was down before it became a port. One that is gone needs nothing.
func SetDown(nl *netlink.Handle, l netlink.Link) error {
	if err := nl.LinkSetDown(l); err != nil && !Gone(err) {
		return fmt.Errorf("set %s down: %w", l.Attrs().Name, err)
	}
	return nil
}

// PeerElsewhere: a veth whose other end is in another namespace, where redirect_peer can put frames.
func PeerElsewhere(l netlink.Link) bool { return l.Type() == "veth" && l.Attrs().NetNsID >= 0 }

// Inside finds the other end of a veth among the links of a namespace.
func Inside(l netlink.Link, inside []netns.Link) (netns.Link, bool) {
	a := l.Attrs()
	for _, in := range inside {
		if in.Index == a.ParentIndex && in.PeerIndex == a.Index {
			return in, true
		}
	}
	return netns.Link{}, false
}

// Abilities are those of a switch whose functions' ports are what Sides finds: functions in network namespaces and in virtual machines, and for the first
// the forwarder of package bpf.
func Abilities() datapath.Abilities {
	return datapath.Abilities{Ports: []portkind.Kind{portkind.Veth, portkind.Tap}, Forwarders: []string{datapath.Wire}}
}

// Side is one of a function's links that are to become ports.
type Side struct {
	At     flow.Side
	Link   netlink.Link
	Inside netns.Link // the other end, in the function's namespace
}

// Sides looks a function's links up in the switch's namespace, home, and the other ends of veths in the function's, space. It refuses what cannot be a
// function's port.
func Sides(nl *netlink.Handle, home, space *netns.Space, f *datapath.Function) ([]Side, error) {
	other := func(l netlink.Link, side flow.Side) (netns.Link, error) { return tap(l, f.MACs[side]) }
	if f.Kind != portkind.Tap {
		inside, err := space.Links("")
		if err != nil {
			return nil, err
		}
		other = func(l netlink.Link, _ flow.Side) (netns.Link, error) { return veth(l, inside, space) }
	}
	var sides []Side
	for at, link := range [...]string{f.In, f.Out, f.Tap} {
		if link == "" {
			continue
		}
		l, err := ByName(nl, home, link)
		if err != nil {
			return nil, err
		}
		in, err := other(l, flow.Side(at))
		if err != nil {
			return nil, err
		}
		sides = append(sides, Side{flow.Side(at), l, in})
	}
	if f.Forwarder == datapath.Wire && sides[0].Inside.Index^1 != sides[1].Inside.Index {
		return nil, fmt.Errorf("the interfaces inside have the indexes %d and %d: a wire wants them to differ in the last bit only, as 1024 and 1025 do",
			sides[0].Inside.Index, sides[1].Inside.Index)
	}
	return sides, nil
}

// veth tells a veth's other end, which must be among the links of the function's namespace.
func veth(l netlink.Link, inside []netns.Link, space *netns.Space) (netns.Link, error) {
	if !PeerElsewhere(l) {
		return netns.Link{}, fmt.Errorf("interface %s is a %s: want a veth whose other end is in %s", l.Attrs().Name, l.Type(), space)
	}
	if err := unbridged(l); err != nil {
		return netns.Link{}, err
	}
	in, ok := Inside(l, inside)
	if !ok {
		return in, fmt.Errorf("the other end of %s is not in %s", l.Attrs().Name, space)
	}
	return in, nil
}

// tap tells what is behind a tap: an interface of the function that is no link of this kernel.
func tap(l netlink.Link, mac flow.MAC) (netns.Link, error) {
	if t, ok := l.(*netlink.Tuntap); !ok || t.Mode != netlink.TUNTAP_MODE_TAP {
		return netns.Link{}, fmt.Errorf("interface %s is a %s: want a tap", l.Attrs().Name, l.Type())
	}
	return netns.Link{MAC: mac}, unbridged(l)
}

func unbridged(l netlink.Link) error {
	if l.Attrs().MasterIndex != 0 {
		return fmt.Errorf("interface %s belongs to a bridge: a function's port belongs to none", l.Attrs().Name)
	}
	return nil
}

// Check refuses links whose becoming a port of the bridge with this interface index would break what they are used for.
func Check(nl *netlink.Handle, bridge int, l netlink.Link) error {
	attrs := l.Attrs()
	// Of what kind it is.
	if attrs.Index == bridge {
		return fmt.Errorf("interface %s is this switch's bridge", attrs.Name)
	}
	if attrs.Flags&net.FlagLoopback != 0 || l.Type() == "bridge" {
		return fmt.Errorf("interface %s is a %s: want a NIC, a veth or a tap", attrs.Name, l.Type())
	}
	if err := carriesOthers(l); err != nil {
		return err
	}
	// Who has it.
	if attrs.MasterIndex != 0 && attrs.MasterIndex != bridge {
		master := fmt.Sprint(attrs.MasterIndex)
		if m, err := nl.LinkByIndex(attrs.MasterIndex); err == nil {
			master = m.Attrs().Name
		}
		return fmt.Errorf("interface %s belongs to %s: take it out there first (ip link set %s nomaster)", attrs.Name, master, attrs.Name)
	}
	// What the host itself uses it for: a bridge takes all that enters there. The kernel gives link-local addresses to every link.
	var addresses []netlink.Addr
	err := Retry(func() (err error) {
		addresses, err = nl.AddrList(l, netlink.FAMILY_ALL)
		return err
	})
	if err != nil {
		return fmt.Errorf("list addresses of %s: %w", attrs.Name, err)
	}
	for _, a := range addresses {
		if !a.IP.IsLinkLocalUnicast() {
			return fmt.Errorf("interface %s has the address %s, which would stop working: remove it first (ip addr del %s dev %s)", attrs.Name, a.IPNet, a.IPNet, attrs.Name)
		}
	}
	var routes []netlink.Route
	err = Retry(func() (err error) {
		routes, err = nl.RouteListFiltered(netlink.FAMILY_ALL, &netlink.Route{LinkIndex: attrs.Index, Table: unix.RT_TABLE_MAIN}, netlink.RT_FILTER_OIF|netlink.RT_FILTER_TABLE)
		return err
	})
	if err != nil {
		return fmt.Errorf("list routes over %s: %w", attrs.Name, err)
	}
	for _, r := range routes {
		if r.Dst != nil && r.Dst.IP.IsLinkLocalUnicast() || r.Dst != nil && r.Dst.IP.IsMulticast() {
			continue
		}
		return fmt.Errorf("a route leads over interface %s (%s): remove it first", attrs.Name, strings.TrimSpace(r.String()))
	}
	return nil
}

// carriesOthers refuses links that take and give only frames of one address, or no Ethernet at all: no station behind them would hear of another.
func carriesOthers(l netlink.Link) error {
	name, kind := l.Attrs().Name, l.Type()
	const hint = "want a NIC, a veth, a tap or a macvlan of mode passthru"
	var mode netlink.MacvlanMode
	switch v := l.(type) {
	case *netlink.Macvlan:
		mode = v.Mode
	case *netlink.Macvtap:
		mode = v.Mode
	case *netlink.IPVlan, *netlink.IPVtap:
		return fmt.Errorf("interface %s is an %s, which takes only frames for its own addresses: %s", name, kind, hint)
	default:
		if encap := l.Attrs().EncapType; encap != "ether" {
			return fmt.Errorf("interface %s (%s) carries no Ethernet frames but %s: %s", name, kind, encap, hint)
		}
		return nil
	}
	if mode != netlink.MACVLAN_MODE_PASSTHRU {
		return fmt.Errorf("interface %s is a %s, which takes only frames for its own MAC address: %s", name, kind, hint)
	}
	return nil
}

// Retry repeats an interrupted dump.
func Retry(f func() error) error {
	var err error
	for range 10 {
		if err = f(); err == nil || !errors.Is(err, netlink.ErrDumpInterrupted) && !errors.Is(err, unix.EINTR) {
			return err
		}
	}
	return err
}

// Gone: what was to be removed, or its interface, is not there any more.
func Gone(err error) bool {
	return errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ENODEV) || errors.Is(err, unix.EINVAL) || errors.Is(err, unix.ENXIO)
}
