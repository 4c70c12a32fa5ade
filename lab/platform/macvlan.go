package platform

import (
	"context"
	"fmt"
	"net/netip"

	"github.com/vishvananda/netlink"

	"weir.dev/weir/netns"
)

// macvlans are interfaces of members that share a parent, in bridge mode: frames from one to another never reach it.
type macvlans struct {
	links
	parent int // index in the namespace home
}

// Parent of macvlans, and the other end of it: a network card's part is played by a veth pair.
const (
	parentLink = "parent"
	parentPeer = "beyond"
)

func macvlanSegment() segmentMaker {
	return segmentMaker{
		name: byMacvlan, about: "macvlan interfaces in bridge mode on one parent (one end of a veth pair)", check: free, destroy: nothingLeft,
		inherent: map[string]string{
			settingThreaded: "a macvlan interface has no NAPI of its own", SettingQueues: "a macvlan interface has as many queues as its parent",
		},
		open: func(_ context.Context, l links) (segment, error) {
			m := &macvlans{links: l}
			if err := join(place{space: l.home, link: parentLink}, place{space: l.home, link: parentPeer}); err != nil {
				return nil, err
			}
			return m, netns.Do(l.home, func() error {
				parent, err := netlink.LinkByName(parentLink)
				if err == nil {
					m.parent = parent.Attrs().Index
				}
				return err
			})
		},
	}
}

func (m *macvlans) station(_ context.Context, name, space string, address netip.Prefix) error {
	to, err := netns.Open(space)
	if err != nil {
		return err
	}
	defer to.Close()
	mac := m.inst.MAC(stationObject(name))
	err = netns.Do(m.home, func() error {
		a := netlink.NewLinkAttrs()
		a.Name, a.ParentIndex, a.HardwareAddr, a.Namespace = Station, m.parent, mac[:], netlink.NsFd(to.Fd())
		return netlink.LinkAdd(&netlink.Macvlan{LinkAttrs: a, Mode: netlink.MACVLAN_MODE_BRIDGE})
	})
	if err == nil {
		err = netns.Do(space, func() error { return raise(Station, address) })
	}
	if err != nil {
		return fmt.Errorf("macvlan in %s: %w", space, err)
	}
	return nil
}

func (m *macvlans) meet(context.Context) error  { return nil }
func (m *macvlans) close(context.Context) error { return nil }
