package kvm

import (
	"bytes"
	"crypto/rand"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"weir.dev/weir/container"
	"weir.dev/weir/container/kvm/channel"
	"weir.dev/weir/netns"
)

// bridging joins in and out by a bridge, in the machine.
var bridging = sh(`busybox ip link add br type bridge && busybox ip link set in master br && busybox ip link set out master br && busybox ip link set br up && echo ready
trap 'exit 0' TERM; while :; do sleep 1000 & wait; done`)

// sandbox is a function's place with a host on either side of it: left - in [fn] out - right.
type sandbox struct {
	left, fn, right string
}

const testMTU = 9000

func newSandbox(t testing.TB) sandbox {
	t.Helper()
	dir, err := os.MkdirTemp("/run", "weir-kvm-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	b := sandbox{filepath.Join(dir, "left"), filepath.Join(dir, "fn"), filepath.Join(dir, "right")}
	for _, path := range []string{b.left, b.fn, b.right} {
		if err := netns.Create(path, netns.Options{Quiet: true}); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			if err := netns.Delete(path); err != nil {
				t.Error(err)
			}
		})
	}
	for i, side := range []string{b.left, b.right} {
		name := []string{"in", "out"}[i]
		o := netns.VethOptions{
			HostName: "port", PeerName: name, PeerIndex: 1024 + i, Alias: "weir:kvmtest:" + name, MTU: testMTU, Quiet: true,
			HostMAC: [6]byte{2, 0, 0, 0, 0, byte(1 + i)}, PeerMAC: [6]byte{2, 0, 0, 0, 1, byte(1 + i)},
		}
		if _, err := netns.Veth(side, b.fn, o); err != nil {
			t.Fatal(err)
		}
		for _, args := range [][]string{{"addr", "add", []string{"10.9.0.1/24", "10.9.0.2/24"}[i], "dev", "port"}, {"link", "set", "port", "arp", "on"}} {
			if out, err := exec.Command("nsenter", append([]string{"--net=" + side, "ip"}, args...)...).CombinedOutput(); err != nil {
				t.Fatalf("ip %v: %v\n%s", args, err, out)
			}
		}
	}
	return b
}

// frames has what comes in at a link of a namespace.
type frames struct{ fd int }

func listenFrames(t *testing.T, space string) frames {
	t.Helper()
	f := frames{-1}
	err := netns.Do(space, func() (err error) {
		link, err := net.InterfaceByName("port")
		if err != nil {
			return err
		}
		if f.fd, err = unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, 0); err != nil {
			return err
		}
		if err := unix.SetsockoptInt(f.fd, unix.SOL_PACKET, unix.PACKET_AUXDATA, 1); err != nil {
			return err
		}
		_ = unix.SetsockoptTimeval(f.fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &unix.Timeval{Sec: 10})
		return unix.Bind(f.fd, &unix.SockaddrLinklayer{Protocol: htons(unix.ETH_P_ALL), Ifindex: link.Index})
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { unix.Close(f.fd) })
	return f
}

func htons(n uint16) uint16 { return n<<8 | n>>8 }

// next is the next frame from one of our senders, with its tag where it was on the wire.
func (f frames) next(t *testing.T) []byte {
	t.Helper()
	buf, oob := make([]byte, 16<<10), make([]byte, 256)
	for {
		n, on, _, from, err := unix.Recvmsg(f.fd, buf[4:], oob, 0)
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil {
			t.Fatalf("no frame: %v", err)
		}
		frame := buf[4 : 4+n]
		if l, ok := from.(*unix.SockaddrLinklayer); ok && l.Pkttype == unix.PACKET_OUTGOING || !bytes.HasPrefix(frame[6:], []byte{2, 9}) {
			continue
		}
		messages, err := unix.ParseSocketControlMessage(oob[:on])
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range messages {
			if m.Header.Type != unix.PACKET_AUXDATA {
				continue
			}
			// struct tpacket_auxdata: status, len, snaplen; mac, net, vlan_tci, vlan_tpid
			if status := binary.NativeEndian.Uint32(m.Data); status&unix.TP_STATUS_VLAN_VALID == 0 {
				continue
			}
			tci, tpid := binary.NativeEndian.Uint16(m.Data[16:]), binary.NativeEndian.Uint16(m.Data[18:])
			copy(buf, frame[:12])
			binary.BigEndian.PutUint16(buf[12:], tpid)
			binary.BigEndian.PutUint16(buf[14:], tci)
			frame = buf[:4+n]
		}
		return bytes.Clone(frame)
	}
}

func (f frames) send(t *testing.T, frame []byte) {
	t.Helper()
	if _, err := unix.Write(f.fd, frame); err != nil {
		t.Fatalf("send %d bytes: %v", len(frame), err)
	}
}

// frame is one of ours, with bytes that nobody guesses.
func frame(size int, kind ...byte) []byte {
	b := make([]byte, size)
	_, _ = rand.Read(b)
	copy(b, []byte{2, 0, 0, 0, 0, 99, 2, 9, 0, 0, 0, 1})
	copy(b[12:], kind)
	return b
}

// run starts a function that forwards, and waits until it does.
func forward(t testing.TB, r *Runtime, s container.Spec, b sandbox) {
	t.Helper()
	s.ID, s.Args, s.Netns, s.Capabilities = "fn", bridging, b.fn, []string{"CAP_NET_ADMIN"}
	if err := r.Run(t.Context(), s); err != nil {
		t.Fatal(err)
	}
	eventually(t, "it forwards", func() bool {
		text := logOf(t, r, "fn")
		if strings.Contains(text, "ip:") {
			t.Fatal(text)
		}
		return text == "ready\n"
	})
}

// logOf is what a machine's program has printed.
func logOf(t testing.TB, r *Runtime, id string) string {
	t.Helper()
	l, err := r.Logs(t.Context(), id, container.LogOptions{Latest: true})
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	text, err := io.ReadAll(l)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

func eventually(t testing.TB, what string, ok func() bool) {
	t.Helper()
	deadline := time.NewTimer(2 * time.Minute)
	defer deadline.Stop()
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for !ok() {
		select {
		case <-tick.C:
		case <-deadline.C:
			t.Fatalf("not within two minutes: %s", what)
		}
	}
}

func TestFramesPassAMachineAsTheyAre(t *testing.T) {
	t.Parallel()
	t.Run("by a bridge of its program", func(t *testing.T) {
		r, spec := fresh(t)
		b := newSandbox(t)
		forward(t, r, spec, b)
		framesPass(t, b)
	})
	t.Run("by the machine's own", func(t *testing.T) {
		r, spec := fresh(t)
		b := newSandbox(t)
		spec.ID, spec.Args, spec.Netns, spec.Forwarder = "fn", waiting, b.fn, channel.Wire
		if err := r.Run(t.Context(), spec); err != nil {
			t.Fatal(err)
		}
		framesPass(t, b)
	})
}

func TestAForwarderThatNoMachineHas(t *testing.T) {
	t.Parallel()
	r, spec := fresh(t)
	spec.ID, spec.Args, spec.Forwarder = "fn", waiting, "magic"
	if err := r.Run(t.Context(), spec); err == nil || !strings.Contains(err.Error(), `forwarder "magic": a virtual machine has wire`) {
		t.Errorf("with a forwarder that there is not: %v", err)
	}
	spec.Forwarder = channel.Wire // without interfaces
	if err := r.Run(t.Context(), spec); err == nil || !strings.Contains(err.Error(), "interface in into the bridge") {
		t.Errorf("a wire without ports: %v", err)
	}
}

func framesPass(t *testing.T, b sandbox) {
	t.Helper()
	left, right := listenFrames(t, b.left), listenFrames(t, b.right)
	for name, f := range map[string][]byte{
		"small": frame(60, 0x88, 0xb5), "odd": frame(333, 0x88, 0xb5), "large": frame(1514, 0x88, 0xb6), "of the MTU": frame(testMTU+14, 0x88, 0xb5),
		"tagged": frame(100, 0x81, 0, 0x60, 0x07, 0x88, 0xb5), "tagged, of the MTU": frame(testMTU+18, 0x81, 0, 0x00, 0x64, 0x88, 0xb5),
		"tagged twice": frame(200, 0x88, 0xa8, 0x00, 0x05, 0x81, 0, 0x00, 0x06, 0x88, 0xb5), "no IPv4 at all": frame(90, 0x08, 0x00), "IPv6 alike": frame(90, 0x86, 0xdd),
	} {
		for _, way := range []struct {
			name     string
			from, to frames
		}{{"in to out", left, right}, {"out to in", right, left}} {
			way.from.send(t, f)
			if got := way.to.next(t); !bytes.Equal(f, got) {
				t.Errorf("%s, %s: sent\n%x\ngot\n%x", name, way.name, f[:min(len(f), 64)], got[:min(len(got), 64)])
			}
		}
	}
}

// transfer sends bytes over TCP from one side to the other and compares what comes.
func transfer(t testing.TB, b sandbox, size int64) time.Duration {
	t.Helper()
	var l net.Listener
	var c net.Conn
	err := netns.Do(b.right, func() (err error) { l, err = net.Listen("tcp", "10.9.0.2:0"); return err })
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	got := make(chan []byte, 1)
	go func() {
		sum := sha256.New()
		if c, err := l.Accept(); err == nil {
			_, _ = io.Copy(sum, c)
			c.Close()
		}
		got <- sum.Sum(nil)
	}()
	err = netns.Do(b.left, func() (err error) {
		c, err = net.DialTimeout("tcp", l.Addr().String(), 20*time.Second)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	begin, sum := time.Now(), sha256.New()
	block := make([]byte, 256<<10)
	_, _ = rand.Read(block)
	for sent := int64(0); sent < size; sent += int64(len(block)) {
		block[sent%int64(len(block))]++
		sum.Write(block)
		if _, err := c.Write(block); err != nil {
			t.Fatal(err)
		}
	}
	c.Close()
	if !bytes.Equal(sum.Sum(nil), <-got) {
		t.Fatal("what came is not what was sent")
	}
	return time.Since(begin)
}

func TestTCPSegmentsStayWholeThroughAMachine(t *testing.T) {
	r, spec := fresh(t)
	b := newSandbox(t)
	forward(t, r, spec, b)
	out, err := exec.CommandContext(t.Context(), "nsenter", "--net="+b.left, "ping", "-c", "3", "-i", "0.2", "-W", "10", "10.9.0.2").CombinedOutput()
	if err != nil {
		t.Fatalf("ping: %v\n%s", err, out)
	}
	const size = 64 << 20
	s, err := netns.At(b.right)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	before, err := s.Received("port")
	if err != nil {
		t.Fatal(err)
	}
	took := transfer(t, b, size)
	after, err := s.Received("port")
	if err != nil {
		t.Fatal(err)
	}
	if packets := int64(after - before); size/packets < 2*testMTU {
		t.Errorf("%d bytes came in %d packets, %d each, want more than two MTUs: segments were cut", size, packets, size/packets)
	}
	t.Logf("%.2f Gb/s\n%s", size*8/took.Seconds()/1e9, out)
}

// What a machine's process held in the namespace is gone with it, also when it is killed.
func TestTapsGoWithTheMachine(t *testing.T) {
	t.Parallel()
	r, spec := fresh(t)
	b := newSandbox(t)
	forward(t, r, spec, b)
	names := func() (out []string) {
		s, err := netns.At(b.fn)
		if err != nil {
			t.Fatal(err)
		}
		defer s.Close()
		links, err := s.Links("")
		if err != nil {
			t.Fatal(err)
		}
		for _, l := range links {
			out = append(out, l.Name)
		}
		return out
	}
	if got := strings.Join(names(), " "); !strings.Contains(got, "vm1024") || !strings.Contains(got, "vm1025") {
		t.Errorf("links of a machine that runs: %s", got)
	}
	st, err := r.Status(t.Context(), "fn")
	if err != nil {
		t.Fatal(err)
	}
	if err := unix.Kill(st.PID, unix.SIGKILL); err != nil {
		t.Fatal(err)
	}
	if st, err = r.Wait(t.Context(), "fn"); err != nil || st.ExitCode != 137 || st.Signal != 9 {
		t.Errorf("%+v, %v: want exit code 137, killed by signal 9", st, err)
	}
	eventually(t, "the taps are gone", func() bool { return !strings.Contains(strings.Join(names(), " "), "vm") })
	if err := r.Start(t.Context(), "fn"); err != nil { // with the same links
		t.Fatal(err)
	}
	eventually(t, "it forwards anew", func() bool {
		_, err := exec.CommandContext(t.Context(), "nsenter", "--net="+b.left, "ping", "-c", "1", "-W", "1", "10.9.0.2").Output()
		var exit *exec.ExitError
		if err != nil && !errors.As(err, &exit) {
			t.Fatal(err)
		}
		return err == nil
	})
}

// A function of the catalogue finds what it asks its kernel for: a bridge, nftables with connection tracking, all loaded when it asks.
func TestTheFirewallFiltersInAMachine(t *testing.T) {
	t.Parallel()
	r, spec := fresh(t)
	b := newSandbox(t)
	build := exec.Command("go", "build", "-ldflags=-s -w", "-o", filepath.Join(spec.Rootfs, "bin", "firewall"), "../../catalogue/firewall")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	config := t.TempDir()
	if err := os.WriteFile(filepath.Join(config, "config.json"), []byte(`{"allow": ["icmp", "tcp/80"]}`), 0o644); err != nil {
		t.Fatal(err)
	}
	spec.Mounts = []container.Mount{{Source: config, Target: "/etc/weir", ReadOnly: true}}
	spec.ID, spec.Args, spec.Netns, spec.Capabilities = "fn", []string{"/bin/firewall"}, b.fn, []string{"CAP_NET_ADMIN"}
	if err := r.Run(t.Context(), spec); err != nil {
		t.Fatal(err)
	}
	begin := time.Now()
	eventually(t, "ICMP passes", func() bool {
		return exec.CommandContext(t.Context(), "nsenter", "--net="+b.left, "ping", "-c", "1", "-W", "1", "10.9.0.2").Run() == nil
	})
	t.Logf("ICMP passes %v after the start", time.Since(begin).Round(10*time.Millisecond))
	if text := logOf(t, r, "fn"); !strings.Contains(text, "tracking=connections") {
		t.Errorf("its kernel cannot all that it asks for: %s", text)
	}
	dial := func(port string) error {
		var l net.Listener
		err := netns.Do(b.right, func() (err error) { l, err = net.Listen("tcp", "10.9.0.2:"+port); return err })
		if err != nil {
			t.Fatal(err)
		}
		defer l.Close()
		return netns.Do(b.left, func() error {
			c, err := net.DialTimeout("tcp", "10.9.0.2:"+port, 3*time.Second)
			if err == nil {
				c.Close()
			}
			return err
		})
	}
	if err := dial("80"); err != nil {
		t.Errorf("port 80: %v", err)
	}
	if err := dial("81"); err == nil {
		t.Error("port 81 is open")
	}
}
