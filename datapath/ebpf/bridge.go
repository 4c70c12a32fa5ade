package ebpf

import (
	"errors"
	"fmt"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"weir.dev/weir/datapath/internal/home"
	"weir.dev/weir/datapath/internal/hostlink"
	"weir.dev/weir/flow"
	"weir.dev/weir/netns"
)

// bridge carries ordinary traffic.
type bridge struct {
	home  *home.Home
	opts  *Options
	index int // of its interface
}

// open makes the bridge of ordinary traffic, or finds it. It says nothing for itself: no IPv6, no ARP, no
// spanning tree, no multicast queries.
func (b *bridge) open() error {
	name, alias := b.home.Instance.Bridge(), b.home.Instance.Alias("bridge")
	l, err := b.home.NL.LinkByName(name)
	if hostlink.Missing(err) {
		if l, err = b.make(name, alias); err != nil {
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
		if err := b.home.Space.Mark(name, alias); err != nil {
			return fmt.Errorf("bridge %s: %w", name, err)
		}
	}
	b.index = l.Attrs().Index
	if err := b.home.Space.Do(func() error { return netns.DisableIPv6(name) }); err != nil {
		return fmt.Errorf("silence bridge %s: %w", name, err)
	}
	if err := b.home.NL.LinkSetARPOff(l); err != nil {
		return fmt.Errorf("silence bridge %s: %w", name, err)
	}
	if ok, err := b.home.Space.BoundBridge(name, uint32(b.opts.Addresses)); err != nil {
		return err
	} else if !ok {
		b.home.Log.Info("the bridge learns addresses without a bound: want kernel 6.8")
	}
	if err := b.home.NL.LinkSetUp(l); err != nil {
		return fmt.Errorf("set bridge %s up: %w", name, err)
	}
	return nil
}

func (b *bridge) make(name, alias string) (netlink.Link, error) {
	off := false
	mac := b.home.Instance.MAC("bridge")
	l := &netlink.Bridge{
		LinkAttrs:         netlink.LinkAttrs{Name: name, HardwareAddr: mac[:], TxQLen: -1, NetNsID: -1, Group: netns.Unmarked(alias)},
		MulticastSnooping: &off,
	}
	if err := b.home.NL.LinkAdd(l); err != nil {
		if errors.Is(err, unix.EOPNOTSUPP) {
			return nil, fmt.Errorf("make bridge %s: %w", name, unsupported("Linux bridge", "ordinary switching", "CONFIG_BRIDGE (modprobe bridge)"))
		}
		return nil, fmt.Errorf("make bridge %s: %w", name, err)
	}
	return b.home.NL.LinkByName(name)
}

// plug makes a link a port of the bridge, and the bridge anew if someone has deleted it.
func (b *bridge) plug(l netlink.Link) error {
	err := b.home.NL.LinkSetMasterByIndex(l, b.index)
	if !errors.Is(err, unix.EINVAL) {
		return err
	}
	if _, gone := b.home.NL.LinkByIndex(b.index); !hostlink.Missing(gone) {
		return err
	}
	if err := b.open(); err != nil {
		return err
	}
	return b.home.NL.LinkSetMasterByIndex(l, b.index)
}

// isolate sets or clears the flag of a bridge port (Linux 4.18).
func (b *bridge) isolate(l netlink.Link, on, changed bool) error {
	if !on && !changed { // a port begins without
		return nil
	}
	if err := b.home.NL.LinkSetIsolated(l, on); err != nil {
		if errors.Is(err, unix.EOPNOTSUPP) || errors.Is(err, unix.EINVAL) {
			err = unsupported("isolated bridge ports", "tunnels to several hosts", "Linux 4.18")
		}
		return fmt.Errorf("isolate %s from other isolated ports: %w", l.Attrs().Name, err)
	}
	return nil
}

// address is where the bridge has an address.
type address struct {
	index  int
	static bool
}

// addresses are those that the bridge has, by MAC.
func (b *bridge) addresses() (map[flow.MAC]address, error) {
	all, err := b.home.NL.NeighList(0, unix.AF_BRIDGE)
	if err != nil {
		return nil, fmt.Errorf("read the bridge's addresses: %w", err)
	}
	have := map[flow.MAC]address{}
	for _, e := range all {
		if e.MasterIndex == b.index && e.Vlan == 0 && len(e.HardwareAddr) == 6 {
			have[flow.MAC(e.HardwareAddr)] = address{e.LinkIndex, e.State&netlink.NUD_NOARP != 0}
		}
	}
	return have, nil
}
