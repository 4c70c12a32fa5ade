// Package settle takes what a function says of flows: lines at a socket in its container, such as "pass tcp 10.9.0.1:4000 10.9.0.2:80". Each is
// answered by a line. A process speaks for the instance in whose network namespace it is, and for no other. Connections, length and rate are bounded.
package settle

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net"
	"time"

	"golang.org/x/time/rate"

	"weir.dev/weir/agent/socket"
	"weir.dev/weir/datapath"
)

// Bounds of what a function may say.
const (
	conns   = 8   // of one function at a time; further ones wait in the kernel
	maxLine = 256 // bytes; a longer line ends its connection
	burst   = 2000
	perLine = 500 * time.Microsecond // one more line per; what comes faster waits
	patient = 2 * time.Second        // for who does not read the answers
)

// Answers.
const (
	answerEarly    = "early"     // a connection has just begun or ended: say it again
	answerNotGiven = "not-given" // the function has not been given the flow lately
)

// Server of one function's lines.
type Server struct {
	all      *socket.Conversations
	to       datapath.Settler
	instance func(socket.Space) (string, bool)
	rate     *rate.Limiter
}

// Serve listens at path, which is made at fresh, in the same file system. instance gives the switch's name of the function's instance whose ports are
// in a network namespace.
func Serve(fresh, path string, to datapath.Settler, instance func(socket.Space) (string, bool)) (s *Server, err error) {
	s = &Server{to: to, instance: instance, rate: rate.NewLimiter(rate.Every(perLine), burst)}
	if s.all, err = socket.Converse(fresh, path, conns, s.serve); err != nil {
		return nil, err
	}
	return s, nil
}

// Close ends it; no line has an effect afterwards. A Server that is nil is closed already.
func (s *Server) Close() {
	if s != nil {
		s.all.Close()
	}
}

// serve answers line by line, and sends what has gathered when no further line is there.
func (s *Server) serve(ctx context.Context, c *net.UnixConn) {
	from, err := socket.SpaceOf(c)
	r, w := bufio.NewReader(c), bufio.NewWriter(c)
	for {
		line, readErr := r.ReadSlice('\n')
		if len(line) > maxLine {
			s.answer(c, w, fmt.Sprintf("error: a line is longer than %d bytes", maxLine))
			_ = w.Flush()
			return
		}
		heard := time.Now()
		if len(line) > 0 && s.rate.Wait(ctx) == nil {
			text := ""
			if err != nil {
				text = "error: " + err.Error()
			} else {
				text = s.carryOut(ctx, from, string(line), heard)
			}
			if !s.answer(c, w, text) {
				return
			}
		}
		if readErr != nil || ctx.Err() != nil {
			_ = w.Flush()
			return
		}
		if r.Buffered() == 0 && w.Flush() != nil {
			return
		}
	}
}

func (s *Server) answer(c *net.UnixConn, w *bufio.Writer, text string) bool {
	if c.SetWriteDeadline(time.Now().Add(patient)) != nil {
		return false
	}
	_, err := w.WriteString(text + "\n")
	return err == nil
}

// carryOut a line that was heard at a time, and say what became of it.
func (s *Server) carryOut(ctx context.Context, from socket.Space, line string, heard time.Time) string {
	v, reset, err := Parse(line)
	v.Heard = heard
	if err != nil {
		return "error: " + err.Error()
	}
	name, there := s.instance(from)
	if !there {
		return "error: this process is not in the network namespace of an instance that has ports now"
	}
	ctx, cancel := context.WithTimeout(ctx, patient)
	defer cancel()
	n := 0
	if reset {
		err = s.to.UnsettleFlows(ctx, name)
	} else {
		n, err = s.to.SettleFlow(ctx, name, v)
	}
	switch {
	case errors.Is(err, datapath.ErrEarly):
		return answerEarly
	case errors.Is(err, datapath.ErrNotGiven):
		return answerNotGiven
	case err != nil:
		return "error: " + err.Error()
	}
	return fmt.Sprintf("ok %d", n)
}
