package nf

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/gopacket/gopacket"
	"github.com/gopacket/gopacket/layers"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"weir.dev/weir/catalogue/rig"
	"weir.dev/weir/netns"
)

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// open a loop between two stations.
func open(t *testing.T, o Options) (*rig.Rig, *Frames) {
	t.Helper()
	r := rig.New(t, false)
	o.Probe = rig.WriteProbe(t, t.TempDir())
	var s *Frames
	r.Do(r.Netns, func() (err error) { s, err = OpenFrames(o); return err })
	t.Cleanup(s.Close)
	return r, s
}

// ringedAndNot runs a test with the kernel's ring, and without: where the kernel gives none frames come through the sockets' queues.
func ringedAndNot(t *testing.T, test func(t *testing.T, open func(Options) (*rig.Rig, *Frames))) {
	for name, ringed := range map[string]bool{"ring": true, "queue": false} {
		t.Run(name, func(t *testing.T) {
			test(t, func(o Options) (*rig.Rig, *Frames) {
				r, s := open(t, o)
				for _, p := range s.open() {
					if p.ring == nil {
						t.Fatalf("port %s has no ring", p.name)
					}
					if !ringed {
						p.unring()
					}
				}
				return r, s
			})
		})
	}
}

// run the loop until the test ends.
func run(t *testing.T, s *Frames) {
	t.Helper()
	ctx, stop := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- s.Run(ctx) }()
	t.Cleanup(func() {
		stop()
		if err := <-done; err != nil {
			t.Error(err)
		}
		if c := s.Counters(); c.Unread != [3]uint64{} || c.Refused != [3]uint64{} || c.Described != 0 {
			t.Errorf("%+v", c)
		}
	})
}

// TestFramesPassUnchanged sends frames of all lengths and kinds both ways, tagged and not.
func TestFramesPassUnchanged(t *testing.T) {
	ringedAndNot(t, func(t *testing.T, open func(Options) (*rig.Rig, *Frames)) {
		r, s := open(Options{})
		run(t, s)
		r.PassUnchanged(400, 14, []byte{8, 0, 0x45}, []byte{0x86, 0xdd, 0x60}, []byte{0x81, 0, 0, 42, 8, 0, 0x45}, []byte{0x81, 0, 0xef, 0xff, 0x81, 0, 0, 1, 8, 0},
			[]byte{0x88, 0xa8, 0, 7, 0x81, 0, 0, 8}, []byte{8, 6}, []byte{0x88, 0xb5}, []byte{0x12, 0x34}, []byte{0, 40})
	})
}

// TestFramesKeepTheirOrder: those that a slot of the ring has room for and those that wait in the queue, also through more than one round of the ring.
func TestFramesKeepTheirOrder(t *testing.T) {
	r, s := open(t, Options{})
	run(t, s)
	const volleys, volley = 16, 120
	for n := range volleys {
		for i := range volley {
			f := make([]byte, []int{60, 60, 1400, 420, 440, 1514, 60}[(n+i)%7])
			copy(f, []byte{2, 9, 9, 9, 9, 1, 2, 9, 9, 9, 9, 2, 0x12, 0x34, byte(n), byte(i)})
			r.Client.Send(f)
		}
		for i := range volley {
			if got := r.Server.Receive(rig.Patience); len(got) < 16 || got[14] != byte(n) || got[15] != byte(i) {
				t.Fatalf("volley %d, frame %d: got %d bytes, % x", n, i, len(got), got[:min(16, len(got))])
			}
		}
	}
}

// TestAFrameThatCannotBeDescribed: it costs itself, and what comes until the ring is given up, but not all that comes after it.
func TestAFrameThatCannotBeDescribed(t *testing.T) {
	r := rig.New(t, false)
	var tap *os.File
	r.Do(r.Netns, func() error {
		fd, err := unix.Open("/dev/net/tun", unix.O_RDWR|unix.O_CLOEXEC, 0)
		if err != nil {
			return err
		}
		tap = os.NewFile(uintptr(fd), "tap")
		req, err := unix.NewIfreq("tap9")
		if err != nil {
			return err
		}
		req.SetUint16(unix.IFF_TAP | unix.IFF_NO_PI | unix.IFF_VNET_HDR)
		if err := unix.IoctlIfreq(fd, unix.TUNSETIFF, req); err != nil {
			return err
		}
		l, err := netlink.LinkByName("tap9")
		if err != nil {
			return err
		}
		return netlink.LinkSetUp(l)
	})
	defer tap.Close()
	var s *Frames
	r.Do(r.Netns, func() (err error) {
		s, err = OpenFrames(Options{In: "tap9", Probe: rig.WriteProbe(t, t.TempDir())})
		return err
	})
	t.Cleanup(s.Close)
	ctx, stop := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- s.Run(ctx) }()
	defer func() { stop(); must(t, <-done) }()
	ordinary := make([]byte, 60)
	copy(ordinary, []byte{2, 9, 9, 9, 9, 1, 2, 9, 9, 9, 9, 2, 0x12, 0x34})
	send := func(description [vnetHeader]byte, frame []byte) {
		t.Helper()
		_, err := tap.Write(append(description[:], frame...))
		must(t, err)
	}
	send([vnetHeader]byte{}, ordinary)
	if got := r.Server.Receive(rig.Patience); !bytes.Equal(got, ordinary) {
		t.Fatalf("% x", got)
	}
	datagram := build(t, &layers.Ethernet{SrcMAC: net.HardwareAddr{2, 9, 9, 9, 9, 2}, DstMAC: net.HardwareAddr{2, 9, 9, 9, 9, 1}, EthernetType: layers.EthernetTypeIPv4},
		&layers.IPv4{Version: 4, IHL: 5, TTL: 7, Protocol: layers.IPProtocolUDP, SrcIP: net.IP{10, 1, 1, 1}, DstIP: net.IP{10, 1, 1, 2}}, &layers.UDP{SrcPort: 1, DstPort: 2}, gopacket.Payload(make([]byte, 900)))
	const fragments = 3 // VIRTIO_NET_HDR_GSO_UDP
	send([vnetHeader]byte{0: 1, 1: fragments, 2: 42, 4: 104, 6: 34, 8: 6}, datagram)
	rig.Eventually(t, "an ordinary frame to pass again", func() bool {
		send([vnetHeader]byte{}, ordinary)
		return bytes.Equal(r.Server.Receive(300*time.Millisecond), ordinary) // seldom: as probes are
	})
	s.Do(func() {
		if c := s.Counters(); c.Described == 0 || s.ports[Up].ring != nil || s.ports[Down].ring == nil {
			t.Errorf("%+v: want a frame that could not be described, and no ring at tap9 alone", c)
		}
	})
	for range 3 { // through the queue they cost themselves alone
		send([vnetHeader]byte{0: 1, 1: fragments, 2: 42, 4: 104, 6: 34, 8: 6}, datagram)
		send([vnetHeader]byte{}, ordinary)
		for got := r.Server.Receive(rig.Patience); !bytes.Equal(got, ordinary); got = r.Server.Receive(rig.Patience) {
			if got == nil {
				t.Fatal("nothing comes")
			}
		}
	}
}

// TestWhatThereIsNoRoomForIsCounted: a flood that nobody reads fills ring and queue; what came before it passes, and the rest is told.
func TestWhatThereIsNoRoomForIsCounted(t *testing.T) {
	for _, size := range []int{60, 1400} {
		t.Run(fmt.Sprint(size), func(t *testing.T) {
			r, s := open(t, Options{})
			const flood = 8000
			f := make([]byte, size)
			copy(f, []byte{2, 9, 9, 9, 9, 1, 2, 9, 9, 9, 9, 2, 0x12, 0x34})
			for range flood {
				r.Client.Send(f)
			}
			run(t, s)
			var c Counters
			rig.Eventually(t, "all frames to be counted", func() bool {
				s.Do(func() { c = s.Counters() })
				return c.Received[Up]+c.Missed[Up] >= flood
			})
			if c.Received[Up] < 100 || c.Missed[Up] == 0 || c.Sent[Up] != c.Received[Up] {
				t.Errorf("%+v", c)
			}
			before := c
			r.Client.Send(f)
			rig.Eventually(t, "one more to pass", func() bool {
				s.Do(func() { c = s.Counters() })
				return c.Sent[Up] > before.Sent[Up]
			})
		})
	}
}

func addresses(l netlink.Link, addrs ...string) error {
	if err := os.WriteFile("/proc/sys/net/ipv6/conf/"+l.Attrs().Name+"/disable_ipv6", []byte("0"), 0); err != nil {
		return err
	}
	for _, a := range addrs {
		addr, err := netlink.ParseAddr(a)
		if err != nil {
			return err
		}
		addr.Flags = 2 // IFA_F_NODAD
		if err := netlink.AddrAdd(l, addr); err != nil {
			return err
		}
	}
	return netlink.LinkSetUp(l)
}

// TestStreamsPassUnchanged: segments of up to 64 KiB, whose checksums are still to be computed, arrive as they were sent, by IPv4 and IPv6.
func TestStreamsPassUnchanged(t *testing.T) {
	ringedAndNot(t, func(t *testing.T, open func(Options) (*rig.Rig, *Frames)) {
		var longest [2]int
		r, s := open(Options{Handle: func(d Dir, f Frame) Verdict {
			p := Decode(f.Data)
			if p.Bad != "" {
				t.Errorf("%s: % x", p.Bad, f.Data[:min(60, len(f.Data))])
			}
			if f.Segmented() && f.ChecksumMissing() {
				longest[d] = max(longest[d], len(f.Data))
			}
			return Pass
		}})
		run(t, s)
		for i, station := range []*rig.Station{r.Client, r.Server} {
			must(t, netns.Do(station.Netns, func() error {
				l, err := netlink.LinkByIndex(station.Link.Index)
				if err != nil {
					return err
				}
				return addresses(l, fmt.Sprintf("fd77::%d/64", i+1))
			}))
		}
		for _, addr := range []string{"10.77.0.2:9", "[fd77::2]:9"} {
			var l net.Listener
			must(t, netns.Do(r.Server.Netns, func() (err error) { l, err = net.Listen("tcp", addr); return err }))
			const size = 24 << 20
			sum := make(chan string, 1)
			var served sync.WaitGroup
			served.Go(func() { // takes all, then sends as much back
				c, err := l.Accept()
				if err != nil {
					return
				}
				defer c.Close()
				h := sha256.New()
				_, _ = io.Copy(h, io.LimitReader(c, size))
				sum <- fmt.Sprintf("%x", h.Sum(nil))
				_, _ = io.CopyN(c, rand.NewChaCha8([32]byte{2}), size)
			})
			longest = [2]int{}
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			c, err := r.Client.Dial(ctx, "tcp", addr)
			must(t, err)
			_, err = io.CopyN(c, rand.NewChaCha8([32]byte{1}), size)
			must(t, err)
			want, back, got := sha256.New(), sha256.New(), sha256.New()
			_, _ = io.CopyN(want, rand.NewChaCha8([32]byte{1}), size)
			_, _ = io.CopyN(back, rand.NewChaCha8([32]byte{2}), size)
			_ = c.SetReadDeadline(time.Now().Add(time.Minute))
			n, err := io.Copy(got, c)
			if have := <-sum; have != fmt.Sprintf("%x", want.Sum(nil)) || !bytes.Equal(got.Sum(nil), back.Sum(nil)) {
				t.Errorf("%s: bytes changed on the way (%d came back, %v)", addr, n, err)
			}
			c.Close()
			l.Close()
			served.Wait()
			cancel()
			s.Do(func() {
				if longest[Up] < 32<<10 || longest[Down] < 32<<10 {
					t.Errorf("%s: longest segments %v: this tested less than it says", addr, longest)
				}
				t.Logf("%s: longest %v; %+v", addr, longest, s.Counters())
			})
		}
	})
}

// TestTaggedSegmentsPassUnchanged: a segment of 60 KB behind VLAN tags keeps its description, moved by what the kernel takes off and we put back.
func TestTaggedSegmentsPassUnchanged(t *testing.T) {
	r, s := open(t, Options{})
	var from, to *port
	r.Do(r.Client.Netns, func() (err error) { from, err = openPort("client", taken{}); return err })
	defer from.close()
	r.Do(r.Server.Netns, func() (err error) { to, err = openPort("server", taken{}); return err })
	defer to.close()
	run(t, s)
	var in batch
	in.make()
	for tags := range 3 {
		parts := []gopacket.SerializableLayer{&layers.Ethernet{SrcMAC: net.HardwareAddr{2, 9, 9, 9, 9, 1}, DstMAC: net.HardwareAddr{2, 9, 9, 9, 9, 2}, EthernetType: layers.EthernetTypeIPv4}}
		for i := range tags {
			parts = append(parts, &layers.Dot1Q{VLANIdentifier: uint16(i + 7), Type: layers.EthernetTypeIPv4})
			switch l := parts[i].(type) {
			case *layers.Ethernet:
				l.EthernetType = layers.EthernetTypeDot1Q
			case *layers.Dot1Q:
				l.Type = layers.EthernetTypeDot1Q
			}
		}
		data := make([]byte, 60_000)
		_, _ = rand.NewChaCha8([32]byte{1}).Read(data)
		parts = append(parts, &layers.IPv4{Version: 4, IHL: 5, TTL: 7, Protocol: layers.IPProtocolTCP, SrcIP: net.IP{10, 1, 1, 1}, DstIP: net.IP{10, 1, 1, 2}}, &layers.TCP{SrcPort: 1, DstPort: 2, ACK: true}, gopacket.Payload(data))
		f := build(t, parts...)
		sent := make([]byte, vnetHeader, vnetHeader+len(f))
		start := 34 + 4*tags
		sent[0], sent[1] = 1, 1 // VIRTIO_NET_HDR_F_NEEDS_CSUM, VIRTIO_NET_HDR_GSO_TCPV4
		binary.NativeEndian.PutUint16(sent[2:], uint16(start+20))
		binary.NativeEndian.PutUint16(sent[4:], 1448)
		binary.NativeEndian.PutUint16(sent[6:], uint16(start))
		binary.NativeEndian.PutUint16(sent[8:], 16)
		sent = append(sent, f...)
		_, err := unix.Write(from.fd, sent)
		must(t, err)
		n := 0
		rig.Eventually(t, "the segment comes", func() bool {
			n, err = in.read(to.fd, batchSize)
			return err == nil
		})
		to.ring.release(1)
		if got := in.frame(0); n != 1 || !bytes.Equal(got[vnetHeader:], f) || !bytes.Equal(got[4:vnetHeader], sent[4:vnetHeader]) || got[0] != 1 || got[1] != 1 {
			t.Errorf("%d tags: %d frames, the first % x; sent % x", tags, n, got[:min(80, len(got))], sent[:80])
		}
	}
}

// TestVerdicts: what the handler drops does not pass, but the probes do; it can send frames both ways, at once and later, in order.
func TestVerdicts(t *testing.T) {
	frame := func(n byte) []byte {
		f := make([]byte, 60)
		copy(f, []byte{2, 9, 9, 9, 9, 1, 2, 9, 9, 9, 9, 2, 0x12, 0x34, n})
		return f
	}
	var kept Frame
	var s *Frames
	r, s := open(t, Options{Handle: func(d Dir, f Frame) Verdict {
		switch {
		case f.Data[12] != 0x12:
			return Drop
		case f.Data[14] == 1: // an answer, and two on the way on
			s.Send(d.Back(), NewFrame(frame(101)))
			s.Send(d, NewFrame(frame(102)))
			return Pass
		case f.Data[14] == 2:
			kept = f.Clone()
			return Drop
		case f.Data[14] == 3:
			s.Send(d, kept)
			return Pass
		}
		return Drop
	}})
	run(t, s)
	expect := func(at *rig.Station, want ...byte) {
		t.Helper()
		for _, n := range want {
			if got := at.Receive(rig.Patience); !bytes.Equal(got, frame(n)) {
				t.Fatalf("want frame %d, got % x", n, got)
			}
		}
	}
	r.Client.Send(frame(1))
	expect(r.Client, 101)
	expect(r.Server, 102, 1)
	r.Server.Send(frame(2))
	r.Server.Send(frame(4))
	r.Server.Send(frame(3))
	expect(r.Client, 2, 3)
	s.Do(func() { s.Send(Down, NewFrame(frame(7))) })
	expect(r.Client, 7)
	wrong := rig.Probe(1)
	wrong[3]++
	if rig.Passes(r.Client, r.Server, wrong) {
		t.Error("a probe with other addresses passed the handler by")
	}
}

// TestWhenAFrameCame: while the handler is asked about a frame that has waited in the ring, it is known when it came.
func TestWhenAFrameCame(t *testing.T) {
	var s *Frames
	came := make(chan time.Time, 2)
	settler := NewSettler(filepath.Join(t.TempDir(), "none"), slog.New(slog.DiscardHandler))
	defer settler.Close()
	r, s := open(t, Options{Settler: settler, Handle: func(d Dir, f Frame) Verdict {
		came <- settler.came()
		return Pass
	}})
	before := time.Now()
	r.Client.Send(make([]byte, 60))
	time.Sleep(20 * time.Millisecond)
	begun := time.Now()
	run(t, s)
	r.Server.Receive(rig.Patience)
	if at := <-came; at.Before(before.Add(-time.Millisecond)) || !at.Before(begun) {
		t.Errorf("the frame came at %v, want after %v and before %v", at, before, begun)
	}
	s.Do(func() {
		if at := settler.came(); !at.IsZero() {
			t.Errorf("without a frame: it came at %v", at)
		}
	})
}

// TestNothingIsAllocatedPerFrame counts what the program allocates while frames that wait are handled.
func TestNothingIsAllocatedPerFrame(t *testing.T) {
	for _, size := range []int{60, 1400} {
		t.Run(fmt.Sprint(size), func(t *testing.T) {
			const frames = 200
			var before, after runtime.MemStats
			seen := 0
			done := make(chan struct{})
			var s *Frames
			r, s := open(t, Options{Handle: func(d Dir, f Frame) Verdict {
				switch seen++; seen {
				case 1:
					runtime.ReadMemStats(&before)
				case frames:
					runtime.ReadMemStats(&after)
					close(done)
				}
				if seen%2 == 0 {
					changed := s.Copy(f)
					changed.Data[20]++
					s.Send(d, changed)
					return Drop
				}
				return Pass
			}})
			f := make([]byte, size)
			copy(f, []byte{2, 9, 9, 9, 9, 1, 2, 9, 9, 9, 9, 2, 0x12, 0x34})
			for range frames {
				r.Client.Send(f)
			}
			run(t, s)
			select {
			case <-done:
			case <-time.After(rig.Patience):
				t.Fatalf("%d of %d frames came", seen, frames)
			}
			for i := range 60 { // as many as the server's socket has room for
				if got := r.Server.Receive(rig.Patience); len(got) != size || int(got[20]) != i%2 {
					t.Fatalf("frame %d: % x", i, got[:min(24, len(got))])
				}
			}
			if n := after.Mallocs - before.Mallocs; n > frames/20 {
				t.Errorf("%d allocations for %d frames", n, frames)
			}
		})
	}
}

// TestAPortThatIsGoneEndsTheLoop: a function without a port has nothing to do, and its restart says so.
func TestAPortThatIsGoneEndsTheLoop(t *testing.T) {
	r, s := open(t, Options{})
	done := make(chan error, 1)
	go func() { done <- s.Run(t.Context()) }()
	r.Server.Cut()
	select {
	case err := <-done:
		if err == nil || !strings.Contains(err.Error(), "port out is gone") {
			t.Errorf("%v", err)
		}
	case <-time.After(rig.Patience):
		t.Error("the loop goes on without a port")
	}
	ran := false
	s.Do(func() { ran = true })
	if !ran {
		t.Error("Do after the end does nothing")
	}
}

func TestOpenSaysWhatIsMissing(t *testing.T) {
	if _, err := OpenFrames(Options{In: "nosuch0"}); err == nil || !strings.Contains(err.Error(), "port nosuch0") {
		t.Errorf("%v", err)
	}
	file := t.TempDir() + "/probe"
	must(t, os.WriteFile(file, []byte("what"), 0o644))
	if _, err := OpenFrames(Options{Probe: file}); err == nil || !strings.Contains(err.Error(), "want two MAC addresses") {
		t.Errorf("%v", err)
	}
}

func build(t testing.TB, parts ...gopacket.SerializableLayer) []byte {
	t.Helper()
	buf := gopacket.NewSerializeBuffer()
	must(t, gopacket.SerializeLayers(buf, gopacket.SerializeOptions{FixLengths: true}, parts...))
	return buf.Bytes()
}

func TestDecode(t *testing.T) {
	eth := func(kind layers.EthernetType) *layers.Ethernet {
		return &layers.Ethernet{SrcMAC: net.HardwareAddr{2, 9, 9, 9, 9, 1}, DstMAC: net.HardwareAddr{2, 9, 9, 9, 9, 2}, EthernetType: kind}
	}
	v4 := &layers.IPv4{Version: 4, IHL: 5, TTL: 7, Protocol: layers.IPProtocolTCP, SrcIP: net.IP{10, 1, 1, 1}, DstIP: net.IP{10, 1, 1, 2}}
	v6 := &layers.IPv6{Version: 6, HopLimit: 7, NextHeader: layers.IPProtocolUDP, SrcIP: net.ParseIP("fd00::1"), DstIP: net.ParseIP("fd00::2")}
	tcp := &layers.TCP{SrcPort: 1000, DstPort: 80, Seq: 7, Ack: 8, ACK: true, PSH: true, Window: 9}
	data := gopacket.Payload("hello")
	plain := build(t, eth(layers.EthernetTypeIPv4), v4, tcp, data)
	p := Decode(append(bytes.Clone(plain), 0, 0, 0)) // padded
	if string(p.Data(plain)) != "hello" || p.SrcPort != 1000 || p.DstPort != 80 || p.Seq != 7 || p.Ack != 8 || p.Flags != ACK|PSH || p.Window != 9 || p.Src != netip.MustParseAddr("10.1.1.1") || p.Bad != "" {
		t.Errorf("%+v", p)
	}
	double := build(t, eth(layers.EthernetTypeQinQ), &layers.Dot1Q{VLANIdentifier: 5, Type: layers.EthernetTypeDot1Q}, &layers.Dot1Q{VLANIdentifier: 6, Type: layers.EthernetTypeIPv6}, v6,
		&layers.UDP{SrcPort: 1, DstPort: 2}, data)
	if p = Decode(double); string(p.Data(double)) != "hello" || p.Tags != [2]uint16{5, 6} || p.TagCount != 2 || p.Bad != "" || p.Proto != UDP {
		t.Errorf("%+v", p)
	}
	set := func(f []byte, at int, b ...byte) []byte {
		f = bytes.Clone(f)
		copy(f[at:], b)
		return f
	}
	six := build(t, eth(layers.EthernetTypeIPv6), v6, &layers.UDP{SrcPort: 1, DstPort: 2}, data)
	for what, c := range map[string]struct {
		frame []byte
		bad   string
		part  Part
	}{
		"short":             {plain[:13], "no Ethernet header", Whole},
		"no header":         {plain[:33], "no IPv4 header", Whole},
		"another version":   {set(plain, 14, 0x65), "no IPv4 header", Whole},
		"header too short":  {set(plain, 14, 0x44), "IPv4 lengths", Whole},
		"longer than it is": {set(plain, 16, 0xff, 0xff), "IPv4 lengths", Whole},
		"length 0":          {set(plain, 16, 0, 0), "IPv4 lengths", Whole},
		"first fragment":    {set(plain, 20, 0x20, 0), "", First},
		"later fragment":    {set(plain, 20, 0x00, 1), "", Later},
		"TCP offset":        {set(plain, 46, 0x40), "TCP header length", Whole},
		"TCP beyond":        {set(plain, 46, 0xf0), "TCP header length", Whole},
		"TCP cut":           {set(plain, 16, 0, 39), "no TCP header", Whole},
		"UDP length 0":      {set(six, 58, 0, 0), "", Whole},
		"UDP too short":     {set(six, 58, 0, 7), "UDP length", Whole},
		"UDP too long":      {set(six, 58, 0, 99), "UDP length", Whole},
		"IPv6 too long":     {set(six, 18, 9, 9), "IPv6 lengths", Whole},
		"IPv6 cut":          {set(six, 18, 0, 7), "no UDP header", Whole},
		"extension cut":     {set(six, 20, 60), "cut in an IPv6 extension header", Whole}, // UDP read as one: length 0, next 0, then as long as its ports say
		"three tags":        {build(t, eth(layers.EthernetTypeDot1Q), &layers.Dot1Q{Type: layers.EthernetTypeDot1Q}, &layers.Dot1Q{Type: layers.EthernetTypeDot1Q}), "more than two VLAN tags", Whole},
		"ARP":               {set(plain, 12, 8, 6), "", Whole},
	} {
		if p := Decode(c.frame); p.Bad != c.bad || p.Part != c.part {
			t.Errorf("%s: %q, part %d; want %q, %d", what, p.Bad, p.Part, c.bad, c.part)
		}
	}
	if p := Decode(set(six, 58, 0, 0)); string(p.Data(six)) != "hello" {
		t.Errorf("%+v", p)
	}
	many := bytes.Clone(six[:54])
	for range 9 {
		many = append(many, 60, 0, 1, 4, 0, 0, 0, 0)
	}
	many[18], many[19], many[20] = 0, 72, 60
	if p := Decode(many); p.Bad != "too many IPv6 extension headers" {
		t.Errorf("%+v", p)
	}
	if p := Decode(many); !p.Deeper() || !p.Dst.IsValid() {
		t.Errorf("%+v", p)
	}
	lengthless := append(append(bytes.Clone(six[:54]), 17, 0, 1, 4, 0, 0, 0, 0), six[54:]...)
	lengthless[18], lengthless[19], lengthless[20] = 0, 0, 0
	if p := Decode(lengthless); p.Bad != "IPv6 lengths" || p.Deeper() || p.Proto != UDP || p.DstPort != 2 || !p.Dst.IsValid() || p.Data(lengthless) != nil {
		t.Errorf("%+v", p)
	}
	fragment := bytes.Clone(six[:54])
	fragment = append(append(fragment, 17, 0, 0, 8, 1, 2, 3, 4), six[54:]...)
	fragment[19], fragment[20] = fragment[19]+8, 44
	if p := Decode(fragment); p.Part != Later || p.Proto != UDP || p.Transport != 0 || p.Offset != 8 {
		t.Errorf("%+v", p)
	}
	fragment[57] = 0 // atomic: RFC 6946
	if p := Decode(fragment); p.Part != Whole || p.DstPort != 2 || string(p.Data(fragment)) != "hello" {
		t.Errorf("%+v", p)
	}
}

// TestMadeFramesAreProper: another decoder finds the checksums right.
func TestMadeFramesAreProper(t *testing.T) {
	for _, from := range []gopacket.NetworkLayer{
		&layers.IPv4{Version: 4, IHL: 5, TTL: 7, Protocol: layers.IPProtocolTCP, SrcIP: net.IP{10, 1, 1, 1}, DstIP: net.IP{10, 1, 1, 2}},
		&layers.IPv6{Version: 6, HopLimit: 7, NextHeader: layers.IPProtocolTCP, SrcIP: net.ParseIP("fd00::1"), DstIP: net.ParseIP("fd00::2")},
	} {
		kind := layers.EthernetTypeIPv4
		if from.LayerType() == layers.LayerTypeIPv6 {
			kind = layers.EthernetTypeIPv6
		}
		frame := build(t, &layers.Ethernet{SrcMAC: net.HardwareAddr{2, 9, 9, 9, 9, 1}, DstMAC: net.HardwareAddr{2, 9, 9, 9, 9, 2}, EthernetType: layers.EthernetTypeDot1Q},
			&layers.Dot1Q{VLANIdentifier: 5, Type: kind}, from.(gopacket.SerializableLayer), &layers.TCP{SrcPort: 1000, DstPort: 80})
		p := Decode(frame)
		for _, back := range []bool{true, false} {
			for _, data := range []string{"", "odd", "even"} {
				made := p.MakeTCP(frame, Segment{Back: back, Seq: 1, Ack: 2, Flags: ACK | PSH, Window: 3, Data: []byte(data)}).Data
				proper(t, made)
				q := Decode(made)
				src, dst := p.Src, p.Dst
				if back {
					src, dst = dst, src
				}
				if q.Src != src || q.Dst != dst || string(q.Data(made)) != data || q.Tags != p.Tags || q.Bad != "" || (q.DstPort == 1000) != back || (made[5] == 1) != back {
					t.Errorf("%+v", q)
				}
			}
		}
		made := p.MakeUDP(frame, []byte("data")).Data
		proper(t, made)
		if q := Decode(made); string(q.Data(made)) != "data" || q.DstPort != 1000 {
			t.Errorf("%+v", q)
		}
	}
}

func proper(t *testing.T, frame []byte) {
	t.Helper()
	packet := gopacket.NewPacket(frame, layers.LayerTypeEthernet, gopacket.Default)
	must(t, packet.TransportLayer().(interface {
		SetNetworkLayerForChecksum(gopacket.NetworkLayer) error
	}).SetNetworkLayerForChecksum(packet.NetworkLayer()))
	if err, bad := packet.VerifyChecksums(); err != nil || len(bad) > 0 {
		t.Errorf("checksums: %v, %+v: % x", err, bad, frame)
	}
}

func FuzzDecode(f *testing.F) {
	f.Add([]byte{2, 9, 9, 9, 9, 1, 2, 9, 9, 9, 9, 2, 8, 0, 0x45, 0, 0, 20})
	f.Add(append([]byte{2, 9, 9, 9, 9, 1, 2, 9, 9, 9, 9, 2, 0x86, 0xdd, 0x60, 0, 0, 0, 0, 16, 60, 64}, make([]byte, 48)...))
	f.Fuzz(func(t *testing.T, b []byte) {
		p := Decode(b)
		if p.Network > len(b) || p.End > len(b) || p.Transport > len(b) || p.Bad == "" && p.Payload > p.End {
			t.Errorf("%+v of %d bytes", p, len(b))
		}
		_ = p.Data(b)
	})
}
