package experiment

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"weir.dev/weir/netns"
)

// fig2Target is the receiver's address.
var fig2Target = netip.MustParseAddr("10.0.0.2")

// beat sends numbered datagrams at a steady rate and counts those that arrive.
type beat struct {
	tx, rx  net.PacketConn
	end     chan struct{}
	sender  sync.WaitGroup
	taker   sync.WaitGroup
	sent    atomic.Int64
	arrived atomic.Int64 // each once
	failed  error        // of the sender, once it has ended
}

// mostBeats of a stream: several minutes.
const mostBeats = 1 << 20

func newBeat(from, to string, port uint16) (*beat, error) {
	b := &beat{end: make(chan struct{})}
	listen := func(space, at string) (c net.PacketConn, err error) {
		err = netns.Do(space, func() error {
			c, err = net.ListenPacket("udp4", at)
			return err
		})
		return c, err
	}
	var err error
	if b.rx, err = listen(to, netip.AddrPortFrom(fig2Target, port).String()); err != nil {
		return nil, err
	}
	if b.tx, err = listen(from, "0.0.0.0:0"); err != nil {
		return nil, errors.Join(err, b.rx.Close())
	}
	b.sender.Go(b.send)
	b.taker.Go(b.receive)
	return b, nil
}

func (b *beat) send() {
	begin, to := time.Now(), b.rx.LocalAddr()
	var frame [64]byte
	for i := range int64(mostBeats) {
		wait := time.Until(begin.Add(time.Duration(i) * time.Second / appliedPPS))
		select {
		case <-b.end:
			return
		case <-time.After(max(wait, 0)):
		}
		binary.BigEndian.PutUint64(frame[:], uint64(i))
		if _, b.failed = b.tx.WriteTo(frame[:], to); b.failed != nil {
			return
		}
		b.sent.Add(1)
	}
}

func (b *beat) receive() {
	seen := make([]bool, mostBeats)
	var frame [128]byte
	for {
		n, _, err := b.rx.ReadFrom(frame[:])
		if err != nil {
			return
		}
		if i := binary.BigEndian.Uint64(frame[:]); n >= 8 && i < mostBeats && !seen[i] {
			seen[i] = true
			b.arrived.Add(1)
		}
	}
}

// past waits until n have been sent.
func (b *beat) past(ctx context.Context, n int64) error {
	for b.sent.Load() < n {
		if err := pause(ctx, time.Second/appliedPPS); err != nil {
			return err
		}
	}
	return nil
}

// lastLook is how long what is on its way may take, lookLast how often to look.
const (
	lastLook = 200 * time.Millisecond
	lookLast = 10 * time.Millisecond
)

// stop sending, let what is on its way arrive, and tell how many did not.
func (b *beat) stop() (lost int, err error) {
	close(b.end)
	b.sender.Wait()
	for deadline := time.Now().Add(lastLook); b.arrived.Load() < b.sent.Load() && time.Now().Before(deadline); {
		time.Sleep(lookLast)
	}
	err = errors.Join(b.tx.Close(), b.rx.Close())
	b.taker.Wait()
	return int(b.sent.Load() - b.arrived.Load()), errors.Join(err, b.failed)
}

// witness tells when the first UDP packet for a port left an interface.
type witness struct {
	fd    int
	first chan time.Time
	end   atomic.Bool
	done  chan struct{}
}

func newWitness(space, link string, port uint16) (*witness, error) {
	w := &witness{first: make(chan time.Time, 1), done: make(chan struct{})}
	err := netns.Do(space, func() error {
		i, err := net.InterfaceByName(link)
		if err != nil {
			return err
		}
		const all = unix.ETH_P_ALL>>8 | unix.ETH_P_ALL&0xff<<8
		if w.fd, err = unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, 0); err != nil {
			return err
		}
		err = errors.Join(
			unix.SetsockoptInt(w.fd, unix.SOL_SOCKET, unix.SO_TIMESTAMPNS, 1),
			unix.SetsockoptTimeval(w.fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &unix.Timeval{Usec: 100_000}),
			unix.Bind(w.fd, &unix.SockaddrLinklayer{Protocol: all, Ifindex: i.Index}),
		)
		if err != nil {
			unix.Close(w.fd)
		}
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("capture at %s in %s: %w", link, space, err)
	}
	go w.run(port)
	return w, nil
}

func (w *witness) run(port uint16) {
	defer close(w.done)
	frame, control := make([]byte, 256), make([]byte, 128)
	for !w.end.Load() {
		n, cn, _, from, err := unix.Recvmsg(w.fd, frame, control, 0)
		l, _ := from.(*unix.SockaddrLinklayer)
		if err != nil || l == nil || l.Pkttype != unix.PACKET_OUTGOING || !udpTo(frame[:n], port) {
			continue
		}
		if at, ok := stamp(control[:cn]); ok {
			w.first <- at
			return
		}
	}
}

func udpTo(f []byte, port uint16) bool {
	return len(f) >= 38 && binary.BigEndian.Uint16(f[12:]) == 0x0800 && f[14] == 0x45 && f[23] == unix.IPPROTO_UDP && binary.BigEndian.Uint16(f[36:]) == port
}

// stamp is when the kernel saw the frame.
func stamp(control []byte) (time.Time, bool) {
	ms, err := unix.ParseSocketControlMessage(control)
	if err != nil {
		return time.Time{}, false
	}
	for _, m := range ms {
		if m.Header.Level == unix.SOL_SOCKET && m.Header.Type == unix.SCM_TIMESTAMPNS && len(m.Data) >= 16 {
			return time.Unix(int64(binary.NativeEndian.Uint64(m.Data)), int64(binary.NativeEndian.Uint64(m.Data[8:]))), true
		}
	}
	return time.Time{}, false
}

func (w *witness) wait(ctx context.Context) (time.Time, error) {
	select {
	case at := <-w.first:
		return at, nil
	case <-time.After(firstWithin):
		return time.Time{}, fmt.Errorf("no packet was steered within %s", firstWithin)
	case <-ctx.Done():
		return time.Time{}, ctx.Err()
	}
}

func (w *witness) close() error {
	w.end.Store(true)
	<-w.done
	return unix.Close(w.fd)
}
