package datagrams

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"runtime"
	"time"

	"golang.org/x/sys/unix"

	"weir.dev/weir/netns"
)

// Options of a sender.
type Options struct {
	Space    string         // network namespace
	To       netip.AddrPort // of the first processor, or of the sink
	Payload  int            // bytes
	Rate     float64        // datagrams a second
	Duration time.Duration
	Run      uint32 // tells the datagrams of one run from those of another
}

// Sent is what a sender did. Skipped datagrams were due, and so late that they were left out.
type Sent struct {
	Sent    uint64        `json:"sent"`
	Skipped uint64        `json:"skipped"`
	Refused uint64        `json:"refused"` // by the sender's own kernel: its queue was full
	Took    time.Duration `json:"took_ns"`
}

// OnTime is the share of what was due that was sent.
func (s Sent) OnTime() float64 {
	if due := s.Sent + s.Skipped + s.Refused; due > 0 {
		return float64(s.Sent) / float64(due)
	}
	return 0
}

// MaxRate and MaxDuration bound a sender.
const (
	MaxRate     = 5e6
	MaxDuration = time.Minute
	behind      = 20 * time.Millisecond // what is later is skipped
	nap         = 50 * time.Microsecond // while nothing is due
)

func (o Options) check() error {
	if o.Payload < MinPayload || o.Payload > MaxPayload || !(o.Rate > 0 && o.Rate <= MaxRate) || o.Duration <= 0 || o.Duration > MaxDuration || !o.To.IsValid() {
		return fmt.Errorf("datagrams of %d bytes to %s at %g a second for %s: want %d to %d bytes, an address, a rate of at most %g, at most %s",
			o.Payload, o.To, o.Rate, o.Duration, MinPayload, MaxPayload, MaxRate, MaxDuration)
	}
	return nil
}

// Send datagrams at a steady rate.
func Send(ctx context.Context, o Options) (s Sent, err error) {
	if err := o.check(); err != nil {
		return s, err
	}
	fd, err := socket(o.Space)
	if err != nil {
		return s, err
	}
	defer func() { err = errors.Join(err, unix.Close(fd)) }()
	if err := unix.Connect(fd, address(o.To)); err != nil {
		return s, fmt.Errorf("connect to %s: %w", o.To, err)
	}
	done := make(chan error, 1)
	go func() {
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		done <- o.send(ctx, fd, &s)
	}()
	return s, <-done
}

func (o Options) send(ctx context.Context, fd int, s *Sent) error {
	begin, err := now()
	if err != nil {
		return err
	}
	b := make([]byte, o.Payload)
	number := uint64(0)
	all := uint64(o.Rate * o.Duration.Seconds())
	for number < all {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		at, err := now()
		if err != nil {
			return err
		}
		due := min(uint64(o.Rate*(at-begin).Seconds())+1, all)
		if late := uint64(o.Rate * behind.Seconds()); due > number+late+1 {
			skip := due - number - late - 1
			s.Skipped, number = s.Skipped+skip, number+skip
		}
		if number >= due {
			time.Sleep(nap)
			continue
		}
		for ; number < due; number++ {
			stamp, err := now()
			if err != nil {
				return err
			}
			write(b, o.Run, number, stamp)
			switch err := unix.Send(fd, b, unix.MSG_DONTWAIT); {
			case err == nil:
				s.Sent++
			case errors.Is(err, unix.EAGAIN), errors.Is(err, unix.ENOBUFS), errors.Is(err, unix.ECONNREFUSED): // the last one is about a datagram before
				s.Refused++
			default:
				return fmt.Errorf("send to %s: %w", o.To, err)
			}
		}
	}
	end, err := now()
	s.Took = end - begin
	return err
}

// buffers of sockets: what waits while a thread does not have its processor.
const buffers = 8 << 20

// socket in a namespace.
func socket(space string) (fd int, err error) {
	err = netns.Do(space, func() (err error) {
		if fd, err = unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0); err != nil {
			return fmt.Errorf("socket: %w", err)
		}
		limit := unix.NsecToTimeval(int64(wake))
		return errors.Join(
			unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, buffers),
			unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_SNDBUFFORCE, buffers),
			unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &limit),
		)
	})
	return fd, err
}

// wake is how often a thread that waits for datagrams looks whether it is to end.
const wake = 50 * time.Millisecond

func address(a netip.AddrPort) unix.Sockaddr {
	return &unix.SockaddrInet4{Port: int(a.Port()), Addr: a.Addr().As4()}
}
