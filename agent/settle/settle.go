// Package settle takes what a function says of flows: lines at a socket in its container, such as "pass tcp 10.9.0.1:4000 10.9.0.2:80". Each is
// answered by a line. A process speaks for the instance in whose network namespace it is, and for no other. Connections, length and rate are bounded.
package settle

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
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

// Space is a network namespace.
type Space struct{ dev, ino uint64 }

// SpaceAt a path, such as /proc/PID/ns/net.
func SpaceAt(path string) (Space, error) {
	info, err := os.Stat(path)
	if err != nil {
		return Space{}, err
	}
	st, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		return Space{}, fmt.Errorf("%s: %w", path, fs.ErrInvalid)
	}
	return Space{uint64(st.Dev), st.Ino}, nil //nolint:unconvert // 32 bits on some architectures
}

// Server of one function's lines.
type Server struct {
	ctx      context.Context
	stop     context.CancelFunc
	l        *net.UnixListener
	path     string
	to       datapath.Settler
	instance func(Space) (string, bool)
	done     sync.WaitGroup
	rate     *rate.Limiter

	slots chan struct{} // taken by connections
	mu    sync.Mutex
	open  map[*net.UnixConn]bool
}

// Serve listens at path, which is made at fresh, in the same file system. instance gives the switch's name of the function's instance whose ports are
// in a network namespace.
func Serve(fresh, path string, to datapath.Settler, instance func(Space) (string, bool)) (*Server, error) {
	l, err := socket.Listen(fresh, path)
	if err != nil {
		return nil, err
	}
	s := &Server{l: l, path: path, to: to, instance: instance, rate: rate.NewLimiter(rate.Every(perLine), burst), slots: make(chan struct{}, conns),
		open: map[*net.UnixConn]bool{}}
	s.ctx, s.stop = context.WithCancel(context.Background())
	s.done.Go(s.accept)
	return s, nil
}

// Close ends it; no line has an effect afterwards. A Server that is nil is closed already.
func (s *Server) Close() {
	if s == nil {
		return
	}
	s.stop()
	_ = s.l.Close()
	s.mu.Lock()
	for c := range s.open {
		_ = c.Close()
	}
	s.mu.Unlock()
	s.done.Wait()
	_ = os.Remove(s.path)
}

func (s *Server) accept() {
	for {
		select {
		case s.slots <- struct{}{}:
		case <-s.ctx.Done():
			return
		}
		c, err := s.l.AcceptUnix()
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil {
			<-s.slots
			select { // no descriptor is left: the connections that there are may end
			case <-s.ctx.Done():
			case <-time.After(100 * time.Millisecond):
			}
			continue
		}
		s.mu.Lock()
		s.open[c] = true
		s.mu.Unlock()
		s.done.Go(func() {
			s.serve(c)
			_ = c.Close()
			s.mu.Lock()
			delete(s.open, c)
			s.mu.Unlock()
			<-s.slots
		})
	}
}

// serve answers line by line, and sends what has gathered when no further line is there.
func (s *Server) serve(c *net.UnixConn) {
	if s.ctx.Err() != nil {
		return
	}
	from, err := speaker(c)
	r, w := bufio.NewReader(c), bufio.NewWriter(c)
	for {
		line, readErr := r.ReadSlice('\n')
		if len(line) > maxLine {
			s.answer(c, w, fmt.Sprintf("error: a line is longer than %d bytes", maxLine))
			_ = w.Flush()
			return
		}
		heard := time.Now()
		if len(line) > 0 && s.rate.Wait(s.ctx) == nil {
			text := ""
			if err != nil {
				text = "error: " + err.Error()
			} else {
				text = s.carryOut(from, string(line), heard)
			}
			if !s.answer(c, w, text) {
				return
			}
		}
		if readErr != nil || s.ctx.Err() != nil {
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
func (s *Server) carryOut(from Space, line string, heard time.Time) string {
	v, reset, err := Parse(line)
	v.Heard = heard
	if err != nil {
		return "error: " + err.Error()
	}
	name, there := s.instance(from)
	if !there {
		return "error: this process is not in the network namespace of an instance that has ports now"
	}
	ctx, cancel := context.WithTimeout(s.ctx, patient)
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

// speaker is the network namespace of the process that connected.
func speaker(c *net.UnixConn) (Space, error) {
	conn, err := c.SyscallConn()
	if err != nil {
		return Space{}, err
	}
	var cred *unix.Ucred
	if e := conn.Control(func(fd uintptr) { cred, err = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED) }); e != nil {
		return Space{}, e
	}
	if err != nil {
		return Space{}, fmt.Errorf("who speaks: %w", err)
	}
	return SpaceAt(fmt.Sprintf("/proc/%d/ns/net", cred.Pid))
}
