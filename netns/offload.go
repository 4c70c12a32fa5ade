package netns

import (
	"errors"
	"fmt"
	"maps"

	"github.com/safchain/ethtool"
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

// featureTries is how often features are read or changed: the library hands the kernel addresses on the stack as numbers, so an answer is lost when the
// stack grows, and moves, in between. It does not grow again.
const featureTries = 3

// features are those of an interface by name. Each interface has some.
func features(e *ethtool.Ethtool, link string) (have map[string]ethtool.FeatureState, err error) {
	for range featureTries {
		if have, err = e.FeaturesWithState(link); err != nil || len(have) > 0 {
			return have, err
		}
	}
	return nil, errors.New("the kernel names none")
}

// Coalescing tells whether the interface joins received frames.
func (s *Space) Coalescing(link string) (on bool, err error) {
	err = s.Do(func() error {
		e, err := ethtool.NewEthtool()
		if err != nil {
			return err
		}
		defer e.Close()
		have, err := features(e, link)
		for _, name := range coalescing {
			on = on || have[name].Active
		}
		return err
	})
	if err != nil {
		return false, fmt.Errorf("features of %s in %s: %w", link, s, err)
	}
	return on, nil
}

// SetCoalescing switches it on or off, those features that the interface can change.
func (s *Space) SetCoalescing(link string, on bool) error {
	return s.setFeatures(link, coalescing[:], on)
}

// Offloads switches checksum and segmentation offload of an interface on or off, those features that it can change.
func (s *Space) Offloads(link string, on bool) error { return s.setFeatures(link, offloads[:], on) }

func (s *Space) setFeatures(link string, names []string, on bool) error {
	err := s.Do(func() error {
		e, err := ethtool.NewEthtool()
		if err != nil {
			return err
		}
		defer e.Close()
		have, err := features(e, link)
		if err != nil {
			return err
		}
		change := map[string]bool{}
		for _, name := range names {
			if f, ok := have[name]; ok && f.Available && !f.NeverChanged && f.Active != on {
				change[name] = on
			}
		}
		if len(change) == 0 {
			return nil
		}
		for range featureTries {
			if err = e.Change(link, change); err == nil {
				break
			}
		}
		if err != nil {
			return err
		}
		after, err := features(e, link)
		if err != nil {
			return err
		}
		for name := range maps.Keys(change) {
			if after[name].Active != on {
				return fmt.Errorf("feature %s stays %t", name, !on)
			}
		}
		return nil
	})
	if err != nil {
		return fmt.Errorf("features of %s in %s: %w", link, s, err)
	}
	return nil
}
