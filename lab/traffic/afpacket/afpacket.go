// Package afpacket generates frames from user space by a packet socket: slower than traffic/xdp, needs no kernel feature, and what people
// compare with. The frames and their sink are those of traffic/xdp.
package afpacket

import (
	"context"
	"errors"
	"fmt"
	"net"
	"runtime"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"weir.dev/weir/lab/traffic"
	"weir.dev/weir/lab/traffic/xdp"
	"weir.dev/weir/netns"
)

// batch is how many frames one sendmmsg takes, and how far the generator may be behind before slots count as skipped.
const batch = 64

const frameRoom = traffic.MaxFrame - traffic.FCS

// Options say where frames leave and where they are counted.
type Options struct {
	Out, Sink  xdp.Place
	SinkFrames bool
}

// Generator implements traffic.Generator.
type Generator struct {
	*xdp.Sink
	fd       int
	spec     traffic.Spec
	frames   [batch][frameRoom]byte
	vectors  [batch]unix.Iovec
	messages [batch]message
	sent     uint64
	departed []uint64 // of a paced run: a bit for each frame that was sent
	took     time.Duration
	began    time.Duration
	thread   func(thread, cpu int) error
	cpu      int // see Pin
}

// message is struct mmsghdr.
type message struct {
	header unix.Msghdr
	length uint32
	_      uint32
}

// New opens the socket and attaches the sink.
func New(o Options) (*Generator, error) {
	sink, err := xdp.NewSink(o.Sink, o.SinkFrames)
	if err != nil {
		return nil, err
	}
	g := &Generator{Sink: sink, fd: -1, cpu: -1}
	err = netns.Do(o.Out.Space, func() error {
		ifi, err := net.InterfaceByName(o.Out.Link)
		if err != nil {
			return err
		}
		if g.fd, err = unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, 0); err != nil {
			return err
		}
		return errors.Join(
			unix.SetsockoptInt(g.fd, unix.SOL_PACKET, unix.PACKET_QDISC_BYPASS, 1),
			unix.SetsockoptInt(g.fd, unix.SOL_SOCKET, unix.SO_SNDBUFFORCE, 4<<20),
			unix.Bind(g.fd, &unix.SockaddrLinklayer{Ifindex: ifi.Index}),
		)
	})
	if err != nil {
		return nil, errors.Join(fmt.Errorf("packet socket at %s: %w", o.Out.Link, err), g.Close())
	}
	for i := range g.messages {
		g.vectors[i].Base = &g.frames[i][0]
		g.messages[i].header.Iov = &g.vectors[i]
		g.messages[i].header.Iovlen = 1
	}
	return g, nil
}

// Arm prepares a run.
func (g *Generator) Arm(_ context.Context, s traffic.Spec) error {
	g.spec, g.sent, g.took, g.departed = s, 0, 0, nil
	if err := g.Sink.Arm(s); err != nil {
		return err
	}
	if s.Rate > 0 {
		g.departed = make([]uint64, (g.Limit()+63)/64)
	}
	return nil
}

// Start sends; see traffic.Generator. It keeps one CPU busy.
func (g *Generator) Start(ctx context.Context, at time.Time) error {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	select {
	case <-time.After(time.Until(at) - time.Millisecond):
	case <-ctx.Done():
		return ctx.Err()
	}
	for time.Until(at) > 0 {
	}
	if g.thread != nil {
		if err := g.thread(unix.Gettid(), g.cpu); err != nil {
			return err
		}
	}
	start, err := traffic.Monotonic()
	if err != nil {
		return err
	}
	g.began, g.took = start, g.spec.Duration
	next := uint64(0) // sequence number
	for ctx.Err() == nil {
		now, err := traffic.Monotonic()
		if err != nil {
			return err
		}
		elapsed := now - start
		if elapsed >= g.spec.Duration || next >= g.Limit() {
			return nil
		}
		due := next + batch
		if g.spec.Rate > 0 {
			due = uint64(elapsed.Seconds()*g.spec.Rate) + 1
		}
		due = min(due, g.Limit())
		if due > next+batch {
			next = due - batch // too late for those before
		}
		if due <= next {
			continue
		}
		if err := g.send(next, int(due-next), now); err != nil {
			return err
		}
		next = due
	}
	return ctx.Err()
}

// send n frames from sequence number next on; what the link's queue does not take is not sent.
func (g *Generator) send(next uint64, n int, now time.Duration) error {
	for i := range n {
		g.vectors[i].SetLen(g.Frame(g.frames[i][:], uint32(next)+uint32(i), now))
	}
	for done := 0; done < n; {
		r, _, errno := unix.Syscall6(unix.SYS_SENDMMSG, uintptr(g.fd), uintptr(unsafe.Pointer(&g.messages[done])), uintptr(n-done), 0, 0, 0)
		switch errno {
		case 0:
			g.sent += uint64(r)
			g.note(next+uint64(done), int(r))
			done += int(r)
		case unix.EINTR:
		case unix.ENOBUFS, unix.EAGAIN:
			done++ // this one
		default:
			return fmt.Errorf("send: %w", errno)
		}
	}
	return nil
}

// note that frames were sent.
func (g *Generator) note(first uint64, n int) {
	for i := first; i < first+uint64(n) && i/64 < uint64(len(g.departed)); i++ {
		g.departed[i/64] |= 1 << (i % 64)
	}
}

// Read gives the counts of the run.
func (g *Generator) Read() (traffic.Count, error) { return g.Sink.Read(g.sent, g.took) }

// OnThread implements traffic.Traced. The thread sends from the CPU that Pin has named.
func (g *Generator) OnThread(f func(thread, cpu int) error) { g.thread = f }

// Pin says from which CPU the caller has Start send. Without it the sender's CPU is not known: -1.
func (g *Generator) Pin(cpu int) { g.cpu = cpu }

// Window implements traffic.Traced.
func (g *Generator) Window() (begin, end time.Duration) { return g.began, g.began + g.took }

// Missing implements traffic.Traced.
func (g *Generator) Missing(spans []traffic.Span) (traffic.Stalled, error) {
	departed := func(first, end uint64) ([]uint64, error) {
		return g.departed[first/64 : max((end+63)/64, first/64)], nil
	}
	return g.Sink.Missing(g.began, departed, spans)
}

// Close ends the socket and the sink.
func (g *Generator) Close() error {
	var err error
	if g.fd >= 0 {
		err = unix.Close(g.fd)
		g.fd = -1
	}
	return errors.Join(err, g.Sink.Close())
}

var _ traffic.Traced = (*Generator)(nil)
