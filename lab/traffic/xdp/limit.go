package xdp

import (
	"errors"
	"fmt"
	"time"

	"github.com/cilium/ebpf/link"
)

// Limit is a forwarder with a limit that is known, to test searches with. In a time T it passes Rate T frames, and Burst more if it was idle before.
type Limit struct {
	maps limitObjects
	hook link.Link
	to   int
}

// MaxBurst frames of a Limit.
const MaxBurst = 1 << 16

// NewLimit attaches one to what a link receives; it sends out of a link of the same namespace. It is at tcx (Linux 6.6). It passes nothing before
// Set.
func NewLimit(at Place, to string) (*Limit, error) {
	l := &Limit{}
	if err := loadLimitObjects(&l.maps, nil); err != nil {
		return nil, fmt.Errorf("load the limit: %w", err)
	}
	var err error
	if l.hook, l.to, err = between(at, to, l.maps.Limit); err != nil {
		return nil, errors.Join(fmt.Errorf("limit at %s: %w", at.Link, err), l.Close())
	}
	return l, nil
}

// Set the limit in frames a second, a divisor of 10^9, and how many frames more pass at once.
func (l *Limit) Set(rate, burst int) error {
	if rate < 1 || int64(time.Second)%int64(rate) != 0 || burst < 0 || burst > MaxBurst {
		return fmt.Errorf("limit of %d frames a second, burst of %d: want a divisor of 10^9, and 0 to %d", rate, burst, MaxBurst)
	}
	interval := uint64(time.Second) / uint64(rate)
	return l.maps.Buckets.Put(uint32(0), &limitBucket{Interval: interval, Slack: uint64(burst) * interval, To: uint32(l.to)})
}

// Close detaches it.
func (l *Limit) Close() error {
	var err error
	if l.hook != nil {
		err = l.hook.Close()
	}
	return errors.Join(err, l.maps.Close())
}
