package solo

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/gopacket/gopacket"
	"github.com/gopacket/gopacket/layers"
	"github.com/gopacket/gopacket/pcapgo"

	"weir.dev/weir/instance"
)

// Frame is one Ethernet frame.
type Frame struct {
	Time time.Time
	Data []byte
}

// ErrFile says that a file of frames cannot be used.
var ErrFile = errors.New("not a usable capture")

// minFrame is an Ethernet header.
const minFrame = 14

// ngMagic begins a pcapng file.
const ngMagic = "\x0a\x0d\x0d\x0a"

// snapLength is of files that are written.
const snapLength = 1 << 18

// ReadFrames reads a pcap or pcapng file of whole Ethernet frames.
func ReadFrames(path string) ([]Frame, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrFile, err)
	}
	defer f.Close()
	frames, err := readFrames(bufio.NewReader(f))
	if err != nil {
		return nil, fmt.Errorf("%s: %w: %w", path, ErrFile, err)
	}
	return frames, nil
}

// source is a reader of frames of either format.
type source interface {
	gopacket.PacketDataSource
	LinkType() layers.LinkType
}

func readFrames(r *bufio.Reader) (frames []Frame, err error) {
	begin, err := r.Peek(len(ngMagic))
	if err != nil {
		return nil, errors.New("it is too short for pcap or pcapng")
	}
	var in source
	if string(begin) == ngMagic {
		in, err = pcapgo.NewNgReader(r, pcapgo.DefaultNgReaderOptions)
	} else {
		in, err = pcapgo.NewReader(r)
	}
	if err != nil {
		return nil, fmt.Errorf("want pcap or pcapng: %w", err)
	}
	total := 0
	for n := 1; ; n++ {
		data, info, err := in.ReadPacketData()
		cut := errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, io.EOF) && info.Length > 0 // behind the header of a frame
		if errors.Is(err, io.EOF) && !cut {
			break
		}
		if cut {
			return nil, fmt.Errorf("frame %d: the file ends in the middle of it", n)
		}
		if err != nil {
			return nil, fmt.Errorf("frame %d: %w", n, err)
		}
		total += len(data)
		switch {
		case in.LinkType() != layers.LinkTypeEthernet:
			return nil, fmt.Errorf("frame %d: link type %s: want Ethernet", n, in.LinkType())
		case info.CaptureLength < info.Length:
			return nil, fmt.Errorf("frame %d: %d of its %d bytes were captured: capture whole frames (tcpdump -s 0)", n, info.CaptureLength, info.Length)
		case len(data) < minFrame:
			return nil, fmt.Errorf("frame %d: %d bytes are less than an Ethernet header", n, len(data))
		case n > maxFrames || total > maxFrameBytes:
			return nil, fmt.Errorf("want at most %d frames and %d bytes", maxFrames, maxFrameBytes)
		}
		frames = append(frames, Frame{info.Timestamp, data})
	}
	if in.LinkType() != layers.LinkTypeEthernet && len(frames) == 0 && string(begin) != ngMagic {
		return nil, fmt.Errorf("link type %s: want Ethernet", in.LinkType())
	}
	return frames, nil
}

// WriteFrames writes a file of frames, whole or not at all: pcapng if it is called so, else pcap. The frames are a millisecond apart, so that the same frames
// make the same file.
func WriteFrames(path string, frames []Frame) error {
	var b strings.Builder
	at := func(i int) time.Time { return time.UnixMilli(int64(i)) }
	if filepath.Ext(path) == ".pcapng" {
		w, err := pcapgo.NewNgWriter(&b, layers.LinkTypeEthernet)
		if err != nil {
			return err
		}
		for i, f := range frames {
			if err := w.WritePacket(gopacket.CaptureInfo{Timestamp: at(i), CaptureLength: len(f.Data), Length: len(f.Data), InterfaceIndex: 0}, f.Data); err != nil {
				return err
			}
		}
		if err := w.Flush(); err != nil {
			return err
		}
	} else {
		w := pcapgo.NewWriter(&b)
		if err := w.WriteFileHeader(snapLength, layers.LinkTypeEthernet); err != nil {
			return err
		}
		for i, f := range frames {
			if err := w.WritePacket(gopacket.CaptureInfo{Timestamp: at(i), CaptureLength: len(f.Data), Length: len(f.Data)}, f.Data); err != nil {
				return err
			}
		}
	}
	return instance.Replace(path, []byte(b.String()), 0o644)
}

// Summary says what a frame is, in one line.
func Summary(frame []byte) string {
	p := gopacket.NewPacket(frame, layers.LayerTypeEthernet, gopacket.DecodeOptions{Lazy: false, NoCopy: true})
	var parts []string
	for _, l := range p.Layers() {
		switch l := l.(type) {
		case *layers.Ethernet:
			if p.NetworkLayer() == nil {
				parts = append(parts, fmt.Sprintf("%s > %s type 0x%04x", l.SrcMAC, l.DstMAC, uint16(l.EthernetType)))
			}
		case *layers.Dot1Q:
			parts = append(parts, fmt.Sprintf("vlan %d", l.VLANIdentifier))
		case *layers.ARP:
			parts = append(parts, fmt.Sprintf("ARP op %d %s > %s", l.Operation, ip(l.SourceProtAddress), ip(l.DstProtAddress)))
		case *layers.IPv4:
			parts = append(parts, fmt.Sprintf("%s > %s ttl %d", l.SrcIP, l.DstIP, l.TTL))
		case *layers.IPv6:
			parts = append(parts, fmt.Sprintf("%s > %s hop limit %d", l.SrcIP, l.DstIP, l.HopLimit))
		case *layers.TCP:
			parts = append(parts, fmt.Sprintf("TCP %d > %d %s seq %d", uint16(l.SrcPort), uint16(l.DstPort), flagsOf(l), l.Seq))
		case *layers.UDP:
			parts = append(parts, fmt.Sprintf("UDP %d > %d", uint16(l.SrcPort), uint16(l.DstPort)))
		case *layers.ICMPv4:
			parts = append(parts, "ICMP "+l.TypeCode.String())
		case *layers.ICMPv6:
			parts = append(parts, "ICMPv6 "+l.TypeCode.String())
		}
	}
	return strings.Join(append(parts, fmt.Sprintf("%d bytes", len(frame))), ", ")
}

func ip(b []byte) string {
	if len(b) != 4 {
		return "?"
	}
	return fmt.Sprintf("%d.%d.%d.%d", b[0], b[1], b[2], b[3])
}

func flagsOf(l *layers.TCP) string {
	var out []string
	for _, f := range []struct {
		on   bool
		name string
	}{{l.SYN, "SYN"}, {l.ACK, "ACK"}, {l.FIN, "FIN"}, {l.RST, "RST"}, {l.PSH, "PSH"}, {l.URG, "URG"}} {
		if f.on {
			out = append(out, f.name)
		}
	}
	return strings.Join(out, "+")
}
