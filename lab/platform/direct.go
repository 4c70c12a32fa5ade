package platform

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"path/filepath"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"weir.dev/weir/instance"
	"weir.dev/weir/netns"
	"weir.dev/weir/netns/ethtool"
)

//go:generate go tool bpf2go -go-package platform -target bpfel hop hop.bpf.c -- -O2 -Wall -Werror -mcpu=v3 -I/usr/include/x86_64-linux-gnu -I/usr/include/aarch64-linux-gnu

// direct is a platform without a switch: neighbours are the two ends of one veth pair. It has a chain of its own for each length.
type direct struct {
	inst   instance.Instance
	build  func(s *spaces, n int) (Path, error)
	chains map[int]Path
}

func openDirect(o Options, build func(s *spaces, n int) (Path, error)) (Platform, error) {
	i, err := newInstance(o)
	return &direct{inst: i, build: build, chains: map[int]Path{}}, err
}

// openVeth makes a pair between the stations.
func openVeth(_ context.Context, o Options) (Platform, error) { return openDirect(o, chainRedirects) }

// openXDP makes chains of namespaces whose two links an XDP program joins: the least that a chain of frames can cost in this kernel, without any
// of what a switch does.
func openXDP(_ context.Context, o Options) (Platform, error) {
	return openDirect(o, func(s *spaces, n int) (Path, error) {
		p, err := chainRedirects(s, n)
		if err != nil {
			return p, err
		}
		for _, space := range []string{p.From, p.To} {
			if err := netns.Do(space, takesFrames); err != nil {
				return p, fmt.Errorf("station in %s: %w", space, err)
			}
		}
		return p, nil
	})
}

// onePair: see Kind.Nothing.
func onePair(l Layout) string {
	if l.Chain > 0 {
		return ""
	}
	return "the stations are the ends of one veth pair, and nothing is between them"
}

// xdpInherent settings: see takesFrames.
func xdpInherent() map[string]string {
	return map[string]string{
		SettingGRO: "a veth takes redirected frames only with GRO on", SettingChecksums: "nobody behind an XDP program puts checksums in",
		SettingRPS: "XDP frames are steered by a cpumap",
		SettingTSO: "an XDP frame is no longer than the MTU", SettingGSO: "an XDP frame is no longer than the MTU",
	}
}

func (d *direct) Path(ctx context.Context, l Layout) (Path, error) {
	if p, ok := d.chains[l.Chain]; ok {
		return p, nil
	}
	s := &spaces{dir: filepath.Join(d.inst.NetnsDir(), fmt.Sprint(l.Chain))}
	p, err := d.build(s, l.Chain)
	if err == nil {
		err = p.Try(ctx)
	}
	if err != nil {
		return p, errors.Join(err, removeSpaces(s.dir))
	}
	d.chains[l.Chain] = p
	return p, nil
}

func (d *direct) Close() error { return RemoveInstance(d.inst) }

// place is one end of a pair.
type place struct {
	space, link string
	address     netip.Prefix
}

func chainRedirects(s *spaces, n int) (Path, error) {
	p := Path{Source: sourceAddress.Addr(), Address: targetAddress.Addr(), FrameLink: Station}
	var err error
	if p.From, err = s.add("alice", false); err != nil {
		return p, err
	}
	if p.To, err = s.add("bob", false); err != nil {
		return p, err
	}
	p.FrameSpace = p.From
	prev := place{p.From, Station, sourceAddress}
	for i := range n {
		space, err := s.add(fmt.Sprintf("w%d", i), true)
		if err != nil {
			return p, err
		}
		if err := join(prev, place{space: space, link: "in"}); err != nil {
			return p, err
		}
		prev = place{space: space, link: "out"}
	}
	if err := join(prev, place{space: p.To, link: Station, address: targetAddress}); err != nil {
		return p, err
	}
	for _, space := range s.made[2:] {
		if err := netns.Do(space, hop); err != nil {
			return p, fmt.Errorf("XDP in %s: %w", space, err)
		}
	}
	p.Middle = joinSpaces(s.made[2:])
	return p, nil
}

// join makes a pair of links, both up.
func join(a, b place) error {
	to, err := netns.Open(b.space)
	if err != nil {
		return err
	}
	defer to.Close()
	err = netns.Do(a.space, func() error {
		at := netlink.NewLinkAttrs()
		at.Name, at.Alias = a.link, mark+a.link
		pair := &netlink.Veth{LinkAttrs: at, PeerName: b.link, PeerTxQLen: -1, PeerNamespace: netlink.NsFd(to.Fd())}
		if err := netlink.LinkAdd(pair); err != nil {
			return fmt.Errorf("veth %s: %w", a.link, err)
		}
		return nil
	})
	if err != nil {
		return err
	}
	for _, e := range []place{a, b} {
		if err := netns.Do(e.space, func() error { return raise(e.link, e.address) }); err != nil {
			return fmt.Errorf("%s in %s: %w", e.link, e.space, err)
		}
	}
	return nil
}

// raise a link of the thread's namespace, with an address if there is one.
func raise(name string, address netip.Prefix) error {
	link, err := netlink.LinkByName(name)
	if err != nil {
		return err
	}
	if address.IsValid() {
		a, err := netlink.ParseAddr(address.String())
		if err != nil {
			return err
		}
		if err := netlink.AddrAdd(link, a); err != nil {
			return fmt.Errorf("address %s: %w", address, err)
		}
	}
	return netlink.LinkSetUp(link)
}

// hop joins the two links of the thread's namespace by an XDP program, which lives as long as they do.
func hop() error {
	var o hopObjects
	if err := loadHopObjects(&o, nil); err != nil {
		return fmt.Errorf("load the hop: %w", err)
	}
	defer o.Close()
	in, err := netlink.LinkByName("in")
	if err != nil {
		return err
	}
	out, err := netlink.LinkByName("out")
	if err != nil {
		return err
	}
	for from, to := range map[netlink.Link]netlink.Link{in: out, out: in} {
		if err := o.Other.Put(uint32(from.Attrs().Index), uint32(to.Attrs().Index)); err != nil {
			return fmt.Errorf("devmap: %w", err)
		}
		if err := netlink.LinkSetXdpFdWithFlags(from, o.Hop.FD(), unix.XDP_FLAGS_DRV_MODE); err != nil {
			return fmt.Errorf("attach to %s: %w", from.Attrs().Name, err)
		}
	}
	return nil
}

// takesFrames prepares a station of the thread's namespace: a veth takes redirected frames with GRO on, and what it sends has to have its
// checksums, since nobody behind an XDP program puts them in.
func takesFrames() error {
	return ethtool.Change(Station, map[string]bool{"rx-gro": true, "tx-checksum-ip-generic": false})
}
