package main

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"strings"

	"weir.dev/weir/e2e/rig"
	"weir.dev/weir/netns"
)

// spaces are the namespaces of a peer, under the rig's name.
type spaces struct {
	rig  *rig.Rig
	made []string
}

func (s *spaces) add(name string) (string, error) {
	full := s.rig.Name + "-" + name
	err := netns.Create(netns.Path(full), netns.Options{})
	if err == nil {
		s.made = append(s.made, full)
	}
	return full, err
}

func (s *spaces) close() error {
	var errs []error
	for _, n := range s.made {
		errs = append(errs, netns.Delete(netns.Path(n)))
	}
	s.made = nil
	return errors.Join(errs...)
}

// bridges is the peer: N namespaces, each with a Linux bridge between two veths, joined by Linux bridges, as
// one chains containers with what the kernel offers to everybody.
type bridges struct {
	spaces
	hub string
}

const peerMark = "weir-bench:bridges"

// newBridges builds the chain from station bsrc (10.8.0.1) to station bdst (10.8.0.2).
func newBridges(ctx context.Context, r *rig.Rig, n int) (*bridges, error) {
	b := &bridges{spaces: spaces{rig: r}}
	if err := b.build(ctx, n); err != nil {
		return nil, errors.Join(err, b.close())
	}
	return b, nil
}

func (b *bridges) src() string { return b.rig.Name + "-bsrc" }
func (b *bridges) dst() string { return b.rig.Name + "-bdst" }

func (b *bridges) build(ctx context.Context, n int) (err error) {
	if b.hub, err = b.add("hub"); err != nil {
		return err
	}
	pair := func(space, host, peer, addr string) error {
		o := netns.VethOptions{HostName: host, PeerName: peer, Alias: peerMark, HostMAC: mac(host), Quiet: addr == ""}
		if addr != "" {
			o.Addresses = append(o.Addresses, netip.MustParsePrefix(addr))
		}
		_, err := netns.Veth(b.hub, space, o)
		return err
	}
	for name, addr := range map[string]string{"bsrc": "10.8.0.1/24", "bdst": "10.8.0.2/24"} {
		full, err := b.add(name)
		if err != nil {
			return err
		}
		if err := pair(full, name, "eth0", addr); err != nil {
			return err
		}
	}
	var hub strings.Builder // one batch of ip commands for the hub
	join := func(i int, left, right string) {
		fmt.Fprintf(&hub, "link add j%d type bridge forward_delay 0 mcast_snooping 0\nlink set %s master j%d\nlink set %s master j%d\nlink set j%d up\n", i, left, i, right, i, i)
	}
	prev := "bsrc"
	for i := 1; i <= n; i++ {
		full, err := b.add(fmt.Sprintf("b%d", i))
		if err != nil {
			return err
		}
		in, out := fmt.Sprintf("i%d", i), fmt.Sprintf("o%d", i)
		if err := errors.Join(pair(full, in, "in", ""), pair(full, out, "out", "")); err != nil {
			return err
		}
		if err := batch(ctx, b.rig, full, "link add br0 type bridge forward_delay 0 mcast_snooping 0\nlink set in master br0\nlink set out master br0\nlink set br0 up\n"); err != nil {
			return err
		}
		join(i, prev, in)
		prev = out
	}
	join(n+1, prev, "bdst")
	return batch(ctx, b.rig, b.hub, hub.String())
}

func batch(ctx context.Context, r *rig.Rig, space, lines string) error {
	c := r.Command(ctx, space, "ip", "-batch", "-")
	c.Stdin = strings.NewReader(lines)
	out, err := c.CombinedOutput()
	if err != nil {
		return fmt.Errorf("ip -batch in %s: %w: %s", space, err, out)
	}
	return nil
}

func mac(name string) [6]byte {
	m := [6]byte{0x02, 0x62}
	for i, c := range []byte(name) {
		m[2+i%4] = m[2+i%4]*31 + c
	}
	return m
}
