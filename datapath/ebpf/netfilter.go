package ebpf

import (
	"context"
	"errors"
	"fmt"
	"time"

	"weir.dev/weir/bpf"
	"weir.dev/weir/datapath/internal/netfilter"
)

// watchEvery is how soon the switch notices that someone's rules have begun to look at bridged frames.
const watchEvery = 2 * time.Second

// keepEvery is well below the time after which the bridge forgets an address (300 s).
const keepEvery = time.Minute

// haveUnseenBridge is the feature's probe.
func haveUnseenBridge() error {
	by, err := netfilter.SeenBy(0, &netfilter.Programs{})
	if err == nil && by != "" {
		err = errors.New(by + " sees bridged frames")
	}
	return err
}

// lookAround finds out whether frames may pass the bridge by, and says so to the programs: not while someone's rules look at what
// crosses it.
func (s *Switch) lookAround() error { return s.heed(s.see(s.bridge)) }

func (s *Switch) see(bridge int) (by string, err error) {
	err = s.home.Do(func() (err error) {
		by, err = netfilter.SeenBy(bridge, &s.programsOfOthers)
		return err
	})
	return by, err
}

func (s *Switch) heed(by string, err error) error {
	if err != nil && s.unknown == nil {
		s.log.Warn("whether netfilter looks at bridged frames is not known: all cross the bridge", "error", err)
	}
	s.unknown = err
	past := err == nil && by == ""
	if past == s.past {
		return nil
	}
	if err == nil {
		s.log.Info("frames between stations may meet their rules before the bridge", "may", past, "seen by", by)
	}
	if past {
		if err := s.leaveHomes(); err != nil {
			return err
		}
	}
	s.past = past
	if err := s.control(); err != nil {
		s.past = !past
		return err
	}
	return nil
}

// control writes what every frame asks first.
func (s *Switch) control() error {
	c := bpf.SteerControl{Version: s.version, Secret: s.state.Secret, Owned: uint32(len(s.owned))}
	if s.past {
		c.Past = 1
	}
	if err := s.maps.Controls.Put(uint32(0), c); err != nil {
		return fmt.Errorf("write control: %w", err)
	}
	return nil
}

// watch looks around from time to time while there are rules for which it matters.
func (s *Switch) watch(ctx context.Context) {
	t := time.NewTicker(watchEvery)
	defer t.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-t.C:
		}
		if err := s.lookAgain(); err != nil {
			s.log.Warn("look after what passes the bridge by", "error", err)
		}
	}
}

func (s *Switch) lookAgain() error {
	s.mu.Lock()
	bridge, idle := s.bridge, s.closed || !s.image.onward()
	s.mu.Unlock()
	if idle {
		return nil
	}
	by, err := s.see(bridge) // there may be thousands of chains: nobody waits for it
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed || !s.image.onward() {
		return nil
	}
	if err := s.heed(by, err); err != nil {
		return err
	}
	if time.Since(s.kept) < keepEvery {
		return nil
	}
	s.kept = time.Now()
	return s.keepStatic()
}
