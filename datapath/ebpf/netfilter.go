package ebpf

import (
	"context"
	"errors"
	"time"

	"weir.dev/weir/datapath/internal/home"
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

// onlookers are whoever looks at bridged frames by netfilter: while there are some, no frame passes the bridge by.
type onlookers struct {
	home     *home.Home
	bridge   *bridge
	control  *control
	stations *stations
	programs netfilter.Programs
	unknown  error     // why it is not known whether there are any
	kept     time.Time // when stations' entries were last looked at
}

// look for them now, and tell the programs.
func (o *onlookers) look() error { return o.heed(o.see(o.bridge.index)) }

func (o *onlookers) see(bridge int) (by string, err error) {
	err = o.home.Space.Do(func() (err error) {
		by, err = netfilter.SeenBy(bridge, &o.programs)
		return err
	})
	return by, err
}

// heed what see has told.
func (o *onlookers) heed(by string, err error) error {
	if err != nil && o.unknown == nil {
		o.home.Log.Warn("whether netfilter looks at bridged frames is not known: all cross the bridge", "error", err)
	}
	o.unknown = err
	past := err == nil && by == ""
	if past == o.control.past {
		return nil
	}
	if err == nil {
		o.home.Log.Info("frames between stations may meet their rules before the bridge", "may", past, "seen by", by)
	}
	if past {
		if err := o.stations.leaveHomes(); err != nil {
			return err
		}
	}
	return o.control.let(past)
}

// watch looks from time to time.
func (s *Switch) watch(ctx context.Context) {
	t := time.NewTicker(watchEvery)
	defer t.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-t.C:
		}
		s.accepting.lookAgain(ctx)
		if err := s.lookAgain(); err != nil {
			s.home.Log.Warn("look after what passes the bridge by", "error", err)
		}
	}
}

// lookAgain looks while there are rules for which it matters.
func (s *Switch) lookAgain() error {
	s.gate.Lock()
	bridge, idle := s.bridge.index, s.gate.Closed() || !s.rules.image.Onward()
	s.gate.Unlock()
	if idle {
		return nil
	}
	by, err := s.onlookers.see(bridge) // there may be thousands of chains: nobody waits for it
	s.gate.Lock()
	defer s.gate.Unlock()
	if s.gate.Closed() || !s.rules.image.Onward() {
		return nil
	}
	if err := s.onlookers.heed(by, err); err != nil {
		return err
	}
	return s.onlookers.keep()
}

// keep stations' static entries, now and then.
func (o *onlookers) keep() error {
	if time.Since(o.kept) < keepEvery {
		return nil
	}
	o.kept = time.Now()
	return o.stations.keepStatic()
}
