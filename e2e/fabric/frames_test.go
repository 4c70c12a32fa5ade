package fabric

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"weir.dev/weir/netns"
)

// capture keeps the frames that pass an interface, as they are on the wire.
type capture struct {
	fd   int
	done chan struct{}

	mu     sync.Mutex
	frames []frame
}

// frame is one that was seen.
type frame struct {
	data     []byte
	outgoing bool // it left by the interface; else it came in
	at       time.Time
}

// maxFrames bounds a capture.
const maxFrames = 1 << 20

// listen starts a capture at an interface of a namespace; it ends with the test.
func listen(t *testing.T, space, link string) *capture {
	t.Helper()
	c := &capture{done: make(chan struct{})}
	err := netns.Do(space, func() error {
		i, err := net.InterfaceByName(link)
		if err != nil {
			return err
		}
		if c.fd, err = unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, int(htons(unix.ETH_P_ALL))); err != nil {
			return err
		}
		_ = unix.SetsockoptInt(c.fd, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, 32<<20)
		_ = unix.SetsockoptInt(c.fd, unix.SOL_PACKET, unix.PACKET_AUXDATA, 1)
		timeout := unix.Timeval{Usec: 50_000}
		return errors.Join(unix.SetsockoptTimeval(c.fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &timeout),
			unix.Bind(c.fd, &unix.SockaddrLinklayer{Protocol: htons(unix.ETH_P_ALL), Ifindex: i.Index}))
	})
	if err != nil {
		t.Fatalf("capture at %s in %s: %v", link, space, err)
	}
	stopped := make(chan struct{})
	go func() { defer close(stopped); c.receive() }()
	t.Cleanup(func() {
		close(c.done)
		<-stopped
		_ = unix.Close(c.fd)
	})
	return c
}

func htons(v uint16) uint16 { return v<<8 | v>>8 }

func (c *capture) receive() {
	buf, oob := make([]byte, 65536), make([]byte, 256)
	for {
		select {
		case <-c.done:
			return
		default:
		}
		n, oobn, _, from, err := unix.Recvmsg(c.fd, buf, oob, 0)
		if err != nil {
			continue // nobody sent anything for a moment
		}
		sender, ok := from.(*unix.SockaddrLinklayer)
		if !ok {
			continue
		}
		f := frame{data: withVLAN(slices.Clone(buf[:n]), oob[:oobn]), outgoing: sender.Pkttype == unix.PACKET_OUTGOING, at: time.Now()}
		c.mu.Lock()
		if len(c.frames) < maxFrames {
			c.frames = append(c.frames, f)
		}
		c.mu.Unlock()
	}
}

// withVLAN puts a tag back that the kernel had taken out of the frame (tpacket_auxdata in packet(7)).
func withVLAN(data, oob []byte) []byte {
	messages, err := unix.ParseSocketControlMessage(oob)
	if err != nil {
		return data
	}
	for _, m := range messages {
		if m.Header.Level != unix.SOL_PACKET || m.Header.Type != unix.PACKET_AUXDATA || len(m.Data) < 20 {
			continue
		}
		status := binary.NativeEndian.Uint32(m.Data)
		tci, tpid := binary.NativeEndian.Uint16(m.Data[16:]), binary.NativeEndian.Uint16(m.Data[18:])
		if status&unix.TP_STATUS_VLAN_VALID != 0 && len(data) >= 12 {
			tag := binary.BigEndian.AppendUint16(binary.BigEndian.AppendUint16(nil, tpid), tci)
			return slices.Concat(data[:12], tag, data[12:])
		}
	}
	return data
}

// seen are the frames so far.
func (c *capture) seen() []frame {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Clone(c.frames)
}

// with are the frames that carry a text in their payload.
func (c *capture) with(payload string) []frame {
	var out []frame
	for _, f := range c.seen() {
		if bytes.Contains(f.data, []byte(payload)) {
			out = append(out, f)
		}
	}
	return out
}

// station is what a frame's addresses are made of.
type station struct {
	mac  net.HardwareAddr
	addr netip.Addr
}

// packet describes an IPv4 packet to send.
type packet struct {
	proto    uint8 // 17 UDP, 6 TCP (a bare SYN), 1 ICMP echo
	src, dst uint16
	ttl      uint8
	payload  string
}

// bytes of the frame, checksums included.
func (p packet) bytes(from, to station) []byte {
	var l4 []byte
	switch p.proto {
	case unix.IPPROTO_UDP:
		l4 = binary.BigEndian.AppendUint16(l4, p.src)
		l4 = binary.BigEndian.AppendUint16(l4, p.dst)
		l4 = binary.BigEndian.AppendUint16(l4, uint16(8+len(p.payload)))
		l4 = append(l4, 0, 0)
		l4 = append(l4, p.payload...)
		binary.BigEndian.PutUint16(l4[6:], l4sum(l4, from, to, p.proto))
	case unix.IPPROTO_TCP:
		l4 = binary.BigEndian.AppendUint16(l4, p.src)
		l4 = binary.BigEndian.AppendUint16(l4, p.dst)
		l4 = append(l4, 0, 0, 0, 1, 0, 0, 0, 0, 5<<4, 0x02, 0xff, 0xff, 0, 0, 0, 0)
		l4 = append(l4, p.payload...)
		binary.BigEndian.PutUint16(l4[16:], l4sum(l4, from, to, p.proto))
	case unix.IPPROTO_ICMP:
		l4 = append(l4, 8, 0, 0, 0, 0x12, 0x34, 0, 1)
		l4 = append(l4, p.payload...)
		binary.BigEndian.PutUint16(l4[2:], ^fold(sum16(0, l4)))
	default:
		panic(fmt.Sprintf("protocol %d", p.proto))
	}
	ip := []byte{0x45, 0, 0, 0, 0, 7, 0x40, 0, p.ttl, p.proto, 0, 0}
	ip = append(append(ip, from.addr.AsSlice()...), to.addr.AsSlice()...)
	binary.BigEndian.PutUint16(ip[2:], uint16(20+len(l4)))
	binary.BigEndian.PutUint16(ip[10:], ^fold(sum16(0, ip)))
	return slices.Concat(to.mac, from.mac, []byte{0x08, 0x00}, ip, l4)
}

func sum16(sum uint32, b []byte) uint32 {
	for i := 0; i+1 < len(b); i += 2 {
		sum += uint32(binary.BigEndian.Uint16(b[i:]))
	}
	if len(b)%2 == 1 {
		sum += uint32(b[len(b)-1]) << 8
	}
	return sum
}

func fold(sum uint32) uint16 {
	for sum > 0xffff {
		sum = sum>>16 + sum&0xffff
	}
	return uint16(sum)
}

func l4sum(l4 []byte, from, to station, proto uint8) uint16 {
	pseudo := slices.Concat(from.addr.AsSlice(), to.addr.AsSlice(), []byte{0, proto, byte(len(l4) >> 8), byte(len(l4))})
	s := ^fold(sum16(sum16(0, pseudo), l4))
	if s == 0 && proto == unix.IPPROTO_UDP {
		s = 0xffff
	}
	return s
}

// sender sends frames by one interface.
type sender struct {
	fd, index int
}

func newSender(t *testing.T, space, link string) *sender {
	t.Helper()
	s := &sender{}
	err := netns.Do(space, func() error {
		i, err := net.InterfaceByName(link)
		if err != nil {
			return err
		}
		s.index = i.Index
		s.fd, err = unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, 0) // 0: it receives nothing
		return err
	})
	if err != nil {
		t.Fatalf("send by %s in %s: %v", link, space, err)
	}
	t.Cleanup(func() { _ = unix.Close(s.fd) })
	return s
}

func (s *sender) send(data []byte) error {
	return unix.Sendto(s.fd, data, 0, &unix.SockaddrLinklayer{Ifindex: s.index})
}
