package main

import (
	"context"
	"errors"

	"weir.dev/weir/e2e/rig"
	"weir.dev/weir/lab/platform"
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

// newBridges makes the peer: the lab's chain of n namespaces, each with a Linux bridge between two veths, joined by Linux bridges.
func newBridges(ctx context.Context, r *rig.Rig, n int) (path platform.Path, done func() error, err error) {
	kind, _ := platform.Find("bridges")
	p, err := kind.Open(ctx, platform.Options{Name: r.Name})
	if err != nil {
		return path, nil, err
	}
	if path, err = p.Path(ctx, platform.Layout{Chain: n}); err != nil {
		return path, nil, errors.Join(err, p.Close())
	}
	return path, p.Close, nil
}

func mac(name string) [6]byte {
	m := [6]byte{0x02, 0x62}
	for i, c := range []byte(name) {
		m[2+i%4] = m[2+i%4]*31 + c
	}
	return m
}
