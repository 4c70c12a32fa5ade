package netns

import (
	"context"
	"errors"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
)

func tunnel() VXLANOptions {
	return VXLANOptions{Name: "tun0", Alias: "weir:t:tunnel/h2", MAC: [6]byte{6, 0x57, 1}, VNI: 7, Port: 4789, MTU: 1500,
		Local: netip.MustParseAddr("192.0.2.1"), Remote: netip.MustParseAddr("192.0.2.2")}
}

func TestTunnelIsMadeOnceAndPutRight(t *testing.T) {
	s := space(t, Options{})
	o := tunnel()
	made, err := s.VXLAN(o)
	if err != nil {
		t.Fatal(err)
	}
	if made.Kind != "vxlan" || made.MTU != 1500 || made.MAC != o.MAC || made.Alias != o.Alias || made.Up {
		t.Errorf("made %+v", made)
	}
	again, err := s.VXLAN(o)
	if err != nil || again != made {
		t.Errorf("made again: %+v, %v", again, err)
	}
	o.MTU = 1400
	if smaller, err := s.VXLAN(o); err != nil || smaller.Index != made.Index || smaller.MTU != 1400 {
		t.Errorf("with another MTU: %+v, %v", smaller, err)
	}
	o.Remote = netip.MustParseAddr("192.0.2.3")
	if other, err := s.VXLAN(o); err != nil || other.Index == made.Index {
		t.Errorf("to another host: %+v, %v", other, err)
	}
}

func TestTunnelRefusals(t *testing.T) {
	s := space(t, Options{})
	if err := s.Do(func() error {
		return netlink.LinkAdd(&netlink.Bridge{LinkAttrs: netlink.LinkAttrs{Name: "tun0"}})
	}); err != nil {
		t.Fatal(err)
	}
	if _, err := s.VXLAN(tunnel()); !errors.Is(err, ErrForeign) {
		t.Errorf("over a foreign link: %v", err)
	}
	for says, change := range map[string]func(*VXLANOptions){
		"VNI 0":      func(o *VXLANOptions) { o.VNI = 0 },
		"one family": func(o *VXLANOptions) { o.Remote = netip.MustParseAddr("fd00::1") },
		"itself":     func(o *VXLANOptions) { o.Remote = o.Local },
		"UDP port":   func(o *VXLANOptions) { o.Port = 0 },
		"alias":      func(o *VXLANOptions) { o.Alias = "" },
	} {
		o := tunnel()
		o.Name = "tun1"
		change(&o)
		if _, err := s.VXLAN(o); err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("%s: got %v", says, err)
		}
	}
}

func TestLinkWithAddress(t *testing.T) {
	s := space(t, Options{})
	if l, err := s.LinkWith(netip.MustParseAddr("127.0.0.1")); err != nil || l.Name != "lo" {
		t.Errorf("got %+v, %v", l, err)
	}
	if _, err := s.LinkWith(netip.MustParseAddr("192.0.2.9")); !errors.Is(err, ErrNoAddress) {
		t.Errorf("got %v", err)
	}
}

func TestWatchTellsWhatBecomesOfLinks(t *testing.T) {
	s := space(t, Options{})
	ctx, cancel := context.WithCancel(t.Context())
	events := make(chan LinkEvent, 1000)
	done := make(chan error, 1)
	go func() { done <- s.WatchLinks(ctx, func(e LinkEvent) { events <- e }) }()
	await := func(what string, change string, is func(LinkEvent) bool) {
		t.Helper()
		retry := time.NewTicker(20 * time.Millisecond) // the watch may have begun after the change
		defer retry.Stop()
		deadline := time.After(20 * time.Second)
		for mtu := 1400; ; mtu++ {
			select {
			case e := <-events:
				if e.Name == change && is(e) {
					return
				}
			case <-retry.C:
				if what != "made" {
					continue
				}
				if err := s.Do(func() error { return netlink.LinkSetMTU(link(t, change), mtu) }); err != nil { // told also while the link is down
					t.Fatal(err)
				}
			case err := <-done:
				t.Fatal(err)
			case <-deadline:
				t.Fatalf("%s: not told", what)
			}
		}
	}
	do := func(f func() error) {
		t.Helper()
		if err := s.Do(f); err != nil {
			t.Fatal(err)
		}
	}
	do(func() error {
		return netlink.LinkAdd(&netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: "a"}, PeerName: "b"})
	})
	await("made", "a", func(e LinkEvent) bool { return !e.Up })
	do(func() error { return netlink.LinkSetUp(link(t, "a")) })
	await("up", "a", func(e LinkEvent) bool { return e.Up && !e.Carrier })
	do(func() error { return netlink.LinkSetUp(link(t, "b")) })
	await("connected", "a", func(e LinkEvent) bool { return e.Carrier })
	do(func() error { return netlink.LinkSetDown(link(t, "b")) })
	await("its peer down", "a", func(e LinkEvent) bool { return e.Up && !e.Carrier })
	do(func() error { return netlink.LinkDel(link(t, "b")) })
	await("gone with its peer", "a", func(e LinkEvent) bool { return e.Gone })
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
}

// link of the thread's namespace.
func link(t *testing.T, name string) netlink.Link {
	t.Helper()
	l, err := netlink.LinkByName(name)
	if err != nil {
		t.Error(err)
		return &netlink.Dummy{LinkAttrs: netlink.LinkAttrs{Name: name}}
	}
	return l
}
