// Package capture reads the frames of an interface, in both directions, and writes them as pcapng. It is bounded: what a capture may keep a processor busy with,
// how long it lasts, what it keeps in memory. Frames beyond that are dropped, by the kernel where it can, and counted in the capture.
package capture

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net/http"
	"runtime"
	"time"

	"github.com/gopacket/gopacket"
	"github.com/gopacket/gopacket/layers"
	"github.com/gopacket/gopacket/pcapgo"
	"golang.org/x/sys/unix"

	"weir.dev/weir/api"
	"weir.dev/weir/netns"
)

// Bounds of one capture.
const (
	buffer      = 16 << 20 // of the socket, bytes: frames wait there while the reader of the capture is slow
	window      = 100 * time.Millisecond
	windowMost  = int(api.MaxCaptureRate * window / time.Second) // frames in it
	windowBytes = 4 << 20                                        // in it
	pollFor     = 100                                            // ms
	drainMost   = 500                                            // frames of one socket before the other is looked at
	statsEvery  = time.Second
)

// Place is where frames are heard.
type Place struct {
	Space, Link string // network namespace, "" the host's, and interface there
	// Opposite is another interface there, all of whose frames leave by Link without passing it: a program of the kernel's hands them on. "" none.
	Opposite string
	Name     string // in the capture
	// OtherEnd is the host's end of the pair that Link has to be the other end of. nil: Link may be any.
	OtherEnd *netns.Link
}

// Open begins to capture. It ends with ctx, when it is closed, by the options' bounds, or when the interface goes.
func Open(ctx context.Context, p Place, o api.CaptureOptions) (io.ReadCloser, error) {
	filter, err := api.ParseFilter(o.Filter)
	if err != nil {
		return nil, err
	}
	c := &capture{o: o}
	open := func() (err error) {
		at, err := netns.At("")
		if err != nil {
			return err
		}
		defer at.Close()
		for _, link := range []string{p.Link, p.Opposite} {
			if link == "" {
				continue
			}
			l, err := at.Link(link)
			if err != nil {
				return err
			}
			if e := p.OtherEnd; e != nil && (l.PeerIndex != e.Index || e.PeerIndex != l.Index) {
				return api.Refuse(http.StatusConflict, fmt.Sprintf("capture at %s: %s in %s is not the other end of the link %s that Weir made", p.Name, link, p.Space, e.Name))
			}
			fd, err := socket(l.Index, p.Opposite != "", filter)
			if err != nil {
				return err
			}
			c.sockets = append(c.sockets, unix.PollFd{Fd: int32(fd), Events: unix.POLLIN})
		}
		return nil
	}
	if p.Space == "" {
		err = open()
	} else {
		err = netns.Do(p.Space, open)
	}
	if err != nil {
		c.close()
		return nil, fmt.Errorf("capture at %s: %w", p.Name, err)
	}
	r, w := io.Pipe()
	go func() {
		defer c.close()
		_ = w.CloseWithError(c.run(ctx, w, p.Name)) // nil is the end of the file
	}()
	return r, nil
}

func socket(index int, inboundOnly bool, filter []api.FilterInstruction) (int, error) {
	fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0) // hears nothing before bind
	if err != nil {
		return -1, fmt.Errorf("packet socket: %w", err)
	}
	err = unix.SetsockoptInt(fd, unix.SOL_PACKET, unix.PACKET_AUXDATA, 1)
	if err == nil {
		err = unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_TIMESTAMPNS, 1)
	}
	if err == nil && unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, buffer) != nil {
		err = unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUF, buffer)
	}
	if err == nil && inboundOnly {
		err = unix.SetsockoptInt(fd, unix.SOL_PACKET, unix.PACKET_IGNORE_OUTGOING, 1)
	}
	if err == nil && len(filter) > 0 {
		program := make([]unix.SockFilter, len(filter))
		for i, f := range filter {
			program[i] = unix.SockFilter{Code: f.Code, Jt: f.JT, Jf: f.JF, K: f.K}
		}
		err = unix.SetsockoptSockFprog(fd, unix.SOL_SOCKET, unix.SO_ATTACH_FILTER, &unix.SockFprog{Len: uint16(len(program)), Filter: &program[0]})
		runtime.KeepAlive(program)
		if errors.Is(err, unix.EINVAL) {
			err = api.Refuse(400, "capture: the kernel does not take this filter: want classic BPF for Ethernet, as `tcpdump -ddd` prints it")
		}
	}
	if err == nil {
		err = unix.Bind(fd, &unix.SockaddrLinklayer{Protocol: uint16(unix.ETH_P_ALL)<<8 | uint16(unix.ETH_P_ALL)>>8, Ifindex: index})
	}
	if err != nil {
		unix.Close(fd)
		return -1, err
	}
	return fd, nil
}

// capture under way.
type capture struct {
	sockets []unix.PollFd // of the interface, and of the opposite one
	o       api.CaptureOptions
	begin   time.Time
	frames  int
	bytes   int64
	heard   uint64 // by the kernel, dropped ones included
	dropped uint64

	opened       time.Time // the window
	inWindow     int
	windowVolume int
}

func (c *capture) close() {
	for _, s := range c.sockets {
		unix.Close(int(s.Fd))
	}
}

// run until one of the bounds; nil.
func (c *capture) run(ctx context.Context, to io.Writer, name string) error {
	c.begin = time.Now()
	options := pcapgo.DefaultNgWriterOptions
	options.SectionInfo.Application = "weir"
	w, err := pcapgo.NewNgWriterInterface(to, pcapgo.NgInterface{Name: name, LinkType: layers.LinkTypeEthernet, SnapLength: uint32(c.o.Snaplen), TimestampResolution: 9}, options)
	if err != nil {
		return err
	}
	if err := w.Flush(); err != nil { // who reads knows that it has begun
		return err
	}
	// As many bytes as are wanted; the kernel tells how long a frame was.
	buf, oob := make([]byte, c.o.Snaplen), make([]byte, 512)
	told := c.begin
	for ctx.Err() == nil && !c.full() {
		if time.Since(told) >= statsEvery {
			told = time.Now()
			if err := c.tell(w); err != nil {
				return err
			}
		}
		if n, err := unix.Poll(c.sockets, pollFor); err != nil && !errors.Is(err, unix.EINTR) {
			return err
		} else if n <= 0 {
			continue
		}
		gone := false
		for i, s := range c.sockets {
			if s.Revents == 0 {
				continue
			}
			ended, err := c.drain(ctx, w, i, buf, oob)
			if err != nil {
				return err
			}
			gone = gone || ended
		}
		if err := w.Flush(); err != nil {
			return err
		}
		if gone {
			break
		}
	}
	return c.tell(w)
}

func (c *capture) full() bool {
	return c.o.Count > 0 && c.frames >= c.o.Count || c.bytes >= c.o.Bytes || time.Since(c.begin) >= c.o.Duration
}

// drain writes the frames that wait in one of the sockets, as many as its rate allows. gone: the interface is.
func (c *capture) drain(ctx context.Context, w *pcapgo.NgWriter, socket int, buf, oob []byte) (gone bool, err error) {
	for range drainMost { // the other socket has its turn
		if c.full() || ctx.Err() != nil {
			return false, nil
		}
		if since := time.Since(c.opened); since >= window {
			c.opened, c.inWindow, c.windowVolume = time.Now(), 0, 0
		} else if c.inWindow >= windowMost || c.windowVolume >= windowBytes {
			if err := w.Flush(); err != nil {
				return false, err
			}
			select {
			case <-time.After(window - since):
			case <-ctx.Done():
			}
			continue
		}
		n, oobn, _, from, err := unix.Recvmsg(int(c.sockets[socket].Fd), buf, oob, unix.MSG_TRUNC)
		switch {
		case errors.Is(err, unix.EAGAIN):
			return false, nil
		case errors.Is(err, unix.EINTR):
			continue
		case errors.Is(err, unix.ENETDOWN), errors.Is(err, unix.ENXIO), errors.Is(err, unix.ENODEV):
			return true, nil
		case err != nil:
			return false, err
		}
		info, data := c.frame(buf[:min(n, len(buf))], n, oob[:oobn])
		direction := pcapgo.NgEpbFlagDirectionInbound
		if at, ok := from.(*unix.SockaddrLinklayer); socket > 0 || ok && at.Pkttype == unix.PACKET_OUTGOING {
			direction = pcapgo.NgEpbFlagDirectionOutbound
		}
		if err := w.WritePacketWithOptions(info, data, pcapgo.NgPacketOptions{Flags: &pcapgo.NgEpbFlags{Direction: direction}}); err != nil {
			return false, err
		}
		c.frames++
		c.inWindow++
		c.bytes += int64(len(data))
		c.windowVolume += len(data)
	}
	return false, nil
}

// frame is a frame as it was on the wire: with its VLAN tag, which the kernel tells beside it, and with its time.
func (c *capture) frame(data []byte, length int, oob []byte) (gopacket.CaptureInfo, []byte) {
	at := time.Now()
	if messages, err := unix.ParseSocketControlMessage(oob); err == nil {
		for _, m := range messages {
			switch {
			case m.Header.Level == unix.SOL_SOCKET && m.Header.Type == unix.SCM_TIMESTAMPNS && len(m.Data) >= 16:
				at = time.Unix(int64(binary.NativeEndian.Uint64(m.Data)), int64(binary.NativeEndian.Uint64(m.Data[8:])))
			case m.Header.Level == unix.SOL_PACKET && m.Header.Type == unix.PACKET_AUXDATA:
				if tagged := Tagged(data, m.Data); len(tagged) > len(data) {
					length += len(tagged) - len(data)
					data = tagged[:min(len(tagged), c.o.Snaplen)]
				}
			}
		}
	}
	return gopacket.CaptureInfo{Timestamp: at, CaptureLength: len(data), Length: length}, data
}

// Tagged puts the VLAN tag back that the kernel took out of a frame and told beside it, in a struct tpacket_auxdata. Without one it is the frame itself.
func Tagged(frame, aux []byte) []byte {
	if len(aux) < 20 || len(frame) < 12 || binary.NativeEndian.Uint32(aux)&unix.TP_STATUS_VLAN_VALID == 0 {
		return frame
	}
	var tag [4]byte
	binary.BigEndian.PutUint16(tag[:], binary.NativeEndian.Uint16(aux[18:]))
	binary.BigEndian.PutUint16(tag[2:], binary.NativeEndian.Uint16(aux[16:]))
	return bytes.Join([][]byte{frame[:12], tag[:], frame[12:]}, nil)
}

// tell writes how many frames came so far, and how many of them were dropped.
func (c *capture) tell(w *pcapgo.NgWriter) error {
	for _, socket := range c.sockets {
		if s, err := unix.GetsockoptTpacketStats(int(socket.Fd), unix.SOL_PACKET, unix.PACKET_STATISTICS); err == nil { // reading it clears it
			c.heard += uint64(s.Packets)
			c.dropped += uint64(s.Drops)
		}
	}
	now := time.Now()
	err := w.WriteInterfaceStats(0, pcapgo.NgInterfaceStatistics{LastUpdate: now, StartTime: c.begin, EndTime: now, PacketsReceived: c.heard, PacketsDropped: c.dropped})
	return errors.Join(err, w.Flush())
}
