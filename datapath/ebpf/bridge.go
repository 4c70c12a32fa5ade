package ebpf

import (
	"errors"
	"fmt"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"weir.dev/weir/datapath/internal/hostlink"
	"weir.dev/weir/netns"
)

// openBridge makes the bridge of ordinary traffic, or finds it. It says nothing for itself: no IPv6, no ARP, no
// spanning tree, no multicast queries.
func (s *Switch) openBridge() error {
	name, alias := s.opts.Instance.Bridge(), s.opts.Instance.Alias("bridge")
	l, err := s.nl.LinkByName(name)
	if hostlink.Missing(err) {
		if l, err = s.makeBridge(name, alias); err != nil {
			return err
		}
	}
	if err != nil {
		return fmt.Errorf("bridge %s: %w", name, err)
	}
	unmarked := l.Attrs().Alias == "" && l.Attrs().Group == netns.Unmarked(alias) // just made, now or by a process that a crash ended
	if l.Type() != "bridge" || l.Attrs().Alias != alias && !unmarked {
		return fmt.Errorf("interface %s (%s, alias %q) is in the way: it is not this Weir's bridge; rename it, or use another instance name", name, l.Type(), l.Attrs().Alias)
	}
	if unmarked {
		if err := s.home.Mark(name, alias); err != nil {
			return fmt.Errorf("bridge %s: %w", name, err)
		}
	}
	s.bridge = l.Attrs().Index
	if err := s.home.Do(func() error { return netns.DisableIPv6(name) }); err != nil {
		return fmt.Errorf("silence bridge %s: %w", name, err)
	}
	if err := s.nl.LinkSetARPOff(l); err != nil {
		return fmt.Errorf("silence bridge %s: %w", name, err)
	}
	if ok, err := s.home.BoundBridge(name, uint32(s.opts.Addresses)); err != nil {
		return err
	} else if !ok {
		s.log.Info("the bridge learns addresses without a bound: want kernel 6.8")
	}
	if err := s.nl.LinkSetUp(l); err != nil {
		return fmt.Errorf("set bridge %s up: %w", name, err)
	}
	return nil
}

func (s *Switch) makeBridge(name, alias string) (netlink.Link, error) {
	off := false
	mac := s.opts.Instance.MAC("bridge")
	b := &netlink.Bridge{
		LinkAttrs:         netlink.LinkAttrs{Name: name, HardwareAddr: mac[:], TxQLen: -1, NetNsID: -1, Group: netns.Unmarked(alias)},
		MulticastSnooping: &off,
	}
	if err := s.nl.LinkAdd(b); err != nil {
		if errors.Is(err, unix.EOPNOTSUPP) {
			return nil, fmt.Errorf("make bridge %s: %w", name, unsupported("Linux bridge", "ordinary switching", "CONFIG_BRIDGE (modprobe bridge)"))
		}
		return nil, fmt.Errorf("make bridge %s: %w", name, err)
	}
	return s.nl.LinkByName(name)
}
