package openflow

import (
	"context"
	"errors"
	"io"
	"net"
	"os"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"
)

// listen does the handshake as a switch, then says something in pieces of some bytes; events and end are what the controller makes of it.
func listen(t *testing.T, words []byte, piece int) (events []Event, end string) {
	t.Helper()
	near, far := pair(t)
	defer far.Close()
	go func() {
		hello, err := Append(nil, 1, &Hello{Versions: 1 << Version13})
		if err != nil {
			return
		}
		features, err := Append(nil, 2, &FeaturesReply{DatapathID: 1, Tables: 1})
		if err != nil {
			return
		}
		var buf []byte
		if buf, err = readMessage(far, buf); err != nil {
			return
		}
		if _, err = far.Write(hello); err != nil {
			return
		}
		if _, err = readMessage(far, buf); err != nil {
			return
		}
		if _, err = far.Write(features); err != nil {
			return
		}
		answers := make(chan struct{}) // to echo requests
		go func() { defer close(answers); _, _ = io.Copy(io.Discard, far) }()
		_, _ = far.Write(words)
		_ = far.CloseWrite() // and goes on to listen
		<-answers
	}()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	c, err := Controller(ctx, pieces{near, piece}, Options{Events: 1 << 14})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	for e := range c.Events() {
		events = append(events, e)
	}
	select {
	case <-c.Done():
	case <-ctx.Done():
		t.Fatal("the connection does not end with its switch")
	}
	var bad *DecodeError
	switch err := c.Err(); {
	case errors.Is(err, ErrClosed):
		return events, "closed"
	case errors.As(err, &bad):
		return events, bad.Error()
	default:
		t.Fatalf("it ended for a reason that callers cannot tell: %v", err)
		return nil, ""
	}
}

// Whatever a switch says, in whichever pieces it comes, the controller makes the same of it and ends with the connection.
func FuzzStream(f *testing.F) {
	say := func(ms ...Message) (b []byte) {
		for i, m := range ms {
			var err error
			if b, err = Append(b, uint32(i), m); err != nil {
				f.Fatal(err)
			}
		}
		return b
	}
	in := say(&PacketIn{TotalLen: 4, Match: Match{InPort(1)}, Data: []byte("data")}, &EchoRequest{Data: []byte("x")}, &BarrierReply{}, &PortStatus{})
	f.Add(in, 1)
	f.Add(in, 5)
	f.Add(in[:len(in)-3], 3)
	f.Add(say(&EchoReply{}, &Hello{}, NewError(BadLen, []byte("12345678")), &Raw{Kind: 99}), 8)
	f.Add([]byte{4, 10, 0, 7, 0, 0, 0, 0}, 2) // shorter than its header
	f.Add([]byte{4, 10, 0xff, 0xff, 0, 0, 0, 0}, 2)
	f.Add([]byte{1, 10, 0, 8, 0, 0, 0, 0}, 2)
	f.Fuzz(func(t *testing.T, words []byte, piece int) {
		if piece < 1 || len(words) > 1<<16 {
			return
		}
		events, end := listen(t, words, len(words)+1)
		again, endAgain := listen(t, words, piece)
		if diff := cmp.Diff(events, again, cmp.Comparer(func(a, b Event) bool {
			x, errX := Append(nil, a.XID, a.Message)
			y, errY := Append(nil, b.XID, b.Message)
			return string(x) == string(y) && (errX == nil) == (errY == nil)
		})); diff != "" || end != endAgain {
			t.Errorf("in pieces of %d bytes: %s, whole: %s\n%s", piece, endAgain, end, diff)
		}
	})
}

// pieces is a connection that gives few bytes at a time.
type pieces struct {
	net.Conn
	n int
}

func (p pieces) Read(b []byte) (int, error) { return p.Conn.Read(b[:min(len(b), p.n)]) }

// pair is both ends of a connection.
func pair(t *testing.T) (near, far *net.UnixConn) {
	t.Helper()
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	var both [2]*net.UnixConn
	for i, fd := range fds {
		f := os.NewFile(uintptr(fd), "pair")
		c, err := net.FileConn(f)
		if err := errors.Join(err, f.Close()); err != nil {
			t.Fatal(err)
		}
		both[i] = c.(*net.UnixConn)
	}
	return both[0], both[1]
}
