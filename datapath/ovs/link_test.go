package ovs

import (
	"testing"

	"github.com/vishvananda/netlink"

	"weir.dev/weir/datapath"
	"weir.dev/weir/datapath/suite"
	"weir.dev/weir/netns"
	"weir.dev/weir/netns/ethtool"
)

// offloaded: the interface leaves checksums to others.
func offloaded(t *testing.T, ns *netns.Space, link string) (on bool) {
	t.Helper()
	err := ns.Do(func() error {
		features, err := ethtool.Features(link)
		on = features["tx-checksum-ip-generic"].Active
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return on
}

// TestLinksAreGivenBack: offloads and the MTU are changed while a link is a port of a user-space switch, and put back by Remove.
func TestLinksAreGivenBack(t *testing.T) {
	r := suite.NewRig(t, factory)
	alice, fn := r.Station("alice"), r.Wire("f")
	up := r.Unplugged("up")
	e := up.E
	e.Fabric, e.Netns = true, "" // somebody else's other end
	mtu := func() (n int) {
		err := r.Host.Do(func() error {
			l, err := netlink.LinkByName(e.Link)
			if err == nil {
				n = l.Attrs().MTU
			}
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
		return n
	}
	add := func() {
		t.Helper()
		if _, err := r.Switch.AddEndpoint(suite.Context(t), e); err != nil {
			t.Fatal(err)
		}
	}
	if offloaded(t, alice.NS, "eth0") || offloaded(t, fn.NS, "in") || offloaded(t, fn.NS, "out") {
		t.Error("offloads are on behind a user-space switch")
	}
	before := mtu()
	add()
	add()
	r.Close()
	r.Reopen()
	add()
	if got := mtu(); got != before+tagLen {
		t.Errorf("MTU of a link into the fabric is %d, was %d", got, before)
	}
	if !offloaded(t, up.NS, "eth0") {
		t.Error("offloads of a link that is not ours were touched")
	}
	for _, object := range []string{"endpoint/alice", "function/f", "endpoint/up"} {
		if err := r.Switch.Remove(suite.Context(t), object); err != nil {
			t.Fatal(err)
		}
	}
	if got := mtu(); got != before {
		t.Errorf("MTU is %d, was %d", got, before)
	}
	if !offloaded(t, alice.NS, "eth0") || !offloaded(t, fn.NS, "in") {
		t.Error("offloads stay off")
	}
}

// TestNICs: what a network card does with received frames is switched off, and on again. A tap stands for the card.
func TestNICs(t *testing.T) {
	r := suite.NewRig(t, factory)
	nic := &netlink.Tuntap{LinkAttrs: netlink.LinkAttrs{Name: "nic0"}, Mode: netlink.TUNTAP_MODE_TAP}
	if err := r.Host.Do(func() error { return netlink.LinkAdd(nic) }); err != nil {
		t.Fatal(err)
	}
	joins := func() bool {
		on, err := r.Host.Coalescing("nic0")
		if err != nil {
			t.Fatal(err)
		}
		return on
	}
	if !joins() {
		t.Fatal("a fresh link does not join frames: this test sees nothing")
	}
	e := datapath.Endpoint{Name: "nic", Link: "nic0"}
	for range 2 {
		if _, err := r.Switch.AddEndpoint(suite.Context(t), e); err != nil {
			t.Fatal(err)
		}
		if joins() {
			t.Error("received frames are joined before a user-space switch")
		}
		r.Close()
		r.Reopen()
	}
	if err := r.Switch.Remove(suite.Context(t), "endpoint/nic"); err != nil {
		t.Fatal(err)
	}
	if !joins() {
		t.Error("received frames are no longer joined")
	}
}

// TestNumbers: the lowest free number, in the order in which ports are added, and the same after a restart.
func TestNumbers(t *testing.T) {
	r := suite.NewRig(t, factory)
	a, f, b := r.Station("a"), r.Wire("f"), r.Station("b")
	if a.Port != 1 || f.Ports != (datapath.Ports{In: 2, Out: 3}) || b.Port != 4 {
		t.Errorf("a %d, f %+v, b %d", a.Port, f.Ports, b.Port)
	}
	if err := r.Switch.Remove(suite.Context(t), "function/f"); err != nil {
		t.Fatal(err)
	}
	if c := r.Station("c"); c.Port != 2 {
		t.Errorf("c %d, want the lowest free number", c.Port)
	}
	r.Close()
	r.Reopen()
	for _, st := range []*suite.Station{a, b} {
		if p, err := r.Switch.AddEndpoint(suite.Context(t), st.E); err != nil || p != st.Port {
			t.Errorf("%s has %d, had %d: %v", st.Name, p, st.Port, err)
		}
	}
	// A link that was made anew under its name becomes the same port again.
	if err := r.Host.Delete(a.E.Link); err != nil {
		t.Fatal(err)
	}
	alias := r.Instance.Alias("endpoint/a")
	if _, err := r.Host.Veth(a.NS, netns.VethOptions{HostName: a.E.Link, Alias: alias, PeerName: "eth0", PeerMAC: a.MAC}); err != nil {
		t.Fatal(err)
	}
	if p, err := r.Switch.AddEndpoint(suite.Context(t), a.E); err != nil || p != 1 {
		t.Errorf("a link made anew: port %d, %v", p, err)
	}
}
