package rr

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"runtime"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"weir.dev/weir/netns"
)

// stuck is how long a socket may make no progress.
const stuck = 20 * time.Second

// ErrStuck says that a connection made no progress for a long time.
var ErrStuck = errors.New("no progress")

// ends are the sockets of a run: all are closed together, and shut down when its context ends, so that no thread waits for ever.
type ends struct {
	congestion string // control of the sockets; those that a listener accepts have the listener's

	mu   sync.Mutex
	fds  map[int]bool
	over error // no more sockets: why
}

func (e *ends) add(fd int) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.over != nil {
		return errors.Join(e.over, unix.Close(fd))
	}
	if e.fds == nil {
		e.fds = map[int]bool{}
	}
	e.fds[fd] = true
	return nil
}

// wake everybody who waits at a socket, for ever.
func (e *ends) wake(why error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.over == nil {
		e.over = why
	}
	for fd := range e.fds {
		_ = unix.Shutdown(fd, unix.SHUT_RDWR) // it may have ended by itself
	}
}

// close one end. Unknown: nil.
func (e *ends) close(fd int) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	if !e.fds[fd] {
		return nil
	}
	delete(e.fds, fd)
	return unix.Close(fd)
}

// closeAll when no thread uses them any more.
func (e *ends) closeAll() error {
	e.mu.Lock()
	defer e.mu.Unlock()
	var errs []error
	for fd := range e.fds {
		errs = append(errs, unix.Close(fd))
	}
	clear(e.fds)
	return errors.Join(errs...)
}

// make n sockets of TCP in a namespace.
func (e *ends) make(space string, family, n int) (fds []int, err error) {
	return e.sockets(space, family, unix.SOCK_STREAM, n)
}

// sockets of a kind, streams or datagrams.
func (e *ends) sockets(space string, family, kind, n int) (fds []int, err error) {
	err = netns.Do(space, func() error {
		for range n {
			fd, err := unix.Socket(family, kind|unix.SOCK_CLOEXEC, 0)
			if err != nil {
				return fmt.Errorf("socket: %w", err)
			}
			if err := e.add(fd); err != nil {
				return err
			}
			if kind == unix.SOCK_DGRAM {
				fds = append(fds, fd)
				if err := patient(fd); err != nil {
					return err
				}
				continue
			}
			if err := tune(fd); err != nil {
				return err
			}
			if e.congestion != "" {
				if err := unix.SetsockoptString(fd, unix.IPPROTO_TCP, unix.TCP_CONGESTION, e.congestion); err != nil {
					return fmt.Errorf("congestion control %s: %w", e.congestion, err)
				}
			}
			fds = append(fds, fd)
		}
		return nil
	})
	return fds, err
}

// tune a socket of TCP: small writes leave at once, and no call blocks for longer than stuck.
func tune(fd int) error {
	return errors.Join(unix.SetsockoptInt(fd, unix.IPPROTO_TCP, unix.TCP_NODELAY, 1), patient(fd))
}

// patient makes no call of a socket block for longer than stuck.
func patient(fd int) error {
	limit := unix.NsecToTimeval(int64(stuck))
	return errors.Join(
		unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &limit),
		unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_SNDTIMEO, &limit),
	)
}

// listen in a namespace at a port that the kernel chooses.
func (e *ends) listen(space string, at netip.Addr, backlog int) (fd int, to netip.AddrPort, err error) {
	fds, err := e.make(space, family(at), 1)
	if err != nil {
		return -1, to, err
	}
	fd = fds[0]
	if err := unix.Bind(fd, address(netip.AddrPortFrom(at, 0))); err != nil {
		return -1, to, fmt.Errorf("bind %s: %w", at, err)
	}
	if err := unix.Listen(fd, backlog); err != nil {
		return -1, to, fmt.Errorf("listen: %w", err)
	}
	name, err := unix.Getsockname(fd)
	if err != nil {
		return -1, to, fmt.Errorf("getsockname: %w", err)
	}
	switch a := name.(type) {
	case *unix.SockaddrInet4:
		return fd, netip.AddrPortFrom(at, uint16(a.Port)), nil
	case *unix.SockaddrInet6:
		return fd, netip.AddrPortFrom(at, uint16(a.Port)), nil
	}
	return -1, to, fmt.Errorf("listen: an address of type %T", name)
}

func (e *ends) accept(listener int) (int, error) {
	for {
		fd, _, err := unix.Accept4(listener, unix.SOCK_CLOEXEC)
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil {
			return -1, told("accept", err)
		}
		if err := e.add(fd); err != nil {
			return -1, err
		}
		return fd, tune(fd)
	}
}

// connect a blocking socket. An interrupted connect goes on by itself: asking again tells when it is done.
func connect(fd int, to netip.AddrPort) error {
	for {
		err := unix.Connect(fd, address(to))
		switch {
		case errors.Is(err, unix.EISCONN):
			return nil
		case errors.Is(err, unix.EINTR), errors.Is(err, unix.EALREADY):
			continue
		case errors.Is(err, unix.EINPROGRESS): // its time to send is over
			return fmt.Errorf("connect to %s: %w for %s", to, ErrStuck, stuck)
		case err != nil:
			return fmt.Errorf("connect to %s: %w", to, err)
		}
		return nil
	}
}

// readFull fills b. io.EOF: nothing came before the end; io.ErrUnexpectedEOF: less than b.
func readFull(fd int, b []byte) error {
	for n := 0; n < len(b); {
		k, err := unix.Read(fd, b[n:])
		switch {
		case errors.Is(err, unix.EINTR):
		case err != nil:
			return told("read", err)
		case k == 0 && n == 0:
			return io.EOF
		case k == 0:
			return io.ErrUnexpectedEOF
		default:
			n += k
		}
	}
	return nil
}

func writeAll(fd int, b []byte) error {
	for len(b) > 0 {
		k, err := unix.SendmsgN(fd, b, nil, nil, unix.MSG_NOSIGNAL)
		if err != nil && !errors.Is(err, unix.EINTR) {
			return told("write", err)
		}
		b = b[max(k, 0):]
	}
	return nil
}

func told(what string, err error) error {
	if errors.Is(err, unix.EAGAIN) {
		return fmt.Errorf("%s: %w for %s", what, ErrStuck, stuck)
	}
	return fmt.Errorf("%s: %w", what, err)
}

// congestion control of a socket.
func congestion(fd int) (string, error) {
	name, err := unix.GetsockoptString(fd, unix.IPPROTO_TCP, unix.TCP_CONGESTION)
	if err != nil {
		return "", fmt.Errorf("congestion control: %w", err)
	}
	return name, nil
}

func family(a netip.Addr) int {
	if a.Is4() {
		return unix.AF_INET
	}
	return unix.AF_INET6
}

func address(a netip.AddrPort) unix.Sockaddr {
	if a.Addr().Is4() {
		return &unix.SockaddrInet4{Port: int(a.Port()), Addr: a.Addr().As4()}
	}
	return &unix.SockaddrInet6{Port: int(a.Port()), Addr: a.Addr().As16()}
}

// crew is threads that work together: the first error wakes all others, and so does the end of its context.
type crew struct {
	ctx  context.Context // of the run; as long as the crew
	stop func() bool
	ends *ends
	all  sync.WaitGroup
	mu   sync.Mutex
	errs []error
	cpu  time.Duration
}

func newCrew(ctx context.Context, e *ends) *crew {
	return &crew{ctx: ctx, ends: e, stop: context.AfterFunc(ctx, func() { e.wake(context.Cause(ctx)) })}
}

// start runs f on a thread of its own.
func (c *crew) start(what string, f func() error) {
	c.all.Go(func() {
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		before := threadCPU()
		err := f()
		used := threadCPU() - before
		c.mu.Lock()
		c.cpu += used
		if err != nil && len(c.errs) == 0 { // the others' errors follow from it
			c.errs = append(c.errs, fmt.Errorf("%s: %w", what, err))
		}
		c.mu.Unlock()
		if err != nil {
			c.ends.wake(err)
		}
	})
}

// startOn runs f on a thread of its own, on some processors; none: on all that the process has.
func (c *crew) startOn(cpus []int, what string, f func() error) {
	if len(cpus) == 0 {
		c.start(what, f)
		return
	}
	c.start(what, func() (err error) {
		var before, set unix.CPUSet
		if err := unix.SchedGetaffinity(0, &before); err != nil {
			return fmt.Errorf("affinity: %w", err)
		}
		for _, n := range cpus {
			set.Set(n)
		}
		if err := unix.SchedSetaffinity(0, &set); err != nil {
			return fmt.Errorf("processors %v: %w", cpus, err)
		}
		defer func() { err = errors.Join(err, unix.SchedSetaffinity(0, &before)) }() // the thread goes on to others
		return f()
	})
}

// wait for all of them.
func (c *crew) wait() error {
	c.all.Wait()
	c.stop()
	if c.ctx.Err() != nil {
		return context.Cause(c.ctx)
	}
	return errors.Join(c.errs...)
}

func threadCPU() time.Duration {
	var u unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_THREAD, &u); err != nil {
		return 0
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
