package rig

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"weir.dev/weir/netns"
)

// Stream sends numbered UDP datagrams at a steady rate and tells what became of each.
type Stream struct {
	tx, rx net.PacketConn
	to     net.Addr
	every  time.Duration
	stop   chan struct{}
	wg     sync.WaitGroup

	mu      sync.Mutex
	sent    int
	seen    []uint8
	last    time.Time
	gap     time.Duration
	highest int
	reorder int
	failed  error
}

// Outcome of a stream.
type Outcome struct {
	Sent, Received, Lost, Duplicated, Reordered int
	LongestGap                                  time.Duration // between two arrivals
}

// maxDatagrams bounds a stream.
const maxDatagrams = 4 << 20

// NewStream starts pps datagrams a second from one namespace to an address in another.
func NewStream(from, to, addr string, port, pps int) (*Stream, error) {
	s := &Stream{every: time.Second / time.Duration(pps), stop: make(chan struct{}), highest: -1}
	listen := func(space, at string) (c net.PacketConn, err error) {
		err = netns.Do(space, func() error {
			c, err = net.ListenPacket("udp", at)
			return err
		})
		return c, err
	}
	var err error
	if s.rx, err = listen(to, fmt.Sprintf("%s:%d", addr, port)); err != nil {
		return nil, err
	}
	if s.tx, err = listen(from, "0.0.0.0:0"); err != nil {
		return nil, errors.Join(err, s.rx.Close())
	}
	if err := widen(s.rx.(*net.UDPConn)); err != nil {
		return nil, errors.Join(err, s.rx.Close(), s.tx.Close())
	}
	s.to = s.rx.LocalAddr()
	s.wg.Go(s.send)
	s.wg.Go(s.receive)
	return s, nil
}

// receiveBuffer holds what comes while this process waits for a processor: some 20,000 datagrams.
const receiveBuffer = 8 << 20

// widen goes beyond net.core.rmem_max, which SetReadBuffer cannot: some 200 datagrams.
func widen(c *net.UDPConn) error {
	raw, err := c.SyscallConn()
	if err != nil {
		return err
	}
	var refused error
	if err := raw.Control(func(fd uintptr) {
		refused = os.NewSyscallError("setsockopt", unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, receiveBuffer))
	}); err != nil {
		return err
	}
	return refused
}

func (s *Stream) send() {
	begin := time.Now()
	var b [64]byte
	for i := 0; i < maxDatagrams; i++ {
		if wait := time.Until(begin.Add(time.Duration(i) * s.every)); wait > 0 {
			select {
			case <-s.stop:
				return
			case <-time.After(wait):
			}
		}
		select {
		case <-s.stop:
			return
		default:
		}
		binary.BigEndian.PutUint64(b[:], uint64(i))
		if _, err := s.tx.WriteTo(b[:], s.to); err != nil {
			s.mu.Lock()
			s.failed = err
			s.mu.Unlock()
			return
		}
		s.mu.Lock()
		s.sent = i + 1
		s.mu.Unlock()
	}
}

func (s *Stream) receive() {
	var b [128]byte
	for {
		n, _, err := s.rx.ReadFrom(b[:])
		if err != nil {
			return
		}
		if n < 8 {
			continue
		}
		i := int(binary.BigEndian.Uint64(b[:]))
		if i >= maxDatagrams {
			continue
		}
		now := time.Now()
		s.mu.Lock()
		for len(s.seen) <= i {
			s.seen = append(s.seen, 0)
		}
		if s.seen[i] < 255 {
			s.seen[i]++
		}
		if i < s.highest {
			s.reorder++
		}
		s.highest = max(s.highest, i)
		if !s.last.IsZero() {
			s.gap = max(s.gap, now.Sub(s.last))
		}
		s.last = now
		s.mu.Unlock()
	}
}

// Received is how many datagrams have arrived so far.
func (s *Stream) Received() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	n := 0
	for _, c := range s.seen {
		if c > 0 {
			n++
		}
	}
	return n
}

// Sent is how many datagrams have left so far.
func (s *Stream) Sent() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.sent
}

// LostOf is how many of datagrams [first, last), by the order of sending, did not arrive. To be called after Stop.
func (s *Stream) LostOf(first, last int) int {
	n := 0
	for i := first; i < min(last, s.sent); i++ {
		if i >= len(s.seen) || s.seen[i] == 0 {
			n++
		}
	}
	return n
}

// Await waits until at least n more datagrams were sent than at the call.
func (s *Stream) Await(ctx context.Context, n int) error {
	goal := s.Sent() + n
	for s.Sent() < goal {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(5 * time.Millisecond):
		}
	}
	return nil
}

// lookAgain is how often to look for what is on its way.
const lookAgain = 20 * time.Millisecond

// patience is how often in a row to look in vain: more while the last datagram has not arrived, for a switch in user space may wait for a
// processor. Looks are counted, not time: the whole machine may have stood still.
func (s *Stream) patience() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.highest >= 0 && s.highest < s.sent-1 {
		return int(2 * time.Second / lookAgain)
	}
	return int(200 * time.Millisecond / lookAgain)
}

// Stop ends the stream, lets what is on its way arrive, and counts.
func (s *Stream) Stop() (Outcome, error) {
	close(s.stop)
	for last, vain := s.Received(), 0; vain < s.patience(); vain++ {
		time.Sleep(lookAgain)
		if now := s.Received(); now != last {
			last, vain = now, 0
		}
	}
	err := errors.Join(s.tx.Close(), s.rx.Close())
	s.wg.Wait()
	o := Outcome{Sent: s.sent, LongestGap: s.gap, Reordered: s.reorder}
	for i := range s.sent {
		switch {
		case i >= len(s.seen) || s.seen[i] == 0:
			o.Lost++
		case s.seen[i] > 1:
			o.Duplicated += int(s.seen[i]) - 1
			fallthrough
		default:
			o.Received++
		}
	}
	return o, errors.Join(err, s.failed)
}
