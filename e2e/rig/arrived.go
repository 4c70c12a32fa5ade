package rig

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/vishvananda/netlink"

	"weir.dev/weir/netns"
)

// Limited is one TCP stream through something that limits its rate, as Iperf has it after a second of which nothing is counted: in bits of whole frames a
// second at the receiver, of whose bytes TCP sees all but the headers of frames of an MTU. The mean of what arrived at eth0 of a station, from before the
// stream until after it, is least: on a busy machine a receiver that was late counts for a second what came in the one before, and this mean cannot be above
// the limit for that.
func (r *Rig) Limited(ctx context.Context, from, to, addr string, port, seconds int, more ...string) (rate, least float64, err error) {
	var mtu int
	var before, after [2]uint64
	look := func(arrived *[2]uint64) error {
		for i, space := range []string{from, to} {
			if err := netns.Do(space, func() error {
				l, err := netlink.LinkByName("eth0")
				if err == nil {
					mtu, arrived[i] = l.Attrs().MTU, l.Attrs().Statistics.RxBytes
				}
				return err
			}); err != nil {
				return fmt.Errorf("eth0 in %s: %w", space, err)
			}
		}
		return nil
	}
	begin := time.Now()
	if err := look(&before); err != nil {
		return 0, 0, err
	}
	bits, err := r.Iperf(ctx, from, to, addr, port, seconds, append([]string{"--omit", "1"}, more...)...)
	if err == nil {
		err = look(&after)
	}
	if err != nil {
		return 0, 0, err
	}
	took := time.Since(begin)
	const ethernet = 14
	headers := 20 + 20 + 12 // IPv4, TCP with time stamps
	if strings.Contains(addr, ":") {
		headers += 20 // IPv6
	}
	most := max(after[0]-before[0], after[1]-before[1])
	return bits * float64(mtu+ethernet) / float64(mtu-headers), float64(most) * 8 / took.Seconds(), nil
}
