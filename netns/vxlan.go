package netns

import (
	"errors"
	"fmt"
	"net/netip"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// VXLANOptions describe one end of a tunnel to one other host (RFC 7348).
type VXLANOptions struct {
	Name          string
	Alias         string // ownership mark; a link without it is foreign
	MAC           [6]byte
	VNI           uint32     // 1 to 2^24-1
	Local, Remote netip.Addr // of one family
	Port          uint16     // UDP
	MTU           int        // of the frames inside, Ethernet header not counted
}

// Overhead is what a tunnel adds to a frame's payload on the underlay: outer IP and UDP, VXLAN, and the inner Ethernet header with one tag.
func (o VXLANOptions) Overhead() int {
	const udp, vxlan, ethernet, tag = 8, 8, 14, 4
	if o.Local.Is4() {
		return 20 + udp + vxlan + ethernet + tag
	}
	return 40 + udp + vxlan + ethernet + tag
}

func (o VXLANOptions) check() error {
	switch {
	case o.Name == "" || len(o.Name) > maxLinkNameLength:
		return fmt.Errorf("interface name %q: want 1 to %d bytes", o.Name, maxLinkNameLength)
	case o.Alias == "":
		return errors.New("an alias is needed as ownership mark")
	case o.VNI == 0 || o.VNI >= 1<<24:
		return fmt.Errorf("VNI %d: want 1 to %d", o.VNI, 1<<24-1)
	case !o.Local.IsValid() || !o.Remote.IsValid() || o.Local.Is4() != o.Remote.Is4():
		return fmt.Errorf("from %s to %s: want two addresses of one family", o.Local, o.Remote)
	case o.Local == o.Remote:
		return fmt.Errorf("from %s to itself", o.Local)
	case o.Port == 0:
		return errors.New("a UDP port is needed")
	}
	return nil
}

// VXLAN makes a tunnel. It learns no addresses: everything goes to the one remote. Safe to call again: an equal one is left as it is, one
// of ours that differs is made anew. It is left down: who uses it sets it up.
func (s *Space) VXLAN(o VXLANOptions) (Link, error) {
	err := o.check()
	made := false
	if err == nil {
		err = s.Netlink(func(h *netlink.Handle) (err error) {
			made, err = ensureVXLAN(h, o)
			return err
		})
	}
	if err == nil && made {
		err = s.Mark(o.Name, o.Alias)
	}
	if err != nil {
		return Link{}, fmt.Errorf("vxlan tunnel %s from %s to %s in %s: %w", o.Name, o.Local, o.Remote, s, err)
	}
	return s.Link(o.Name)
}

// ensureVXLAN makes the tunnel, without its mark, if it is not there.
func ensureVXLAN(h *netlink.Handle, o VXLANOptions) (made bool, err error) {
	l, err := h.LinkByName(o.Name)
	var missing netlink.LinkNotFoundError
	if err != nil && !errors.As(err, &missing) {
		return false, err
	}
	if err == nil {
		v, ok := l.(*netlink.Vxlan)
		fresh := ok && v.Alias == "" && v.Flags&unix.IFF_UP == 0 && v.LinkAttrs.Group == Unmarked(o.Alias) // a crash came between making and marking
		if l.Attrs().Alias != o.Alias && !fresh {
			return false, fmt.Errorf("interface %s exists (%s, alias %q): %w; rename or remove it", o.Name, l.Type(), l.Attrs().Alias, ErrForeign)
		}
		if ok && !fresh && o.equal(v) {
			if v.MTU != o.MTU {
				return false, h.LinkSetMTU(l, o.MTU)
			}
			return false, nil
		}
		if err := h.LinkDel(l); err != nil {
			return false, fmt.Errorf("remove the former one: %w", err)
		}
	}
	v := &netlink.Vxlan{
		LinkAttrs: netlink.LinkAttrs{Name: o.Name, HardwareAddr: o.MAC[:], MTU: o.MTU, TxQLen: -1, NetNsID: -1, Group: Unmarked(o.Alias)},
		VxlanId:   int(o.VNI), SrcAddr: o.Local.AsSlice(), Group: o.Remote.AsSlice(), Port: int(o.Port), UDPCSum: true,
	}
	if err := h.LinkAdd(v); err != nil {
		switch {
		case errors.Is(err, unix.EOPNOTSUPP):
			return false, fmt.Errorf("%w: this kernel has no VXLAN (CONFIG_VXLAN, modprobe vxlan)", err)
		case errors.Is(err, unix.EEXIST):
			return false, fmt.Errorf("%w: another tunnel uses VNI %d to %s at UDP port %d", err, o.VNI, o.Remote, o.Port)
		}
		return false, err
	}
	return true, DisableIPv6(o.Name)
}

func (o VXLANOptions) equal(v *netlink.Vxlan) bool {
	group, _ := netip.AddrFromSlice(v.Group)
	src, _ := netip.AddrFromSlice(v.SrcAddr)
	return uint32(v.VxlanId) == o.VNI && uint16(v.Port) == o.Port && group.Unmap() == o.Remote && src.Unmap() == o.Local && !v.Learning
}

// ErrNoAddress says that no interface has an address.
var ErrNoAddress = errors.New("no interface has this address")

// LinkWith finds the interface that has an address.
func (s *Space) LinkWith(a netip.Addr) (Link, error) {
	var name string
	err := s.Netlink(func(h *netlink.Handle) error {
		var all []netlink.Addr
		var err error
		for range maxDumps {
			if all, err = h.AddrList(nil, netlink.FAMILY_ALL); !errors.Is(err, netlink.ErrDumpInterrupted) && !errors.Is(err, unix.EINTR) {
				break
			}
		}
		if err != nil {
			return err
		}
		for _, x := range all {
			if ip, ok := netip.AddrFromSlice(x.IP); ok && ip.Unmap() == a {
				l, err := h.LinkByIndex(x.LinkIndex)
				if err != nil {
					return err
				}
				name = l.Attrs().Name
				return nil
			}
		}
		return ErrNoAddress
	})
	if err != nil {
		return Link{}, fmt.Errorf("address %s in %s: %w", a, s, err)
	}
	return s.Link(name)
}

// VXLANThrough is VXLAN whose packets come and go through another namespace: its socket is there, so nothing that reaches s alone can put a
// frame into the tunnel. The interface itself is in s.
func (s *Space) VXLANThrough(inside *Space, o VXLANOptions) (Link, error) {
	keep := false
	err := s.Netlink(func(h *netlink.Handle) error {
		l, err := h.LinkByName(o.Name)
		var missing netlink.LinkNotFoundError
		if errors.As(err, &missing) {
			return nil
		}
		if err != nil {
			return err
		}
		v, ok := l.(*netlink.Vxlan)
		switch {
		case l.Attrs().Alias != o.Alias:
			return fmt.Errorf("interface %s exists (%s, alias %q): %w; rename or remove it", o.Name, l.Type(), l.Attrs().Alias, ErrForeign)
		case !ok || !o.equal(v) || v.NetNsID < 0: // the last: its socket is in s
			return h.LinkDel(l)
		case v.MTU != o.MTU:
			keep = true
			return h.LinkSetMTU(l, o.MTU)
		}
		keep = true
		return nil
	})
	if err != nil {
		return Link{}, fmt.Errorf("vxlan tunnel %s in %s: %w", o.Name, s, err)
	}
	if keep {
		return s.Link(o.Name)
	}
	if _, err := inside.VXLAN(o); err != nil {
		return Link{}, err
	}
	if err := inside.moveTo(s, o.Name); err != nil {
		return Link{}, err
	}
	if err := s.Do(func() error { return DisableIPv6(o.Name) }); err != nil {
		return Link{}, err
	}
	return s.Link(o.Name)
}
