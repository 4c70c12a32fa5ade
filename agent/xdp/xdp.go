// Package xdp takes AF_XDP sockets of functions, so that no function loads programs: a message at a socket in its container, "in 0" with a descriptor, has the
// frames of a port's receive queue led into that AF_XDP socket (package bpf/xsk), and is answered by a line, "ok" or "error: ...". A process speaks for the instance
// in whose network namespace it is, and its socket must be of that namespace. Connections, length and rate are bounded.
//
// What a function is given here it has already: it could read the frames of its ports by a packet socket. The map holds the socket; nothing is kept here.
package xdp

import (
	"context"
	"errors"
	"fmt"
	"net"
	"regexp"
	"strconv"
	"sync"
	"time"

	"golang.org/x/sys/unix"
	"golang.org/x/time/rate"

	"weir.dev/weir/agent/socket"
	"weir.dev/weir/bpf/xsk"
	"weir.dev/weir/netns"
)

// Bounds of what a function may say.
const (
	conns      = 4  // of one function at a time; further ones wait in the kernel
	maxMessage = 64 // bytes; a longer one ends its connection
	burst      = 64 // messages: the queues of two ports, again and again
	perMessage = 100 * time.Millisecond
	silence    = 10 * time.Second // of a connection; then it ends
	patient    = time.Second      // for who does not read the answers
)

// Server of one function's messages.
type Server struct {
	all      *socket.Conversations
	instance func(socket.Space) (path string, ok bool)
	rate     *rate.Limiter

	mu      sync.Mutex    // one change of a port at a time
	closing chan struct{} // taken by descriptors that are being closed
}

// Serve listens at path, which is made at fresh, in the same file system. instance gives the path of the network namespace of the function's instance that is there.
func Serve(fresh, path string, instance func(socket.Space) (string, bool)) (s *Server, err error) {
	s = &Server{instance: instance, rate: rate.NewLimiter(rate.Every(perMessage), burst), closing: make(chan struct{}, conns)}
	if s.all, err = socket.Converse(fresh, path, conns, s.serve); err != nil {
		return nil, err
	}
	return s, nil
}

// Close ends it; no message has an effect afterwards, and sockets that were taken go on. A Server that is nil is closed already.
func (s *Server) Close() {
	if s != nil {
		s.all.Close()
	}
}

func (s *Server) serve(ctx context.Context, c *net.UnixConn) {
	from, err := socket.SpaceOf(c)
	for ctx.Err() == nil {
		if c.SetReadDeadline(time.Now().Add(silence)) != nil {
			return
		}
		line, fd, readErr := receive(c)
		if readErr != nil {
			s.drop(ctx, fd)
			if errors.Is(readErr, errMessage) {
				answer(c, readErr)
			}
			return
		}
		told := s.rate.Wait(ctx)
		if told == nil {
			if told = err; told == nil {
				told = s.take(from, line, fd)
			}
		}
		s.drop(ctx, fd)
		if !answer(c, told) {
			return
		}
	}
}

func answer(c *net.UnixConn, err error) bool {
	text := "ok\n"
	if err != nil {
		text = "error: " + err.Error() + "\n"
	}
	if c.SetWriteDeadline(time.Now().Add(patient)) != nil {
		return false
	}
	_, err = c.Write([]byte(text))
	return err == nil
}

// drop closes a descriptor that a function sent; -1 none. It may be of a kind that takes long to close, as long as the function likes: few are closed at once, nobody
// waits for them, and while they are being closed the function is not heard.
func (s *Server) drop(ctx context.Context, fd int) {
	if fd < 0 {
		return
	}
	select {
	case s.closing <- struct{}{}:
		go func() {
			_ = unix.Close(fd)
			<-s.closing
		}()
	case <-ctx.Done():
		go func() { _ = unix.Close(fd) }()
	}
}

// errMessage says that a message has not its form. Its connection ends.
var errMessage = errors.New(`want "PORT QUEUE", such as "in 0", in one message with one descriptor`)

// receive a message and its descriptor. fd is -1 if there is none; whatever err is, it is the caller's to close.
func receive(c *net.UnixConn) (line string, fd int, err error) {
	text := make([]byte, maxMessage+1)
	oob := make([]byte, unix.CmsgLen(4)) // for one descriptor: the kernel installs no other
	n, oobn, flags, _, err := c.ReadMsgUnix(text, oob)
	fd = -1
	if oobn > 0 {
		messages, perr := unix.ParseSocketControlMessage(oob[:oobn])
		if perr == nil && len(messages) == 1 {
			if fds, rerr := unix.ParseUnixRights(&messages[0]); rerr == nil && len(fds) == 1 {
				fd = fds[0]
			}
		}
	}
	switch {
	case err != nil:
		return "", fd, err
	case n == 0:
		return "", fd, net.ErrClosed
	case n > maxMessage || flags&(unix.MSG_CTRUNC|unix.MSG_TRUNC) != 0 || fd < 0:
		return "", fd, errMessage
	}
	return string(text[:n]), fd, nil
}

// form of a message. Ports are those of functions: nothing else of a namespace gets a program.
var form = regexp.MustCompile(`^(in|out|tap) (0|[1-9][0-9]{0,2})\n?$`)

func parse(line string) (port string, queue uint32, err error) {
	words := form.FindStringSubmatch(line)
	if words == nil {
		return "", 0, fmt.Errorf("%q: %w", line, errMessage)
	}
	n, err := strconv.ParseUint(words[2], 10, 32)
	return words[1], uint32(n), err
}

// take a socket of the instance in a namespace.
func (s *Server) take(from socket.Space, line string, fd int) error {
	port, queue, err := parse(line)
	if err != nil {
		return err
	}
	path, there := s.instance(from)
	if !there {
		return errors.New("this process is not in the network namespace of an instance that has ports now")
	}
	if family, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_DOMAIN); err != nil || family != unix.AF_XDP {
		return errors.New("the descriptor is no AF_XDP socket")
	}
	its, err := unix.GetsockoptUint64(fd, unix.SOL_SOCKET, unix.SO_NETNS_COOKIE)
	if err != nil {
		return fmt.Errorf("network namespace of the socket: %w (kernel 5.14)", err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return netns.Do(path, func() error {
		own, err := cookie()
		if err != nil {
			return err
		}
		if its != own {
			return errors.New("the socket is of another network namespace")
		}
		return xsk.Put(xsk.Queue{Link: port, N: queue}, fd)
	})
}

// cookie of the calling thread's network namespace.
func cookie() (uint64, error) {
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return 0, fmt.Errorf("socket: %w", err)
	}
	defer unix.Close(fd)
	c, err := unix.GetsockoptUint64(fd, unix.SOL_SOCKET, unix.SO_NETNS_COOKIE)
	if err != nil {
		return 0, fmt.Errorf("network namespace: %w (kernel 5.14)", err)
	}
	return c, nil
}
