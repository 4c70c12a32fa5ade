package rr

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"time"

	"golang.org/x/sys/unix"

	"weir.dev/weir/lab/traffic"
)

// AskOptions of requests to a program that sends back what it gets.
type AskOptions struct {
	From     string // namespace of the client
	To       netip.AddrPort
	Datagram bool // UDP, else TCP
	Bytes    int  // of a request, and of its answer
	Duration time.Duration
}

// The server may still be starting: it is asked again.
const (
	mostAnswers = 20 * time.Second // until the first answer
	askAgain    = 20 * time.Millisecond
	leastAsked  = number
)

// MaxDatagram is the largest request that one datagram holds on a link whose MTU is Ethernet's.
const MaxDatagram = 1472

func (o AskOptions) check() error {
	most := MaxBytes
	if o.Datagram {
		most = MaxDatagram
	}
	switch {
	case !o.To.IsValid():
		return errors.New("want the server's address")
	case o.Bytes < leastAsked || o.Bytes > most:
		return fmt.Errorf("%d bytes: want %d to %d", o.Bytes, leastAsked, most)
	case o.Duration <= 0 || o.Duration > MaxDuration:
		return fmt.Errorf("duration %s: want more than 0, at most %s", o.Duration, MaxDuration)
	}
	return nil
}

// Ask sends requests, the next one when the answer to the last is there, to a server of others. Behind the last one the server is told: a connection ends, a
// datagram has a single byte. A datagram that is lost ends the run with an error.
func Ask(ctx context.Context, o AskOptions) (r Result, err error) {
	if err := o.check(); err != nil {
		return r, fmt.Errorf("requests: %w", err)
	}
	e := &ends{}
	defer func() { err = errors.Join(err, e.closeAll()) }()
	c := client{latency: traffic.Latency{Buckets: make([]uint64, buckets)}}
	fd, err := e.reach(ctx, o)
	if err != nil {
		return r, fmt.Errorf("requests to %s: %w", o.To, err)
	}
	if !o.Datagram {
		if r.Congestion, err = congestion(fd); err != nil {
			return r, err
		}
	}
	crew := newCrew(ctx, e)
	crew.start("client", func() error {
		options, end := Options{Request: o.Bytes, Response: o.Bytes}, time.Now().Add(o.Duration)
		if !o.Datagram {
			return c.ask(fd, options, end)
		}
		err := c.loop(fd, options, func(began, ended time.Time) bool {
			if ended.After(end) {
				return false
			}
			c.record(ended.Sub(began))
			return true
		})
		return errors.Join(err, writeAll(fd, []byte{0}))
	})
	if err := crew.wait(); err != nil {
		return r, fmt.Errorf("requests to %s: %w", o.To, err)
	}
	r.Connections, r.Request, r.Response, r.Seconds, r.CPU = 1, o.Bytes, o.Bytes, o.Duration.Seconds(), crew.cpu
	r.add([]client{c}, []server{{served: c.answers, responses: c.answers}}) // the server does not tell
	return r, nil
}

// reach connects to the server and has one answer of it.
func (e *ends) reach(ctx context.Context, o AskOptions) (fd int, err error) {
	for end := time.Now().Add(mostAnswers); ; {
		if fd, err = e.tryServer(o); err == nil {
			return fd, nil
		}
		if fd >= 0 {
			err = errors.Join(err, e.close(fd))
		}
		if !errors.Is(err, unix.ECONNREFUSED) && !errors.Is(err, ErrStuck) && !errors.Is(err, unix.EHOSTUNREACH) || time.Now().After(end) {
			return -1, err
		}
		select {
		case <-ctx.Done():
			return -1, context.Cause(ctx)
		case <-time.After(askAgain):
		}
	}
}

// tryServer: a connection is accepted by the kernel before the program is there, so an answer counts.
func (e *ends) tryServer(o AskOptions) (fd int, err error) {
	kind := unix.SOCK_STREAM
	if o.Datagram {
		kind = unix.SOCK_DGRAM
	}
	fds, err := e.sockets(o.From, family(o.To.Addr()), kind, 1)
	if err != nil {
		return -1, err
	}
	fd = fds[0]
	if err := connect(fd, o.To); err != nil {
		return fd, err
	}
	wait := mostAnswers / 4 // a connection that was accepted is the only one
	if o.Datagram {
		wait = 10 * askAgain
	}
	limit := unix.NsecToTimeval(int64(wait))
	if err := unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &limit); err != nil {
		return fd, err
	}
	request := make([]byte, o.Bytes)
	binary.LittleEndian.PutUint64(request, ^uint64(0)) // no number of a request
	if err := writeAll(fd, request); err != nil {
		return fd, err
	}
	if err := readFull(fd, request); err != nil {
		return fd, err
	}
	return fd, patient(fd)
}
