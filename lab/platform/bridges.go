package platform

import (
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"net/netip"
	"path/filepath"

	"github.com/vishvananda/netlink"

	"weir.dev/weir/netns"
)

const (
	suffixBridges = "-b"
	suffixVeth    = "-v"
)

// chains is a platform that makes a chain of its own for each length.
type chains struct {
	dir   string
	build func(s *spaces, n int) (Path, error)
	paths map[int]Path
	made  []*spaces
}

// openBridges makes chains of namespaces, each with a Linux bridge between two veths, joined by Linux bridges: what anybody can build with what
// the kernel has.
func openBridges(_ context.Context, o Options) (Platform, error) {
	return &chains{dir: dir(o, suffixBridges), build: chainBridges, paths: map[int]Path{}}, nil
}

func (c *chains) Path(ctx context.Context, n int) (Path, error) {
	if p, ok := c.paths[n]; ok {
		return p, nil
	}
	s := &spaces{dir: filepath.Join(c.dir, fmt.Sprint(n))}
	p, err := c.build(s, n)
	if err == nil {
		err = p.Try(ctx)
	}
	if err != nil {
		return p, errors.Join(err, s.close())
	}
	c.paths[n], c.made = p, append(c.made, s)
	return p, nil
}

func (c *chains) Close() error {
	var errs []error
	for _, s := range c.made {
		errs = append(errs, s.close())
	}
	return errors.Join(append(errs, removeSpaces(c.dir))...)
}

// mark of links that belong to no instance.
const mark = "weir-lab:"

func chainBridges(s *spaces, n int) (Path, error) {
	p := Path{Source: sourceAddress.Addr(), Address: targetAddress.Addr(), Link: "alice"}
	var err error
	add := func(name string, quiet bool) string {
		if err != nil {
			return ""
		}
		var path string
		path, err = s.add(name, quiet)
		return path
	}
	hub := add("hub", true)
	p.From, p.To, p.Space = add("alice", false), add("bob", false), hub
	pair := func(space, host, peer string, addr ...netip.Prefix) {
		if err != nil {
			return
		}
		o := netns.VethOptions{HostName: host, PeerName: peer, Alias: mark + host, HostMAC: address(host), PeerMAC: address(host + "/" + peer), Addresses: addr, Quiet: len(addr) == 0}
		_, err = netns.Veth(hub, space, o)
	}
	pair(p.From, "alice", Station, sourceAddress)
	pair(p.To, "bob", Station, targetAddress)
	var joints [][2]string
	prev := "alice"
	for i := range n {
		space := add(fmt.Sprintf("w%d", i), true)
		in, out := fmt.Sprintf("i%d", i), fmt.Sprintf("o%d", i)
		pair(space, in, "in")
		pair(space, out, "out")
		if err == nil {
			err = netns.Do(space, func() error { return bridge("br0", "in", "out") })
		}
		joints = append(joints, [2]string{prev, in})
		prev = out
	}
	joints = append(joints, [2]string{prev, "bob"})
	if err != nil {
		return p, err
	}
	return p, netns.Do(hub, func() error {
		for i, j := range joints {
			if err := bridge(fmt.Sprintf("j%d", i), j[0], j[1]); err != nil {
				return err
			}
		}
		return nil
	})
}

// bridge between two links of the thread's namespace.
func bridge(name string, links ...string) error {
	a := netlink.NewLinkAttrs()
	a.Name, a.Alias = name, mark+name
	snooping := false
	br := &netlink.Bridge{LinkAttrs: a, MulticastSnooping: &snooping}
	if err := netlink.LinkAdd(br); err != nil {
		return fmt.Errorf("bridge %s: %w", name, err)
	}
	for _, l := range links {
		link, err := netlink.LinkByName(l)
		if err == nil {
			err = netlink.LinkSetMaster(link, br)
		}
		if err != nil {
			return fmt.Errorf("bridge %s: %s: %w", name, l, err)
		}
	}
	return netlink.LinkSetUp(br)
}

// address is stable and locally administered.
func address(name string) [6]byte {
	h := fnv.New32a()
	h.Write([]byte(name)) // never fails
	v := h.Sum32()
	return [6]byte{0x02, 0x62, byte(v >> 24), byte(v >> 16), byte(v >> 8), byte(v)}
}

// veth is a pair between two namespaces.
type veth struct {
	spaces
	path Path
}

func openVeth(ctx context.Context, o Options) (Platform, error) {
	v := &veth{spaces: spaces{dir: dir(o, suffixVeth)}}
	err := v.build()
	if err == nil {
		err = v.path.Try(ctx)
	}
	if err != nil {
		return nil, errors.Join(err, v.close())
	}
	return v, nil
}

func (v *veth) build() (err error) {
	v.path = Path{Source: sourceAddress.Addr(), Address: targetAddress.Addr(), FrameLink: Station}
	if v.path.From, err = v.add("alice", false); err != nil {
		return err
	}
	v.path.FrameSpace = v.path.From
	if v.path.To, err = v.add("bob", false); err != nil {
		return err
	}
	return join(place{v.path.From, Station, sourceAddress}, place{v.path.To, Station, targetAddress})
}

func (v *veth) Path(_ context.Context, n int) (Path, error) {
	if n != 0 {
		return Path{}, fmt.Errorf("a bare veth has no wires: %d", n)
	}
	return v.path, nil
}

func (v *veth) Close() error { return v.close() }
