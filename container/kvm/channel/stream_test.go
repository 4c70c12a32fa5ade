package channel

import (
	"bytes"
	"encoding/binary"
	"errors"
	"io"
	"testing"
)

// A sender stops when its credit is used up, and goes on when there is more.
func TestSendersWaitForCredit(t *testing.T) {
	sent := make(chan Frame, 100)
	c := NewConn(decoder(sent))
	s, err := c.New(2)
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan error)
	go func() { done <- s.Write(Data, make([]byte, Window+1)) }()
	for range Window / MaxPayload {
		if f := <-sent; len(f.Payload) != MaxPayload {
			t.Fatalf("%d bytes", len(f.Payload))
		}
	}
	select {
	case err := <-done:
		t.Fatalf("it has not waited: %v", err)
	default:
	}
	s.Deliver(Frame{Credit, 2, binary.BigEndian.AppendUint32(nil, 64)})
	if err := <-done; err != nil {
		t.Error(err)
	}
	if f := <-sent; len(f.Payload) != 1 {
		t.Errorf("%d bytes", len(f.Payload))
	}
	go func() { done <- s.Put(EOF, nil) }()
	c.CloseAll(io.ErrUnexpectedEOF)
	if err := <-done; !errors.Is(err, io.ErrUnexpectedEOF) {
		t.Errorf("after the end: %v", err)
	}
}

// decoder hands on what is written to it.
type decoder chan Frame

func (d decoder) Write(p []byte) (int, error) {
	r := NewReader(bytes.NewReader(p))
	for {
		f, err := r.Next()
		if err != nil {
			return len(p), nil
		}
		f.Payload = bytes.Clone(f.Payload)
		d <- f
	}
}

// Whoever sends more than it may loses its stream, and no memory is taken for it: small frames count as larger ones.
func TestOverrunsEndTheStream(t *testing.T) {
	for _, size := range []int{0, 1, 1000, MaxPayload} {
		c := NewConn(io.Discard)
		s, err := c.New(2)
		if err != nil {
			t.Fatal(err)
		}
		held := 0
		for range 2 * Window {
			s.Deliver(Frame{Data, 2, make([]byte, size)})
			held = max(held, len(s.queue))
		}
		if held*max(size, 64) > Window {
			t.Errorf("%d frames of %d bytes are held", held, size)
		}
		if _, err := s.Next(); !errors.Is(err, ErrOverrun) {
			t.Errorf("%d bytes: %v", size, err)
		}
	}
}

func TestStreamsAreBounded(t *testing.T) {
	c := NewConn(io.Discard)
	for i := range uint32(MaxStreams) {
		if _, err := c.New(2 * i); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := c.New(1000); !errors.Is(err, ErrMany) {
		t.Errorf("got %v", err)
	}
	if _, err := c.New(1001); err != nil {
		t.Errorf("the other side's: %v", err)
	}
	if _, err := c.New(1001); err == nil {
		t.Error("a number twice")
	}
}
