package datagrams

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"runtime"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"weir.dev/weir/lab/traffic"
)

// Count is what became of the datagrams of a run.
type Count struct {
	Sent
	Unique    uint64          `json:"unique"`    // that arrived
	InTime    uint64          `json:"in_time"`   // of those, until the last one was sent
	Repeated  uint64          `json:"repeated"`  // that arrived again
	Reordered uint64          `json:"reordered"` // that arrived behind a later one
	Damaged   uint64          `json:"damaged"`
	Foreign   uint64          `json:"foreign"` // of another run
	Latency   traffic.Latency `json:"latency"` // of those that arrived, from the sender's call to the sink's
}

// Lost datagrams.
func (c Count) Lost() uint64 { return c.Sent.Sent - min(c.Unique, c.Sent.Sent) }

// LossRatio is the share of what was sent that did not arrive.
func (c Count) LossRatio() float64 {
	if c.Sent.Sent == 0 {
		return 0
	}
	return float64(c.Lost()) / float64(c.Sent.Sent)
}

// Rate at which datagrams arrived while some were sent: what waits in buffers at the end is none of it.
func (c Count) Rate() float64 { return float64(c.InTime) / c.Took.Seconds() }

// Sink receives at a port of a namespace. It is for one goroutine.
type Sink struct {
	fd int
	At netip.AddrPort
}

// Listen opens a sink.
func Listen(space string, at netip.AddrPort) (*Sink, error) {
	fd, err := socket(space)
	if err != nil {
		return nil, err
	}
	if err := unix.Bind(fd, address(at)); err != nil {
		return nil, errors.Join(fmt.Errorf("bind %s: %w", at, err), unix.Close(fd))
	}
	return &Sink{fd, at}, nil
}

// Close it.
func (s *Sink) Close() error { return unix.Close(s.fd) }

// drain is how long a run waits for what is on its way, after the last datagram that came.
const drain = 100 * time.Millisecond

// Run sends datagrams and counts those that arrive.
func (s *Sink) Run(ctx context.Context, o Options) (c Count, err error) {
	if err := o.check(); err != nil {
		return c, err
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	over, done := make(chan struct{}), make(chan error, 1)
	r := &receiver{run: o.Run, seen: make([]uint64, uint64(o.Rate*o.Duration.Seconds())/64+1)}
	r.latency.Buckets = make([]uint64, traffic.MaxBuckets)
	go func() {
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		done <- r.receive(ctx, s.fd, over)
	}()
	c.Sent, err = Send(ctx, o)
	if err != nil {
		cancel()
	}
	r.over.Store(true)
	close(over)
	err = errors.Join(err, <-done)
	c.InTime = r.inTime
	c.Unique, c.Repeated, c.Reordered, c.Damaged, c.Foreign, c.Latency = r.unique, r.repeated, r.reordered, r.damaged, r.foreign, r.latency
	return c, err
}

// receiver counts.
type receiver struct {
	run                                           uint32
	seen                                          []uint64 // bits by number
	next                                          uint64
	unique, repeated, reordered, damaged, foreign uint64
	inTime                                        uint64
	over                                          atomic.Bool // all are sent
	latency                                       traffic.Latency
}

// receive until the sender is over and nothing more comes.
func (r *receiver) receive(ctx context.Context, fd int, over <-chan struct{}) error {
	b := make([]byte, MaxPayload)
	last := time.Now()
	for ctx.Err() == nil {
		n, err := unix.Read(fd, b)
		switch {
		case err == nil:
			last = time.Now()
			if err := r.take(b[:n]); err != nil {
				return err
			}
			continue
		case !errors.Is(err, unix.EAGAIN) && !errors.Is(err, unix.EINTR) && !errors.Is(err, unix.ECONNREFUSED):
			return fmt.Errorf("receive: %w", err)
		}
		select {
		case <-over:
			if time.Since(last) > drain {
				return nil
			}
		default:
		}
	}
	return nil
}

func (r *receiver) take(b []byte) error {
	run, number, stamp, ok := read(b)
	switch {
	case !ok || number/64 >= uint64(len(r.seen)) && run == r.run:
		r.damaged++
		return nil
	case run != r.run:
		r.foreign++
		return nil
	}
	at, err := now()
	if err != nil {
		return err
	}
	bit := uint64(1) << (number % 64)
	if r.seen[number/64]&bit != 0 {
		r.repeated++
		return nil
	}
	r.seen[number/64] |= bit
	r.unique++
	if !r.over.Load() {
		r.inTime++
	}
	if number < r.next {
		r.reordered++
	}
	r.next = max(r.next, number+1)
	r.add(at - stamp)
	return nil
}

func (r *receiver) add(d time.Duration) {
	l := &r.latency
	l.Buckets[min(traffic.Bucket(uint64(max(d, 0))), len(l.Buckets)-1)]++
	if l.Count == 0 || d < l.Min {
		l.Min = d
	}
	l.Count, l.Sum, l.Max = l.Count+1, l.Sum+d, max(l.Max, d)
}
