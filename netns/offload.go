package netns

import (
	"fmt"
	"slices"
	"strings"

	"weir.dev/weir/netns/ethtool"
)

// offloads are the features that let a sender leave checksums and segmentation to the "hardware". A program that reads frames from a
// raw socket or in user space behind a veth sees them unfinished, unless they are off at the sending end.
var offloads = [...]string{
	"tx-checksum-ip-generic", "tx-checksum-sctp",
	"tx-tcp-segmentation", "tx-tcp6-segmentation", "tx-tcp-ecn-segmentation", "tx-tcp-mangleid-segmentation",
	"tx-udp-segmentation", "tx-sctp-segmentation", "tx-generic-segmentation",
}

// coalescing are the features that join received frames into larger ones, which a program that reads frames in user space cannot pass on.
var coalescing = [...]string{"rx-gro", "rx-gro-hw", "rx-lro"}

// Coalescing tells whether the interface joins received frames.
func (s *Space) Coalescing(link string) (on bool, err error) {
	err = s.Do(func() error {
		have, err := ethtool.Features(link)
		for _, name := range coalescing {
			on = on || have[name].Active
		}
		return err
	})
	if err != nil {
		return false, fmt.Errorf("in %s: %w", s, err)
	}
	return on, nil
}

// SetCoalescing switches it on or off, those features that the interface can change.
func (s *Space) SetCoalescing(link string, on bool) error {
	return s.setFeatures(link, on, func(name string) bool { return slices.Contains(coalescing[:], name) })
}

// Offloads switches checksum and segmentation offload of an interface on or off, those features that it can change.
func (s *Space) Offloads(link string, on bool) error {
	return s.setFeatures(link, on, func(name string) bool { return slices.Contains(offloads[:], name) })
}

// Finish has the kernel finish each frame before an interface sends it: segments are cut, of tunnels and lists of fragments, too, checksums are computed and VLAN
// tags, which a sender may leave beside the frame, are in it. Those features go off that the interface can change.
func (s *Space) Finish(link string) error {
	return s.setFeatures(link, false, func(name string) bool {
		return strings.HasPrefix(name, "tx-") && (strings.HasSuffix(name, "-segmentation") || strings.HasPrefix(name, "tx-checksum") || name == "tx-gso-list" ||
			strings.HasPrefix(name, "tx-vlan-") && strings.HasSuffix(name, "hw-insert"))
	})
}

func (s *Space) setFeatures(link string, on bool, ours func(name string) bool) error {
	err := s.Do(func() error {
		have, err := ethtool.Features(link)
		if err != nil {
			return err
		}
		change := map[string]bool{}
		for name, f := range have {
			if f.Changeable && f.Active != on && ours(name) {
				change[name] = on
			}
		}
		if len(change) == 0 {
			return nil
		}
		return ethtool.Change(link, change)
	})
	if err != nil {
		return fmt.Errorf("in %s: %w", s, err)
	}
	return nil
}
