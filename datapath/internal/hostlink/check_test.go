package hostlink

import (
	"fmt"
	"path/filepath"
	"strings"
	"testing"

	"github.com/vishvananda/netlink"

	"weir.dev/weir/netns"
)

// What cannot carry the frames of others is no port: it would be taken, and nothing would come through.
func TestPortsCarryTheFramesOfOthers(t *testing.T) {
	path := filepath.Join(t.TempDir(), "space")
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	must(netns.Create(path, netns.Options{Quiet: true}))
	defer func() { must(netns.Delete(path)) }()
	space, err := netns.At(path)
	must(err)
	defer space.Close()
	nl, err := Handle(space)
	must(err)
	defer nl.Close()
	add := func(l netlink.Link) netlink.Link {
		t.Helper()
		if err := space.Do(func() error { return netlink.LinkAdd(l) }); err != nil {
			t.Fatalf("%s: %v", l.Type(), err)
		}
		l, err := nl.LinkByName(l.Attrs().Name)
		must(err)
		return l
	}
	named := func(name string, parent netlink.Link) netlink.LinkAttrs {
		a := netlink.NewLinkAttrs()
		a.Name = name
		if parent != nil {
			a.ParentIndex = parent.Attrs().Index
		}
		return a
	}
	one := add(&netlink.Veth{LinkAttrs: named("one", nil), PeerName: "two"})
	three := add(&netlink.Veth{LinkAttrs: named("three", nil), PeerName: "four"})
	there := one.Attrs().Index
	of := func(l netlink.Link) netlink.Link { // a kind that not every kernel has
		l.Attrs().Index, l.Attrs().Name, l.Attrs().EncapType = there, "odd", "ether"
		return l
	}
	for _, c := range []struct {
		link netlink.Link
		want string // in the error; "" none
	}{
		{one, ""},
		{add(&netlink.Tuntap{LinkAttrs: named("tap", nil), Mode: netlink.TUNTAP_MODE_TAP}), ""},
		{add(&netlink.Macvlan{LinkAttrs: named("pass", three), Mode: netlink.MACVLAN_MODE_PASSTHRU}), ""},
		{add(&netlink.Macvlan{LinkAttrs: named("mvb", one), Mode: netlink.MACVLAN_MODE_BRIDGE}), "interface mvb is a macvlan, which takes only frames for its own MAC address: want a NIC, a veth, a tap or a macvlan of mode passthru"},
		{add(&netlink.Macvlan{LinkAttrs: named("mvp", one), Mode: netlink.MACVLAN_MODE_PRIVATE}), "is a macvlan"},
		{of(&netlink.Macvtap{Macvlan: netlink.Macvlan{Mode: netlink.MACVLAN_MODE_VEPA}}), "is a macvtap"},
		{of(&netlink.IPVlan{}), "interface odd is an ipvlan, which takes only frames for its own addresses"},
		{of(&netlink.IPVtap{}), "is an ipvtap"},
		{add(&netlink.Tuntap{LinkAttrs: named("tun", nil), Mode: netlink.TUNTAP_MODE_TUN}), "carries no Ethernet frames"},
	} {
		name := fmt.Sprint(c.link.Attrs().Name, " ", c.link.Type())
		t.Run(name, func(t *testing.T) {
			err := Check(nl, 0, c.link)
			if (err != nil) != (c.want != "") || err != nil && !strings.Contains(err.Error(), c.want) {
				t.Errorf("got %v, want %q", err, c.want)
			}
		})
	}
}
