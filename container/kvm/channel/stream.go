package channel

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"sync"
)

// Errors of streams.
var (
	ErrClosed  = errors.New("stream is closed")
	ErrOverrun = errors.New("more was sent than there was credit for")
	ErrMany    = fmt.Errorf("more than %d streams at a time", MaxStreams)
)

// Conn carries streams over one line. Whoever reads the line gives it the frames of streams.
type Conn struct {
	writing sync.Mutex
	w       io.Writer
	buf     []byte

	mu      sync.Mutex
	streams map[uint32]*Stream
}

// NewConn sends to w.
func NewConn(w io.Writer) *Conn { return &Conn{w: w, streams: map[uint32]*Stream{}} }

// Send writes a frame, whole.
func (c *Conn) Send(f Frame) error {
	c.writing.Lock()
	defer c.writing.Unlock()
	return c.send(f)
}

func (c *Conn) send(f Frame) (err error) {
	if c.buf, err = Append(c.buf[:0], f); err != nil {
		return err
	}
	_, err = c.w.Write(c.buf)
	return err
}

// New begins a stream; each side has even numbers, or odd ones.
func (c *Conn) New(id uint32) (*Stream, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	of := 0
	for have := range c.streams {
		if have%2 == id%2 {
			of++
		}
	}
	if of >= MaxStreams {
		return nil, ErrMany
	}
	if c.streams[id] != nil {
		return nil, fmt.Errorf("stream %d is there already", id)
	}
	s := &Stream{conn: c, id: id, credit: Window}
	s.changed.L = &s.mu
	c.streams[id] = s
	return s, nil
}

// Stream finds one; nil: there is none.
func (c *Conn) Stream(id uint32) *Stream {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.streams[id]
}

// CloseAll ends all streams. Nothing of them is sent from then on.
func (c *Conn) CloseAll(err error) {
	c.mu.Lock()
	all := c.streams
	c.streams = map[uint32]*Stream{}
	c.mu.Unlock()
	for _, s := range all {
		s.End(err)
	}
	c.through()
}

// through returns when whoever was writing has done so.
func (c *Conn) through() {
	c.writing.Lock()
	defer c.writing.Unlock()
}

// Stream of bytes in both directions, with credit.
type Stream struct {
	conn *Conn
	id   uint32

	mu      sync.Mutex
	changed sync.Cond
	credit  int // that we have
	owed    int // credit that is not given back yet
	queue   []Piece
	queued  int
	err     error
}

// Piece is what one frame brought.
type Piece struct {
	Kind Kind
	Data []byte
}

// ID is its number.
func (s *Stream) ID() uint32 { return s.id }

// cost of a frame in credit: a small one takes memory, too.
func cost(n int) int { return max(n, 64) }

// Write sends data as frames of a kind, as credit allows.
func (s *Stream) Write(kind Kind, p []byte) error {
	for len(p) > 0 {
		n := min(len(p), MaxPayload)
		if err := s.Put(kind, p[:n]); err != nil {
			return err
		}
		p = p[n:]
	}
	return nil
}

// Put sends one frame, when there is credit for it.
func (s *Stream) Put(kind Kind, payload []byte) error {
	s.mu.Lock()
	for s.err == nil && s.credit < cost(len(payload)) {
		s.changed.Wait()
	}
	s.credit -= cost(len(payload))
	s.mu.Unlock()
	return s.send(kind, payload)
}

// send sends nothing more once the stream has ended.
func (s *Stream) send(kind Kind, payload []byte) error {
	s.conn.writing.Lock()
	defer s.conn.writing.Unlock()
	s.mu.Lock()
	err := s.err
	s.mu.Unlock()
	if err != nil {
		return err
	}
	return s.conn.send(Frame{kind, s.id, payload})
}

// Next waits for a piece; what it brought has to be Done with. An error: the stream has ended.
func (s *Stream) Next() (Piece, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for len(s.queue) == 0 && s.err == nil {
		s.changed.Wait()
	}
	if s.err != nil {
		return Piece{}, s.err
	}
	p := s.queue[0]
	s.queue = s.queue[1:]
	return p, nil
}

// Done gives the sender credit for a piece, a quarter of the window at a time.
func (s *Stream) Done(p Piece) error {
	s.mu.Lock()
	s.queued -= cost(len(p.Data))
	s.owed += cost(len(p.Data))
	give := s.owed
	if give < Window/4 {
		s.mu.Unlock()
		return nil
	}
	s.owed = 0
	s.mu.Unlock()
	return s.send(Credit, binary.BigEndian.AppendUint32(nil, uint32(give)))
}

// Deliver takes a frame of the stream. It does not wait, and keeps no more than Window; beyond that the stream ends.
func (s *Stream) Deliver(f Frame) {
	if f.Kind == Close {
		s.Close()
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	defer s.changed.Broadcast()
	switch {
	case s.err != nil:
	case f.Kind == Credit && len(f.Payload) == 4:
		// More than was taken is not believed.
		s.credit = int(min(uint64(s.credit)+uint64(binary.BigEndian.Uint32(f.Payload)), Window))
	case f.Kind == Credit:
		s.err = ErrOverrun
	default:
		if s.queued += cost(len(f.Payload)); s.queued > Window {
			s.err, s.queue = ErrOverrun, nil
			return
		}
		s.queue = append(s.queue, Piece{f.Kind, append([]byte(nil), f.Payload...)})
	}
}

// End ends the stream with an error, on this side.
func (s *Stream) End(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.err == nil {
		s.err = err
	}
	s.queue = nil
	s.changed.Broadcast()
}

// Close forgets the stream, on this side.
func (s *Stream) Close() {
	s.conn.mu.Lock()
	if s.conn.streams[s.id] == s {
		delete(s.conn.streams, s.id)
	}
	s.conn.mu.Unlock()
	s.End(ErrClosed)
}

// Reset has the other side end it, too.
func (s *Stream) Reset() {
	_ = s.send(Close, nil)
	s.Close()
}

// HalfCloser is a connection whose end of sending can be told.
type HalfCloser interface {
	io.ReadWriter
	CloseWrite() error
}

// Join carries a connection by a stream until both directions have ended. The caller closes both.
func Join(s *Stream, c HalfCloser) {
	sent := make(chan struct{})
	go func() {
		defer close(sent)
		buf := make([]byte, MaxPayload)
		for {
			n, err := c.Read(buf)
			if n > 0 && s.Write(Data, buf[:n]) != nil {
				return
			}
			if err != nil {
				_ = s.Put(EOF, nil)
				return
			}
		}
	}()
	for {
		p, err := s.Next()
		if err != nil {
			return
		}
		if p.Kind == EOF {
			_ = s.Done(p)
			_ = c.CloseWrite()
			break
		}
		if _, err := c.Write(p.Data); err != nil {
			s.Reset()
			return
		}
		_ = s.Done(p)
	}
	<-sent
}
