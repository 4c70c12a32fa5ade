package rig

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/gopacket/gopacket"
	"github.com/gopacket/gopacket/layers"
	"golang.org/x/sys/unix"

	"weir.dev/weir/netns"
)

// Capture keeps the frames that pass an interface, as they are on the wire.
type Capture struct {
	fd            int
	done, stopped chan struct{}

	mu     sync.Mutex
	frames []Frame
}

// Frame is one that was seen.
type Frame struct {
	Data     []byte
	Outgoing bool      // it left by the interface; else it came in
	At       time.Time // by the kernel, whenever this process was given it
}

// maxFrames bounds a capture.
const maxFrames = 1 << 20

// Listen starts a capture at an interface of a namespace; Close ends it.
func Listen(space, link string) (*Capture, error) {
	c := &Capture{done: make(chan struct{}), stopped: make(chan struct{})}
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
		_ = unix.SetsockoptInt(c.fd, unix.SOL_SOCKET, unix.SO_TIMESTAMPNS, 1)
		timeout := unix.Timeval{Usec: 50_000}
		err = errors.Join(unix.SetsockoptTimeval(c.fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &timeout),
			unix.Bind(c.fd, &unix.SockaddrLinklayer{Protocol: htons(unix.ETH_P_ALL), Ifindex: i.Index}))
		if err != nil {
			return errors.Join(err, unix.Close(c.fd))
		}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("capture at %s in %s: %w", link, space, err)
	}
	go func() { defer close(c.stopped); c.receive() }()
	return c, nil
}

// Close ends a capture. What it has seen stays.
func (c *Capture) Close() {
	close(c.done)
	<-c.stopped
	_ = unix.Close(c.fd)
}

func htons(v uint16) uint16 { return v<<8 | v>>8 }

func (c *Capture) receive() {
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
		f := described(slices.Clone(buf[:n]), oob[:oobn])
		f.Outgoing = sender.Pkttype == unix.PACKET_OUTGOING
		c.mu.Lock()
		if len(c.frames) < maxFrames {
			c.frames = append(c.frames, f)
		}
		c.mu.Unlock()
	}
}

// described is a frame with what the kernel says beside it: when it passed (socket(7)), and a tag that the kernel had taken out, which is put back (tpacket_auxdata in packet(7)).
func described(data, oob []byte) Frame {
	f := Frame{Data: data, At: time.Now()}
	messages, err := unix.ParseSocketControlMessage(oob)
	if err != nil {
		return f
	}
	for _, m := range messages {
		switch {
		case m.Header.Level == unix.SOL_SOCKET && m.Header.Type == unix.SCM_TIMESTAMPNS && len(m.Data) >= 16:
			f.At = time.Unix(int64(binary.NativeEndian.Uint64(m.Data)), int64(binary.NativeEndian.Uint64(m.Data[8:])))
		case m.Header.Level == unix.SOL_PACKET && m.Header.Type == unix.PACKET_AUXDATA && len(m.Data) >= 20:
			status := binary.NativeEndian.Uint32(m.Data)
			tci, tpid := binary.NativeEndian.Uint16(m.Data[16:]), binary.NativeEndian.Uint16(m.Data[18:])
			if status&unix.TP_STATUS_VLAN_VALID != 0 && len(data) >= 12 {
				tag := binary.BigEndian.AppendUint16(binary.BigEndian.AppendUint16(nil, tpid), tci)
				f.Data = slices.Concat(data[:12], tag, data[12:])
			}
		}
	}
	return f
}

// Seen are the frames so far.
func (c *Capture) Seen() []Frame {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Clone(c.frames)
}

// With are the frames that carry a text in their payload.
func (c *Capture) With(payload string) []Frame {
	var out []Frame
	for _, f := range c.Seen() {
		if bytes.Contains(f.Data, []byte(payload)) {
			out = append(out, f)
		}
	}
	return out
}

// Incoming are the frames with a payload that came in.
func (c *Capture) Incoming(payload string) []Frame {
	return slices.DeleteFunc(c.With(payload), func(f Frame) bool { return f.Outgoing })
}

// Copies are those of a frame that came in; answers that quote it are not.
func (c *Capture) Copies(payload string, sent []byte) []Frame {
	return slices.DeleteFunc(c.Incoming(payload), func(f Frame) bool { return !SameSender(f.Data, sent) })
}

// PayloadOf is the last text in angle brackets in a frame, brackets included; "" without one.
func PayloadOf(data []byte) string {
	begin, end := bytes.LastIndexByte(data, '<'), bytes.LastIndexByte(data, '>')
	if begin < 0 || end < begin {
		return ""
	}
	return string(data[begin : end+1])
}

// SameSender tells whether two frames have the same source.
func SameSender(a, b []byte) bool { return bytes.Equal(a[6:12], b[6:12]) }

// Station is what a frame's addresses are made of.
type Station struct {
	MAC  net.HardwareAddr
	Addr netip.Addr
}

// Packet describes an IPv4 packet to send.
type Packet struct {
	Proto    uint8 // 17 UDP, 6 TCP (a bare SYN), 1 ICMP echo
	Src, Dst uint16
	TTL      uint8
	Payload  string
}

// Bytes of the frame, checksums included.
func (p Packet) Bytes(from, to Station) []byte {
	ip := &layers.IPv4{
		Version: 4, Id: 7, Flags: layers.IPv4DontFragment, TTL: p.TTL, Protocol: layers.IPProtocol(p.Proto), SrcIP: from.Addr.AsSlice(), DstIP: to.Addr.AsSlice(),
	}
	var l4 interface {
		gopacket.SerializableLayer
		SetNetworkLayerForChecksum(gopacket.NetworkLayer) error
	}
	switch p.Proto {
	case unix.IPPROTO_UDP:
		l4 = &layers.UDP{SrcPort: layers.UDPPort(p.Src), DstPort: layers.UDPPort(p.Dst)}
	case unix.IPPROTO_TCP:
		l4 = &layers.TCP{SrcPort: layers.TCPPort(p.Src), DstPort: layers.TCPPort(p.Dst), Seq: 1, SYN: true, Window: 0xffff}
	case unix.IPPROTO_ICMP:
		l4 = icmp{&layers.ICMPv4{TypeCode: layers.CreateICMPv4TypeCode(layers.ICMPv4TypeEchoRequest, 0), Id: 0x1234, Seq: 1}}
	default:
		panic(fmt.Sprintf("protocol %d", p.Proto))
	}
	b := gopacket.NewSerializeBuffer()
	err := errors.Join(l4.SetNetworkLayerForChecksum(ip),
		gopacket.SerializeLayers(b, gopacket.SerializeOptions{FixLengths: true, ComputeChecksums: true}, ip, l4, gopacket.Payload(p.Payload)))
	if err != nil {
		panic(err) // addresses that are not IPv4
	}
	return slices.Concat(to.MAC, from.MAC, []byte{0x08, 0x00}, b.Bytes()) // layers.Ethernet would pad it
}

// icmp has a checksum without addresses.
type icmp struct{ *layers.ICMPv4 }

func (icmp) SetNetworkLayerForChecksum(gopacket.NetworkLayer) error { return nil }

// Sender sends frames by one interface.
type Sender struct {
	fd, index int
}

// NewSender is one at an interface of a namespace.
func NewSender(space, link string) (*Sender, error) {
	s := &Sender{}
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
		return nil, fmt.Errorf("send by %s in %s: %w", link, space, err)
	}
	return s, nil
}

// sendPatience bounds how long a frame waits for its interface: for a moment after its link came up the kernel takes none.
const sendPatience = 5 * time.Second

// Send sends one frame. It fails with ENOBUFS if the interface takes none for a while.
func (s *Sender) Send(data []byte) error {
	for end := time.Now().Add(sendPatience); ; time.Sleep(time.Millisecond) {
		if err := s.TrySend(data); !errors.Is(err, unix.ENOBUFS) || time.Now().After(end) {
			return err
		}
	}
}

// TrySend sends one frame, or fails with ENOBUFS if the interface takes none now.
func (s *Sender) TrySend(data []byte) error {
	return unix.Sendto(s.fd, data, 0, &unix.SockaddrLinklayer{Ifindex: s.index})
}

// Close ends a sender.
func (s *Sender) Close() { _ = unix.Close(s.fd) }
