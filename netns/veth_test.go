package netns

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"weir.dev/weir/netns/ethtool"
)

func options() VethOptions {
	return VethOptions{
		HostName: "wr0123456789", Alias: "weir:t:function/fw/in", HostMAC: [6]byte{6, 0x57, 1, 2, 3, 4},
		PeerName: "in", PeerIndex: 1024, PeerMAC: [6]byte{6, 0x57, 1, 2, 3, 5}, MTU: 1400, Quiet: true,
	}
}

func TestVethPutsBothEndsWhereTheyBelong(t *testing.T) {
	host, peer := space(t, Options{}), space(t, Options{Quiet: true})
	o := options()
	p, err := host.Veth(peer, o)
	if err != nil {
		t.Fatal(err)
	}
	want := Pair{Made: true,
		Host: Link{Index: p.Host.Index, Name: o.HostName, Alias: o.Alias, Kind: "veth", MAC: o.HostMAC, MTU: 1400, Up: true, Carrier: true, PeerIndex: 1024},
		Peer: Link{Index: 1024, Name: "in", Alias: o.Alias, Kind: "veth", MAC: o.PeerMAC, MTU: 1400, Up: true, Carrier: true, PeerIndex: p.Host.Index}}
	if diff := cmp.Diff(want, p); diff != "" {
		t.Error(diff)
	}
	o2 := o
	o2.HostName, o2.PeerName, o2.PeerIndex, o2.HostMAC, o2.PeerMAC = "wr1", "out", 1025, [6]byte{}, [6]byte{}
	if _, err := host.Veth(peer, o2); err != nil {
		t.Fatal(err)
	}
	links, err := host.Links("weir:t:")
	if err != nil || len(links) != 2 {
		t.Errorf("links by alias: %v, %v", links, err)
	}
	told := ""
	gone, err := host.DeleteByAlias("weir:t:", func(done, all int) { told += fmt.Sprint(done, "/", all, " ") })
	if err != nil || len(gone) != 2 || told != "0/2 1/2 " {
		t.Errorf("deleted %v, %v, told %q", gone, err, told)
	}
	if links, _ = peer.Links("weir:"); len(links) != 0 {
		t.Errorf("peers left: %v", links)
	}
	if _, err := host.DeleteByAlias("", nil); err == nil {
		t.Error("an empty alias prefix was taken")
	}
}

// What a kill left between making a link and marking it goes with the instance's links, and nothing else does.
func TestLinksThatWereNotMarkedYet(t *testing.T) {
	host, peer := space(t, Options{}), space(t, Options{})
	o := options()
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	half := func() {
		t.Helper()
		must(o.check())
		must(host.newVeth(peer, o))
		must(host.Netlink(func(h *netlink.Handle) error {
			_, err := ensureVXLAN(h, tunnel())
			return errors.Join(err, netlink.LinkAdd(&netlink.Bridge{LinkAttrs: netlink.LinkAttrs{Name: "weir-t", Group: Unmarked("weir:t:bridge")}}))
		}))
	}
	group := Unmarked(o.Alias)
	other := o
	other.Alias, other.HostName, other.PeerName, other.PeerIndex = "weir:u:function/fw/in", "wr-other", "other", 0
	must(other.check())
	must(host.newVeth(peer, other))
	must(host.Do(func() error {
		for _, l := range []netlink.Link{
			&netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: "plain"}, PeerName: "plain-peer"},
			&netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: "up", Group: group}, PeerName: "up-peer"},
			&netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: "alias", Group: group}, PeerName: "alias-peer"},
			&netlink.Tuntap{LinkAttrs: netlink.LinkAttrs{Name: "tap"}, Mode: netlink.TUNTAP_MODE_TAP},
		} {
			if err := netlink.LinkAdd(l); err != nil {
				return err
			}
		}
		return errors.Join(netlink.LinkSetGroup(link(t, "tap"), int(group)), netlink.LinkSetAlias(link(t, "alias"), "somebody's"), netlink.LinkSetUp(link(t, "up")))
	}))
	foreign, err := host.Links("")
	must(err)
	half()
	if gone, err := host.DeleteByAlias("weir:t:function/", nil); err != nil || len(gone) != 0 {
		t.Errorf("with a part of the instance's links went %v, %v", gone, err)
	}
	gone, err := host.DeleteByAlias("weir:t:", nil)
	if slices.Sort(gone); err != nil || !slices.Equal(gone, []string{"tun0", "weir-t", o.HostName}) {
		t.Errorf("gone %v, %v", gone, err)
	}
	left, err := host.Links("")
	must(err)
	if diff := cmp.Diff(foreign, left); diff != "" {
		t.Errorf("links of others: %s", diff)
	}
	if links, err := peer.Links(""); err != nil || len(links) != 2 { // lo and the other instance's
		t.Errorf("in the peer's namespace: %v, %v", links, err)
	}

	half() // the next start finishes them: then they have the mark, and everybody's group
	pair, err := host.Veth(peer, o)
	must(err)
	tun, err := host.VXLAN(tunnel())
	must(err)
	for _, l := range []Link{pair.Host, pair.Peer, tun} {
		if l.Group != 0 || !strings.HasPrefix(l.Alias, "weir:t:") {
			t.Errorf("finished: %+v", l)
		}
	}
}

func TestVethAgainChangesNothing(t *testing.T) {
	host, peer := space(t, Options{}), space(t, Options{})
	o := options()
	o.Quiet = false
	o.Addresses = []netip.Prefix{netip.MustParsePrefix("10.9.0.1/24"), netip.MustParsePrefix("fd00::1/64")}
	first, err := host.Veth(peer, o)
	if err != nil {
		t.Fatal(err)
	}
	second, err := host.Veth(peer, o)
	if err != nil {
		t.Fatal(err)
	}
	first.Made = false
	if diff := cmp.Diff(first, second); diff != "" {
		t.Error(diff)
	}
}

func TestVethPutsOurOwnRight(t *testing.T) {
	host, peer := space(t, Options{}), space(t, Options{})
	o := options()
	o.Addresses = []netip.Prefix{netip.MustParsePrefix("10.9.0.1/24"), netip.MustParsePrefix("10.9.0.7/24")}
	if _, err := host.Veth(peer, o); err != nil {
		t.Fatal(err)
	}
	// An address that the user set is the user's.
	link, _ := peer.Link("in")
	user := netip.MustParsePrefix("192.0.2.1/24")
	if err := peer.request(unix.RTM_NEWADDR, unix.NLM_F_CREATE, addressParts(link.Index, user, false)...); err != nil {
		t.Fatal(err)
	}
	o.MTU, o.PeerMAC = 9000, [6]byte{6, 0x57, 9, 9, 9, 9}
	o.Addresses = []netip.Prefix{netip.MustParsePrefix("10.9.0.2/24"), netip.MustParsePrefix("10.9.0.7/24")}
	p, err := host.Veth(peer, o)
	if err != nil {
		t.Fatal(err)
	}
	if p.Made || p.Host.MTU != 9000 || p.Peer.MTU != 9000 || p.Peer.MAC != o.PeerMAC {
		t.Errorf("got %+v", p)
	}
	got, err := peer.addresses(link.Index)
	if err != nil {
		t.Fatal(err)
	}
	want := map[netip.Prefix]bool{o.Addresses[0]: true, o.Addresses[1]: true, user: false}
	for a := range got {
		if a.Addr().IsLinkLocalUnicast() {
			delete(got, a)
		}
	}
	if diff := cmp.Diff(want, got, cmp.Comparer(func(a, b netip.Prefix) bool { return a == b })); diff != "" {
		t.Error(diff)
	}

	t.Run("peer in another namespace now", func(t *testing.T) {
		other := space(t, Options{})
		p, err := host.Veth(other, o)
		if err != nil || !p.Made {
			t.Fatalf("%+v, %v", p, err)
		}
		if _, err := peer.Link("in"); !errors.Is(err, ErrNoLink) {
			t.Errorf("the old peer is still there: %v", err)
		}
	})
}

// A namespace that ends takes its links along some time later: who makes a pair anew at once finds the old end there, or going, or gone.
func TestVethWhileTheOldOneGoesWithItsNamespace(t *testing.T) {
	host := space(t, Options{})
	path := filepath.Join(t.TempDir(), "n")
	for range 100 {
		if err := Create(path, Options{Quiet: true}); err != nil {
			t.Fatal(err)
		}
		peer, err := At(path)
		if err != nil {
			t.Fatal(err)
		}
		_, err = host.Veth(peer, options())
		peer.Close()
		if err = errors.Join(err, Delete(path)); err != nil {
			t.Fatal(err)
		}
	}
}

func TestVethRefusesForeignLinks(t *testing.T) {
	foreign := func(o VethOptions) VethOptions { o.Alias = "someone else's"; return o }
	tests := []struct {
		name  string
		taken func(o VethOptions) VethOptions
		says  string
	}{
		{"host name", func(o VethOptions) VethOptions { o.PeerName, o.PeerIndex = "x", 7; return o }, "interface wr0123456789 in "},
		{"peer name", func(o VethOptions) VethOptions { o.HostName, o.PeerIndex = "x", 7; return o }, "interface in in "},
		{"peer index", func(o VethOptions) VethOptions { o.HostName, o.PeerName = "x", "y"; return o }, "interface index 1024 in "},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			host, peer := space(t, Options{}), space(t, Options{})
			if _, err := host.Veth(peer, tt.taken(foreign(options()))); err != nil {
				t.Fatal(err)
			}
			_, err := host.Veth(peer, options())
			if !errors.Is(err, ErrForeign) || !strings.Contains(err.Error(), tt.says) {
				t.Errorf("got %v", err)
			}
			if links, _ := host.Links("someone"); len(links) != 1 {
				t.Errorf("the foreign link was touched: %v", links)
			}
		})
	}
}

func TestVethRefusesBadOptions(t *testing.T) {
	for name, change := range map[string]func(*VethOptions){
		"long name": func(o *VethOptions) { o.HostName = "0123456789abcdef" },
		"no name":   func(o *VethOptions) { o.PeerName = "" },
		"no mark":   func(o *VethOptions) { o.Alias = "" },
	} {
		t.Run(name, func(t *testing.T) {
			o := options()
			change(&o)
			if _, err := Veth("", "", o); err == nil {
				t.Error("accepted")
			}
		})
	}
}

// A pair that is there already is reserved, too.
func TestReservedPairsSpeakForThemselves(t *testing.T) {
	host, peer := space(t, Options{}), space(t, Options{})
	o := options()
	o.Quiet = false
	setting := func(name string) (text []byte) {
		t.Helper()
		err := peer.Do(func() (err error) {
			text, err = os.ReadFile("/proc/sys/net/ipv4/conf/in/" + name)
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
		return text
	}
	for range 2 {
		if _, err := host.Veth(peer, o); err != nil {
			t.Fatal(err)
		}
		o.Reserved = true
	}
	for name, want := range map[string]string{"arp_ignore": "1\n", "arp_announce": "2\n"} {
		if got := string(setting(name)); got != want {
			t.Errorf("%s is %q: want %q", name, got, want)
		}
	}
}

// A pair that may speak is the clock: when it has spoken, the quiet one made before it would have, too.
func TestQuietPairsSayNothing(t *testing.T) {
	host, quiet, loud := space(t, Options{}), space(t, Options{Quiet: true}), space(t, Options{})
	q := options()
	if _, err := host.Veth(quiet, q); err != nil {
		t.Fatal(err)
	}
	o := options()
	o.HostName, o.Quiet, o.HostMAC, o.PeerMAC = "loud", false, [6]byte{}, [6]byte{}
	o.Addresses = []netip.Prefix{netip.MustParsePrefix("fd00::1/64")}
	if _, err := host.Veth(loud, o); err != nil {
		t.Fatal(err)
	}
	deadline := time.Now().Add(20 * time.Second)
	const spoken = 3 // beyond the first words: router solicitations take a second
	for sent(t, loud, "in") < spoken {
		if time.Now().After(deadline) {
			t.Fatal("the pair with IPv6 never spoke: this test cannot tell silence")
		}
		<-time.After(20 * time.Millisecond)
	}
	for _, end := range []struct {
		s    *Space
		name string
	}{{quiet, "in"}, {host, q.HostName}, {host, o.HostName}} {
		if n := sent(t, end.s, end.name); n != 0 {
			t.Errorf("%s in %s sent %d frames of its own", end.name, end.s, n)
		}
	}
}

func sent(t *testing.T, s *Space, link string) int {
	t.Helper()
	n := 0
	err := s.Do(func() error {
		b, err := os.ReadFile("/proc/thread-self/net/dev")
		if err != nil {
			return err
		}
		for line := range strings.Lines(string(b)) {
			name, rest, ok := strings.Cut(strings.TrimSpace(line), ":")
			if f := strings.Fields(rest); ok && name == link && len(f) > 9 {
				n, err = strconv.Atoi(f[9])
				return err
			}
		}
		return fmt.Errorf("no %s", link)
	})
	if err != nil {
		t.Fatal(err)
	}
	return n
}

func TestOffloadsGoOffAndOn(t *testing.T) {
	host, peer := space(t, Options{}), space(t, Options{})
	if _, err := host.Veth(peer, options()); err != nil {
		t.Fatal(err)
	}
	for _, on := range []bool{false, false, true} {
		if err := peer.Offloads("in", on); err != nil {
			t.Fatal(err)
		}
	}
	if err := peer.Offloads("none", false); err == nil || !strings.Contains(err.Error(), "none") {
		t.Errorf("a missing link: %v", err)
	}
}

// A link that finishes frames leaves nothing of them to others. Package datapath/suite sends some (testWhole).
func TestALinkFinishesFrames(t *testing.T) {
	host, peer := space(t, Options{}), space(t, Options{})
	if _, err := host.Veth(peer, options()); err != nil {
		t.Fatal(err)
	}
	names := []string{"tx-checksum-ip-generic", "tx-tcp-segmentation", "tx-udp-segmentation", "tx-udp_tnl-segmentation", "tx-generic-segmentation", "tx-vlan-hw-insert", "tx-vlan-stag-hw-insert"}
	active := func() (on []string) {
		t.Helper()
		if err := host.Do(func() error {
			have, err := ethtool.Features(options().HostName)
			for _, name := range names {
				if have[name].Active {
					on = append(on, name)
				}
			}
			return err
		}); err != nil {
			t.Fatal(err)
		}
		return on
	}
	if on := active(); len(on) != len(names) {
		t.Fatalf("a new link has only %v", on)
	}
	for range 2 {
		if err := host.Finish(options().HostName); err != nil {
			t.Fatal(err)
		}
	}
	if on := active(); len(on) > 0 {
		t.Errorf("still on: %v", on)
	}
	if err := host.Finish("none"); err == nil || !strings.Contains(err.Error(), "none") {
		t.Errorf("a missing link: %v", err)
	}
}

// One function's share of links: two pairs into one namespace.
func BenchmarkTwoPairs(b *testing.B) {
	host := space(b, Options{})
	var peers []*Space
	for range b.N {
		peers = append(peers, space(b, Options{Quiet: true}))
	}
	b.ResetTimer()
	for i, peer := range peers {
		o := options()
		o.HostName = fmt.Sprintf("a%d", i)
		if _, err := host.Veth(peer, o); err != nil {
			b.Fatal(err)
		}
		o.HostName, o.PeerName, o.PeerIndex = fmt.Sprintf("b%d", i), "out", 1025
		if _, err := host.Veth(peer, o); err != nil {
			b.Fatal(err)
		}
	}
}
