package catalogue

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"github.com/gopacket/gopacket"
	"github.com/gopacket/gopacket/layers"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"weir.dev/weir/api"
	"weir.dev/weir/e2e/rig"
	"weir.dev/weir/netns"
)

// TestAWireByXDP: a function that takes frames by AF_XDP sockets, on both switches and in two runtimes, between stations that leave checksums, segmentation and VLAN
// tags to others: frames of all kinds come out as they came in, and streams by IPv4 and IPv6, both ways. It outlives the daemon, whose end
// changes nothing, each of its processes has ports of its own, and programs go with them.
func TestAWireByXDP(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ sw, runtime string }{{"ebpf", "oci"}, {"ebpf", "native"}, {"ovs", "native"}} {
		t.Run(c.sw+" "+c.runtime, func(t *testing.T) {
			t.Parallel()
			r, ctx := rig.ForTest(t, rig.Options{Args: []string{"--switch", c.sw, "--runtime", c.runtime}})
			document := strings.ReplaceAll(r.DualEndpoints(), "interface:", "port_security: {mode: off}, interface:") + `functions:
  x: {image: wire-xdp}
chains:
  line: x
policies:
  all: {from: alice, mode: exhaustive, chain: line}
`
			r.MustApply(ctx, t, document)
			before := led(ctx, t, r, 0)
			passUnchanged(ctx, t, r)
			segmentPasses(ctx, t, r, true)
			streams := func(when string) {
				t.Helper()
				in, out := through(ctx, t, r, "x")
				for i, addr := range []string{rig.BobAddr, rig.BobAddr6} {
					carries(ctx, t, r, addr, 7100+i)
				}
				rig.Eventually(ctx, t, when+": the function has carried the streams", func() (bool, string) {
					laterIn, laterOut := through(ctx, t, r, "x")
					return laterIn-in > 3000 && laterOut-out > 3000, fmt.Sprint(laterIn-in, laterOut-out) // 3 MiB each way at least, cut to the MTU
				})
			}
			streams("at first")

			// Nothing is lost when the daemon is killed and starts again; the programs stay.
			counting(func() {
				s, err := rig.NewStream(r.Alice(), r.Bob(), rig.BobAddr, 7000, 200)
				if err != nil {
					t.Fatal(err)
				}
				if err := r.Kill(syscall.SIGKILL); err != nil {
					t.Fatal(err)
				}
				if err := s.Await(ctx, s.Received()+100); err != nil {
					t.Error(err)
				}
				if err := r.Up(ctx); err != nil {
					t.Fatal(err)
				}
				r.MustApply(ctx, t, document)
				if o, err := s.Stop(); err != nil || o.Lost > 0 || o.Received == 0 {
					t.Errorf("datagrams while the daemon was killed and started: %+v, %v", o, err)
				}
			})
			if after := led(ctx, t, r, 0); after != before {
				t.Errorf("programs %v after the daemon's restart: want %v", after, before)
			}
			streams("after the daemon's restart")

			// Another instance takes over without a loss, and hands over sockets of its own to the new daemon.
			counting(func() {
				s, err := rig.NewStream(r.Alice(), r.Bob(), rig.BobAddr, 7000, 200)
				if err != nil {
					t.Fatal(err)
				}
				if _, err := r.Weir(ctx, "function", "restart", "x"); err != nil {
					t.Fatal(err)
				}
				if o, err := s.Stop(); err != nil || o.Lost > 0 || o.Received == 0 {
					t.Errorf("datagrams while the function was replaced: %+v, %v", o, err)
				}
			})
			led(ctx, t, r, before[0])

			// One that dies is started again.
			var f api.Function
			if err := r.Get(ctx, &f, "function", "x"); err != nil {
				t.Fatal(err)
			}
			died := f.Status.PID
			if err := syscall.Kill(died, syscall.SIGKILL); err != nil {
				t.Fatal(err)
			}
			rig.Eventually(ctx, t, "it is started again", func() (bool, string) {
				err := r.Get(ctx, &f, "function", "x")
				return err == nil && f.Status.PID != died && f.Status.State == api.FunctionStarted && f.Status.Healthy, fmt.Sprintf("%+v, %v", f.Status, err)
			})
			streams("after its death")

			// Nothing is left of a function that goes.
			last := led(ctx, t, r, 0)
			r.MustApply(ctx, t, r.DualEndpoints(), "--prune")
			for _, id := range []uint32{before[0], before[1], last[0], last[1]} {
				rig.Eventually(ctx, t, fmt.Sprintf("program %d is gone", id), func() (bool, string) {
					p, err := ebpf.NewProgramFromID(ebpf.ProgramID(id))
					if err == nil {
						p.Close()
					}
					return errors.Is(err, os.ErrNotExist), fmt.Sprint(err)
				})
			}
		})
	}
}

// led are the ids of the programs of XDP at both ports of the function: in its drivers, and not the one that is old.
func led(ctx context.Context, t *testing.T, r *rig.Rig, old uint32) (ids [2]uint32) {
	t.Helper()
	rig.Eventually(ctx, t, "both ports have a program", func() (bool, string) {
		err := netns.Do(filepath.Join("/run/weir", r.Name, "netns", "x"), func() error {
			for i, port := range []string{"in", "out"} {
				l, err := netlink.LinkByName(port)
				if err != nil {
					return err
				}
				if x := l.Attrs().Xdp; x != nil && x.Attached {
					ids[i] = x.ProgId
				}
			}
			return nil
		})
		return err == nil && ids[0] != 0 && ids[1] != 0 && ids[0] != old, fmt.Sprint(ids, err)
	})
	return ids
}

// passUnchanged: frames of all kinds come out at the other station as they were sent, once, both ways.
func passUnchanged(ctx context.Context, t *testing.T, r *rig.Rig) {
	t.Helper()
	up := append(series(6, "udp 10.0.0.1:4000 10.0.0.2:5000", "udp [2001:db8::1]:4000 [2001:db8::2]:5000", "tcp 10.0.0.1:4000 10.0.0.2:80 syn"),
		tagged(packet("udp 10.0.0.1:4000 10.0.0.2:5000", 6), 0x8100, 7), tagged(tagged(packet("tcp 10.0.0.1:4000 10.0.0.2:80", 7), 0x8100, 7), 0x88a8, 9), whoHas, ofType(0x1234, 1), ofType(0x1234, 46), ofType(0x1235, 1500))
	down := append(series(6, "tcp 10.0.0.2:80 10.0.0.1:4000", "udp [2001:db8::2]:5000 [2001:db8::1]:4000"), tagged(packet("udp 10.0.0.2:5000 10.0.0.1:4000", 6), 0x8100, 0x6007))
	for _, way := range []struct {
		from, to string
		frames   [][]byte
	}{{r.Alice(), r.Bob(), up}, {r.Bob(), r.Alice(), down}} {
		c, err := rig.Listen(way.to, "eth0")
		if err != nil {
			t.Fatal(err)
		}
		s, err := rig.NewSender(way.from, "eth0")
		if err != nil {
			t.Fatal(err)
		}
		for i, f := range way.frames {
			if err := s.Send(f); err != nil {
				t.Fatal(err)
			}
			came := func() (n int) {
				for _, x := range c.Seen() {
					if !x.Outgoing && bytes.Equal(x.Data, f) {
						n++
					}
				}
				return n
			}
			rig.Eventually(ctx, t, fmt.Sprintf("frame %d from %s, % x, comes out", i, way.from, f[:min(len(f), 60)]), func() (bool, string) { return came() > 0, fmt.Sprint(len(c.Seen())) })
			if n := came(); n != 1 {
				t.Errorf("frame %d from %s came out %d times", i, way.from, n)
			}
		}
		s.Close()
		c.Close()
	}
}

// segmentPasses: a segment of TCP of 50 KB behind a VLAN tag, which its sender leaves to others to cut and to finish, comes out as whole frames with the same tag, and the same
// data in all; not finished: as it is.
func segmentPasses(ctx context.Context, t *testing.T, r *rig.Rig, finished bool) {
	t.Helper()
	data := make([]byte, 50_000)
	random := rand.New(rand.NewPCG(7, 8))
	for i := range data {
		data[i] = byte(random.Uint32())
	}
	const id, mss, head = 7, 1448, 14 + 4 + 20 // where the TCP header begins
	eth := &layers.Ethernet{SrcMAC: net.HardwareAddr{2, 0, 0, 0, 0, 1}, DstMAC: net.HardwareAddr{2, 0, 0, 0, 0, 2}, EthernetType: layers.EthernetTypeDot1Q}
	ip := &layers.IPv4{Version: 4, TTL: 7, Protocol: layers.IPProtocolTCP, SrcIP: net.IP{10, 0, 0, 1}, DstIP: net.IP{10, 0, 0, 2}}
	segment := &layers.TCP{SrcPort: 4711, DstPort: 80, Seq: 1, ACK: true}
	if err := segment.SetNetworkLayerForChecksum(ip); err != nil {
		t.Fatal(err)
	}
	buf := gopacket.NewSerializeBuffer()
	if err := gopacket.SerializeLayers(buf, gopacket.SerializeOptions{FixLengths: true, ComputeChecksums: true}, eth, &layers.Dot1Q{VLANIdentifier: id, Type: layers.EthernetTypeIPv4}, ip, segment, gopacket.Payload(data)); err != nil {
		t.Fatal(err)
	}
	vnet := []byte{1, 1, 0, 0, 0, 0, 0, 0, 16, 0} // struct virtio_net_hdr: VIRTIO_NET_HDR_F_NEEDS_CSUM at 16, VIRTIO_NET_HDR_GSO_TCPV4
	binary.NativeEndian.PutUint16(vnet[2:], head+20)
	binary.NativeEndian.PutUint16(vnet[4:], mss)
	binary.NativeEndian.PutUint16(vnet[6:], head)
	binary.NativeEndian.PutUint16(vnet[8:], 16)
	frame := append(vnet, buf.Bytes()...)
	begin := fold(frame[len(vnet)+head-8:len(vnet)+head], unix.IPPROTO_TCP, 20+len(data))
	binary.BigEndian.PutUint16(frame[len(vnet)+head+16:], begin) // what the checksum begins with
	c, err := rig.Listen(r.Bob(), "eth0")
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if err := netns.Do(r.Alice(), func() error {
		l, err := netlink.LinkByName("eth0")
		if err != nil {
			return err
		}
		fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			return err
		}
		defer unix.Close(fd)
		if err := unix.SetsockoptInt(fd, unix.SOL_PACKET, unix.PACKET_VNET_HDR, 1); err != nil {
			return err
		}
		return unix.Sendto(fd, frame, 0, &unix.SockaddrLinklayer{Ifindex: l.Attrs().Index, Protocol: 0x0081}) // 802.1Q, in network order
	}); err != nil {
		t.Fatal(err)
	}
	got, have, frames := make([]byte, len(data)), 0, 0
	rig.Eventually(ctx, t, "the whole segment comes out", func() (bool, string) {
		have, frames = 0, 0
		for _, x := range c.Seen() {
			p := gopacket.NewPacket(x.Data, layers.LayerTypeEthernet, gopacket.Default)
			tag, _ := p.Layer(layers.LayerTypeDot1Q).(*layers.Dot1Q)
			tcp, _ := p.Layer(layers.LayerTypeTCP).(*layers.TCP)
			if tag == nil || tcp == nil || tcp.SrcPort != 4711 || x.Outgoing {
				continue
			}
			frames++
			if err := tcp.SetNetworkLayerForChecksum(p.NetworkLayer()); err != nil {
				t.Fatal(err)
			}
			sum, err := tcp.ComputeChecksum() // over the header with its checksum
			if tag.VLANIdentifier != id || finished && (len(x.Data) > 1518 || err != nil || sum != 0) {
				t.Fatalf("a frame of %d bytes, VLAN %d, checksum %x, off by %x, %v", len(x.Data), tag.VLANIdentifier, tcp.Checksum, sum, err)
			}
			have += copy(got[tcp.Seq-1:], tcp.Payload)
		}
		return have >= len(data), fmt.Sprint(have, " bytes in ", frames, " frames")
	})
	want := 1
	if finished {
		want = (len(data) + mss - 1) / mss
	}
	if !bytes.Equal(got, data) || frames != want {
		t.Errorf("%d frames, the same data: %t", frames, bytes.Equal(got, data))
	}
}

// fold is the sum of TCP's pseudo header.
func fold(addresses []byte, proto byte, length int) uint16 {
	sum := uint32(proto) + uint32(length)
	for ; len(addresses) > 1; addresses = addresses[2:] {
		sum += uint32(binary.BigEndian.Uint16(addresses))
	}
	for sum > 0xffff {
		sum = sum>>16 + sum&0xffff
	}
	return uint16(sum)
}

// carries: a stream of 4 MiB from alice comes back from bob as it was.
func carries(ctx context.Context, t *testing.T, r *rig.Rig, addr string, port int) {
	t.Helper()
	at := net.JoinHostPort(addr, fmt.Sprint(port))
	var l net.Listener
	if err := netns.Do(r.Bob(), func() (err error) { l, err = net.Listen("tcp", at); return err }); err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	go func() {
		if c, err := l.Accept(); err == nil {
			rig.Echo(c)
			c.Close()
		}
	}()
	var c net.Conn
	if err := netns.Do(r.Alice(), func() (err error) {
		c, err = (&net.Dialer{Timeout: 10 * time.Second}).DialContext(ctx, "tcp", at)
		return err
	}); err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	want, got := make([]byte, 4<<20), make([]byte, 4<<20)
	random := rand.New(rand.NewPCG(5, 6))
	for i := range want {
		want[i] = byte(random.Uint32())
	}
	if err := c.SetDeadline(time.Now().Add(60 * time.Second)); err != nil {
		t.Fatal(err)
	}
	go func() { _, _ = c.Write(want) }() // what is missing is missed below
	if _, err := io.ReadFull(c, got); err != nil || !bytes.Equal(got, want) {
		t.Errorf("a stream to %s: %v, equal: %t", at, err, bytes.Equal(got, want))
	}
}
