package experiment

import (
	"errors"
	"fmt"
	"net"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"

	"weir.dev/weir/lab/traffic/xdp"
	"weir.dev/weir/netns"
)

//go:generate go tool bpf2go -go-package experiment -target bpfel -no-global-types -type bucket limit limit.bpf.c -- -O2 -Wall -Werror -mcpu=v3 -I/usr/include/x86_64-linux-gnu -I/usr/include/aarch64-linux-gnu

// limiter is a forwarder with a limit that is known, to test searches with. In a time T it passes Rate T frames, and Burst more if it was idle before.
type limiter struct {
	maps limitObjects
	hook link.Link
	to   int
}

// maxBurst frames of a limiter.
const maxBurst = 1 << 16

// newLimiter attaches one to what a link receives; it sends out of a link of the same namespace. It is at tcx (Linux 6.6). It passes nothing before
// Set.
func newLimiter(at xdp.Place, to string) (*limiter, error) {
	l := &limiter{}
	if err := loadLimitObjects(&l.maps, nil); err != nil {
		return nil, fmt.Errorf("load the limit: %w", err)
	}
	err := netns.Do(at.Space, func() error {
		in, err := net.InterfaceByName(at.Link)
		if err != nil {
			return err
		}
		out, err := net.InterfaceByName(to)
		if err != nil {
			return err
		}
		l.to = out.Index
		l.hook, err = link.AttachTCX(link.TCXOptions{Program: l.maps.Limit, Interface: in.Index, Attach: ebpf.AttachTCXIngress, Anchor: link.Head()})
		return err
	})
	if err != nil {
		return nil, errors.Join(fmt.Errorf("limit at %s: %w", at.Link, err), l.Close())
	}
	return l, nil
}

// Set the limit in frames a second, a divisor of 10^9, and how many frames more pass at once.
func (l *limiter) Set(rate, burst int) error {
	if rate < 1 || int64(time.Second)%int64(rate) != 0 || burst < 0 || burst > maxBurst {
		return fmt.Errorf("limit of %d frames a second, burst of %d: want a divisor of 10^9, and 0 to %d", rate, burst, maxBurst)
	}
	interval := uint64(time.Second) / uint64(rate)
	return l.maps.Buckets.Put(uint32(0), &limitBucket{Interval: interval, Slack: uint64(burst) * interval, To: uint32(l.to)})
}

// Close detaches it.
func (l *limiter) Close() error {
	var err error
	if l.hook != nil {
		err = l.hook.Close()
	}
	return errors.Join(err, l.maps.Close())
}
