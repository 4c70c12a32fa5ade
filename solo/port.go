package solo

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"weir.dev/weir/agent/capture"
	"weir.dev/weir/flow"
	"weir.dev/weir/netns"
)

// Bounds of what is kept of the frames that come out of a port.
const (
	maxFrames     = 100_000
	maxFrameBytes = 256 << 20
	receiveBuffer = 64 << 20 // of the socket; the kernel gives what it has
	pollFor       = 50       // ms
)

// port is the other end of one of the function's links: a test sends and receives there.
type port struct {
	side flow.Side
	fd   int
	own  [6]byte // MAC address of the function's interface
	head []byte  // how probes begin
	mtu  int

	mu      sync.Mutex
	frames  []Frame
	bytes   int
	more    int       // frames beyond the bounds
	probes  uint64    // that have come
	spoken  int       // frames that the function's own interface sent
	last    time.Time // a frame came
	stopped bool
	done    sync.WaitGroup
}

// openPort opens the other end of one of the function's links, which is in a namespace.
func (f *Function) openPort(space, link string, side flow.Side) error {
	p := &port{side: side, fd: -1, head: append(slices.Concat(f.probe.Dst[:], f.probe.Src[:]), probeType>>8, probeType&0xff)}
	inside, err := netns.At(f.box.Net())
	if err != nil {
		return err
	}
	defer inside.Close()
	l, err := inside.Link(side.String())
	if err != nil {
		return err
	}
	if !f.Image.Contract.Speaks { // as a switch drops what the interfaces themselves say
		p.own = l.MAC
	}
	err = netns.Do(space, func() (err error) {
		at, err := netns.At("")
		if err != nil {
			return err
		}
		defer at.Close()
		l, err := at.Link(link)
		if err != nil {
			return err
		}
		p.mtu = l.MTU
		p.fd, err = packetSocket(l.Index)
		return err
	})
	if err != nil {
		return fmt.Errorf("port %s: %w", side, err)
	}
	p.done.Go(p.receive)
	f.ports[side] = p
	return nil
}

func (f *Function) closePorts() {
	for _, p := range f.ports {
		if p != nil {
			p.close()
		}
	}
}

// probeType is the ethertype of probe frames.
const probeType = 0x88b5

// When a function is taken to work.
const (
	settle    = 500 * time.Millisecond // one that passes no probes
	probing   = 20 * time.Millisecond  // from probe to probe
	probeSize = 60
)

// ready waits until the function hands probes on, or, if it passes none, for a while.
func (f *Function) ready(ctx context.Context, within time.Duration) error {
	contract := f.Image.Contract
	if contract.Tap || !contract.Probe && contract.Forwarder == "" {
		return f.pass(ctx, settle)
	}
	for deadline := time.Now().Add(within); time.Now().Before(deadline); {
		b := make([]byte, probeSize)
		copy(b[copy(b, f.ports[flow.In].head):], rand.Text()[:16])
		if err := f.ports[flow.In].send(b); err != nil {
			return err
		}
		if err := f.pass(ctx, probing); err != nil {
			return err
		}
		if _, n, _ := f.ports[flow.Out].seen(); n > 0 {
			return nil
		}
	}
	return fmt.Errorf("%w: no probe frame passed within %v: the label weir.probe says that the function hands them on", ErrTimeout, within)
}

// pass lets time go by, unless the function ends.
func (f *Function) pass(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-f.ended:
		return f.Ended()
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

func packetSocket(index int) (int, error) {
	fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return -1, fmt.Errorf("packet socket: %w", err)
	}
	for _, o := range []int{unix.PACKET_AUXDATA, unix.PACKET_IGNORE_OUTGOING} {
		if err == nil {
			err = unix.SetsockoptInt(fd, unix.SOL_PACKET, o, 1)
		}
	}
	if err == nil {
		err = unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, receiveBuffer)
	}
	if err == nil {
		err = unix.Bind(fd, &unix.SockaddrLinklayer{Protocol: uint16(unix.ETH_P_ALL)<<8 | uint16(unix.ETH_P_ALL)>>8, Ifindex: index})
	}
	if err != nil {
		unix.Close(fd)
		return -1, fmt.Errorf("packet socket: %w", err)
	}
	return fd, nil
}

// sendTries bounds how often a frame is offered to a link whose queue is full.
const (
	sendTries = 100
	sendAgain = time.Millisecond
)

func (p *port) send(frame []byte) error {
	for try := 1; ; try++ {
		err := unix.Send(p.fd, frame, 0)
		if errors.Is(err, unix.EMSGSIZE) {
			return fmt.Errorf("its %d bytes are more than a port of MTU %d takes (--mtu)", len(frame), p.mtu)
		}
		if try == sendTries || !errors.Is(err, unix.ENOBUFS) && !errors.Is(err, unix.EAGAIN) && !errors.Is(err, unix.EINTR) {
			return err
		}
		time.Sleep(sendAgain)
	}
}

// receive until the port is closed.
func (p *port) receive() {
	buf, oob := make([]byte, 1<<17), make([]byte, 256)
	for {
		p.mu.Lock()
		stopped := p.stopped
		p.mu.Unlock()
		if stopped {
			return
		}
		if n, err := unix.Poll([]unix.PollFd{{Fd: int32(p.fd), Events: unix.POLLIN}}, pollFor); err != nil || n == 0 {
			continue
		}
		for {
			n, oobn, _, _, err := unix.Recvmsg(p.fd, buf, oob, 0)
			if err != nil {
				break
			}
			p.take(retagged(buf[:n], oob[:oobn]))
		}
	}
}

func (p *port) take(frame []byte) {
	p.mu.Lock()
	defer p.mu.Unlock()
	switch {
	case len(p.head) > 0 && bytes.HasPrefix(frame, p.head):
		p.probes++
		return
	case len(frame) >= 12 && [6]byte(frame[6:12]) == p.own:
		p.spoken++
		return
	}
	p.last = time.Now()
	if len(p.frames) >= maxFrames || p.bytes+len(frame) > maxFrameBytes {
		p.more++
		return
	}
	p.frames = append(p.frames, Frame{Time: p.last, Data: bytes.Clone(frame)})
	p.bytes += len(frame)
}

// seen are the frames and probes that have come, and when the last frame did.
func (p *port) seen() (frames int, probes uint64, last time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.frames) + p.more, p.probes, p.last
}

// close ends receiving and gives what has come.
func (p *port) close() []Frame {
	p.mu.Lock()
	done := p.stopped
	p.stopped = true
	p.mu.Unlock()
	p.done.Wait()
	if !done {
		unix.Close(p.fd)
	}
	return p.frames
}

// retagged puts a VLAN tag back that the kernel took out of a frame.
func retagged(frame, oob []byte) []byte {
	messages, err := unix.ParseSocketControlMessage(oob)
	if err != nil {
		return frame
	}
	for _, m := range messages {
		if m.Header.Level == unix.SOL_PACKET && m.Header.Type == unix.PACKET_AUXDATA {
			return capture.Tagged(frame, m.Data)
		}
	}
	return frame
}
