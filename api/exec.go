package api

import (
	"encoding/binary"
	"fmt"
	"io"
	"sync"
)

// ExecProtocol is the Upgrade token of POST /v1/functions/NAME/exec: after 101 both sides send frames.
const ExecProtocol = "weir-exec"

// WatchProtocol is the subprotocol of GET /v1/watch over a WebSocket: each binary message is a piece of the same server-sent events.
const WatchProtocol = "weir-watch"

// maxExecFrame bounds a frame's payload.
const maxExecFrame = 64 << 10

// MaxExecMessage bounds a message of a WebSocket: one frame.
const MaxExecMessage = 5 + maxExecFrame

// ExecType is the kind of a frame: one byte type, four bytes length (big endian), then the payload.
type ExecType uint8

const (
	ExecStdin      ExecType = iota // to the function
	ExecStdinClose                 // to the function: end of input
	ExecResize                     // to the function: columns and rows, two bytes each, big endian
	ExecStdout                     // from the function
	ExecStderr                     // from the function
	ExecExit                       // from the function, last: exit code, four bytes, big endian
	ExecError                      // from the function, last: why the process could not run
)

// ExecStream reads and writes frames. Writes are safe from several goroutines.
type ExecStream struct {
	r  io.Reader
	w  io.Writer
	mu sync.Mutex
}

// NewExecStream frames a connection.
func NewExecStream(r io.Reader, w io.Writer) *ExecStream { return &ExecStream{r: r, w: w} }

// Send writes p in as many frames as it takes, at least one.
func (s *ExecStream) Send(t ExecType, p []byte) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	for {
		n := min(len(p), maxExecFrame)
		frame := make([]byte, 5, 5+n)
		frame[0] = byte(t)
		binary.BigEndian.PutUint32(frame[1:], uint32(n))
		if _, err := s.w.Write(append(frame, p[:n]...)); err != nil {
			return err
		}
		if p = p[n:]; len(p) == 0 {
			return nil
		}
	}
}

// Receive reads one frame. io.EOF: the other side ended between two frames.
func (s *ExecStream) Receive() (ExecType, []byte, error) {
	var head [5]byte
	if _, err := io.ReadFull(s.r, head[:]); err != nil {
		return 0, nil, err
	}
	n := binary.BigEndian.Uint32(head[1:])
	if n > maxExecFrame || ExecType(head[0]) > ExecError {
		return 0, nil, fmt.Errorf("exec stream: bad frame (type %d, %d bytes): want a type up to %d and at most %d bytes", head[0], n, ExecError, maxExecFrame)
	}
	p := make([]byte, n)
	if _, err := io.ReadFull(s.r, p); err != nil {
		return 0, nil, fmt.Errorf("exec stream: frame cut short: %w", io.ErrUnexpectedEOF)
	}
	return ExecType(head[0]), p, nil
}

// Writer sends what is written as frames of one type.
func (s *ExecStream) Writer(t ExecType) io.Writer { return execWriter{s, t} }

type execWriter struct {
	s *ExecStream
	t ExecType
}

func (w execWriter) Write(p []byte) (int, error) {
	if len(p) == 0 {
		return 0, nil
	}
	if err := w.s.Send(w.t, p); err != nil {
		return 0, err
	}
	return len(p), nil
}
