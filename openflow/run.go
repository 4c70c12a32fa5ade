package openflow

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

// Conn is one connection after its handshake: a reader, a writer and an echo goroutine. All methods may be called from several goroutines.
type Conn struct {
	nc       net.Conn
	r        *bufio.Reader
	o        Options
	side     side
	features FeaturesReply

	events  chan Event
	dropped atomic.Uint64
	done    chan struct{}
	heard   atomic.Int64 // when the peer last sent something, ns since start
	start   time.Time

	mu      sync.Mutex
	err     error
	xid     uint32
	out     []byte        // waits to be written
	spare   []byte        // the other buffer
	room    chan struct{} // closed and replaced when out has been taken
	wake    chan struct{} // capacity 1: out is not empty
	pending map[uint32]*call
	batches map[*batch]struct{}
}

type side uint8

const (
	asController side = iota
	asSwitch
)

// call waits for the answer with its xid.
type call struct {
	done  chan struct{} // capacity 0, closed when settled
	parts []MultipartBody
	reply Message
	err   error
	size  int
	multi bool
}

// batch collects errors about messages with xids first to last (which may wrap around).
type batch struct {
	first, count uint32
	errs         map[uint32]*Error
}

func (o Options) defaults() Options {
	set := func(d *time.Duration, v time.Duration) {
		if *d == 0 {
			*d = v
		}
	}
	set(&o.EchoInterval, 5*time.Second)
	set(&o.EchoTimeout, 5*time.Second)
	set(&o.Handshake, 10*time.Second)
	if o.Queue <= 0 {
		o.Queue = 4 << 20
	}
	if o.Events <= 0 {
		o.Events = 1024
	}
	if o.Parts <= 0 {
		o.Parts = 256 << 20
	}
	return o
}

func newConn(nc net.Conn, o Options, role side) *Conn {
	o = o.defaults()
	return &Conn{nc: nc, r: bufio.NewReaderSize(nc, 64<<10), o: o, side: role, events: make(chan Event, 2*o.Events),
		done: make(chan struct{}), start: time.Now(), room: make(chan struct{}), wake: make(chan struct{}, 1),
		pending: map[uint32]*call{}, batches: map[*batch]struct{}{}}
}

// run starts the goroutines after the handshake.
func (c *Conn) run() {
	c.heard.Store(int64(time.Since(c.start)))
	go c.read()
	go c.write()
	if c.o.EchoInterval > 0 {
		go c.keepalive()
	}
}

// Err is why the connection ended, nil while it lives; it wraps ErrClosed after Close and when the peer closed.
func (c *Conn) Err() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.err
}

// shut ends the connection with a reason; only the first counts.
func (c *Conn) shut(err error) error {
	c.mu.Lock()
	if c.err != nil {
		c.mu.Unlock()
		return nil
	}
	c.err = err
	calls := c.pending
	c.pending = nil
	close(c.done)
	c.mu.Unlock()
	for _, k := range calls {
		k.err = err
		close(k.done)
	}
	return c.nc.Close()
}

// readMessage reads one message into buf, which grows to MaxMessage at most.
func readMessage(r io.Reader, buf []byte) ([]byte, error) {
	buf = buf[:cap(buf)]
	if len(buf) < headerLen {
		buf = make([]byte, 2048)
	}
	if _, err := io.ReadFull(r, buf[:headerLen]); err != nil {
		return buf, err
	}
	n := int(be.Uint16(buf[2:]))
	if n < headerLen {
		return buf, &DecodeError{Type: Type(buf[1]), XID: be.Uint32(buf[4:]), Code: BadLen, Reason: fmt.Sprintf("header says %d bytes", n)}
	}
	if n > len(buf) {
		bigger := make([]byte, max(n, min(2*len(buf), MaxMessage)))
		copy(bigger, buf[:headerLen])
		buf = bigger
	}
	if _, err := io.ReadFull(r, buf[headerLen:n]); err != nil {
		return buf, fmt.Errorf("in a message of %d bytes: %w", n, err)
	}
	return buf[:n], nil
}

func (c *Conn) read() {
	defer close(c.events)
	var buf []byte
	messages, size := newPace(c.o.Rate), newPace(c.o.Bytes)
	for {
		b, err := readMessage(c.r, buf)
		if err != nil {
			if errors.Is(err, io.EOF) || errors.Is(err, net.ErrClosed) || errors.Is(err, io.ErrUnexpectedEOF) {
				err = fmt.Errorf("%w by peer: %w", ErrClosed, err)
			}
			c.shut(err)
			return
		}
		buf = b
		c.heard.Store(int64(time.Since(c.start)))
		c.rest(max(messages.take(1), size.take(len(b))))
		xid, m, err := Decode(b)
		if err == nil {
			err = c.dispatch(xid, m, len(b))
		} else {
			err = c.malformed(xid, b, err)
		}
		if err != nil {
			c.shut(err)
			return
		}
	}
}

// pace says how long to rest so that no more than a rate passes; twice the rate may pass at once.
type pace struct {
	rate, level float64
	last        time.Time
}

func newPace(rate int) *pace {
	return &pace{rate: float64(rate), level: 2 * float64(rate), last: time.Now()}
}

func (p *pace) take(n int) time.Duration {
	if p.rate == 0 {
		return 0
	}
	now := time.Now()
	p.level = min(2*p.rate, p.level+p.rate*now.Sub(p.last).Seconds()) - float64(n)
	p.last = now
	if p.level >= 0 {
		return 0
	}
	return time.Duration(-p.level / p.rate * float64(time.Second))
}

// restLeast keeps a reader from many short rests.
const restLeast = 5 * time.Millisecond

// rest reads nothing for a while: the peer's transport makes it wait.
func (c *Conn) rest(d time.Duration) {
	if d < restLeast {
		return
	}
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
	case <-c.done:
	}
}

// malformed answers a request, fails a call, or ends the connection.
func (c *Conn) malformed(xid uint32, b []byte, err error) error {
	var d *DecodeError
	if c.side == asSwitch && errors.As(err, &d) {
		c.append(true, func(out []byte) ([]byte, error) { return Append(out, xid, NewError(d.Code, b)) })
		return nil
	}
	c.mu.Lock()
	k := c.pending[xid]
	delete(c.pending, xid)
	c.mu.Unlock()
	if k == nil {
		return err
	}
	k.err = err
	close(k.done)
	return nil
}

func (c *Conn) dispatch(xid uint32, m Message, size int) error {
	switch m := m.(type) {
	case *EchoRequest:
		c.append(true, func(b []byte) ([]byte, error) { return Append(b, xid, &EchoReply{m.Data}) })
		return nil
	case *EchoReply:
		c.settle(xid, m, nil, size) // or keepalive's
		return nil
	case *FeaturesRequest:
		if c.side == asSwitch {
			c.append(true, func(b []byte) ([]byte, error) { return Append(b, xid, &c.features) })
			return nil
		}
	case *Error:
		if c.blame(xid, m) || c.settle(xid, nil, m, size) {
			return nil
		}
	case *PacketIn:
		if len(c.events) >= c.o.Events {
			c.dropped.Add(1)
			return nil
		}
	case *PortStatus, *FlowRemoved:
	default:
		if c.side == asController && c.settle(xid, m, nil, size) {
			return nil
		}
	}
	return c.deliver(Event{xid, m})
}

func (c *Conn) deliver(e Event) error {
	if c.side == asSwitch {
		select {
		case c.events <- e:
		case <-c.done:
		}
		return nil
	}
	select {
	case c.events <- e:
		return nil
	default:
		return fmt.Errorf("%w: %d wait", ErrOverflow, len(c.events))
	}
}

// settle gives an answer to the call that waits for it.
func (c *Conn) settle(xid uint32, m Message, err *Error, size int) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	k := c.pending[xid]
	if k == nil {
		return false
	}
	if p, ok := m.(*MultipartReply); ok && k.multi && err == nil {
		k.parts = append(k.parts, p.Body)
		k.size += size
		if p.More && k.size <= c.o.Parts {
			return true
		}
		if p.More {
			k.err = fmt.Errorf("%w: more than %d bytes", ErrTooLong, c.o.Parts)
		}
	} else if err != nil {
		k.err = err
	} else {
		k.reply = m
	}
	delete(c.pending, xid)
	close(k.done)
	return true
}

// blame gives an error to the batch that holds the offending message.
func (c *Conn) blame(xid uint32, e *Error) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	for b := range c.batches {
		if i := xid - b.first; i < b.count {
			if _, dup := b.errs[i]; !dup {
				b.errs[i] = e
			}
			return true
		}
	}
	return false
}

// append encodes into the outgoing buffer. force: answers are queued beyond the bound, since the reader must not wait for the writer;
// how many there can be is bounded by what the peer sends, and beyond twice the bound the connection ends.
func (c *Conn) append(force bool, f func([]byte) ([]byte, error)) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.appendLocked(force, f)
}

func (c *Conn) appendLocked(force bool, f func([]byte) ([]byte, error)) error {
	if c.err != nil {
		return c.err
	}
	if force && len(c.out) > 2*c.o.Queue+MaxMessage {
		go c.shut(fmt.Errorf("%w: peer asks but does not read", ErrOverflow))
		return ErrOverflow
	}
	b, err := f(c.out)
	if err != nil {
		return err
	}
	c.out = b
	select {
	case c.wake <- struct{}{}:
	default:
	}
	return nil
}

// wait returns with mu held when there is room in the queue.
func (c *Conn) wait(ctx context.Context) error {
	c.mu.Lock()
	for c.err == nil && len(c.out) >= c.o.Queue {
		room := c.room
		c.mu.Unlock()
		select {
		case <-room:
		case <-c.done:
		case <-ctx.Done():
			return fmt.Errorf("openflow: wait for room to send: %w", context.Cause(ctx))
		}
		c.mu.Lock()
	}
	if c.err != nil {
		defer c.mu.Unlock()
		return c.err
	}
	if err := ctx.Err(); err != nil {
		c.mu.Unlock()
		return err
	}
	return nil
}

func (c *Conn) write() {
	for {
		select {
		case <-c.done:
			return
		case <-c.wake:
		}
		c.mu.Lock()
		b := c.out
		c.out = c.spare[:0]
		c.spare = nil
		close(c.room)
		c.room = make(chan struct{})
		c.mu.Unlock()
		if len(b) > 0 {
			if _, err := c.nc.Write(b); err != nil {
				c.shut(fmt.Errorf("%w: %w", ErrClosed, err))
				return
			}
		}
		c.mu.Lock()
		if c.spare == nil && cap(b) <= 2*c.o.Queue {
			c.spare = b[:0]
		}
		c.mu.Unlock()
	}
}

// keepalive asks for an echo when the peer has been silent for EchoInterval, and ends the connection EchoTimeout later.
func (c *Conn) keepalive() {
	t := time.NewTimer(c.o.EchoInterval)
	defer t.Stop()
	var asked time.Duration // silence began then; 0: nothing asked
	for {
		select {
		case <-c.done:
			return
		case <-t.C:
		}
		heard := time.Duration(c.heard.Load())
		silent := time.Since(c.start) - heard
		switch {
		case silent < c.o.EchoInterval:
			asked = 0
			t.Reset(c.o.EchoInterval - silent)
		case asked == heard && asked != 0:
			c.shut(fmt.Errorf("%w: silent for %v", ErrTimeout, silent.Round(time.Millisecond)))
			return
		default:
			asked = heard
			c.append(true, func(b []byte) ([]byte, error) { return Append(b, c.nextXID(), &EchoRequest{}) })
			t.Reset(c.o.EchoTimeout)
		}
	}
}

// nextXID is called with mu held. 0 is left out: some switches use it for what is unasked.
func (c *Conn) nextXID() uint32 {
	c.xid++
	if c.xid == 0 {
		c.xid = 1
	}
	return c.xid
}

// Dial connects to a switch that listens at "tcp:HOST:PORT" or "unix:PATH" and does the handshake as its controller.
// Open vSwitch sends nothing unasked on such a connection (packet-in, port-status, flow-removed) until a SetAsync says what it shall.
func Dial(ctx context.Context, address string, o Options) (*Conn, error) {
	network, rest, ok := strings.Cut(address, ":")
	if !ok || network != "tcp" && network != "unix" {
		return nil, fmt.Errorf("openflow: address %q: want tcp:HOST:PORT or unix:PATH", address)
	}
	var d net.Dialer
	nc, err := d.DialContext(ctx, network, rest)
	if err != nil {
		return nil, fmt.Errorf("openflow: %w", err)
	}
	return Controller(ctx, nc, o)
}
