// Package rig puts a network function's program between two stations, each in a network namespace of its own, for the tests of
// the catalogue. A station sends and receives raw frames and real connections. Everything is removed when the test ends.
package rig

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"weir.dev/weir/netns"
)

// Patience is how long anything may take to come: also on a busy machine whose processor is emulated.
const Patience = time.Minute

// Addresses of the stations.
var (
	ClientIP = netip.MustParseAddr("10.77.0.1")
	ServerIP = netip.MustParseAddr("10.77.0.2")
)

// Rig is a function's namespace with its ports, and the stations behind them.
type Rig struct {
	T      testing.TB
	Netns  string // of the function
	Client *Station
	Server *Station // nil for a tap
}

// Station is one end of the wire.
type Station struct {
	t     testing.TB
	Netns string
	Link  netns.Link
	fd    int
}

// New makes a rig. An inline function has ports in and out, a tap has one, tap, behind the client.
func New(t testing.TB, tap bool) *Rig {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Fatal("not root: this test makes network namespaces (sudo make test)")
	}
	r := &Rig{T: t, Netns: makeNetns(t, "function")}
	if tap {
		r.Client = r.station("client", "tap", ClientIP)
		return r
	}
	r.Client = r.station("client", "in", ClientIP)
	r.Server = r.station("server", "out", ServerIP)
	return r
}

func makeNetns(t testing.TB, name string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), name)
	t.Cleanup(func() {
		if err := netns.Delete(path); err != nil {
			t.Error(err)
		}
	})
	if err := netns.Create(path, netns.Options{Quiet: true}); err != nil {
		t.Fatal(err)
	}
	return path
}

func (r *Rig) station(name, port string, addr netip.Addr) *Station {
	r.T.Helper()
	s := &Station{t: r.T, Netns: makeNetns(r.T, name)}
	pair, err := netns.Veth(r.Netns, s.Netns, netns.VethOptions{
		HostName: port, PeerName: name, Alias: "weir:rig:" + name, Addresses: []netip.Prefix{netip.PrefixFrom(addr, 24)},
	})
	if err != nil {
		r.T.Fatal(err)
	}
	s.Link = pair.Peer
	r.Do(s.Netns, func() error {
		s.fd, err = openPacket(s.Link.Index)
		return err
	})
	r.T.Cleanup(func() { unix.Close(s.fd) })
	return s
}

// MAC is the address of one of the function's ports.
func (r *Rig) MAC(port string) (mac net.HardwareAddr) {
	r.T.Helper()
	r.Do(r.Netns, func() error {
		l, err := net.InterfaceByName(port)
		if err == nil {
			mac = l.HardwareAddr
		}
		return err
	})
	return mac
}

// Do runs f in a namespace; an error ends the test.
func (r *Rig) Do(ns string, f func() error) {
	r.T.Helper()
	if err := netns.Do(ns, f); err != nil {
		r.T.Fatal(err)
	}
}

func openPacket(index int) (int, error) {
	fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return -1, fmt.Errorf("open packet socket: %w", err)
	}
	for _, o := range []int{unix.PACKET_AUXDATA, unix.PACKET_IGNORE_OUTGOING} {
		if err = unix.SetsockoptInt(fd, unix.SOL_PACKET, o, 1); err != nil {
			break
		}
	}
	if err == nil {
		err = unix.Bind(fd, &unix.SockaddrLinklayer{Protocol: htons(unix.ETH_P_ALL), Ifindex: index})
	}
	if err != nil {
		unix.Close(fd)
		return -1, fmt.Errorf("open packet socket: %w", err)
	}
	return fd, nil
}

func htons(v uint16) uint16 { return v<<8 | v>>8 }

// Send puts a frame on the wire.
func (s *Station) Send(frame []byte) {
	s.t.Helper()
	if err := unix.Sendto(s.fd, frame, 0, &unix.SockaddrLinklayer{Ifindex: s.Link.Index}); err != nil {
		s.t.Fatalf("send frame: %v", err)
	}
}

// drain takes out what has come so far and nobody has received.
func (s *Station) drain() {
	b := make([]byte, 1)
	for range 100_000 { // more than there is room for
		if _, _, err := unix.Recvfrom(s.fd, b, unix.MSG_DONTWAIT); err != nil && !errors.Is(err, unix.EINTR) {
			return
		}
	}
}

// Receive waits for the next frame from the wire, up to a time; nil: none came. A VLAN tag that the kernel took out is put back.
func (s *Station) Receive(within time.Duration) []byte {
	s.t.Helper()
	return s.receive(within, make([]byte, 65536), make([]byte, 128))
}

// receive is Receive with room for the frame and what the kernel says beside it.
func (s *Station) receive(within time.Duration, buf, oob []byte) []byte {
	s.t.Helper()
	deadline := time.Now().Add(within)
	for {
		n, oobn, _, _, err := unix.Recvmsg(s.fd, buf, oob, unix.MSG_DONTWAIT)
		if err == nil {
			return untagged(buf[:n], oob[:oobn])
		}
		if !errors.Is(err, unix.EAGAIN) && !errors.Is(err, unix.EINTR) && !errors.Is(err, unix.ENETDOWN) {
			s.t.Fatalf("receive frame: %v", err)
		}
		left := time.Until(deadline)
		if left <= 0 {
			return nil
		}
		if _, err := unix.Poll([]unix.PollFd{{Fd: int32(s.fd), Events: unix.POLLIN}}, int(left.Milliseconds())+1); err != nil && !errors.Is(err, unix.EINTR) {
			s.t.Fatalf("receive frame: %v", err)
		}
	}
}

// untagged undoes the kernel's taking the VLAN tag out (struct tpacket_auxdata).
func untagged(frame, oob []byte) []byte {
	msgs, err := unix.ParseSocketControlMessage(oob)
	if err != nil {
		return frame
	}
	for _, m := range msgs {
		if m.Header.Level != unix.SOL_PACKET || m.Header.Type != unix.PACKET_AUXDATA || len(m.Data) < 20 {
			continue
		}
		status := binary.NativeEndian.Uint32(m.Data)
		if status&unix.TP_STATUS_VLAN_VALID == 0 || len(frame) < 14 {
			continue
		}
		tag := make([]byte, 4)
		binary.BigEndian.PutUint16(tag, binary.NativeEndian.Uint16(m.Data[18:]))
		binary.BigEndian.PutUint16(tag[2:], binary.NativeEndian.Uint16(m.Data[16:]))
		return bytes.Join([][]byte{frame[:12], tag, frame[12:]}, nil)
	}
	return frame
}

// Probe is a frame of the ethertype that every function with weir.probe lets pass.
func Probe(n byte) []byte {
	f := make([]byte, 60)
	copy(f, []byte{2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2, 0x88, 0xb5, n})
	return f
}

// ProbeAddresses is what the file /etc/weir/probe says of a function whose probes Probe makes.
const ProbeAddresses = "02:00:00:00:00:01 02:00:00:00:00:02\n"

// WriteProbe writes that file into a directory.
func WriteProbe(t testing.TB, dir string) (path string) {
	t.Helper()
	path = filepath.Join(dir, "probe")
	if err := os.WriteFile(path, []byte(ProbeAddresses), 0o644); err != nil {
		t.Fatal(err)
	}
	return path
}

// Passes sends a frame and a probe after it from one station and tells whether the frame came, unchanged, to the other.
func Passes(from, to *Station, frame []byte) bool {
	from.t.Helper()
	to.drain() // else there may be no room for them
	mark := Probe(1)
	from.Send(frame)
	from.Send(mark)
	passed := false
	for deadline := time.Now().Add(Patience); time.Now().Before(deadline); {
		got := to.Receive(time.Until(deadline))
		if bytes.Equal(got, frame) {
			passed = true
		}
		if bytes.Equal(got, mark) {
			return passed
		}
	}
	from.t.Fatal("the probe behind the frame did not come")
	return false
}

// PassUnchanged sends n random frames of those kinds both ways, of least to 1514 bytes. A kind is what stands behind the addresses, from the ethertype or tag on.
// A frame that does not pass ends the test.
func (r *Rig) PassUnchanged(n, least int, kinds ...[]byte) {
	r.T.Helper()
	random := rand.New(rand.NewPCG(1, 2))
	for i := range n {
		f := make([]byte, least+random.IntN(1515-least))
		for j := range f {
			f[j] = byte(random.Uint32())
		}
		copy(f, []byte{2, 9, 9, 9, 9, byte(1 + i%2), 2, 9, 9, 9, 9, byte(2 - i%2)})
		copy(f[12:], kinds[i%len(kinds)])
		from, to := r.Client, r.Server
		if i%2 == 1 {
			from, to = to, from
		}
		if !Passes(from, to, f) {
			r.T.Fatalf("frame %d of %d bytes did not pass: % x", i, len(f), f[:min(len(f), 40)])
		}
	}
}

// Dial connects from a station by TCP or UDP.
func (s *Station) Dial(ctx context.Context, network, addr string) (net.Conn, error) {
	var conn net.Conn
	err := netns.Do(s.Netns, func() (err error) {
		conn, err = (&net.Dialer{}).DialContext(ctx, network, addr)
		return err
	})
	return conn, err
}

// Serve accepts TCP connections at an address of the station until the test ends; then they are closed.
func (s *Station) Serve(t testing.TB, addr string, serve func(net.Conn)) {
	t.Helper()
	var l net.Listener
	if err := netns.Do(s.Netns, func() (err error) { l, err = net.Listen("tcp", addr); return err }); err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			wg.Go(func() {
				defer c.Close()
				defer context.AfterFunc(t.Context(), func() { c.Close() })()
				serve(c)
			})
		}
	})
	t.Cleanup(func() { l.Close(); wg.Wait() })
}

// Echo serves a TCP port that sends back what it gets, until the test ends.
func (s *Station) Echo(addr string) {
	s.t.Helper()
	s.Serve(s.t, addr, func(c net.Conn) {
		_ = c.SetDeadline(time.Now().Add(Patience))
		_, _ = io.Copy(c, c)
	})
}

// Command runs a program at a station and returns what it prints; if it fails, so does the test.
func Command(t testing.TB, s *Station, argv ...string) string {
	t.Helper()
	out, err := Try(t, s, argv...)
	if err != nil {
		t.Errorf("%s: %v\n%s", strings.Join(argv, " "), err, out)
	}
	return out
}

// Try runs a program at a station.
func Try(t testing.TB, s *Station, argv ...string) (string, error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), Patience)
	defer cancel()
	c := exec.CommandContext(ctx, argv[0], argv[1:]...)
	var out []byte
	var failed error
	if err := netns.Do(s.Netns, func() error { out, failed = c.CombinedOutput(); return nil }); err != nil {
		t.Fatal(err)
	}
	return string(out), failed
}

// compiled is the folder of the program that Program compiles.
var compiled string

// Main runs the tests of a package that calls Program.
func Main(m *testing.M) {
	var err error
	if compiled, err = os.MkdirTemp("", "weir-rig"); err != nil {
		panic(err)
	}
	code := m.Run()
	os.RemoveAll(compiled)
	os.Exit(code)
}

// Program is the Go command of the folder in which the tests run, compiled once.
func Program(t testing.TB) string {
	t.Helper()
	path := filepath.Join(compiled, "program")
	if _, err := os.Stat(path); err == nil {
		return path
	}
	if err := os.Rename(Build(t, "."), path); err != nil {
		t.Fatal(err)
	}
	return path
}

// Build compiles the Go command in a folder as its image has it, and returns the program.
func Build(t testing.TB, dir string) string {
	t.Helper()
	out := filepath.Join(t.TempDir(), "program")
	cmd := exec.Command("go", "build", "-trimpath", "-ldflags=-s -w", "-o", out, ".")
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if text, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("build %s: %v\n%s", dir, err, text)
	}
	return out
}

// Process is a running function.
type Process struct {
	t    testing.TB
	cmd  *exec.Cmd
	done chan error
	mu   sync.Mutex
	text strings.Builder
}

// Start runs a program in the function's namespace. It is ended with the test.
func (r *Rig) Start(program string, args ...string) *Process {
	r.T.Helper()
	p := &Process{t: r.T, cmd: exec.Command(program, args...), done: make(chan error, 1)}
	p.cmd.Stdout, p.cmd.Stderr = p, p
	r.Do(r.Netns, p.cmd.Start)
	go func() { p.done <- p.cmd.Wait() }()
	r.T.Cleanup(func() {
		p.Signal(syscall.SIGKILL)
		p.done <- <-p.done
		if r.T.Failed() {
			r.T.Logf("output of the function:\n%s", p.Output())
		}
	})
	return p
}

func (p *Process) Write(b []byte) (int, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.text.Write(b)
}

// Output is what the function has printed so far.
func (p *Process) Output() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.text.String()
}

// PID of the process.
func (p *Process) PID() int { return p.cmd.Process.Pid }

// Signal sends a signal; one that has ended gets none.
func (p *Process) Signal(s syscall.Signal) { _ = p.cmd.Process.Signal(s) }

// End waits for the process to end.
func (p *Process) End() error {
	p.t.Helper()
	select {
	case err := <-p.done:
		p.done <- err
		return err
	case <-time.After(Patience):
		p.t.Fatalf("the function does not end; it printed:\n%s", p.Output())
		return nil
	}
}

// Await waits until the output contains a text.
func (p *Process) Await(text string) {
	p.t.Helper()
	Eventually(p.t, fmt.Sprintf("output %q, so far:\n%s", text, p.Output()), func() bool {
		if len(p.done) > 0 && !strings.Contains(p.Output(), text) {
			p.t.Fatalf("the function has ended; it printed:\n%s", p.Output())
		}
		return strings.Contains(p.Output(), text)
	})
}

// Eventually polls to a deadline.
func Eventually(t testing.TB, what string, ok func() bool) {
	t.Helper()
	deadline := time.NewTimer(Patience)
	defer deadline.Stop()
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for !ok() {
		select {
		case <-tick.C:
		case <-deadline.C:
			t.Fatalf("not within %v: %s", Patience, what)
		}
	}
}

// Cut removes the station's link, and with it the function's port.
func (s *Station) Cut() {
	s.t.Helper()
	space, err := netns.At(s.Netns)
	if err != nil {
		s.t.Fatal(err)
	}
	defer space.Close()
	if err := space.Delete(s.Link.Name); err != nil {
		s.t.Fatal(err)
	}
}

// WiresPass runs the function of the folder, which is a wire, and sends through it: random frames of many kinds from so many bytes on, both ways, and a TCP
// connection that carries 8 MiB and back. SIGTERM ends it.
func WiresPass(t *testing.T, r *Rig, least int, args ...string) {
	t.Helper()
	p := r.Start(Program(t), append([]string{"-probe", WriteProbe(t, t.TempDir())}, args...)...)
	p.Await("in force")
	Eventually(t, "frames pass", func() bool {
		r.Client.Send(Probe(0))
		return r.Server.Receive(20*time.Millisecond) != nil
	})
	ipv4, ipv6, arp, odd := []byte{0x08, 0}, []byte{0x86, 0xdd}, []byte{0x08, 0x06}, []byte{0x12, 0x34}
	tagged, lldp := []byte{0x81, 0, 0, 7, 0x08, 0}, []byte{0x88, 0xcc}
	r.PassUnchanged(200, max(least, 20), ipv4, ipv6, arp, odd, tagged, lldp)
	r.Server.Echo("10.77.0.2:7000")
	ctx, cancel := context.WithTimeout(t.Context(), Patience)
	defer cancel()
	c, err := r.Client.Dial(ctx, "tcp4", "10.77.0.2:7000")
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	const size = 8 << 20
	want, got := make([]byte, size), make([]byte, size)
	random := rand.New(rand.NewPCG(3, 4))
	for i := range want {
		want[i] = byte(random.Uint32())
	}
	if err := c.SetDeadline(time.Now().Add(3 * Patience)); err != nil {
		t.Fatal(err)
	}
	go func() { _, _ = c.Write(want) }() // what is missing is missed below
	if _, err := io.ReadFull(c, got); err != nil || !bytes.Equal(got, want) {
		t.Errorf("8 MiB of TCP: %v, equal: %t", err, bytes.Equal(got, want))
	}
	p.Signal(syscall.SIGTERM)
	if err := p.End(); err != nil {
		t.Errorf("SIGTERM: %v", err)
	}
}

// ThreadTime is the processor time that this thread has used: what others take of the machine is not in it. The test holds the thread (runtime.LockOSThread).
func ThreadTime(t testing.TB) time.Duration {
	t.Helper()
	var at unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_THREAD_CPUTIME_ID, &at); err != nil {
		t.Fatal(err)
	}
	return time.Duration(at.Nano())
}

// Waits tells how often frames would wait for what f does between them (nf.Between), and for how much processor time in all and at once at most. The test holds the thread.
func Waits(t testing.TB, f func(between func(func()))) (times int, all, longest time.Duration) {
	t.Helper()
	f(func(piece func()) {
		begin := ThreadTime(t)
		piece()
		d := ThreadTime(t) - begin
		longest, all, times = max(longest, d), all+d, times+1
	})
	return times, all, longest
}
