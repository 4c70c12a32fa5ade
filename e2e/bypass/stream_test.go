package bypass

import (
	"context"
	"encoding/binary"
	"errors"
	"net"
	"net/netip"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"weir.dev/weir/api"
	"weir.dev/weir/e2e/rig"
	"weir.dev/weir/netns"
)

// Ports of the datagrams: the firewall of the cases lets the first one pass, and nothing else.
const (
	allowed   = 9000
	forbidden = 9001
)

// traffic is a steady stream of numbered datagrams from alice to bob, allowed and forbidden by turns. They are written as frames, so neither
// ARP nor a link that goes and comes back stops it.
type traffic struct {
	alice    string
	src, dst net.HardwareAddr
	every    time.Duration
	sent     [2]atomic.Int64 // allowed, forbidden
	ended    atomic.Bool
	wg       sync.WaitGroup
	rx       [2]net.PacketConn
	mu       sync.Mutex
	came     [2][]int64 // numbers, in the order of arrival
}

const pps = 2500 // of each kind

func startTraffic(ctx context.Context, t *testing.T, r *rig.Rig) *traffic {
	t.Helper()
	s := &traffic{alice: r.Alice(), every: time.Second / pps}
	for name, into := range map[string]*net.HardwareAddr{"alice": &s.src, "bob": &s.dst} {
		var e api.Endpoint
		if err := r.Get(ctx, &e, "endpoint", name); err != nil {
			t.Fatal(err)
		}
		hw, err := net.ParseMAC(e.Status.MAC)
		if err != nil {
			t.Fatal(err)
		}
		*into = hw
	}
	for i, port := range []string{":9000", ":9001"} {
		err := netns.Do(r.Bob(), func() (err error) {
			s.rx[i], err = net.ListenPacket("udp4", port)
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
		_ = s.rx[i].(*net.UDPConn).SetReadBuffer(8 << 20)
		s.wg.Go(func() { s.receive(i) })
	}
	s.wg.Go(s.send)
	t.Cleanup(func() {
		s.ended.Store(true)
		_ = errors.Join(s.rx[0].Close(), s.rx[1].Close())
		s.wg.Wait()
	})
	return s
}

func (s *traffic) receive(kind int) {
	var b [256]byte
	for {
		n, _, err := s.rx[kind].ReadFrom(b[:])
		if err != nil {
			return
		}
		if n < 8 {
			continue
		}
		s.mu.Lock()
		s.came[kind] = append(s.came[kind], int64(binary.BigEndian.Uint64(b[:])))
		s.mu.Unlock()
	}
}

func (s *traffic) send() {
	fd := -1
	defer func() { unix.Close(fd) }()
	for next := time.Now(); !s.ended.Load(); next = next.Add(s.every) {
		if wait := time.Until(next); wait > time.Millisecond {
			time.Sleep(wait) // its pace
		} else if wait < -100*time.Millisecond {
			next = time.Now() // the machine stood still: no burst
		}
		for kind, port := range []uint16{allowed, forbidden} {
			if fd < 0 {
				if fd = s.open(); fd < 0 {
					break
				}
			}
			n := s.sent[kind].Load()
			if err := unix.Send(fd, s.frame(port, n), 0); err == nil {
				s.sent[kind].Store(n + 1)
			} else if !errors.Is(err, unix.ENOBUFS) { // its link is gone
				unix.Close(fd)
				fd = -1
				break
			}
		}
	}
}

// open a socket at alice's link; -1: there is none now.
func (s *traffic) open() (fd int) {
	fd = -1
	_ = netns.Do(s.alice, func() error {
		i, err := net.InterfaceByName("eth0")
		if err != nil {
			return err
		}
		f, err := unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, 0)
		if err == nil {
			if err = unix.Bind(f, &unix.SockaddrLinklayer{Ifindex: i.Index}); err != nil {
				return errors.Join(err, unix.Close(f))
			}
			fd = f
		}
		return err
	})
	return fd
}

// frame number n to a UDP port.
func (s *traffic) frame(port uint16, n int64) []byte {
	src, dst := netip.MustParseAddr(rig.AliceAddr).As4(), netip.MustParseAddr(rig.BobAddr).As4()
	ip := []byte{0x45, 0, 0, 46, 0, 0, 0x40, 0, 64, unix.IPPROTO_UDP, 0, 0}
	ip = append(append(ip, src[:]...), dst[:]...)
	sum := uint32(0)
	for i := 0; i < len(ip); i += 2 {
		sum += uint32(binary.BigEndian.Uint16(ip[i:]))
	}
	sum = sum&0xffff + sum>>16
	binary.BigEndian.PutUint16(ip[10:], ^uint16(sum+sum>>16))
	b := append(append(append(append([]byte{}, s.dst...), s.src...), 8, 0), ip...)
	b = binary.BigEndian.AppendUint16(binary.BigEndian.AppendUint16(b, 40000), port)
	b = append(b, 0, 26, 0, 0) // length; no checksum
	b = binary.BigEndian.AppendUint64(b, uint64(n))
	return append(b, make([]byte, 10)...)
}

// count of datagrams of a kind that came and whose numbers are at least first.
func (s *traffic) count(kind int, first int64) (n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, x := range s.came[kind] {
		if x >= first {
			n++
		}
	}
	return n
}

// flows waits until datagrams that are sent from now on arrive, of the kind that may.
func (s *traffic) flows(ctx context.Context, t *testing.T) {
	t.Helper()
	first := s.sent[0].Load()
	rig.Eventually(ctx, t, "allowed datagrams arrive", func() (bool, string) {
		return s.count(0, first) > 20, "none came"
	})
}

// more waits until n more forbidden datagrams have been sent.
func (s *traffic) more(ctx context.Context, t *testing.T, n int64) {
	t.Helper()
	goal := s.sent[1].Load() + n
	rig.Eventually(ctx, t, "forbidden datagrams are sent", func() (bool, string) { return s.sent[1].Load() >= goal, "too few" })
}

// drained waits until no datagram has come for a while, so that what is counted next was sent later.
func (s *traffic) drained(ctx context.Context, t *testing.T) { t.Helper(); s.more(ctx, t, pps/10) }
