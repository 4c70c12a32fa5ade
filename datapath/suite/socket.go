package suite

import (
	"bytes"
	"encoding/binary"
	"errors"
	"slices"
	"sync"
	"testing"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"weir.dev/weir/netns"
)

// Socket is a raw socket at one interface: it sends frames and keeps those that came in, VLAN tags put back where the kernel took them
// off, so that they are as they were on the wire.
type Socket struct {
	fd    int
	index int // of the interface; 0: fd is that of a tap
	done  sync.WaitGroup
	stop  chan struct{}
	once  sync.Once

	mu      sync.Mutex
	frames  [][]byte
	handler func(frame []byte)
}

const maxFrame = 1 << 17

func newSocket(t testing.TB, ns *netns.Space, index int) *Socket {
	t.Helper()
	s := &Socket{index: index, stop: make(chan struct{})}
	all := int(htons(unix.ETH_P_ALL))
	err := ns.Do(func() (err error) {
		if s.fd, err = unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, 0); err != nil {
			return err
		}
		_ = unix.SetsockoptInt(s.fd, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, 64<<20)
		if err := unix.SetsockoptInt(s.fd, unix.SOL_PACKET, unix.PACKET_AUXDATA, 1); err != nil {
			return err
		}
		if err := unix.SetsockoptInt(s.fd, unix.SOL_PACKET, unix.PACKET_IGNORE_OUTGOING, 1); err != nil {
			return err
		}
		if err := unix.SetsockoptTimeval(s.fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &unix.Timeval{Usec: 50000}); err != nil {
			return err
		}
		return unix.Bind(s.fd, &unix.SockaddrLinklayer{Protocol: uint16(all), Ifindex: index})
	})
	must(t, err)
	s.done.Go(s.receive)
	t.Cleanup(s.Close)
	return s
}

func htons(v uint16) uint16 { return v<<8 | v>>8 }

func (s *Socket) receive() {
	buf, oob := make([]byte, maxFrame), make([]byte, 256)
	for {
		select {
		case <-s.stop:
			return
		default:
		}
		n, on, err := s.read(buf, oob)
		if errors.Is(err, unix.EAGAIN) || errors.Is(err, unix.EINTR) || errors.Is(err, unix.ENETDOWN) {
			continue
		}
		if err != nil {
			return
		}
		frame := untrim(slices.Clone(buf[:n]), oob[:on])
		s.mu.Lock()
		h := s.handler
		s.mu.Unlock()
		if h != nil {
			h(frame)
		}
		s.mu.Lock()
		s.frames = append(s.frames, frame) // who sees it may rely on it having been handled
		s.mu.Unlock()
	}
}

func (s *Socket) read(buf, oob []byte) (n, on int, err error) {
	if s.index != 0 {
		n, on, _, _, err = unix.Recvmsg(s.fd, buf, oob, 0)
		return n, on, err
	}
	if n, err := unix.Poll([]unix.PollFd{{Fd: int32(s.fd), Events: unix.POLLIN}}, 50); n == 0 && err == nil {
		return 0, 0, unix.EAGAIN
	}
	n, err = unix.Read(s.fd, buf)
	return n, 0, err
}

// newTap makes a link of kind tap and holds it, as a virtual machine does. It says nothing for itself.
func newTap(t testing.TB, ns *netns.Space, name, alias string) *Socket {
	t.Helper()
	s := &Socket{stop: make(chan struct{})}
	err := ns.Do(func() (err error) {
		if s.fd, err = unix.Open("/dev/net/tun", unix.O_RDWR|unix.O_CLOEXEC|unix.O_NONBLOCK, 0); err != nil {
			return err
		}
		r, err := unix.NewIfreq(name)
		if err != nil {
			return err
		}
		r.SetUint16(unix.IFF_TAP | unix.IFF_NO_PI)
		if err := unix.IoctlIfreq(s.fd, unix.TUNSETIFF, r); err != nil {
			return err
		}
		l, err := netlink.LinkByName(name)
		if err != nil {
			return err
		}
		return errors.Join(netlink.LinkSetAlias(l, alias), netlink.LinkSetARPOff(l), netlink.LinkSetIP6AddrGenMode(l, nl.IN6_ADDR_GEN_MODE_NONE))
	})
	must(t, err)
	s.done.Go(s.receive)
	t.Cleanup(s.Close)
	return s
}

// untrim puts the outermost tag back.
func untrim(frame, oob []byte) []byte {
	msgs, err := unix.ParseSocketControlMessage(oob)
	if err != nil || len(frame) < 14 {
		return frame
	}
	for _, m := range msgs {
		if m.Header.Level != unix.SOL_PACKET || m.Header.Type != unix.PACKET_AUXDATA || len(m.Data) < 20 {
			continue
		}
		status := binary.NativeEndian.Uint32(m.Data)
		if status&unix.TP_STATUS_VLAN_VALID == 0 {
			continue
		}
		tag := make([]byte, 4)
		binary.BigEndian.PutUint16(tag, binary.NativeEndian.Uint16(m.Data[18:]))
		binary.BigEndian.PutUint16(tag[2:], binary.NativeEndian.Uint16(m.Data[16:]))
		return slices.Insert(frame, 12, tag...)
	}
	return frame
}

// Send a frame out of the interface.
func (s *Socket) Send(t testing.TB, frame []byte) {
	t.Helper()
	must(t, s.send(frame))
}

func (s *Socket) send(frame []byte) error {
	for {
		var err error
		if s.index == 0 {
			_, err = unix.Write(s.fd, frame)
		} else {
			err = unix.Sendto(s.fd, frame, 0, &unix.SockaddrLinklayer{Ifindex: s.index})
		}
		if !errors.Is(err, unix.ENOBUFS) && !errors.Is(err, unix.EINTR) {
			return err
		}
	}
}

// Frames that came in so far and contain a mark.
func (s *Socket) Frames(mark []byte) [][]byte {
	s.mu.Lock()
	defer s.mu.Unlock()
	var found [][]byte
	for _, f := range s.frames {
		if bytes.Contains(f, mark) {
			found = append(found, f)
		}
	}
	return found
}

// Count of frames so far.
func (s *Socket) Count() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.frames)
}

// Forget the frames so far.
func (s *Socket) Forget() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.frames = nil
}

func (s *Socket) handle(f func([]byte)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.handler = f
}

// pump passes frames between a function's two interfaces.
type pump struct{ in, out *Socket }

func startPump(f *Function) *pump {
	p := &pump{f.Sockets["in"], f.Sockets["out"]}
	p.in.handle(func(b []byte) { _ = p.out.send(b) })
	p.out.handle(func(b []byte) { _ = p.in.send(b) })
	return p
}

func (p *pump) stop() {
	p.in.handle(nil)
	p.out.handle(nil)
}

// Close the socket, which would cost every frame a copy. What came in stays.
func (s *Socket) Close() {
	s.once.Do(func() {
		close(s.stop)
		s.done.Wait()
		unix.Close(s.fd)
	})
}
